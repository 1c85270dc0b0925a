//! Whole lines of a file that may still grow.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{OFlags, inotify};

/// No record is longer than this; what is, is none.
const LONGEST: u64 = 64 * 1024 * 1024;

/// A line without its end, or why it is none.
pub(crate) enum Found {
    Line(Vec<u8>),
    /// More than [`LONGEST`] bytes.
    TooLong,
    /// The end of what there is, after so many bytes without a line's end.
    End(usize),
}

/// The lines of one file.
pub(crate) struct Lines {
    reader: BufReader<File>,
    /// A line whose end has not come yet.
    begun: Vec<u8>,
    watch: Option<OwnedFd>,
}

impl Lines {
    /// Opens a regular file; with `follow`, [`Lines::wait`] tells when it grew.
    ///
    /// # Errors
    /// Those of opening and watching.
    pub(crate) fn open(path: &Path, follow: bool) -> io::Result<Self> {
        // Watched first, so that nothing that is written after the opening goes unseen.
        let watch = match follow {
            true => {
                let watch = inotify::init(inotify::CreateFlags::CLOEXEC)?;
                inotify::add_watch(&watch, path, inotify::WatchFlags::MODIFY)?;
                Some(watch)
            }
            false => None,
        };
        // A pipe that nobody writes to would hold up the opening.
        let file =
            OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        Ok(Lines { reader: BufReader::with_capacity(1 << 16, file), begun: Vec::new(), watch })
    }

    /// The next line.
    ///
    /// # Errors
    /// Those of reading.
    pub(crate) fn next(&mut self) -> io::Result<Found> {
        let room = LONGEST.saturating_sub(self.begun.len() as u64);
        (&mut self.reader).take(room).read_until(b'\n', &mut self.begun)?;
        if self.begun.last() == Some(&b'\n') {
            self.begun.pop();
            return Ok(Found::Line(std::mem::take(&mut self.begun)));
        }
        if self.begun.len() as u64 >= LONGEST {
            return Ok(Found::TooLong);
        }
        Ok(Found::End(self.begun.len()))
    }

    /// Waits until the file was written to.
    ///
    /// # Errors
    /// Those of the watch.
    pub(crate) fn wait(&self) -> io::Result<()> {
        let Some(watch) = &self.watch else { return Err(io::Error::other("it is not watched")) };
        let mut events = [0; 4096];
        rustix::io::retry_on_intr(|| rustix::io::read(watch, &mut events))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_line_in_pieces_is_one_line_once_it_is_whole() {
        let path = std::env::temp_dir().join(format!("client-lines-{}", std::process::id()));
        let mut file = File::create(&path).unwrap();
        let mut lines = Lines::open(&path, true).unwrap();
        assert!(matches!(lines.next().unwrap(), Found::End(0)));
        file.write_all(b"one\ntw").unwrap();
        lines.wait().unwrap();
        assert!(matches!(lines.next().unwrap(), Found::Line(line) if line == b"one"));
        assert!(matches!(lines.next().unwrap(), Found::End(2)));
        let writer = std::thread::spawn(move || file.write_all(b"o\n\n").unwrap());
        lines.wait().unwrap();
        assert!(matches!(lines.next().unwrap(), Found::Line(line) if line == b"two"));
        assert!(matches!(lines.next().unwrap(), Found::Line(line) if line.is_empty()));
        writer.join().unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(Lines::open(Path::new("/dev/null"), false).is_err());
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR).unwrap();
        assert!(Lines::open(&path, false).is_err(), "without waiting for a writer");
        std::fs::remove_file(path).unwrap();
    }
}
