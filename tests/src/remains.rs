//! What a session must not leave behind.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::broker::Session;
use crate::host;
use crate::process::{self, Process};

/// Everything of a running session that has to be gone after it: taken before the end, compared after it.
///
/// Processes are known by id and start time, namespaces by their numbers, so that sessions of other tests running at the
/// same time do not disturb. The namespaces are held open meanwhile: the kernel gives the number of one that is gone to the
/// next.
#[derive(Debug)]
pub struct Footprint {
    session: String,
    folder: PathBuf,
    processes: Vec<Process>,
    namespaces: BTreeSet<String>,
    _held: Vec<fs::File>,
}

const NAMESPACES: [&str; 7] = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];

fn namespaces(pid: &str) -> BTreeSet<String> {
    let links = NAMESPACES.iter().filter_map(|kind| fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok());
    links.map(|link| link.to_string_lossy().into_owned()).collect()
}

impl Footprint {
    pub(crate) fn of(session: &Session) -> Self {
        let mut processes = session.processes();
        let pids: Vec<String> = processes
            .iter()
            .map(|process| process.pid)
            .chain([session.pid()])
            .map(|pid| pid.to_string())
            .collect();
        let held = pids.iter().flat_map(|pid| {
            NAMESPACES.iter().filter_map(move |kind| fs::File::open(format!("/proc/{pid}/ns/{kind}")).ok())
        });
        let held = held.collect();
        let mut found: BTreeSet<String> = pids.iter().flat_map(|pid| namespaces(pid)).collect();
        for ours in namespaces("self") {
            found.remove(&ours);
        }
        // The broker is waited for by the test itself and may have been reaped already.
        processes.retain(|process| process.pid != session.pid());
        assert!(
            !processes.is_empty() && !found.is_empty(),
            "a session without processes leaves nothing to look for"
        );
        Self {
            session: session.id().to_owned(),
            folder: session.folder().to_owned(),
            processes,
            namespaces: found,
            _held: held,
        }
    }

    /// The processes of the session, without the broker.
    #[must_use]
    pub fn processes(&self) -> &[Process] {
        &self.processes
    }

    /// Processes that still live, of the session or in one of its namespaces.
    #[must_use]
    pub fn living(&self) -> Vec<String> {
        let mut left: Vec<String> = self
            .processes
            .iter()
            .filter(|process| process.is_alive())
            .map(|process| format!("process {} ({})", process.pid, process.name))
            .collect();
        for pid in process::all().into_iter().filter(|pid| !process::left_to_init(*pid)) {
            let inside: Vec<String> =
                namespaces(&pid.to_string()).intersection(&self.namespaces).cloned().collect();
            if !inside.is_empty() {
                left.push(format!("process {pid} in {}", inside.join(" ")));
            }
        }
        left
    }

    /// Mounts of the session that this process sees, namespaces kept by a mount among them.
    #[must_use]
    pub fn mounts(&self) -> Vec<String> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the mount table");
        let folder = self.folder.to_string_lossy();
        let ours = |line: &&str| {
            line.contains(&self.session)
                || line.contains(&*folder)
                || self.namespaces.iter().any(|namespace| line.contains(namespace.as_str()))
        };
        mounts.lines().filter(ours).map(|line| format!("mount {line}")).collect()
    }

    /// Control groups, and files outside workdir and records, that carry the session's id.
    #[must_use]
    pub fn files(&self) -> Vec<String> {
        let digits = self.session.trim_start_matches("ses_");
        let mut left = Vec::new();
        if let Some(mount) = host::cgroup_mount() {
            find(&mount, digits, 6, &mut left);
        }
        find(&self.folder.join("run"), digits, 3, &mut left);
        find(&self.folder.join("state/sessions"), digits, 1, &mut left);
        for place in [
            std::env::temp_dir(),
            PathBuf::from("/dev/shm"),
            PathBuf::from("/run"),
            PathBuf::from("/var/lib"),
        ] {
            find(&place, digits, 1, &mut left);
        }
        left
    }

    /// Everything that is left.
    #[must_use]
    pub fn left(&self) -> Vec<String> {
        [self.living(), self.mounts(), self.files()].concat()
    }

    /// # Panics
    /// If anything is left, naming it.
    pub fn assert_gone(&self) {
        let left = self.left();
        assert!(left.is_empty(), "left behind:\n{}", left.join("\n"));
    }
}

/// Paths below `folder` whose name contains `part`, down to `depth` levels, following no link.
fn find(folder: &Path, part: &str, depth: u32, found: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().contains(part) {
            found.push(format!("path {}", entry.path().display()));
        } else if depth > 1 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            find(&entry.path(), part, depth - 1, found);
        }
    }
}

/// Whether nothing was made below a directory of the broker: what a refused launch must leave.
///
/// # Panics
/// If a regular file or anything with a session's name is there.
pub fn assert_nothing_made(folder: &Path) {
    for name in ["state", "cache", "run"] {
        let mut left = Vec::new();
        find(&folder.join(name), "ses_", 6, &mut left);
        if name != "run" {
            // The run directory may keep lock files, which are reused.
            files(&folder.join(name), &mut left);
        }
        assert!(left.is_empty(), "a refused launch left:\n{}", left.join("\n"));
    }
}

fn files(folder: &Path, found: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files(&entry.path(), found),
            _ => found.push(format!("file {}", entry.path().display())),
        }
    }
}

/// Removes the control groups of a session whose broker a failing test killed; a sweep would not find them, since the
/// run directory goes with the test's folder.
pub(crate) fn remove_groups(session: Option<&str>) {
    fn remove(group: &Path) {
        for entry in fs::read_dir(group).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                remove(&entry.path());
            }
        }
        let _ = fs::remove_dir(group);
    }
    let (Some(mount), Some(session)) = (host::cgroup_mount(), session) else { return };
    let mut groups = Vec::new();
    find(&mount, session, 6, &mut groups);
    for group in groups {
        remove(Path::new(group.trim_start_matches("path ")));
    }
}
