//! Directories held by descriptor. Everything the broker makes or opens below one is reached from that descriptor, one
//! component at a time, and never through a link.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

/// A directory.
#[derive(Debug)]
pub(crate) struct Dir {
    descriptor: OwnedFd,
    path: PathBuf,
}

const OPEN: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Dir {
    /// Opens a base directory an operator or the distribution named, making what is missing with mode 0700. Links among the
    /// directories that exist are theirs and followed; the last component may not be one.
    pub(crate) fn base(path: &Path) -> io::Result<Dir> {
        let path = std::path::absolute(path)?;
        let (existing, missing) = split_missing(&path);
        let canonical = existing.canonicalize()?;
        let mut dir = Dir { descriptor: rustix::fs::open(&canonical, OPEN, Mode::empty())?, path: canonical };
        for name in missing.components() {
            match name {
                Component::Normal(name) => dir = dir.make(name, 0o700)?,
                _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "path with `..`")),
            }
        }
        Ok(dir)
    }

    /// Opens a directory that exists.
    pub(crate) fn open(path: &Path) -> io::Result<Dir> {
        let canonical = path.canonicalize()?;
        Ok(Dir { descriptor: rustix::fs::open(&canonical, OPEN, Mode::empty())?, path: canonical })
    }

    /// Opens a directory below this one.
    pub(crate) fn child(&self, name: impl AsRef<std::ffi::OsStr>) -> io::Result<Dir> {
        let name = name.as_ref();
        let descriptor = rustix::fs::openat(&self.descriptor, name, OPEN, Mode::empty())?;
        Ok(Dir { descriptor, path: self.path.join(name) })
    }

    /// Opens a directory below this one, making it with exactly this mode if it is missing.
    pub(crate) fn make(&self, name: impl AsRef<std::ffi::OsStr>, mode: u32) -> io::Result<Dir> {
        let name = name.as_ref();
        match rustix::fs::mkdirat(&self.descriptor, name, Mode::from_raw_mode(mode)) {
            Ok(()) => {
                let dir = self.child(name)?;
                // Whatever the umask.
                rustix::fs::fchmod(&dir.descriptor, Mode::from_raw_mode(mode))?;
                Ok(dir)
            }
            Err(Errno::EXIST) => self.child(name),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Makes a directory that must not exist yet.
    pub(crate) fn make_new(&self, name: impl AsRef<std::ffi::OsStr>, mode: u32) -> io::Result<Dir> {
        rustix::fs::mkdirat(&self.descriptor, name.as_ref(), Mode::from_raw_mode(mode))?;
        self.make(name, mode).and_then(|dir| {
            rustix::fs::fchmod(&dir.descriptor, Mode::from_raw_mode(mode))?;
            Ok(dir)
        })
    }

    /// Opens a file below this directory, never through a link.
    pub(crate) fn file(&self, name: &str, flags: OFlags, mode: u32) -> io::Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.descriptor, name, flags, Mode::from_raw_mode(mode))?.into())
    }

    /// Gives the directory itself to an owner.
    pub(crate) fn give(&self, owner: (u32, u32)) -> io::Result<()> {
        let uid = rustix::fs::Uid::from_raw(owner.0);
        let gid = rustix::fs::Gid::from_raw(owner.1);
        Ok(rustix::fs::fchown(&self.descriptor, Some(uid), Some(gid))?)
    }

    /// Moves an entry of this directory into another.
    pub(crate) fn rename(&self, name: &str, to: &Dir, new: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.descriptor, name, &to.descriptor, new)?)
    }

    /// Removes an entry and everything below it; an absent one is no error.
    pub(crate) fn remove(&self, name: impl AsRef<std::ffi::OsStr>) -> io::Result<()> {
        remove_entry(self.descriptor.as_fd(), name.as_ref())
    }

    /// Names of the entries, without `.` and `..`.
    pub(crate) fn names(&self) -> io::Result<Vec<std::ffi::OsString>> {
        names(self.descriptor.as_fd())
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Time since its last change, as far as the clock can tell.
    pub(crate) fn age(&self) -> Option<std::time::Duration> {
        let seconds = u64::try_from(rustix::fs::fstat(&self.descriptor).ok()?.st_mtime).ok()?;
        let changed = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        std::time::SystemTime::now().duration_since(changed).ok()
    }

    /// Owner on disk: uid and gid.
    pub(crate) fn owner(&self) -> io::Result<(u32, u32)> {
        let stat = rustix::fs::fstat(&self.descriptor)?;
        Ok((stat.st_uid, stat.st_gid))
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// The longest part of a path that exists, and the rest.
fn split_missing(path: &Path) -> (&Path, &Path) {
    for ancestor in path.ancestors() {
        if ancestor.symlink_metadata().is_ok() {
            return (ancestor, path.strip_prefix(ancestor).unwrap_or(Path::new("")));
        }
    }
    (Path::new("/"), path.strip_prefix("/").unwrap_or(path))
}

fn names(dir: BorrowedFd<'_>) -> io::Result<Vec<std::ffi::OsString>> {
    use std::os::unix::ffi::OsStrExt;
    let mut found = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            found.push(std::ffi::OsStr::from_bytes(name).to_owned());
        }
    }
    Ok(found)
}

/// Levels that are walked at one time, each with a descriptor. What lies deeper is moved up first: a program can make a tree as
/// deep as it likes.
const LEVELS: u32 = 64;

/// Removes an entry and everything below it. Nobody may be adding to it.
fn remove_entry(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    if unlink(parent, name)? {
        return Ok(());
    }
    let top = rustix::fs::openat(parent, name, OPEN, Mode::empty())?;
    let mut moved = Moved { top: top.as_fd(), number: 0 };
    loop {
        let before = moved.number;
        clear(top.as_fd(), LEVELS, &mut moved)?;
        if moved.number == before {
            break;
        }
    }
    Ok(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

/// Where directories go that lie too deep, and how many went there.
struct Moved<'a> {
    top: BorrowedFd<'a>,
    number: u64,
}

impl Moved<'_> {
    /// Moves a directory to the top, under a name that nothing there has.
    fn take(&mut self, from: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
        loop {
            self.number += 1;
            let to = format!("deep-{}", self.number);
            match rustix::fs::renameat_with(from, name, self.top, to, RenameFlags::NOREPLACE) {
                Err(Errno::EXIST) => {}
                done => return Ok(done?),
            }
        }
    }
}

/// Empties a directory, but for what was moved to the top meanwhile.
fn clear(dir: BorrowedFd<'_>, levels: u32, moved: &mut Moved<'_>) -> io::Result<()> {
    for name in names(dir)? {
        if unlink(dir, &name)? {
            continue;
        }
        let Some(levels) = levels.checked_sub(1) else {
            moved.take(dir, &name)?;
            continue;
        };
        let below = rustix::fs::openat(dir, &name, OPEN, Mode::empty())?;
        clear(below.as_fd(), levels, moved)?;
        rustix::fs::unlinkat(dir, &name, AtFlags::REMOVEDIR)?;
    }
    Ok(())
}

/// Removes what is no directory; whether nothing is there any more.
fn unlink(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<bool> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::ISDIR | Errno::PERM) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch() -> PathBuf {
        let path = std::env::temp_dir().join(format!(
            "broker-dirs-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn a_base_is_made_private_and_its_children_are_never_reached_through_links() {
        use std::os::unix::fs::PermissionsExt;
        let root = scratch();
        let base = Dir::base(&root.join("a/b")).unwrap();
        assert_eq!(std::fs::metadata(root.join("a")).unwrap().permissions().mode() & 0o777, 0o700);
        std::os::unix::fs::symlink("/etc", root.join("a/b/link")).unwrap();
        assert!(base.child("link").is_err());
        assert!(base.make("link", 0o700).is_err());
        assert!(base.file("link", OFlags::RDONLY, 0).is_err());
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_tree_of_any_depth_is_removed_whatever_names_it_has() {
        let root = scratch();
        std::fs::create_dir(root.join("gone")).unwrap();
        std::fs::create_dir(root.join("gone/deep-1")).unwrap();
        std::fs::write(root.join("gone/deep-2"), "x").unwrap();
        let mut at: OwnedFd = std::fs::File::open(root.join("gone")).unwrap().into();
        for level in 0..5000 {
            let mode = Mode::from_raw_mode(0o700);
            rustix::fs::mkdirat(&at, "d", mode).unwrap();
            at = rustix::fs::openat(&at, "d", OPEN, Mode::empty()).unwrap();
            if level % 100 == 0 {
                rustix::fs::mkdirat(&at, "beside", mode).unwrap();
            }
        }
        drop(at);
        Dir::open(&root).unwrap().remove("gone").unwrap();
        assert!(!root.join("gone").exists());
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn removing_takes_links_and_not_what_they_point_to() {
        let root = scratch();
        std::fs::create_dir_all(root.join("keep")).unwrap();
        std::fs::write(root.join("keep/file"), "x").unwrap();
        std::fs::create_dir_all(root.join("gone/deep/deeper")).unwrap();
        std::os::unix::fs::symlink(root.join("keep"), root.join("gone/deep/link")).unwrap();
        let dir = Dir::open(&root).unwrap();
        dir.remove("gone").unwrap();
        dir.remove("gone").unwrap();
        assert!(!root.join("gone").exists());
        assert!(root.join("keep/file").exists());
        std::fs::remove_dir_all(root).unwrap();
    }
}
