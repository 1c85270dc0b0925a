//! One cgroup leaf: everything a call starts lives in it, is ended through it, and is known to be gone by it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ipc::edge::control::Controllers;

use crate::limits::{Counters, value};

/// A leaf as the descriptors the broker opened; the runner could open none of them itself.
#[derive(Debug)]
pub(crate) struct Leaf {
    procs: OwnedFd,
    kill: OwnedFd,
    events: OwnedFd,
    /// `memory.events`
    memory: Option<OwnedFd>,
    /// `pids.events`
    pids: Option<OwnedFd>,
}

impl Leaf {
    /// Takes `cgroup.procs`, `cgroup.kill` and `cgroup.events` of one leaf, then `memory.events` and `pids.events` where the
    /// controllers are there, in this order; `None` for another number of files.
    pub(crate) fn new(files: Vec<OwnedFd>, controllers: Controllers) -> Option<Self> {
        let mut files = files.into_iter();
        let (procs, kill, events) = (files.next()?, files.next()?, files.next()?);
        let memory = if controllers.memory { Some(files.next()?) } else { None };
        let pids = if controllers.pids { Some(files.next()?) } else { None };
        files.next().is_none().then_some(Leaf { procs, kill, events, memory, pids })
    }

    /// What the kernel refused in this leaf, since it was made.
    pub(crate) fn counters(&self) -> Counters {
        Counters {
            memory: self.memory.as_ref().and_then(|file| counter(file, "oom_kill")),
            pids: self.pids.as_ref().and_then(|file| counter(file, "max")),
        }
    }

    /// `cgroup.procs`: a child writes `0` there before it executes anything.
    pub(crate) fn procs(&self) -> BorrowedFd<'_> {
        self.procs.as_fd()
    }

    /// `cgroup.events`, which reports a change as exceptional data.
    pub(crate) fn events(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Sends SIGKILL to whatever is in the leaf, also to what is being forked right now.
    ///
    /// # Errors
    /// The error of the write.
    pub(crate) fn kill(&self) -> io::Result<()> {
        match rustix::io::write(&self.kill, b"1") {
            Ok(1) => Ok(()),
            Ok(_) => Err(io::ErrorKind::WriteZero.into()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether nothing lives in the leaf any more. Reading also arms the next notification.
    ///
    /// # Errors
    /// The error of the read; text that is no `cgroup.events` is `InvalidData`.
    pub(crate) fn is_empty(&self) -> io::Result<bool> {
        let mut buffer = [0; 256];
        let length = rustix::io::pread(&self.events, &mut buffer, 0)?;
        populated(buffer.get(..length).unwrap_or_default())
            .map(|populated| !populated)
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// One counter of a control file that is open.
pub(crate) fn counter(file: &OwnedFd, name: &str) -> Option<u64> {
    let mut buffer = [0; 256];
    let length = rustix::io::pread(file, &mut buffer, 0).ok()?;
    value(buffer.get(..length)?, name)
}

/// The one number of a control file that is open.
pub(crate) fn number(file: &OwnedFd) -> Option<u64> {
    let mut buffer = [0; 32];
    let length = rustix::io::pread(file, &mut buffer, 0).ok()?;
    std::str::from_utf8(buffer.get(..length)?).ok()?.trim().parse().ok()
}

fn populated(text: &[u8]) -> Option<bool> {
    let text = std::str::from_utf8(text).ok()?;
    match text.lines().find_map(|line| line.strip_prefix("populated "))? {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::populated;

    #[test]
    fn populated_is_read_from_its_line_and_nothing_is_guessed() {
        for (text, answer) in [
            (&b"populated 1\nfrozen 0\n"[..], Some(true)),
            (b"frozen 0\npopulated 0\n", Some(false)),
            (b"frozen 0\n", None),
            (b"populated 2\n", None),
            (b"populated 10\n", None),
            (b"", None),
            (b"\xff", None),
        ] {
            assert_eq!(populated(text), answer, "{text:?}");
        }
    }
}
