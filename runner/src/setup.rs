//! From a confined process to one that runs programs: the orders that come first, and what is opened because of them.
//!
//! After [`prepare`] nothing is opened any more but `/dev/null`, the runner's own `/proc` and sockets to the session's loopback.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use confine::programs::Dropped;
use ipc::edge::control::{Programs, RoleControl, RunnerConfigure, RunnerOrder, ToRole};
use ipc::edge::host_runner::{HostToRunner, RunnerToHost};
use ipc::edge::runner_broker::RunnerToBroker;
use ipc::types::Class;
use ipc::{Channel, ChannelError, Never};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::command::Allowed;
use crate::leaf::Leaf;
use crate::leaves::{Leaves, Tasks};

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
    /// What may run.
    pub(crate) allowed: Allowed,
    /// And where.
    pub(crate) leaves: Leaves,
}

/// Takes the orders up to `Run` and prepares for programs; `None` if the session ends before that.
///
/// # Errors
/// [`SetupError`].
pub(crate) fn prepare(
    mut control: RoleControl<RunnerOrder>,
    programs: Programs,
) -> Result<Option<Session>, SetupError> {
    let Some((order, descriptors)) = next(&mut control)? else { return Ok(None) };
    let RunnerOrder::Configure(configure) = order else { return Err(SetupError::OutOfTurn) };
    let mut descriptors = descriptors.into_iter();
    let (Some(host), Some(broker)) = (descriptors.next(), descriptors.next()) else {
        return Err(SetupError::OutOfTurn);
    };
    let tasks = descriptors.next().zip(descriptors.next());
    let tasks = tasks.map(|(events, current)| Tasks { events, current, max: configure.pids_max });
    let host = Channel::from_descriptor(host)?;
    let broker = Channel::from_descriptor(broker)?;
    let Some(leaves) = take_leaves(&mut control, &configure)? else { return Ok(None) };

    let children = children().map_err(system("wait for children"))?;
    let allowed = Allowed::new(&configure).map_err(SetupError::Path)?;
    let missing = restrict(&configure, &allowed, &programs)?;
    for path in missing {
        crate::say(&format!("programs get no {}: nothing is there", path.display()));
    }
    Ok(Some(Session { control, host, broker, children, allowed, leaves: Leaves::new(leaves, tasks) }))
}

/// Puts this process, and so every program, under the programs' Landlock layer: the runner needs nothing that programs do
/// not get, a layer is cheaper once than per program, and this way it holds for the runner itself. An explicit `advisory`
/// applies no layer (`docs/decisions.md`, containment classes).
///
/// Returns what was to be granted and is missing.
fn restrict(
    configure: &RunnerConfigure,
    allowed: &Allowed,
    programs: &Programs,
) -> Result<Vec<PathBuf>, SetupError> {
    if programs.tier == Class::Advisory {
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
    let shown = |list| programs.shown.iter().filter(move |shown| shown.list == list);
    let mut readable = named(&["MURMUR_RUNTIME_DIR", "MURMUR_RECORDS_DIR"]);
    readable.extend(shown(true).map(|shown| PathBuf::from(&shown.path)));
    let grants = confine::programs::Grants {
        writable,
        writable_executes: programs.workdir_exec,
        sockets: programs.unix_sockets,
        readable,
        unlisted: shown(false).map(|shown| PathBuf::from(&shown.path)).collect(),
        composed: programs.tier == Class::Sealed,
        programs: allowed.files(),
    };
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

/// Takes exactly as many leaves as were announced, in the order of their numbers, then `Run`.
fn take_leaves(
    control: &mut RoleControl<RunnerOrder>,
    configure: &RunnerConfigure,
) -> Result<Option<Vec<Leaf>>, SetupError> {
    if configure.leaves > MOST_LEAVES {
        return Err(SetupError::OutOfTurn);
    }
    let mut leaves: Vec<Leaf> = Vec::new();
    loop {
        let Some((order, descriptors)) = next(control)? else { return Ok(None) };
        let here = u32::try_from(leaves.len()).unwrap_or(u32::MAX);
        match order {
            RunnerOrder::Leaf { number, controllers } if number == here && number < configure.leaves => {
                leaves.push(Leaf::new(descriptors, controllers).ok_or(SetupError::OutOfTurn)?);
            }
            RunnerOrder::Run if here == configure.leaves => return Ok(Some(leaves)),
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
