//! What a valid manifest says, in types.

use super::net::{Endpoint, NetRule};
use super::value::{ByteSize, ExportRoot};

/// A manifest that may be launched: every rule that needs no file system has been applied.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Manifest {
    /// The capsule's name: agent card and handle audience. Not blank, no control characters.
    pub(crate) name: String,
    /// The capsule's version, free text.
    pub(crate) version: String,
    /// In the order of the file; tool names are unique and none is reserved.
    pub(crate) artifacts: Vec<Artifact>,
    /// The capsule-wide ceiling.
    pub(crate) capabilities: Capabilities,
    /// Absent in a script capsule, which has no agent loop and no listener.
    pub(crate) inference: Option<Inference>,
    /// With the launch overrides applied.
    pub(crate) lifecycle: Lifecycle,
    /// `exports.files`; absent = `no_resource_plane`.
    pub(crate) export_files: Option<ExportFiles>,
    /// `exports.peer_files`; absent = `no_peer_plane`.
    pub(crate) export_peer_files: Option<ExportPeerFiles>,
    /// `trace.capture`.
    pub(crate) capture: Capture,
}

/// One entry of `artifacts`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Artifact {
    /// As declared: bare, or `scope/name` for a resolved artifact.
    pub(crate) name: String,
    /// The name's last part: what the model calls a tool.
    pub(crate) tool_name: String,
    /// What the entry is for.
    pub(crate) role: Role,
    /// Where the payload comes from.
    pub(crate) origin: Origin,
    /// The artifact's own allow-list. `None` = the capsule's; an empty list = no network. Every rule is covered
    /// by the capsule's list.
    pub(crate) network_allow: Option<Vec<NetRule>>,
    /// `config` as compact JSON in the order of the file, at most 65,536 bytes: the value of
    /// `MURMUR_ARTIFACT_CONFIG`. `None` = the variable is absent.
    pub(crate) config: Option<String>,
    /// The keyless upstream of the configured driver.
    pub(crate) gateway: Option<Endpoint>,
    /// Its own `filesystem.scope`, as names below the workdir.
    pub(crate) scope: Option<Vec<String>>,
}

/// The roles this version runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Offered to the model; one component call per tool call.
    Tool,
    /// Makes inference calls.
    Driver,
    /// Asked before a call whether it may be made.
    Hook,
}

/// Where an artifact's payload comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A directory or `.mur.zip`, as written; relative to the manifest's directory. Its version is `local`.
    Source(String),
    /// An installed artifact of this version. The version is one path component.
    Installed {
        /// The version as written.
        version: String,
    },
}

/// The capsule-wide ceiling.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Capabilities {
    /// `network.allow`; empty = no network.
    pub(crate) network_allow: Vec<NetRule>,
    /// `peer_fetch.allow`, never empty. `None` = no handle is fetched.
    pub(crate) peer_fetch_allow: Option<Vec<NetRule>>,
    /// `shell.allow`: bare program names. Empty = no program may run.
    pub(crate) shell_allow: Vec<String>,
    /// `shell.strip_env`: patterns of variables that reach no program and no component.
    pub(crate) strip_env: Vec<String>,
    /// `shell.baseline_env`: patterns of host variables that programs get besides the usual ones.
    pub(crate) baseline_env: Vec<String>,
    /// `network.unix_sockets`: programs may make Unix sockets.
    pub(crate) unix_sockets: bool,
    /// `filesystem.scope` of artifacts without one of their own: names below the workdir, empty for the whole.
    pub(crate) scope: Vec<String>,
    /// `filesystem.read_only` as declared, each a relative path that stays below the workdir.
    pub(crate) read_only: Vec<String>,
    /// `filesystem.workdir_exec`: what programs write may be executed, and the class is at most advisory.
    pub(crate) workdir_exec: bool,
    /// `shell.interpreter_runtime`: directories of the host that programs may read.
    pub(crate) interpreter_runtime: Vec<RuntimeDirectory>,
    /// `shell.staged_runtime`: trees of the host that are part of a composed root.
    pub(crate) staged_runtime: Vec<StagedRuntime>,
    /// `env.allow`: host variables a component may see; none is credential-shaped or runtime-owned.
    pub(crate) env_allow: Vec<String>,
    /// Per component call.
    pub(crate) limits: Limits,
    /// For programs.
    pub(crate) resources: Resources,
    /// The declared floor, raised by the launch option. `None` = undeclared.
    pub(crate) containment: Option<Class>,
}

/// A directory of `shell.interpreter_runtime`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RuntimeDirectory {
    /// Absolute path, as declared.
    pub(crate) path: String,
    /// Whether it may be listed, or only read by name.
    pub(crate) list: bool,
}

/// An entry of `shell.staged_runtime`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StagedRuntime {
    /// The program it is for.
    pub(crate) binary: String,
    /// Absolute path of the tree, as declared.
    pub(crate) path: String,
}

/// Containment classes, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// No filesystem confinement of programs.
    Advisory,
    /// Programs confined by kernel rules.
    Scoped,
    /// Programs in a composed root.
    Sealed,
}

/// `capabilities.limits`, defaults filled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Bytes of linear memory per component.
    pub(crate) memory_bytes: u64,
    /// Elements per table.
    pub(crate) table_elements: u64,
    /// Instances per call.
    pub(crate) instances: u64,
    /// Wall-clock seconds per call.
    pub(crate) deadline_seconds: u64,
    /// The same for a hook's call, which has a shorter default.
    pub(crate) hook_deadline_seconds: u64,
}

/// `capabilities.resources`, defaults filled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Resources {
    /// RLIMIT_NPROC above the count at launch.
    pub(crate) max_processes: u64,
    /// RLIMIT_NOFILE.
    pub(crate) max_open_files: u64,
    /// RLIMIT_FSIZE, bytes.
    pub(crate) max_file_size_bytes: u64,
    /// RLIMIT_CPU, seconds.
    pub(crate) cpu_seconds: u64,
    /// RLIMIT_AS, bytes.
    pub(crate) memory_bytes: u64,
    /// `memory.max` of the session, bytes.
    pub(crate) cgroup_memory_bytes: u64,
    /// `pids.max` of the session.
    pub(crate) cgroup_pids_max: u64,
    /// `cpu.max` of the session, percent of one core.
    pub(crate) cgroup_cpu_percent: u64,
    /// `io.max` of the session, bytes per second each way; best effort.
    pub(crate) cgroup_io_bytes_per_sec: u64,
    /// Bytes in the accessible workdir.
    pub(crate) workdir_max_bytes: u64,
}

/// `inference` with `transport: http`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Inference {
    /// The model's name, for the driver.
    pub(crate) model: String,
    /// Index into [`Manifest::artifacts`]; that entry has role driver and a gateway.
    pub(crate) driver: usize,
    /// `driver.config` as compact JSON: the value of `MURMUR_INFERENCE_DRIVER_CONFIG`.
    pub(crate) driver_config: Option<String>,
    /// Inference calls per task.
    pub(crate) max_turns: u32,
    /// Output tokens per call.
    pub(crate) max_tokens: u32,
    /// Where the system prompt comes from.
    pub(crate) system_prompt: Option<SystemPrompt>,
}

/// The declared system prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SystemPrompt {
    /// The text itself, trimmed.
    Text(String),
    /// A file, relative to the manifest's directory, read once at launch and used verbatim.
    File(String),
}

/// `lifecycle` with the launch overrides applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lifecycle {
    /// Which tasks are taken.
    pub(crate) task_acceptance: TaskAcceptance,
    /// What happens when a task has ended.
    pub(crate) after_task: AfterTask,
    /// Tasks that may wait beside the running one, under `queue`.
    pub(crate) queue_depth: u32,
}

/// `lifecycle.task_acceptance`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskAcceptance {
    /// No task over the network.
    None,
    /// One task.
    Single,
    /// One after the other.
    Queue,
}

/// `lifecycle.after_task`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterTask {
    /// End the session.
    Exit,
    /// Wait for the next task.
    Sleep,
}

/// `exports.files`, mode `read-only`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExportFiles {
    /// The subtree.
    pub(crate) root: ExportRoot,
    /// Largest file that is served; larger ones are listed.
    pub(crate) max_bytes: ByteSize,
}

/// `exports.peer_files`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExportPeerFiles {
    /// The subtree; independent of that of `exports.files`.
    pub(crate) root: ExportRoot,
    /// Longest lifetime of a handle, defaults filled in.
    pub(crate) max_ttl: std::time::Duration,
    /// Largest file that is served.
    pub(crate) max_bytes: ByteSize,
}

/// `trace.capture`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Capture {
    /// No content, no hashes of it.
    None,
    /// Hashes.
    Meta,
    /// Bodies as well.
    Content,
}
