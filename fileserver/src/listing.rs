//! Which regular files are below the root, and what does each hold?
//!
//! The walk goes by descriptors and keeps its own stack, so that neither a deep tree nor a wide one can exhaust the thread's
//! stack or the descriptors. What cannot be read by the same opener is not listed (`seed: GET /resources/files`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ipc::edge::control::ExportRoot;
use ipc::types::{Class, MAX_RELPATH, PlaneCode, RelPath, hex};
use rustix::fs::{Dir, FileType, Mode, OFlags};
use serde::{Serialize, Serializer};

use crate::open::{self, CHUNK, Child, Opened, Stopped};
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
    let mut lister = Lister { root: &root, links, cancel, entries: Vec::new(), buffer: vec![0; CHUNK] };
    lister.walk()?;
    let mut entries = lister.entries;
    entries.sort_unstable_by(|one, other| one.path.cmp(&other.path));
    Ok(entries)
}

struct Lister<'a> {
    root: &'a Root,
    links: Links,
    cancel: &'a AtomicBool,
    entries: Vec<Entry>,
    buffer: Vec<u8>,
}

/// Why a walk ends early.
struct Canceled;

impl From<Canceled> for PlaneCode {
    fn from(_: Canceled) -> Self {
        PlaneCode::IoError
    }
}

impl Lister<'_> {
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
        let mut waiting = vec![self.files(self.root.directory().as_fd(), &prefix, names)?];
        while let Some(names) = waiting.last_mut() {
            let Some(name) = names.pop() else {
                waiting.pop();
                if levels.pop() {
                    prefix.pop();
                    prefix.truncate(prefix.rfind('/').map_or(0, |slash| slash + 1));
                }
                continue;
            };
            // A directory that is gone, replaced or unreadable by now has no files to list.
            let Ok(above) = levels.top() else { continue };
            let Ok(directory) = resolve::step(above.as_fd(), name.as_bytes()) else { continue };
            let Ok(found) = read_names(directory.as_fd()) else { continue };
            prefix.push_str(&name);
            prefix.push('/');
            let inner = self.files(directory.as_fd(), &prefix, found)?;
            levels.push(name.into_bytes(), directory);
            waiting.push(inner);
        }
        Ok(())
    }

    /// Lists the files of one directory and returns the names of its directories.
    fn files(
        &mut self,
        directory: BorrowedFd<'_>,
        prefix: &str,
        names: Vec<(String, FileType)>,
    ) -> Result<Vec<String>, Canceled> {
        let mut directories = Vec::new();
        for (name, kind) in names {
            if self.cancel.load(Ordering::Relaxed) {
                return Err(Canceled);
            }
            // A longer path cannot be read back.
            if prefix.len() + name.len() > MAX_RELPATH {
                continue;
            }
            let child = match kind {
                FileType::Directory => Child::Directory,
                FileType::Symlink => Child::Link,
                FileType::RegularFile | FileType::Unknown => {
                    open::open_child(directory, name.as_bytes()).unwrap_or(Child::Other)
                }
                _ => Child::Other,
            };
            match child {
                Child::Directory => directories.push(name),
                Child::File(opened) => self.add(format!("{prefix}{name}"), &opened)?,
                Child::Link => self.link(format!("{prefix}{name}"))?,
                Child::Other => {}
            }
        }
        Ok(directories)
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

/// The names in a directory that are text; others cannot be named by a request.
fn read_names(directory: BorrowedFd<'_>) -> Result<Vec<(String, FileType)>, rustix::io::Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut names = Vec::new();
    for entry in Dir::new(rustix::fs::openat(directory, c".", flags, Mode::empty())?)? {
        // What was read before a failure stays listed.
        let Ok(entry) = entry else { break };
        match entry.file_name().to_str() {
            Ok("." | "..") | Err(_) => {}
            Ok(name) => names.push((name.to_owned(), entry.file_type())),
        }
    }
    Ok(names)
}
