//! One end of an edge: typed messages over sequenced packets, blocking front end.

use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::codec::{self, CodecError, MAX_PACKET};
use crate::sys;

/// How long a blocking send waits for a peer that does not read before the peer counts as broken.
pub const SEND_PATIENCE: Duration = Duration::from_secs(10);

/// A message of one direction of an edge.
pub trait Message: Serialize + DeserializeOwned + std::fmt::Debug {
    /// The most descriptors any message of this direction carries; 0 makes the kernel refuse them where it can.
    const MAX_DESCRIPTORS: usize;

    /// The number of descriptors that travel with this very message.
    fn descriptors(&self) -> usize;
}

/// The message type of a direction that carries nothing: it has no values, so any packet is a violation.
#[derive(Debug, Serialize, Deserialize)]
pub enum Never {}

impl Message for Never {
    const MAX_DESCRIPTORS: usize = 0;

    fn descriptors(&self) -> usize {
        match *self {}
    }
}

/// Why a channel cannot go on. Every variant but [`ChannelError::Closed`] means that the peer broke the rules or that the
/// kernel failed; the channel must be dropped.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The peer closed its end.
    #[error("the peer closed the channel")]
    Closed,
    /// The packet was larger than any message may be.
    #[error("the peer sent more than {MAX_PACKET} bytes in one packet")]
    Oversized,
    /// The bytes are no message of this edge.
    #[error("the peer sent bytes that are no message of this channel")]
    Codec(#[from] CodecError),
    /// Descriptors were attached in a number the message does not carry.
    #[error("the peer sent {received} descriptors where {expected} belong")]
    Descriptors {
        /// The number this message carries.
        expected: usize,
        /// The number that arrived.
        received: usize,
    },
    /// The kernel dropped descriptors: more than expected, denied, or this process is out of descriptors.
    #[error("descriptors were dropped: too many, denied, or this process has reached its descriptor limit")]
    DescriptorsDropped,
    /// The peer did not read for [`SEND_PATIENCE`], or its queue is full where waiting is not allowed.
    #[error("the peer does not read its channel")]
    Stuck,
    /// Nothing arrived in time.
    #[error("nothing arrived in time")]
    TimedOut,
    /// The descriptor is not one end of a channel.
    #[error("the descriptor is not a channel")]
    NotAChannel,
    /// The message was to be sent with another number of descriptors than it carries: an error on this side.
    #[error("a message was sent with the wrong number of descriptors")]
    WrongUse,
    /// The kernel refused the call.
    #[error("the channel failed")]
    System(#[source] std::io::Error),
}

impl From<Errno> for ChannelError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::PIPE | Errno::CONNRESET => ChannelError::Closed,
            Errno::AGAIN => ChannelError::Stuck,
            other => ChannelError::System(other.into()),
        }
    }
}

/// A received message with the descriptors it carries, in order.
#[derive(Debug)]
pub struct Received<M> {
    /// The message.
    pub message: M,
    /// Exactly [`Message::descriptors`] of it.
    pub descriptors: Vec<OwnedFd>,
}

impl<M> Received<M> {
    /// The message and its descriptors as an array, for a caller that matched the variant and knows the number.
    ///
    /// # Errors
    /// [`ChannelError::Descriptors`] if the number differs.
    pub fn exactly<const N: usize>(self) -> Result<(M, [OwnedFd; N]), ChannelError> {
        let received = self.descriptors.len();
        match <[OwnedFd; N]>::try_from(self.descriptors) {
            Ok(descriptors) => Ok((self.message, descriptors)),
            Err(_) => Err(ChannelError::Descriptors { expected: N, received }),
        }
    }
}

/// One end of an edge: sends `Tx`, receives `Rx`.
#[derive(Debug)]
pub struct Channel<Tx, Rx> {
    sender: Sender<Tx>,
    receiver: Receiver<Rx>,
}

/// The sending half; clones share one socket, and one packet is never torn.
#[derive(Debug)]
pub struct Sender<Tx> {
    socket: Arc<OwnedFd>,
    marker: PhantomData<fn(Tx)>,
}

/// The receiving half; clones share one socket, and each packet reaches exactly one of them: the kernel wakes one of several
/// threads that wait for it.
#[derive(Debug)]
pub struct Receiver<Rx> {
    socket: Arc<OwnedFd>,
    buffer: Vec<u8>,
    marker: PhantomData<fn() -> Rx>,
}

impl<Tx> Clone for Sender<Tx> {
    fn clone(&self) -> Self {
        Sender { socket: Arc::clone(&self.socket), marker: PhantomData }
    }
}

impl<Rx> Clone for Receiver<Rx> {
    fn clone(&self) -> Self {
        Receiver { socket: Arc::clone(&self.socket), buffer: Vec::new(), marker: PhantomData }
    }
}

/// Both ends of an edge.
pub type Pair<A, B> = (Channel<A, B>, Channel<B, A>);

/// Makes both ends of an edge, and has the kernel refuse descriptors on an end that expects none.
///
/// # Errors
/// [`ChannelError::System`] if the sockets cannot be made.
pub fn pair<A: Message, B: Message>() -> Result<Pair<A, B>, ChannelError> {
    let (left, right) = sys::packet_pair()?;
    if B::MAX_DESCRIPTORS == 0 {
        sys::refuse_descriptors(left.as_fd())?;
    }
    if A::MAX_DESCRIPTORS == 0 {
        sys::refuse_descriptors(right.as_fd())?;
    }
    Ok((Channel::new(left), Channel::new(right)))
}

impl<Tx: Message, Rx: Message> Channel<Tx, Rx> {
    /// Takes a descriptor that was handed over as one end of this edge.
    ///
    /// # Errors
    /// [`ChannelError::NotAChannel`] if it is not a sequenced-packet socket.
    pub fn from_descriptor(fd: OwnedFd) -> Result<Self, ChannelError> {
        if sys::is_packet_socket(fd.as_fd()) { Ok(Self::new(fd)) } else { Err(ChannelError::NotAChannel) }
    }

    fn new(fd: OwnedFd) -> Self {
        let socket = Arc::new(fd);
        Channel {
            sender: Sender { socket: Arc::clone(&socket), marker: PhantomData },
            receiver: Receiver { socket, buffer: Vec::new(), marker: PhantomData },
        }
    }

    /// Sends a message that carries no descriptors, waiting up to [`SEND_PATIENCE`] for the peer to read.
    ///
    /// # Errors
    /// See [`Sender::send_with`].
    pub fn send(&self, message: &Tx) -> Result<(), ChannelError> {
        self.sender.send_with(message, &[])
    }

    /// Sends a message with its descriptors.
    ///
    /// # Errors
    /// See [`Sender::send_with`].
    pub fn send_with(&self, message: &Tx, descriptors: &[BorrowedFd<'_>]) -> Result<(), ChannelError> {
        self.sender.send_with(message, descriptors)
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// See [`Receiver::receive`].
    pub fn receive(&mut self) -> Result<Received<Rx>, ChannelError> {
        self.receiver.receive()
    }

    /// Waits for the next message until `deadline`.
    ///
    /// # Errors
    /// [`ChannelError::TimedOut`], or as [`Receiver::receive`].
    pub fn receive_until(&mut self, deadline: Instant) -> Result<Received<Rx>, ChannelError> {
        self.receiver.receive_until(deadline)
    }

    /// Both halves, for two threads.
    #[must_use]
    pub fn split(self) -> (Sender<Tx>, Receiver<Rx>) {
        (self.sender, self.receiver)
    }

    /// A further sender on this end.
    #[must_use]
    pub fn sender(&self) -> Sender<Tx> {
        self.sender.clone()
    }

    /// The socket as a descriptor of its own, to hand this end to another process.
    ///
    /// # Errors
    /// [`ChannelError::WrongUse`] while a half is still shared.
    pub fn into_descriptor(self) -> Result<OwnedFd, ChannelError> {
        drop(self.receiver);
        Arc::try_unwrap(self.sender.socket).map_err(|_| ChannelError::WrongUse)
    }
}

impl<Tx, Rx> AsFd for Channel<Tx, Rx> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sender.socket.as_fd()
    }
}

impl<Tx: Message> Sender<Tx> {
    /// Sends a message that carries no descriptors.
    ///
    /// # Errors
    /// See [`Sender::send_with`].
    pub fn send(&self, message: &Tx) -> Result<(), ChannelError> {
        self.send_with(message, &[])
    }

    /// Sends a message with its descriptors, waiting up to [`SEND_PATIENCE`] for the peer to read.
    ///
    /// # Errors
    /// [`ChannelError::WrongUse`] for a wrong number of descriptors, [`ChannelError::Codec`] for a message that is too
    /// large, [`ChannelError::Closed`], [`ChannelError::Stuck`] or [`ChannelError::System`].
    pub fn send_with(&self, message: &Tx, descriptors: &[BorrowedFd<'_>]) -> Result<(), ChannelError> {
        let bytes = prepare(message, descriptors.len())?;
        // The clock is asked only by who has to wait.
        let mut deadline = None;
        loop {
            match sys::send_packet(self.socket.as_fd(), &bytes, descriptors, false) {
                Ok(()) => return Ok(()),
                Err(Errno::AGAIN) => {
                    let deadline = *deadline.get_or_insert_with(|| Instant::now() + SEND_PATIENCE);
                    if !wait(self.socket.as_fd(), PollFlags::OUT, deadline)? {
                        return Err(ChannelError::Stuck);
                    }
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Sends a message or reports at once that the peer's queue is full: for senders that must never wait.
    ///
    /// # Errors
    /// As [`Sender::send_with`]; [`ChannelError::Stuck`] at once.
    pub fn try_send(&self, message: &Tx, descriptors: &[BorrowedFd<'_>]) -> Result<(), ChannelError> {
        let bytes = prepare(message, descriptors.len())?;
        Ok(sys::send_packet(self.socket.as_fd(), &bytes, descriptors, false)?)
    }
}

impl<Tx> AsFd for Sender<Tx> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl<Rx: Message> Receiver<Rx> {
    /// Waits for the next message.
    ///
    /// # Errors
    /// Any [`ChannelError`] but `TimedOut`, `Stuck` and `WrongUse`. After an error the channel must be dropped.
    pub fn receive(&mut self) -> Result<Received<Rx>, ChannelError> {
        self.receive_packet(true)
    }

    /// Waits for the next message until `deadline`.
    ///
    /// # Errors
    /// [`ChannelError::TimedOut`], or as [`Receiver::receive`].
    pub fn receive_until(&mut self, deadline: Instant) -> Result<Received<Rx>, ChannelError> {
        loop {
            match self.receive_packet(false) {
                Err(ChannelError::Stuck) => {
                    if !wait(self.socket.as_fd(), PollFlags::IN, deadline)? {
                        return Err(ChannelError::TimedOut);
                    }
                }
                other => return other,
            }
        }
    }

    /// Takes the next message if one is waiting.
    ///
    /// # Errors
    /// As [`Receiver::receive`].
    pub fn try_receive(&mut self) -> Result<Option<Received<Rx>>, ChannelError> {
        match self.receive_packet(false) {
            Ok(received) => Ok(Some(received)),
            Err(ChannelError::Stuck) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Ends the channel in both directions although others still hold it: whoever waits on any clone gets what is queued and
    /// then [`ChannelError::Closed`], and so does the peer.
    pub fn shut_down(&self) {
        // It fails only for a channel that is over.
        let _ = sys::shut_down(self.socket.as_fd());
    }

    fn receive_packet(&mut self, wait: bool) -> Result<Received<Rx>, ChannelError> {
        if self.buffer.is_empty() {
            self.buffer = vec![0; MAX_PACKET];
        }
        let packet = sys::receive_packet(self.socket.as_fd(), &mut self.buffer, Rx::MAX_DESCRIPTORS, wait)?;
        check(&self.buffer, packet)
    }
}

impl<Rx> AsFd for Receiver<Rx> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

pub(crate) fn prepare<Tx: Message>(message: &Tx, descriptors: usize) -> Result<Vec<u8>, ChannelError> {
    if message.descriptors() != descriptors || descriptors > sys::MAX_DESCRIPTORS {
        return Err(ChannelError::WrongUse);
    }
    Ok(codec::encode(message)?)
}

/// Judges a packet; descriptors that do not belong are closed by being dropped.
pub(crate) fn check<Rx: Message>(buffer: &[u8], packet: sys::Packet) -> Result<Received<Rx>, ChannelError> {
    if packet.descriptors_dropped {
        return Err(ChannelError::DescriptorsDropped);
    }
    if packet.truncated {
        return Err(ChannelError::Oversized);
    }
    if packet.length == 0 {
        return Err(ChannelError::Closed);
    }
    let bytes = buffer.get(..packet.length).ok_or(ChannelError::Oversized)?;
    let message: Rx = codec::decode(bytes)?;
    let expected = message.descriptors();
    let received = packet.descriptors.len();
    if expected != received {
        return Err(ChannelError::Descriptors { expected, received });
    }
    Ok(Received { message, descriptors: packet.descriptors })
}

/// Whether the socket became ready before the deadline.
pub(crate) fn wait(fd: BorrowedFd<'_>, flags: PollFlags, deadline: Instant) -> Result<bool, ChannelError> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let timeout = rustix::event::Timespec::try_from(left).map_err(|_| ChannelError::TimedOut)?;
        match rustix::event::poll(&mut [PollFd::new(&fd, flags)], Some(&timeout)) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}
