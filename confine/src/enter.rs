//! The steps by which a started process becomes its role, in their one order.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use landlock::{ABI, AccessFs, BitFlags};
use rustix::fs::{CWD, Mode, OFlags};
use seccompiler::SeccompAction;

use crate::filter::{self, Layer};
use crate::identity::{self, OwnStatus};
use crate::landlocked::{self, Network};
use crate::{ConfineError, Report, Resources, Rights, Role, View, composed, policy, root, userns};

/// Names the step an error belongs to.
pub(crate) fn step<T>(step: &'static str, result: io::Result<T>) -> Result<T, ConfineError> {
    result.map_err(|cause| ConfineError { step, cause })
}

/// Confines the calling, single-threaded process for its role. It must be pid 1 of namespaces of its own
/// ([`crate::spawn::spawn`]) and [`crate::handler::arm`] must have been called.
///
/// Afterwards the process has no `/proc`, no `/sys` and (but for egress) no `/etc`: what asks the system for the number of
/// processors, the time zone or a name does so before.
///
/// # Errors
/// [`ConfineError`]; the caller must exit.
pub fn enter(role: Role, resources: Resources) -> Result<Report, ConfineError> {
    let Resources { uid, gid, rights, network, trees, read_only, view } = resources;
    let unix_sockets = matches!(&view, View::Composed(composed) if composed.unix_sockets);
    let mut status = step("own status", OwnStatus::open())?;
    let own = match rights {
        Rights::Root => None,
        Rights::User => Some(userns::OwnFiles::open()?),
    };
    step("mount propagation", root::detach_propagation())?;
    let mut memory_files = false;
    if role == Role::Runner {
        memory_files = step("memory files", root::forbid_executable_memory_files())?;
        match view {
            View::Host { fixed } => {
                step("mounts over the host", root::enter_over_host(&trees, &read_only, fixed))?;
            }
            View::Composed(composed) => {
                step("composed root", composed::enter(&composed, (uid, gid), &trees, &read_only))?;
            }
        }
    } else {
        step("private root", root::enter_private(&trees, &read_only, role == Role::Egress))?;
    }
    drop(trees);
    if let Some(network) = network {
        let joined = nix::sched::setns(network, nix::sched::CloneFlags::CLONE_NEWNET);
        step("network namespace", joined.map_err(io::Error::from))?;
    }
    step("host name", nix::unistd::sethostname("capsule").map_err(io::Error::from))?;
    let groups = match own {
        None => Vec::new(),
        // From here on no capability reaches what was made above; the new ones are given up below like root's.
        Some(own) => {
            userns::nest(&own)?;
            step("own status", status.read())?.groups
        }
    };
    step("bounding set", identity::empty_bounding_set(|_| false))?;
    step("identity", identity::become_user(uid, gid, rights))?;
    step("process", identity::settle(role))?;
    step("allocator", crate::sys::one_arena())?;
    step("capabilities", identity::clear_capabilities())?;
    step("no_new_privs", identity::no_new_privileges())?;
    step("own status", identity::believe(&mut status, (uid, gid), &groups))?;
    drop(status);
    // Built before Landlock closes the file system, loaded after it: its own calls are in no table.
    let program = match policy::table(role) {
        Some(table) => filter::for_table(table)?,
        None => policy::inherited::runner(memory_files, unix_sockets)?,
    };
    let landlock_abi = restrict(role)?;
    filter::load(&program)?;
    Ok(Report { landlock_abi })
}

/// A directory of the private root as a rule's place.
fn place(path: &str) -> Result<OwnedFd, ConfineError> {
    // `openat`: rustix's `open` is a call of its own on x86_64, and sealing happens under the filter.
    let opened = rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    step("landlock", opened.map_err(io::Error::from))
}

/// The directories of each role and what it may do there.
fn places(role: Role, abi: ABI) -> Vec<(&'static str, BitFlags<AccessFs>)> {
    match role {
        Role::Fileserver => vec![("/workdir", landlocked::read())],
        Role::SandboxHost => {
            let mut places = sealed_places(abi);
            places.push(("/cache", landlocked::read()));
            places
        }
        Role::Egress => vec![("/etc", landlocked::read())],
        Role::Door | Role::Compiler | Role::Runner => Vec::new(),
    }
}

/// What sandbox-host keeps.
fn sealed_places(abi: ABI) -> Vec<(&'static str, BitFlags<AccessFs>)> {
    vec![
        ("/workdir", landlocked::read_write(abi)),
        ("/session", landlocked::read_write(abi)),
        ("/runtime", landlocked::read()),
    ]
}

fn enforce(
    abi: ABI,
    network: Network,
    places: &[(&'static str, BitFlags<AccessFs>)],
) -> Result<(), ConfineError> {
    let mut opened = Vec::new();
    for (path, rights) in places {
        opened.push((place(path)?, *rights));
    }
    landlocked::enforce(abi, network, opened.iter().map(|(fd, rights)| (fd.as_fd(), *rights)))
}

fn restrict(role: Role) -> Result<u32, ConfineError> {
    let (abi, version) = landlocked::abi()?;
    let network = match role {
        // Its programs inherit every layer, and what they may touch is known only once it is configured.
        Role::Runner => return Ok(0),
        Role::Egress => Network::Bind,
        Role::Door | Role::Fileserver | Role::SandboxHost | Role::Compiler => Network::All,
    };
    enforce(abi, network, &places(role, abi))?;
    Ok(version)
}

/// Restricts egress to TCP connections to these ports; `None` where an allow-list entry names no port. Call it
/// single-threaded, once its lists are known. Returns whether the kernel bounds the ports (Landlock version 4).
///
/// # Errors
/// [`ConfineError`]; the caller must exit.
pub fn restrict_egress_ports(ports: Option<&[u16]>) -> Result<bool, ConfineError> {
    match ports {
        Some(ports) => landlocked::enforce_ports(landlocked::abi()?.0, ports),
        None => Ok(false),
    }
}

/// Seals sandbox-host once the last component is loaded: the cache directory is out of reach, and no page becomes
/// executable any more.
///
/// Landlock restricts the calling thread and those it starts later, so sandbox-host loads its components and seals itself
/// **before it starts any other thread**; the filter would reach every thread in any case.
///
/// # Errors
/// [`ConfineError`]; the caller must exit.
pub fn seal_sandbox_host() -> Result<(), ConfineError> {
    let layer = Layer { action: SeccompAction::Trap, rules: policy::host::SEALED.iter().collect() };
    let program = filter::build(&[layer], &SeccompAction::Allow)?;
    let (abi, _) = landlocked::abi()?;
    enforce(abi, Network::All, &sealed_places(abi))?;
    filter::load_everywhere(&program)
}
