//! The one table of manifest keys: what exists, where, and how far this version honours it.
//!
//! Everything that needs to know whether a key exists asks here: the scan that refuses unknown keys, the
//! spelling suggestions, and the block readers (which may only ask for keys listed here). To switch a feature
//! on, change its row to `Supported` and read it.

/// A mapping with a fixed set of keys.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) keys: &'static [Key],
}

/// One documented key of a block.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) status: Status,
    pub(super) inside: Inside,
}

/// What a key's value holds.
#[derive(Debug, Clone, Copy)]
pub(super) enum Inside {
    /// A scalar, a list of scalars, or a mapping whose keys are the author's own.
    Free,
    /// A mapping with known keys.
    One(&'static Block),
    /// A list of such mappings.
    Many(&'static Block),
}

/// How far a key is honoured (docs/decisions.md, manifest keys).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    /// Read and acted upon.
    Supported,
    /// Documented to do nothing where it stands; its names are still checked.
    Inert,
    /// Belongs to this contract but is not built: refuses, unless `--allow-unknown-keys`.
    NotYet(Neutral),
    /// Beyond this contract, and grants, denies or bounds something: always refuses.
    Enforcing(Neutral),
    /// Beyond this contract and only adds comfort: warns and launches.
    Comfort(Neutral),
    /// Meant for a packager; accepted with any value.
    Silent,
    /// Removed or never valid here: always refuses, with this remedy.
    Removed(&'static str),
}

/// The value with which an unbuilt key asks for nothing and is therefore accepted. Null always is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Neutral {
    /// No value is neutral.
    Never,
    /// `false`.
    False,
    /// An empty list or mapping.
    Empty,
    /// This integer.
    Int(i128),
    /// This word.
    Word(&'static str),
    /// A mapping whose only list, `allow`, is empty.
    EmptyAllow,
}

use Neutral::{Empty, EmptyAllow, False, Int, Never, Word};
use Status::{Comfort, Enforcing, Inert, NotYet, Removed, Silent, Supported};

impl Block {
    /// The row of `name`, if the block has one.
    pub(super) fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }
}

const fn key(name: &'static str, status: Status) -> Key {
    Key { name, status, inside: Inside::Free }
}

const fn one(name: &'static str, status: Status, block: &'static Block) -> Key {
    Key { name, status, inside: Inside::One(block) }
}

const fn many(name: &'static str, status: Status, block: &'static Block) -> Key {
    Key { name, status, inside: Inside::Many(block) }
}

const GATEWAY_HINT: &str = "it belongs to the driver's entry: artifacts[].gateway";
const HOOK_ONLY: &str = "only an artifact entry with runtime: hook may declare it";

pub(super) static TOP: Block = Block {
    keys: &[
        key("name", Supported),
        key("version", Supported),
        key("mur_version", Comfort(Never)),
        many("artifacts", Supported, &ARTIFACT),
        one("capabilities", Supported, &CAPABILITIES),
        one("network", Supported, &NETWORK),
        one("inference", Supported, &INFERENCE),
        one("context", Comfort(Empty), &CONTEXT),
        one("observability", Comfort(Empty), &OBSERVABILITY),
        one("trace", Supported, &TRACE),
        one("lifecycle", Supported, &LIFECYCLE),
        one("exports", Supported, &EXPORTS),
        key("control", Enforcing(Empty)),
        key("deploy", Comfort(Empty)),
        // One file may describe a capsule and a packaged artifact; these speak to the packager.
        key("runtime", Silent),
        key("implementation", Silent),
        key("execution", Silent),
        key("requires_files", Silent),
        key("description", Silent),
        key("tags", Silent),
        key("input_schema", Silent),
        key("output_schema", Silent),
        key("config", Removed("settings belong to an artifact's entry: artifacts[].config")),
        key("registry", Removed("a manifest names no registry")),
    ],
};

pub(super) static ARTIFACT: Block = Block {
    keys: &[
        key("name", Supported),
        key("version", Supported),
        key("runtime", Supported),
        key("source", Supported),
        key("local_source", Supported),
        key("prompt_payload", Comfort(False)),
        one("capabilities", Supported, &ARTIFACT_CAPABILITIES),
        key("config", Supported),
        one("gateway", Supported, &GATEWAY),
        key("on_overflow", Supported),
    ],
};

pub(super) static GATEWAY: Block =
    Block { keys: &[key("endpoint", Supported), key("api_key", Supported), key("keyless", Supported)] };

pub(super) static ARTIFACT_CAPABILITIES: Block = Block {
    keys: &[
        one("network", Supported, &ALLOW),
        one("filesystem", Supported, &ARTIFACT_FILESYSTEM),
        one("state", Enforcing(Never), &STATE),
        one("task_io", Supported, &READ),
        one("conversation", Supported, &READ),
        key("install", Removed("only the capsule-wide capabilities may declare it")),
        one("shell", Inert, &SHELL),
        one("spawn", Inert, &ALLOW),
        one("env", Inert, &ALLOW),
        one("limits", Inert, &LIMITS),
        one("resources", Inert, &RESOURCES),
        key("containment", Inert),
    ],
};

pub(super) static ARTIFACT_FILESYSTEM: Block =
    Block { keys: &[key("scope", Supported), key("records", Supported)] };

pub(super) static CAPABILITIES: Block = Block {
    keys: &[
        one("network", Supported, &CAPSULE_NETWORK),
        one("peer_fetch", Supported, &ALLOW),
        one("filesystem", Supported, &FILESYSTEM),
        one("shell", Supported, &SHELL),
        one("env", Supported, &ALLOW),
        one("limits", Supported, &LIMITS),
        one("resources", Supported, &RESOURCES),
        key("containment", Supported),
        one("state", Supported, &STATE),
        one("conversation", Supported, &READ),
        key("task_io", Removed(HOOK_ONLY)),
        one("plan", Supported, &PLAN),
        one("spawn", Enforcing(EmptyAllow), &ALLOW),
        key("install", Enforcing(Empty)),
    ],
};

pub(super) static ALLOW: Block = Block { keys: &[key("allow", Supported)] };
pub(super) static READ: Block = Block { keys: &[key("read", Supported)] };
pub(super) static STATE: Block = Block { keys: &[key("store", Supported)] };
pub(super) static PLAN: Block = Block { keys: &[key("submit", Enforcing(False))] };

pub(super) static CAPSULE_NETWORK: Block =
    Block { keys: &[key("allow", Supported), key("unix_sockets", Supported)] };

pub(super) static FILESYSTEM: Block = Block {
    keys: &[
        key("scope", Supported),
        key("read_only", Supported),
        key("workdir_exec", Supported),
        key("records", Removed(HOOK_ONLY)),
    ],
};

pub(super) static SHELL: Block = Block {
    keys: &[
        key("allow", Supported),
        key("strip_env", Supported),
        key("baseline_env", Supported),
        many("interpreter_runtime", Supported, &INTERPRETER_RUNTIME),
        many("staged_runtime", Supported, &STAGED_RUNTIME),
    ],
};

pub(super) static INTERPRETER_RUNTIME: Block =
    Block { keys: &[key("binary", Supported), many("dirs", Supported, &RUNTIME_DIR)] };
pub(super) static RUNTIME_DIR: Block = Block { keys: &[key("path", Supported), key("list_dir", Supported)] };
pub(super) static STAGED_RUNTIME: Block =
    Block { keys: &[key("binary", Supported), key("source_path", Supported), key("pin", Supported)] };

pub(super) static LIMITS: Block = Block {
    keys: &[
        key("memory_bytes", Supported),
        key("table_elements", Supported),
        key("instances", Supported),
        key("deadline_seconds", Supported),
    ],
};

pub(super) static RESOURCES: Block = Block {
    keys: &[
        key("max_processes", Supported),
        key("max_open_files", Supported),
        key("max_file_size_bytes", Supported),
        key("cpu_seconds", Supported),
        key("memory_bytes", Supported),
        key("cgroup_memory_bytes", Supported),
        key("cgroup_pids_max", Supported),
        key("cgroup_cpu_percent", Supported),
        key("cgroup_io_bytes_per_sec", Supported),
        key("workdir_max_bytes", Supported),
        key("max_workdir_bytes", Supported),
    ],
};

pub(super) static NETWORK: Block =
    Block { keys: &[key("internal_port", NotYet(Int(0))), key("authentication", Enforcing(Never))] };

pub(super) static INFERENCE: Block = Block {
    keys: &[
        key("transport", Supported),
        key("model", Supported),
        one("driver", Supported, &DRIVER),
        one("provider", Supported, &PROVIDER),
        key("max_turns", Supported),
        key("max_tokens", Supported),
        key("max_session_tokens", Enforcing(Never)),
        key("system_prompt", Supported),
        key("system_prompt_file", Supported),
        key("system_prompt_artifact", Enforcing(Never)),
        key("command", Comfort(Never)),
        one("compaction", Comfort(Empty), &COMPACTION),
        one("retry", Comfort(Empty), &RETRY),
        key("tool_refresh", Comfort(Word("compaction"))),
        key("alternates", Enforcing(Empty)),
        key("endpoint", Removed(GATEWAY_HINT)),
        key("api_key", Removed(GATEWAY_HINT)),
        key("max_task_reopens", Removed("it is lifecycle.max_task_reopens")),
    ],
};

pub(super) static DRIVER: Block = Block { keys: &[key("artifact", Supported), key("config", Supported)] };
pub(super) static PROVIDER: Block = Block { keys: &[key("artifact", Supported)] };

pub(super) static COMPACTION: Block = Block {
    keys: &[
        key("threshold", Comfort(Never)),
        key("model", Comfort(Never)),
        key("system_prompt", Comfort(Never)),
        key("system_prompt_file", Comfort(Never)),
        key("dump_summaries", Comfort(Never)),
        key("max_tokens", Comfort(Never)),
        key("driver_config", Comfort(Never)),
    ],
};

pub(super) static RETRY: Block = Block {
    keys: &[
        key("max_retries", Comfort(Never)),
        key("initial_delay_ms", Comfort(Never)),
        key("max_delay_ms", Comfort(Never)),
    ],
};

pub(super) static CONTEXT: Block = Block {
    keys: &[
        key("max_tokens", Comfort(Never)),
        key("seed_budget", Comfort(Never)),
        key("seed_overflow_margin", Comfort(Never)),
        key("record", Comfort(Never)),
        key("record_store", Comfort(Never)),
        // Nothing is kept between sessions, so there is nothing this could bound.
        one("retain", Comfort(Never), &CONTEXT_RETAIN),
    ],
};

pub(super) static CONTEXT_RETAIN: Block =
    Block { keys: &[key("max_messages", Comfort(Never)), key("max_age", Comfort(Never))] };

pub(super) static OBSERVABILITY: Block =
    Block { keys: &[key("otel_endpoint", Comfort(Never)), key("eval", Comfort(Never))] };

pub(super) static TRACE: Block = Block {
    keys: &[
        key("capture", Supported),
        key("include_tool_output", Supported),
        one("retain", Enforcing(Never), &TRACE_RETAIN),
    ],
};

pub(super) static TRACE_RETAIN: Block =
    Block { keys: &[key("max_sessions", Supported), key("max_age", Supported)] };

pub(super) static LIFECYCLE: Block = Block {
    keys: &[
        key("task_acceptance", Supported),
        key("after_task", Supported),
        key("queue_depth", Supported),
        key("input_timeout_secs", NotYet(Never)),
        key("conversation", Comfort(Word("stateless"))),
        key("max_task_reopens", Comfort(Int(1))),
        key("shell_grace_secs", NotYet(Int(10))),
        key("delegation_deadline_secs", Comfort(Int(600))),
        key("deadline_notice_secs", Comfort(Never)),
        one("keep_working", Comfort(Never), &KEEP_WORKING),
        // It gates what counts as done; a capsule that relies on it must not run without.
        one("done_check", Enforcing(Never), &DONE_CHECK),
    ],
};

pub(super) static KEEP_WORKING: Block = Block { keys: &[key("message", Supported), key("limit", Supported)] };
pub(super) static DONE_CHECK: Block =
    Block { keys: &[key("command", Supported), key("limit", Supported), key("timeout_secs", Supported)] };

pub(super) static EXPORTS: Block = Block {
    keys: &[
        one("files", Supported, &EXPORT_FILES),
        one("peer_files", Supported, &EXPORT_PEER_FILES),
        one("peer_tasks", Supported, &EXPORT_PEER_TASKS),
    ],
};

pub(super) static EXPORT_FILES: Block =
    Block { keys: &[key("root", Supported), key("mode", Supported), key("max_bytes", Supported)] };
pub(super) static EXPORT_PEER_FILES: Block =
    Block { keys: &[key("root", Supported), key("max_ttl", Supported), key("max_bytes", Supported)] };
pub(super) static EXPORT_PEER_TASKS: Block = Block { keys: &[key("accept", Enforcing(False))] };
