//! A user who is not root, with a control group of their own, as a user manager delegates one.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::host;
use crate::temporary::OWNER;

/// A control group that belongs to [`OWNER`]; removed at the end.
#[derive(Debug)]
pub struct Delegated(PathBuf);

impl Delegated {
    /// Makes it, if this host lets an ordinary user have a session at all.
    ///
    /// # Errors
    /// Why it does not.
    pub fn new() -> Result<Self, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mount = host::cgroup_mount().ok_or("no cgroup v2 hierarchy is mounted")?;
        let namespaces = ["unshare", "--user", "--mount", "true"];
        let may = as_owner(&[]).args(namespaces).output().is_ok_and(|output| output.status.success());
        if !may {
            return Err("this host lets ordinary users make no user namespaces".into());
        }
        // As a user manager has it; a host that offers none has none to pass on.
        for controller in ["memory", "pids", "cpu"] {
            let _ = fs::write(mount.join("cgroup.subtree_control"), format!("+{controller}"));
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let group = mount.join(format!("capsule-test-user-{}-{number}", std::process::id()));
        let failed = |error: std::io::Error| format!("no group can be delegated: {error}");
        fs::create_dir(&group).map_err(failed)?;
        let delegated = Self(group);
        for file in ["", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"] {
            chown(delegated.0.join(file), Some(OWNER), Some(OWNER)).map_err(failed)?;
        }
        Ok(delegated)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Groups below it but the leaf that the broker itself stepped into.
    #[must_use]
    pub fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let names = directories.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name != "supervisor").collect()
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

/// Makes a group one that a process can enter, as a user manager does before it starts something in it again: a group that passes
/// controllers on takes no process. Where there are none, what an earlier session left stays.
pub(crate) fn empty(group: &Path) {
    let file = group.join("cgroup.subtree_control");
    let passed_on = fs::read_to_string(&file).unwrap_or_default();
    if passed_on.trim().is_empty() {
        return;
    }
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    for controller in passed_on.split_whitespace() {
        let _ = fs::write(&file, format!("-{controller}"));
    }
}

/// Removes a group and those below it: a test that failed may have left a session's.
fn remove(group: &Path) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    let _ = fs::remove_dir(group);
}

/// Runs a command as [`OWNER`].
///
/// # Panics
/// If it cannot be started.
#[must_use]
pub fn run_as_owner(words: &[&str]) -> std::process::Output {
    as_owner(&[]).args(words).output().expect("setpriv")
}

/// What runs a command as [`OWNER`] in these supplementary groups.
pub(crate) fn as_owner(groups: &[u32]) -> Command {
    let mut setpriv = Command::new("setpriv");
    setpriv.args([format!("--reuid={OWNER}"), format!("--regid={OWNER}")]);
    let groups: Vec<String> = groups.iter().map(ToString::to_string).collect();
    match groups.is_empty() {
        true => setpriv.arg("--clear-groups"),
        false => setpriv.arg(format!("--groups={}", groups.join(","))),
    };
    setpriv.arg("--");
    setpriv
}
