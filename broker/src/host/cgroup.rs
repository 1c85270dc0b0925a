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

use ipc::edge::control::Controllers;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::OFlags;

use super::dirs::Dir;
use crate::refusal::Refusal;

/// Leaves of a session: eight session processes, what eight more that ended left behind, and eight runs at one time.
pub(crate) const LEAVES: u32 = 24;

/// Controllers that the limits of programs need.
const NEEDED: [&str; 3] = ["memory", "pids", "cpu"];
/// The one that bounds how fast programs read and write; many hosts and file systems lack it.
const IO: &str = "io";

/// Where sessions' groups go, and what the host offers there.
#[derive(Debug)]
pub(crate) struct Host {
    base: PathBuf,
    /// Controllers the limits need and this host lacks.
    pub(crate) missing: Vec<&'static str>,
    /// Whether the rate of reads and writes can be limited.
    io: bool,
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
    /// `io.max`, bytes per second.
    pub(crate) io: u64,
    /// The device the workdir is on, for `io.max`.
    pub(crate) device: u64,
}

/// What a process of ours may use up, whatever it was made to do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound {
    /// `memory.max`, bytes.
    pub(crate) memory: u64,
    /// `pids.max`.
    pub(crate) pids: u64,
}

/// Finds the version 2 hierarchy and where the broker may make groups in it.
///
/// # Errors
/// `E-RUN-012` without a version 2 hierarchy.
pub(crate) fn probe() -> Result<Host, Refusal> {
    let (root, own) = places()?;
    // A delegated group is ours to divide; everywhere else sessions go into one group of the root.
    let (base, offering) =
        if delegated(&own) { (own.clone(), own) } else { (root.join("capsule-broker"), root) };
    let offered = std::fs::read_to_string(offering.join("cgroup.controllers")).unwrap_or_default();
    let missing = NEEDED.into_iter().filter(|name| !offered.split_whitespace().any(|word| word == *name));
    let io = offered.split_whitespace().any(|word| word == IO);
    Ok(Host { missing: missing.collect(), base, io })
}

/// The top of the version 2 hierarchy, and the broker's own group.
///
/// # Errors
/// `E-RUN-012` without a version 2 hierarchy.
pub(crate) fn places() -> Result<(PathBuf, PathBuf), Refusal> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let root = mount_point(&mounts).ok_or_else(|| {
        Refusal::new("E-RUN-012", "cgroup v2", "no cgroup v2 hierarchy is mounted")
            .hint("boot with systemd.unified_cgroup_hierarchy=1, or mount -t cgroup2 none /sys/fs/cgroup")
    })?;
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let own = root.join(own);
    Ok((root, own))
}

fn mount_point(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (fields, rest) = line.split_once(" - ")?;
        rest.starts_with("cgroup2 ").then(|| fields.split(' ').nth(4).map(PathBuf::from))?
    })
}

/// systemd marks a group whose subtree it leaves to a service. What makes one an ordinary user's to divide are its files'
/// owners, which were looked at before.
fn delegated(group: &Path) -> bool {
    if !nix::unistd::geteuid().is_root() {
        return super::ordinary::may_divide(group).is_ok();
    }
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
    /// What the groups count.
    controllers: Controllers,
    /// Why reads and writes of programs are not limited, if they are not.
    pub(crate) io_unlimited: Option<String>,
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
        let (controllers, io_unlimited) = (self.controllers(), None);
        let mut groups = Groups { base, name: name.to_owned(), session, controllers, io_unlimited };
        // From here on a failure removes what was made: `Groups` does so when it is dropped.
        enable(&groups.session, &self.missing).map_err(refuse)?;
        let programs = groups.session.make("programs", 0o755).map_err(refuse)?;
        // The leaves count even where no program may run in them.
        enable(&programs, &self.missing).map_err(refuse)?;
        if let Some(limits) = limits {
            self.limit(&programs, limits).map_err(refuse)?;
            groups.io_unlimited = self.limit_io(&groups, &programs, limits).err();
        }
        Ok(groups)
    }

    /// The controllers whose events the groups have.
    pub(crate) fn controllers(&self) -> Controllers {
        let has = |name: &str| !self.missing.contains(&name);
        Controllers { memory: has("memory"), pids: has("pids") }
    }

    /// Limits reads and writes on the workdir's device, where that is possible: best effort, and said.
    fn limit_io(&self, groups: &Groups, programs: &Dir, limits: Limits) -> Result<(), String> {
        if !self.io {
            return Err("the host has no io controller".to_owned());
        }
        let unusable = |error: io::Error| format!("the io controller cannot be used: {error}");
        if !delegated(&self.base) {
            let parent = Dir::open(self.base.parent().unwrap_or(Path::new("/"))).map_err(unusable)?;
            write(&parent, "cgroup.subtree_control", "+io").map_err(unusable)?;
        }
        for group in [&groups.base, &groups.session] {
            write(group, "cgroup.subtree_control", "+io").map_err(unusable)?;
        }
        let disk = disk(limits.device).ok_or("the workdir's file system lies on no single block device")?;
        write(programs, "io.max", &format!("{disk} rbps={0} wbps={0}", limits.io))
            .map_err(|error| format!("io.max does not take the workdir's device {disk}: {error}"))
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

/// The whole disk that a file system's device is or lies on, as `major:minor`.
fn disk(device: u64) -> Option<String> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let entry = Path::new("/sys/dev/block").join(format!("{major}:{minor}"));
    let number = if entry.join("partition").exists() { entry.join("../dev") } else { entry.join("dev") };
    Some(std::fs::read_to_string(number).ok()?.trim().to_owned())
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
    /// The group of a process of ours, for `clone3`, with what that process may use up where the host can bound it.
    pub(crate) fn role(&self, name: &str, bound: Bound) -> io::Result<Dir> {
        let group = self.session.make(name, 0o755)?;
        if self.controllers.memory {
            write(&group, "memory.max", &bound.memory.to_string())?;
        }
        if self.controllers.pids {
            write(&group, "pids.max", &bound.pids.to_string())?;
        }
        Ok(group)
    }

    /// One leaf for programs: its `cgroup.procs`, `cgroup.kill` and `cgroup.events`, then `memory.events` and `pids.events`
    /// where they are asked for.
    pub(crate) fn leaf(&self, number: u32, controllers: Controllers) -> io::Result<Vec<OwnedFd>> {
        let leaf = self.session.child("programs")?.make(number.to_string(), 0o755)?;
        let mut files = vec![
            leaf.file("cgroup.procs", OFlags::WRONLY, 0)?.into(),
            leaf.file("cgroup.kill", OFlags::WRONLY, 0)?.into(),
            leaf.file("cgroup.events", OFlags::RDONLY, 0)?.into(),
        ];
        if controllers.memory {
            files.push(leaf.file("memory.events", OFlags::RDONLY, 0)?.into());
        }
        if controllers.pids {
            files.push(leaf.file("pids.events", OFlags::RDONLY, 0)?.into());
        }
        Ok(files)
    }

    /// `pids.events` and `pids.current` of all programs together, where they are asked for.
    pub(crate) fn counters(&self, controllers: Controllers) -> io::Result<Vec<OwnedFd>> {
        if !controllers.pids {
            return Ok(Vec::new());
        }
        let programs = self.session.child("programs")?;
        let file = |name| Ok(programs.file(name, OFlags::RDONLY, 0)?.into());
        ["pids.events", "pids.current"].into_iter().map(file).collect()
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
