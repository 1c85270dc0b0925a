//! User namespaces with one id: what the broker of an ordinary user works in, and the further one that each of its processes
//! ends in.
//!
//! The kernel lets anybody map the own uid and gid into a namespace of one's own, to whatever numbers; here they keep theirs,
//! so that nobody is 0 anywhere. What is made in the broker's namespace (mounts, PID and network namespaces) belongs to it. A
//! process that then enters a further one has no capability over any of that, whatever it might gain in its own.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sched::CloneFlags;
use rustix::fs::{Mode, OFlags};

use crate::enter::step;
use crate::sys::trial;
use crate::{ConfineError, mount, root};

/// Enters a user namespace with the caller's own uid and gid and nothing else, and a mount namespace in it. Supplementary
/// groups stay, for the kernel lets nobody give them up there. The caller has every capability in the two and none outside.
/// Call it while the process has one thread.
///
/// # Errors
/// [`ConfineError`] naming the step; the process must end then.
pub fn enter() -> Result<(), ConfineError> {
    step("threads", crate::broker::alone())?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let own = rustix::fs::open("/proc/self", flags, Mode::empty()).map_err(io::Error::from);
    unshare(step("id maps", own)?.as_fd())?;
    let mounts = nix::sched::unshare(CloneFlags::CLONE_NEWNS).map_err(io::Error::from);
    // What the host mounts and unmounts from now on is still seen here, and nothing of ours there.
    step("mount namespace", mounts)
}

/// Tries, in children, everything that a session of an ordinary user rests on, in the order in which it is needed: the user
/// namespace, the other namespaces in it, a procfs, a private root, a further user namespace. Nothing is left of it. Call it
/// while the process has one thread.
///
/// # Errors
/// [`ConfineError`] naming the first step that fails.
pub fn try_out() -> Result<(), ConfineError> {
    trial::in_a_child(|| {
        enter()?;
        let rest = CloneFlags::CLONE_NEWPID
            | CloneFlags::CLONE_NEWIPC
            | CloneFlags::CLONE_NEWUTS
            | CloneFlags::CLONE_NEWNET;
        step("namespaces", nix::sched::unshare(rest).map_err(io::Error::from))?;
        // The first process of the PID namespace.
        trial::in_a_child(|| {
            let own = OwnFiles::open()?;
            step("mount propagation", root::detach_propagation())?;
            step("procfs", root::procfs())?;
            step("private root", root::enter_private(&Vec::new(), &[], false))?;
            nest(&own)
        })
    })
}

/// The caller's directory in `/proc`, on a mount of nobody's: for a moment at which there is no `/proc`, or a read-only one.
#[derive(Debug)]
pub(crate) struct OwnFiles {
    directory: OwnedFd,
    _mount: OwnedFd,
}

impl OwnFiles {
    pub(crate) fn open() -> Result<Self, ConfineError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let attempt = || -> io::Result<OwnFiles> {
            let proc = rustix::fs::open("/proc", flags, Mode::empty())?;
            let mount = mount::copy(proc.as_fd())?;
            Ok(OwnFiles {
                directory: rustix::fs::openat(&mount, "self", flags, Mode::empty())?,
                _mount: mount,
            })
        };
        step("id maps", attempt())
    }
}

/// Leaves the namespace the process was started in, and with it every capability over what was made there.
pub(crate) fn nest(own: &OwnFiles) -> Result<(), ConfineError> {
    unshare(own.directory.as_fd()).map_err(|error| match error.step {
        "user namespace" => ConfineError { step: "nested user namespace", ..error },
        _ => error,
    })
}

/// A new user namespace in which the caller keeps its uid and gid.
fn unshare(own: BorrowedFd<'_>) -> Result<(), ConfineError> {
    let (uid, gid) = (nix::unistd::geteuid(), nix::unistd::getegid());
    step("user namespace", nix::sched::unshare(CloneFlags::CLONE_NEWUSER).map_err(io::Error::from))?;
    // Who is not privileged may write the map of groups only after this.
    step("id maps", write(own, "setgroups", "deny"))?;
    step("id maps", write(own, "uid_map", &format!("{uid} {uid} 1\n")))?;
    step("id maps", write(own, "gid_map", &format!("{gid} {gid} 1\n")))
}

fn write(own: BorrowedFd<'_>, name: &str, text: &str) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(own, name, flags, Mode::empty())?;
    std::fs::File::from(file).write_all(text.as_bytes())
}

/// The supplementary groups of the calling process, as its own user namespace shows them.
///
/// # Errors
/// What reading `/proc/self/status` says.
pub fn own_groups() -> io::Result<Vec<u32>> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    Ok(crate::status::Status::parse(&text).groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused<T>(what: &str, result: io::Result<T>) -> Result<(), ConfineError> {
        match result {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok(()),
            Err(error) => step("nested user namespace", Err(io::Error::other(format!("{what}: {error}")))),
            Ok(_) => step("nested user namespace", Err(io::Error::other(format!("{what}: it works")))),
        }
    }

    /// With every capability that the further namespace gives, before any is given up and without a filter.
    #[test]
    fn what_was_made_before_the_further_namespace_is_out_of_reach_after_it() {
        let tried = trial::in_a_child(|| {
            enter()?;
            let rest = CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWUTS | CloneFlags::CLONE_NEWNET;
            step("namespaces", nix::sched::unshare(rest).map_err(io::Error::from))?;
            trial::in_a_child(|| {
                step("mount propagation", root::detach_propagation())?;
                let network = step("namespaces", std::fs::File::open("/proc/thread-self/ns/net"))?;
                let own = OwnFiles::open()?;
                let (uid, groups) = (nix::unistd::geteuid(), own_groups());
                nest(&own)?;
                let full = step("nested user namespace", std::fs::read_to_string("/proc/self/status"))?;
                assert!(!crate::status::Status::parse(&full).capabilities.contains(&u64::MAX));
                assert_ne!(crate::status::Status::parse(&full).capabilities[2], 0, "it has capabilities");
                assert_eq!(nix::unistd::geteuid(), uid);
                assert_eq!(own_groups().ok(), groups.ok());
                refused("a mount", root::file_system("tmpfs", &[], root::PLAIN))?;
                refused("mount flags", root::detach_propagation())?;
                refused("the host name", nix::unistd::sethostname("x").map_err(io::Error::from))?;
                refused(
                    "the network",
                    nix::sched::setns(network, CloneFlags::CLONE_NEWNET).map_err(io::Error::from),
                )
            })
        });
        match tried {
            Ok(()) => {}
            Err(error) if error.step == "user namespace" => {
                let test = "what_was_made_before_the_further_namespace_is_out_of_reach_after_it";
                let line = format!("NOT RUN: {test}: {error}\n");
                let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn a_user_namespace_is_tried_without_leaving_the_callers() {
        let before = std::fs::read_link("/proc/self/ns/user").unwrap();
        // Whatever comes of it here.
        let _ = try_out();
        assert_eq!(std::fs::read_link("/proc/self/ns/user").unwrap(), before);
    }
}
