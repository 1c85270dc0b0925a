//! The Landlock layer of class `scoped`: what programs may touch, everything else is refused.

use std::path::PathBuf;

use crate::ConfineError;

/// What programs may touch. Paths are absolute, canonical host paths chosen by the broker; a symbolic link in one is
/// refused. `docs/decisions.md`, containment classes.
#[derive(Debug, Clone, Default)]
pub struct Grants {
    /// Directories a program may read and write without executing anything: workdir, session home, `/tmp`. A missing one
    /// is an error.
    pub writable: Vec<PathBuf>,
    /// Directories a program may read: the runtime directory. A missing one is dropped.
    pub readable: Vec<PathBuf>,
    /// Allowed programs. [`restrict`] finds what each needs to start (ELF interpreter, `#!` interpreter, libraries).
    pub programs: Vec<PathBuf>,
}

/// A derived or optional grant that could not be opened: programs get less, never more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped(pub PathBuf);

/// What [`restrict`] did.
#[derive(Debug, Clone)]
pub struct Granted {
    /// The Landlock version that was enforced.
    pub landlock_abi: u32,
    /// Files that may be executed: the programs and their interpreters.
    pub executable: Vec<PathBuf>,
    /// Grants that were dropped because nothing is there.
    pub dropped: Vec<Dropped>,
}

/// Restricts the calling thread and everything it starts to the grants, a fixed base of read-only data files, `/dev/null`
/// (read and write), `/dev/zero` and `/dev/urandom` (read) and the reader's own `/proc`. Call it single-threaded, once.
///
/// Cgroup files, pipes and sockets that are open already stay usable: Landlock judges the opening.
///
/// # Errors
/// [`ConfineError`] if a writable directory or a program is missing or the kernel refuses; the runner must exit.
pub fn restrict(_grants: &Grants) -> Result<Granted, ConfineError> {
    Err(ConfineError { step: "restrict programs", cause: std::io::ErrorKind::Unsupported.into() })
}
