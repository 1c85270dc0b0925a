//! The start of one program: everything is prepared before the fork, the child makes raw system calls only.

use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::path::Path;

/// Resource limits of one program; `None` leaves the runner's.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// `RLIMIT_NOFILE`, hard and soft.
    pub open_files: Option<u64>,
    /// `RLIMIT_FSIZE`, bytes.
    pub file_size: Option<u64>,
    /// `RLIMIT_CPU`, seconds; the hard limit is one more.
    pub cpu_seconds: Option<u64>,
    /// `RLIMIT_AS`, bytes.
    pub memory: Option<u64>,
    /// `RLIMIT_NPROC`, tasks of the uid.
    pub processes: Option<u64>,
}

/// A program to start.
#[derive(Debug)]
pub struct Start<'a> {
    /// Absolute path of the program, as found at launch.
    pub program: &'a Path,
    /// The argument vector, `argv[0]` included.
    pub arguments: &'a [OsString],
    /// The whole environment.
    pub environment: &'a [(OsString, OsString)],
    /// Working directory.
    pub directory: &'a Path,
    /// Descriptor 0; `None` is `/dev/null`.
    pub stdin: Option<BorrowedFd<'a>>,
    /// Descriptor 1.
    pub stdout: BorrowedFd<'a>,
    /// Descriptor 2.
    pub stderr: BorrowedFd<'a>,
    /// `cgroup.procs` of the leaf the program joins before it does anything else; `None` stays where the runner is.
    pub leaf: Option<BorrowedFd<'a>>,
    /// Its limits, applied last.
    pub limits: Limits,
}

/// Why a program did not start. Nothing is left of it; the child was reaped.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {cause}")]
pub struct StartError {
    /// What was tried: `arguments` (a NUL byte, `=` in a variable's name), `fork`, `group`, `leaf`, `descriptors`,
    /// `directory`, `filter`, `limits` or `exec`.
    pub step: &'static str,
    /// What the kernel said.
    #[source]
    pub cause: std::io::Error,
}

/// Starts a program as leader of a new process group, with default signal dispositions, descriptors 0, 1 and 2 and nothing
/// else open, and returns its pid in the caller's namespace once `execve` succeeded. The caller reaps it
/// (`waitpid(-1)` as pid 1); pid and process group are the same number.
///
/// # Errors
/// [`StartError`].
pub fn start(_start: &Start<'_>) -> Result<i32, StartError> {
    Err(StartError { step: "fork", cause: std::io::ErrorKind::Unsupported.into() })
}
