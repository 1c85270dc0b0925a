//! Who is connected, who makes room, and what happens on one connection? One request each, then the connection ends.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use crate::a2a;
use crate::client::Client;
use crate::door::Door;
use crate::head::{Framing, Head, HeadError, Scanner};
use crate::limits::Limits;
use crate::plane::{self, Cut};
use crate::respond;
use crate::route::{Route, route};
use crate::wire;

/// The connections of the moment (`docs/decisions.md`, Buffers and clients).
#[derive(Debug)]
pub struct Table {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
    connections: usize,
    headless: usize,
    agent: usize,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    open: BTreeMap<u64, AbortHandle>,
    /// Without a complete head, oldest first.
    headless: BTreeMap<u64, AbortHandle>,
    agent: usize,
}

/// The place of one connection; dropping it frees the place.
#[derive(Debug)]
pub struct Place {
    id: u64,
    agent: bool,
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Table {
    /// An empty table.
    #[must_use]
    pub fn new(limits: &Limits) -> Self {
        Table {
            state: Arc::default(),
            changed: Arc::default(),
            connections: limits.connections,
            headless: limits.headless,
            agent: limits.agent,
        }
    }

    /// Runs a connection as a task of its own, once there is room for it.
    async fn admit<F: Future<Output = ()> + Send + 'static>(&self, serve: impl FnOnce(Place) -> F) {
        while !self.has_room() {
            // Those that came in one go may have sent a whole head that nobody looked at yet; they are not what is in the way.
            tokio::task::yield_now().await;
            if self.has_room() {
                break;
            }
            self.evict();
            self.changed.notified().await;
        }
        let mut state = locked(&self.state);
        let id = state.next;
        state.next += 1;
        let place =
            Place { id, agent: false, state: Arc::clone(&self.state), changed: Arc::clone(&self.changed) };
        // On this runtime of one thread it does not run before the table knows how to end it.
        let task = tokio::spawn(serve(place)).abort_handle();
        state.open.insert(id, task.clone());
        state.headless.insert(id, task);
    }

    fn has_room(&self) -> bool {
        let state = locked(&self.state);
        state.headless.len() < self.headless && state.open.len() < self.connections
    }

    /// Ends the oldest connection without a complete head, if any.
    fn evict(&self) {
        if let Some((_, oldest)) = locked(&self.state).headless.first_key_value() {
            oldest.abort();
        }
    }

    /// Ends what has no complete head and gives the rest up to `grace`.
    pub async fn finish(&self, grace: Duration) {
        locked(&self.state).headless.values().for_each(AbortHandle::abort);
        let _ = tokio::time::timeout(grace, async {
            while !locked(&self.state).open.is_empty() {
                self.changed.notified().await;
            }
        })
        .await;
    }
}

impl Place {
    /// The head is complete: this connection is not ended to make room any more.
    pub fn head_complete(&self) {
        locked(&self.state).headless.remove(&self.id);
        self.changed.notify_one();
    }

    /// Takes one of the places for connections to the agent; false when none is left.
    pub fn take_agent(&mut self, table: &Table) -> bool {
        let mut state = locked(&self.state);
        if state.agent >= table.agent {
            return false;
        }
        state.agent += 1;
        self.agent = true;
        true
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = locked(&self.state);
        state.open.remove(&self.id);
        state.headless.remove(&self.id);
        state.agent -= usize::from(self.agent);
        drop(state);
        self.changed.notify_one();
    }
}

/// Accepts connections until it is dropped.
pub async fn accept(listener: AsyncFd<OwnedFd>, door: Arc<Door>) {
    let mut failing = false;
    loop {
        match next(&listener).await {
            Ok(socket) => {
                failing = false;
                let (shared, client) = (Arc::clone(&door), Client::new(socket));
                door.table.admit(|place| serve(client, shared, place)).await;
            }
            Err(error) if transient(&error) => {}
            Err(error) => {
                // Out of descriptors or memory, and the listener stays readable: without the pause this would spin.
                if !failing {
                    eprintln!("door: cannot accept connections: {error}");
                    failing = true;
                }
                door.table.evict();
                tokio::time::sleep(door.limits.accept_pause).await;
            }
        }
    }
}

/// The next connection. Others may wait behind it, so the listener is asked first and watched only when it has none.
async fn next(listener: &AsyncFd<OwnedFd>) -> std::io::Result<OwnedFd> {
    loop {
        let mut ready = listener.readable().await?;
        match ready.try_io(|listener| Ok(ipc::sys::accept(listener.get_ref().as_fd())?)) {
            Ok(accepted) => return accepted,
            Err(_would_block) => {}
        }
    }
}

/// Whether an error of `accept` belongs to the one connection that was to be accepted.
fn transient(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

/// One connection from accept to its end.
async fn serve(mut client: Client, door: Arc<Door>, mut place: Place) {
    let limits = &door.limits;
    let mut buffer = Vec::with_capacity(1024);
    let reading = read_head(&mut client, &mut buffer, limits);
    let found = match timeout_at(Instant::now() + limits.head_time, reading).await {
        Ok(Ok(found)) => found,
        Ok(Err(_)) | Err(_) => return,
    };
    place.head_complete();
    let parsed = found.and_then(|range| {
        let end = range.end;
        Ok((Head::parse(buffer.get(range).unwrap_or_default())?, end))
    });
    let (head, end) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            if wire::write(&mut client, &respond::plain(error.status()), &[], limits).await.is_ok() {
                wire::linger(&mut client, limits).await;
            }
            return;
        }
    };
    let more = head.framing != Framing::Empty || buffer.len() > end;
    let answered = match route(head.method, head.target) {
        Route::Resource(resource) => plane::answer(&door, &mut client, &head, resource).await,
        Route::Card => write(&mut client, &respond::card(&door.constants.card), limits).await,
        Route::Health => write(&mut client, &respond::plain(204), limits).await,
        Route::Nothing => write(&mut client, &respond::plain(404), limits).await,
        Route::Agent => match a2a::admit(&head, &door, &mut place) {
            Ok(request) => {
                if let Ok(stream) = client.into_watched() {
                    a2a::serve(stream, buffer, request, &door).await;
                }
                return;
            }
            Err(status) => write(&mut client, &respond::plain(status), limits).await,
        },
    };
    match answered {
        Ok(()) if more || wire::has_unread(&mut client) => wire::linger(&mut client, limits).await,
        Ok(()) | Err(Cut::Client(_)) => {}
        Err(Cut::Unrecorded) => door.broker.complain(),
    }
}

async fn write(client: &mut Client, answer: &[u8], limits: &Limits) -> Result<(), Cut> {
    Ok(wire::write(client, answer, &[], limits).await?)
}

/// Reads until the head is complete or cannot become one.
async fn read_head(
    client: &mut Client,
    buffer: &mut Vec<u8>,
    limits: &Limits,
) -> std::io::Result<Result<std::ops::Range<usize>, HeadError>> {
    let mut scanner = Scanner::default();
    loop {
        match scanner.advance(buffer, limits.request_line, limits.head) {
            Ok(Some(range)) => return Ok(Ok(range)),
            Ok(None) => wire::read_more(client, buffer).await?,
            Err(error) => return Ok(Err(error)),
        }
    }
}
