//! The runner's side of a session: programs under way, each with its two pipes.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use ipc::aio::{AsyncReceiver, AsyncSender};
use ipc::edge::host_runner::{HostToRunner, Run, RunnerToHost};
use ipc::types::RequestId;
use tokio::sync::{Notify, oneshot};

use crate::fault::Fault;

/// How long the runner may take over a kill, or past a run's own time limit.
const PATIENCE: Duration = Duration::from_secs(15);

/// The way to the runner.
pub(crate) struct RunnerLink {
    sender: AsyncSender<HostToRunner>,
    pending: RefCell<HashMap<RequestId, oneshot::Sender<RunnerToHost>>>,
    next: Cell<u64>,
    settled: Notify,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ended {
    Finished { exit_code: i32, timed_out: bool },
    NotAllowed,
    Failed(String),
}

impl RunnerLink {
    pub(crate) fn new(sender: AsyncSender<HostToRunner>) -> Self {
        RunnerLink { sender, pending: RefCell::default(), next: Cell::new(1), settled: Notify::new() }
    }

    /// Runs a program to its end. The caller reads the other ends of both pipes meanwhile.
    ///
    /// # Errors
    /// [`Fault::Runner`] if the runner is gone or does not answer.
    pub(crate) async fn run(
        &self,
        program: &str,
        args: Vec<String>,
        timeout: Duration,
        stdout: OwnedFd,
        stderr: OwnedFd,
    ) -> Result<Ended, Fault> {
        let id = RequestId(self.next.replace(self.next.get() + 1));
        let run = Run {
            id,
            program: program.to_owned(),
            args,
            env: Vec::new(),
            stdin: false,
            timeout_ms: crate::ids::millis(timeout),
        };
        let (finish, finished) = oneshot::channel();
        self.pending.borrow_mut().insert(id, finish);
        let sent = self.sender.send_with(&HostToRunner::Run(run), &[stdout.as_fd(), stderr.as_fd()]).await;
        // Only the program holds them now, so that its end is their end.
        drop((stdout, stderr));
        match sent {
            Ok(()) => {}
            Err(ipc::ChannelError::Codec(_)) => {
                self.pending.borrow_mut().remove(&id);
                return Ok(Ended::Failed("the command does not fit into one message of 64 KiB".into()));
            }
            Err(error) => return Err(Fault::Runner(error.to_string())),
        }
        let answer = tokio::time::timeout(timeout + PATIENCE, finished)
            .await
            .map_err(|_| Fault::Runner("a run did not end in its time".into()))?
            .map_err(|_| Fault::Runner("went away".into()))?;
        Ok(match answer {
            RunnerToHost::Finished { exit_code, timed_out, .. } => Ended::Finished { exit_code, timed_out },
            RunnerToHost::NotAllowed { .. } => Ended::NotAllowed,
            RunnerToHost::Failed { reason, .. } => Ended::Failed(reason),
        })
    }

    /// Kills what still runs and waits until it is gone: nothing of a cancelled task may outlive it.
    ///
    /// # Errors
    /// [`Fault::Runner`].
    pub(crate) async fn quiesce(&self) -> Result<(), Fault> {
        let running: Vec<RequestId> = self.pending.borrow().keys().copied().collect();
        for id in running {
            self.sender
                .send(&HostToRunner::Kill { id })
                .await
                .map_err(|error| Fault::Runner(error.to_string()))?;
        }
        let gone = async {
            loop {
                // Registered before the look, so that an end in between is not missed.
                let settled = self.settled.notified();
                if self.pending.borrow().is_empty() {
                    return;
                }
                settled.await;
            }
        };
        tokio::time::timeout(PATIENCE, gone).await.map_err(|_| Fault::Runner("a kill had no effect".into()))
    }

    /// Takes answers until the runner goes away or breaks the rules.
    pub(crate) async fn receive(&self, mut receiver: AsyncReceiver<RunnerToHost>) -> Fault {
        loop {
            let message = match receiver.receive().await {
                Ok(received) => received.message,
                Err(error) => return Fault::Runner(error.to_string()),
            };
            let (RunnerToHost::Finished { id, .. }
            | RunnerToHost::NotAllowed { id }
            | RunnerToHost::Failed { id, .. }) = &message;
            let Some(waiter) = self.pending.borrow_mut().remove(id) else {
                return Fault::Runner("answered a run that was not asked for".into());
            };
            // The waiter is gone when its task was cancelled.
            let _ = waiter.send(message);
            self.settled.notify_waiters();
        }
    }
}
