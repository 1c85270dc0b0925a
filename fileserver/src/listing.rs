//! Which regular files are below the root, and what does each hold?
//!
//! The walk goes by descriptors and keeps its own stack, so that neither a deep tree nor a wide one can exhaust the thread's
//! stack or the descriptors. What cannot be read by the same opener is not listed (`seed: GET /resources/files`).

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::ScopedJoinHandle;

use ipc::edge::control::ExportRoot;
use ipc::types::{Class, MAX_RELPATH, PlaneCode, RelPath, hex};
use rustix::fs::{Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use serde::{Serialize, Serializer};

use crate::desk::locked;
use crate::open::{self, CHUNK, Child, Opened, Stopped};
use crate::orders::STACK;
use crate::resolve::{self, Levels, Links, Root};

/// One listed file.
#[derive(Debug, Serialize)]
pub(crate) struct Entry {
    /// Relative to the root.
    pub(crate) path: String,
    /// Bytes that were hashed.
    pub(crate) size_bytes: u64,
    /// Modification time, Unix milliseconds.
    pub(crate) mtime_ms: u64,
    /// SHA-256 of those bytes.
    #[serde(serialize_with = "as_hex")]
    pub(crate) sha256: [u8; 32],
}

fn as_hex<S: Serializer>(bytes: &[u8; 32], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&hex(bytes))
}

/// The document, in the seed's key order.
#[derive(Debug, Serialize)]
struct Document<'a> {
    root: &'a str,
    mode: &'static str,
    max_bytes: u64,
    generation: u64,
    containment_achieved: &'static str,
    entries: &'a [Entry],
}

/// The JSON text of a listing.
///
/// # Errors
/// `io_error` if it cannot be written down.
pub(crate) fn document(
    export: &ExportRoot,
    class: Class,
    generation: u64,
    entries: &[Entry],
) -> Result<Vec<u8>, PlaneCode> {
    serde_json::to_vec(&Document {
        root: &export.verbatim,
        mode: "read-only",
        max_bytes: export.max_bytes,
        generation,
        containment_achieved: class.as_str(),
        entries,
    })
    .map_err(|_| PlaneCode::IoError)
}

/// All files below the root, sorted by the bytes of their paths.
///
/// # Errors
/// `io_error` if the root is there and cannot be read, or if the walk was canceled. A root that does not exist, is no
/// directory or leaves the workdir has no files.
pub(crate) fn list(
    workdir: &Arc<OwnedFd>,
    export: &ExportRoot,
    links: Links,
    cancel: &AtomicBool,
) -> Result<Vec<Entry>, PlaneCode> {
    let root = match resolve::root(workdir, export) {
        Ok(root) => root,
        Err(PlaneCode::IoError) => return Err(PlaneCode::IoError),
        Err(_) => return Ok(Vec::new()),
    };
    let hasher = || Hasher { root: &root, links, cancel, entries: Vec::new(), buffer: vec![0; CHUNK] };
    let queue = Queue::default();
    let mut entries = std::thread::scope(|scope| {
        let help = || {
            let (mut hasher, queue) = (hasher(), &queue);
            let work = move || queue.serve(&mut hasher).map(|()| hasher.entries);
            // Without a second thread it only takes longer.
            std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work).ok()
        };
        let mut walker =
            Walker { root: &root, cancel, queue: &queue, own: hasher(), seen: 0, help, helper: None };
        let walked = walker.walk();
        let Walker { own: mut hasher, helper, .. } = walker;
        let finished = queue.finish(&mut hasher);
        let helped = helper.map_or(Ok(Vec::new()), |helper| helper.join().unwrap_or(Err(Canceled)));
        walked?;
        finished?;
        hasher.entries.extend(helped?);
        Ok::<_, PlaneCode>(hasher.entries)
    })?;
    entries.sort_unstable_by(|one, other| one.path.cmp(&other.path));
    Ok(entries)
}

/// Why a walk ends early.
struct Canceled;

impl From<Canceled> for PlaneCode {
    fn from(_: Canceled) -> Self {
        PlaneCode::IoError
    }
}

/// Names of one directory that may be files.
struct Batch {
    directory: Arc<OwnedFd>,
    prefix: String,
    names: Vec<(String, FileType)>,
}

/// Names in a batch.
const BATCH: usize = 64;

/// Batches that wait for the second thread; each holds a descriptor. With more the walk waits for none but takes its own.
const BATCHES: usize = 8;

/// Batches on their way from the thread that walks to the one that helps it.
#[derive(Default)]
struct Queue {
    state: Mutex<Batches>,
    more: Condvar,
}

#[derive(Default)]
struct Batches {
    waiting: VecDeque<Batch>,
    over: bool,
}

impl Queue {
    /// Leaves a batch to the other thread, unless it has enough.
    fn offer(&self, batch: Batch) -> Option<Batch> {
        let mut state = locked(&self.state);
        if state.waiting.len() >= BATCHES {
            return Some(batch);
        }
        state.waiting.push_back(batch);
        drop(state);
        self.more.notify_one();
        None
    }

    /// Does what comes, until the walk is over.
    fn serve(&self, hasher: &mut Hasher<'_>) -> Result<(), Canceled> {
        loop {
            let mut state = locked(&self.state);
            let batch = loop {
                if let Some(batch) = state.waiting.pop_front() {
                    break batch;
                }
                if state.over {
                    return Ok(());
                }
                state = self.more.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            drop(state);
            hasher.take(batch)?;
        }
    }

    /// Says that the walk is over, and does what is left.
    fn finish(&self, hasher: &mut Hasher<'_>) -> Result<(), Canceled> {
        locked(&self.state).over = true;
        self.more.notify_one();
        self.serve(hasher)
    }
}

type Helper<'scope> = ScopedJoinHandle<'scope, Result<Vec<Entry>, Canceled>>;

/// Goes through the directories. Files are hashed by this thread and by a second one, once there are enough of them.
struct Walker<'a, 'scope, H> {
    root: &'a Root<'a>,
    cancel: &'a AtomicBool,
    queue: &'a Queue,
    own: Hasher<'a>,
    /// Files so far.
    seen: usize,
    help: H,
    helper: Option<Helper<'scope>>,
}

impl<'scope, H: Fn() -> Option<Helper<'scope>>> Walker<'_, 'scope, H> {
    /// Goes through the tree, depth first. `waiting` holds, per level, the names of directories still to be entered;
    /// `prefix` is the path of the level on top, with its slash.
    fn walk(&mut self) -> Result<(), PlaneCode> {
        let mut levels = Levels::new(self.root.directory());
        let mut prefix = String::new();
        let names = match read_names(self.root.directory().as_fd()).map_err(resolve::code) {
            Ok(names) => names,
            Err(PlaneCode::NotFound) => return Ok(()),
            Err(_) => return Err(PlaneCode::IoError),
        };
        let mut waiting = vec![self.files(self.root.directory(), &prefix, names)?];
        while let Some(names) = waiting.last_mut() {
            let Some(name) = names.pop() else {
                waiting.pop();
                if levels.pop() {
                    prefix.pop();
                    prefix.truncate(prefix.rfind('/').map_or(0, |slash| slash + 1));
                }
                continue;
            };
            let Ok(above) = levels.top() else { continue };
            let stepped = resolve::step(above.as_fd(), name.as_bytes());
            let Some(directory) = there(stepped)? else { continue };
            let Some(found) = there(read_names(directory.as_fd()))? else { continue };
            let directory = Arc::new(directory);
            prefix.push_str(&name);
            prefix.push('/');
            let inner = self.files(&directory, &prefix, found)?;
            levels.push(name.into_bytes(), directory);
            waiting.push(inner);
        }
        Ok(())
    }

    /// Has the files of one directory listed and returns the names of its directories.
    fn files(
        &mut self,
        directory: &Arc<OwnedFd>,
        prefix: &str,
        names: Vec<(String, FileType)>,
    ) -> Result<Vec<String>, Canceled> {
        let mut directories = Vec::new();
        let mut files = Vec::new();
        for (name, mut kind) in names {
            if self.cancel.load(Ordering::Relaxed) {
                return Err(Canceled);
            }
            // A longer path cannot be read back.
            if prefix.len() + name.len() > MAX_RELPATH {
                continue;
            }
            if kind == FileType::Unknown {
                let stat = resolve::glance(directory.as_fd(), name.as_bytes());
                kind = stat.map_or(FileType::Unknown, |stat| resolve::kind(&stat));
            }
            match kind {
                FileType::Directory => directories.push(name),
                FileType::RegularFile | FileType::Symlink => files.push((name, kind)),
                _ => {}
            }
            if files.len() >= BATCH {
                self.hand_on(directory, prefix, std::mem::take(&mut files))?;
            }
        }
        self.hand_on(directory, prefix, files)?;
        Ok(directories)
    }

    fn hand_on(
        &mut self,
        directory: &Arc<OwnedFd>,
        prefix: &str,
        names: Vec<(String, FileType)>,
    ) -> Result<(), Canceled> {
        if names.is_empty() {
            return Ok(());
        }
        self.seen += names.len();
        let batch = Batch { directory: Arc::clone(directory), prefix: prefix.to_owned(), names };
        // A small tree is listed before a thread has started.
        if self.seen < BATCH {
            return self.own.take(batch);
        }
        if self.helper.is_none() {
            self.helper = (self.help)();
        }
        match self.queue.offer(batch) {
            Some(batch) => self.own.take(batch),
            None => Ok(()),
        }
    }
}

/// Opens and hashes.
struct Hasher<'a> {
    root: &'a Root<'a>,
    links: Links,
    cancel: &'a AtomicBool,
    entries: Vec<Entry>,
    buffer: Vec<u8>,
}

impl Hasher<'_> {
    /// Lists the files of a batch. What is neither file nor link any more since its name was read is left out.
    fn take(&mut self, batch: Batch) -> Result<(), Canceled> {
        let Batch { directory, prefix, names } = batch;
        for (name, kind) in names {
            if self.cancel.load(Ordering::Relaxed) {
                return Err(Canceled);
            }
            let child = match kind {
                FileType::Symlink => Child::Link,
                _ => open::open_child(directory.as_fd(), name.as_bytes()).unwrap_or(Child::Other),
            };
            match child {
                Child::File(opened) => self.add(format!("{prefix}{name}"), &opened)?,
                Child::Link => self.link(format!("{prefix}{name}"))?,
                Child::Other => {}
            }
        }
        Ok(())
    }

    /// Lists a link under its own name if a read of that name would be served.
    fn link(&mut self, path: String) -> Result<(), Canceled> {
        if self.links == Links::Refuse {
            return Ok(());
        }
        let Ok(path) = RelPath::new(path) else { return Ok(()) };
        match open::open(self.root, self.links, &path) {
            Ok(opened) => self.add(path.into(), &opened),
            Err(_) => Ok(()),
        }
    }

    /// Hashes a file up to the size it had when it was opened: one that is appended to for ever ends there.
    fn add(&mut self, path: String, opened: &Opened) -> Result<(), Canceled> {
        match opened.stream(opened.size, &mut self.buffer, self.cancel, |_| Ok(())) {
            Ok((size_bytes, sha256)) => {
                self.entries.push(Entry { path, size_bytes, mtime_ms: opened.mtime_ms, sha256 });
                Ok(())
            }
            Err(Stopped::Canceled) => Err(Canceled),
            Err(Stopped::Failed | Stopped::More) => Ok(()),
        }
    }
}

/// A directory that is gone, replaced or unreadable by now has no files to list. One that cannot be read for another reason has
/// some that would be missing: there is no listing then.
fn there<T>(found: Result<T, Errno>) -> Result<Option<T>, PlaneCode> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS | Errno::PERM) => Ok(None),
        Err(_) => Err(PlaneCode::IoError),
    }
}

/// The names in a directory that are text; others cannot be named by a request.
fn read_names(directory: BorrowedFd<'_>) -> Result<Vec<(String, FileType)>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut names = Vec::new();
    for entry in Dir::new(rustix::fs::openat(directory, c".", flags, Mode::empty())?)? {
        let entry = entry?;
        match entry.file_name().to_str() {
            Ok("." | "..") | Err(_) => {}
            Ok(name) => names.push((name.to_owned(), entry.file_type())),
        }
    }
    Ok(names)
}
