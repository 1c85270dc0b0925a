//! A session's block of ids, taken from the configured range and held by a lock file.

use std::fs::File;

use rustix::fs::OFlags;

use super::dirs::Dir;
use crate::cli::UidRange;
use crate::refusal::Refusal;

/// Ids in one block.
const BLOCK: u32 = 6;

/// The ids of one session; uid and gid of a role are the same number.
#[derive(Debug)]
pub(crate) struct Ids {
    /// sandbox-host
    pub(crate) sandbox_host: u32,
    /// runner and programs
    pub(crate) programs: u32,
    /// fileserver
    pub(crate) fileserver: u32,
    /// door
    pub(crate) door: u32,
    /// egress
    pub(crate) egress: u32,
    /// compiler
    pub(crate) compiler: u32,
    /// Held while the session lives.
    _lock: File,
}

/// Takes the first free block of the range.
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
            return Ok(Ids {
                sandbox_host: first,
                programs: first + 1,
                fileserver: first + 2,
                door: first + 3,
                egress: first + 4,
                compiler: first + 5,
                _lock: lock,
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
        assert_eq!((one.sandbox_host, one.compiler), (5001, 5006));
        assert_eq!((two.sandbox_host, two.compiler), (5007, 5012));
        assert_eq!(take(&locks, range).unwrap_err().code, "E-RUN-060");
        drop(one);
        assert_eq!(take(&locks, range).unwrap().sandbox_host, 5001);
        std::fs::remove_dir_all(root).unwrap();
    }
}
