//! What a session process prints: read as it comes, so that the process never waits for a reader; the newest part is kept.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use rustix::pipe::{PipeFlags, pipe_with};
use tokio::net::unix::pipe;

use crate::capture::NoPipe;

/// Bytes of a stream that are kept (seed: `read`).
pub(crate) const KEPT: usize = 1024 * 1024;
/// Bytes of one read: what a pipe holds unless it was enlarged.
const CHUNK: usize = 64 * 1024;

/// The newest bytes of a stream, and how many older ones were lost.
#[derive(Debug, Default)]
struct Ring {
    bytes: VecDeque<u8>,
    /// Since the last read.
    dropped: u64,
    /// Ever.
    dropped_in_all: u64,
    total: u64,
}

impl Ring {
    fn push(&mut self, bytes: &[u8]) {
        self.total = self.total.saturating_add(bytes.len() as u64);
        self.bytes.extend(bytes);
        self.lose(self.bytes.len().saturating_sub(KEPT));
    }

    fn lose(&mut self, count: usize) {
        self.bytes.drain(..count);
        self.dropped = self.dropped.saturating_add(count as u64);
        self.dropped_in_all = self.dropped_in_all.saturating_add(count as u64);
    }

    fn take(&mut self, most: usize) -> (Vec<u8>, u64) {
        let taken = self.bytes.drain(..most.min(self.bytes.len())).collect();
        if self.bytes.is_empty() {
            // What will come is rarely as much as what was.
            self.bytes = VecDeque::new();
        }
        (taken, std::mem::take(&mut self.dropped))
    }
}

/// One stream of a session process.
pub(crate) struct Stream {
    /// Until it ended.
    pipe: RefCell<Option<Rc<pipe::Receiver>>>,
    ring: RefCell<Ring>,
}

impl Stream {
    /// Makes the pipe: the writing end is for the program. Somebody has to [`Stream::pump`].
    ///
    /// # Errors
    /// [`NoPipe`].
    pub(crate) fn open() -> Result<(Rc<Self>, OwnedFd), NoPipe> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(std::io::Error::from)?;
        let pipe = RefCell::new(Some(Rc::new(pipe::Receiver::from_owned_fd(reader)?)));
        Ok((Rc::new(Stream { pipe, ring: RefCell::default() }), writer))
    }

    /// Reads until the pipe ends, and closes it.
    pub(crate) async fn pump(self: Rc<Self>) {
        let Some(pipe) = self.pipe.borrow().clone() else { return };
        let mut chunk = vec![0; CHUNK];
        while pipe.readable().await.is_ok() {
            match pipe.try_read(&mut chunk) {
                Ok(count @ 1..) => {
                    self.ring.borrow_mut().push(chunk.get(..count).unwrap_or_default());
                    // Somebody who prints without end has no more of this thread than anybody else.
                    tokio::task::yield_now().await;
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Ok(_) | Err(_) => break,
            }
        }
        self.pipe.take();
    }

    /// Reads what is in the pipe now, without waiting for the reactor to say so: what a process printed before it ended is there
    /// when its end is known. At most as much as is kept, for somebody may go on printing.
    pub(crate) fn catch_up(&self) {
        let Some(pipe) = self.pipe.borrow().clone() else { return };
        let mut chunk = vec![0; CHUNK];
        let mut taken = 0;
        while taken <= KEPT
            && let Ok(count @ 1..) = rustix::io::read(pipe.as_fd(), &mut chunk)
        {
            self.ring.borrow_mut().push(chunk.get(..count).unwrap_or_default());
            taken += count;
        }
    }

    /// Takes up to `most` of the oldest bytes that wait, and the number of those lost since the last time.
    pub(crate) fn take(&self, most: usize) -> (Vec<u8>, u64) {
        self.ring.borrow_mut().take(most)
    }

    /// Bytes that wait to be read.
    pub(crate) fn waiting(&self) -> usize {
        self.ring.borrow().bytes.len()
    }

    /// Gives up what waits.
    pub(crate) fn forget(&self) {
        let mut ring = self.ring.borrow_mut();
        let waiting = ring.bytes.len();
        ring.lose(waiting);
        ring.bytes = VecDeque::new();
    }

    /// Bytes printed, and bytes of them that nobody could read.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let ring = self.ring.borrow();
        (ring.total, ring.dropped_in_all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_mebibyte_is_kept_and_the_rest_is_counted_until_it_is_read() {
        let mut ring = Ring::default();
        ring.push(b"old");
        ring.push(&vec![b'x'; KEPT - 1]);
        assert_eq!(ring.bytes.len(), KEPT);
        let (taken, dropped) = ring.take(3);
        assert_eq!((taken.as_slice(), dropped), (&b"dxx"[..], 2));
        let (taken, dropped) = ring.take(0);
        assert_eq!((taken.len(), dropped), (0, 0), "what was told once is not told again");
        ring.push(b"abcde");
        let (taken, dropped) = ring.take(usize::MAX);
        assert_eq!((taken.len(), dropped), (KEPT, 2));
        assert!(taken.ends_with(b"xabcde"));
        assert_eq!((ring.take(9), ring.total, ring.dropped_in_all), ((vec![], 0), KEPT as u64 + 7, 4));
        ring.push(&vec![b'y'; 3 * KEPT]);
        let (taken, dropped) = ring.take(usize::MAX);
        assert_eq!((taken.len(), dropped), (KEPT, 2 * KEPT as u64));
    }
}
