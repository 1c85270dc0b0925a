//! The broker's side of a start: namespaces, descriptors, exec by descriptor.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::process::{Signal, WaitId, WaitIdOptions};

use crate::sys::birth;

/// A sibling binary, opened once.
#[derive(Debug)]
pub struct Program {
    /// `O_PATH` descriptor of the binary.
    pub file: OwnedFd,
    /// Its name, which becomes `argv[0]` and `comm`.
    pub name: String,
}

impl Program {
    /// Opens `directory/name`. A checkout may belong to anybody and to a group, so ownership is not judged; a file that
    /// everybody can write is refused, and so is anything but an executable regular file.
    ///
    /// # Errors
    /// The error of the open; `PermissionDenied` for a file that is refused.
    pub fn open(directory: &Path, name: &str) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(directory.join(name), flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&file)?;
        let refuse = |why| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return refuse("not a regular file");
        }
        let mode = Mode::from_raw_mode(stat.st_mode);
        if mode.contains(Mode::WOTH) {
            return refuse("every user may write this program");
        }
        if !mode.intersects(Mode::XUSR | Mode::XGRP | Mode::XOTH) {
            return refuse("not executable");
        }
        Ok(Program { file, name: name.to_owned() })
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

/// Starts a program as pid 1 of new PID, mount, IPC and UTS namespaces, in the given cgroup (a directory of cgroup v2), with
/// descriptors 0 and 1 on `/dev/null`, 2 on `log`, 3 on `control`, nothing else open, an empty environment, a session of its
/// own, and a death signal tied to the calling thread: call it from the main thread.
///
/// A child that cannot become the program exits with status 126 and leaves one line on `log` that names the step.
///
/// # Errors
/// The error of `clone3` or of opening `/dev/null`.
pub fn spawn(
    program: &Program,
    cgroup: Option<BorrowedFd<'_>>,
    control: BorrowedFd<'_>,
    log: BorrowedFd<'_>,
) -> io::Result<Child> {
    let name = CString::new(program.name.as_str())?;
    let null = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let birth = birth::Birth { file: program.file.as_fd(), name: &name, null: null.as_fd(), log, control };
    let (pid, pidfd) = birth::start(&birth, cgroup)?;
    Ok(Child { pid, pidfd })
}

impl Child {
    /// Sends SIGKILL; a process that is gone is no error.
    ///
    /// # Errors
    /// Any other error of `pidfd_send_signal`.
    pub fn kill(&self) -> io::Result<()> {
        match rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Reaps it if it has ended. The pidfd is readable from then on, so a caller need not ask in a loop.
    ///
    /// # Errors
    /// The error of `waitid`; a second call after the first `Some` is `ECHILD`.
    pub fn try_wait(&self) -> io::Result<Option<Exit>> {
        self.wait_with(WaitIdOptions::EXITED | WaitIdOptions::NOHANG)
    }

    /// Waits until it has ended and reaps it.
    ///
    /// # Errors
    /// As [`Child::try_wait`].
    pub fn wait(&self) -> io::Result<Exit> {
        loop {
            match self.wait_with(WaitIdOptions::EXITED) {
                Ok(Some(exit)) => return Ok(exit),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn wait_with(&self, options: WaitIdOptions) -> io::Result<Option<Exit>> {
        let Some(status) = rustix::process::waitid(WaitId::PidFd(self.pidfd.as_fd()), options)? else {
            return Ok(None);
        };
        Ok(match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Some(Exit::Status(code)),
            (None, Some(signal)) => Some(Exit::Signal(signal)),
            (None, None) => None,
        })
    }
}
