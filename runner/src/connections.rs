//! Connections to what session processes listen on, made here because the runner lives in their network namespace.
//!
//! 127.0.0.1 is tried before ::1, and only where a process in the group listens alone: judged before connecting, and again
//! when the connection stands, so that a listener that took its place meanwhile is not mistaken for it.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ipc::edge::host_runner::RunnerToHost;
use ipc::types::RequestId;
use nix::unistd::Pid;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, ipproto, socket_with, sockopt};

use crate::listeners::{Listeners, listeners};
use crate::outbox::Outbox;

/// Connections being made at one time.
const MOST: usize = 16;
/// The longest time a listener is given.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// The connections being made.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    pending: Vec<Pending>,
}

#[derive(Debug)]
struct Pending {
    id: RequestId,
    group: Pid,
    to: SocketAddr,
    /// Who listened when it began.
    sockets: BTreeSet<u64>,
    socket: OwnedFd,
    deadline: Instant,
}

/// What came of a connection so far.
enum Step {
    /// It stands.
    Done(OwnedFd),
    /// The listener has not taken it yet.
    Waits(Pending),
    /// It does not come about.
    Failed(String),
}

impl Connections {
    /// Whether a connection being made has this number.
    pub(crate) fn knows(&self, id: RequestId) -> bool {
        self.pending.iter().any(|pending| pending.id == id)
    }

    /// Begins a connection to a port of a process group, and answers if it is decided at once.
    pub(crate) fn begin(
        &mut self,
        id: RequestId,
        group: Option<Pid>,
        port: u16,
        timeout: Duration,
        now: Instant,
        outbox: &mut Outbox,
    ) {
        let Some(group) = group else { return outbox.push(RunnerToHost::NotListening { id }) };
        if self.pending.len() >= MOST {
            let reason = "too many connections are being made".to_owned();
            return outbox.push(RunnerToHost::Failed { id, reason });
        }
        match find(group, port) {
            Ok(Some((address, sockets))) => {
                let to = SocketAddr::new(address, port);
                let deadline = now + timeout.min(LONGEST);
                let step = match open(to) {
                    Ok((socket, stands)) => {
                        let pending = Pending { id, group, to, sockets, socket, deadline };
                        if stands { pending.judge() } else { Step::Waits(pending) }
                    }
                    Err(errno) => Step::Failed(why(errno, port)),
                };
                self.settle_one(id, step, outbox);
            }
            Ok(None) => outbox.push(RunnerToHost::NotListening { id }),
            Err(error) => outbox.push(RunnerToHost::Failed { id, reason: unknown(&error) }),
        }
    }

    fn settle_one(&mut self, id: RequestId, step: Step, outbox: &mut Outbox) {
        match step {
            Step::Done(socket) => outbox.push_with(RunnerToHost::Connected { id }, socket),
            Step::Waits(pending) => self.pending.push(pending),
            Step::Failed(reason) => outbox.push(RunnerToHost::Failed { id, reason }),
        }
    }

    /// Moves every connection as far as it can go now.
    pub(crate) fn settle(&mut self, now: Instant, outbox: &mut Outbox) {
        for pending in std::mem::take(&mut self.pending) {
            let id = pending.id;
            let late = now >= pending.deadline;
            match pending.advance() {
                Step::Waits(_) if late => outbox.push(RunnerToHost::NotAccepted { id }),
                step => self.settle_one(id, step, outbox),
            }
        }
    }

    /// When something is due although nothing happens.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.pending.iter().map(|pending| pending.deadline).min()
    }

    /// The sockets that become writable when they stand.
    pub(crate) fn watched(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.pending.iter().map(|pending| pending.socket.as_fd())
    }
}

impl Pending {
    /// Looks whether the connection stands.
    fn advance(self) -> Step {
        let ready = rustix::event::poll(
            &mut [rustix::event::PollFd::new(&self.socket, rustix::event::PollFlags::OUT)],
            Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 }),
        );
        match ready {
            Ok(0) | Err(Errno::INTR) => return Step::Waits(self),
            Ok(_) => {}
            Err(errno) => return Step::Failed(why(errno, self.to.port())),
        }
        match sockopt::socket_error(&self.socket) {
            Ok(Ok(())) => self.judge(),
            Ok(Err(errno)) | Err(errno) => Step::Failed(why(errno, self.to.port())),
        }
    }

    /// Looks whether those who listened still do, and nobody else.
    fn judge(self) -> Step {
        match listeners(self.to.ip(), self.to.port(), self.group) {
            Ok(Listeners::Group(sockets)) if sockets == self.sockets => Step::Done(self.socket),
            Ok(_) => Step::Failed(gone(self.to.port())),
            Err(error) => Step::Failed(unknown(&error)),
        }
    }
}

/// The first address at which the group listens alone.
fn find(group: Pid, port: u16) -> io::Result<Option<(IpAddr, BTreeSet<u64>)>> {
    for address in LOOPBACK {
        if let Listeners::Group(sockets) = listeners(address, port, group)? {
            return Ok(Some((address, sockets)));
        }
    }
    Ok(None)
}

/// A socket that is being connected, and whether it is already.
fn open(to: SocketAddr) -> Result<(OwnedFd, bool), Errno> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    // What a tool writes is meant to arrive now.
    sockopt::set_tcp_nodelay(&socket, true)?;
    match connect(&socket, &to) {
        Ok(()) => Ok((socket, true)),
        Err(Errno::INPROGRESS) => Ok((socket, false)),
        Err(errno) => Err(errno),
    }
}

fn gone(port: u16) -> String {
    format!("the listener on port {port} is gone")
}

fn why(errno: Errno, port: u16) -> String {
    match errno {
        Errno::CONNREFUSED | Errno::CONNRESET => gone(port),
        other => format!("no connection to port {port}: {other}"),
    }
}

fn unknown(error: &io::Error) -> String {
    format!("it could not be found out who listens: {error}")
}
