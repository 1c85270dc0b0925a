//! The tokio front end of a channel: the same packets and checks as [`crate::channel`], waiting on the runtime's reactor.

use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::channel::{Channel, ChannelError, Message, Received, check, prepare};
use crate::codec::MAX_PACKET;
use crate::sys;

/// The sending half on a tokio runtime; clones share one socket.
#[derive(Debug)]
pub struct AsyncSender<Tx> {
    socket: Arc<Socket>,
    marker: PhantomData<fn(Tx)>,
}

/// The receiving half on a tokio runtime.
#[derive(Debug)]
pub struct AsyncReceiver<Rx> {
    socket: Arc<Socket>,
    buffer: Vec<u8>,
    marker: PhantomData<fn() -> Rx>,
}

/// One socket. Whoever waits for messages is not to be woken whenever the peer has read one, so room for sending is watched
/// under a descriptor of its own, and only from the first time on that there was none.
#[derive(Debug)]
struct Socket {
    readable: AsyncFd<OwnedFd>,
    writable: OnceLock<AsyncFd<OwnedFd>>,
}

impl Socket {
    /// The registration for sending; on the runtime of whoever calls first.
    fn writable(&self) -> std::io::Result<&AsyncFd<OwnedFd>> {
        if let Some(writable) = self.writable.get() {
            return Ok(writable);
        }
        let writable = sys::register(self.readable.get_ref().try_clone()?, Interest::WRITABLE)?;
        Ok(self.writable.get_or_init(|| writable))
    }
}

impl<Tx> Clone for AsyncSender<Tx> {
    fn clone(&self) -> Self {
        AsyncSender { socket: Arc::clone(&self.socket), marker: PhantomData }
    }
}

/// Registers a channel with the current runtime.
///
/// # Errors
/// [`ChannelError::System`] if the reactor refuses the descriptor, [`ChannelError::WrongUse`] while it is shared.
pub fn split<Tx: Message, Rx: Message>(
    channel: Channel<Tx, Rx>,
) -> Result<(AsyncSender<Tx>, AsyncReceiver<Rx>), ChannelError> {
    let descriptor = channel.into_descriptor()?;
    let readable = sys::register(descriptor, Interest::READABLE).map_err(ChannelError::System)?;
    let socket = Arc::new(Socket { readable, writable: OnceLock::new() });
    Ok((
        AsyncSender { socket: Arc::clone(&socket), marker: PhantomData },
        AsyncReceiver { socket, buffer: vec![0; MAX_PACKET], marker: PhantomData },
    ))
}

impl<Tx: Message> AsyncSender<Tx> {
    /// Sends a message that carries no descriptors if there is room for it now.
    ///
    /// # Errors
    /// As [`crate::Sender::try_send`]: [`ChannelError::Stuck`] without room.
    pub fn try_send(&self, message: &Tx) -> Result<(), ChannelError> {
        let bytes = prepare(message, 0)?;
        Ok(sys::send_packet(self.socket.readable.get_ref().as_fd(), &bytes, &[], false)?)
    }

    /// Sends a message that carries no descriptors.
    ///
    /// # Errors
    /// See [`AsyncSender::send_with`].
    pub async fn send(&self, message: &Tx) -> Result<(), ChannelError> {
        self.send_with(message, &[]).await
    }

    /// Sends a message with its descriptors once the peer's queue has room. The caller bounds the wait.
    ///
    /// # Errors
    /// As [`crate::Sender::send_with`], without `Stuck`.
    pub async fn send_with(&self, message: &Tx, descriptors: &[BorrowedFd<'_>]) -> Result<(), ChannelError> {
        let bytes = prepare(message, descriptors.len())?;
        match sys::send_packet(self.socket.readable.get_ref().as_fd(), &bytes, descriptors, false) {
            Err(rustix::io::Errno::AGAIN) => {}
            sent => return Ok(sent?),
        }
        let socket = self.socket.writable().map_err(ChannelError::System)?;
        loop {
            let mut guard = socket.writable().await.map_err(ChannelError::System)?;
            match guard.try_io(|socket| {
                sys::send_packet(socket.get_ref().as_fd(), &bytes, descriptors, false)
                    .map_err(std::io::Error::from)
            }) {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => return Err(from_io(error)),
                Err(_would_block) => {}
            }
        }
    }
}

impl<Rx: Message> AsyncReceiver<Rx> {
    /// Waits for the next message. Dropping the future loses nothing: a packet is taken whole or not at all.
    ///
    /// # Errors
    /// As [`crate::Receiver::receive`].
    pub async fn receive(&mut self) -> Result<Received<Rx>, ChannelError> {
        loop {
            let mut guard = self.socket.readable.readable().await.map_err(ChannelError::System)?;
            let buffer = &mut self.buffer;
            match guard.try_io(|socket| {
                sys::receive_packet(socket.get_ref().as_fd(), buffer, Rx::MAX_DESCRIPTORS, false)
                    .map_err(std::io::Error::from)
            }) {
                Ok(Ok(packet)) => return check(&self.buffer, packet),
                Ok(Err(error)) => return Err(from_io(error)),
                Err(_would_block) => {}
            }
        }
    }
}

fn from_io(error: std::io::Error) -> ChannelError {
    match rustix::io::Errno::from_io_error(&error) {
        Some(errno) => errno.into(),
        None => ChannelError::System(error),
    }
}
