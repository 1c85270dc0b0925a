//! The signals that end a session, as a descriptor: blocked before a launch makes anything, so that none ends it half-way.

use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::refusal::Refusal;

/// SIGINT, SIGTERM and SIGHUP.
#[derive(Debug)]
pub(crate) struct Signals(SignalFd);

impl Signals {
    /// Blocks them for this thread and those it starts; a process it starts takes the block away.
    ///
    /// # Errors
    /// Exit status 3.
    pub(crate) fn block() -> Result<Self, Refusal> {
        let mut set = SigSet::empty();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            set.add(signal);
        }
        let broken = |errno: nix::Error| Refusal::broken("broker", format!("signals: {errno}"));
        set.thread_block().map_err(broken)?;
        SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
            .map(Signals)
            .map_err(broken)
    }

    /// Takes one that came; whether it asks for the end. SIGHUP asks egress to read credentials again, of which this version
    /// has none.
    pub(crate) fn take(&self) -> bool {
        const SIGHUP: u32 = Signal::SIGHUP as u32;
        matches!(self.0.read_signal(), Ok(Some(info)) if info.ssi_signo != SIGHUP)
    }

    /// Between two steps of a launch: whether it goes on.
    ///
    /// # Errors
    /// Exit status 143 if its end was asked for.
    pub(crate) fn go_on(&self) -> Result<(), Refusal> {
        if self.take() { Err(Refusal::ended()) } else { Ok(()) }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
