//! Answers on their way to the host, in order; a host that does not read is not read either.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use ipc::edge::host_runner::RunnerToHost;
use ipc::{ChannelError, Sender};

/// What was not sent yet.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    waiting: VecDeque<(RunnerToHost, Option<OwnedFd>)>,
}

impl Outbox {
    pub(crate) fn push(&mut self, answer: RunnerToHost) {
        self.waiting.push_back((answer, None));
    }

    /// An answer that carries a descriptor.
    pub(crate) fn push_with(&mut self, answer: RunnerToHost, descriptor: OwnedFd) {
        self.waiting.push_back((answer, Some(descriptor)));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Sends what the host's queue takes.
    ///
    /// # Errors
    /// [`ChannelError`], never `Stuck`.
    pub(crate) fn flush(&mut self, sender: &Sender<RunnerToHost>) -> Result<(), ChannelError> {
        while let Some((answer, descriptor)) = self.waiting.front() {
            let descriptor = descriptor.as_ref().map(AsFd::as_fd);
            match sender.try_send(answer, descriptor.as_slice()) {
                Ok(()) => drop(self.waiting.pop_front()),
                Err(ChannelError::Stuck) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
