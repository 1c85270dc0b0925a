//! Who the process is: ids, name, death signal, limits, and no capability at all.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};

use nix::unistd::{Gid, Uid};
use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal};

use crate::status::Status;
use crate::{Rights, Role, sys};

/// `/proc/self/status`, opened while there is a `/proc`; what is read shows the moment of reading.
#[derive(Debug)]
pub(crate) struct OwnStatus(File);

impl OwnStatus {
    pub(crate) fn open() -> io::Result<Self> {
        File::open("/proc/self/status").map(OwnStatus)
    }

    pub(crate) fn read(&mut self) -> io::Result<Status> {
        let mut text = String::new();
        io::Seek::rewind(&mut self.0)?;
        self.0.read_to_string(&mut text)?;
        Ok(Status::parse(&text))
    }
}

/// Drops every capability the kernel knows from the bounding set, for which the process must still be privileged.
pub(crate) fn empty_bounding_set(keep: impl Fn(u64) -> bool) -> io::Result<()> {
    for capability in 0..64 {
        if !keep(capability) && !sys::drop_bounding(capability)? {
            return Ok(());
        }
    }
    Ok(())
}

/// Takes uid and gid and gives up the supplementary groups, which an ordinary user cannot. Clears the death signal, so that is
/// armed after it.
pub(crate) fn become_user(uid: u32, gid: u32, rights: Rights) -> io::Result<()> {
    if uid == 0 || gid == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no process of ours runs as root"));
    }
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
    if rights == Rights::Root {
        nix::unistd::setgroups(&[])?;
    }
    nix::unistd::setresgid(group, group, group)?;
    nix::unistd::setresuid(user, user, user)?;
    Ok(())
}

/// Not readable by others of the same uid, no core, named after the role, dies with the broker's main thread.
pub(crate) fn settle(role: Role) -> io::Result<()> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::thread::set_name(&CString::new(role.name())?)?;
    // A broker that died before this line has closed its end of the control channel, and the role ends on reading that.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    let now = rustix::process::getrlimit(Resource::Nofile).maximum;
    let wanted = now.map_or(role.open_files(), |most| most.min(role.open_files()));
    // The runner passes its hard limit on to programs, whose own limit is set per start.
    let maximum = if role == Role::Runner { now } else { Some(wanted) };
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum })?;
    Ok(())
}

/// Clears the four remaining capability sets.
pub(crate) fn clear_capabilities() -> io::Result<()> {
    use caps::CapSet::{Ambient, Effective, Inheritable, Permitted};
    for set in [Ambient, Effective, Permitted, Inheritable] {
        caps::clear(None, set).map_err(io::Error::other)?;
    }
    Ok(())
}

/// No exec can ever give anything back.
pub(crate) fn no_new_privileges() -> io::Result<()> {
    Ok(rustix::thread::set_no_new_privs(true)?)
}

/// What the kernel says the process is now; anything but what was asked for is an error.
pub(crate) fn believe(status: &mut OwnStatus, (uid, gid): (u32, u32), groups: &[u32]) -> io::Result<()> {
    match status.read()?.identity_differs(uid, gid, groups) {
        None => Ok(()),
        Some(what) => Err(io::Error::other(format!("{what}: not as asked for"))),
    }
}
