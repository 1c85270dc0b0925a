//! Everything needed to start each process of the session, at launch and again when one of the stateless three has died.

use std::cell::Cell;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use confine::spawn::Program;
use ipc::edge::control::{
    Begin, CACHE, DoorConfigure, DoorOrder, EgressConfigure, EgressOrder, FileserverConfigure,
    FileserverOrder, HostOrder, Programs, RUNTIME, RunnerOrder, SESSION, WORKDIR,
};
use ipc::memory::CounterWriter;
use ipc::{Channel, Message};

use super::class::Containment;
use super::launch::MadeWorkdir;
use super::peer::Peer;
use super::places::Places;
use super::process::{self, Begun, Kind, Process, Spawned};
use super::readers::{self, Bell};
use crate::host::cgroup::{Bound, Groups};
use crate::host::dirs::Dir;
use crate::host::ordinary::User;
use crate::host::uids::{Id, Ids};
use crate::host::workdir::{Sharing, tree};
use crate::refusal::Refusal;
use crate::trace::Trace;

/// A network namespace and its inode.
#[derive(Debug)]
pub(crate) struct Network {
    descriptor: OwnedFd,
    inode: u64,
}

impl Network {
    /// Takes a namespace.
    ///
    /// # Errors
    /// `E-CAP-005`.
    pub(crate) fn new(made: std::io::Result<OwnedFd>) -> Result<Network, Refusal> {
        let refuse = |error: std::io::Error| {
            Refusal::new("E-CAP-005", "network namespace", format!("it cannot be made: {error}"))
                .hint("run the broker as root, or allow it CAP_SYS_ADMIN")
        };
        let descriptor = made.map_err(refuse)?;
        let stat = rustix::fs::fstat(&descriptor).map_err(|errno| refuse(errno.into()))?;
        Ok(Network { descriptor, inode: stat.st_ino })
    }
}

/// The sockets of the session's network that egress answers at. The broker holds them for the next egress and uses none.
#[derive(Debug)]
pub(crate) struct WaysOut {
    /// Where programs ask for names.
    resolver: OwnedFd,
    /// Where their connections arrive.
    listeners: Vec<OwnedFd>,
}

impl WaysOut {
    /// Takes a session's network apart.
    ///
    /// # Errors
    /// `E-CAP-005`.
    pub(crate) fn of(
        made: std::io::Result<confine::net::SessionNetwork>,
    ) -> Result<(Network, WaysOut), Refusal> {
        let mut sockets = None;
        let namespace = made.map(|made| {
            sockets = Some(WaysOut { resolver: made.resolver, listeners: made.listeners });
            made.namespace
        });
        let network = Network::new(namespace)?;
        let sockets = sockets.ok_or_else(|| Refusal::broken("network namespace", "it has no sockets"))?;
        Ok((network, sockets))
    }
}

/// Where the sibling binaries are: beside the broker (a checkout), else in `../libexec/capsule-broker` (an installation).
///
/// # Errors
/// `/proc` does not say where the broker is.
pub(crate) fn installation() -> Result<PathBuf, Refusal> {
    let own = std::env::current_exe().map_err(|error| Refusal::io("/proc/self/exe", &error))?;
    let beside = own.parent().map(PathBuf::from).unwrap_or_default();
    let installed = beside.join("../libexec/capsule-broker");
    Ok(if beside.join("door").exists() { beside } else { installed })
}

/// The sibling binaries, opened once before the broker gives up its rights.
#[derive(Debug)]
pub(crate) struct Siblings {
    programs: Vec<(Kind, Program)>,
}

impl Siblings {
    /// Opens them.
    ///
    /// # Errors
    /// `E-RUN-006` naming the binary that is missing.
    pub(crate) fn open(kinds: &[Kind]) -> Result<Siblings, Refusal> {
        let directory = installation()?;
        let mut programs = Vec::new();
        for kind in kinds {
            let program = Program::open(&directory, kind.name()).map_err(|error| {
                Refusal::new(
                    "E-RUN-006",
                    directory.join(kind.name()).display().to_string(),
                    error.to_string(),
                )
                .hint("install all binaries of one version together")
            })?;
            programs.push((*kind, program));
        }
        Ok(Siblings { programs })
    }

    fn get(&self, kind: Kind) -> Result<&Program, Refusal> {
        self.programs
            .iter()
            .find_map(|(found, program)| (*found == kind).then_some(program))
            .ok_or_else(|| Refusal::broken(kind.name(), "its binary was not opened at launch"))
    }
}

/// Starts processes.
#[derive(Debug)]
pub(crate) struct Starter {
    /// Sibling binaries.
    pub(crate) siblings: Siblings,
    /// The session's groups.
    pub(crate) groups: Groups,
    /// Its ids.
    pub(crate) ids: Ids,
    /// The user whose id they all are, if the broker is not root's.
    pub(crate) user: Option<User>,
    /// How roles that see the workdir are identified.
    pub(crate) sharing: Sharing,
    /// The accessible workdir.
    pub(crate) workdir: MadeWorkdir,
    /// Shared by all that need no network.
    pub(crate) empty: Network,
    /// The session's own, for programs.
    pub(crate) session_network: Network,
    /// The class, and what it means for programs.
    pub(crate) containment: Containment,
    /// `filesystem.read_only`: plain paths relative to the workdir.
    pub(crate) read_only: Vec<PathBuf>,
    /// The session network's ways out, for each egress, if there are programs.
    pub(crate) ways_out: Option<WaysOut>,
    /// Whether processes' logs are shown.
    pub(crate) quiet: bool,
    /// `capabilities.limits.memory_bytes`
    pub(crate) component_memory: u64,
    /// Compiled components.
    pub(crate) cache: Dir,
    /// Whether the session's `tmp/` stands at `/tmp` for programs.
    pub(crate) tmp_mapped: bool,
    /// The generation counter.
    pub(crate) generation: Arc<CounterWriter>,
    /// Its page for readers.
    pub(crate) generation_page: OwnedFd,
    /// The trace.
    pub(crate) trace: Trace,
    /// Wakes the supervisor.
    pub(crate) bell: Bell,
    /// Handles, and the key.
    pub(crate) peer: Arc<Peer>,
    /// Trusted certificates for egress, as sealed memory files.
    pub(crate) certificates: Vec<OwnedFd>,
    /// Doors started so far: each numbers its requests from a range of its own.
    pub(crate) doors: Cell<u64>,
}

/// Requests one door can number; none makes as many.
const REQUESTS_PER_DOOR: u64 = 1 << 40;

/// A pair of channel ends for an edge between two processes: what each of them gets.
type Ends = (OwnedFd, OwnedFd);

fn edge<A: Message, B: Message>() -> Result<Ends, Refusal> {
    let (left, right) = pair::<A, B>()?;
    Ok((descriptor(left)?, descriptor(right)?))
}

fn pair<A: Message, B: Message>() -> Result<ipc::channel::Pair<A, B>, Refusal> {
    ipc::pair::<A, B>().map_err(|error| Refusal::broken("channel", error.to_string()))
}

fn descriptor<A: Message, B: Message>(channel: Channel<A, B>) -> Result<OwnedFd, Refusal> {
    channel.into_descriptor().map_err(|error| Refusal::broken("channel", error.to_string()))
}

fn memory(error: &ipc::memory::MemoryError) -> Refusal {
    Refusal::broken("shared memory", error.to_string())
}

fn thread(error: &std::io::Error) -> Refusal {
    Refusal::broken("broker", format!("a thread cannot be started: {error}"))
}

impl Starter {
    /// What a process of ours may use up: far more than it needs, so that one that was taken over takes no more.
    fn bound(&self, kind: Kind) -> Bound {
        const MIB: u64 = 1 << 20;
        let memory = match kind {
            Kind::Door | Kind::Runner => 256 * MIB,
            Kind::Egress => 512 * MIB,
            Kind::Fileserver => 1024 * MIB,
            Kind::Compiler => 4096 * MIB,
            // A driver, a tool, a hook and one more, each at its own limit.
            Kind::SandboxHost => self.component_memory.saturating_mul(4).saturating_add(1024 * MIB),
        };
        Bound { memory, pids: 256 }
    }

    /// Starts a binary; `begin` and `ready` follow.
    ///
    /// # Errors
    /// See [`process::spawn`].
    pub(crate) fn spawn<O: Message>(&self, kind: Kind) -> Result<Spawned<O>, Refusal> {
        let group = self
            .groups
            .role(kind.name(), self.bound(kind))
            .map_err(|error| Refusal::io(kind.name(), &error))?;
        process::spawn(kind, self.siblings.get(kind)?, Some(group.as_fd()), self.quiet)
    }

    /// Tells a spawned process what to become.
    ///
    /// # Errors
    /// `E-IO-003` if a mount cannot be made; see [`Spawned::begin`].
    pub(crate) fn begin<O: Message>(
        &self,
        kind: Kind,
        spawned: Spawned<O>,
        places: &Places,
    ) -> Result<Begun<O>, Refusal> {
        let shared = matches!(self.sharing, Sharing::Owner);
        let opened = self.workdir.get()?;
        let id = |own: Id| if shared { opened.owner } else { own };
        let workdir = &opened.dir;
        let (identity, network, trees) = match kind {
            Kind::Door => (self.ids.door, Some(&self.empty), vec![]),
            Kind::Egress => (self.ids.egress, None, vec![]),
            Kind::Compiler => (self.ids.compiler, Some(&self.empty), vec![]),
            Kind::Fileserver => {
                let map = self.sharing.fileserver();
                (
                    id(self.ids.fileserver),
                    Some(&self.empty),
                    vec![(WORKDIR.to_owned(), tree(workdir, map, true))],
                )
            }
            Kind::SandboxHost => {
                let map = self.sharing.sandbox_host();
                let trees = vec![
                    (WORKDIR.to_owned(), tree(workdir, map, false)),
                    (SESSION.to_owned(), tree(&places.session, map, false)),
                    (RUNTIME.to_owned(), tree(&places.runtime, None, true)),
                    // Not noexec, or its files could not be mapped as code.
                    (CACHE.to_owned(), confine::mount::code_tree(self.cache.as_fd())),
                ];
                (id(self.ids.sandbox_host), Some(&self.empty), trees)
            }
            Kind::Runner => {
                let map = self.sharing.programs();
                let at = |dir: &Dir| dir.path().display().to_string();
                let tree_of_programs = |dir: &Dir| match self.containment.workdir_exec {
                    true => confine::mount::executable_tree(dir.as_fd(), map),
                    false => tree(dir, map, false),
                };
                let mut trees = vec![
                    (at(workdir), tree_of_programs(workdir)),
                    (at(&places.session), tree_of_programs(&places.session)),
                    (at(&places.runtime), tree(&places.runtime, None, true)),
                ];
                if self.tmp_mapped {
                    let tmp = places.session.child("tmp").and_then(|tmp| tree_of_programs(&tmp));
                    trees.push(("/tmp".to_owned(), tmp));
                }
                (id(self.ids.programs), Some(&self.session_network), trees)
            }
        };
        let mut descriptors: Vec<OwnedFd> = Vec::new();
        let mut mount_points = Vec::new();
        for (at, made) in trees {
            descriptors
                .push(made.map_err(|error| Refusal::io(format!("{}: mount of {at}", kind.name()), &error))?);
            mount_points.push(at);
        }
        let begin = Begin {
            uid: identity.0,
            gid: identity.1,
            user_namespace: self.user.is_some(),
            join_network: network.is_some(),
            trees: mount_points,
            read_only: self.read_only_below(kind, workdir.path()),
            programs: (kind == Kind::Runner).then(|| self.programs(places)),
        };
        let attached: Vec<BorrowedFd<'_>> = network
            .map(|network| network.descriptor.as_fd())
            .into_iter()
            .chain(descriptors.iter().map(AsFd::as_fd))
            .collect();
        spawned.begin(&begin, &attached)
    }

    /// The paths that a role may read and not change, where it has the workdir to write.
    fn read_only_below(&self, kind: Kind, workdir: &Path) -> Vec<String> {
        let root = match kind {
            Kind::SandboxHost => Path::new(WORKDIR),
            Kind::Runner => workdir,
            Kind::Door | Kind::Fileserver | Kind::Egress | Kind::Compiler => return Vec::new(),
        };
        self.read_only.iter().map(|below| root.join(below).display().to_string()).collect()
    }

    /// What programs see and may touch.
    fn programs(&self, places: &Places) -> Programs {
        Programs {
            tier: self.containment.tier,
            home: places.session.path().join("home").display().to_string(),
            shown: self.containment.shown.clone(),
            workdir_exec: self.containment.workdir_exec,
            unix_sockets: self.containment.unix_sockets,
        }
    }

    /// Waits for `Ready` and checks the process from outside.
    ///
    /// # Errors
    /// See [`Begun::ready`].
    pub(crate) fn ready<O: Message>(&self, kind: Kind, begun: Begun<O>) -> Result<Process<O>, Refusal> {
        let network = match kind {
            Kind::Egress => None,
            Kind::Runner => Some(self.session_network.inode),
            Kind::Door | Kind::Fileserver | Kind::SandboxHost | Kind::Compiler => Some(self.empty.inode),
        };
        begun.ready(network, self.user.as_ref().map_or(&[], |user| user.groups.as_slice()))
    }

    /// All three steps, for a process that is started alone.
    ///
    /// # Errors
    /// See the steps.
    pub(crate) fn start<O: Message>(&self, kind: Kind, places: &Places) -> Result<Process<O>, Refusal> {
        let spawned = self.spawn(kind)?;
        let begun = self.begin(kind, spawned, places)?;
        self.ready(kind, begun)
    }

    /// Gives a fileserver its work: returns the window's read-only descriptor for the door.
    ///
    /// # Errors
    /// Exit status 3.
    pub(crate) fn configure_fileserver(
        &self,
        fileserver: &Process<FileserverOrder>,
        configure: &FileserverConfigure,
    ) -> Result<OwnedFd, Refusal> {
        let (window, window_reader) = ipc::memory::window().map_err(|error| memory(&error))?;
        let (served, theirs) = pair()?;
        readers::fileserver(
            Some(fileserver.pid()),
            served,
            self.trace.clone(),
            Arc::clone(&self.peer),
            self.bell.clone(),
        )
        .map_err(|error| thread(&error))?;
        let theirs = descriptor(theirs)?;
        fileserver.order(
            FileserverOrder::Configure(configure.clone()),
            &[theirs.as_fd(), window.as_fd(), self.generation_page.as_fd()],
        )?;
        Ok(window_reader)
    }

    /// Connects a door and a fileserver.
    ///
    /// # Errors
    /// Exit status 3.
    pub(crate) fn connect_fileserver(
        &self,
        door: &Process<DoorOrder>,
        fileserver: &Process<FileserverOrder>,
        window_reader: &OwnedFd,
    ) -> Result<(), Refusal> {
        use ipc::edge::door_fileserver::{DoorToFileserver, FileserverToDoor};
        let (to_fileserver, to_door) = edge::<DoorToFileserver, FileserverToDoor>()?;
        fileserver.order(FileserverOrder::Door, &[to_door.as_fd()])?;
        self.peer.fileserver_wired();
        door.order(DoorOrder::Fileserver, &[to_fileserver.as_fd(), window_reader.as_fd()])
    }

    /// Gives a door its constants.
    ///
    /// # Errors
    /// Exit status 3.
    pub(crate) fn configure_door(
        &self,
        door: &Process<DoorOrder>,
        configure: &DoorConfigure,
    ) -> Result<(), Refusal> {
        let (refused, theirs) = pair()?;
        let generation = Arc::clone(&self.generation);
        readers::door(
            Some(door.pid()),
            refused,
            self.trace.clone(),
            generation,
            Arc::clone(&self.peer),
            self.bell.clone(),
        )
        .map_err(|error| thread(&error))?;
        let theirs = descriptor(theirs)?;
        let before = self.doors.replace(self.doors.get() + 1);
        let configure =
            DoorConfigure { requests_from: before.saturating_mul(REQUESTS_PER_DOOR), ..configure.clone() };
        door.order(DoorOrder::Configure(configure), &[theirs.as_fd()])
    }

    /// Connects a door and sandbox-host.
    ///
    /// # Errors
    /// Exit status 3.
    pub(crate) fn connect_door(
        &self,
        door: &Process<DoorOrder>,
        host: &Process<HostOrder>,
    ) -> Result<(), Refusal> {
        let (to_host, to_door) = edge::<ipc::edge::door_host::DoorToHost, ipc::Never>()?;
        host.order(HostOrder::Door, &[to_door.as_fd()])?;
        door.order(DoorOrder::SandboxHost, &[to_host.as_fd()])
    }

    /// Gives the door its listening socket, last of all. `listen` is called again first: a door that died may have shut it
    /// down.
    ///
    /// # Errors
    /// Exit status 3.
    pub(crate) fn serve(&self, door: &Process<DoorOrder>, listener: &TcpListener) -> Result<(), Refusal> {
        rustix::net::listen(listener, BACKLOG)
            .map_err(|errno| Refusal::broken("listening socket", errno.to_string()))?;
        door.order(DoorOrder::Serve, &[listener.as_fd()])
    }

    /// Gives sandbox-host its capsule, the runner its programs, and connects the two.
    ///
    /// # Errors
    /// Exit status 3.
    pub(crate) fn configure_agent(
        &self,
        host: &Process<HostOrder>,
        runner: &Process<RunnerOrder>,
        agent: &ipc::edge::host_broker::Agent,
        programs: ipc::edge::control::RunnerConfigure,
    ) -> Result<(), Refusal> {
        use ipc::edge::host_runner::{HostToRunner, RunnerToHost};
        let (to_runner, to_host) = edge::<HostToRunner, RunnerToHost>()?;
        let (events, theirs) = pair()?;
        readers::runner(Some(runner.pid()), events, self.bell.clone()).map_err(|error| thread(&error))?;
        let theirs = descriptor(theirs)?;
        let (leaves, controllers) = (programs.leaves, programs.controllers);
        let refused =
            |what: String| move |error: std::io::Error| Refusal::new("E-RUN-012", what, error.to_string());
        let counters = self.groups.counters(controllers).map_err(refused("programs".to_owned()))?;
        let attached: Vec<BorrowedFd<'_>> =
            [to_host.as_fd(), theirs.as_fd()].into_iter().chain(counters.iter().map(AsFd::as_fd)).collect();
        runner.order(RunnerOrder::Configure(programs), &attached)?;
        for number in 0..leaves {
            let leaf =
                self.groups.leaf(number, controllers).map_err(refused(format!("programs/{number}")))?;
            let files: Vec<BorrowedFd<'_>> = leaf.iter().map(AsFd::as_fd).collect();
            runner.order(RunnerOrder::Leaf { number, controllers }, &files)?;
        }
        runner.order(RunnerOrder::Run, &[])?;

        let document = ipc::memory::sealed_document("agent", agent).map_err(|error| memory(&error))?;
        let (events, theirs) = pair()?;
        let generation = Arc::clone(&self.generation);
        readers::sandbox_host(
            Some(host.pid()),
            events,
            self.trace.clone(),
            generation,
            Arc::clone(&self.peer),
            self.bell.clone(),
        )
        .map_err(|error| thread(&error))?;
        let theirs = descriptor(theirs)?;
        host.order(HostOrder::Configure, &[theirs.as_fd(), to_runner.as_fd(), document.as_fd()])
    }

    /// Gives egress its lists and connects it with sandbox-host.
    ///
    /// # Errors
    /// Exit status 3.
    pub(crate) fn configure_egress(
        &self,
        egress: &Process<EgressOrder>,
        host: &Process<HostOrder>,
        configure: &EgressConfigure,
    ) -> Result<(), Refusal> {
        let (to_egress, to_host) = edge::<ipc::edge::host_egress::HostToEgress, ipc::Never>()?;
        let (events, theirs) = pair()?;
        readers::egress(Some(egress.pid()), events, self.trace.clone(), self.bell.clone())
            .map_err(|error| thread(&error))?;
        let theirs = descriptor(theirs)?;
        let attached: Vec<BorrowedFd<'_>> = [to_host.as_fd(), theirs.as_fd()]
            .into_iter()
            .chain(self.certificates.iter().map(AsFd::as_fd))
            .collect();
        egress.order(EgressOrder::Configure(configure.clone()), &attached)?;
        if let Some(ways) = &self.ways_out {
            egress.order(EgressOrder::Resolver, &[ways.resolver.as_fd()])?;
            for listener in &ways.listeners {
                // One that died may have shut it down.
                rustix::net::listen(listener, confine::net::BACKLOG)
                    .map_err(|errno| Refusal::broken("listener of programs", errno.to_string()))?;
                egress.order(EgressOrder::Listener, &[listener.as_fd()])?;
            }
        }
        egress.order(EgressOrder::Run, &[])?;
        host.order(HostOrder::Egress, &[to_egress.as_fd()])
    }
}

/// Connections the kernel holds while the door is busy or being replaced.
const BACKLOG: i32 = 1024;
