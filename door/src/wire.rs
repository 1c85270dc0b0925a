//! How are answers moved to a client that may be slow, gone or still sending? Pace, disconnects, lingering.

use std::future::{Future, poll_fn};
use std::io::{Error, ErrorKind, IoSlice};
use std::os::unix::fs::FileExt;
use std::pin::{Pin, pin};

use tokio::io::AsyncWrite;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::client::Client;
use crate::limits::Limits;

/// Bytes of a memory file that are held on their way out.
const CHUNK: usize = 128 * 1024;

/// The pace a client must keep while it holds something up: so many bytes in every period.
#[derive(Debug)]
pub struct Pace {
    period: std::time::Duration,
    bytes: usize,
    ends: Instant,
    moved: usize,
}

impl Pace {
    /// Starts the first period.
    #[must_use]
    pub fn new(bytes: usize, period: std::time::Duration) -> Self {
        Pace { period, bytes, ends: Instant::now() + period, moved: 0 }
    }

    /// Counts bytes that moved.
    pub fn moved(&mut self, bytes: usize) {
        self.moved = self.moved.saturating_add(bytes);
    }

    /// Starts a new period, if this one is over: for a time in which the client did not hold anything up.
    pub fn renew(&mut self) {
        let now = Instant::now();
        if self.ends <= now {
            self.ends = now + self.period;
            self.moved = 0;
        }
    }

    /// Waits for something the client does.
    ///
    /// # Errors
    /// `TimedOut` once a period ended in which too little moved.
    pub async fn wait<T>(&mut self, event: impl Future<Output = T>) -> std::io::Result<T> {
        let mut event = pin!(event);
        loop {
            match timeout_at(self.ends, event.as_mut()).await {
                Ok(value) => return Ok(value),
                Err(_) if self.moved < self.bytes => return Err(ErrorKind::TimedOut.into()),
                Err(_) => {
                    self.ends = Instant::now() + self.period;
                    self.moved = 0;
                }
            }
        }
    }
}

/// Writes a head and its body, in one call where the socket takes them.
///
/// # Errors
/// The socket's error, or `TimedOut` for a client below its pace.
pub async fn write(client: &mut Client, head: &[u8], body: &[u8], limits: &Limits) -> std::io::Result<()> {
    write_paced(client, head, body, &mut Pace::new(limits.pace_bytes, limits.pace_time)).await
}

async fn write_paced(client: &mut Client, head: &[u8], body: &[u8], pace: &mut Pace) -> std::io::Result<()> {
    let mut done = 0;
    while done < head.len() + body.len() {
        let head_left = head.get(done..).unwrap_or(&[]);
        let body_left = body.get(done.saturating_sub(head.len())..).unwrap_or(&[]);
        match client.try_write(&[IoSlice::new(head_left), IoSlice::new(body_left)]) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => {
                done += written;
                pace.moved(written);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => pace.wait(client.writable()).await??,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes a head and a memory file of `length` bytes, a bounded piece at a time. The file is read, not mapped: a file that
/// shrank under a mapping would end this process.
///
/// # Errors
/// As [`write`]; `UnexpectedEof` if the file is shorter.
pub async fn write_file(
    client: &mut Client,
    head: &[u8],
    file: &std::fs::File,
    length: u64,
    limits: &Limits,
) -> std::io::Result<()> {
    let mut pace = Pace::new(limits.pace_bytes, limits.pace_time);
    let mut chunk = vec![0; CHUNK];
    let mut offset = 0;
    let mut head = head;
    while offset < length || !head.is_empty() {
        let wanted = usize::try_from(length - offset).unwrap_or(usize::MAX).min(CHUNK);
        let piece = chunk.get_mut(..wanted).unwrap_or_default();
        file.read_exact_at(piece, offset)?;
        write_paced(client, head, piece, &mut pace).await?;
        head = &[];
        offset += wanted as u64;
    }
    Ok(())
}

/// Completes when the client is gone: at once after a reset, and after `limits.half_closed` when it only ended its sending
/// side, as a client does that sends one request and waits. Bytes that still arrive are thrown away, up to
/// `limits.linger_bytes`.
pub async fn gone(client: &mut Client, limits: &Limits) {
    if discard(client, limits.linger_bytes).await == Discarded::Ended {
        let _ = tokio::time::timeout(limits.half_closed, client.failed()).await;
        return;
    }
    client.failed().await;
}

/// Ends a connection whose client may still be sending: closing with unread bytes resets the connection, and a reset can
/// overtake the answer.
pub async fn linger(client: &mut Client, limits: &Limits) {
    let until = Instant::now() + limits.linger_time;
    let Ok(stream) = client.watched() else { return };
    if poll_fn(|context| Pin::new(&mut *stream).poll_shutdown(context)).await.is_err() {
        return;
    }
    if timeout_at(until, discard(client, limits.linger_bytes)).await == Ok(Discarded::Full) {
        // Not reading any more slows the client down; meanwhile it can read its answer.
        tokio::select! {
            () = sleep_until(until) => {}
            () = client.failed() => {}
        }
    }
}

/// Whether bytes wait that nobody read.
#[must_use]
pub fn has_unread(client: &mut Client) -> bool {
    matches!(client.try_read(&mut [0]), Ok(read) if read > 0)
}

#[derive(Debug, PartialEq, Eq)]
enum Discarded {
    /// The client ended its sending side, or the connection failed.
    Ended,
    /// As much was thrown away as may be.
    Full,
}

async fn discard(client: &mut Client, limit: usize) -> Discarded {
    let mut left = limit;
    loop {
        let mut buffer = [0; 4096];
        match client.try_read(&mut buffer) {
            Ok(0) => return Discarded::Ended,
            Ok(read) if read >= left => return Discarded::Full,
            Ok(read) => left -= read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if client.readable().await.is_err() {
                    return Discarded::Ended;
                }
            }
            Err(_) => return Discarded::Ended,
        }
    }
}

/// Reads what has arrived, behind what is in `buffer` already.
///
/// # Errors
/// The socket's error; `UnexpectedEof` at the end.
pub async fn read_more(client: &mut Client, buffer: &mut Vec<u8>) -> std::io::Result<()> {
    loop {
        let mut piece = [0; 4096];
        match client.try_read(&mut piece) {
            Ok(0) => return Err(Error::from(ErrorKind::UnexpectedEof)),
            Ok(read) => {
                buffer.extend_from_slice(piece.get(..read).unwrap_or_default());
                return Ok(());
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => client.readable().await?,
            Err(error) => return Err(error),
        }
    }
}
