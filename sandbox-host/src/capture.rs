//! Reading what a program prints while it runs: the beginning is kept, all of it is read and counted.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::task::{JoinHandle, spawn_local};

/// How long a pipe may stay open after its program and all it started are dead.
const DRAIN: Duration = Duration::from_secs(1);
/// Bytes of one read: what a pipe holds.
const CHUNK: usize = 64 * 1024;

/// There is no pipe for a program: nearly always because this process has no descriptor left, which ends when a call does.
#[derive(Debug, thiserror::Error)]
#[error("a pipe could not be made: {0}")]
pub(crate) struct NoPipe(#[from] std::io::Error);

/// What was read of one stream.
#[derive(Debug, Default, Clone)]
pub(crate) struct Captured {
    /// The beginning.
    pub(crate) bytes: Vec<u8>,
    /// Bytes of the whole.
    pub(crate) total: u64,
}

impl Captured {
    /// Whether there was more than was kept.
    pub(crate) fn is_cut(&self) -> bool {
        self.total > self.bytes.len() as u64
    }
}

/// A pipe being read to its end.
pub(crate) struct Capture {
    captured: Rc<RefCell<Captured>>,
    reader: JoinHandle<()>,
}

impl Capture {
    /// Makes the pipe and starts reading, to keep the first `kept` bytes: the writing end is for the program.
    ///
    /// # Errors
    /// [`NoPipe`].
    pub(crate) fn start(kept: usize) -> Result<(Self, OwnedFd), NoPipe> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(std::io::Error::from)?;
        let reader = pipe::Receiver::from_owned_fd(reader)?;
        let captured = Rc::new(RefCell::new(Captured::default()));
        let reader = spawn_local(drain(reader, Rc::clone(&captured), kept));
        Ok((Capture { captured, reader }, writer))
    }

    /// What was read once the pipe has ended, or after [`DRAIN`] if something outside the runner's reach holds it.
    pub(crate) async fn finish(mut self) -> Captured {
        if tokio::time::timeout(DRAIN, &mut self.reader).await.is_err() {
            self.reader.abort();
        }
        self.captured.take()
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

async fn drain(mut reader: pipe::Receiver, captured: Rc<RefCell<Captured>>, kept: usize) {
    let mut chunk = vec![0; CHUNK];
    while let Ok(count @ 1..) = reader.read(&mut chunk).await {
        let mut captured = captured.borrow_mut();
        captured.total += count as u64;
        let keep = count.min(kept.saturating_sub(captured.bytes.len()));
        captured.bytes.extend_from_slice(chunk.get(..keep).unwrap_or_default());
    }
}

/// Bytes on their way to a program's stdin; it ends when they are written, or when this is dropped.
pub(crate) struct Feed(JoinHandle<()>);

impl Feed {
    /// Makes the pipe and starts writing: the reading end is for the program.
    ///
    /// # Errors
    /// [`NoPipe`].
    pub(crate) fn start(bytes: Vec<u8>) -> Result<(Self, OwnedFd), NoPipe> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(std::io::Error::from)?;
        let mut writer = pipe::Sender::from_owned_fd(writer)?;
        let feed = spawn_local(async move {
            // A program need not read its input.
            let _ = writer.write_all(&bytes).await;
        });
        Ok((Feed(feed), reader))
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.0.abort();
    }
}
