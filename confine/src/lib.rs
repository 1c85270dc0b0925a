//! How a process of ours is confined: one policy per role, and the only place besides `ipc` that makes raw system calls.
//!
//! [`enter`] is called by a started process before it receives any work, while it is single-threaded. It builds the role's
//! private root, joins the network namespace it was given, takes its identity, gives up every capability, restricts itself
//! with Landlock and loads the role's seccomp filter, in this order; any step that fails ends the start. [`spawn`] is the
//! broker's side: namespaces, descriptors, exec by descriptor. [`inspect`] is how the broker checks a process from outside,
//! and [`programs`] is what the runner starts programs with.
//!
//! It trusts the broker for the resources it hands over and the kernel for the rest: what a step achieved is read back
//! where the kernel shows it. There is no switch that leaves a step out.

mod broker;
pub mod composed;
mod enter;
mod filter;
pub mod handler;
mod identity;
pub mod inspect;
mod landlocked;
pub mod mount;
pub mod net;
pub mod policy;
pub mod probe;
pub mod programs;
mod protect;
mod root;
pub mod spawn;
mod status;
pub(crate) mod sys;
pub mod userns;

use std::os::fd::OwnedFd;
use std::path::PathBuf;

pub use broker::{close_inherited, enter_broker, enter_broker_thread, give_way};
pub use enter::{enter, restrict_egress_ports, seal_sandbox_host};
pub use sys::secret::{SecretPage, scrub_stack, shield_stack};

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

impl Role {
    /// Every role.
    pub const ALL: [Role; 6] =
        [Role::Door, Role::Fileserver, Role::SandboxHost, Role::Runner, Role::Egress, Role::Compiler];

    /// Name of its binary and of its process (`comm`).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Role::Door => "door",
            Role::Fileserver => "fileserver",
            Role::SandboxHost => "sandbox-host",
            Role::Runner => "runner",
            Role::Egress => "egress",
            Role::Compiler => "compiler",
        }
    }

    /// Its limit of open descriptors.
    const fn open_files(self) -> u64 {
        match self {
            // 256 connections, each with two pipes of an A2A call, and some.
            Role::Door | Role::Egress => 2048,
            Role::SandboxHost | Role::Runner => 4096,
            Role::Fileserver => 256,
            Role::Compiler => 64,
        }
    }
}

/// With whose rights a broker works, and so what its processes are made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    /// Root's: every process gets an id of its own.
    Root,
    /// An ordinary user's, in a user namespace ([`userns::enter`]): every process has the user's id, and ends in a further
    /// user namespace.
    User,
}

/// What a process was given to become itself with.
#[derive(Debug)]
pub struct Resources {
    /// Uid to take; never 0.
    pub uid: u32,
    /// Gid to take; never 0.
    pub gid: u32,
    /// Whose rights it was started with.
    pub rights: Rights,
    /// Network namespace to join.
    pub network: Option<OwnedFd>,
    /// Detached mounts and where they go: absolute paths in the private or composed root, or (runner, over the host's root)
    /// existing host paths without a symbolic link in them.
    pub trees: Vec<(PathBuf, OwnedFd)>,
    /// Absolute paths below those trees that the role may read and not change: existing directories and regular files,
    /// reached without a symbolic link.
    pub read_only: Vec<PathBuf>,
    /// What programs see; only the runner's matters.
    pub view: View,
}

/// The file system that programs, and so the runner, live in.
#[derive(Debug)]
pub enum View {
    /// The host's own, with the trees over it and a procfs of their own.
    Host {
        /// Whether everything but the trees is read-only.
        fixed: bool,
    },
    /// A root composed for them, class `sealed`.
    Composed(composed::Composed),
}

/// What a process can say of its own lockdown.
#[derive(Debug, Clone, Copy)]
pub struct Report {
    /// The Landlock version that was enforced; 0 for the runner, whose programs' class decides
    /// ([`programs::restrict`]).
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

/// The Landlock version of the running kernel, 0 for none: for reports, decisions are made by building a ruleset.
#[must_use]
pub fn landlock_version() -> u32 {
    sys::landlock_version()
}
