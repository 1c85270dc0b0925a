//! What is the answer, and who hears of it first? One request, its record and its reply. Both planes are
//! served by one reader; they differ in root, ceiling, record and in what becomes of the bytes (`seed: Path resolution`).
//!
//! The broker's record is always sent before the door's answer: a process that parses hostile bytes cannot read what is on no
//! record.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ipc::edge::broker_fileserver::FileserverToBroker;
use ipc::edge::control::{ExportRoot, FileserverConfigure};
use ipc::edge::door_fileserver::{Body, FileserverToDoor};
use ipc::memory::{CounterReader, Draft, WINDOW_BYTES, sealed_bytes};
use ipc::types::{FileMeta, MAX_RELPATH, PlaneCode, RelPath, RequestId};
use ipc::{ChannelError, Sender};

use crate::desk::{Desk, Job, Link, Places, Space, Task};
use crate::listing;
use crate::open::{self, CHUNK, Opened, Stopped};
use crate::orders::Orders;
use crate::resolve::{self, Links};
use crate::window::Leftover;

/// A larger body travels in a memory file of its own, so that a few of them cannot fill the window.
pub(crate) const LARGEST_SLOT: usize = WINDOW_BYTES / 4;

/// A longer listing travels in a memory file of its own: nobody waits for space with a finished listing in hand.
const LARGEST_LISTING_SLOT: usize = 1024 * 1024;

/// Why the process cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// The control channel broke.
    #[error("control channel: {0}")]
    Control(#[source] ChannelError),
    /// An order came that does not belong there.
    #[error("control channel: {0}")]
    Order(&'static str),
    /// The broker does not take records any more.
    #[error("channel to the broker: {0}")]
    Broker(#[source] ChannelError),
    /// The door broke the rules of its channel.
    #[error("channel to the door: {0}")]
    Door(#[source] ChannelError),
    /// The door freed what it was not lent.
    #[error("the door freed slot {0}, which it does not hold")]
    UnknownSlot(u32),
    /// The door used an identifier twice at one time.
    #[error("the door used the identifier of an unanswered request again")]
    ReusedRequest,
    /// The window or the counter is not what was agreed.
    #[error("shared memory: {0}")]
    Memory(#[from] ipc::memory::MemoryError),
    /// The kernel refused something that serving needs.
    #[error("{0}: {1}")]
    System(&'static str, #[source] std::io::Error),
}

/// Everything the threads need.
pub(crate) struct Server {
    pub(crate) workdir: Arc<OwnedFd>,
    pub(crate) configure: FileserverConfigure,
    pub(crate) counter: CounterReader,
    pub(crate) broker: Sender<FileserverToBroker>,
    pub(crate) desk: Arc<Desk>,
    pub(crate) orders: Orders,
    pub(crate) redeems: Places,
    /// Called once the process cannot go on.
    pub(crate) end: Arc<dyn Fn(Fault) + Send + Sync>,
}

/// A body that is ready to go.
enum Bytes {
    /// The first bytes of space in the window.
    Window(Space),
    /// A sealed memory file.
    File(OwnedFd),
}

/// What a read is bounded by, and how its body is treated afterwards.
struct Plane<'c> {
    export: &'c ExportRoot,
    leftover: Leftover,
}

/// How far a read came.
enum Outcome {
    File(FileMeta, Bytes),
    Refused(PlaneCode),
    /// So many bytes are needed and not free.
    NoSpace(usize),
}

impl Server {
    /// Records and refuses a request that nobody can take.
    pub(crate) fn refuse(&self, mut job: Job, code: PlaneCode) -> Result<(), Fault> {
        let generation = self.sample(&mut job);
        match job.task {
            Task::Read(_) | Task::Redeem(_) => self.answer_read(&job, generation, Err(code)),
            Task::List => self.answer_list(&job, generation, Err(code)),
            Task::Canonicalise(_) => self.answer_canonical(job.id, Err(code)),
        }
    }

    /// The generation of a request: sampled when it is first taken, and then the same in answer and record.
    fn sample(&self, job: &mut Job) -> u64 {
        *job.generation.get_or_insert_with(|| self.counter.get())
    }

    /// Serves a request for a file, or puts it aside until there is space for its body.
    pub(crate) fn read(&self, job: Job, buffer: &mut Vec<u8>) -> Result<(), Fault> {
        let mut next = Some(job);
        while let Some(job) = next {
            next = self.read_once(job, buffer)?;
        }
        Ok(())
    }

    /// One attempt; the request itself if it is worth another one.
    fn read_once(&self, mut job: Job, buffer: &mut Vec<u8>) -> Result<Option<Job>, Fault> {
        let generation = self.sample(&mut job);
        let files = self.configure.files.as_ref().ok_or(PlaneCode::NoResourcePlane);
        let peer_files = self.configure.peer_files.as_ref().ok_or(PlaneCode::NoPeerPlane);
        let (plane, path) = match &job.task {
            Task::Read(path) => (files.map(|export| Plane { export, leftover: Leftover::Stays }), path),
            Task::Redeem(path) => {
                (peer_files.map(|export| Plane { export, leftover: Leftover::Wiped }), path)
            }
            Task::Canonicalise(path) => {
                let outcome = peer_files.and_then(|export| self.canonical(export, path));
                return self.answer_canonical(job.id, outcome).map(|()| None);
            }
            // Listings have a thread of their own.
            Task::List => return Ok(None),
        };
        let outcome = if job.canceled() {
            Outcome::Refused(PlaneCode::IoError)
        } else {
            plane
                .and_then(|plane| self.try_read(&plane, path, &job.cancel, generation, buffer))
                .unwrap_or_else(Outcome::Refused)
        };
        match outcome {
            Outcome::File(meta, bytes) => self.answer_read(&job, generation, Ok((meta, bytes)))?,
            Outcome::Refused(code) => self.answer_read(&job, generation, Err(code))?,
            Outcome::NoSpace(bytes) => return Ok(self.desk.put_aside(job, bytes)),
        }
        Ok(None)
    }

    fn canonical(&self, export: &ExportRoot, path: &RelPath) -> Result<RelPath, PlaneCode> {
        let root = resolve::root(&self.workdir, export)?;
        open::canonical(&root, Links::from(self.configure.class), path)
    }

    fn answer_canonical(&self, id: RequestId, outcome: Result<RelPath, PlaneCode>) -> Result<(), Fault> {
        self.broker.send(&FileserverToBroker::Canonical { id, outcome }).map_err(Fault::Broker)
    }

    fn try_read(
        &self,
        plane: &Plane<'_>,
        path: &RelPath,
        cancel: &AtomicBool,
        generation: u64,
        buffer: &mut Vec<u8>,
    ) -> Result<Outcome, PlaneCode> {
        let Plane { export, leftover } = plane;
        let links = Links::from(self.configure.class);
        let root = resolve::root(&self.workdir, export)?;
        let opened = open::open(&root, links, path)?;
        let meta = |bytes: u64, sha256| FileMeta { bytes, sha256, mtime_ms: opened.mtime_ms, generation };
        let mut size = opened.size;
        loop {
            if size > export.max_bytes {
                return Err(PlaneCode::TooLarge);
            }
            let Some(length) = usize::try_from(size).ok().filter(|length| *length <= LARGEST_SLOT) else {
                let (file, bytes, sha256) = into_memory_file(&opened, export.max_bytes, cancel, buffer)?;
                return Ok(Outcome::File(meta(bytes, sha256), Bytes::File(file)));
            };
            let Some(mut space) = self.desk.take(length, *leftover) else {
                return Ok(Outcome::NoSpace(length));
            };
            let room = space.bytes_mut(length).ok_or(PlaneCode::IoError)?;
            match opened.fill(room, cancel) {
                Ok((count, sha256)) => {
                    return Ok(Outcome::File(meta(count as u64, sha256), Bytes::Window(space)));
                }
                // It grew since it was opened: all of it once more, into more space, up to one byte too many.
                Err(Stopped::More) if size < export.max_bytes => {
                    size = size.saturating_mul(2).max(CHUNK as u64).min(export.max_bytes);
                }
                Err(Stopped::More) => return Err(PlaneCode::TooLarge),
                Err(Stopped::Failed | Stopped::Canceled) => return Err(PlaneCode::IoError),
            }
        }
    }

    fn answer_read(
        &self,
        job: &Job,
        generation: u64,
        result: Result<(FileMeta, Bytes), PlaneCode>,
    ) -> Result<(), Fault> {
        if job.over() {
            return Ok(());
        }
        let id = job.id;
        let outcome = match &result {
            Ok((meta, _)) => Ok((meta.bytes, meta.sha256)),
            Err(code) => Err(*code),
        };
        let (record, redeem) = match &job.task {
            Task::Redeem(_) => (FileserverToBroker::Redeemed { id, generation, outcome }, true),
            Task::Read(path) => {
                let path = path.as_str();
                let path = path.get(..path.floor_char_boundary(MAX_RELPATH)).unwrap_or_default().to_owned();
                (FileserverToBroker::Read { path, generation, outcome }, false)
            }
            Task::List | Task::Canonicalise(_) => return Ok(()),
        };
        self.broker.send(&record).map_err(Fault::Broker)?;
        match result {
            Ok((meta, bytes)) => self.answer(job, meta.bytes, bytes, |body| {
                if redeem {
                    FileserverToDoor::Redeemed { id, outcome: Ok((meta, body)) }
                } else {
                    FileserverToDoor::File { id, meta, body }
                }
            }),
            Err(code) => self.answer_refusal(job, generation, code),
        }
    }

    /// Makes a listing.
    pub(crate) fn list(&self, mut job: Job) -> Result<(), Fault> {
        let generation = self.sample(&mut job);
        let result =
            if job.canceled() { Err(PlaneCode::IoError) } else { self.try_list(&job.cancel, generation) };
        self.answer_list(&job, generation, result)
    }

    fn try_list(&self, cancel: &AtomicBool, generation: u64) -> Result<(u64, u64, Vec<u8>), PlaneCode> {
        let export = self.configure.files.as_ref().ok_or(PlaneCode::NoResourcePlane)?;
        let class = self.configure.class;
        let entries = listing::list(&self.workdir, export, Links::from(class), cancel)?;
        let total = entries.iter().fold(0u64, |sum, entry| sum.saturating_add(entry.size_bytes));
        Ok((entries.len() as u64, total, listing::document(export, class, generation, &entries)?))
    }

    fn answer_list(
        &self,
        job: &Job,
        generation: u64,
        result: Result<(u64, u64, Vec<u8>), PlaneCode>,
    ) -> Result<(), Fault> {
        if job.over() {
            return Ok(());
        }
        // Where the document goes is settled before the record says that it was served.
        let result =
            result.and_then(|(count, total, text)| Ok((count, total, text.len() as u64, self.place(&text)?)));
        let (entry_count, total_bytes, refused) = match &result {
            Ok((count, total, ..)) => (*count, *total, None),
            Err(code) => (0, 0, Some(*code)),
        };
        let record = FileserverToBroker::List { generation, entry_count, total_bytes, refused };
        self.broker.send(&record).map_err(Fault::Broker)?;
        match result {
            Ok((_, _, length, bytes)) => self.answer(job, length, bytes, |body| FileserverToDoor::Listing {
                id: job.id,
                generation,
                body,
            }),
            Err(code) => self.answer_refusal(job, generation, code),
        }
    }

    /// Puts a document into the window, or into a memory file if it is long or the window is full.
    fn place(&self, text: &[u8]) -> Result<Bytes, PlaneCode> {
        if text.len() <= LARGEST_LISTING_SLOT
            && let Some(mut space) = self.desk.take(text.len(), Leftover::Stays)
            && let Some(room) = space.bytes_mut(text.len())
        {
            room.copy_from_slice(text);
            return Ok(Bytes::Window(space));
        }
        sealed_bytes("listing", text).map(Bytes::File).map_err(|_| PlaneCode::IoError)
    }

    /// Sends a body to the door that asked for it; to no other.
    fn answer(
        &self,
        job: &Job,
        length: u64,
        bytes: Bytes,
        message: impl FnOnce(Body) -> FileserverToDoor,
    ) -> Result<(), Fault> {
        let Some(link) = Self::finished(job) else { return Ok(()) };
        let sent = match bytes {
            Bytes::Window(space) => {
                let Some((slot, offset)) = self.desk.lend(link, space) else { return Ok(()) };
                link.send(&message(Body::Slot { slot, offset: offset as u64, length }), None)
            }
            Bytes::File(file) if self.desk.serves(link) => {
                link.send(&message(Body::File { length }), Some(&file))
            }
            Bytes::File(_) => return Ok(()),
        };
        self.sent(link, sent)
    }

    fn answer_refusal(&self, job: &Job, generation: u64, code: PlaneCode) -> Result<(), Fault> {
        let Some(link) = Self::finished(job).filter(|link| self.desk.serves(link)) else { return Ok(()) };
        let id = job.id;
        let refusal = match job.task {
            Task::Redeem(_) => FileserverToDoor::Redeemed { id, outcome: Err(code) },
            Task::List | Task::Read(_) | Task::Canonicalise(_) => {
                FileserverToDoor::Refused { id, generation, code }
            }
        };
        self.sent(link, link.send(&refusal, None))
    }

    /// Who is to be answered; a door may use the identifier of its own request again from now on.
    fn finished(job: &Job) -> Option<&Arc<Link>> {
        let link = job.link.as_ref()?;
        if !matches!(job.task, Task::Redeem(_)) {
            link.finish(job.id);
        }
        Some(link)
    }

    /// A door that is gone is no fault; whoever waits for its messages notices it and takes its slots back.
    fn sent(&self, link: &Arc<Link>, result: Result<(), ChannelError>) -> Result<(), Fault> {
        match result {
            Ok(()) | Err(ChannelError::Closed) => Ok(()),
            Err(_) if !self.desk.serves(link) => Ok(()),
            Err(error) => Err(Fault::Door(error)),
        }
    }
}

/// Reads a large file into a memory file that is sealed before anybody else has it. What is hashed is what was copied there.
fn into_memory_file(
    opened: &Opened,
    max_bytes: u64,
    cancel: &AtomicBool,
    buffer: &mut Vec<u8>,
) -> Result<(OwnedFd, u64, [u8; 32]), PlaneCode> {
    buffer.resize(CHUNK, 0);
    let mut draft = Draft::new("body").map_err(|_| PlaneCode::IoError)?;
    let mut room = max_bytes;
    let read = opened.stream(max_bytes.saturating_add(1), buffer, cancel, |bytes| {
        room = room.checked_sub(bytes.len() as u64).ok_or(Stopped::More)?;
        draft.append(bytes).map_err(|_| Stopped::Failed)
    });
    match read {
        Ok((bytes, sha256)) => Ok((draft.seal().map_err(|_| PlaneCode::IoError)?, bytes, sha256)),
        Err(Stopped::More) => Err(PlaneCode::TooLarge),
        Err(Stopped::Failed | Stopped::Canceled) => Err(PlaneCode::IoError),
    }
}
