//! From a command line to a session that serves. Every step that fails is undone in reverse order by what it returned being
//! dropped; a launch that fails before `session_start` leaves nothing.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use ipc::edge::control::{
    DoorConfigure, DoorOrder, EgressOrder, ExportRoot, FileserverConfigure, FileserverOrder, HostOrder,
    PlaneConstants, RunnerOrder,
};
use ipc::memory::CounterWriter;
use ipc::types::Class;

use super::agent::{self, Facts};
use super::class;
use super::peer::Peer;
use super::places::{Bases, Places};
use super::process::{Kind, Process};
use super::readers;
use super::report::{self, Line, Shown};
use super::signals::Signals;
use super::starter::{Network, Siblings, Starter, WaysOut};
use super::supervise::{Agent, Session};
use crate::card;
use crate::cli::{self, Cli, Missing};
use crate::host::ordinary::User;
use crate::host::uids::{self, Ids};
use crate::host::workdir::{Owner, Sharing, Workdir};
use crate::host::{certificates, cgroup};
use crate::manifest::{self, Manifest, ParseOptions, Warning};
use crate::minter::Minter;
use crate::refusal::Refusal;
use crate::trace::{self, Constants, Entry, Written};

/// A session that serves, and its trace.
#[derive(Debug)]
pub(crate) struct Launched {
    /// The session.
    pub(crate) session: Session,
    /// To be waited for after the session: the last lines are those of processes that are gone.
    pub(crate) written: Written,
}

/// Reads and checks the manifest; prints its warnings.
///
/// # Errors
/// The manifest's own refusals.
pub(crate) fn read_manifest(cli: &Cli) -> Result<(Manifest, Vec<Warning>), Refusal> {
    let options = ParseOptions {
        allow_unknown_keys: cli.allow_unknown_keys,
        containment: cli.containment.map(|class| match class {
            cli::Class::Advisory => manifest::Class::Advisory,
            cli::Class::Scoped => manifest::Class::Scoped,
            cli::Class::Sealed => manifest::Class::Sealed,
        }),
        task_acceptance: cli.task_acceptance.map(|acceptance| match acceptance {
            cli::Acceptance::None => manifest::TaskAcceptance::None,
            cli::Acceptance::Single => manifest::TaskAcceptance::Single,
            cli::Acceptance::Queue => manifest::TaskAcceptance::Queue,
        }),
        after_task: match (cli.once, cli.after_task) {
            (true, _) | (false, Some(cli::AfterTask::Exit)) => Some(manifest::AfterTask::Exit),
            (false, Some(cli::AfterTask::Sleep)) => Some(manifest::AfterTask::Sleep),
            (false, None) => None,
        },
    };
    let text = manifest::read_text(&cli.manifest)?;
    Ok(manifest::parse(&text, options)?)
}

/// Launches.
///
/// # Errors
/// Whatever is refused; nothing is left behind then.
pub(crate) fn launch(cli: &Cli, manifest: &Manifest, user: Option<User>) -> Result<Launched, Refusal> {
    let programs = match cli.serve_only {
        true => Vec::new(),
        false => {
            agent::inference(manifest)?;
            agent::programs(manifest)?
        }
    };
    let containment = class::decide(cli, manifest, &programs, user.as_ref())?;
    let class = containment.class;
    let manifest_dir = directory_of(&cli.manifest)?;
    let groups_host = cgroup::probe()?;
    let runs_programs = !cli.serve_only && !manifest.capabilities.shell_allow.is_empty();
    let mut lacks = lacks(cli, &groups_host, runs_programs, user.is_some())?;
    if let Some(why) = &containment.weaker {
        lacks.push(format!("sealed: {why}"));
        if !cli.quiet {
            say!("notice: class scoped, not sealed: {why}");
        }
    }
    let kinds: &[Kind] = if cli.serve_only {
        &[Kind::Door, Kind::Fileserver]
    } else {
        &[Kind::Door, Kind::Fileserver, Kind::SandboxHost, Kind::Runner, Kind::Egress, Kind::Compiler]
    };
    let siblings = Siblings::open(kinds)?;
    let certificates = if cli.serve_only { Vec::new() } else { certificates::load(manifest, &cli.ca_file)? };
    let program_ports = if runs_programs { agent::program_ports(manifest)? } else { Vec::new() };

    let signals = Signals::block()?;
    let bases = Rc::new(Bases::open(cli)?);
    for (session, outcome) in bases.sweep(&groups_host)? {
        match outcome {
            Ok(()) if cli.quiet => {}
            Ok(()) => say!("notice: removed what the dead session {session} had left"),
            Err(error) => {
                say!("warning: what the dead session {session} left cannot be removed: {error}")
            }
        }
    }
    let session_id = format!("ses_{}", uuid::Uuid::now_v7().simple());
    let workdir = MadeWorkdir(Some(Workdir::open(
        cli.workdir.as_deref(),
        &manifest_dir,
        &session_id,
        user.as_ref().map_or(Owner::ParentsOr(cli.uid_range.first), |user| Owner::User(user.id)),
    )?));
    let opened = workdir.get()?;
    opened.refuse_overlap(&bases.roots.each_ref().map(|root| root.as_path()))?;
    manifest::check_files(manifest, &manifest_dir, opened.dir.path())?;
    let owner = opened.owner;
    let (ids, sharing) = match &user {
        Some(user) => (Ids::one(user.id), Sharing::User),
        None => {
            let ids = uids::take(&bases.ids, cli.uid_range)?;
            let sharing = opened.sharing(&ids)?;
            (ids, sharing)
        }
    };
    let shared_owner = matches!(sharing, Sharing::Owner);
    if shared_owner && runs_programs && containment.tier == Class::Advisory {
        return Err(Refusal::new(
            "E-IO-002",
            opened.dir.path().display().to_string(),
            "its file system refuses id-mapped mounts, and under the class advisory programs may not share its owner's id",
        )
        .hint("put the workdir on ext4, xfs or tmpfs, or declare scoped"));
    }

    let listener = TcpListener::bind(cli.listen).map_err(|error| {
        let code = if error.kind() == std::io::ErrorKind::AddrInUse { "E-RUN-010" } else { "E-IO-003" };
        Refusal::new(code, format!("--listen {}", cli.listen), error.to_string())
    })?;
    let address = listener.local_addr().map_err(|error| Refusal::io("--listen", &error))?;
    let egress_configure =
        agent::egress(manifest, u8::try_from(certificates.len()).unwrap_or(u8::MAX), address, runs_programs);
    let url = public_url(cli, address)?;
    let capsule_address = handle::Address::of_url(&url)
        .map_err(|error| Refusal::new("E-MAN-003", format!("--public-url {url}"), error.to_string()))?;
    if !cli.serve_only {
        agent::fetch_peer_file(manifest, &capsule_address)?;
    }
    let host_port =
        url.split_once("://").map_or(url.as_str(), |(_, rest)| rest).trim_end_matches('/').to_owned();

    let empty = Network::new(confine::net::empty_namespace())?;
    let (session_network, ways_out) = match runs_programs {
        true => {
            let (network, ways) = WaysOut::of(confine::net::session_network(&program_ports))?;
            (network, Some(ways))
        }
        false => (Network::new(confine::net::session_namespace())?, None),
    };
    // Before the groups: by its run directory the next launch finds what this one left, if it is killed.
    let places = Places::make(&bases, &session_id, owner)?;
    let device = rustix::fs::fstat(&opened.dir)
        .map_err(|errno| Refusal::io(opened.dir.path().display(), &errno.into()))?
        .st_dev;
    let groups = groups_host.session(&session_id, limits(manifest, runs_programs, device))?;
    let io_unlimited = groups.io_unlimited.clone();
    if let Some(why) = &io_unlimited {
        lacks.push(format!("io-limit: {why}"));
        if !cli.quiet {
            say!("warning[W-SEC-021]: capabilities.resources.cgroup_io_bytes_per_sec: not applied: {why}");
        }
    }
    let trace_file = places.trace_file()?;
    let (bell, inbox) = readers::bell().map_err(|error| Refusal::broken("broker", error.to_string()))?;
    let (generation, generation_page) =
        CounterWriter::new().map_err(|error| Refusal::broken("generation page", error.to_string()))?;

    // From here on the broker makes no namespace of its own, opens no socket and gains no capability; every thread that is
    // started inherits this.
    let rights = if user.is_some() { confine::Rights::User } else { confine::Rights::Root };
    confine::enter_broker(rights)
        .map_err(|error| Refusal::broken("broker", format!("it cannot be confined: {error}")))?;

    let generation = Arc::new(generation);
    let constants = Constants {
        session_id: session_id.clone(),
        class,
        export_root: manifest
            .export_files
            .as_ref()
            .map_or(String::new(), |files| files.root.verbatim().to_owned()),
    };
    let (trace, written) = trace::trace(trace_file, constants);

    let tmp_mapped = ![opened.dir.path(), places.session.path(), places.runtime.path()]
        .iter()
        .any(|path| path.starts_with("/tmp"));
    let exported = |root: &manifest::ExportRoot, max_bytes: manifest::ByteSize| {
        let path = root.components().iter().fold(opened.dir.path().to_owned(), |path, part| path.join(part));
        ExportRoot {
            verbatim: root.verbatim().to_owned(),
            components: root.components().to_vec(),
            host_path: path.canonicalize().ok().map(|path| path.display().to_string()),
            max_bytes: max_bytes.bytes(),
        }
    };
    let fileserver_configure = FileserverConfigure {
        class,
        files: manifest.export_files.as_ref().map(|files| exported(&files.root, files.max_bytes)),
        peer_files: manifest.export_peer_files.as_ref().map(|files| exported(&files.root, files.max_bytes)),
    };
    let workdir_path = opened.dir.path().to_owned();
    let session_path = places.session.path().to_owned();
    let runtime_path = places.runtime.path().to_owned();
    let facts = || Facts {
        session_id: &session_id,
        url: &host_port,
        address: &capsule_address,
        class,
        workdir: &workdir_path,
        session: &session_path,
        runtime: &runtime_path,
        tmp_mapped,
    };
    let mut starter = Starter {
        siblings,
        groups,
        ids,
        user,
        sharing,
        workdir,
        empty,
        session_network,
        containment,
        read_only: manifest.capabilities.read_only_paths(),
        ways_out,
        quiet: cli.quiet,
        component_memory: manifest.capabilities.limits.memory_bytes,
        cache: bases.cache.child(".").map_err(|error| Refusal::io(bases.cache.path().display(), &error))?,
        tmp_mapped,
        peer: Peer::new(trace.clone(), Arc::clone(&generation)),
        generation,
        generation_page,
        trace,
        bell,
        certificates,
        doors: std::cell::Cell::new(0),
    };

    let compiled = if cli.serve_only {
        Vec::new()
    } else {
        super::compile::compile(&starter, cli, manifest, &manifest_dir, &places, &signals)?
    };

    // All processes at once: each takes a few milliseconds, most of it waiting for the kernel.
    let door = starter.spawn::<DoorOrder>(Kind::Door)?;
    let fileserver = starter.spawn::<FileserverOrder>(Kind::Fileserver)?;
    let agent_spawned = match cli.serve_only {
        true => None,
        false => Some((
            starter.spawn::<HostOrder>(Kind::SandboxHost)?,
            starter.spawn::<RunnerOrder>(Kind::Runner)?,
            starter.spawn::<EgressOrder>(Kind::Egress)?,
        )),
    };
    let door = starter.begin(Kind::Door, door, &places)?;
    let fileserver = starter.begin(Kind::Fileserver, fileserver, &places)?;
    let agent_begun = match agent_spawned {
        None => None,
        Some((host, runner, egress)) => Some((
            starter.begin(Kind::SandboxHost, host, &places)?,
            starter.begin(Kind::Runner, runner, &places)?,
            starter.begin(Kind::Egress, egress, &places)?,
        )),
    };
    let door = starter.ready(Kind::Door, door)?;
    let fileserver = starter.ready(Kind::Fileserver, fileserver)?;
    let mut agent_ready = match agent_begun {
        None => None,
        Some((host, runner, egress)) => Some((
            starter.ready(Kind::SandboxHost, host)?,
            starter.ready(Kind::Runner, runner)?,
            starter.ready(Kind::Egress, egress)?,
        )),
    };

    // The key is made after every process was started, so that none was ever a copy of a process that held it.
    if let Some(files) = &manifest.export_peer_files {
        let minter = Minter::new(&session_id, files.max_ttl)
            .map_err(|error| Refusal::broken("minting key", error.to_string()))?;
        starter.peer.begin(minter);
    }
    let door_configure = DoorConfigure {
        class,
        files: manifest.export_files.as_ref().map(|files| PlaneConstants {
            root: files.root.verbatim().to_owned(),
            max_bytes: files.max_bytes.bytes(),
        }),
        peer_files: manifest.export_peer_files.is_some(),
        requests_from: 0,
        card: card::card(manifest, &url, &session_id, cli.serve_only),
        agent: !cli.serve_only,
    };
    let window_reader = starter.configure_fileserver(&fileserver, &fileserver_configure)?;
    starter.configure_door(&door, &door_configure)?;
    starter.connect_fileserver(&door, &fileserver, &window_reader)?;
    if let Some((host, runner, egress)) = &mut agent_ready {
        let agent = agent::agent(manifest, &manifest_dir, &compiled, &programs, &facts(), cli.task.clone())?;
        let configure =
            agent::runner(manifest, programs.clone(), &facts(), cgroup::LEAVES, groups_host.controllers());
        starter.configure_agent(host, runner, &agent, configure)?;
        starter.configure_egress(egress, host, &egress_configure)?;
        starter.connect_door(&door, host)?;
        host.order(HostOrder::Load, &[])?;
        host.sealed()?;
    }

    signals.go_on()?;
    let shown = Shown {
        facts: facts(),
        url: &url,
        records: places.records.path(),
        tier: starter.containment.tier,
        mechanism: starter.containment.mechanism,
        shared_owner,
        user: starter.user.as_ref(),
        landlock_abi: door.landlock_abi,
        lacks,
        io_unlimited,
        runs_programs,
        processes: processes(&door, &fileserver, agent_ready.as_ref()),
    };
    starter.trace.record(Entry::SessionStart(Box::new(report::session_start(&shown, manifest))));
    // What is on record stays, whatever fails from here on.
    places.keep();
    starter.workdir.keep();
    starter.serve(&door, &listener)?;
    if let Some((host, ..)) = &agent_ready {
        host.order(HostOrder::Run, &[])?;
    }
    report::ready_line(&shown);
    if report::wants_banner(cli.json, cli.quiet) {
        crate::say_text(&report::banner(&shown, manifest));
    }
    drop(shown);
    let agent = agent_ready.map(|(host, runner, egress)| Agent { host, runner, egress, egress_configure });
    let session = Session {
        door,
        fileserver,
        agent,
        door_configure,
        fileserver_configure,
        window_reader,
        listener,
        signals,
        inbox,
        starter,
        places,
        deaths: Vec::new(),
    };
    Ok(Launched { session, written })
}

/// A workdir this launch may have made: removed again when dropped, unless kept.
#[derive(Debug)]
pub(crate) struct MadeWorkdir(Option<Workdir>);

impl MadeWorkdir {
    /// The workdir.
    ///
    /// # Errors
    /// Exit status 3; it is there until drop.
    pub(crate) fn get(&self) -> Result<&Workdir, Refusal> {
        self.0.as_ref().ok_or_else(|| Refusal::broken("workdir", "it was given up"))
    }

    fn keep(&mut self) {
        if let Some(workdir) = &mut self.0 {
            workdir.keep();
        }
    }
}

impl Drop for MadeWorkdir {
    fn drop(&mut self) {
        if let Some(workdir) = &self.0 {
            workdir.undo();
        }
    }
}

fn directory_of(manifest: &Path) -> Result<std::path::PathBuf, Refusal> {
    let refuse = |error: std::io::Error| Refusal::io(manifest.display(), &error);
    let path = manifest.canonicalize().map_err(refuse)?;
    Ok(path.parent().map(Path::to_path_buf).unwrap_or_default())
}

/// What the host lacks, one line each, if the operator accepts it.
///
/// # Errors
/// `E-RUN-012` if not.
pub(crate) fn lacks(
    cli: &Cli,
    host: &cgroup::Host,
    runs_programs: bool,
    user: bool,
) -> Result<Vec<String>, Refusal> {
    if host.missing.is_empty() || !runs_programs {
        return Ok(Vec::new());
    }
    let missing = host.missing.join(", ");
    if !cli.accept_missing.contains(&Missing::CgroupLimits) {
        return Err(Refusal::new(
            "E-RUN-012",
            "cgroup v2 controllers",
            format!("{missing} cannot be used here, so programs cannot be limited together"),
        )
        .hint(if user {
            "have the group's controllers delegated (systemctl edit user@.service, Delegate=memory pids cpu), or pass \
             --accept-missing cgroup-limits"
        } else {
            "boot with cgroup v2 alone, or pass --accept-missing cgroup-limits"
        }));
    }
    Ok(vec![format!("cgroup-limits: no controller for {missing}: programs are not limited together")])
}

fn limits(manifest: &Manifest, runs_programs: bool, device: u64) -> Option<cgroup::Limits> {
    let resources = manifest.capabilities.resources;
    runs_programs.then_some(cgroup::Limits {
        memory: resources.cgroup_memory_bytes,
        pids: resources.cgroup_pids_max,
        cpu_percent: resources.cgroup_cpu_percent,
        io: resources.cgroup_io_bytes_per_sec,
        device,
    })
}

fn public_url(cli: &Cli, address: SocketAddr) -> Result<String, Refusal> {
    match &cli.public_url {
        Some(url) => {
            let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
            let host = rest.map(|rest| rest.trim_end_matches('/')).unwrap_or_default();
            let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '/' | '?' | '#' | '@' | '"' | '\\');
            if host.is_empty() || !host.chars().all(plain) {
                return Err(Refusal::new("E-MAN-003", "--public-url", "it is not http(s)://host[:port]"));
            }
            Ok(url.trim_end_matches('/').to_owned())
        }
        None if address.ip().is_unspecified() => {
            Err(Refusal::new("E-MAN-003", format!("--listen {address}"), "clients cannot use this address")
                .hint("name the address they use with --public-url"))
        }
        None => Ok(format!("http://{address}")),
    }
}

fn processes(
    door: &Process<DoorOrder>,
    fileserver: &Process<FileserverOrder>,
    agent: Option<&(Process<HostOrder>, Process<RunnerOrder>, Process<EgressOrder>)>,
) -> Vec<Line> {
    let mut lines = vec![
        Line { kind: Kind::Door, pid: door.pid(), uid: door.uid },
        Line { kind: Kind::Fileserver, pid: fileserver.pid(), uid: fileserver.uid },
    ];
    if let Some((host, runner, egress)) = agent {
        lines.push(Line { kind: Kind::SandboxHost, pid: host.pid(), uid: host.uid });
        lines.push(Line { kind: Kind::Runner, pid: runner.pid(), uid: runner.uid });
        lines.push(Line { kind: Kind::Egress, pid: egress.pid(), uid: egress.uid });
    }
    lines
}
