//! The session's control groups: one leaf per process of ours, a scope with the limits for programs, and in it a fixed set
//! of leaves, one per running call.
//!
//! ```text
//! <base>/<session>/door  fileserver  sandbox-host  runner  egress  compiler
//! <base>/<session>/programs            limits (capabilities.resources)
//! <base>/<session>/programs/0 … N-1    a call each
//! ```
//!
//! All of it is owned by the broker; a process gets descriptors of single control files at most.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::OFlags;

use super::dirs::Dir;
use crate::refusal::Refusal;

/// Calls that may run at one time.
pub(crate) const LEAVES: u32 = 16;

/// Controllers that the limits of programs need.
const NEEDED: [&str; 3] = ["memory", "pids", "cpu"];

/// Where sessions' groups go, and what the host offers there.
#[derive(Debug)]
pub(crate) struct Host {
    base: PathBuf,
    /// Controllers the limits need and this host lacks.
    pub(crate) missing: Vec<&'static str>,
}

/// Limits of all programs of a session together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// `memory.max`, bytes.
    pub(crate) memory: u64,
    /// `pids.max`.
    pub(crate) pids: u64,
    /// Percent of one core.
    pub(crate) cpu_percent: u64,
}

/// Finds the version 2 hierarchy and where the broker may make groups in it.
///
/// # Errors
/// `E-RUN-012` without a version 2 hierarchy.
pub(crate) fn probe() -> Result<Host, Refusal> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let root = mount_point(&mounts).ok_or_else(|| {
        Refusal::new("E-RUN-012", "cgroup v2", "no cgroup v2 hierarchy is mounted")
            .hint("boot with systemd.unified_cgroup_hierarchy=1, or mount -t cgroup2 none /sys/fs/cgroup")
    })?;
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let own = root.join(own);
    // A delegated group is ours to divide; everywhere else sessions go into one group of the root.
    let base = if delegated(&own) { own } else { root.join("capsule-broker") };
    let offered = std::fs::read_to_string(base.parent().unwrap_or(&root).join("cgroup.controllers"));
    let offered = offered.unwrap_or_default();
    let missing = NEEDED.into_iter().filter(|name| !offered.split_whitespace().any(|word| word == *name));
    Ok(Host { missing: missing.collect(), base })
}

fn mount_point(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (fields, rest) = line.split_once(" - ")?;
        rest.starts_with("cgroup2 ").then(|| fields.split(' ').nth(4).map(PathBuf::from))?
    })
}

/// systemd marks a group whose subtree it leaves to a service.
fn delegated(group: &Path) -> bool {
    let mut value = [0; 4];
    ["user.delegate", "trusted.delegate"].into_iter().any(|name| {
        rustix::fs::getxattr(group, name, &mut value).is_ok_and(|length| value.get(..length) == Some(b"1"))
    })
}

/// The groups of one session.
#[derive(Debug)]
pub(crate) struct Groups {
    base: Dir,
    name: String,
    session: Dir,
}

impl Host {
    /// Makes the groups of a session.
    ///
    /// # Errors
    /// `E-RUN-012` naming the group that could not be made.
    pub(crate) fn session(&self, name: &str, limits: Option<Limits>) -> Result<Groups, Refusal> {
        let refuse = |error: io::Error| {
            Refusal::new(
                "E-RUN-012",
                self.base.display().to_string(),
                format!("no group can be made: {error}"),
            )
            .hint("run the broker as root on a writable cgroup v2 hierarchy, or in a unit with Delegate=yes")
        };
        let parent = self.base.parent().unwrap_or(Path::new("/"));
        if delegated(&self.base) {
            self.step_aside().map_err(refuse)?;
        } else {
            enable(&Dir::open(parent).map_err(refuse)?, &self.missing).map_err(refuse)?;
            if let Err(error) = std::fs::create_dir(&self.base)
                && error.kind() != io::ErrorKind::AlreadyExists
            {
                return Err(refuse(error));
            }
        }
        let base = Dir::open(&self.base).map_err(refuse)?;
        enable(&base, &self.missing).map_err(refuse)?;
        let session = base.make_new(name, 0o755).map_err(refuse)?;
        let groups = Groups { base, name: name.to_owned(), session };
        // From here on a failure removes what was made: `Groups` does so when it is dropped.
        enable(&groups.session, &self.missing).map_err(refuse)?;
        let programs = groups.session.make("programs", 0o755).map_err(refuse)?;
        if let Some(limits) = limits {
            self.limit(&programs, limits).map_err(refuse)?;
            enable(&programs, &self.missing).map_err(refuse)?;
        }
        Ok(groups)
    }

    /// Moves the broker into a leaf, since a group with processes of its own cannot pass controllers on.
    fn step_aside(&self) -> io::Result<()> {
        let supervisor = Dir::open(&self.base)?.make("supervisor", 0o755)?;
        write(&supervisor, "cgroup.procs", "0")
    }

    fn limit(&self, programs: &Dir, limits: Limits) -> io::Result<()> {
        let has = |name: &str| !self.missing.contains(&name);
        if has("memory") {
            write(programs, "memory.max", &limits.memory.to_string())?;
            match write(programs, "memory.swap.max", "0") {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        if has("pids") {
            write(programs, "pids.max", &limits.pids.to_string())?;
        }
        if has("cpu") {
            write(programs, "cpu.max", &format!("{} 100000", limits.cpu_percent.saturating_mul(1000)))?;
        }
        Ok(())
    }
}

fn enable(dir: &Dir, missing: &[&str]) -> io::Result<()> {
    for controller in NEEDED.into_iter().filter(|name| !missing.contains(name)) {
        write(dir, "cgroup.subtree_control", &format!("+{controller}"))?;
    }
    Ok(())
}

fn write(dir: &Dir, file: &str, text: &str) -> io::Result<()> {
    dir.file(file, OFlags::WRONLY, 0)?.write_all(text.as_bytes())
}

impl Groups {
    /// The group of a process of ours, for `clone3`.
    pub(crate) fn role(&self, name: &str) -> io::Result<Dir> {
        self.session.make(name, 0o755)
    }

    /// One leaf for programs: its `cgroup.procs`, `cgroup.kill` and `cgroup.events`.
    pub(crate) fn leaf(&self, number: u32) -> io::Result<[OwnedFd; 3]> {
        let leaf = self.session.child("programs")?.make(number.to_string(), 0o755)?;
        Ok([
            leaf.file("cgroup.procs", OFlags::WRONLY, 0)?.into(),
            leaf.file("cgroup.kill", OFlags::WRONLY, 0)?.into(),
            leaf.file("cgroup.events", OFlags::RDONLY, 0)?.into(),
        ])
    }

    /// Kills whatever is left in the session's groups and removes them.
    pub(crate) fn remove(&self) -> io::Result<()> {
        kill_and_remove(&self.base, &self.name)
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        // Second call after an orderly `remove`: nothing is there any more, which is no error.
        let _ = self.remove();
    }
}

/// Kills and removes one session's groups below `base`; an absent one is no error.
pub(crate) fn kill_and_remove(base: &Dir, name: &str) -> io::Result<()> {
    let session = match base.child(name) {
        Ok(session) => session,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    write(&session, "cgroup.kill", "1")?;
    wait_until_empty(&session, Duration::from_secs(2))?;
    remove_groups(&session)?;
    drop(session);
    rmdir(base, name)
}

fn remove_groups(group: &Dir) -> io::Result<()> {
    for name in group.names()? {
        let Some(name) = name.to_str() else { continue };
        match group.child(name) {
            Ok(child) => {
                remove_groups(&child)?;
                rmdir(group, name)?;
            }
            // A control file.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn rmdir(parent: &Dir, name: &str) -> io::Result<()> {
    Ok(rustix::fs::unlinkat(parent, name, rustix::fs::AtFlags::REMOVEDIR)?)
}

fn wait_until_empty(group: &Dir, patience: Duration) -> io::Result<()> {
    let mut events: File = group.file("cgroup.events", OFlags::RDONLY, 0)?;
    let deadline = Instant::now() + patience;
    loop {
        let mut text = String::new();
        events.rewind()?;
        events.read_to_string(&mut text)?;
        if text.lines().any(|line| line == "populated 0") {
            return Ok(());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "a process survived the kill of its group"));
        }
        let timeout = rustix::event::Timespec::try_from(left).map_err(io::Error::other)?;
        let descriptor = events.as_fd();
        match rustix::event::poll(&mut [PollFd::new(&descriptor, PollFlags::PRI)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// The directory that holds sessions' groups, if it exists.
pub(crate) fn base(host: &Host) -> Option<Dir> {
    Dir::open(&host.base).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_2_mount_is_found_beside_version_1_mounts() {
        let text = "30 20 0:25 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                    31 20 0:26 / /sys/fs/cgroup/unified rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        assert_eq!(mount_point(text), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        assert_eq!(mount_point("30 20 0:25 / / rw - ext4 /dev/vda rw\n"), None);
    }
}
