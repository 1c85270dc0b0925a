//! Where files of peers land: `peer-in/` in the work folder. Programs can write there too, so nothing is opened or written
//! through a link, and a file has its name only once it is whole.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, mkdirat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;

/// The directory's name.
pub(crate) const NAME: &str = "peer-in";

/// Why a file was not stored.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotStored {
    /// A link or a thing of another kind stands where a directory or a file of the runtime's making belongs.
    #[error("something else stands there")]
    Refused,
    /// The kernel's error.
    #[error("the file could not be written")]
    Failed(#[from] Errno),
}

/// A file that is being received. Dropped before [`Incoming::store`], it leaves nothing.
pub(crate) struct Incoming {
    directory: OwnedFd,
    file: File,
    temporary: String,
    stored: bool,
}

impl Incoming {
    /// Opens `peer-in/`, which is made if it is not there, and a file in it under a name of its own.
    ///
    /// # Errors
    /// [`NotStored`].
    pub(crate) fn begin(workdir: &OwnedFd) -> Result<Self, NotStored> {
        match mkdirat(workdir, NAME, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = match openat(workdir, NAME, flags, Mode::empty()) {
            Err(Errno::LOOP | Errno::NOTDIR) => return Err(NotStored::Refused),
            other => other?,
        };
        let temporary = crate::ids::fresh(".incoming");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&directory, &temporary, flags, Mode::from_raw_mode(0o600))?;
        Ok(Incoming { directory, file: File::from(file), temporary, stored: false })
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// [`NotStored::Failed`].
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), NotStored> {
        let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        Ok(self.file.write_all(bytes).map_err(errno)?)
    }

    /// Gives the file its name, in place of an earlier file of that name.
    ///
    /// # Errors
    /// [`NotStored`].
    pub(crate) fn store(mut self, name: &str) -> Result<(), NotStored> {
        match statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
            Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::RegularFile => {}
            Ok(_) => return Err(NotStored::Refused),
        }
        // Whatever takes the name from here on is replaced itself: a rename follows no link.
        match renameat(&self.directory, &self.temporary, &self.directory, name) {
            Err(Errno::ISDIR) => return Err(NotStored::Refused),
            other => other?,
        }
        self.stored = true;
        Ok(())
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.stored {
            // Gone already if the agent's own programs removed it.
            let _ = unlinkat(&self.directory, &self.temporary, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Folder;
    use std::os::unix::fs::{MetadataExt, symlink};

    fn workdir(folder: &Folder) -> OwnedFd {
        File::open(folder.path()).unwrap().into()
    }

    fn names(folder: &Folder) -> Vec<String> {
        let entries = std::fs::read_dir(folder.path().join(NAME)).into_iter().flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn put(folder: &Folder, name: &str, bytes: &[u8]) -> Result<(), NotStored> {
        let mut incoming = Incoming::begin(&workdir(folder))?;
        incoming.write(bytes)?;
        incoming.store(name)
    }

    #[test]
    fn a_file_has_its_name_once_it_is_whole_and_replaces_the_one_before() {
        let folder = Folder::new();
        let mut incoming = Incoming::begin(&workdir(&folder)).unwrap();
        incoming.write(b"one").unwrap();
        assert!(names(&folder).iter().all(|name| name.starts_with(".incoming_")), "{:?}", names(&folder));
        incoming.store("a").unwrap();
        let path = folder.path().join(NAME).join("a");
        assert_eq!(std::fs::read(&path).unwrap(), b"one");
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o600);
        assert_eq!(path.parent().unwrap().metadata().unwrap().mode() & 0o7777, 0o700);
        let held = File::open(&path).unwrap();
        put(&folder, "a", b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(held.metadata().unwrap().len(), 3);
        assert_ne!(held.metadata().unwrap().ino(), path.metadata().unwrap().ino());
        assert_eq!(names(&folder), ["a"]);
        drop(Incoming::begin(&workdir(&folder)).unwrap());
        assert_eq!(names(&folder), ["a"]);
    }

    #[test]
    fn nothing_is_stored_through_what_somebody_else_put_there() {
        let elsewhere = Folder::new();
        let target = elsewhere.path().join("target");
        std::fs::write(&target, "mine").unwrap();
        type Plant = fn(&std::path::Path, &std::path::Path);
        let plants: [(&str, Plant); 6] = [
            ("peer-in is a link to a directory", |peer_in, target| {
                symlink(target.parent().unwrap(), peer_in).unwrap()
            }),
            ("peer-in is a link to nothing", |peer_in, target| {
                symlink(target.with_file_name("new"), peer_in).unwrap()
            }),
            ("peer-in is a file", |peer_in, _| std::fs::write(peer_in, "").unwrap()),
            ("the name is a link", |peer_in, target| {
                std::fs::create_dir(peer_in).unwrap();
                symlink(target, peer_in.join("a")).unwrap();
            }),
            ("the name is a link to nothing", |peer_in, target| {
                std::fs::create_dir(peer_in).unwrap();
                symlink(target.with_file_name("new"), peer_in.join("a")).unwrap();
            }),
            ("the name is a directory", |peer_in, _| std::fs::create_dir_all(peer_in.join("a")).unwrap()),
        ];
        for (case, plant) in plants {
            let folder = Folder::new();
            plant(&folder.path().join(NAME), &target);
            let before = names(&folder);
            assert_eq!(put(&folder, "a", b"theirs"), Err(NotStored::Refused), "{case}");
            assert_eq!(std::fs::read_to_string(&target).unwrap(), "mine", "{case}");
            assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 1, "{case}");
            assert_eq!(names(&folder), before, "{case}: nothing is left");
        }
    }

    #[test]
    fn a_work_folder_that_is_gone_is_an_error_of_the_kernel() {
        let folder = Folder::new();
        let workdir = workdir(&folder);
        std::fs::remove_dir(folder.path()).unwrap();
        assert_eq!(Incoming::begin(&workdir).err(), Some(NotStored::Failed(Errno::NOENT)));
    }
}
