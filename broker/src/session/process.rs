//! One process of ours, from `clone3` to its end: what may be asked of it in which state.
//!
//! The types are the states. [`Spawned`] has been started and is trusted with nothing; [`Process`] has reported `Ready` and
//! was checked from outside. Only a `Process` takes orders.

use std::cell::Cell;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use confine::inspect::{self, Expected};
use confine::spawn::{Child, Exit, Program};
use ipc::edge::control::{Begin, BrokerControl, FromRole, ToRole, expect_hello};
use ipc::{ChannelError, Message, Receiver, Sender};
use rustix::event::{PollFd, PollFlags};

use crate::refusal::Refusal;

/// How long a process may take from exec to `Ready`, and to load components.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Which process: its policy's name is its file name, its `comm` and the word for operators.
pub(crate) use confine::Role as Kind;

/// Started, not confined yet.
#[derive(Debug)]
pub(crate) struct Spawned<O> {
    life: Life,
    control: BrokerControl<O>,
    deadline: Instant,
}

/// Told what to become, not heard from yet.
#[derive(Debug)]
pub(crate) struct Begun<O> {
    spawned: Spawned<O>,
    uid: u32,
    gid: u32,
    rights: confine::Rights,
}

/// Confined, checked, taking orders. Dropping it kills and reaps the process.
#[derive(Debug)]
pub(crate) struct Process<O> {
    life: Life,
    orders: Sender<ToRole<O>>,
    reports: Receiver<FromRole>,
    /// The Landlock version it enforced.
    pub(crate) landlock_abi: u32,
    /// Uid it runs under.
    pub(crate) uid: u32,
}

/// The process itself; killed and reaped when dropped.
#[derive(Debug)]
pub(crate) struct Life {
    /// Which.
    pub(crate) kind: Kind,
    child: Child,
    ended: Cell<Option<Exit>>,
    log: Log,
}

/// What a process says out of turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Speech {
    /// Nothing.
    Nothing,
    /// It closed its end.
    Closed,
    /// A message, or no message of its own.
    OutOfTurn,
}

/// What a process wrote to its log pipe last.
#[derive(Debug, Clone)]
struct Log {
    shared: Arc<(Mutex<Tail>, Condvar)>,
}

#[derive(Debug, Default)]
struct Tail {
    bytes: Vec<u8>,
    /// The pipe has ended: nothing more will come.
    ended: bool,
}

/// How long the end of a dead process's log is waited for.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Bytes of the log that are kept to name the cause of a death.
const TAIL: usize = 2048;

/// Bytes of a log line that are shown in one piece.
const LINE: u64 = 4096;

/// Starts a sibling binary.
///
/// # Errors
/// Exit status 3, naming the process.
pub(crate) fn spawn<O: Message>(
    kind: Kind,
    program: &Program,
    group: Option<BorrowedFd<'_>>,
    quiet: bool,
) -> Result<Spawned<O>, Refusal> {
    let broken =
        |error: &dyn std::fmt::Display| Refusal::broken(kind.name(), format!("cannot be started: {error}"));
    let (control, theirs) = ipc::pair::<ToRole<O>, FromRole>().map_err(|error| broken(&error))?;
    let (reader, writer) = std::io::pipe().map_err(|error| broken(&error))?;
    let child = confine::spawn::spawn(program, group, theirs.as_fd(), writer.as_fd())
        .map_err(|error| broken(&error))?;
    let log = Log::follow(kind, reader, quiet).map_err(|error| {
        let _ = child.kill();
        let _ = child.wait();
        broken(&error)
    })?;
    Ok(Spawned {
        life: Life { kind, child, ended: Cell::new(None), log },
        control,
        deadline: Instant::now() + PATIENCE,
    })
}

impl<O: Message> Spawned<O> {
    /// Tells the process what to become, once its hello shows that it is of this build.
    ///
    /// # Errors
    /// Exit status 3, naming the process and the cause.
    pub(crate) fn begin(self, begin: &Begin, descriptors: &[BorrowedFd<'_>]) -> Result<Begun<O>, Refusal> {
        match expect_hello(&self.control, self.deadline) {
            Ok(()) => {}
            Err(ChannelError::Codec(_)) => {
                return Err(Refusal::broken(self.life.kind.name(), "it belongs to another build")
                    .hint("install all binaries of one version together"));
            }
            Err(error) => return Err(self.life.broken(&error)),
        }
        match self.control.send_with(&ToRole::Begin(begin.clone()), descriptors) {
            Ok(()) => Ok(Begun {
                spawned: self,
                uid: begin.uid,
                gid: begin.gid,
                rights: if begin.user_namespace { confine::Rights::User } else { confine::Rights::Root },
            }),
            Err(error) => Err(self.life.broken(&error)),
        }
    }
}

impl<O: Message> Begun<O> {
    /// Waits for `Ready` and looks at the process from outside. `network` is the inode of the network namespace it belongs
    /// into, or `None` for the broker's own; `groups` are its supplementary groups.
    ///
    /// # Errors
    /// Exit status 3, naming the process and what differs.
    pub(crate) fn ready(self, network: Option<u64>, groups: &[u32]) -> Result<Process<O>, Refusal> {
        let Begun { spawned: Spawned { life, mut control, deadline }, uid, gid, rights } = self;
        let kind = life.kind;
        let report = match control.receive_until(deadline) {
            Ok(received) => match received.message {
                FromRole::Ready(report) => report,
                FromRole::Failed(reason) => {
                    return Err(Refusal::broken(kind.name(), format!("it cannot be confined: {reason}")));
                }
                FromRole::Sealed => return Err(Refusal::broken(kind.name(), "it spoke out of turn")),
            },
            Err(error) => return Err(life.broken(&error)),
        };
        let expected = Expected { role: kind, uid, gid, groups: groups.to_vec(), rights, network };
        if let Err(mismatch) = inspect::check(life.child.pid, &expected) {
            // One that has died meanwhile looks like nothing at all: the cause of death says more.
            let reason = match life.wait(Duration::from_millis(100)) {
                true => life.describe(),
                false => format!("seen from outside, {mismatch}"),
            };
            return Err(Refusal::broken(kind.name(), reason));
        }
        let (orders, reports) = control.split();
        Ok(Process { life, orders, reports, landlock_abi: report.landlock_abi, uid })
    }
}

impl<O: Message> Process<O> {
    /// Gives an order.
    ///
    /// # Errors
    /// Exit status 3, naming the process.
    pub(crate) fn order(&self, order: O, descriptors: &[BorrowedFd<'_>]) -> Result<(), Refusal> {
        self.orders.send_with(&ToRole::Order(order), descriptors).map_err(|error| self.life.broken(&error))
    }

    /// sandbox-host only: waits until it has sealed itself.
    ///
    /// # Errors
    /// `E-RUN-001` with its own words, or exit status 3.
    pub(crate) fn sealed(&mut self) -> Result<(), Refusal> {
        match self.reports.receive_until(Instant::now() + PATIENCE) {
            Ok(received) => match received.message {
                FromRole::Sealed => Ok(()),
                FromRole::Failed(reason) => Err(Refusal::new("E-RUN-001", self.life.kind.name(), reason)),
                FromRole::Ready(_) => Err(Refusal::broken(self.life.kind.name(), "it spoke out of turn")),
            },
            Err(error) => Err(self.life.broken(&error)),
        }
    }

    /// Asks it to finish; one that is gone already is no error.
    pub(crate) fn shut_down(&self) {
        let _ = self.orders.try_send(&ToRole::Shutdown, &[]);
    }

    /// What it says on its control channel while it is not its turn to say anything.
    pub(crate) fn spoke(&mut self) -> Speech {
        match self.reports.try_receive() {
            Ok(None) => Speech::Nothing,
            Err(ChannelError::Closed) => Speech::Closed,
            Ok(Some(_)) | Err(_) => Speech::OutOfTurn,
        }
    }

    /// The process.
    pub(crate) fn life(&self) -> &Life {
        &self.life
    }

    /// What to poll while it lives: its pidfd, its control channel.
    pub(crate) fn watched(&self) -> Option<(Kind, BorrowedFd<'_>, BorrowedFd<'_>)> {
        let alive = self.life.ended.get().is_none();
        alive.then(|| (self.life.kind, self.life.child.pidfd.as_fd(), self.reports.as_fd()))
    }

    /// Its pid.
    pub(crate) fn pid(&self) -> i32 {
        self.life.child.pid
    }
}

impl Life {
    /// Its pid in the broker's namespace.
    pub(crate) fn pid(&self) -> i32 {
        self.child.pid
    }

    /// Waits for the end, at most this long; whether it has ended.
    pub(crate) fn wait(&self, patience: Duration) -> bool {
        if self.ended.get().is_none() && wait_pidfd(self.child.pidfd.as_fd(), patience) {
            self.ended.set(self.child.try_wait().ok().flatten());
        }
        self.ended.get().is_some()
    }

    /// Kills it and reaps it.
    pub(crate) fn kill(&self) {
        if self.ended.get().is_none() {
            let _ = self.child.kill();
            self.wait(Duration::from_secs(2));
        }
    }

    /// Whether something else than itself ended it: a signal, its filter, a panic.
    pub(crate) fn killed(&self) -> bool {
        matches!(self.ended.get(), Some(Exit::Signal(_) | Exit::Status(70 | 71)))
    }

    /// How it ended, in words.
    pub(crate) fn describe(&self) -> String {
        describe(self.ended.get(), &self.log.tail())
    }

    /// A channel error as the operator reads it: a closed channel is a death, told by its cause.
    fn broken(&self, error: &ChannelError) -> Refusal {
        if matches!(error, ChannelError::Closed) && self.wait(Duration::from_secs(2)) {
            return Refusal::broken(self.kind.name(), self.describe());
        }
        Refusal::broken(self.kind.name(), error.to_string())
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The cause of a death, as far as status and last words tell it.
fn describe(exit: Option<Exit>, tail: &[u8]) -> String {
    let text = String::from_utf8_lossy(tail);
    match exit {
        Some(Exit::Status(71)) => match refused_call(&text) {
            Some(name) => format!("its filter ended it: it called {name}"),
            None => "its filter ended it".into(),
        },
        Some(Exit::Status(70)) => "it panicked or ran out of memory (status 70)".into(),
        Some(Exit::Status(status)) => format!("it exited with status {status}"),
        Some(Exit::Signal(9)) => "it was killed (signal 9)".into(),
        Some(Exit::Signal(signal)) => format!("signal {signal} ended it"),
        None => "it does not answer".into(),
    }
}

/// The call in the last line of the filter's handler, `refused-call <number>`.
fn refused_call(tail: &str) -> Option<String> {
    let line = tail.lines().rev().find_map(|line| line.strip_prefix("refused-call "))?;
    let number: i64 = line.trim().parse().ok()?;
    Some(confine::policy::call_name(number).map_or_else(|| format!("system call {number}"), str::to_owned))
}

fn wait_pidfd(pidfd: BorrowedFd<'_>, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok(timeout) = rustix::event::Timespec::try_from(left) else { return false };
        match rustix::event::poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

impl Log {
    /// Copies a process's log to stderr, line by line with its name, on a thread that ends with the pipe. Nothing in it is
    /// interpreted but the fixed line of the filter's handler; control characters do not reach a terminal.
    fn follow(kind: Kind, pipe: std::io::PipeReader, quiet: bool) -> std::io::Result<Log> {
        let log = Log { shared: Arc::default() };
        let shared = Arc::clone(&log.shared);
        super::readers::thread(format!("log-{}", kind.name()), move || {
            let mut pipe = BufReader::new(pipe);
            while let Some(line) = next_line(&mut pipe) {
                if let Ok(mut tail) = shared.0.lock() {
                    tail.bytes.extend_from_slice(&line);
                    let excess = tail.bytes.len().saturating_sub(TAIL);
                    tail.bytes.drain(..excess);
                }
                let line = line.strip_suffix(b"\n").unwrap_or(&line);
                if !quiet && !line.is_empty() {
                    say!("{}: {}", kind.name(), printable(line));
                }
            }
            if let Ok(mut tail) = shared.0.lock() {
                tail.ended = true;
            }
            shared.1.notify_all();
        })?;
        Ok(log)
    }

    /// The last words of a process that is dead: its pipe ends with it, and is read to its end first.
    fn tail(&self) -> Vec<u8> {
        let (tail, ended) = &*self.shared;
        let Ok(tail) = tail.lock() else { return Vec::new() };
        match ended.wait_timeout_while(tail, LAST_WORDS, |tail| !tail.ended) {
            Ok((tail, _)) => tail.bytes.clone(),
            Err(_) => Vec::new(),
        }
    }
}

/// The next line with its end, whole however many writes it came in. One that is too long comes in pieces.
fn next_line(pipe: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    let length = pipe.take(LINE).read_until(b'\n', &mut line).ok()?;
    (length > 0).then_some(line)
}

fn printable(line: &[u8]) -> String {
    String::from_utf8_lossy(line).chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_line_written_in_pieces_is_one_line_and_an_endless_one_is_cut() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let writing = std::thread::spawn(move || {
            for piece in ["min", "ted 7", "\nlast", " words"] {
                writer.write_all(piece.as_bytes()).unwrap();
                writer.flush().unwrap();
            }
        });
        let mut pipe = BufReader::with_capacity(2, reader);
        assert_eq!(next_line(&mut pipe).unwrap(), b"minted 7\n");
        assert_eq!(next_line(&mut pipe).unwrap(), b"last words");
        assert_eq!(next_line(&mut pipe), None);
        writing.join().unwrap();

        let mut endless = BufReader::new(std::io::repeat(b'x'));
        assert_eq!(next_line(&mut endless).unwrap().len() as u64, LINE);
    }

    #[test]
    fn a_death_is_named_by_its_cause() {
        assert_eq!(describe(Some(Exit::Signal(9)), b""), "it was killed (signal 9)");
        assert_eq!(describe(Some(Exit::Status(3)), b""), "it exited with status 3");
        assert!(describe(Some(Exit::Status(71)), b"x\nrefused-call 101\n").contains("it called "));
        assert_eq!(describe(Some(Exit::Status(71)), b"refused-call nonsense"), "its filter ended it");
    }
}
