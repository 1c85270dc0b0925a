//! Is it a regular file, and what are its bytes? The one opener behind reads and listings.
//!
//! Everything said of a file comes from one descriptor. What a name leads to is looked at before it is opened, so that no
//! device or fifo is opened for reading. Between the look and the opening the name may come to lead elsewhere: therefore what
//! was opened must be the very object that was looked at, and the mount under the workdir is one on which no device opens.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use ipc::types::{PlaneCode, RelPath};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::resolve::{self, Found, Links, Node, Root, Walk};

/// How often a file that is being replaced is looked up again before giving up. A writer that renames as fast as it can
/// wins a round about once in a hundred.
const ATTEMPTS: usize = 32;

/// How often a file that may not be opened is looked at again: it could be one that changes places with a device.
const DENIALS: usize = 8;

/// Bytes read at one go; between two goes a request can be canceled.
pub(crate) const CHUNK: usize = 256 * 1024;

/// A regular file, open for reading, as it was when it was opened.
#[derive(Debug)]
pub(crate) struct Opened {
    /// The descriptor all the rest comes from.
    pub(crate) file: OwnedFd,
    /// Size in bytes at that moment.
    pub(crate) size: u64,
    /// Modification time in whole Unix milliseconds, rounded down; 0 before 1970.
    pub(crate) mtime_ms: u64,
}

/// Opens the regular file a path leads to.
///
/// # Errors
/// The refusal.
pub(crate) fn open(root: &Root<'_>, links: Links, path: &RelPath) -> Result<Opened, PlaneCode> {
    let mut walk = Walk::to(root, links, path)?;
    for _ in 0..ATTEMPTS {
        match walk.run()? {
            Found::Directory => return Err(PlaneCode::NotARegularFile),
            Found::Regular(Node { parent, name, stat }) => {
                if let Some(opened) = open_same(parent.as_fd(), &name, &stat)? {
                    return Ok(opened);
                }
                walk.again(name);
            }
        }
    }
    Err(PlaneCode::IoError)
}

/// Where a path leads: to the regular file that [`open()`] would open, by names of which none is a link now.
///
/// # Errors
/// The refusal; `not_found` too if no request could name the file.
pub(crate) fn canonical(root: &Root<'_>, links: Links, path: &RelPath) -> Result<RelPath, PlaneCode> {
    let mut walk = Walk::to(root, links, path)?;
    match walk.run()? {
        Found::Directory => Err(PlaneCode::NotARegularFile),
        Found::Regular(Node { name, .. }) => walk.path_of(name).ok_or(PlaneCode::NotFound),
    }
}

/// What one name in a directory is.
#[derive(Debug)]
pub(crate) enum Child {
    /// A regular file, opened.
    File(Opened),
    /// A symbolic link.
    Link,
    /// Nothing a listing shows.
    Other,
}

/// Opens one name of a directory if it is a regular file; never follows a link.
///
/// # Errors
/// The refusal.
pub(crate) fn open_child(parent: BorrowedFd<'_>, name: &[u8]) -> Result<Child, PlaneCode> {
    for _ in 0..ATTEMPTS {
        let stat = resolve::glance(parent, name).map_err(resolve::code)?;
        match resolve::kind(&stat) {
            FileType::RegularFile => {
                if let Some(opened) = open_same(parent, name, &stat)? {
                    return Ok(Child::File(opened));
                }
            }
            FileType::Symlink => return Ok(Child::Link),
            _ => return Ok(Child::Other),
        }
    }
    Err(PlaneCode::IoError)
}

/// Opens the regular file that was just looked at; `Ok(None)` if the name leads to something else by now.
fn open_same(parent: BorrowedFd<'_>, name: &[u8], seen: &Stat) -> Result<Option<Opened>, PlaneCode> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let mut denials = 0;
    let file = loop {
        match rustix::fs::openat(parent, name, flags, Mode::empty()) {
            Ok(file) => break file,
            // It has become a link, is gone, or has become a socket or a fifo: the next look says which.
            Err(Errno::LOOP | Errno::NOENT | Errno::NXIO | Errno::NODEV) => return Ok(None),
            // It may not be read, or it was a device for a moment, which this mount refuses to open.
            Err(Errno::ACCESS | Errno::PERM) if denials < DENIALS => {
                denials += 1;
                let now = resolve::glance(parent, name).map_err(resolve::code)?;
                if now.st_dev != seen.st_dev || now.st_ino != seen.st_ino {
                    return Ok(None);
                }
            }
            Err(_) => return Err(PlaneCode::IoError),
        }
    };
    let stat = rustix::fs::fstat(&file).map_err(|_| PlaneCode::IoError)?;
    let same = stat.st_dev == seen.st_dev && stat.st_ino == seen.st_ino;
    if !same || resolve::kind(&stat) != FileType::RegularFile {
        return Ok(None);
    }
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    Ok(Some(Opened { file, size, mtime_ms: mtime_ms(&stat) }))
}

fn mtime_ms(stat: &Stat) -> u64 {
    let seconds = i128::from(stat.st_mtime);
    let nanoseconds = i128::from(stat.st_mtime_nsec);
    u64::try_from(seconds * 1000 + nanoseconds.div_euclid(1_000_000)).unwrap_or(0)
}

/// Why bytes were not read to the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// The client is gone.
    Canceled,
    /// The read failed.
    Failed,
    /// There are more bytes than fit.
    More,
}

impl Opened {
    /// Fills `space` from the beginning of the file and hashes what is now in it; the count is smaller than the space only
    /// where the file ended.
    ///
    /// # Errors
    /// [`Stopped`]; `More` if the file goes on after the last byte of the space.
    pub(crate) fn fill(&self, space: &mut [u8], cancel: &AtomicBool) -> Result<(usize, [u8; 32]), Stopped> {
        let mut hash = Sha256::new();
        let mut filled = 0;
        let mut chunks = space.chunks_mut(CHUNK).peekable();
        while let Some(chunk) = chunks.next() {
            if cancel.load(Ordering::Relaxed) {
                return Err(Stopped::Canceled);
            }
            let length = chunk.len();
            let (count, more) = match chunks.peek() {
                Some(_) => (self.read_at(chunk, filled as u64)?, true),
                None => self.read_last(chunk, filled as u64)?,
            };
            hash.update(chunk.get(..count).unwrap_or_default());
            filled += count;
            if count < length || !more {
                return Ok((filled, hash.finalize().into()));
            }
        }
        if filled > 0 || self.read_at(&mut [0], 0)? > 0 {
            return Err(Stopped::More);
        }
        Ok((filled, hash.finalize().into()))
    }

    /// Reads at most `limit` bytes in chunks, hashes each and hands it on.
    ///
    /// # Errors
    /// [`Stopped`]; never `More` unless `each` says so.
    pub(crate) fn stream(
        &self,
        limit: u64,
        buffer: &mut [u8],
        cancel: &AtomicBool,
        mut each: impl FnMut(&[u8]) -> Result<(), Stopped>,
    ) -> Result<(u64, [u8; 32]), Stopped> {
        let mut hash = Sha256::new();
        let mut total = 0;
        while total < limit {
            if cancel.load(Ordering::Relaxed) {
                return Err(Stopped::Canceled);
            }
            let want = usize::try_from(limit - total).unwrap_or(usize::MAX).min(buffer.len());
            let Some(chunk) = buffer.get_mut(..want) else { return Err(Stopped::Failed) };
            let count = self.read_at(chunk, total)?;
            let read = chunk.get(..count).unwrap_or_default();
            hash.update(read);
            each(read)?;
            total += count as u64;
            if count < want {
                break;
            }
        }
        Ok((total, hash.finalize().into()))
    }

    /// Reads until the chunk is full or the file ends, and whether it goes on after a full chunk. The one byte beyond is asked
    /// for in the same call: a file that ends where it said it would shows that by leaving this byte out.
    fn read_last(&self, chunk: &mut [u8], offset: u64) -> Result<(usize, bool), Stopped> {
        let mut beyond = [0];
        let mut filled = 0;
        while let Some(rest) = chunk.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let room = rest.len();
            let mut places = [IoSliceMut::new(rest), IoSliceMut::new(&mut beyond)];
            match rustix::io::preadv(&self.file, &mut places, offset + filled as u64) {
                Ok(0) => break,
                Ok(count) if count > room => return Ok((filled + room, true)),
                Ok(count) => filled += count,
                Err(Errno::INTR) => {}
                Err(_) => return Err(Stopped::Failed),
            }
        }
        Ok((filled, false))
    }

    /// Reads until the chunk is full or the file ends.
    fn read_at(&self, chunk: &mut [u8], offset: u64) -> Result<usize, Stopped> {
        let mut filled = 0;
        while let Some(rest) = chunk.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pread(&self.file, rest, offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(Errno::INTR) => {}
                Err(_) => return Err(Stopped::Failed),
            }
        }
        Ok(filled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// F23: the address 0 of one's own memory is a read that fails.
    #[test]
    fn a_read_that_fails_is_no_end_of_the_file() {
        let file = std::fs::File::open("/proc/self/mem").unwrap().into();
        let opened = Opened { file, size: 10, mtime_ms: 0 };
        let cancel = AtomicBool::new(false);
        assert_eq!(opened.fill(&mut [0; 10], &cancel), Err(Stopped::Failed));
        assert_eq!(opened.stream(10, &mut [0; 4], &cancel, |_| Ok(())), Err(Stopped::Failed));
    }

    #[test]
    fn modification_times_are_whole_milliseconds_rounded_down_and_never_negative() {
        let table = [
            (0, 0, 0),
            (1_787_577_327, 15_999_999, 1_787_577_327_015),
            (-1, 999_000_000, 0),
            (-86_400, 0, 0),
            (16_725_225_600, 0, 16_725_225_600_000),
        ];
        let file = std::fs::File::open("/").unwrap();
        let mut stat = rustix::fs::fstat(&file).unwrap();
        for (seconds, nanoseconds, milliseconds) in table {
            stat.st_mtime = seconds;
            stat.st_mtime_nsec = nanoseconds;
            assert_eq!(mtime_ms(&stat), milliseconds, "{seconds}.{nanoseconds}");
        }
    }
}
