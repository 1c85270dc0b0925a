//! Looking at a process from outside: what the broker believes.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::Role;
use crate::status::Status;

/// What a process should look like.
#[derive(Debug, Clone)]
pub struct Expected {
    /// Its role.
    pub role: Role,
    /// All four uids.
    pub uid: u32,
    /// All four gids.
    pub gid: u32,
    /// Inode of the network namespace it should be in; `None` for the broker's own.
    pub network: Option<u64>,
}

/// A process does not look as it should.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Mismatch(pub String);

fn differs<T>(what: impl Into<String>) -> Result<T, Mismatch> {
    Err(Mismatch(what.into()))
}

fn read(path: &Path) -> Result<String, Mismatch> {
    fs::read_to_string(path).map_err(|error| Mismatch(format!("{}: {error}", path.display())))
}

fn inode(path: &Path) -> Result<u64, Mismatch> {
    fs::metadata(path)
        .map(|data| data.ino())
        .map_err(|error| Mismatch(format!("{}: {error}", path.display())))
}

/// Reads `/proc/<pid>/task/*/status` and the namespace links: filter mode 2 with a filter more than the caller has (a child
/// inherits the caller's), no_new_privs, empty capability sets (all five), the uids and gids, no supplementary group, the
/// role's name, not dumpable, and namespaces that differ from the caller's (PID, mount, IPC, UTS, network).
///
/// The process must be a child that the caller has not reaped, so that the pid is still its own.
///
/// # Errors
/// [`Mismatch`] naming the first thing that differs.
pub fn check(pid: i32, expected: &Expected) -> Result<(), Mismatch> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let own = Path::new("/proc/self");
    let inherited = Status::parse(&read(&own.join("status"))?).filters;

    let tasks = fs::read_dir(process.join("task")).map_err(|error| Mismatch(format!("threads: {error}")))?;
    let mut threads = 0;
    for task in tasks {
        let task = task.map_err(|error| Mismatch(format!("threads: {error}")))?;
        let status = Status::parse(&read(&task.path().join("status"))?);
        if let Some(what) = status.identity_differs(expected.uid, expected.gid) {
            return differs(what);
        }
        if status.seccomp != 2 || status.filters <= inherited {
            return differs("seccomp filter");
        }
        threads += 1;
    }
    if threads == 0 {
        return differs("threads");
    }
    let leader = Status::parse(&read(&process.join("status"))?);
    if leader.name != expected.role.name() {
        return differs("name");
    }
    // What is not dumpable belongs to root in /proc, whoever runs it.
    let owner = fs::metadata(process.join("status")).map_err(|error| Mismatch(format!("owner: {error}")))?;
    if owner.uid() != 0 {
        return differs("dumpable");
    }
    for name in ["pid", "mnt", "ipc", "uts"] {
        let link = Path::new("ns").join(name);
        if inode(&process.join(&link))? == inode(&own.join(&link))? {
            return differs(format!("{name} namespace"));
        }
    }
    let network = inode(&process.join("ns/net"))?;
    let wanted = match expected.network {
        Some(inode) => inode,
        None => inode(&own.join("ns/net"))?,
    };
    if network != wanted {
        return differs("network namespace");
    }
    Ok(())
}
