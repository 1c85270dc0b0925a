//! How a process of ours is confined: one policy per role, and the only place besides `ipc` that makes raw system calls.
//!
//! [`enter`] is called by a started process before it receives any work, while it is single-threaded. It builds the role's
//! private root, joins the network namespace it was given, takes its identity, gives up every capability, restricts itself
//! with Landlock and loads the role's seccomp filter, in this order; any step that fails ends the start. [`spawn`] is the
//! broker's side: namespaces, descriptors, exec by descriptor. [`inspect`] is how the broker checks a process from outside.
//!
//! There is no switch that leaves a step out.

pub mod handler;
pub mod inspect;
pub mod mount;
pub mod net;
pub mod policy;
pub mod programs;
pub mod spawn;
pub mod sys;

use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// The processes that have a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// HTTP listener.
    Door,
    /// Reads files below export roots.
    Fileserver,
    /// Wasmtime, agent loop.
    SandboxHost,
    /// Starts programs.
    Runner,
    /// Connects out.
    Egress,
    /// Compiles one artifact.
    Compiler,
}

/// What a process was given to become itself with.
#[derive(Debug)]
pub struct Resources {
    /// Uid to take.
    pub uid: u32,
    /// Gid to take.
    pub gid: u32,
    /// Network namespace to join.
    pub network: Option<OwnedFd>,
    /// Detached mounts and where they go.
    pub trees: Vec<(PathBuf, OwnedFd)>,
}

/// What a process can say of its own lockdown.
#[derive(Debug, Clone, Copy)]
pub struct Report {
    /// The Landlock version that was enforced.
    pub landlock_abi: u32,
}

/// Why a process could not be confined; the start ends.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {cause}")]
pub struct ConfineError {
    /// What was tried, in words.
    pub step: &'static str,
    /// What the kernel said.
    #[source]
    pub cause: std::io::Error,
}

/// Confines the calling, single-threaded process for its role.
///
/// # Errors
/// [`ConfineError`]; the caller must exit.
pub fn enter(_role: Role, _resources: Resources) -> Result<Report, ConfineError> {
    Err(ConfineError { step: "confine", cause: std::io::ErrorKind::Unsupported.into() })
}

/// Confines the broker's main thread, which goes on to spawn: capabilities to the set architecture.md names,
/// no_new_privs, and the filter that every role and program inherits.
///
/// # Errors
/// [`ConfineError`].
pub fn enter_broker() -> Result<(), ConfineError> {
    Err(ConfineError { step: "confine", cause: std::io::ErrorKind::Unsupported.into() })
}

/// Confines one of the broker's threads that read a channel or write the trace: no socket, connect, bind, accept, exec,
/// clone3 besides.
///
/// # Errors
/// [`ConfineError`].
pub fn enter_broker_thread() -> Result<(), ConfineError> {
    Err(ConfineError { step: "confine", cause: std::io::ErrorKind::Unsupported.into() })
}

/// Seals sandbox-host once the last component is loaded: the cache directory is out of reach, and no page becomes
/// executable any more.
///
/// # Errors
/// [`ConfineError`].
pub fn seal_sandbox_host() -> Result<(), ConfineError> {
    Err(ConfineError { step: "confine", cause: std::io::ErrorKind::Unsupported.into() })
}
