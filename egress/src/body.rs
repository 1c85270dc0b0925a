//! The request body: bytes of a pipe until its end, or exactly as many as were announced.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};
use tokio::net::unix::pipe::Receiver;

/// The most bytes read at once: what a pipe holds.
const PIECE: usize = 64 * 1024;

/// A request body.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pipe: Receiver,
    /// Bytes that were read already.
    first: Option<Bytes>,
    /// How many bytes are still to come, where that was announced.
    left: Option<u64>,
    ended: bool,
}

impl Outgoing {
    /// A body of `length` bytes, or of unknown length.
    ///
    /// With `may_be_absent` (a method that usually has no body) the first bytes, or the end, are waited for, so that a request
    /// without a body is not sent as one with an empty one.
    ///
    /// # Errors
    /// The error of the read.
    pub(crate) async fn new(
        mut pipe: Receiver,
        length: Option<u64>,
        may_be_absent: bool,
    ) -> io::Result<Self> {
        let mut first = None;
        let mut left = length;
        if length.is_none() && may_be_absent {
            let mut piece = BytesMut::with_capacity(PIECE);
            pipe.read_buf(&mut piece).await?;
            match piece.is_empty() {
                true => left = Some(0),
                false => first = Some(piece.freeze()),
            }
        }
        Ok(Outgoing { pipe, first, left, ended: false })
    }

    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Bytes>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Ok(first));
        }
        let mut piece = vec![0; PIECE];
        let mut buffer = ReadBuf::new(&mut piece);
        ready!(Pin::new(&mut self.pipe).poll_read(context, &mut buffer))?;
        let length = buffer.filled().len();
        piece.truncate(length);
        Poll::Ready(Ok(piece.into()))
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.ended || self.left == Some(0) {
            return Poll::Ready(None);
        }
        let mut piece = ready!(self.poll_piece(context))?;
        let length = piece.len() as u64;
        match self.left {
            _ if piece.is_empty() => self.ended = true,
            // What goes beyond the announced length is not sent.
            Some(left) if length > left => {
                piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                self.left = Some(0);
            }
            Some(left) => self.left = Some(left - length),
            None => {}
        }
        match (self.ended, self.left) {
            (true, Some(_)) => Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into()))),
            (true, None) => Poll::Ready(None),
            (false, _) => Poll::Ready(Some(Ok(Frame::data(piece)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.left == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map(SizeHint::with_exact).unwrap_or_default()
    }
}
