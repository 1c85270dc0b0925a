//! The broker's side of a start: namespaces, descriptors, exec by descriptor.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

/// A sibling binary, opened once.
#[derive(Debug)]
pub struct Program {
    /// `O_PATH` descriptor of the binary.
    pub file: OwnedFd,
    /// Its name, which becomes `argv[0]` and `comm`.
    pub name: String,
}

impl Program {
    /// Opens `directory/name`.
    ///
    /// # Errors
    /// The error of the open; a file that others can write is refused.
    pub fn open(_directory: &Path, _name: &str) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A started process.
#[derive(Debug)]
pub struct Child {
    /// Its pid in the broker's namespace.
    pub pid: i32,
    /// Its pidfd.
    pub pidfd: OwnedFd,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this status.
    Status(i32),
    /// A signal ended it.
    Signal(i32),
}

/// Starts a program as pid 1 of new PID, mount, IPC and UTS namespaces, in the given cgroup, with descriptors 0 and 1 on
/// `/dev/null`, 2 on `log`, 3 on `control`, nothing else open, an empty environment, and a death signal tied to the calling
/// thread.
///
/// # Errors
/// The error of `clone3`.
pub fn spawn(
    _program: &Program,
    _cgroup: Option<BorrowedFd<'_>>,
    _control: BorrowedFd<'_>,
    _log: BorrowedFd<'_>,
) -> io::Result<Child> {
    Err(io::ErrorKind::Unsupported.into())
}

impl Child {
    /// Sends SIGKILL; a process that is gone is no error.
    ///
    /// # Errors
    /// Any other error of `pidfd_send_signal`.
    pub fn kill(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Reaps it if it has ended.
    ///
    /// # Errors
    /// The error of `waitid`.
    pub fn try_wait(&self) -> io::Result<Option<Exit>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
