//! The capsule-wide ceiling, and the sub-blocks an artifact's entry shares with it.

use super::block::{Context, Field, Map};
use super::env;
use super::error::{ManifestError, shown};
use super::model::{AfterTask, Capabilities, Class, Limits, Resources};
use super::net::NetRule;
use super::runtimes;
use super::value;

/// The words of `containment`, weakest first.
pub(super) const CLASSES: &[(&str, Class)] =
    &[("advisory", Class::Advisory), ("scoped", Class::Scoped), ("sealed", Class::Sealed)];

/// Reads `capabilities`; an absent block is the ceiling that allows nothing.
pub(super) fn read(
    ctx: &mut Context,
    top: &Map<'_>,
    after_task: AfterTask,
) -> Result<Capabilities, ManifestError> {
    let block = top.map("capabilities")?;
    let sub = |name: &str| block.as_ref().map_or(Ok(None), |block| block.map(name));
    let (network, shell) = (sub("network")?, sub("shell")?);
    let network_allow = match &network {
        Some(network) => rules(network, "E-CAP-001")?,
        None => None,
    };
    let unix_sockets = match &network {
        Some(network) => network.flag("unix_sockets")? == Some(true),
        None => false,
    };
    let peer_fetch_allow = match sub("peer_fetch")? {
        None => None,
        Some(peer_fetch) => match rules(&peer_fetch, "E-MAN-003")? {
            Some(rules) if !rules.is_empty() => Some(rules),
            _ => {
                return Err(peer_fetch
                    .missing("allow")
                    .hint("list the peers, or remove capabilities.peer_fetch"));
            }
        },
    };
    let declared = match block.as_ref().and_then(|block| block.get("containment")) {
        Some(field) => Some(field.word(CLASSES)?),
        None => None,
    };
    let containment = declared.max(ctx.options.containment);
    let filesystem = sub("filesystem")?;
    let scope = filesystem.as_ref().map_or(Ok(None), scope)?.unwrap_or_default();
    let (read_only, workdir_exec) = match &filesystem {
        Some(filesystem) => read_filesystem(ctx, filesystem, containment)?,
        None => (Vec::new(), false),
    };
    let (strip_env, baseline_env) = match &shell {
        Some(shell) => (env::patterns(shell, "strip_env")?, env::patterns(shell, "baseline_env")?),
        None => (Vec::new(), Vec::new()),
    };
    let shell_allow = shell.as_ref().map_or(Ok(Vec::new()), read_shell)?;
    let (interpreter_runtime, staged_runtime) = match &shell {
        Some(shell) => {
            (runtimes::interpreters(ctx, shell, &shell_allow)?, runtimes::staged(shell, &shell_allow)?)
        }
        None => (Vec::new(), Vec::new()),
    };
    let env_allow = match sub("env")? {
        Some(map) => env::read_allow(ctx, &map, &strip_env, after_task)?,
        None => Vec::new(),
    };
    let limits = sub("limits")?.as_ref().map_or(Ok(Limits::DEFAULT), read_limits)?;
    let resources = sub("resources")?.as_ref().map_or(Ok(Resources::DEFAULT), read_resources)?;
    if let Some(state) = sub("state")? {
        ctx.warn(
            "W-SEC-014",
            format!("{}: reaches no artifact; an artifact's entry must declare it", state.path),
        );
    }
    if let Some(conversation) = sub("conversation")? {
        required_flag(&conversation, "read")?;
        let text = format!("{}: reaches no artifact; a hook's entry must declare it", conversation.path);
        ctx.warn("W-SEC-016", text);
    }
    if let Some(plan) = sub("plan")? {
        required_flag(&plan, "submit")?;
    }
    if let Some(spawn) = sub("spawn")? {
        strings(&spawn, "allow")?;
    }
    Ok(Capabilities {
        network_allow: network_allow.unwrap_or_default(),
        peer_fetch_allow,
        shell_allow,
        strip_env,
        baseline_env,
        unix_sockets,
        scope,
        read_only,
        workdir_exec,
        interpreter_runtime,
        staged_runtime,
        env_allow,
        limits,
        resources,
        containment,
    })
}

impl Capabilities {
    /// The entries of `read_only` as plain relative paths.
    pub(crate) fn read_only_paths(&self) -> Vec<std::path::PathBuf> {
        let parts = self.read_only.iter().filter_map(|entry| value::relative(entry).ok());
        parts.map(|parts| parts.iter().collect()).collect()
    }
}

/// Reads the list `allow` of a network-like block; `None` when the key is absent.
pub(super) fn rules(block: &Map<'_>, code: &'static str) -> Result<Option<Vec<NetRule>>, ManifestError> {
    let Some(allow) = block.get("allow") else { return Ok(None) };
    let mut rules = Vec::new();
    for field in allow.list()? {
        let rule = NetRule::parse(field.verbatim()?).map_err(|reason| {
            field.coded(code, reason).hint("write host, host:port or http(s)://host[:port]")
        })?;
        if !rules.contains(&rule) {
            rules.push(rule);
        }
    }
    Ok(Some(rules))
}

/// Returns `read_only` and `workdir_exec`.
fn read_filesystem(
    ctx: &mut Context,
    block: &Map<'_>,
    floor: Option<Class>,
) -> Result<(Vec<String>, bool), ManifestError> {
    let mut read_only = Vec::new();
    if let Some(field) = block.get("read_only") {
        for field in field.list()? {
            let entry = field.text()?;
            if entry.is_empty() {
                continue;
            }
            let parts = value::relative(&entry).map_err(|reason| field.coded("E-CAP-012", reason))?;
            if parts.is_empty() {
                return Err(
                    field.coded("E-CAP-012", "is the whole workdir, in which nothing could be done then")
                );
            }
            if read_only.len() == MOST_READ_ONLY {
                return Err(field.coded("E-CAP-012", format!("is one more than {MOST_READ_ONLY} entries")));
            }
            read_only.push(entry);
        }
    }
    let workdir_exec = block.flag("workdir_exec")? == Some(true);
    if workdir_exec {
        if let Some(floor) = floor.filter(|floor| *floor > Class::Advisory) {
            let reason = format!("lets workdir files execute, which containment {floor} forbids");
            return Err(ManifestError::new("E-CAP-003", block.path("workdir_exec"), reason)
                .line(block.line)
                .hint("declare containment: advisory, or remove workdir_exec"));
        }
        ctx.warn("W-SEC-011", format!("{}: files in the workdir may execute", block.path("workdir_exec")));
    }
    Ok((read_only, workdir_exec))
}

/// The most entries of `read_only`: each is a mount or more in two processes.
const MOST_READ_ONLY: usize = 64;

/// Reads `scope` as names below the workdir; a blank one is absent.
pub(super) fn scope(block: &Map<'_>) -> Result<Option<Vec<String>>, ManifestError> {
    let Some(field) = block.get("scope") else { return Ok(None) };
    let text = field.text()?;
    if text.is_empty() {
        return Ok(None);
    }
    value::relative(&text).map(Some).map_err(|reason| field.coded("E-CAP-002", reason))
}

/// Checks the shape of a `shell` block and returns `allow`.
pub(super) fn read_shell(block: &Map<'_>) -> Result<Vec<String>, ManifestError> {
    let allow = block.require("allow")?;
    let mut programs = Vec::new();
    for field in allow.list()? {
        let name = field.verbatim()?;
        let spaced = name.chars().any(|c| c.is_whitespace() || c.is_control());
        if name.is_empty() || name.contains('/') || matches!(name, "." | "..") || spaced {
            return Err(field.error(format!("{} is not the bare name of a program", shown(name))));
        }
        if !programs.iter().any(|known| known == name) {
            programs.push(name.to_owned());
        }
    }
    if programs.is_empty() {
        return Err(allow.error("must not be empty").hint("list the programs, or remove capabilities.shell"));
    }
    env::patterns(block, "strip_env")?;
    env::patterns(block, "baseline_env")?;
    Ok(programs)
}

/// A list of strings, trimmed.
pub(super) fn strings(block: &Map<'_>, name: &str) -> Result<Vec<String>, ManifestError> {
    match block.get(name) {
        Some(field) => field.list()?.iter().map(Field::text).collect(),
        None => Ok(Vec::new()),
    }
}

pub(super) fn required_flag(block: &Map<'_>, name: &str) -> Result<bool, ManifestError> {
    block.require(name)?.flag()
}

impl Limits {
    const DEFAULT: Self = Self {
        memory_bytes: 512 << 20,
        table_elements: 100_000,
        instances: 1_000,
        deadline_seconds: 600,
        hook_deadline_seconds: 30,
    };
}

impl Resources {
    const DEFAULT: Self = Self {
        max_processes: 128,
        max_open_files: 1024,
        max_file_size_bytes: 4 << 30,
        cpu_seconds: 3600,
        memory_bytes: 2 << 30,
        cgroup_memory_bytes: 4 << 30,
        cgroup_pids_max: 256,
        cgroup_cpu_percent: 200,
        cgroup_io_bytes_per_sec: 100 << 20,
        workdir_max_bytes: 10 << 30,
    };
}

pub(super) fn read_limits(block: &Map<'_>) -> Result<Limits, ManifestError> {
    let default = Limits::DEFAULT;
    Ok(Limits {
        memory_bytes: block.positive("memory_bytes", default.memory_bytes)?,
        table_elements: block.positive("table_elements", default.table_elements)?,
        instances: block.positive("instances", default.instances)?,
        deadline_seconds: block.positive("deadline_seconds", default.deadline_seconds)?,
        hook_deadline_seconds: block.positive("deadline_seconds", default.hook_deadline_seconds)?,
    })
}

pub(super) fn read_resources(block: &Map<'_>) -> Result<Resources, ManifestError> {
    let default = Resources::DEFAULT;
    // Two spellings of one limit are in circulation; the manifest's own name is the first.
    let workdir = match (block.get("workdir_max_bytes"), block.get("max_workdir_bytes")) {
        (Some(_), Some(alias)) => return Err(alias.error("repeats workdir_max_bytes under its other name")),
        (Some(field), None) | (None, Some(field)) => field.integer(1)?,
        (None, None) => default.workdir_max_bytes,
    };
    Ok(Resources {
        max_processes: block.positive("max_processes", default.max_processes)?,
        max_open_files: block.positive("max_open_files", default.max_open_files)?,
        max_file_size_bytes: block.positive("max_file_size_bytes", default.max_file_size_bytes)?,
        cpu_seconds: block.positive("cpu_seconds", default.cpu_seconds)?,
        memory_bytes: block.positive("memory_bytes", default.memory_bytes)?,
        cgroup_memory_bytes: block.positive("cgroup_memory_bytes", default.cgroup_memory_bytes)?,
        cgroup_pids_max: block.positive("cgroup_pids_max", default.cgroup_pids_max)?,
        cgroup_cpu_percent: block.positive("cgroup_cpu_percent", default.cgroup_cpu_percent)?,
        cgroup_io_bytes_per_sec: block
            .positive("cgroup_io_bytes_per_sec", default.cgroup_io_bytes_per_sec)?,
        workdir_max_bytes: workdir,
    })
}

impl std::fmt::Display for Class {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = CLASSES.iter().find(|(_, class)| class == self).map_or("", |(word, _)| *word);
        f.write_str(word)
    }
}
