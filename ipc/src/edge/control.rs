//! broker ↔ each process it starts: who to become, what to hold, when to stop.
//!
//! The order is fixed: hello (plain bytes, see [`hello`]) → `Begin` → the process confines itself → `Ready` → the broker
//! checks it from outside → `Configure` and whatever that role gets next → `Shutdown`. Nothing worth having travels before
//! `Ready` was checked.

use std::marker::PhantomData;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Instant;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::channel::{ChannelError, Message};
use crate::types::Class;
use crate::{BUILD_ID, Channel};

/// The first packet on a control channel, from the started process: a build that would read later packets differently is
/// refused by these bytes alone.
#[must_use]
pub fn hello() -> String {
    format!("capsule-broker {} {BUILD_ID}", env!("CARGO_PKG_VERSION"))
}

/// Broker to a started process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(deserialize = "O: DeserializeOwned"))]
pub enum ToRole<O> {
    /// Become this: sent once, first. Descriptors: the network namespace to join if `join_network`, then one detached
    /// mount per entry of `trees`.
    Begin(Begin),
    /// An order of this role's own, only after `Ready` was checked.
    Order(O),
    /// Finish and exit with status 0.
    Shutdown,
}

/// What a process has to become before it gets anything to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Begin {
    /// Real, effective and saved uid to take.
    pub uid: u32,
    /// The same for the gid; supplementary groups are emptied.
    pub gid: u32,
    /// Whether it has that uid and gid already, of an ordinary user, and ends in a further user namespace; supplementary
    /// groups stay then.
    pub user_namespace: bool,
    /// Whether the first descriptor is a network namespace to join.
    pub join_network: bool,
    /// Absolute path of each detached mount in the role's own view: below its private or composed root, or (runner, over
    /// the host's root) over the host's path.
    pub trees: Vec<String>,
    /// Absolute paths in the role's own view, each below one of `trees`, that it may read and not change.
    pub read_only: Vec<String>,
    /// What programs see and may touch; for the runner alone.
    pub programs: Option<Programs>,
}

/// The file system of programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Programs {
    /// The class whose mechanisms are applied to programs. It is the session's class, but for a manifest with
    /// `workdir_exec`, whose session is called `advisory` and keeps what it can.
    pub tier: Class,
    /// Home directory of the session's account.
    pub home: String,
    /// Further directories of the host that programs may read: in the root of tier `sealed` they are shown at their own paths.
    pub shown: Vec<ShownDirectory>,
    /// Whether what programs write may be executed (`capabilities.filesystem.workdir_exec`).
    pub workdir_exec: bool,
    /// Whether they may make Unix sockets (`capabilities.network.unix_sockets`); tier `sealed` alone.
    pub unix_sockets: bool,
}

/// A directory of the host that programs may read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownDirectory {
    /// Absolute path, without a symbolic link in it.
    pub path: String,
    /// Whether it may be listed, or only read by name.
    pub list: bool,
}

impl<O: Message> Message for ToRole<O> {
    const MAX_DESCRIPTORS: usize = if O::MAX_DESCRIPTORS > 5 { O::MAX_DESCRIPTORS } else { 5 };

    fn descriptors(&self) -> usize {
        match self {
            ToRole::Begin(begin) => usize::from(begin.join_network) + begin.trees.len(),
            ToRole::Order(order) => order.descriptors(),
            ToRole::Shutdown => 0,
        }
    }
}

/// A started process to the broker.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromRole {
    /// Locked down and waiting for orders.
    Ready(Report),
    /// sandbox-host only: the last component is loaded and no further executable page can be made.
    Sealed,
    /// A step before `Ready` failed; the process exits after this.
    Failed(String),
}

/// What a process says of its own lockdown; the broker believes what it sees from outside.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// The Landlock version that was enforced; 0 for none.
    pub landlock_abi: u32,
}

impl Message for FromRole {
    const MAX_DESCRIPTORS: usize = 0;

    fn descriptors(&self) -> usize {
        0
    }
}

/// The control channel as the started process holds it.
pub type RoleControl<O> = Channel<FromRole, ToRole<O>>;

/// The control channel as the broker holds it.
pub type BrokerControl<O> = Channel<ToRole<O>, FromRole>;

/// A role's side of the first steps: says hello, waits for `Begin`.
#[derive(Debug)]
pub struct Birth<O> {
    marker: PhantomData<O>,
}

impl<O: Message> Birth<O> {
    /// Takes the control descriptor, says hello and waits for `Begin`.
    ///
    /// # Errors
    /// [`ChannelError`]; an order before `Begin` is `ChannelError::NotAChannel`.
    pub fn begin(
        descriptor: OwnedFd,
        deadline: Instant,
    ) -> Result<(RoleControl<O>, Begin, Vec<OwnedFd>), ChannelError> {
        use std::os::fd::AsFd;
        let mut control = RoleControl::<O>::from_descriptor(descriptor)?;
        crate::sys::send_packet(control.as_fd(), hello().as_bytes(), &[], true)?;
        let received = control.receive_until(deadline)?;
        match received.message {
            ToRole::Begin(begin) => Ok((control, begin, received.descriptors)),
            ToRole::Order(_) | ToRole::Shutdown => Err(ChannelError::NotAChannel),
        }
    }
}

/// Broker's side: waits for the hello and compares it.
///
/// # Errors
/// [`ChannelError`]; [`ChannelError::Codec`] if the sibling is of another build.
pub fn expect_hello<O: Message>(control: &BrokerControl<O>, deadline: Instant) -> Result<(), ChannelError> {
    use std::os::fd::AsFd;
    let mut buffer = [0; 256];
    loop {
        match crate::sys::receive_packet(control.as_fd(), &mut buffer, 0, false) {
            Ok(packet) if packet.length == 0 => return Err(ChannelError::Closed),
            Ok(packet) => {
                let same = buffer.get(..packet.length) == Some(hello().as_bytes());
                let malformed = ChannelError::Codec(crate::codec::CodecError::Malformed);
                return if same && !packet.truncated { Ok(()) } else { Err(malformed) };
            }
            Err(rustix::io::Errno::AGAIN) => {
                if !crate::channel::wait(control.as_fd(), rustix::event::PollFlags::IN, deadline)? {
                    return Err(ChannelError::TimedOut);
                }
            }
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Orders to the door.
#[derive(Debug, Serialize, Deserialize)]
pub enum DoorOrder {
    /// The constants of the session. Descriptor: the channel to the broker ([`super::door_broker`]).
    Configure(DoorConfigure),
    /// A (new) fileserver. Descriptors: the channel to it ([`super::door_fileserver`]), the window, read-only. A second one
    /// replaces the first: requests in flight at the old one are answered 500 `io_error`.
    Fileserver,
    /// The sandbox-host. Descriptor: the channel to it ([`super::door_host`]).
    SandboxHost,
    /// Serve. Descriptor: the listening socket. Always last.
    Serve,
}

/// The constants a door answers with.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DoorConfigure {
    /// The class really applied.
    pub class: Class,
    /// The operator plane, if declared.
    pub files: Option<PlaneConstants>,
    /// Whether `exports.peer_files` is declared.
    pub peer_files: bool,
    /// The first [`crate::types::RequestId`] of this door; none of them was or will be used by another door of the session.
    pub requests_from: u64,
    /// The whole agent card, compact JSON.
    pub card: String,
    /// Whether `POST /` is answered (false when serving without an agent).
    pub agent: bool,
}

/// The constants of the operator plane.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PlaneConstants {
    /// `exports.files.root` verbatim.
    pub root: String,
    /// `exports.files.max_bytes`.
    pub max_bytes: u64,
}

impl Message for DoorOrder {
    const MAX_DESCRIPTORS: usize = 2;

    fn descriptors(&self) -> usize {
        match self {
            DoorOrder::Configure(_) | DoorOrder::SandboxHost | DoorOrder::Serve => 1,
            DoorOrder::Fileserver => 2,
        }
    }
}

/// Orders to the fileserver.
#[derive(Debug, Serialize, Deserialize)]
pub enum FileserverOrder {
    /// What to serve. Descriptors: the channel to the broker ([`super::broker_fileserver`]), the window, writable, the
    /// generation page.
    Configure(FileserverConfigure),
    /// A (new) door. Descriptor: the channel to it ([`super::door_fileserver`]). Every slot the old one held is free again.
    Door,
}

/// What a fileserver serves. Its one directory is the accessible workdir, mounted at [`crate::edge::control::WORKDIR`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FileserverConfigure {
    /// The class really applied: decides about symbolic links.
    pub class: Class,
    /// The operator plane, if declared.
    pub files: Option<ExportRoot>,
    /// The peer plane, if declared.
    pub peer_files: Option<ExportRoot>,
}

/// An export root as the fileserver walks it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExportRoot {
    /// The root as declared, for listings.
    pub verbatim: String,
    /// Components of the root below the accessible workdir, without `.`; empty for the workdir itself.
    pub components: Vec<String>,
    /// Canonical host path of the root at launch, where it existed: absolute links that begin with it stay inside.
    pub host_path: Option<String>,
    /// The most bytes one read serves.
    pub max_bytes: u64,
}

/// Where a role that has the accessible workdir finds it in its private root.
pub const WORKDIR: &str = "/workdir";
/// Where sandbox-host finds the session directory.
pub const SESSION: &str = "/session";
/// Where sandbox-host finds the read-only runtime directory.
pub const RUNTIME: &str = "/runtime";
/// Where sandbox-host finds compiled components until it is sealed.
pub const CACHE: &str = "/cache";

impl Message for FileserverOrder {
    const MAX_DESCRIPTORS: usize = 3;

    fn descriptors(&self) -> usize {
        match self {
            FileserverOrder::Configure(_) => 3,
            FileserverOrder::Door => 1,
        }
    }
}

/// Orders to sandbox-host.
#[derive(Debug, Serialize, Deserialize)]
pub enum HostOrder {
    /// The agent. Descriptors: the channel to the broker ([`super::host_broker`]), the channel to the runner
    /// ([`super::host_runner`]), a sealed memory file with an [`super::host_broker::Agent`] document.
    Configure,
    /// A (new) door. Descriptor: the channel from it ([`super::door_host`]).
    Door,
    /// A (new) egress. Descriptor: the channel to it ([`super::host_egress`]).
    Egress,
    /// Everything is wired and the components are to be loaded: load, seal, answer `Sealed`. After that, run.
    Load,
    /// The session is on record and clients may come: start the launch's own task, if any.
    Run,
}

impl Message for HostOrder {
    const MAX_DESCRIPTORS: usize = 3;

    fn descriptors(&self) -> usize {
        match self {
            HostOrder::Configure => 3,
            HostOrder::Door | HostOrder::Egress => 1,
            HostOrder::Load | HostOrder::Run => 0,
        }
    }
}

/// Orders to the runner.
#[derive(Debug, Serialize, Deserialize)]
pub enum RunnerOrder {
    /// What may run and how. Descriptors: the channel from sandbox-host ([`super::host_runner`]), the channel to the
    /// broker ([`super::runner_broker`]), with [`Controllers::pids`] the scope's `pids.events`
    /// and `pids.current`.
    Configure(RunnerConfigure),
    /// One cgroup leaf. Descriptors: its `cgroup.procs`, `cgroup.kill` and `cgroup.events`, then those of its `memory.events`
    /// and `pids.events` that there are.
    Leaf {
        /// Counted from 0.
        number: u32,
        /// As in [`RunnerConfigure`].
        controllers: Controllers,
    },
    /// All leaves are there: take calls.
    Run,
}

/// What a runner may run and under which limits.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunnerConfigure {
    /// The accessible workdir as programs see it: their working directory.
    pub workdir: String,
    /// Allowed programs: name as in `capabilities.shell.allow`, absolute path found at launch.
    pub programs: Vec<(String, String)>,
    /// The whole environment of a program, before what a request adds.
    pub environment: Vec<(String, String)>,
    /// Resource limits of each program.
    pub limits: Limits,
    /// Number of leaves that follow.
    pub leaves: u32,
    /// What the leaves count.
    pub controllers: Controllers,
    /// Tasks of all programs together (`pids.max` of the scope).
    pub pids_max: u64,
    /// Patterns of variables that no request sets (`capabilities.shell.strip_env`): exact, `X*`, `*X` or `*X*`.
    pub strip_env: Vec<String>,
}

/// The controllers whose events tell that a limit was hit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Controllers {
    /// `memory.events`
    pub memory: bool,
    /// `pids.events`
    pub pids: bool,
}

/// Resource limits of a program (`capabilities.resources`); the aggregate ones sit on the session's cgroup.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Limits {
    /// `RLIMIT_NOFILE`.
    pub open_files: u64,
    /// `RLIMIT_FSIZE`, bytes.
    pub file_size: u64,
    /// `RLIMIT_CPU`, seconds; the hard limit is one more.
    pub cpu_seconds: u64,
    /// `RLIMIT_AS`, bytes.
    pub memory: u64,
    /// `RLIMIT_NPROC`, tasks.
    pub processes: u64,
}

impl Message for RunnerOrder {
    const MAX_DESCRIPTORS: usize = 5;

    fn descriptors(&self) -> usize {
        match self {
            RunnerOrder::Configure(configure) => 2 + 2 * usize::from(configure.controllers.pids),
            RunnerOrder::Leaf { controllers, .. } => {
                3 + usize::from(controllers.memory) + usize::from(controllers.pids)
            }
            RunnerOrder::Run => 0,
        }
    }
}

/// Orders to egress.
#[derive(Debug, Serialize, Deserialize)]
pub enum EgressOrder {
    /// What may be reached. Descriptors: the channel from sandbox-host ([`super::host_egress`]), the channel to the broker
    /// ([`super::egress_broker`]), then one PEM file of trusted certificates per `certificates`, open for reading.
    Configure(EgressConfigure),
    /// Where programs ask for names. Descriptor: a datagram socket of the session's network that tells destinations
    /// ([`crate::sys::datagram`]). Between `Configure` and `Run`, at most once.
    Resolver,
    /// Where programs' connections arrive. Descriptor: a listening socket of the session's network, non-blocking. Between
    /// `Configure` and `Run`, at most [`MAX_LISTENERS`] times.
    Listener,
    /// A further channel from sandbox-host is never needed: egress is restarted whole.
    Run,
}

/// What an egress may reach, per artifact.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EgressConfigure {
    /// Gateways by artifact name.
    pub gateways: Vec<Gateway>,
    /// Allow-lists by artifact name.
    pub allow: Vec<(String, Vec<NetworkRule>)>,
    /// Where agent cards may be fetched (`capabilities.network.allow`), if handles may be minted.
    pub card: Option<Vec<NetworkRule>>,
    /// Where handles may be redeemed (`capabilities.peer_fetch.allow`), if they may be.
    pub redeem: Option<Vec<NetworkRule>>,
    /// Where programs may connect (`capabilities.network.allow`).
    pub programs: Vec<NetworkRule>,
    /// Where the session's own door listens, which no name leads to.
    pub door: Option<SocketAddr>,
    /// Number of attached PEM files, at most [`MAX_CERTIFICATE_FILES`]; with none, TLS trusts nobody.
    pub certificates: u8,
}

/// The most files of trusted certificates: the system's own and a few of the operator's.
pub const MAX_CERTIFICATE_FILES: u8 = 4;

/// The most ports at which programs' connections are taken.
pub const MAX_LISTENERS: usize = 16;

/// The upstream of one artifact's gateway.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Gateway {
    /// The artifact that declares it.
    pub artifact: String,
    /// `https`, else `http`.
    pub tls: bool,
    /// Host name or address, lower-case, IPv6 without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
}

/// One entry of an allow-list (`capabilities.network.allow`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkRule {
    /// The scheme it pins, if any.
    pub scheme: Option<Scheme>,
    /// Host name or address, lower-case, IPv6 without brackets.
    pub host: String,
    /// The port it pins, if any.
    pub port: Option<u16>,
}

/// A URL scheme egress speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scheme {
    /// `http`.
    Http,
    /// `https`.
    Https,
}

impl Message for EgressOrder {
    const MAX_DESCRIPTORS: usize = 2 + MAX_CERTIFICATE_FILES as usize;

    fn descriptors(&self) -> usize {
        match self {
            EgressOrder::Configure(configure) => 2 + usize::from(configure.certificates),
            EgressOrder::Resolver | EgressOrder::Listener => 1,
            EgressOrder::Run => 0,
        }
    }
}

/// Orders to the compiler.
#[derive(Debug, Serialize, Deserialize)]
pub enum CompilerOrder {
    /// Compile one artifact. Descriptors: the channel for the answer ([`super::compiler`]), the artifact's bytes
    /// (read-only), the file the native code goes to (write-only, empty).
    Compile(super::compiler::Job),
}

impl Message for CompilerOrder {
    const MAX_DESCRIPTORS: usize = 3;

    fn descriptors(&self) -> usize {
        3
    }
}
