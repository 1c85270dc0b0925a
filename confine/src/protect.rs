//! Paths of a role's trees that the role may read and not change (`capabilities.filesystem.read_only`).
//!
//! A read-only mount over the entry keeps what lies in it; that alone would let the directory above be renamed away and
//! another one put in its place. So every directory between the tree and the entry is bound onto itself: a mount point of
//! one's own mount namespace can be neither renamed nor removed (`EBUSY`).

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};

use crate::root::{Trees, attach};
use crate::{mount, sys};

/// Protects absolute paths in the role's view, each below one of the attached trees. The trees' descriptors are the mounts.
///
/// # Errors
/// `InvalidInput` for a path outside every tree or one that is a whole tree; `ELOOP` for a symbolic link on the way;
/// `NotFound`; otherwise the error of the failing step.
pub(crate) fn protect(trees: &Trees, paths: &[PathBuf]) -> io::Result<()> {
    let mut bound = Bound::default();
    // What lies above comes first and covers what lies below.
    let mut sorted: Vec<&PathBuf> = paths.iter().collect();
    sorted.sort();
    for path in sorted {
        let (root, tree) = trees
            .iter()
            .filter(|(root, _)| path.starts_with(root) && path != root)
            .max_by_key(|(root, _)| root.as_os_str().len())
            .ok_or_else(|| named(path, io::ErrorKind::InvalidInput.into()))?;
        let below = path.strip_prefix(root).map_err(io::Error::other)?;
        bound.entry(tree.as_fd(), root, below).map_err(|error| named(path, error))?;
    }
    Ok(())
}

fn named(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// What has been bound onto itself, by its path; `None` where it is read-only.
#[derive(Default)]
struct Bound(BTreeMap<PathBuf, Option<OwnedFd>>);

impl Bound {
    fn entry(&mut self, tree: BorrowedFd<'_>, root: &Path, below: &Path) -> io::Result<()> {
        let mut current = tree.try_clone_to_owned()?;
        let mut path = root.to_owned();
        let mut components = below.components().peekable();
        while let Some(component) = components.next() {
            let Component::Normal(name) = component else { return Err(io::ErrorKind::InvalidInput.into()) };
            path.push(name);
            let last = components.peek().is_none();
            match self.0.get(&path) {
                Some(None) => return Ok(()),
                Some(Some(mount)) if !last => {
                    current = mount.try_clone()?;
                    continue;
                }
                Some(Some(_)) | None => {}
            }
            let child = child(current.as_fd(), name, last)?;
            let copy = mount::copy(child.as_fd())?;
            if last {
                sys::mount_setattr(copy.as_fd(), libc::MOUNT_ATTR_RDONLY, None, true)?;
            }
            attach(copy.as_fd(), child.as_fd())?;
            current = copy.try_clone()?;
            self.0.insert(path.clone(), (!last).then_some(copy));
        }
        Ok(())
    }
}

/// A directory (as the last component, a file too) below another, not through a link.
fn child(parent: BorrowedFd<'_>, name: &std::ffi::OsStr, last: bool) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let child = rustix::fs::openat2(parent, name, flags, Mode::empty(), resolve)?;
    match FileType::from_raw_mode(rustix::fs::fstat(&child)?.st_mode) {
        FileType::Directory => Ok(child),
        FileType::RegularFile if last => Ok(child),
        // A link opened this way is a descriptor of the link itself.
        FileType::Symlink => Err(io::Error::from_raw_os_error(libc::ELOOP)),
        _ => Err(io::Error::from_raw_os_error(libc::ENOTDIR)),
    }
}
