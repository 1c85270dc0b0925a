//! The runner's side of a session: programs under way, session processes, connections being made.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use ipc::aio::{AsyncReceiver, AsyncSender};
use ipc::codec::MAX_PACKET;
use ipc::edge::host_runner::{HostToRunner, Program, Run, RunnerToHost, Start};
use ipc::types::{RequestId, ResourceLimit};
use tokio::sync::{Notify, oneshot};

use crate::fault::Fault;
use crate::ids::millis;

/// How long the runner may take over a kill, or past a time limit it was given.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// What a program that does not fit a message is told.
pub(crate) const TOO_LARGE: &str = "the arguments and the environment do not fit into one message of 64 KiB";
/// Bytes of a message that are no program's, at most.
const FRAME: usize = 64;
/// Bytes that say how long a text is.
const LENGTH: usize = 8;

/// Whether one message carries a program. What does not fit is turned away before it is judged, so that nothing of any size is
/// looked at, recorded or kept.
pub(crate) fn fits(program: &Program) -> bool {
    let Program { name, args, env } = program;
    let variables = env.iter().flat_map(|(name, value)| [name, value]);
    let texts = std::iter::once(name).chain(args).chain(variables);
    let bytes = texts.fold(FRAME, |sum: usize, text| sum.saturating_add(text.len()).saturating_add(LENGTH));
    bytes <= MAX_PACKET
}

/// The way to the runner.
pub(crate) struct RunnerLink {
    sender: AsyncSender<HostToRunner>,
    pending: RefCell<HashMap<RequestId, Pending>>,
    /// Session processes that run, with who waits for their end.
    processes: RefCell<HashMap<RequestId, oneshot::Sender<Exit>>>,
    next: Cell<u64>,
    settled: Notify,
}

/// A request that was not answered yet.
struct Pending {
    kind: Kind,
    waiter: oneshot::Sender<Answer>,
}

/// Forgets a request that was not sent.
struct Unsent<'l> {
    link: &'l RunnerLink,
    id: RequestId,
}

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        self.link.pending.borrow_mut().remove(&self.id);
        self.link.settled.notify_waiters();
    }
}

enum Kind {
    Run,
    /// Who will wait for the end of the process.
    Start(oneshot::Sender<Exit>),
    Connect,
}

type Answer = (RunnerToHost, Vec<OwnedFd>);

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ended {
    Finished(Finished),
    NotAllowed,
    Failed(String),
}

/// A program that ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finished {
    pub(crate) exit_code: i32,
    pub(crate) timed_out: bool,
    pub(crate) env_dropped: Vec<String>,
    /// The one limit that it is known to have hit.
    pub(crate) resource_limit: Option<ResourceLimit>,
}

/// A session process that was started.
pub(crate) struct Running {
    pub(crate) id: RequestId,
    pub(crate) env_dropped: Vec<String>,
    pub(crate) ended: oneshot::Receiver<Exit>,
}

/// How a session process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exit {
    pub(crate) code: i32,
    /// SIGKILL was needed.
    pub(crate) killed: bool,
    /// The one limit that it is known to have hit.
    pub(crate) limit: Option<ResourceLimit>,
}

/// Why a session process was not started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NotStarted {
    NotAllowed,
    Failed(String),
}

/// Why there is no connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NotConnected {
    NotListening,
    NotAccepted,
    Failed(String),
}

impl RunnerLink {
    pub(crate) fn new(sender: AsyncSender<HostToRunner>) -> Self {
        RunnerLink {
            sender,
            pending: RefCell::default(),
            processes: RefCell::default(),
            next: Cell::new(1),
            settled: Notify::new(),
        }
    }

    fn fresh(&self) -> RequestId {
        RequestId(self.next.replace(self.next.get() + 1))
    }

    /// Runs a program to its end. The caller serves the other ends of the pipes meanwhile.
    ///
    /// # Errors
    /// [`Fault::Runner`] if the runner is gone or does not answer.
    pub(crate) async fn run(
        &self,
        program: Program,
        timeout: Duration,
        stdin: Option<OwnedFd>,
        [stdout, stderr]: [OwnedFd; 2],
    ) -> Result<Ended, Fault> {
        let id = self.fresh();
        let run = Run { id, program, stdin: stdin.is_some(), timeout_ms: millis(timeout) };
        let descriptors: Vec<OwnedFd> = stdin.into_iter().chain([stdout, stderr]).collect();
        let asked = self.ask(HostToRunner::Run(run), id, Kind::Run, descriptors, timeout).await?;
        Ok(match asked {
            None => Ended::Failed(TOO_LARGE.to_owned()),
            Some((
                RunnerToHost::Finished { exit_code, timed_out, env_dropped, resource_limit, id: _ },
                _,
            )) => Ended::Finished(Finished { exit_code, timed_out, env_dropped, resource_limit }),
            Some((RunnerToHost::NotAllowed { .. }, _)) => Ended::NotAllowed,
            Some((RunnerToHost::Failed { reason, .. }, _)) => Ended::Failed(reason),
            Some(_) => return Err(odd()),
        })
    }

    /// Starts a session process with its three standard descriptors.
    ///
    /// # Errors
    /// [`Fault::Runner`] if the runner is gone or does not answer.
    pub(crate) async fn start(
        &self,
        program: Program,
        standard: [OwnedFd; 3],
    ) -> Result<Result<Running, NotStarted>, Fault> {
        let id = self.fresh();
        let (end, ended) = oneshot::channel();
        let message = HostToRunner::Start(Start { id, program });
        let asked = self.ask(message, id, Kind::Start(end), standard.into(), Duration::ZERO).await?;
        Ok(match asked {
            None => Err(NotStarted::Failed(TOO_LARGE.to_owned())),
            Some((RunnerToHost::Started { env_dropped, .. }, _)) => Ok(Running { id, env_dropped, ended }),
            Some((RunnerToHost::NotAllowed { .. }, _)) => Err(NotStarted::NotAllowed),
            Some((RunnerToHost::Failed { reason, .. }, _)) => Err(NotStarted::Failed(reason)),
            Some(_) => return Err(odd()),
        })
    }

    /// Asks a session process to end; SIGKILL follows after two seconds.
    ///
    /// # Errors
    /// [`Fault::Runner`].
    pub(crate) async fn stop(&self, id: RequestId) -> Result<(), Fault> {
        self.sender.send(&HostToRunner::Stop { id }).await.map_err(gone)
    }

    /// Kills a session process and all it started.
    ///
    /// # Errors
    /// [`Fault::Runner`].
    pub(crate) async fn kill(&self, id: RequestId) -> Result<(), Fault> {
        self.sender.send(&HostToRunner::Kill { id }).await.map_err(gone)
    }

    /// A connection to a port a session process listens on; the socket does not block.
    ///
    /// # Errors
    /// [`Fault::Runner`] if the runner is gone or does not answer.
    pub(crate) async fn connect(
        &self,
        process: RequestId,
        port: u16,
        timeout: Duration,
    ) -> Result<Result<OwnedFd, NotConnected>, Fault> {
        let id = self.fresh();
        let message = HostToRunner::Connect { id, process, port, timeout_ms: millis(timeout) };
        let asked = self.ask(message, id, Kind::Connect, Vec::new(), timeout).await?;
        Ok(match asked {
            Some((RunnerToHost::Connected { .. }, mut descriptors)) => {
                Ok(descriptors.pop().ok_or_else(odd)?)
            }
            Some((RunnerToHost::NotListening { .. }, _)) => Err(NotConnected::NotListening),
            Some((RunnerToHost::NotAccepted { .. }, _)) => Err(NotConnected::NotAccepted),
            Some((RunnerToHost::Failed { reason, .. }, _)) => Err(NotConnected::Failed(reason)),
            _ => return Err(odd()),
        })
    }

    /// Sends a request and waits for its answer; `None` if it is too large to be sent.
    async fn ask(
        &self,
        message: HostToRunner,
        id: RequestId,
        kind: Kind,
        descriptors: Vec<OwnedFd>,
        timeout: Duration,
    ) -> Result<Option<Answer>, Fault> {
        let (waiter, answered) = oneshot::channel();
        self.pending.borrow_mut().insert(id, Pending { kind, waiter });
        // A call that is dropped while the channel is full has asked nothing: a message goes out whole or not at all.
        let unsent = Unsent { link: self, id };
        let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        let sent = self.sender.send_with(&message, &borrowed).await;
        // Only the program holds them now, so that its end is their end.
        drop(descriptors);
        match sent {
            Ok(()) => std::mem::forget(unsent),
            Err(ipc::ChannelError::Codec(_)) => return Ok(None),
            Err(error) => return Err(gone(error)),
        }
        let answer = tokio::time::timeout(timeout.saturating_add(PATIENCE), answered)
            .await
            .map_err(|_| Fault::Runner("did not answer in time".into()))?
            .map_err(|_| Fault::Runner("went away".into()))?;
        Ok(Some(answer))
    }

    /// Kills the runs that still go on and waits until they are gone: nothing of a cancelled task may outlive it. Session
    /// processes go on; one that is being started is waited for.
    ///
    /// # Errors
    /// [`Fault::Runner`].
    pub(crate) async fn quiesce(&self) -> Result<(), Fault> {
        let running: Vec<RequestId> = {
            let pending = self.pending.borrow();
            let runs = pending.iter().filter(|(_, pending)| matches!(pending.kind, Kind::Run));
            runs.map(|(id, _)| *id).collect()
        };
        for id in running {
            self.kill(id).await?;
        }
        let gone = async {
            loop {
                // Registered before the look, so that an end in between is not missed.
                let settled = self.settled.notified();
                if self.pending.borrow().values().all(|pending| matches!(pending.kind, Kind::Connect)) {
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
            let received = match receiver.receive().await {
                Ok(received) => received,
                Err(error) => return gone(error),
            };
            let id = received.message.id();
            if let RunnerToHost::Ended { exit_code, killed, resource_limit, id: _ } = received.message {
                match self.processes.borrow_mut().remove(&id) {
                    Some(waiter) => {
                        let _ = waiter.send(Exit { code: exit_code, killed, limit: resource_limit });
                    }
                    None => return Fault::Runner("told the end of a process that did not run".into()),
                }
                continue;
            }
            let Some(pending) = self.pending.borrow_mut().remove(&id) else {
                return Fault::Runner("answered a request that was not made".into());
            };
            if let (Kind::Start(end), RunnerToHost::Started { .. }) = (pending.kind, &received.message) {
                self.processes.borrow_mut().insert(id, end);
            }
            // The waiter is gone when its task was cancelled.
            let _ = pending.waiter.send((received.message, received.descriptors));
            self.settled.notify_waiters();
        }
    }
}

fn gone(error: ipc::ChannelError) -> Fault {
    Fault::Runner(error.to_string())
}

fn odd() -> Fault {
    Fault::Runner("answered another request than was made".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_what_one_message_carries() {
        for (args, env) in [(1, 0), (1, 1000), (1000, 0), (1500, 1000)] {
            let program = |length: &usize| Program {
                name: "bash".into(),
                args: vec!["x".repeat(*length); args],
                env: vec![("NAME".into(), "value".into()); env],
            };
            let lengths: Vec<usize> = (0..=MAX_PACKET).collect();
            let longest = lengths.partition_point(|length| fits(&program(length))) - 1;
            let (id, program) = (RequestId(u64::MAX), program(&longest));
            let run = Run { id, program, stdin: true, timeout_ms: u64::MAX };
            let bytes = ipc::codec::encode(&HostToRunner::Run(run)).unwrap();
            assert!(bytes.len() + args + FRAME >= MAX_PACKET, "{args} {env}: {}", bytes.len());
        }
        let none = Program { name: String::new(), args: vec![], env: vec![] };
        assert!(!fits(&Program { args: vec![String::new(); MAX_PACKET], ..none.clone() }));
        assert!(!fits(&Program { env: vec![(String::new(), String::new()); MAX_PACKET], ..none }));
    }

    #[test]
    fn a_request_that_is_dropped_before_it_is_sent_is_forgotten() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (near, far) = ipc::pair::<HostToRunner, RunnerToHost>().unwrap();
            let (sender, _receiver) = ipc::aio::split(near).unwrap();
            let link = RunnerLink::new(sender);
            let program = Program { name: "x".repeat(MAX_PACKET / 2), args: vec![], env: vec![] };
            let pipes = || {
                let (reader, writer) = rustix::pipe::pipe().unwrap();
                [reader, writer]
            };
            let mut sent = 0;
            // Until the channel is full; nobody reads.
            loop {
                let run = link.run(program.clone(), Duration::from_secs(1), None, pipes());
                let mut run = Box::pin(run);
                let polled = std::future::poll_fn(|context| {
                    std::task::Poll::Ready(run.as_mut().poll(context).is_pending())
                });
                assert!(polled.await, "no answer came");
                drop(run);
                if link.pending.borrow().len() == sent {
                    break;
                }
                sent += 1;
            }
            assert!(sent > 0);
            drop(far);
        });
    }
}
