//! Looking at processes through `/proc`, waiting for their end, sending them signals.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
pub use rustix::process::Signal;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// One process, told from a later one with the same id by when it started.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    /// Its id in our PID namespace.
    pub pid: i32,
    /// When it started, in ticks since boot.
    pub started: u64,
    /// The name of its binary, or its `comm` where that cannot be read.
    pub name: String,
}

impl Process {
    /// Whether it is still there, one of ours that waits to be reaped included. One whose parent is gone too is there until
    /// whoever adopted it reaps it, which is not ours to do.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        stat(self.pid).is_some_and(|(_, started)| started == self.started) && !left_to_init(self.pid)
    }
}

/// Whether a process has ended and waits for init to reap it.
pub(crate) fn left_to_init(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with("Z 1 "))
}

/// Parent and start time, from `/proc/<pid>/stat`. The name in it may hold anything, so fields count from its end.
fn stat(pid: i32) -> Option<(i32, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let parent = fields.nth(1)?.parse().ok()?;
    let started = fields.nth(17)?.parse().ok()?;
    Some((parent, started))
}

fn name(pid: i32) -> String {
    let binary = fs::read_link(format!("/proc/{pid}/exe")).ok();
    let binary = binary.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
    match binary {
        Some(name) => name.trim_end_matches(" (deleted)").trim_start_matches("memfd:").to_owned(),
        None => fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned(),
    }
}

/// Every process there is, by id.
#[must_use]
pub fn all() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The processes that descend from `root`, without it, in order of their ids.
#[must_use]
pub fn descendants(root: i32) -> Vec<Process> {
    let parents: BTreeMap<i32, (i32, u64)> =
        all().into_iter().filter_map(|pid| Some((pid, stat(pid)?))).collect();
    let belongs = |mut pid: i32| {
        while let Some((parent, _)) = parents.get(&pid) {
            if *parent == root {
                return true;
            }
            pid = *parent;
        }
        false
    };
    let found = parents.iter().filter(|(pid, _)| belongs(**pid));
    found.map(|(pid, (_, started))| Process { pid: *pid, started: *started, name: name(*pid) }).collect()
}

/// The processes that `root` started itself and has not reaped.
#[must_use]
pub fn children(root: i32) -> Vec<Process> {
    let mut children = descendants(root);
    children.retain(|process| stat(process.pid).is_some_and(|(parent, _)| parent == root));
    children
}

/// How many descriptors a process holds.
///
/// # Panics
/// If there is no such process.
#[must_use]
pub fn descriptors(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap_or_else(|error| panic!("{pid}: {error}")).count()
}

/// Sends a signal to one process.
///
/// # Panics
/// If there is no such process.
pub fn signal(pid: i32, signal: Signal) {
    let target = Pid::from_raw(pid).expect("a process id");
    rustix::process::kill_process(target, signal).unwrap_or_else(|error| panic!("signal to {pid}: {error}"));
}

/// Waits until a signal sent to a process has been taken out of its queue, so that the next one is not merged with it.
/// Returns early if the process ends.
///
/// # Panics
/// If it is not taken in time.
pub fn wait_signal_taken(pid: i32, signal: Signal, patience: Duration) {
    let bit = 1_u64 << (signal.as_raw() - 1);
    until("the signal is taken", patience, || {
        let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return Some(()) };
        if status.contains("\nState:\tZ") {
            return Some(());
        }
        let pending = status
            .lines()
            .filter(|line| line.starts_with("SigPnd:") || line.starts_with("ShdPnd:"))
            .filter_map(|line| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok())
            .fold(0, |all, one| all | one);
        (pending & bit == 0).then_some(())
    });
}

/// A handle on a process that becomes readable when the process ends.
#[derive(Debug)]
pub struct Watched {
    /// Which one.
    pub process: Process,
    pidfd: OwnedFd,
}

/// Takes handles on processes while they live. One that ends meanwhile is left out.
#[must_use]
pub fn watch(processes: &[Process]) -> Vec<Watched> {
    let watched = processes.iter().filter_map(|process| {
        let pidfd = pidfd_open(Pid::from_raw(process.pid)?, PidfdFlags::empty()).ok()?;
        process.is_alive().then(|| Watched { process: process.clone(), pidfd })
    });
    watched.collect()
}

/// Waits until all of them have ended; returns those that have not in time.
#[must_use]
pub fn wait_ended(watched: &[Watched], patience: Duration) -> Vec<Process> {
    let deadline = Instant::now() + patience;
    let late = watched.iter().filter(|one| !readable_until(&one.pidfd, deadline));
    late.map(|one| one.process.clone()).collect()
}

/// Waits for the end of a process by its id; whether it ended in time.
///
/// # Panics
/// If there is no such process.
#[must_use]
pub fn wait_end_of(pid: i32, patience: Duration) -> bool {
    let pidfd =
        pidfd_open(Pid::from_raw(pid).expect("a process id"), PidfdFlags::empty()).expect("a process");
    readable_until(&pidfd, Instant::now() + patience)
}

fn readable_until(descriptor: &OwnedFd, deadline: Instant) -> bool {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        let mut descriptors = [PollFd::new(descriptor, PollFlags::IN)];
        match poll(&mut descriptors, Some(&timeout)) {
            Ok(ready) => return ready > 0,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("poll: {error}"),
        }
    }
}

/// Asks again and again, every 20 ms, until there is an answer. Only for what nothing announces.
///
/// # Panics
/// If there is no answer in time.
pub fn until<T>(what: &str, patience: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "not within {patience:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
