//! How does hyper get a connection whose first bytes were read already? A socket that begins with those bytes, and that
//! fails once the client is below its pace.

use std::future::Future;
use std::io::{ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::rt::{Read, ReadBufCursor, Write};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

use crate::limits::Limits;

/// The connection as hyper sees it.
#[derive(Debug)]
pub struct Replay {
    /// The socket.
    pub stream: TcpStream,
    first: Vec<u8>,
    taken: usize,
    period: std::time::Duration,
    bytes: usize,
    /// Armed while the client does not take everything that is offered.
    held_up: Option<Pin<Box<Sleep>>>,
    moved: usize,
}

impl Replay {
    /// A connection that begins with `first`.
    #[must_use]
    pub fn new(stream: TcpStream, first: Vec<u8>, limits: &Limits) -> Self {
        Replay {
            stream,
            first,
            taken: 0,
            period: limits.pace_time,
            bytes: limits.pace_bytes,
            held_up: None,
            moved: 0,
        }
    }

    /// Judges one attempt to write `offered` bytes.
    fn paced(
        &mut self,
        context: &mut Context<'_>,
        offered: usize,
        attempt: Poll<Result<usize>>,
    ) -> Poll<Result<usize>> {
        match attempt {
            Poll::Ready(Ok(written)) if written >= offered => {
                self.held_up = None;
                Poll::Ready(Ok(written))
            }
            Poll::Ready(Ok(written)) => {
                self.arm();
                self.moved = self.moved.saturating_add(written);
                Poll::Ready(Ok(written))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                self.arm();
                if let Some(sleep) = &mut self.held_up {
                    while sleep.as_mut().poll(context).is_ready() {
                        if self.moved < self.bytes {
                            return Poll::Ready(Err(ErrorKind::TimedOut.into()));
                        }
                        self.moved = 0;
                        sleep.as_mut().reset(Instant::now() + self.period);
                    }
                }
                Poll::Pending
            }
        }
    }

    fn arm(&mut self) {
        if self.held_up.is_none() {
            self.held_up = Some(Box::pin(sleep(self.period)));
            self.moved = 0;
        }
    }
}

impl Read for Replay {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut cursor: ReadBufCursor<'_>,
    ) -> Poll<Result<()>> {
        let rest = self.first.get(self.taken..).unwrap_or_default();
        if !rest.is_empty() {
            let piece = rest.get(..rest.len().min(cursor.remaining())).unwrap_or_default();
            cursor.put_slice(piece);
            let taken = piece.len();
            self.taken += taken;
            return Poll::Ready(Ok(()));
        }
        let mut space = [0; 8192];
        let room = space.len().min(cursor.remaining());
        let mut buffer = ReadBuf::new(space.get_mut(..room).unwrap_or_default());
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer))?;
        cursor.put_slice(buffer.filled());
        Poll::Ready(Ok(()))
    }
}

impl Write for Replay {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        // One system call for every answer, so that the filter needs no other.
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let offered = bytes.iter().map(|slice| slice.len()).sum();
        let attempt = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.paced(context, offered, attempt)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
