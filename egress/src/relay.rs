//! A program's connection, from the listener it arrived at to the end of both directions.
//!
//! The local address of an accepted connection is where the program meant to connect: the session's network delivers every
//! address to itself. What the list allows is dialled in this process's own network, at that very address, and bytes are passed
//! on as they are; anything else is closed, which the program sees as a connection that ends before its first byte.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ipc::edge::egress_broker::Asker;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::programs::Programs;
use crate::resolve::Resolve;

/// The most connections of programs at a time; further ones are closed at once.
pub(crate) const MOST_RELAYS: usize = 128;

/// How long a destination may take to accept a connection.
const CONNECT_PATIENCE: Duration = Duration::from_secs(15);

/// How long a connection may be silent in both directions.
const IDLE: Duration = Duration::from_secs(300);

/// How much is read at once.
const PIECE: usize = 32 * 1024;

/// How far apart lines about connections are at least.
const BETWEEN_LINES: Duration = Duration::from_secs(1);

/// How long to wait when the kernel has no descriptor for a connection that is there: nothing tells when it has.
const BREATH: Duration = Duration::from_millis(50);

/// Takes a listener the broker made.
///
/// # Errors
/// The error of the reactor.
pub(crate) fn listener(descriptor: OwnedFd) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::from(descriptor);
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Takes connections for ever; `room` is shared by all listeners.
pub(crate) async fn serve<R: Resolve>(
    listener: TcpListener,
    programs: Arc<Programs<R>>,
    room: Arc<Semaphore>,
) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tell(&format!("a connection of a program cannot be taken: {error}"));
                sleep(BREATH).await;
                continue;
            }
        };
        // Dropped, and so closed, without room.
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else { continue };
        tokio::spawn(carry(stream, Arc::clone(&programs), permit));
    }
}

async fn carry<R: Resolve>(mut inside: TcpStream, programs: Arc<Programs<R>>, permit: OwnedSemaphorePermit) {
    // From an IPv6 socket that is used for IPv4 it comes as IPv4, too: the listeners are of that kind.
    let Ok(SocketAddr::V4(to)) = inside.local_addr() else { return };
    if let Err(reason) = programs.decide(to).await {
        programs.reports.refused(Asker::Program, &to.to_string(), reason);
        return;
    }
    match timeout(CONNECT_PATIENCE, TcpStream::connect(to)).await {
        Ok(Ok(mut outside)) => {
            // Whatever a side writes at once is passed on at once.
            let _ = inside.set_nodelay(true).and_then(|()| outside.set_nodelay(true));
            both_ways(&mut inside, &mut outside).await;
        }
        Ok(Err(error)) => tell(&format!("{to}: a program's connection: {error}")),
        Err(_) => tell(&format!("{to}: a program's connection: no answer")),
    }
    drop(permit);
}

/// What is said of connections: a program can fail as often as it likes, and nobody would read it.
struct Lines {
    last: Option<Instant>,
    untold: u64,
}

impl Lines {
    /// The line, if one is due: at most one a second, with the number of those that were left out before it.
    fn due(&mut self, now: Instant, line: &str) -> Option<String> {
        if self.last.is_some_and(|last| now.duration_since(last) < BETWEEN_LINES) {
            self.untold = self.untold.saturating_add(1);
            return None;
        }
        self.last = Some(now);
        Some(match std::mem::take(&mut self.untold) {
            0 => line.to_owned(),
            untold => format!("{line} ({untold} more like it before)"),
        })
    }
}

/// Says a line unless one was said a moment ago.
fn tell(line: &str) {
    static LINES: Mutex<Lines> = Mutex::new(Lines { last: None, untold: 0 });
    let due = LINES.lock().unwrap_or_else(PoisonError::into_inner).due(Instant::now(), line);
    if let Some(line) = due {
        crate::say(&line);
    }
}

/// When something last moved.
struct Moved {
    begun: Instant,
    /// Milliseconds after that.
    last: AtomicU64,
}

impl Moved {
    fn now(&self) {
        let passed = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(passed, Ordering::Relaxed);
    }

    /// When it has been silent for too long, unless something moves until then.
    fn end(&self) -> Instant {
        self.begun + Duration::from_millis(self.last.load(Ordering::Relaxed)) + IDLE
    }
}

/// Passes bytes on until both directions have ended, one has failed, or nothing has moved for too long.
async fn both_ways(inside: &mut TcpStream, outside: &mut TcpStream) {
    let moved = Moved { begun: Instant::now(), last: AtomicU64::new(0) };
    let (inside_read, inside_write) = inside.split();
    let (outside_read, outside_write) = outside.split();
    let passing = async {
        tokio::try_join!(pass(inside_read, outside_write, &moved), pass(outside_read, inside_write, &moved))
    };
    let silent = async {
        while Instant::now() < moved.end() {
            sleep_until(moved.end()).await;
        }
    };
    tokio::select! {
        // A failure in one direction ends both: what is dropped with bytes unread is reset.
        _ = passing => {}
        () = silent => {}
    }
}

/// One direction, up to its end, which is passed on too.
async fn pass(mut from: ReadHalf<'_>, mut to: WriteHalf<'_>, moved: &Moved) -> io::Result<()> {
    let mut buffer = vec![0; PIECE];
    loop {
        let read = from.read(&mut buffer).await?;
        moved.now();
        if read == 0 {
            return to.shutdown().await;
        }
        let mut rest = buffer.get(..read).unwrap_or_default();
        while !rest.is_empty() {
            let written = to.write(rest).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            moved.now();
            rest = rest.get(written..).unwrap_or_default();
        }
    }
}

#[cfg(test)]
#[path = "relay_tests.rs"]
mod tests;
