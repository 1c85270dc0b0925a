//! A client's socket. It is watched by the runtime only once something on it blocked: most requests arrive whole and their
//! answers leave whole, and watching costs more than either.

use std::io::{Error, ErrorKind, IoSlice, Read, Write};
use std::os::fd::OwnedFd;

use tokio::io::Interest;

/// A connection, non-blocking.
#[derive(Debug)]
pub struct Client(Socket);

#[derive(Debug)]
enum Socket {
    /// Not watched.
    Plain(std::net::TcpStream),
    /// Watched from now on.
    Watched(tokio::net::TcpStream),
    /// It could not be watched, and is closed.
    Lost,
}

impl From<tokio::net::TcpStream> for Client {
    fn from(stream: tokio::net::TcpStream) -> Self {
        Client(Socket::Watched(stream))
    }
}

impl Client {
    /// Takes a connection that was accepted without blocking.
    #[must_use]
    pub fn new(socket: OwnedFd) -> Self {
        Client(Socket::Plain(socket.into()))
    }

    /// The socket, watched.
    ///
    /// # Errors
    /// The error of the reactor.
    pub fn watched(&mut self) -> std::io::Result<&mut tokio::net::TcpStream> {
        if let Socket::Plain(_) = &self.0
            && let Socket::Plain(socket) = std::mem::replace(&mut self.0, Socket::Lost)
        {
            self.0 = Socket::Watched(tokio::net::TcpStream::from_std(socket)?);
        }
        match &mut self.0 {
            Socket::Watched(stream) => Ok(stream),
            Socket::Plain(_) | Socket::Lost => Err(ErrorKind::NotConnected.into()),
        }
    }

    /// Gives the socket away, watched.
    ///
    /// # Errors
    /// The error of the reactor.
    pub fn into_watched(mut self) -> std::io::Result<tokio::net::TcpStream> {
        self.watched()?;
        match self.0 {
            Socket::Watched(stream) => Ok(stream),
            Socket::Plain(_) | Socket::Lost => Err(ErrorKind::NotConnected.into()),
        }
    }

    /// Reads what is there.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is; the socket's error.
    pub fn try_read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            let read = match &mut self.0 {
                Socket::Plain(socket) => socket.read(buffer),
                Socket::Watched(stream) => return stream.try_read(buffer),
                Socket::Lost => return Err(ErrorKind::NotConnected.into()),
            };
            match read {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    /// Writes what is taken at once.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is; the socket's error.
    pub fn try_write(&mut self, pieces: &[IoSlice<'_>]) -> std::io::Result<usize> {
        loop {
            let written = match &mut self.0 {
                Socket::Plain(socket) => socket.write_vectored(pieces),
                Socket::Watched(stream) => return stream.try_write_vectored(pieces),
                Socket::Lost => return Err(ErrorKind::NotConnected.into()),
            };
            match written {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    /// Waits until something can be read.
    ///
    /// # Errors
    /// The error of the reactor.
    pub async fn readable(&mut self) -> std::io::Result<()> {
        self.watched()?.readable().await
    }

    /// Waits until something can be written.
    ///
    /// # Errors
    /// The error of the reactor.
    pub async fn writable(&mut self) -> std::io::Result<()> {
        self.watched()?.writable().await
    }

    /// Waits until the connection has failed.
    pub async fn failed(&mut self) {
        if let Ok(stream) = self.watched() {
            let _: Result<_, Error> = stream.ready(Interest::ERROR).await;
        }
    }
}
