//! Who is the door, what is with it, and who waits for space? The state that all threads share.
//!
//! A request that finds the window full is put aside, not waited for: a worker that stood still for a slow client would keep
//! others from files that fit. Whoever frees space serves what it lets in; what waits too long is refused by a thread that
//! does nothing else, and sleeps while nothing waits.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ipc::edge::door_fileserver::{DoorToFileserver, FileserverToDoor};
use ipc::sys::Piece;
use ipc::types::{Moment, RelPath, RequestId};
use ipc::{Channel, ChannelError, Receiver, Sender};

use crate::window::{Leftover, Lent, Window, clean};

/// How long a body waits for space in the window before it is refused (`docs/decisions.md`, Buffers and clients).
pub(crate) const SPACE_PATIENCE: Duration = Duration::from_secs(10);

/// Requests of one kind that may be unanswered; a door serves fewer clients than this.
pub(crate) const IN_FLIGHT: usize = 1024;

/// Cancellations remembered that came before what they cancel, which a worker is about to note: far more than workers.
const EARLY: usize = 64;

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing is left half-done under a lock, and a panic ends the process anyway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One door: where it is heard and answered, and which of its requests are unanswered. What the broker asks for on its behalf
/// is numbered by others and not counted here.
#[derive(Debug)]
pub(crate) struct Link {
    sender: Sender<FileserverToDoor>,
    receiver: Receiver<DoorToFileserver>,
    asked: Mutex<Asked>,
    gone: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct Asked {
    in_flight: BTreeMap<RequestId, Arc<AtomicBool>>,
    /// Those in flight that the door has answered and recorded itself.
    abandoned: BTreeSet<RequestId>,
    /// Canceled and not in flight: answered already, or received by a worker that has not come to note it.
    early: VecDeque<(RequestId, Ended)>,
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
    pub(crate) fn new(channel: Channel<FileserverToDoor, DoorToFileserver>) -> Self {
        let (sender, receiver) = channel.split();
        Link { sender, receiver, asked: Mutex::default(), gone: Arc::default() }
    }

    /// A receiving end, for one worker.
    pub(crate) fn receiver(&self) -> Receiver<DoorToFileserver> {
        self.receiver.clone()
    }

    /// Notes a request; the flag is set when nobody waits for its answer any more.
    pub(crate) fn begin(&self, id: RequestId) -> Result<Arc<AtomicBool>, Untaken> {
        let mut asked = locked(&self.asked);
        if asked.in_flight.contains_key(&id) {
            return Err(Untaken::Reused);
        }
        if asked.in_flight.len() >= IN_FLIGHT {
            return Err(Untaken::Full);
        }
        let early = asked.early.iter().position(|(canceled, _)| *canceled == id);
        if let Some((_, Ended::Abandoned)) = early.and_then(|index| asked.early.remove(index)) {
            asked.abandoned.insert(id);
        }
        // Under the lock: a door that is replaced from now on finds the flag among the others.
        let cancel = Arc::new(AtomicBool::new(early.is_some() || self.is_gone()));
        asked.in_flight.insert(id, Arc::clone(&cancel));
        Ok(cancel)
    }

    /// Sets the flag of one request: now, or when a worker notes it.
    fn cancel(&self, id: RequestId, how: Ended) -> Option<Arc<AtomicBool>> {
        let mut asked = locked(&self.asked);
        if let Some(cancel) = asked.in_flight.get(&id).cloned() {
            cancel.store(true, Ordering::Relaxed);
            if how == Ended::Abandoned {
                asked.abandoned.insert(id);
            }
            return Some(cancel);
        }
        if asked.early.len() >= EARLY {
            asked.early.pop_front();
        }
        asked.early.push_back((id, how));
        None
    }

    /// Whether the door has answered and recorded a request itself; nothing more is to be done for it then.
    fn abandoned(&self, id: RequestId) -> bool {
        locked(&self.asked).abandoned.contains(&id)
    }

    /// The flag that is set once this is not the door any more.
    pub(crate) fn gone(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.gone)
    }

    /// Whether this is not the door any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Ends it: nobody waits for its answers, and the workers that wait for its messages look for another door.
    fn end(&self) {
        self.gone.store(true, Ordering::Relaxed);
        locked(&self.asked).in_flight.values().for_each(|cancel| cancel.store(true, Ordering::Relaxed));
        self.receiver.shut_down();
    }

    /// Forgets a request that is about to be answered, so that the door may use its identifier again.
    pub(crate) fn finish(&self, id: RequestId) {
        let mut asked = locked(&self.asked);
        asked.in_flight.remove(&id);
        asked.abandoned.remove(&id);
    }

    /// Sends an answer.
    pub(crate) fn send(&self, answer: &FileserverToDoor, file: Option<&OwnedFd>) -> Result<(), ChannelError> {
        match file {
            Some(file) => self.sender.send_with(answer, &[file.as_fd()]),
            None => self.sender.send(answer),
        }
    }
}

/// Bounds how many requests of one kind are unanswered.
#[derive(Debug, Default)]
pub(crate) struct Places(Arc<AtomicUsize>);

impl Places {
    /// Takes a place; `None` if all of them are taken.
    pub(crate) fn take(&self, all: usize) -> Option<Place> {
        let place = Place(Arc::clone(&self.0));
        (self.0.fetch_add(1, Ordering::Relaxed) < all).then_some(place)
    }
}

/// One of the [`Places`], free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What is wanted.
#[derive(Debug)]
pub(crate) enum Task {
    /// The listing of the operator plane, by a door.
    List,
    /// A file of the operator plane, by a door.
    Read(RelPath),
    /// A file of the peer plane, by the broker, for a door.
    Redeem(RelPath),
    /// Where a path of the peer plane leads, by the broker.
    Canonicalise(RelPath),
}

/// How the door ended a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Its client left: it is to be recorded.
    Canceled,
    /// The door has recorded it.
    Abandoned,
}

/// One request.
#[derive(Debug)]
pub(crate) struct Job {
    /// The door that is answered, if any.
    pub(crate) link: Option<Arc<Link>>,
    /// Under which identifier it was asked, by whoever asked.
    pub(crate) id: RequestId,
    /// What for.
    pub(crate) task: Task,
    /// Set when nobody waits for the answer.
    pub(crate) cancel: Arc<AtomicBool>,
    /// The door refuses it itself after this.
    pub(crate) until: Option<Moment>,
    /// Held until it is answered.
    pub(crate) _place: Option<Place>,
    /// Generation when a worker first took it.
    pub(crate) generation: Option<u64>,
    /// Until when it may wait for space, once it had to.
    pub(crate) patience: Option<Instant>,
}

impl Job {
    /// Whether neither a record nor an answer is wanted any more; then it is forgotten.
    pub(crate) fn over(&self) -> bool {
        let own = matches!(self.task, Task::List | Task::Read(_));
        let late = self.until.is_some_and(Moment::passed);
        // One that was cancelled is on nobody's record, however late it is.
        let unwanted = |link: &Link| if self.canceled() { link.abandoned(self.id) } else { late };
        let over = self.link.as_ref().filter(|link| own && unwanted(link));
        over.is_some_and(|link| {
            link.finish(self.id);
            true
        })
    }

    /// Whether nobody waits for the answer.
    pub(crate) fn canceled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct State {
    window: Window,
    door: Option<Arc<Link>>,
    /// Requests that found no space, with the bytes they need, oldest first.
    aside: VecDeque<(Job, usize)>,
    /// Those of them that would find space now, oldest first.
    ready: VecDeque<Job>,
    listings: VecDeque<Job>,
    closed: bool,
}

/// The shared state.
#[derive(Debug)]
pub(crate) struct Desk {
    state: Mutex<State>,
    /// Length of `ready`, for a look without the lock.
    ready: AtomicUsize,
    doors: Condvar,
    waiting: Condvar,
    listing: Condvar,
    patience: Duration,
}

impl Desk {
    /// A desk where a body waits for space so long, usually [`SPACE_PATIENCE`].
    pub(crate) fn new(window: Window, patience: Duration) -> Self {
        let state = State {
            window,
            door: None,
            aside: VecDeque::new(),
            ready: VecDeque::new(),
            listings: VecDeque::new(),
            closed: false,
        };
        Desk {
            state: Mutex::new(state),
            ready: AtomicUsize::new(0),
            doors: Condvar::new(),
            waiting: Condvar::new(),
            listing: Condvar::new(),
            patience,
        }
    }

    /// The door, as soon as there is one; `None` when the process ends.
    pub(crate) fn next_door(&self) -> Option<Arc<Link>> {
        let mut state = locked(&self.state);
        loop {
            if state.closed {
                return None;
            }
            if let Some(door) = &state.door {
                return Some(Arc::clone(door));
            }
            state = self.doors.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The door now.
    pub(crate) fn door(&self) -> Option<Arc<Link>> {
        locked(&self.state).door.clone()
    }

    /// Puts a door in the place of the old one, if any: what the old one held is free again. Its requests that waited are to
    /// be recorded now.
    #[must_use]
    pub(crate) fn replace_door(&self, door: Arc<Link>) -> Vec<Job> {
        let left = self.change_door(&mut locked(&self.state), Some(door));
        self.doors.notify_all();
        left
    }

    /// As [`Desk::replace_door`] by none, if this still is the door.
    #[must_use]
    pub(crate) fn end_door(&self, link: &Arc<Link>) -> Vec<Job> {
        let mut state = locked(&self.state);
        if is_door(&state, link) { self.change_door(&mut state, None) } else { Vec::new() }
    }

    fn change_door(&self, state: &mut State, door: Option<Arc<Link>>) -> Vec<Job> {
        if let Some(old) = std::mem::replace(&mut state.door, door) {
            old.end();
        }
        state.window.reclaim();
        let mut left: Vec<Job> = Vec::new();
        while let Some(job) = self.take_waiting(state, Job::canceled) {
            left.push(job);
        }
        self.space_came_free(state);
        left
    }

    /// Adds a listing.
    pub(crate) fn add_listing(&self, job: Job) {
        locked(&self.state).listings.push_back(job);
        self.listing.notify_one();
    }

    /// Marks a request as unwanted; if it waits for space or for its turn, it is to be recorded now.
    #[must_use]
    pub(crate) fn cancel(&self, link: &Link, id: RequestId, how: Ended) -> Option<Job> {
        let cancel = link.cancel(id, how)?;
        let mut state = locked(&self.state);
        let meant = |job: &Job| Arc::ptr_eq(&job.cancel, &cancel);
        if let Some(index) = state.listings.iter().position(meant) {
            return state.listings.remove(index);
        }
        self.take_waiting(&mut state, meant)
    }

    /// Takes slots back from a door; one that is not the door any more has none.
    ///
    /// # Errors
    /// A slot that the door does not hold.
    pub(crate) fn release(&self, link: &Arc<Link>, slots: &[u32]) -> Result<(), u32> {
        if slots.is_empty() {
            return Ok(());
        }
        let mut state = locked(&self.state);
        if !is_door(&state, link) {
            return Ok(());
        }
        let mut wiped: Vec<Lent> = Vec::new();
        for slot in slots {
            let lent = state.window.release(*slot).ok_or(*slot)?;
            if lent.is_wiped() {
                wiped.push(lent);
            } else {
                state.window.give(lent.clean());
            }
        }
        if !wiped.is_empty() {
            // Not under the lock: others would stand still for as long as the largest slot takes.
            drop(state);
            let pieces: Vec<Piece> = wiped.into_iter().map(Lent::clean).collect();
            state = locked(&self.state);
            pieces.into_iter().for_each(|piece| state.window.give(piece));
        }
        self.space_came_free(&mut state);
        Ok(())
    }

    /// Has requests that were put aside and would find space served by whoever calls [`Desk::next_ready`] first.
    fn space_came_free(&self, state: &mut State) {
        if state.aside.is_empty() {
            return;
        }
        let aside = std::mem::take(&mut state.aside);
        for (job, bytes) in aside {
            if state.window.fits(bytes) {
                state.ready.push_back(job);
            } else {
                state.aside.push_back((job, bytes));
            }
        }
        self.ready.store(state.ready.len(), Ordering::Relaxed);
    }

    /// Takes the oldest of such requests that wait for space, or for somebody to serve them.
    fn take_waiting(&self, state: &mut State, such: impl Fn(&Job) -> bool) -> Option<Job> {
        if let Some(index) = state.ready.iter().position(&such) {
            let job = state.ready.remove(index);
            self.ready.store(state.ready.len(), Ordering::Relaxed);
            return job;
        }
        let index = state.aside.iter().position(|(job, _)| such(job))?;
        state.aside.remove(index).map(|(job, _)| job)
    }

    /// The next request that was put aside and would find space now. Whoever may have freed some asks for it.
    pub(crate) fn next_ready(&self) -> Option<Job> {
        if self.ready.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.take_waiting(&mut locked(&self.state), |_| true)
    }

    /// Waits for a request whose patience is over; `None` when the process ends.
    pub(crate) fn next_late(&self) -> Option<Job> {
        let mut state = locked(&self.state);
        loop {
            if state.closed {
                return None;
            }
            let waiting = state.ready.iter().chain(state.aside.iter().map(|(job, _)| job));
            state = match waiting.filter_map(|job| job.patience).min() {
                None => self.waiting.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let now = Instant::now();
                    let late = |job: &Job| job.patience.is_none_or(|until| until <= now);
                    if let Some(job) = self.take_waiting(&mut state, late) {
                        return Some(job);
                    }
                    let left = until.saturating_duration_since(now);
                    self.waiting.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
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
    pub(crate) fn take(self: &Arc<Self>, bytes: usize, leftover: Leftover) -> Option<Space> {
        let piece = locked(&self.state).window.take(bytes)?;
        Some(Space { desk: Arc::clone(self), piece: Some(piece), leftover })
    }

    /// Puts a request aside until this much space is free or its patience ends. It comes back at once if meanwhile there is
    /// space, or nobody to wait for.
    #[must_use]
    pub(crate) fn put_aside(&self, mut job: Job, bytes: usize) -> Option<Job> {
        job.patience = job.patience.or_else(|| Instant::now().checked_add(self.patience));
        let mut state = locked(&self.state);
        if state.window.fits(bytes) || job.canceled() {
            return Some(job);
        }
        // One that found its space taken by somebody else goes back to where it was.
        let place = state.aside.partition_point(|(other, _)| other.patience <= job.patience);
        state.aside.insert(place, (job, bytes));
        drop(state);
        self.waiting.notify_one();
        None
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
        Some((state.window.lend(piece, space.leftover), offset))
    }

    /// Whether this is the door now.
    pub(crate) fn serves(&self, link: &Arc<Link>) -> bool {
        is_door(&locked(&self.state), link)
    }

    /// Ends all threads as soon as they look.
    pub(crate) fn close(&self) {
        let mut state = locked(&self.state);
        state.closed = true;
        if let Some(door) = state.door.take() {
            door.end();
        }
        drop(state);
        for sleepers in [&self.doors, &self.waiting, &self.listing] {
            sleepers.notify_all();
        }
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
    leftover: Leftover,
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
            let piece = clean(piece, self.leftover);
            let mut state = locked(&self.desk.state);
            state.window.give(piece);
            self.desk.space_came_free(&mut state);
        }
    }
}
