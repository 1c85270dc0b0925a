//! A session's block of ids, taken from the configured range and held by a lock file.

use std::fs::File;

use rustix::fs::OFlags;

use super::dirs::Dir;
use crate::cli::UidRange;
use crate::refusal::Refusal;

/// Ids in one block.
const BLOCK: u32 = 6;

/// Uid and gid of a role.
pub(crate) type Id = (u32, u32);

/// The ids of one session.
#[derive(Debug)]
pub(crate) struct Ids {
    /// sandbox-host
    pub(crate) sandbox_host: Id,
    /// runner and programs
    pub(crate) programs: Id,
    /// fileserver
    pub(crate) fileserver: Id,
    /// door
    pub(crate) door: Id,
    /// egress
    pub(crate) egress: Id,
    /// compiler
    pub(crate) compiler: Id,
    /// Held while the session lives.
    _lock: Option<File>,
}

impl Ids {
    /// One id for every role: an ordinary user has no other.
    pub(crate) fn one(id: Id) -> Ids {
        Ids {
            sandbox_host: id,
            programs: id,
            fileserver: id,
            door: id,
            egress: id,
            compiler: id,
            _lock: None,
        }
    }
}

/// Takes the first free block of the range: root's way to ids.
///
/// # Errors
/// `E-RUN-060` when every block is taken; an input or output error of the lock directory.
pub(crate) fn take(locks: &Dir, range: UidRange) -> Result<Ids, Refusal> {
    // The first id of the range owns workdirs and is given to no session.
    let blocks = (range.last - range.first) / BLOCK;
    for block in 0..blocks {
        let first = range.first + 1 + block * BLOCK;
        let name = format!("{first}.lock");
        let lock = locks
            .file(&name, OFlags::RDWR | OFlags::CREATE, 0o600)
            .map_err(|error| Refusal::io(locks.path().join(&name).display(), &error))?;
        if lock.try_lock().is_ok() {
            // Uid and gid of a role are the same number.
            let id = |place: u32| (first + place, first + place);
            return Ok(Ids {
                sandbox_host: id(0),
                programs: id(1),
                fileserver: id(2),
                door: id(3),
                egress: id(4),
                compiler: id(5),
                _lock: Some(lock),
            });
        }
    }
    Err(Refusal::new("E-RUN-060", "--uid-range", format!("all {blocks} blocks of ids are in use"))
        .hint("stop a session or widen the range"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_do_not_overlap_and_run_out() {
        let root = std::env::temp_dir().join(format!("broker-uids-{}", std::process::id()));
        let locks = Dir::base(&root).unwrap();
        let range = UidRange { first: 5000, last: 5012 };
        let one = take(&locks, range).unwrap();
        let two = take(&locks, range).unwrap();
        assert_eq!((one.sandbox_host, one.compiler), ((5001, 5001), (5006, 5006)));
        assert_eq!((two.sandbox_host, two.compiler), ((5007, 5007), (5012, 5012)));
        assert_eq!(take(&locks, range).unwrap_err().code, "E-RUN-060");
        drop(one);
        assert_eq!(take(&locks, range).unwrap().sandbox_host, (5001, 5001));
        std::fs::remove_dir_all(root).unwrap();
    }
}
