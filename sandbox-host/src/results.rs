//! Files this process writes into the session directory: the last result, and logs of long output. Programs can write there
//! too, so nothing is opened through a link and nothing of theirs is overwritten in place. No file holds a peer handle.

use std::borrow::Cow;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, mkdirat, openat, renameat, unlinkat};
use rustix::io::Errno;

/// How many names a log tries.
const ATTEMPTS: u64 = 100;

/// The session directory, held open.
pub(crate) struct SessionDirectory {
    root: OwnedFd,
}

impl SessionDirectory {
    /// Opens it.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn open(path: &Path) -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(SessionDirectory { root: openat(CWD, path, flags, Mode::empty())? })
    }

    /// The directory itself, for one who only looks.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn root(&self) -> std::io::Result<OwnedFd> {
        self.root.try_clone()
    }

    /// Replaces `out/result.txt`.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn write_result(&self, text: &str) -> Result<(), Errno> {
        const TEMPORARY: &str = ".result.txt.new";
        let out = self.directory("out")?;
        let create = || create(&out, TEMPORARY, text.as_bytes());
        match create() {
            // Left by an earlier attempt that was cut short.
            Err(Errno::EXIST) => {
                unlinkat(&out, TEMPORARY, AtFlags::empty())?;
                create()?;
            }
            other => other?,
        }
        renameat(&out, TEMPORARY, &out, "result.txt")
    }

    /// Writes `logs/<kind>-<number>.log`, or the next free number; returns the name.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn write_log(&self, kind: &str, number: u64, bytes: &[u8]) -> Result<String, Errno> {
        let logs = self.directory("logs")?;
        for number in number..number.saturating_add(ATTEMPTS) {
            let name = format!("{kind}-{number}.log");
            match create(&logs, &name, bytes) {
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
                Ok(()) => return Ok(name),
            }
        }
        Err(Errno::EXIST)
    }

    fn directory(&self, name: &str) -> Result<OwnedFd, Errno> {
        match mkdirat(&self.root, name, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&self.root, name, flags, Mode::empty())
    }
}

fn create(directory: &OwnedFd, name: &str, bytes: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(directory, name, flags, Mode::from_raw_mode(0o600))?;
    File::from(file)
        .write_all(&redacted(bytes))
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// The bytes with `<handle:<handle_id>>` for every handle. A handle is ASCII: none extends over bytes that are no text.
fn redacted(bytes: &[u8]) -> Cow<'_, [u8]> {
    if !bytes.windows(handle::TAG.len()).any(|window| window == handle::TAG.as_bytes()) {
        return Cow::Borrowed(bytes);
    }
    let mut out = Vec::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        out.extend_from_slice(handle::redact(chunk.valid()).as_bytes());
        out.extend_from_slice(chunk.invalid());
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Folder;

    #[test]
    fn a_result_replaces_the_last_one_and_no_link_is_followed() {
        let folder = Folder::new();
        let session = SessionDirectory::open(folder.path()).unwrap();
        session.write_result("one").unwrap();
        std::fs::write(folder.path().join("out/.result.txt.new"), "left over").unwrap();
        session.write_result("two").unwrap();
        assert_eq!(std::fs::read_to_string(folder.path().join("out/result.txt")).unwrap(), "two");
        let elsewhere = Folder::new();
        std::fs::remove_dir_all(folder.path().join("out")).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), folder.path().join("out")).unwrap();
        assert!(session.write_result("three").is_err());
        assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    }

    #[test]
    fn logs_of_one_moment_get_different_names() {
        let folder = Folder::new();
        let session = SessionDirectory::open(folder.path()).unwrap();
        assert_eq!(session.write_log("shell", 7, b"a").unwrap(), "shell-7.log");
        assert_eq!(session.write_log("shell", 7, b"b").unwrap(), "shell-8.log");
        assert_eq!(std::fs::read(folder.path().join("logs/shell-7.log")).unwrap(), b"a");
    }

    #[test]
    fn no_file_holds_a_handle() {
        let folder = Folder::new();
        let session = SessionDirectory::open(folder.path()).unwrap();
        let id = handle::handle_id("mh1.eyJ9.AAAA");
        session.write_log("shell", 1, b"\xffmh1.eyJ9.AAAA\xfe mh1. \xff").unwrap();
        let log = std::fs::read(folder.path().join("logs/shell-1.log")).unwrap();
        assert_eq!(log, [b"\xff<handle:", id.as_bytes(), b">\xfe mh1. \xff"].concat());
        session.write_result("take mh1.eyJ9.AAAA").unwrap();
        let result = std::fs::read_to_string(folder.path().join("out/result.txt")).unwrap();
        assert_eq!(result, format!("take <handle:{id}>"));
    }
}
