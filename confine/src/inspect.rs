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

/// Everything the judgement rests on.
#[derive(Debug, Clone)]
struct Look {
    /// One per thread.
    threads: Vec<Status>,
    /// `comm` of the process.
    name: String,
    /// Owner of its files in `/proc`: root if it is not dumpable, whoever runs it.
    owner: u32,
    /// Inodes of its namespaces and of the caller's, in the order of [`NAMESPACES`].
    namespaces: [(u64, u64); 5],
    /// Filters of the caller, which a child inherits.
    inherited_filters: u32,
}

const NAMESPACES: [&str; 5] = ["pid", "mnt", "ipc", "uts", "net"];

/// Reads `/proc/<pid>/task/*/status` and the namespace links: filter mode 2 with a filter more than the caller has (a child
/// inherits the caller's), no_new_privs, empty capability sets (all five), the uids and gids, no supplementary group, the
/// role's name, not dumpable, and namespaces that differ from the caller's (PID, mount, IPC, UTS, network).
///
/// The process must be a child that the caller has not reaped, so that the pid is still its own.
///
/// # Errors
/// [`Mismatch`] naming the first thing that differs.
pub fn check(pid: i32, expected: &Expected) -> Result<(), Mismatch> {
    judge(&look(pid)?, expected)
}

fn look(pid: i32) -> Result<Look, Mismatch> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let own = Path::new("/proc/self");
    let failed = |what: &'static str| move |error: std::io::Error| Mismatch(format!("{what}: {error}"));

    let mut threads = Vec::new();
    for task in fs::read_dir(process.join("task")).map_err(failed("threads"))? {
        threads.push(Status::parse(&read(&task.map_err(failed("threads"))?.path().join("status"))?));
    }
    let mut namespaces = [(0, 0); 5];
    for (place, name) in namespaces.iter_mut().zip(NAMESPACES) {
        let link = Path::new("ns").join(name);
        *place = (inode(&process.join(&link))?, inode(&own.join(&link))?);
    }
    Ok(Look {
        threads,
        name: Status::parse(&read(&process.join("status"))?).name,
        owner: fs::metadata(process.join("status")).map_err(failed("owner"))?.uid(),
        namespaces,
        inherited_filters: Status::parse(&read(&own.join("status"))?).filters,
    })
}

fn judge(look: &Look, expected: &Expected) -> Result<(), Mismatch> {
    if look.threads.is_empty() {
        return differs("threads");
    }
    for status in &look.threads {
        if let Some(what) = status.identity_differs(expected.uid, expected.gid) {
            return differs(what);
        }
        if status.seccomp != 2 || status.filters <= look.inherited_filters {
            return differs("seccomp filter");
        }
    }
    if look.name != expected.role.name() {
        return differs("name");
    }
    if look.owner != 0 {
        return differs("dumpable");
    }
    for (name, (theirs, own)) in NAMESPACES.into_iter().zip(look.namespaces) {
        let good = match (name, expected.network) {
            ("net", Some(wanted)) => theirs == wanted,
            ("net", None) => theirs == own,
            _ => theirs != own,
        };
        if !good {
            return differs(format!("{name} namespace"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Look {
        let thread = Status {
            name: "door".into(),
            uids: vec![7; 4],
            gids: vec![8; 4],
            groups: Vec::new(),
            capabilities: vec![0; 5],
            no_new_privs: true,
            seccomp: 2,
            filters: 2,
        };
        Look {
            threads: vec![thread.clone(), thread],
            name: "door".into(),
            owner: 0,
            namespaces: [(11, 1), (12, 2), (13, 3), (14, 4), (15, 5)],
            inherited_filters: 1,
        }
    }

    type Change = fn(&mut Look);

    #[test]
    fn a_process_that_misses_any_one_item_is_rejected_for_it() {
        let expected = Expected { role: Role::Door, uid: 7, gid: 8, network: Some(15) };
        judge(&good(), &expected).unwrap();
        let cases: [(&str, Change); 16] = [
            ("threads", |look| look.threads.clear()),
            ("uid", |look| look.threads[1].uids[2] = 0),
            ("gid", |look| look.threads[0].gids[3] = 0),
            ("supplementary groups", |look| look.threads[0].groups.push(0)),
            ("capabilities", |look| look.threads[0].capabilities[4] = 1),
            ("no_new_privs", |look| look.threads[1].no_new_privs = false),
            ("seccomp filter", |look| look.threads[1].seccomp = 0),
            ("seccomp filter", |look| look.threads[1].filters = 1),
            ("seccomp filter", |look| look.inherited_filters = 2),
            ("name", |look| look.name = "4".into()),
            ("dumpable", |look| look.owner = 7),
            ("pid namespace", |look| look.namespaces[0].0 = 1),
            ("mnt namespace", |look| look.namespaces[1].0 = 2),
            ("ipc namespace", |look| look.namespaces[2].0 = 3),
            ("uts namespace", |look| look.namespaces[3].0 = 4),
            ("net namespace", |look| look.namespaces[4].0 = 5),
        ];
        for (what, change) in cases {
            let mut look = good();
            change(&mut look);
            assert_eq!(judge(&look, &expected).unwrap_err().0, what);
        }
        let own = Expected { network: None, ..expected };
        assert_eq!(judge(&good(), &own).unwrap_err().0, "net namespace");
    }
}
