//! The loop: one thread, one `poll`, no waiting anywhere else.
//!
//! Whatever wakes it, the same steps follow in the same order: reap, read the channels, enforce deadlines, settle. A host that does
//! not read its answers is not read either, so nothing queues up without bound.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use ipc::edge::control::{FromRole, RunnerOrder, ToRole};
use ipc::edge::host_runner::{HostToRunner, RunnerToHost};
use ipc::edge::runner_broker::RunnerToBroker;
use ipc::types::RequestId;
use ipc::{ChannelError, Receiver, Sender};
use nix::errno::Errno;
use nix::sys::signalfd::SignalFd;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::calls::Calls;
use crate::command::Allowed;
use crate::connections::Connections;
use crate::leaves::Leaves;
use crate::limits::Exit;
use crate::outbox::Outbox;
use crate::processes::Processes;
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
    /// The host used the number of something that is still going on.
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
    outbox: Outbox,
    allowed: Allowed,
    leaves: Leaves,
    calls: Calls,
    processes: Processes,
    connections: Connections,
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
            outbox: Outbox::default(),
            allowed: session.allowed,
            leaves: session.leaves,
            calls: Calls::default(),
            processes: Processes::default(),
            connections: Connections::default(),
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
        self.leaves.kill_all();
        result
    }

    /// One turn; `false` when the session is over.
    fn turn(&mut self) -> Result<bool, ServeError> {
        self.wait()?;
        while let Ok(Some(_)) = self.children.read_signal() {}
        self.reap().map_err(ServeError::system("wait for children"))?;
        if !(self.read_control()? && self.read_requests()?) {
            return Ok(false);
        }
        let now = Instant::now();
        self.leaves.recover()?;
        self.calls.settle(&mut self.leaves, now, &mut self.outbox)?;
        self.processes.settle(&mut self.leaves, now, &mut self.outbox)?;
        self.connections.settle(now, &mut self.outbox);
        for leaf in self.leaves.take_stuck() {
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
        let leaves = self.calls.watched(&self.leaves).chain(self.processes.watched(&self.leaves));
        let leaves = leaves.chain(self.leaves.stuck_events());
        waiting.extend(leaves.map(|events| PollFd::from_borrowed_fd(events, PollFlags::PRI)));
        let connecting = self.connections.watched();
        waiting.extend(connecting.map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::OUT)));
        let deadlines =
            [self.calls.next_deadline(), self.processes.next_deadline(), self.connections.next_deadline()];
        let left =
            deadlines.into_iter().flatten().min().map(|at| at.saturating_duration_since(Instant::now()));
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
            self.take(received.message, received.descriptors)?;
        }
        Ok(true)
    }

    fn take(&mut self, request: HostToRunner, descriptors: Vec<OwnedFd>) -> Result<(), ServeError> {
        let now = Instant::now();
        match request {
            HostToRunner::Run(run) => {
                self.unused(run.id)?;
                let answer = self.calls.start(&self.allowed, &mut self.leaves, &run, descriptors, now);
                if let Some(answer) = answer {
                    self.outbox.push(answer);
                }
            }
            HostToRunner::Kill { id } => {
                self.calls.kill(&self.leaves, id, now)?;
                self.processes.kill(&self.leaves, id, now)?;
            }
            HostToRunner::Start(start) => {
                self.unused(start.id)?;
                let answer = self.processes.start(&self.allowed, &mut self.leaves, &start, &descriptors);
                self.outbox.push(answer);
            }
            HostToRunner::Stop { id } => self.processes.stop(&self.leaves, id, now)?,
            HostToRunner::Connect { id, process, port, timeout_ms } => {
                self.unused(id)?;
                let (group, timeout) = (self.processes.group(process), Duration::from_millis(timeout_ms));
                self.connections.begin(id, group, port, timeout, now, &mut self.outbox);
            }
        }
        Ok(())
    }

    fn unused(&self, id: RequestId) -> Result<(), ServeError> {
        let used = self.calls.knows(id) || self.processes.knows(id) || self.connections.knows(id);
        if used { Err(ServeError::Reused) } else { Ok(()) }
    }

    /// Reaps everything that ended, adopted orphans too.
    fn reap(&mut self) -> std::io::Result<()> {
        loop {
            let (pid, exit) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, Exit { code, signal: None }),
                Ok(WaitStatus::Signaled(pid, signal, _)) => {
                    (pid, Exit { code: 128 + signal as i32, signal: Some(signal) })
                }
                Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return Ok(()),
                Ok(_) | Err(Errno::EINTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            self.calls.reaped(pid, exit);
            self.processes.reaped(pid, exit);
        }
    }

    fn flush(&mut self) -> Result<bool, ServeError> {
        match self.outbox.flush(&self.answers) {
            Ok(()) => Ok(true),
            Err(ChannelError::Closed) => Ok(false),
            Err(cause) => Err(ServeError::Peer { peer: "sandbox-host", cause }),
        }
    }
}
