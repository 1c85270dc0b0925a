//! Detached mounts that show a directory to one role under its own identity.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

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

/// Makes the map `disk_uid:disk_gid` → `uid:gid`.
///
/// # Errors
/// The error of the failing step.
pub fn id_map(_disk: (u32, u32), _role: (u32, u32)) -> io::Result<IdMap> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Clones the directory's mount (submounts included) into a detached tree: always nosuid, nodev, noexec; read-only as asked,
/// recursively; id-mapped if a map is given.
///
/// # Errors
/// `EINVAL` where the file system refuses id-mapped mounts; otherwise the error of the failing step.
pub fn tree(
    _directory: BorrowedFd<'_>,
    _map: Option<&IdMap>,
    _attributes: Attributes,
) -> io::Result<OwnedFd> {
    Err(io::ErrorKind::Unsupported.into())
}
