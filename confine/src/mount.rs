//! Detached mounts that show a directory to one role under its own identity.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::mount::OpenTreeFlags;

use crate::sys;

/// How a tree is shown.
#[derive(Debug, Clone, Copy)]
pub struct Attributes {
    /// No writes.
    pub read_only: bool,
}

/// A user namespace that maps one owner on disk to one role, for [`tree`].
#[derive(Debug)]
pub struct IdMap {
    /// The user namespace.
    pub namespace: OwnedFd,
}

/// Makes the map `disk_uid:disk_gid` → `uid:gid`. Every other owner shows as the overflow id, and nobody can create files
/// under another id.
///
/// # Errors
/// The error of the failing step.
pub fn id_map(disk: (u32, u32), role: (u32, u32)) -> io::Result<IdMap> {
    let holder = sys::birth::Holder::new()?;
    let proc = format!("/proc/{}", holder.pid());
    // Inside is what is on disk, outside is who the role is.
    std::fs::write(format!("{proc}/uid_map"), format!("{} {} 1\n", disk.0, role.0))?;
    std::fs::write(format!("{proc}/gid_map"), format!("{} {} 1\n", disk.1, role.1))?;
    Ok(IdMap { namespace: std::fs::File::open(format!("{proc}/ns/user"))?.into() })
}

/// Clones the directory's mount (submounts included) into a detached tree: always nosuid, nodev, noexec; read-only as asked,
/// recursively; id-mapped if a map is given.
///
/// # Errors
/// `EINVAL` where the file system refuses id-mapped mounts; otherwise the error of the failing step.
pub fn tree(directory: BorrowedFd<'_>, map: Option<&IdMap>, attributes: Attributes) -> io::Result<OwnedFd> {
    let mut set = libc::MOUNT_ATTR_NOEXEC;
    if attributes.read_only {
        set |= libc::MOUNT_ATTR_RDONLY;
    }
    clone(directory, map, set)
}

/// The tree of the compiled cache: read-only, nosuid, nodev, but its files can be mapped as code, which noexec forbids.
/// Nobody but the broker may be able to write there.
///
/// # Errors
/// The error of the failing step.
pub fn code_tree(directory: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    clone(directory, None, libc::MOUNT_ATTR_RDONLY)
}

/// A tree that programs write and whose files they may execute (`capabilities.filesystem.workdir_exec`): nosuid, nodev.
///
/// # Errors
/// As [`tree`].
pub fn executable_tree(directory: BorrowedFd<'_>, map: Option<&IdMap>) -> io::Result<OwnedFd> {
    clone(directory, map, 0)
}

/// Clones the mount of a directory or file, submounts included, with its attributes as they are.
pub(crate) fn copy(place: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    Ok(rustix::mount::open_tree(place, c"", flags)?)
}

fn clone(directory: BorrowedFd<'_>, map: Option<&IdMap>, attributes: u64) -> io::Result<OwnedFd> {
    let tree = copy(directory)?;
    let mut set = attributes | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    if map.is_some() {
        set |= libc::MOUNT_ATTR_IDMAP;
    }
    sys::mount_setattr(tree.as_fd(), set, map.map(|map| map.namespace.as_fd()), true)?;
    Ok(tree)
}
