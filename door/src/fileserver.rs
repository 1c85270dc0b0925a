//! Who is asked for bytes, and which question does an answer belong to? The door's end of the channel to one fileserver.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipc::aio::{self, AsyncReceiver, AsyncSender};
use ipc::edge::door_fileserver::{Body, DoorToFileserver, FileserverToDoor, MAX_FREED, Slots};
use ipc::memory::{MemoryError, map_window, sealed_length};
use ipc::sys::Mapping;
use ipc::types::{FileMeta, Moment, PlaneCode, RelPath, RequestId};
use ipc::{Channel, ChannelError};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use crate::redeem::Redeems;
use crate::ticker::Ticker;

/// Messages that may wait for the fileserver to read; more than any number of open requests explains.
const OUTBOX: usize = 8192;

/// How long the broker gets to refuse the redeems that a dead fileserver left.
const ORPHANS: std::time::Duration = std::time::Duration::from_secs(1);

/// A slot of at most so many bytes is given back with the next request instead of by a message of its own.
const SMALL: usize = 64 * 1024;

/// Why a fileserver cannot be worked with any more; each is its fault, and it is named.
#[derive(Debug, thiserror::Error)]
pub enum FileserverError {
    /// The channel broke in another way than by being closed.
    #[error("fileserver channel: {0}")]
    Channel(#[from] ChannelError),
    /// The window is not what was agreed.
    #[error("fileserver window: {0}")]
    Window(#[from] MemoryError),
    /// An answer that fits no question, or names bytes that are not there.
    #[error("fileserver broke the protocol: {0}")]
    Protocol(&'static str),
}

/// The request could not even be asked: no fileserver, or too many requests open at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unavailable;

/// The end of a channel to one fileserver. Dropping it answers everything open with nothing, which is 500 `io_error`.
#[derive(Debug)]
pub struct Fileserver {
    shared: Arc<Shared>,
    tasks: [AbortHandle; 2],
}

#[derive(Debug)]
struct Shared {
    sender: AsyncSender<DoorToFileserver>,
    /// What there was no room for, in order; nothing goes past it.
    outbox: mpsc::Sender<DoorToFileserver>,
    /// Messages that were queued and not sent yet.
    queued: AtomicUsize,
    /// Small slots that are free and will be given back with the next request, or with the next tick.
    freed: Mutex<Vec<u32>>,
    ticker: Arc<Ticker>,
    failed: mpsc::Sender<FileserverError>,
    redeems: Arc<Redeems>,
    window: Mapping,
    open: Mutex<Open>,
    max_open: usize,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    closed: bool,
    asked: BTreeMap<u64, (Kind, oneshot::Sender<Answer>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    List,
    Read,
}

/// An answer of the fileserver, checked against the question and the window.
#[derive(Debug)]
pub enum Answer {
    /// A listing.
    Listing {
        /// Generation sampled by the fileserver.
        generation: u64,
        /// The document.
        content: Content,
    },
    /// A file.
    File {
        /// What is served.
        meta: FileMeta,
        /// Its bytes.
        content: Content,
    },
    /// A refusal; already recorded.
    Refused(PlaneCode),
}

/// Bytes of an answer.
#[derive(Debug)]
pub enum Content {
    /// In the window; freed when dropped.
    Slot(Slot),
    /// In a sealed memory file of this length.
    File(File, u64),
}

impl Content {
    /// Bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        match self {
            Content::Slot(slot) => slot.length as u64,
            Content::File(_, length) => *length,
        }
    }
}

/// A slot of the window that the door holds.
#[derive(Debug)]
pub struct Slot {
    shared: Arc<Shared>,
    number: u32,
    offset: usize,
    length: usize,
}

impl Slot {
    /// The bytes, to be handed to the socket and looked at no further.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.shared.window.bytes(self.offset, self.length).unwrap_or(&[])
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.length > SMALL {
            return self.shared.post(DoorToFileserver::SlotFree { slot: self.number });
        }
        let mut freed = self.shared.freed();
        freed.push(self.number);
        let first = freed.len() == 1;
        drop(freed);
        if first {
            self.shared.ticker.want();
        }
    }
}

/// A question that is open. Dropping it before its answer cancels it; an answer that comes later frees its slot.
#[derive(Debug)]
pub struct Pending {
    shared: Arc<Shared>,
    id: u64,
    answer: oneshot::Receiver<Answer>,
    over: bool,
}

impl Pending {
    /// The answer; `None` when the fileserver is gone. To be called until it answered once.
    pub async fn answer(&mut self) -> Option<Answer> {
        let answer = (&mut self.answer).await.ok();
        self.over = true;
        answer
    }
}

impl Pending {
    /// Gives the question up after it was answered and recorded by the door itself.
    pub fn abandon(mut self) {
        self.over = true;
        self.shared.post(DoorToFileserver::Abandon { id: RequestId(self.id) });
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.over {
            self.shared.post(DoorToFileserver::Cancel { id: RequestId(self.id) });
        }
    }
}

impl Fileserver {
    /// Takes the channel to a fileserver and its window. What the fileserver does wrong is reported on `failed`; what it says
    /// of redeems settles them.
    ///
    /// # Errors
    /// [`FileserverError`] for a descriptor that is not what was agreed.
    pub fn new(
        channel: OwnedFd,
        window: &OwnedFd,
        max_open: usize,
        failed: mpsc::Sender<FileserverError>,
        redeems: Arc<Redeems>,
        ticker: Arc<Ticker>,
    ) -> Result<Self, FileserverError> {
        let channel = Channel::<DoorToFileserver, FileserverToDoor>::from_descriptor(channel)?;
        let window = map_window(window, false)?;
        let (sender, receiver) = aio::split(channel)?;
        let (outbox, posted) = mpsc::channel(OUTBOX);
        let open = Mutex::new(Open::default());
        let freed = Mutex::default();
        let shared = Arc::new(Shared {
            sender,
            outbox,
            queued: AtomicUsize::new(0),
            freed,
            ticker,
            failed,
            redeems,
            window,
            open,
            max_open,
        });
        let tasks = [
            tokio::spawn(deliver(posted, Arc::clone(&shared))).abort_handle(),
            tokio::spawn(listen(receiver, Arc::clone(&shared))).abort_handle(),
        ];
        Ok(Fileserver { shared, tasks })
    }

    /// Asks for the listing, to be answered until a moment before the door gives up.
    ///
    /// # Errors
    /// [`Unavailable`].
    pub fn list(&self, until: Moment) -> Result<Pending, Unavailable> {
        self.ask(Kind::List, |id, freed| DoorToFileserver::List { id, freed, until })
    }

    /// Asks for a file, to be answered until a moment before the door gives up.
    ///
    /// # Errors
    /// [`Unavailable`].
    pub fn read(&self, path: RelPath, until: Moment) -> Result<Pending, Unavailable> {
        self.ask(Kind::Read, |id, freed| DoorToFileserver::Read { id, path, freed, until })
    }

    fn ask(
        &self,
        kind: Kind,
        message: impl FnOnce(RequestId, Slots) -> DoorToFileserver,
    ) -> Result<Pending, Unavailable> {
        let (sender, answer) = oneshot::channel();
        let id = {
            let mut open = self.shared.open();
            if open.closed || open.asked.len() >= self.shared.max_open {
                return Err(Unavailable);
            }
            let id = open.next;
            open.next += 1;
            open.asked.insert(id, (kind, sender));
            id
        };
        let freed = self.shared.take_freed();
        self.shared.post(message(RequestId(id), freed));
        Ok(Pending { shared: Arc::clone(&self.shared), id, answer, over: false })
    }
}

impl Fileserver {
    /// Whether it is gone, and nothing can be asked of it any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.shared.open().closed
    }

    /// Gives back the slots that no request took along.
    pub fn tick(&self) {
        self.shared.give_back();
    }
}

impl Drop for Fileserver {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        self.shared.close();
    }
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn freed(&self) -> MutexGuard<'_, Vec<u32>> {
        self.freed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_freed(&self) -> Slots {
        let mut freed = self.freed();
        let rest = freed.len().saturating_sub(MAX_FREED);
        Slots::try_from(freed.split_off(rest)).unwrap_or_default()
    }

    /// Gives back what no request took along.
    fn give_back(&self) {
        for slot in std::mem::take(&mut *self.freed()) {
            self.post(DoorToFileserver::SlotFree { slot });
        }
    }

    /// Sends a message at once or, behind others that found no room, queues it. A full queue means that the fileserver
    /// stopped reading long ago.
    fn post(&self, message: DoorToFileserver) {
        if self.queued.load(Ordering::Relaxed) == 0 {
            match self.sender.try_send(&message) {
                Ok(()) => return,
                Err(ChannelError::Stuck) => {}
                // The receiving end says what there is to say of it.
                Err(ChannelError::Closed) => return self.close(),
                Err(error) => return self.fail(error.into()),
            }
        }
        self.queued.fetch_add(1, Ordering::Relaxed);
        if let Err(mpsc::error::TrySendError::Full(_)) = self.outbox.try_send(message) {
            self.fail(ChannelError::Stuck.into());
        }
    }

    fn close(&self) {
        let mut open = self.open();
        open.closed = true;
        open.asked.clear();
    }

    fn fail(&self, error: FileserverError) {
        self.close();
        // The first report decides; a full queue already holds one.
        let _ = self.failed.try_send(error);
    }
}

async fn deliver(mut posted: mpsc::Receiver<DoorToFileserver>, shared: Arc<Shared>) {
    while let Some(message) = posted.recv().await {
        match shared.sender.send(&message).await {
            Ok(()) => {
                shared.queued.fetch_sub(1, Ordering::Relaxed);
            }
            Err(ChannelError::Closed) => return shared.close(),
            Err(error) => return shared.fail(error.into()),
        }
    }
}

async fn listen(mut receiver: AsyncReceiver<FileserverToDoor>, shared: Arc<Shared>) {
    loop {
        let result = match receiver.receive().await {
            Ok(received) => shared.take(received.message, received.descriptors.into_iter().next()),
            // A fileserver that died: the broker brings another one.
            Err(ChannelError::Closed) => {
                shared.close();
                // A task of its own: this one ends when the next fileserver comes.
                tokio::spawn(orphaned(Arc::clone(&shared.redeems)));
                return;
            }
            Err(error) => Err(error.into()),
        };
        if let Err(error) = result {
            return shared.fail(error);
        }
    }
}

/// Ends the redeems whose answer died with a fileserver after it was recorded: the broker refuses in a moment what was not
/// recorded, and knows nothing of these any more.
async fn orphaned(redeems: Arc<Redeems>) {
    let waiting = redeems.waiting();
    tokio::time::sleep(ORPHANS).await;
    for id in waiting {
        redeems.settle(id, Err(PlaneCode::IoError));
    }
}

impl Shared {
    /// Hands an answer to whoever asked. Nobody may be waiting any more; then dropping the answer frees its slot.
    fn take(
        self: &Arc<Self>,
        message: FileserverToDoor,
        file: Option<OwnedFd>,
    ) -> Result<(), FileserverError> {
        let (id, kind, answer) = match message {
            FileserverToDoor::Listing { id, generation, body } => {
                let content = self.content(&body, file)?;
                (id, Some(Kind::List), Answer::Listing { generation, content })
            }
            FileserverToDoor::File { id, meta, body } => {
                let content = self.file(&meta, &body, file)?;
                (id, Some(Kind::Read), Answer::File { meta, content })
            }
            FileserverToDoor::Redeemed { id, outcome } => {
                let outcome = match outcome {
                    Ok((meta, body)) => {
                        let content = self.file(&meta, &body, file)?;
                        Ok((meta, content))
                    }
                    Err(code) => Err(code),
                };
                self.redeems.settle(id, outcome);
                return Ok(());
            }
            FileserverToDoor::Refused { id, code, generation: _ } => (id, None, Answer::Refused(code)),
        };
        let asked = self.open().asked.remove(&id.0);
        match asked {
            Some((asked, waiting)) if kind.is_none_or(|kind| kind == asked) => {
                let _ = waiting.send(answer);
                Ok(())
            }
            _ => Err(FileserverError::Protocol("an answer to no question")),
        }
    }

    fn file(
        self: &Arc<Self>,
        meta: &FileMeta,
        body: &Body,
        file: Option<OwnedFd>,
    ) -> Result<Content, FileserverError> {
        let content = self.content(body, file)?;
        if content.length() == meta.bytes {
            Ok(content)
        } else {
            Err(FileserverError::Protocol("a file of another length than its body"))
        }
    }

    fn content(self: &Arc<Self>, body: &Body, file: Option<OwnedFd>) -> Result<Content, FileserverError> {
        match (body, file) {
            (Body::Slot { slot, offset, length }, None) => {
                let outside = FileserverError::Protocol("a slot outside the window");
                let (Ok(offset), Ok(length)) = (usize::try_from(*offset), usize::try_from(*length)) else {
                    return Err(outside);
                };
                if self.window.bytes(offset, length).is_none() {
                    return Err(outside);
                }
                Ok(Content::Slot(Slot { shared: Arc::clone(self), number: *slot, offset, length }))
            }
            (Body::File { length }, Some(file)) => {
                if sealed_length(&file)? != *length {
                    return Err(FileserverError::Protocol("a memory file of another length"));
                }
                Ok(Content::File(File::from(file), *length))
            }
            _ => Err(FileserverError::Protocol("a body without its descriptor")),
        }
    }
}
