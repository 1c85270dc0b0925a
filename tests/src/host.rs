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
