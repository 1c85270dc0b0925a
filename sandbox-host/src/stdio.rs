//! What a component prints: the beginning of each stream is kept and ends up in a log of the session, the rest is counted.
//! Printing never blocks and never fails, so that no guest can wait for a reader or learn that there is none.

use std::io::Write;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::io::AsyncWrite;
use wasmtime_wasi::async_trait;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

use crate::ids::millis;
use crate::results::SessionDirectory;

/// Bytes of one stream of one call that are kept.
pub(crate) const KEPT: usize = 64 * 1024;
/// Bytes a guest may hand over in one write; also bounds what `write-zeroes` makes the host allocate.
const PERMIT: usize = 64 * 1024;
/// Bytes of an artifact's name in a file name, which may have 255.
const NAME: usize = 200;

/// One of a component's two output streams. Clones write to the same place.
#[derive(Debug, Default, Clone)]
pub(crate) struct Sink(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    bytes: Vec<u8>,
    dropped: u64,
}

impl Sink {
    fn take(&self, bytes: &[u8]) {
        let mut kept = self.kept();
        let room = KEPT.saturating_sub(kept.bytes.len()).min(bytes.len());
        let (fits, rest) = bytes.split_at_checked(room).unwrap_or((&[], bytes));
        kept.bytes.extend_from_slice(fits);
        kept.dropped = kept.dropped.saturating_add(rest.len() as u64);
    }

    /// Nothing is left half done under this lock: a poisoned one is as good as any.
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl IsTerminal for Sink {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Sink {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }

    // The default would put a task and a buffer between the guest and this.
    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[async_trait]
impl Pollable for Sink {
    async fn ready(&mut self) {}
}

impl OutputStream for Sink {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.take(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(PERMIT)
    }
}

impl AsyncWrite for Sink {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        self.take(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Both output streams of a component.
#[derive(Debug, Default, Clone)]
pub(crate) struct Sinks {
    stdout: Sink,
    stderr: Sink,
}

/// The output of one call. Its log is written when it is dropped: a call that is cancelled ends in no other way.
pub(crate) struct Printed<'a> {
    directory: &'a SessionDirectory,
    artifact: &'a str,
    pub(crate) stdout: Sink,
    pub(crate) stderr: Sink,
}

impl<'a> Printed<'a> {
    pub(crate) fn new(directory: &'a SessionDirectory, artifact: &'a str) -> Self {
        Printed::into(directory, artifact, &Sinks::default())
    }

    /// The output of one call of a component that outlives it; what was printed between two calls belongs to the later.
    pub(crate) fn into(directory: &'a SessionDirectory, artifact: &'a str, sinks: &Sinks) -> Self {
        Printed { directory, artifact, stdout: sinks.stdout.clone(), stderr: sinks.stderr.clone() }
    }

    /// Takes what was printed: the log, unless there is nothing. What is counted comes first, where no guest can have written it.
    fn log(&self) -> Option<Vec<u8>> {
        let (stdout, stderr) =
            (std::mem::take(&mut *self.stdout.kept()), std::mem::take(&mut *self.stderr.kept()));
        if stdout.bytes.is_empty() && stderr.bytes.is_empty() {
            return None;
        }
        let mut log = Vec::new();
        for (name, kept) in [("stdout", &stdout), ("stderr", &stderr)] {
            if kept.dropped > 0 {
                let line = format!("Dropped: the last {} bytes of {name}\n", kept.dropped);
                log.extend_from_slice(line.as_bytes());
            }
        }
        log.extend_from_slice(b"Stdout:\n");
        log.extend_from_slice(&stdout.bytes);
        log.extend_from_slice(b"\nStderr:\n");
        log.extend_from_slice(&stderr.bytes);
        Some(log)
    }
}

impl Drop for Printed<'_> {
    fn drop(&mut self) {
        let Some(log) = self.log() else { return };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        if let Err(errno) = self.directory.write_log(&file_part(self.artifact), millis(now), &log) {
            // Not `eprintln!`, which panics if nobody reads.
            let _ = writeln!(
                std::io::stderr(),
                "sandbox-host: what {} printed is not kept: {errno}",
                self.artifact
            );
        }
    }
}

/// What of an artifact's name becomes part of a file name: the manifest allows `[a-z0-9-]`, anything else is not trusted
/// to have been checked.
fn file_part(artifact: &str) -> String {
    let safe = |c: char| if matches!(c, 'a'..='z' | '0'..='9' | '-') { c } else { '-' };
    artifact.chars().take(NAME).map(safe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Folder;

    /// Polls once, with a waker that does nothing: what is not ready now has blocked.
    fn at_once<T>(future: impl Future<Output = T>) -> T {
        let mut context = Context::from_waker(std::task::Waker::noop());
        match std::pin::pin!(future).poll(&mut context) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("it blocks"),
        }
    }

    #[test]
    fn a_stream_keeps_its_beginning_and_counts_the_rest() {
        for (writes, kept, dropped) in [
            (vec![], 0, 0),
            (vec![1, 2], 3, 0),
            (vec![KEPT], KEPT, 0),
            (vec![KEPT - 1, 3, 5], KEPT, 7),
            (vec![KEPT + 1], KEPT, 1),
        ] {
            let sink = Sink::default();
            let mut stream = sink.p2_stream();
            for (number, length) in writes.iter().enumerate() {
                stream.write(vec![b'0' + number as u8; *length].into()).unwrap();
            }
            let found = sink.kept();
            assert_eq!((found.bytes.len(), found.dropped), (kept, dropped), "{writes:?}");
            assert!(found.bytes.is_sorted(), "{writes:?}");
        }
    }

    #[test]
    fn a_full_stream_takes_more_without_blocking() {
        let sink = Sink::default();
        let mut stream = sink.p2_stream();
        let mut other = Box::into_pin(sink.async_stream());
        for _ in 0..100 {
            at_once(stream.ready());
            assert_eq!(at_once(stream.write_ready()).unwrap(), PERMIT);
            stream.write(Bytes::from(vec![b'x'; PERMIT])).unwrap();
            stream.flush().unwrap();
            at_once(stream.blocking_write_and_flush(Bytes::from_static(b"y"))).unwrap();
            let written = at_once(std::future::poll_fn(|cx| other.as_mut().poll_write(cx, b"zz"))).unwrap();
            assert_eq!(written, 2);
            at_once(std::future::poll_fn(|cx| other.as_mut().poll_flush(cx))).unwrap();
        }
        let found = sink.kept();
        assert_eq!((found.bytes.len(), found.bytes.capacity() <= 2 * KEPT), (KEPT, true));
        assert_eq!(found.dropped, 99 * PERMIT as u64 + 300);
    }

    #[test]
    fn a_log_is_written_once_something_was_printed_and_only_below_logs() {
        let folder = Folder::new();
        let session = SessionDirectory::open(folder.path()).unwrap();
        drop(Printed::new(&session, "silent"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let printed = Printed::new(&session, "../../Up/ü");
        printed.stderr.take(b"oops");
        printed.stdout.take(&[b'x'; KEPT + 7]);
        drop(printed);
        let logs: Vec<_> =
            std::fs::read_dir(folder.path().join("logs")).unwrap().map(Result::unwrap).collect();
        assert_eq!(logs.len(), 1);
        let name = logs[0].file_name().into_string().unwrap();
        assert!(name.starts_with("-------p---") && name.ends_with(".log"), "{name}");
        let expected =
            format!("Dropped: the last 7 bytes of stdout\nStdout:\n{}\nStderr:\noops", "x".repeat(KEPT));
        assert_eq!(std::fs::read_to_string(logs[0].path()).unwrap(), expected);
    }

    #[test]
    fn a_log_that_cannot_be_written_is_let_go() {
        let folder = Folder::new();
        std::fs::write(folder.path().join("logs"), "not a directory").unwrap();
        let session = SessionDirectory::open(folder.path()).unwrap();
        let printed = Printed::new(&session, "tool");
        printed.stdout.take(b"lost");
        drop(printed);
        assert_eq!(std::fs::read_to_string(folder.path().join("logs")).unwrap(), "not a directory");
    }

    #[test]
    fn a_name_loses_what_the_manifest_would_not_allow() {
        for (name, part) in [("file-tool2", "file-tool2"), ("../x", "---x"), ("a\0b", "a-b"), ("", "")] {
            assert_eq!(file_part(name), part);
        }
        assert_eq!(file_part(&"ü".repeat(1000)).len(), NAME);
    }
}
