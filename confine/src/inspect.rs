//! Looking at a process from outside: what the broker believes.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::status::Status;
use crate::{Rights, Role};

/// What a process should look like.
#[derive(Debug, Clone)]
pub struct Expected {
    /// Its role.
    pub role: Role,
    /// All four uids.
    pub uid: u32,
    /// All four gids.
    pub gid: u32,
    /// Its supplementary groups, as the caller's user namespace shows them.
    pub groups: Vec<u32>,
    /// Whether it should be in a user namespace of its own, or in the caller's.
    pub rights: Rights,
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
    /// Owner of what is the kernel's own in `/proc`: the host's root, as the caller sees it.
    root: u32,
    /// Inodes of its namespaces and of the caller's, in the order of [`NAMESPACES`].
    namespaces: [(u64, u64); 6],
    /// Filters of the caller, which a child inherits.
    inherited_filters: u32,
}

const NAMESPACES: [&str; 6] = ["pid", "mnt", "ipc", "uts", "net", "user"];

/// Reads `/proc/<pid>/task/*/status` and the namespace links: filter mode 2 with a filter more than the caller has (a child
/// inherits the caller's), no_new_privs, empty capability sets (all five), the uids and gids, the supplementary
/// groups, the role's name, not dumpable, and namespaces that differ from the caller's (PID, mount, IPC, UTS, network, and the
/// user namespace if there is no root to take ids from).
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
    let mut namespaces = [(0, 0); 6];
    for (place, name) in namespaces.iter_mut().zip(NAMESPACES) {
        let link = Path::new("ns").join(name);
        *place = (inode(&process.join(&link))?, inode(&own.join(&link))?);
    }
    Ok(Look {
        threads,
        name: Status::parse(&read(&process.join("status"))?).name,
        owner: fs::metadata(process.join("status")).map_err(failed("owner"))?.uid(),
        root: fs::metadata("/proc").map_err(failed("owner"))?.uid(),
        namespaces,
        inherited_filters: Status::parse(&read(&own.join("status"))?).filters,
    })
}

fn judge(look: &Look, expected: &Expected) -> Result<(), Mismatch> {
    if look.threads.is_empty() {
        return differs("threads");
    }
    for status in &look.threads {
        if let Some(what) = status.identity_differs(expected.uid, expected.gid, &expected.groups) {
            return differs(what);
        }
        if status.seccomp != 2 || status.filters <= look.inherited_filters {
            return differs("seccomp filter");
        }
    }
    if look.name != expected.role.name() {
        return differs("name");
    }
    let root = match expected.rights {
        Rights::Root => 0,
        // Its user namespace has no root of its own, so the files belong to the host's.
        Rights::User => look.root,
    };
    // Who has the number of root here could not be told from it.
    if look.owner != root || expected.uid == root {
        return differs("dumpable");
    }
    for (name, (theirs, own)) in NAMESPACES.into_iter().zip(look.namespaces) {
        let good = match (name, expected.network) {
            ("net", Some(wanted)) => theirs == wanted,
            ("net", None) => theirs == own,
            ("user", _) if expected.rights == Rights::Root => theirs == own,
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
            // Somebody else's root, as in a container that is itself a user namespace.
            root: 65_534,
            namespaces: [(11, 1), (12, 2), (13, 3), (14, 4), (15, 5), (6, 6)],
            inherited_filters: 1,
        }
    }

    type Change = fn(&mut Look);

    #[test]
    fn a_process_that_misses_any_one_item_is_rejected_for_it() {
        let expected = Expected {
            role: Role::Door,
            uid: 7,
            gid: 8,
            groups: Vec::new(),
            rights: Rights::Root,
            network: Some(15),
        };
        judge(&good(), &expected).unwrap();
        let cases: [(&str, Change); 17] = [
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
            ("user namespace", |look| look.namespaces[5].0 = 16),
        ];
        for (what, change) in cases {
            let mut look = good();
            change(&mut look);
            assert_eq!(judge(&look, &expected).unwrap_err().0, what);
        }
        let own = Expected { network: None, ..expected.clone() };
        assert_eq!(judge(&good(), &own).unwrap_err().0, "net namespace");

        // An ordinary user's: root has a number that nobody has, and a further user namespace is asked for.
        let user = Expected { groups: vec![8, 65_534], rights: Rights::User, ..expected };
        let nested = || {
            let mut look = good();
            look.threads.iter_mut().for_each(|thread| thread.groups = vec![8, 65_534]);
            (look.owner, look.root, look.namespaces[5]) = (65_534, 65_534, (16, 6));
            look
        };
        judge(&nested(), &user).unwrap();
        let cases: [(&str, Change); 5] = [
            ("supplementary groups", |look| look.threads[1].groups.clear()),
            ("dumpable", |look| look.owner = 7),
            ("dumpable", |look| look.owner = 0),
            ("dumpable", |look| (look.owner, look.root) = (7, 7)),
            ("user namespace", |look| look.namespaces[5].0 = 6),
        ];
        for (what, change) in cases {
            let mut look = nested();
            change(&mut look);
            assert_eq!(judge(&look, &user).unwrap_err().0, what);
        }
    }
}
