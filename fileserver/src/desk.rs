//! Who works on what, and who waits for space? The state that the receiving thread and the workers share.
//!
//! A request that finds the window full is put aside, not waited for: a worker that stood still for a slow client would keep
//! others from files that fit.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ipc::edge::door_fileserver::FileserverToDoor;
use ipc::sys::Piece;
use ipc::types::{RelPath, RequestId};
use ipc::{ChannelError, Sender};

use crate::window::Window;

/// How long a body waits for space in the window before it is refused (`docs/decisions.md`, Buffers and clients).
pub(crate) const SPACE_PATIENCE: Duration = Duration::from_secs(10);

/// Requests of one door that may be unanswered; the door serves fewer clients than this.
pub(crate) const IN_FLIGHT: usize = 1024;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing is left half-done under a lock, and a panic ends the process anyway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One door: where its answers go, and which of its requests are unanswered.
#[derive(Debug)]
pub(crate) struct Link {
    sender: Sender<FileserverToDoor>,
    in_flight: Mutex<BTreeMap<RequestId, Arc<AtomicBool>>>,
}

/// Why a request was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Untaken {
    /// Its identifier is in use: the door broke the rules.
    Reused,
    /// Too many are unanswered.
    Full,
}

impl Link {
    pub(crate) fn new(sender: Sender<FileserverToDoor>) -> Self {
        Link { sender, in_flight: Mutex::default() }
    }

    /// Notes a request; the flag is set when nobody waits for its answer any more.
    pub(crate) fn begin(&self, id: RequestId) -> Result<Arc<AtomicBool>, Untaken> {
        let mut in_flight = locked(&self.in_flight);
        if in_flight.contains_key(&id) {
            return Err(Untaken::Reused);
        }
        if in_flight.len() >= IN_FLIGHT {
            return Err(Untaken::Full);
        }
        let cancel = Arc::new(AtomicBool::new(false));
        in_flight.insert(id, Arc::clone(&cancel));
        Ok(cancel)
    }

    /// Sets the flag of one request, if it is still unanswered.
    fn cancel(&self, id: RequestId) {
        if let Some(cancel) = locked(&self.in_flight).get(&id) {
            cancel.store(true, Ordering::Relaxed);
        }
    }

    /// Sets the flag of all.
    fn cancel_all(&self) {
        locked(&self.in_flight).values().for_each(|cancel| cancel.store(true, Ordering::Relaxed));
    }

    /// Forgets a request that is about to be answered, so that the door may use its identifier again.
    pub(crate) fn finish(&self, id: RequestId) {
        locked(&self.in_flight).remove(&id);
    }

    /// Sends an answer.
    pub(crate) fn send(
        &self,
        answer: &FileserverToDoor,
        file: Option<&std::os::fd::OwnedFd>,
    ) -> Result<(), ChannelError> {
        use std::os::fd::AsFd;
        match file {
            Some(file) => self.sender.send_with(answer, &[file.as_fd()]),
            None => self.sender.send(answer),
        }
    }
}

/// One request of a door.
#[derive(Debug)]
pub(crate) struct Job {
    /// Who asked.
    pub(crate) link: Arc<Link>,
    /// Under which identifier.
    pub(crate) id: RequestId,
    /// For one file; `None` for the listing.
    pub(crate) path: Option<RelPath>,
    /// Set when nobody waits for the answer.
    pub(crate) cancel: Arc<AtomicBool>,
    /// Generation when a worker first took it.
    pub(crate) generation: Option<u64>,
    /// Until when it may wait for space, once it had to.
    pub(crate) patience: Option<Instant>,
}

impl Job {
    /// Whether nobody waits for the answer.
    pub(crate) fn canceled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }
}

/// What a worker is to do next.
#[derive(Debug)]
pub(crate) enum Next {
    /// Serve this.
    Serve(Job),
    /// Refuse this: no space came free in time.
    Refuse(Job),
}

#[derive(Debug)]
struct State {
    window: Window,
    door: Option<Arc<Link>>,
    ready: VecDeque<Job>,
    /// Requests that found no space, with the bytes they need.
    aside: VecDeque<(Job, usize)>,
    listings: VecDeque<Job>,
    /// Workers that wait for something to do.
    idle: usize,
    closed: bool,
}

/// The shared state.
#[derive(Debug)]
pub(crate) struct Desk {
    state: Mutex<State>,
    work: Condvar,
    listing: Condvar,
    patience: Duration,
}

impl Desk {
    /// A desk where a body waits for space so long, usually [`SPACE_PATIENCE`].
    pub(crate) fn new(window: Window, patience: Duration) -> Self {
        let state = State {
            window,
            door: None,
            ready: VecDeque::new(),
            aside: VecDeque::new(),
            listings: VecDeque::new(),
            idle: 0,
            closed: false,
        };
        Desk { state: Mutex::new(state), work: Condvar::new(), listing: Condvar::new(), patience }
    }

    /// Puts a new door in the place of the old one, if any, or of none: what the old one held is free again and its
    /// requests are only recorded.
    pub(crate) fn replace_door(&self, door: Option<Arc<Link>>) {
        let mut state = locked(&self.state);
        if let Some(old) = std::mem::replace(&mut state.door, door) {
            old.cancel_all();
        }
        state.window.reclaim();
        self.space_came_free(&mut state, |_| true);
    }

    /// Adds a request.
    pub(crate) fn add(&self, job: Job) {
        let mut state = locked(&self.state);
        if job.path.is_some() {
            state.ready.push_back(job);
            if state.idle > 0 {
                self.work.notify_one();
            }
        } else {
            state.listings.push_back(job);
            self.listing.notify_one();
        }
    }

    /// Marks a request as unwanted and, if it waits for space, has it recorded now.
    pub(crate) fn cancel(&self, link: &Link, id: RequestId) {
        link.cancel(id);
        let mut state = locked(&self.state);
        self.space_came_free(&mut state, Job::canceled);
    }

    /// Takes a slot back from the door; `false` if the door does not hold it.
    #[must_use]
    pub(crate) fn release(&self, slot: u32) -> bool {
        let mut state = locked(&self.state);
        let known = state.window.release(slot);
        self.space_came_free(&mut state, |_| false);
        known
    }

    /// Moves requests that were put aside back in front, oldest first: those that would find space, and those chosen.
    fn space_came_free(&self, state: &mut State, chosen: impl Fn(&Job) -> bool) {
        if state.aside.is_empty() {
            return;
        }
        let (back, aside): (VecDeque<_>, _) = std::mem::take(&mut state.aside)
            .into_iter()
            .partition(|(job, bytes)| chosen(job) || state.window.fits(*bytes));
        state.aside = aside;
        if !back.is_empty() && state.idle > 0 {
            self.work.notify_all();
        }
        for (job, _) in back.into_iter().rev() {
            state.ready.push_front(job);
        }
    }

    /// Waits for something to do; `None` when the process ends.
    pub(crate) fn next(&self) -> Option<Next> {
        let mut state = locked(&self.state);
        loop {
            if state.closed {
                return None;
            }
            let mut earliest: Option<Instant> = None;
            if !state.aside.is_empty() {
                let now = Instant::now();
                let late = |(job, _): &(Job, usize)| job.patience.is_none_or(|until| until <= now);
                if let Some(index) = state.aside.iter().position(late)
                    && let Some((job, _)) = state.aside.remove(index)
                {
                    return Some(Next::Refuse(job));
                }
                earliest = state.aside.iter().filter_map(|(job, _)| job.patience).min();
            }
            if let Some(job) = state.ready.pop_front() {
                if earliest.is_some() && state.idle > 0 {
                    // Somebody else has to watch those that wait.
                    self.work.notify_one();
                }
                return Some(Next::Serve(job));
            }
            state.idle += 1;
            state = match earliest {
                None => self.work.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    self.work.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
            state.idle -= 1;
        }
    }

    /// Waits for a listing to make; `None` when the process ends.
    pub(crate) fn next_listing(&self) -> Option<Job> {
        let mut state = locked(&self.state);
        loop {
            if state.closed {
                return None;
            }
            if let Some(job) = state.listings.pop_front() {
                return Some(job);
            }
            state = self.listing.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes space for a body.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Option<Space> {
        let piece = locked(&self.state).window.take(bytes)?;
        Some(Space { desk: Arc::clone(self), piece: Some(piece) })
    }

    /// Puts a request aside until this much space is free or its patience ends.
    pub(crate) fn put_aside(&self, mut job: Job, bytes: usize) {
        job.patience = job.patience.or_else(|| Instant::now().checked_add(self.patience));
        let mut state = locked(&self.state);
        if state.window.fits(bytes) || job.canceled() {
            // It came free, or the client left, between the attempt and now.
            state.ready.push_front(job);
        } else {
            state.aside.push_back((job, bytes));
        }
        // Somebody has to watch its patience.
        if state.idle > 0 {
            self.work.notify_one();
        }
    }

    /// Lends filled space to the door that asked, if it still is the door; the slot and its offset.
    pub(crate) fn lend(&self, link: &Arc<Link>, mut space: Space) -> Option<(u32, usize)> {
        let mut state = locked(&self.state);
        if !is_door(&state, link) {
            drop(state);
            return None;
        }
        let piece = space.piece.take()?;
        let offset = piece.offset();
        Some((state.window.lend(piece), offset))
    }

    /// Whether this is the door now.
    pub(crate) fn serves(&self, link: &Arc<Link>) -> bool {
        is_door(&locked(&self.state), link)
    }

    /// Ends all workers as soon as they look.
    pub(crate) fn close(&self) {
        locked(&self.state).closed = true;
        self.work.notify_all();
        self.listing.notify_all();
    }
}

fn is_door(state: &State, link: &Arc<Link>) -> bool {
    state.door.as_ref().is_some_and(|door| Arc::ptr_eq(door, link))
}

/// Space in the window that one worker fills; free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Space {
    desk: Arc<Desk>,
    piece: Option<Piece>,
}

impl Space {
    /// The first bytes of it, for writing.
    pub(crate) fn bytes_mut(&mut self, length: usize) -> Option<&mut [u8]> {
        self.piece.as_mut()?.bytes_mut().get_mut(..length)
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        if let Some(piece) = self.piece.take() {
            let mut state = locked(&self.desk.state);
            state.window.give(piece);
            self.desk.space_came_free(&mut state, |_| false);
        }
    }
}
