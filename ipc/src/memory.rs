//! Memory files that cross a process boundary: sealed documents, the body window and the generation counter.

use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, SealFlags};
use serde::{Serialize, de::DeserializeOwned};

use crate::codec::{self, CodecError, MAX_DOCUMENT};
use crate::sys::Mapping;

/// Bytes of the body window: what may be on its way to clients at one time.
pub const WINDOW_BYTES: usize = 64 * 1024 * 1024;

/// Bytes of the generation page.
const COUNTER_BYTES: usize = 4096;

/// Why a memory file is not what the message said.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The descriptor is no memory file, or lacks a seal that its use relies on.
    #[error("the descriptor is not a memory file sealed as agreed")]
    NotSealed,
    /// The file is smaller or larger than agreed.
    #[error("the memory file has another size than agreed")]
    Size,
    /// The bytes are no document of the expected kind.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The kernel refused the call.
    #[error("a memory file could not be used")]
    System(#[from] std::io::Error),
}

impl From<rustix::io::Errno> for MemoryError {
    fn from(errno: rustix::io::Errno) -> Self {
        MemoryError::System(errno.into())
    }
}

fn memory_file(name: &str) -> Result<OwnedFd, MemoryError> {
    Ok(rustix::fs::memfd_create(
        name,
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::NOEXEC_SEAL,
    )
    .or_else(|errno| {
        // MFD_NOEXEC_SEAL is Linux 6.3; before, the file is simply not marked.
        if errno == rustix::io::Errno::INVAL {
            rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        } else {
            Err(errno)
        }
    })?)
}

/// A memory file that is being written, piece by piece, and then sealed.
#[derive(Debug)]
pub struct Draft {
    file: std::fs::File,
}

impl Draft {
    /// An empty one.
    ///
    /// # Errors
    /// [`MemoryError::System`].
    pub fn new(name: &str) -> Result<Self, MemoryError> {
        Ok(Draft { file: memory_file(name)?.into() })
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// [`MemoryError::System`].
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), MemoryError> {
        Ok(self.file.write_all(bytes)?)
    }

    /// Seals it: nobody can change it any more. Its position is the beginning.
    ///
    /// # Errors
    /// [`MemoryError::System`].
    pub fn seal(mut self) -> Result<OwnedFd, MemoryError> {
        self.file.rewind()?;
        let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&self.file, seals)?;
        Ok(self.file.into())
    }
}

/// Puts bytes into a memory file that nobody can change any more.
///
/// # Errors
/// [`MemoryError::System`].
pub fn sealed_bytes(name: &str, bytes: &[u8]) -> Result<OwnedFd, MemoryError> {
    let mut draft = Draft::new(name)?;
    draft.append(bytes)?;
    draft.seal()
}

/// Puts a document into a sealed memory file; read it with [`read_document`].
///
/// # Errors
/// [`MemoryError::Codec`] above [`MAX_DOCUMENT`] bytes, [`MemoryError::System`].
pub fn sealed_document<T: Serialize>(name: &str, document: &T) -> Result<OwnedFd, MemoryError> {
    sealed_bytes(name, &codec::encode_document(document)?)
}

/// Bytes of a memory file that is sealed against every change, for a caller that reads it piece by piece.
///
/// # Errors
/// [`MemoryError::NotSealed`] unless it is sealed against change.
pub fn sealed_length(fd: &OwnedFd) -> Result<u64, MemoryError> {
    let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| MemoryError::NotSealed)?;
    if !seals.contains(SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK) {
        return Err(MemoryError::NotSealed);
    }
    u64::try_from(rustix::fs::fstat(fd)?.st_size).map_err(|_| MemoryError::Size)
}

/// Reads a sealed memory file of at most `limit` bytes.
///
/// # Errors
/// [`MemoryError::NotSealed`] unless it is sealed against change, [`MemoryError::Size`] above the limit.
pub fn read_sealed(fd: OwnedFd, limit: usize) -> Result<Vec<u8>, MemoryError> {
    let size = usize::try_from(sealed_length(&fd)?).map_err(|_| MemoryError::Size)?;
    let mut file = std::fs::File::from(fd);
    if size > limit {
        return Err(MemoryError::Size);
    }
    let mut bytes = vec![0; size];
    file.rewind()?;
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Reads a document out of a sealed memory file.
///
/// # Errors
/// As [`read_sealed`], and [`MemoryError::Codec`].
pub fn read_document<T: DeserializeOwned>(fd: OwnedFd) -> Result<T, MemoryError> {
    Ok(codec::decode_document(&read_sealed(fd, MAX_DOCUMENT)?)?)
}

/// A size-sealed memory file for bodies: the first descriptor maps read-write, the second read-only.
///
/// # Errors
/// [`MemoryError::System`], also where `/proc` is not mounted.
pub fn window() -> Result<(OwnedFd, OwnedFd), MemoryError> {
    let file = memory_file("window")?;
    rustix::fs::ftruncate(&file, WINDOW_BYTES as u64)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
    let reader = reopen_read_only(&file)?;
    Ok((file, reader))
}

/// A second, read-only open file description of a memory file.
fn reopen_read_only(file: &OwnedFd) -> Result<OwnedFd, MemoryError> {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    Ok(rustix::fs::open(path.as_str(), flags, rustix::fs::Mode::empty())?)
}

/// Maps a window that was handed over, after checking its size and seals.
///
/// # Errors
/// [`MemoryError::NotSealed`], [`MemoryError::Size`], or [`MemoryError::System`] when a read-only descriptor is to be
/// mapped for writing.
pub fn map_window(fd: &OwnedFd, writable: bool) -> Result<Mapping, MemoryError> {
    let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| MemoryError::NotSealed)?;
    if !seals.contains(SealFlags::GROW | SealFlags::SHRINK) {
        return Err(MemoryError::NotSealed);
    }
    if rustix::fs::fstat(fd)?.st_size != WINDOW_BYTES as i64 {
        return Err(MemoryError::Size);
    }
    Ok(Mapping::new(fd.as_fd(), WINDOW_BYTES, writable)?)
}

/// The generation counter, writing side: the count of tasks that reached a terminal state in this session.
#[derive(Debug)]
pub struct CounterWriter {
    mapping: Mapping,
}

/// The generation counter, reading side.
#[derive(Debug)]
pub struct CounterReader {
    mapping: Mapping,
}

impl CounterWriter {
    /// A new counter at 0, and the descriptor to hand to readers, which nobody can map for writing any more.
    ///
    /// # Errors
    /// [`MemoryError::System`].
    pub fn new() -> Result<(Self, OwnedFd), MemoryError> {
        let file = memory_file("generation")?;
        rustix::fs::ftruncate(&file, COUNTER_BYTES as u64)?;
        let mapping = Mapping::new(file.as_fd(), COUNTER_BYTES, true)?;
        rustix::fs::fcntl_add_seals(
            &file,
            SealFlags::FUTURE_WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL,
        )?;
        Ok((CounterWriter { mapping }, file))
    }

    /// The current value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.mapping.counter().map_or(0, |counter| counter.load(Ordering::Acquire))
    }

    /// Adds one and returns the new value.
    pub fn advance(&self) -> u64 {
        self.mapping.counter().map_or(0, |counter| counter.fetch_add(1, Ordering::AcqRel) + 1)
    }
}

impl CounterReader {
    /// Maps a counter that was handed over.
    ///
    /// # Errors
    /// [`MemoryError::Size`], [`MemoryError::NotSealed`], [`MemoryError::System`].
    pub fn new(fd: &OwnedFd) -> Result<Self, MemoryError> {
        let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| MemoryError::NotSealed)?;
        if !seals.contains(SealFlags::FUTURE_WRITE | SealFlags::SHRINK) {
            return Err(MemoryError::NotSealed);
        }
        if rustix::fs::fstat(fd)?.st_size != COUNTER_BYTES as i64 {
            return Err(MemoryError::Size);
        }
        Ok(CounterReader { mapping: Mapping::new(fd.as_fd(), COUNTER_BYTES, false)? })
    }

    /// The current value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.mapping.counter().map_or(0, |counter| counter.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_follows_the_counter_and_cannot_map_it_for_writing() {
        let (writer, fd) = CounterWriter::new().unwrap();
        let reader = CounterReader::new(&fd).unwrap();
        assert_eq!(reader.get(), 0);
        assert_eq!(writer.advance(), 1);
        assert_eq!(reader.get(), 1);
        assert!(Mapping::new(fd.as_fd(), COUNTER_BYTES, true).is_err());
    }

    #[test]
    fn the_door_side_of_a_window_cannot_be_mapped_for_writing() {
        let (writer, reader) = window().unwrap();
        let mut writing = map_window(&writer, true).unwrap();
        writing.bytes_mut(10, 2).unwrap().copy_from_slice(b"ok");
        assert_eq!(map_window(&reader, false).unwrap().bytes(10, 2).unwrap(), b"ok");
        assert!(map_window(&reader, true).is_err());
        assert!(writing.bytes(WINDOW_BYTES - 1, 2).is_none());
    }

    #[test]
    fn a_document_that_is_not_sealed_is_refused() {
        let file = memory_file("open").unwrap();
        assert!(matches!(read_sealed(file, 10), Err(MemoryError::NotSealed)));
        let sealed = sealed_document("doc", &(7u32, "text")).unwrap();
        assert_eq!(read_document::<(u32, String)>(sealed).unwrap(), (7, "text".into()));
        assert!(matches!(read_sealed(sealed_bytes("b", b"12345").unwrap(), 4), Err(MemoryError::Size)));
    }
}
