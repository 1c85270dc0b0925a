//! The system calls behind channels and shared memory, and the only `unsafe` code of the crate.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

pub mod datagram;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// The most descriptors any message carries.
pub const MAX_DESCRIPTORS: usize = 8;

/// `SO_PASSRIGHTS`, Linux 6.16: whether descriptors may arrive on a Unix socket.
const SO_PASSRIGHTS: libc::c_int = 83;

/// What one `recvmsg` gave.
#[derive(Debug)]
pub struct Packet {
    /// Bytes of the packet; 0 means that the peer is gone.
    pub length: usize,
    /// The descriptors that came with it, close-on-exec.
    pub descriptors: Vec<OwnedFd>,
    /// The packet was larger than the buffer.
    pub truncated: bool,
    /// Descriptors were dropped by the kernel: too many, or denied.
    pub descriptors_dropped: bool,
}

/// Makes a connected pair of sequenced-packet sockets, close-on-exec.
///
/// # Errors
/// The error of `socketpair`.
pub fn packet_pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Takes ownership of a descriptor that was left open across exec. Call it once per number, first thing in `main`.
#[must_use]
pub fn inherited(number: i32) -> OwnedFd {
    use std::os::fd::FromRawFd;
    // SAFETY: the parent's spawn leaves exactly this descriptor open for us, and nothing in this process has taken it yet.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// Whether the descriptor is a Unix sequenced-packet socket.
#[must_use]
pub fn is_packet_socket(fd: BorrowedFd<'_>) -> bool {
    rustix::net::sockopt::socket_type(fd) == Ok(SocketType::SEQPACKET)
}

/// Refuses descriptors on a socket in the kernel. `Ok(false)` on kernels before 6.16, which lack the option.
///
/// # Errors
/// Any other error of `setsockopt`.
pub fn refuse_descriptors(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    let off: libc::c_int = 0;
    // SAFETY: the pointer and the length describe `off`, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const off).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 {
        return Ok(true);
    }
    match Errno::from_io_error(&std::io::Error::last_os_error()) {
        Some(Errno::NOPROTOOPT) => Ok(false),
        Some(errno) => Err(errno),
        None => Err(Errno::IO),
    }
}

/// Makes reads, writes and accepts on the descriptor return instead of waiting.
///
/// # Errors
/// The error of `fcntl`.
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK)
}

/// Milliseconds on the clock that all processes of the machine share; read without entering the kernel.
#[must_use]
pub fn monotonic_ms() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one structure of ours; with this clock it cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000_000)
}

/// Takes a connection from a listening socket; neither blocks, and the new one is close-on-exec.
///
/// # Errors
/// The error of `accept4`; `AGAIN` if none waits.
pub fn accept(listener: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = rustix::net::SocketFlags::NONBLOCK | rustix::net::SocketFlags::CLOEXEC;
    rustix::net::accept_with(listener, flags)
}

/// Sends one packet with descriptors.
///
/// # Errors
/// The error of `sendmsg`; `AGAIN` only if `wait` is false.
pub fn send_packet(
    fd: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    wait: bool,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::TOOBIG);
    }
    let flags = if wait { SendFlags::NOSIGNAL } else { SendFlags::NOSIGNAL | SendFlags::DONTWAIT };
    loop {
        match rustix::net::sendmsg(fd, &[IoSlice::new(bytes)], &mut control, flags) {
            Ok(sent) if sent == bytes.len() => return Ok(()),
            Ok(_) => return Err(Errno::MSGSIZE),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Receives one packet with room for exactly `expected` descriptors.
///
/// # Errors
/// The error of `recvmsg`; `AGAIN` only if `wait` is false.
pub fn receive_packet(
    fd: BorrowedFd<'_>,
    buffer: &mut [u8],
    expected: usize,
    wait: bool,
) -> Result<Packet, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let room = if expected == 0 {
        0
    } else {
        rustix::cmsg_space!(ScmRights(1)) + (expected.min(MAX_DESCRIPTORS) - 1) * size_of::<i32>()
    };
    let mut control = RecvAncillaryBuffer::new(space.get_mut(..room).unwrap_or(&mut []));
    let flags = if wait { RecvFlags::CMSG_CLOEXEC } else { RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT };
    let mut reset = false;
    let message = loop {
        match rustix::net::recvmsg(fd, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            Ok(message) => break message,
            Err(Errno::INTR) => {}
            // The peer ended with messages of ours unread, which is told once and before its own last messages.
            Err(Errno::CONNRESET) if !reset => reset = true,
            Err(errno) => return Err(errno),
        }
    };
    let mut descriptors = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = part {
            descriptors.extend(received);
        }
    }
    Ok(Packet {
        length: message.bytes,
        descriptors,
        truncated: message.flags.contains(ReturnFlags::TRUNC),
        descriptors_dropped: message.flags.contains(ReturnFlags::CTRUNC),
    })
}

/// Ends a connected socket in both directions, for whoever holds it: a blocked receiver finds what is queued, then the end.
///
/// # Errors
/// The error of `shutdown`.
pub fn shut_down(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    rustix::net::shutdown(fd, rustix::net::Shutdown::Both)
}

/// Registers a descriptor with the current tokio runtime for reading and writing.
///
/// # Errors
/// The error of the reactor.
#[cfg(feature = "tokio")]
pub fn register(
    fd: OwnedFd,
    interest: tokio::io::Interest,
) -> std::io::Result<tokio::io::unix::AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` names the same open descriptor until it is dropped, and the `AsyncFd` owns it until then.
    unsafe { tokio::io::unix::AsyncFd::register_with_interest(fd, interest) }.map_err(std::io::Error::from)
}

/// A shared mapping of a memory file, unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    length: usize,
    writable: bool,
}

// SAFETY: the mapping is plain shared memory that belongs to this value until drop; all access goes through methods that
// copy bytes or use atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above; concurrent access from other processes is expected and every accessor tolerates it.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `length` bytes of a memory file.
    ///
    /// # Errors
    /// The error of `mmap`.
    pub fn new(fd: BorrowedFd<'_>, length: usize, writable: bool) -> Result<Self, Errno> {
        use rustix::mm::{MapFlags, ProtFlags};
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a fresh mapping at an address of the kernel's choice; nothing else refers to it.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, fd, 0)? };
        let start = NonNull::new(start.cast()).ok_or(Errno::FAULT)?;
        Ok(Mapping { start, length, writable })
    }

    /// Bytes of the mapping.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the mapping has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The 64-bit number at the start of the mapping; `None` if the mapping is smaller.
    #[must_use]
    pub fn counter(&self) -> Option<&std::sync::atomic::AtomicU64> {
        if self.length < size_of::<u64>() {
            return None;
        }
        // SAFETY: page-aligned, large enough, alive as long as `self`, and only ever accessed atomically. A store through a
        // read-only mapping would fault; `CounterReader` never stores.
        Some(unsafe { std::sync::atomic::AtomicU64::from_ptr(self.start.as_ptr().cast()) })
    }

    /// A range for reading. The peer that holds the writable side may change the bytes at any time: use them as data to
    /// copy or send, never twice for one decision.
    #[must_use]
    pub fn bytes(&self, offset: usize, length: usize) -> Option<&[u8]> {
        let end = offset.checked_add(length)?;
        if end > self.length {
            return None;
        }
        // SAFETY: in bounds and alive as long as `self`. Bytes may change under us; `u8` has no invalid values, and the
        // callers only copy them to a socket or a hash.
        Some(unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(offset), length) })
    }

    /// A range for writing; `None` if out of bounds or the mapping is read-only.
    #[must_use]
    pub fn bytes_mut(&mut self, offset: usize, length: usize) -> Option<&mut [u8]> {
        let end = offset.checked_add(length)?;
        if end > self.length || !self.writable {
            return None;
        }
        // SAFETY: in bounds, writable, exclusive within this process through `&mut self`.
        Some(unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(offset), length) })
    }

    /// The start of a writable range, for a caller that hands disjoint ranges to several threads.
    #[must_use]
    pub fn writable_range(&self, offset: usize, length: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(length)?;
        if end > self.length || !self.writable {
            return None;
        }
        // SAFETY: in bounds, so the sum stays inside the mapping and is not null.
        Some(unsafe { self.start.add(offset) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `new` mapped, unmapped once.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// A writable piece of a [`Mapping`] that one thread owns. Pieces come from one whole mapping by splitting, so that no two
/// live ones overlap.
#[derive(Debug)]
pub struct Piece {
    mapping: std::sync::Arc<Mapping>,
    start: NonNull<u8>,
    offset: usize,
    length: usize,
}

// SAFETY: a piece is exclusive to its owner (it is only ever made by `whole`, `split_at` and `join`, which consume what they
// are made of) and keeps its mapping alive.
unsafe impl Send for Piece {}

impl Piece {
    /// The whole of a writable mapping, which nobody else can use from now on; `None` if it is read-only.
    #[must_use]
    pub fn whole(mapping: Mapping) -> Option<Self> {
        let length = mapping.len();
        let start = mapping.writable_range(0, length)?;
        Some(Piece { mapping: std::sync::Arc::new(mapping), start, offset: 0, length })
    }

    /// Cuts the piece in two, the first of `length` bytes.
    ///
    /// # Errors
    /// The piece itself unless both parts would hold at least one byte.
    pub fn split_at(self, length: usize) -> Result<(Self, Self), Self> {
        if length == 0 || length >= self.length {
            return Err(self);
        }
        let Some(middle) = self.mapping.writable_range(self.offset + length, self.length - length) else {
            return Err(self);
        };
        let rest = Piece {
            mapping: std::sync::Arc::clone(&self.mapping),
            start: middle,
            offset: self.offset + length,
            length: self.length - length,
        };
        Ok((Piece { length, ..self }, rest))
    }

    /// Puts two neighbours together again.
    ///
    /// # Errors
    /// Both pieces unless `next` begins where this one ends, in the same mapping.
    pub fn join(self, next: Self) -> Result<Self, (Self, Self)> {
        let same = std::sync::Arc::ptr_eq(&self.mapping, &next.mapping);
        if same && self.offset + self.length == next.offset {
            Ok(Piece { length: self.length + next.length, ..self })
        } else {
            Err((self, next))
        }
    }

    /// Where the piece begins in its mapping, in bytes.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Bytes of the piece, at least one.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Never true: a piece holds at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: in bounds (`writable_range`), alive through `mapping`, exclusive to this piece in this process.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    /// The bytes, for writing.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as `bytes`, and exclusive through `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_split_and_join_without_overlap() {
        let file = rustix::fs::memfd_create("pieces", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        use std::os::fd::AsFd;
        assert!(Piece::whole(Mapping::new(file.as_fd(), 4096, false).unwrap()).is_none(), "read-only");
        let whole = Piece::whole(Mapping::new(file.as_fd(), 4096, true).unwrap()).unwrap();
        let whole = whole.split_at(0).unwrap_err().split_at(4096).unwrap_err();
        let (mut first, mut rest) = whole.split_at(1000).unwrap();
        assert_eq!((first.offset(), first.len(), rest.offset(), rest.len()), (0, 1000, 1000, 3096));
        first.bytes_mut().fill(1);
        rest.bytes_mut().fill(2);
        assert!(first.bytes().iter().all(|byte| *byte == 1));
        let (rest, first) = rest.join(first).unwrap_err();
        let whole = first.join(rest).unwrap();
        assert_eq!((whole.offset(), whole.len()), (0, 4096));
    }
}
