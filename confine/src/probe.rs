//! What this host can give programs, found by doing it: on threads that end at once, each in a mount namespace of its own,
//! so that nothing of it is seen by anybody and nothing is left.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use nix::sched::CloneFlags;
use rustix::fs::{CWD, Mode, OFlags};

use crate::composed::{self, Composed};
use crate::enter::step;
use crate::landlocked::{self, Network};
use crate::sys::trial;
use crate::{ConfineError, Rights, root};

/// Builds a Landlock ruleset and restricts a thread with it.
///
/// # Errors
/// [`ConfineError`] naming what fails.
pub fn landlock() -> Result<(), ConfineError> {
    on_a_thread(restrict)
}

/// Composes the root of class `sealed` in a mount namespace of its own, pivots into it, looks whether the host is gone, and
/// restricts itself inside.
///
/// # Errors
/// [`ConfineError`] naming the step that fails.
pub fn sealed(rights: Rights) -> Result<(), ConfineError> {
    match rights {
        Rights::Root => on_a_thread(compose),
        // A procfs belongs to its PID namespace, and the one of the broker is not an ordinary user's to mount.
        Rights::User => trial::in_a_child(|| {
            let processes = nix::sched::unshare(CloneFlags::CLONE_NEWPID).map_err(io::Error::from);
            step("namespaces", processes)?;
            trial::in_a_child(compose)
        }),
    }
}

fn compose() -> Result<(), ConfineError> {
    step("mount namespace", nix::sched::unshare(CloneFlags::CLONE_NEWNS).map_err(io::Error::from))?;
    step("mount propagation", root::detach_propagation())?;
    let nobody = (65_534, 65_534);
    step("composed root", composed::enter(&Composed::default(), nobody, &Vec::new(), &[]))?;
    // There on every host that this process runs on, and not part of the root.
    let gone = [Path::new("/sys/kernel"), Path::new("/proc/sys")].into_iter().all(|path| {
        matches!(rustix::fs::statat(CWD, path, rustix::fs::AtFlags::empty()), Err(rustix::io::Errno::NOENT))
    });
    if !gone {
        return step("composed root", Err(io::Error::other("the host's files are still there")));
    }
    restrict()
}

fn restrict() -> Result<(), ConfineError> {
    let (abi, _) = landlocked::abi()?;
    let opened = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let place = step("landlock", opened.map_err(io::Error::from))?;
    landlocked::enforce(abi, Network::Free, [(place.as_fd(), landlocked::read())])
}

fn on_a_thread(probe: impl FnOnce() -> Result<(), ConfineError> + Send) -> Result<(), ConfineError> {
    let failed = |cause| ConfineError { step: "thread", cause };
    std::thread::scope(|scope| {
        let thread =
            std::thread::Builder::new().name("probe".into()).spawn_scoped(scope, probe).map_err(failed)?;
        thread.join().unwrap_or_else(|_| Err(failed(io::Error::other("it panicked"))))
    })
}
