//! The broker's own confinement: few capabilities, and filters that its children inherit.

use std::io;

use caps::{CapSet, Capability, CapsHashSet};
use seccompiler::SeccompAction;

use crate::enter::step;
use crate::filter::{self, Layer};
use crate::identity::{self, OwnStatus};
use crate::{ConfineError, Rights, policy};

/// What root's broker keeps after probing. `docs/architecture.md`, processes.
const KEPT: [Capability; 9] = [
    Capability::CAP_CHOWN,
    Capability::CAP_DAC_OVERRIDE,
    Capability::CAP_FOWNER,
    Capability::CAP_KILL,
    Capability::CAP_SETGID,
    Capability::CAP_SETUID,
    Capability::CAP_SETPCAP,
    Capability::CAP_SYS_ADMIN,
    Capability::CAP_SYS_PTRACE,
];

/// What an ordinary user's keeps, in its user namespace: namespaces and mounts, looking at what it started, and removing
/// what programs closed to everybody. Nothing has another owner there.
const KEPT_BY_USER: [Capability; 3] =
    [Capability::CAP_DAC_OVERRIDE, Capability::CAP_SYS_ADMIN, Capability::CAP_SYS_PTRACE];

/// Confines the broker's main thread, which goes on to spawn: exactly the capabilities that later steps need,
/// no_new_privs, not dumpable, and the filter that every role and program inherits. Call it while the process has one
/// thread: capabilities and filters are per thread, and threads started later inherit both.
///
/// Only root keeps capabilities over an exec. An ordinary user's broker hands them on as ambient ones, from which the
/// processes it starts build their roots before they give them up.
///
/// # Errors
/// [`ConfineError`]; a second thread is one.
pub fn enter_broker(rights: Rights) -> Result<(), ConfineError> {
    step("threads", alone())?;
    let mut status = step("own status", OwnStatus::open())?;
    let kept: CapsHashSet = match rights {
        Rights::Root => KEPT.into_iter().collect(),
        Rights::User => KEPT_BY_USER.into_iter().collect(),
    };
    let bits = kept.iter().fold(0, |bits, capability| bits | capability.bitmask());
    step("bounding set", identity::empty_bounding_set(|number| bits & (1 << number) != 0))?;
    let set = |set| caps::set(None, set, &kept).map_err(io::Error::other);
    let clear = |set| caps::clear(None, set).map_err(io::Error::other);
    step("capabilities", clear(CapSet::Ambient))?;
    step("capabilities", clear(CapSet::Inheritable))?;
    step("capabilities", set(CapSet::Effective))?;
    step("capabilities", set(CapSet::Permitted))?;
    let handed_on = match rights {
        Rights::Root => 0,
        Rights::User => {
            step("capabilities", set(CapSet::Inheritable))?;
            step("capabilities", set(CapSet::Ambient))?;
            bits
        }
    };
    step("no_new_privs", identity::no_new_privileges())?;
    let dumpable = rustix::process::DumpableBehavior::NotDumpable;
    step("dumpable", rustix::process::set_dumpable_behavior(dumpable).map_err(io::Error::from))?;

    let now = step("own status", status.read())?;
    if now.capabilities != [handed_on, bits, bits, bits, handed_on] || !now.no_new_privs {
        return Err(ConfineError { step: "own status", cause: io::Error::other("not as asked for") });
    }
    let refused = Layer {
        action: SeccompAction::Errno(libc::EPERM.cast_unsigned()),
        rules: policy::broker::REFUSED.iter().collect(),
    };
    filter::load(&filter::build(&[refused], &SeccompAction::Allow)?)
}

/// Waits until the process has one thread: a thread that was joined is still listed for a moment, and nothing tells when it
/// is not.
pub(crate) fn alone() -> io::Result<()> {
    for _ in 0..1000 {
        if std::fs::read_dir("/proc/self/task")?.count() == 1 {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    Err(io::Error::other("the process has several"))
}

/// Closes what the broker inherited beside its standard descriptors: whoever started it may have left something open, and a
/// process that holds a key holds nothing it does not know. To be called first thing in `main`.
///
/// # Errors
/// The error of `close_range` (Linux 5.9).
pub fn close_inherited() -> std::io::Result<()> {
    crate::sys::birth::expect_children();
    crate::sys::close_all()
}

/// Has the calling thread give way: it runs when its turn comes instead of interrupting whoever runs. For a thread that keeps
/// records of what others are serving at that moment.
///
/// # Errors
/// The error of `sched_setscheduler`.
pub fn give_way() -> std::io::Result<()> {
    crate::sys::give_way()
}

/// Confines one of the broker's threads that read a channel or write the trace, on top of what it inherited: no socket,
/// connect, bind, listen, accept, exec, clone3; any of them ends the broker. No thread can be started from it any more.
///
/// # Errors
/// [`ConfineError`].
pub fn enter_broker_thread() -> Result<(), ConfineError> {
    let refused =
        Layer { action: SeccompAction::Trap, rules: policy::broker::THREAD_REFUSED.iter().collect() };
    filter::load(&filter::build(&[refused], &SeccompAction::Allow)?)
}
