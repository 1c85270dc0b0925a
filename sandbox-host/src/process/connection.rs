//! A connection to a session process: a socket that came connected from the runner. It lives in the store of the tool call and
//! is closed with it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::{Ask, Place, ProcessError, What};
use crate::ids::millis;

/// The most bytes one read takes.
const MOST: usize = 1024 * 1024;

/// A connection as the component holds it.
#[allow(unreachable_pub, reason = "the generated bindings re-export it")]
pub struct Connection {
    stream: TcpStream,
    process_id: String,
    port: u16,
    opened: Instant,
    bytes_in: u64,
    bytes_out: u64,
    place: Arc<Place>,
    service: mpsc::UnboundedSender<Ask>,
    _permit: OwnedSemaphorePermit,
}

/// What is told of a connection when it is closed.
pub(crate) struct Closed {
    pub(crate) process_id: String,
    pub(crate) port: u16,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) duration_ms: u64,
}

impl Connection {
    /// Takes a connected, non-blocking socket. `permit` is its place among those of its call.
    ///
    /// # Errors
    /// The reactor refuses it.
    pub(crate) fn new(
        socket: OwnedFd,
        process_id: &str,
        port: u16,
        place: &Arc<Place>,
        permit: OwnedSemaphorePermit,
        service: mpsc::UnboundedSender<Ask>,
    ) -> std::io::Result<Self> {
        Ok(Connection {
            stream: TcpStream::from_std(socket.into())?,
            process_id: process_id.to_owned(),
            port,
            opened: Instant::now(),
            bytes_in: 0,
            bytes_out: 0,
            place: Arc::clone(place),
            service,
            _permit: permit,
        })
    }

    /// Up to `max_bytes` once there are any; none if the peer closed.
    pub(super) async fn read(
        &mut self,
        max_bytes: u32,
        timeout_ms: u32,
        deadline: Instant,
    ) -> Result<Vec<u8>, ProcessError> {
        let until = deadline.min(Instant::now() + Duration::from_millis(timeout_ms.into()));
        let mut bytes = vec![0; usize::try_from(max_bytes).unwrap_or(MOST).min(MOST)];
        if bytes.is_empty() {
            return Ok(bytes);
        }
        let read = async {
            loop {
                self.stream.readable().await?;
                match self.stream.try_read(&mut bytes) {
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    done => return done,
                }
            }
        };
        let count = tokio::time::timeout_at(until.into(), read)
            .await
            .map_err(|_| ProcessError::TimedOut)?
            .map_err(|_| closed())?;
        bytes.truncate(count);
        bytes.shrink_to_fit();
        self.bytes_in = self.bytes_in.saturating_add(count as u64);
        Ok(bytes)
    }

    /// Writes everything.
    pub(super) async fn write(&mut self, bytes: &[u8], deadline: Instant) -> Result<(), ProcessError> {
        let (mut rest, bytes_out) = (bytes, &mut self.bytes_out);
        let write = async {
            while !rest.is_empty() {
                let count = self.stream.write(rest).await?;
                *bytes_out = bytes_out.saturating_add(count as u64);
                rest = rest.get(count..).unwrap_or_default();
            }
            Ok::<(), std::io::Error>(())
        };
        tokio::time::timeout_at(deadline.into(), write)
            .await
            .map_err(|_| ProcessError::TimedOut)?
            .map_err(|_| closed())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let closed = Closed {
            process_id: std::mem::take(&mut self.process_id),
            port: self.port,
            bytes_in: self.bytes_in,
            bytes_out: self.bytes_out,
            duration_ms: millis(self.opened.elapsed()),
        };
        let (place, what) = (Arc::clone(&self.place), What::Closed(closed));
        // A service that is gone writes no lines either.
        let _ = self.service.send(Ask { place, deadline: self.opened, what });
    }
}

/// `docs/decisions.md`: a connection whose peer is gone.
fn closed() -> ProcessError {
    ProcessError::Failed("connection closed".to_owned())
}
