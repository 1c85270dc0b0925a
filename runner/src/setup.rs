//! From a confined process to one that runs programs: the orders that come first, and what is opened because of them.
//!
//! After [`prepare`] nothing is opened any more but `/dev/null`.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use confine::programs::Dropped;
use ipc::edge::control::{RoleControl, RunnerConfigure, RunnerOrder, ToRole};
use ipc::edge::host_runner::{HostToRunner, RunnerToHost};
use ipc::edge::runner_broker::RunnerToBroker;
use ipc::types::Class;
use ipc::{Channel, ChannelError, Never};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::calls::Calls;
use crate::command::Allowed;
use crate::leaf::Leaf;

/// The most leaves a session has; more is a mistake of the broker's.
const MOST_LEAVES: u32 = 256;

/// Why the runner cannot take calls.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SetupError {
    /// The control channel broke.
    #[error("control channel: {0}")]
    Channel(#[from] ChannelError),
    /// The orders came in another order than Configure, leaves, Run.
    #[error("the broker sent an order out of turn")]
    OutOfTurn,
    /// A program's path is not absolute.
    #[error("the path of the allowed program `{0}` is not absolute")]
    Path(String),
    /// The kernel refused a step.
    #[error("{step}: {cause}")]
    System {
        /// What was tried.
        step: &'static str,
        /// What the kernel said.
        #[source]
        cause: std::io::Error,
    },
    /// The programs' confinement could not be built.
    #[error(transparent)]
    Confine(#[from] confine::ConfineError),
}

fn system<E: Into<std::io::Error>>(step: &'static str) -> impl FnOnce(E) -> SetupError {
    move |cause| SetupError::System { step, cause: cause.into() }
}

/// A runner that is ready.
#[derive(Debug)]
pub(crate) struct Session {
    /// To the broker: orders.
    pub(crate) control: RoleControl<RunnerOrder>,
    /// To sandbox-host.
    pub(crate) host: Channel<RunnerToHost, HostToRunner>,
    /// To the broker: what programs did to their limits.
    pub(crate) broker: Channel<RunnerToBroker, Never>,
    /// Tells that a child ended.
    pub(crate) children: SignalFd,
    /// What may run, and where.
    pub(crate) calls: Calls,
}

/// Takes the orders up to `Run` and prepares for programs; `None` if the session ends before that.
///
/// # Errors
/// [`SetupError`].
pub(crate) fn prepare(
    mut control: RoleControl<RunnerOrder>,
    class: Class,
) -> Result<Option<Session>, SetupError> {
    let Some((order, descriptors)) = next(&mut control)? else { return Ok(None) };
    let (RunnerOrder::Configure(configure), Ok([host, broker])) = (order, <[_; 2]>::try_from(descriptors))
    else {
        return Err(SetupError::OutOfTurn);
    };
    let host = Channel::from_descriptor(host)?;
    let broker = Channel::from_descriptor(broker)?;
    let Some(leaves) = take_leaves(&mut control, configure.leaves)? else { return Ok(None) };

    let children = children().map_err(system("wait for children"))?;
    let allowed = Allowed::new(&configure).map_err(SetupError::Path)?;
    let missing = restrict(&configure, &allowed, class)?;
    for path in missing {
        crate::say(&format!("programs get no {}: nothing is there", path.display()));
    }
    let calls = Calls::new(allowed, leaves);
    Ok(Some(Session { control, host, broker, children, calls }))
}

/// Puts this process, and so every program, under the programs' Landlock layer: the runner needs nothing that programs do
/// not get, a layer is cheaper once than per program, and this way it holds for the runner itself. An explicit `advisory`
/// applies no layer (`docs/decisions.md`, containment classes).
///
/// Returns what was to be granted and is missing.
fn restrict(
    configure: &RunnerConfigure,
    allowed: &Allowed,
    class: Class,
) -> Result<Vec<PathBuf>, SetupError> {
    if class == Class::Advisory {
        return Ok(Vec::new());
    }
    let named = |names: &[&str]| -> Vec<PathBuf> {
        let of_name = |name| configure.environment.iter().find(|(other, _)| other == name);
        let mut paths: Vec<_> =
            names.iter().copied().filter_map(of_name).map(|(_, path)| path.into()).collect();
        paths.dedup();
        paths
    };
    let mut writable = vec![allowed.workdir().to_owned()];
    writable.extend(named(&["HOME", "TMPDIR"]));
    let readable = named(&["MURMUR_RUNTIME_DIR", "MURMUR_RECORDS_DIR"]);
    let grants = confine::programs::Grants { writable, readable, programs: allowed.files() };
    let granted = confine::programs::restrict(&grants)?;
    Ok(granted.dropped.into_iter().map(|Dropped(path)| path).collect())
}

fn next(control: &mut RoleControl<RunnerOrder>) -> Result<Option<(RunnerOrder, Vec<OwnedFd>)>, SetupError> {
    match control.receive() {
        Ok(received) => match received.message {
            ToRole::Order(order) => Ok(Some((order, received.descriptors))),
            ToRole::Shutdown => Ok(None),
            ToRole::Begin(_) => Err(SetupError::OutOfTurn),
        },
        Err(ChannelError::Closed) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Takes exactly `count` leaves in the order of their numbers, then `Run`.
fn take_leaves(control: &mut RoleControl<RunnerOrder>, count: u32) -> Result<Option<Vec<Leaf>>, SetupError> {
    if count > MOST_LEAVES {
        return Err(SetupError::OutOfTurn);
    }
    let mut leaves: Vec<Leaf> = Vec::new();
    loop {
        let Some((order, descriptors)) = next(control)? else { return Ok(None) };
        let here = u32::try_from(leaves.len()).unwrap_or(u32::MAX);
        match (order, <[OwnedFd; 3]>::try_from(descriptors)) {
            (RunnerOrder::Leaf(number), Ok(files)) if number == here && number < count => {
                leaves.push(Leaf::new(files));
            }
            (RunnerOrder::Run, Err(_)) if here == count => return Ok(Some(leaves)),
            _ => return Err(SetupError::OutOfTurn),
        }
    }
}

/// Makes SIGCHLD readable, and blocks every other signal that is not a fault of this process's own: programs share its
/// identity, and a handler of ours (SIGABRT and SIGSYS have one) would let them end it, pid 1 or not. The programs' filter, which
/// is this process's too, sends no SIGSYS, and `abort()` takes its block away itself. A child takes the block back before it
/// executes anything.
fn children() -> nix::Result<SignalFd> {
    use Signal::{SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGTRAP};
    let mut blocked = SigSet::all();
    for fault in [SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGTRAP] {
        blocked.remove(fault);
    }
    blocked.thread_set_mask()?;
    let mut children = SigSet::empty();
    children.add(Signal::SIGCHLD);
    SignalFd::with_flags(&children, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}
