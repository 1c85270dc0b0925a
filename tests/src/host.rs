//! What this host can do.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

/// Prints `NOT RUN: where: why`, past the capture of the test runner.
pub fn say_not_run(place: &str, why: &str) {
    let test = std::thread::current().name().unwrap_or(place).to_owned();
    // One write, on a line of its own whatever the test runner was about to print.
    let _ = std::io::stderr().lock().write_all(format!("\nNOT RUN: {test}: {why}\n").as_bytes());
}

/// Whether the tests run as root.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Where cgroup v2 is mounted, if it is.
#[must_use]
pub fn cgroup_mount() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        (kind.split(' ').next()? == "cgroup2").then(|| place.split(' ').nth(4).map(PathBuf::from))?
    })
}

/// Whether temporary folders lie on a filesystem that takes id-mapped mounts, without which `advisory` is refused:
/// overlayfs, on which most containers live, does not.
#[must_use]
pub fn takes_id_maps() -> bool {
    const OVERLAYFS: u64 = 0x794c_7630;
    let kind = rustix::fs::statfs(std::env::temp_dir()).map(|about| about.f_type);
    kind.is_ok_and(|kind| u64::try_from(kind) != Ok(OVERLAYFS))
}

/// The controllers that a session's limits need and this host does not offer.
#[must_use]
pub fn missing_controllers() -> Vec<&'static str> {
    let offered = cgroup_mount()
        .and_then(|mount| fs::read_to_string(mount.join("cgroup.controllers")).ok())
        .unwrap_or_default();
    ["memory", "pids", "cpu"]
        .into_iter()
        .filter(|needed| !offered.split_whitespace().any(|name| name == *needed))
        .collect()
}

/// The cgroup of a session, in the mounted tree.
///
/// # Panics
/// If the kernel does not tell.
#[must_use]
pub fn session_group(session: &crate::broker::Session) -> PathBuf {
    let pid = session.role("door").pid;
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("the door's group");
    let own = text.lines().find_map(|line| line.strip_prefix("0::/")).expect("a version 2 group");
    let own = cgroup_mount().expect("a cgroup v2 mount").join(own);
    own.parent().expect("the session's group").to_owned()
}
