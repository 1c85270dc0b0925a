//! The loop: one thread, one `poll`, no waiting anywhere else.
//!
//! Whatever wakes it, the same steps follow in the same order: reap, read the channels, enforce deadlines, settle. A host that does
//! not read its answers is not read either, so nothing queues up without bound.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::time::Instant;

use ipc::edge::control::{FromRole, RunnerOrder, ToRole};
use ipc::edge::host_runner::{HostToRunner, RunnerToHost};
use ipc::edge::runner_broker::RunnerToBroker;
use ipc::{ChannelError, Receiver, Sender};
use nix::sys::signalfd::SignalFd;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::calls::Calls;
use crate::setup::Session;

/// Why the runner ends with an error; the caller says it on standard error.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    /// A peer broke the rules of its channel.
    #[error("{peer}: {cause}")]
    Peer {
        /// Who.
        peer: &'static str,
        /// How.
        #[source]
        cause: ChannelError,
    },
    /// The broker sent an order out of turn.
    #[error("the broker sent an order out of turn")]
    OutOfTurn,
    /// The host used the number of a run that is still going on.
    #[error("sandbox-host used one request number twice")]
    Reused,
    /// The kernel refused something without which runs cannot be ended or seen to end.
    #[error("{step}: {cause}")]
    System {
        /// What was tried.
        step: &'static str,
        /// What the kernel said.
        #[source]
        cause: std::io::Error,
    },
}

impl ServeError {
    pub(crate) fn system(step: &'static str) -> impl FnOnce(std::io::Error) -> ServeError {
        move |cause| ServeError::System { step, cause }
    }
}

/// Everything the loop waits on.
#[derive(Debug)]
pub(crate) struct Loop {
    control: Receiver<ToRole<RunnerOrder>>,
    /// Kept so that the broker sees an open channel.
    _control: Sender<FromRole>,
    requests: Receiver<HostToRunner>,
    answers: Sender<RunnerToHost>,
    broker: Sender<RunnerToBroker>,
    children: SignalFd,
    outbox: VecDeque<RunnerToHost>,
    calls: Calls,
}

impl Loop {
    /// Takes over a session that is ready to run programs.
    pub(crate) fn new(session: Session) -> Self {
        let (control_sender, control) = session.control.split();
        let (answers, requests) = session.host.split();
        let broker = session.broker.sender();
        Loop {
            control,
            _control: control_sender,
            requests,
            answers,
            broker,
            children: session.children,
            outbox: VecDeque::new(),
            calls: session.calls,
        }
    }

    /// Serves until the broker says `Shutdown` or a channel closes; then everything that still runs is killed.
    ///
    /// # Errors
    /// [`ServeError`]; everything was killed then, too.
    pub(crate) fn serve(mut self) -> Result<(), ServeError> {
        let result = loop {
            match self.turn() {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.calls.kill_all();
        result
    }

    /// One turn; `false` when the session is over.
    fn turn(&mut self) -> Result<bool, ServeError> {
        self.wait()?;
        while let Ok(Some(_)) = self.children.read_signal() {}
        self.calls.reap().map_err(ServeError::system("wait for children"))?;
        if !(self.read_control()? && self.read_requests()?) {
            return Ok(false);
        }
        self.calls.settle(Instant::now(), &mut self.outbox)?;
        for leaf in self.calls.take_stuck() {
            // The broker is told and must not be waited for; it has seconds before its queue could be full.
            match self.broker.try_send(&RunnerToBroker::LeafStuck { leaf }, &[]) {
                Ok(()) | Err(ChannelError::Stuck) => {}
                Err(ChannelError::Closed) => return Ok(false),
                Err(cause) => return Err(ServeError::Peer { peer: "broker", cause }),
            }
        }
        self.flush()
    }

    fn wait(&self) -> Result<(), ServeError> {
        let host = if self.outbox.is_empty() { PollFlags::IN } else { PollFlags::OUT };
        let mut waiting = vec![
            PollFd::new(&self.control, PollFlags::IN),
            PollFd::new(&self.requests, host),
            PollFd::from_borrowed_fd(self.children.as_fd(), PollFlags::IN),
        ];
        waiting.extend(self.calls.watched().map(|events| PollFd::from_borrowed_fd(events, PollFlags::PRI)));
        let left = self.calls.next_deadline().map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        match rustix::event::poll(&mut waiting, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(ServeError::System { step: "poll", cause: errno.into() }),
        }
    }

    fn read_control(&mut self) -> Result<bool, ServeError> {
        match self.control.try_receive() {
            Ok(None) => Ok(true),
            Ok(Some(received)) => match received.message {
                ToRole::Shutdown => Ok(false),
                ToRole::Begin(_) | ToRole::Order(_) => Err(ServeError::OutOfTurn),
            },
            Err(ChannelError::Closed) => Ok(false),
            Err(cause) => Err(ServeError::Peer { peer: "broker", cause }),
        }
    }

    /// Takes requests while the answers to earlier ones are being read.
    fn read_requests(&mut self) -> Result<bool, ServeError> {
        while self.outbox.is_empty() {
            let received = match self.requests.try_receive() {
                Ok(Some(received)) => received,
                Ok(None) => return Ok(true),
                Err(ChannelError::Closed) => return Ok(false),
                Err(cause) => return Err(ServeError::Peer { peer: "sandbox-host", cause }),
            };
            match received.message {
                HostToRunner::Run(run) => {
                    let answer = self.calls.start(&run, received.descriptors, Instant::now())?;
                    self.outbox.extend(answer);
                }
                HostToRunner::Kill { id } => self.calls.kill(id, Instant::now())?,
            }
        }
        Ok(true)
    }

    fn flush(&mut self) -> Result<bool, ServeError> {
        while let Some(answer) = self.outbox.front() {
            match self.answers.try_send(answer, &[]) {
                Ok(()) => drop(self.outbox.pop_front()),
                Err(ChannelError::Stuck) => break,
                Err(ChannelError::Closed) => return Ok(false),
                Err(cause) => return Err(ServeError::Peer { peer: "sandbox-host", cause }),
            }
        }
        Ok(true)
    }
}
