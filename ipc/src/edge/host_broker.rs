//! sandbox-host ↔ broker: the agent's configuration, the end of tasks, and the lines of the trace that the agent writes.

use serde::{Deserialize, Serialize};

use crate::channel::Message;
use crate::types::{Class, PlaneCode, RelPath, RequestId, ResourceLimit};

/// Sandbox-host to broker.
#[derive(Debug, Serialize, Deserialize)]
pub enum HostToBroker {
    /// A trace line.
    Event(Box<Event>),
    /// A part of an encoded [`Event`] that does not fit one packet; the parts of one event are consecutive.
    EventPart {
        /// Whether this is the last part.
        last: bool,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// An activated task reached its terminal state: advance the generation. Sent after its `task_end` event.
    TaskEnded {
        /// The task.
        task_id: String,
    },
    /// Mint a handle. Answered by [`BrokerToHost::Minted`]; the broker writes the record.
    Mint {
        /// The request.
        id: RequestId,
        /// Below `exports.peer_files.root`, decoded once.
        path: RelPath,
        /// Whom it is for ([`Agent::share_file`] says whether there may be any).
        audience: String,
        /// Lifetime asked for in milliseconds; clamped to `max_ttl`, which is the default.
        ttl_ms: Option<u64>,
    },
    /// The loop is over; sandbox-host exits after the broker's `Shutdown`.
    LoopEnded(LoopEnded),
}

/// Totals for `session_end`, and how the session ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LoopEnded {
    /// How.
    pub exit_status: ExitStatus,
    /// Inference calls.
    pub turns: u32,
    /// Tokens in.
    pub input_tokens: u64,
    /// Tokens out.
    pub output_tokens: u64,
    /// Tool calls.
    pub tool_calls: u32,
    /// Shell calls.
    pub shell_calls: u32,
    /// What ended the session before its time.
    pub spent: Option<WorkdirSpent>,
}

/// Why nothing may run any more (`capabilities.resources.workdir_max_bytes`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkdirSpent {
    /// More bytes are kept than the budget, or at least so many.
    Over(u64),
    /// What is kept cannot be counted: a directory of programs' making is unreadable or too deep.
    Unmeasurable,
}

/// How a task or session ended, in the trace's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    /// `ok`
    Ok,
    /// `failed`
    Failed,
    /// `max_turns_reached`
    MaxTurnsReached,
    /// `canceled`
    Canceled,
}

impl ExitStatus {
    /// The trace's word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            ExitStatus::Ok => "ok",
            ExitStatus::Failed => "failed",
            ExitStatus::MaxTurnsReached => "max_turns_reached",
            ExitStatus::Canceled => "canceled",
        }
    }
}

/// A line of the trace that sandbox-host reports; field names are the trace's own. The broker adds identifiers and time.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Event {
    /// `a2a_task_received`
    A2aTaskReceived {
        /// The new task.
        task_id: String,
        /// Its context.
        context_id: String,
        /// The client's message.
        message_id: String,
        /// The caller's `traceparent`.
        traceparent_from_caller: Option<String>,
    },
    /// `task_start`
    TaskStart {
        /// The task.
        task_id: String,
        /// Its context.
        context_id: String,
        /// `a2a` or `task_md`.
        source: TaskSource,
        /// `user`, `peer`, `event` or `completion`.
        origin: Origin,
        /// Whether its text is trusted.
        trusted: bool,
        /// Bytes of the message's parts.
        message_parts_bytes: u64,
    },
    /// `task_end`
    TaskEnd {
        /// The task.
        task_id: String,
        /// How it ended.
        exit_status: ExitStatus,
        /// Milliseconds it took.
        duration_ms: u64,
        /// Inference calls.
        turns: u32,
        /// Tokens in.
        input_tokens: u64,
        /// Tokens out.
        output_tokens: u64,
        /// Tool calls.
        tool_calls: u32,
        /// Shell calls.
        shell_calls: u32,
    },
    /// `task_failed`
    TaskFailed {
        /// The task.
        task_id: String,
        /// The turn, from 0.
        turn: Option<u32>,
        /// `driver_error`, `malformed_response` or `runtime_error`.
        cause: FailureCause,
        /// At most 2000 bytes.
        reason: String,
    },
    /// `task_canceled`
    TaskCanceled {
        /// The task.
        task_id: String,
        /// The turn, from 0, if one was running.
        turn: Option<u32>,
        /// `queued`, `turn` or `inference`.
        phase: CancelPhase,
    },
    /// `task_rejected`
    TaskRejected {
        /// The task.
        task_id: String,
        /// Its context.
        context_id: String,
        /// Why, one sentence.
        reason: String,
    },
    /// `inference`
    Inference {
        /// From 0, counted over the task.
        turn: u32,
        /// The task.
        task_id: Option<String>,
        /// Tokens in, as the driver reported them.
        input_tokens_actual: Option<u64>,
        /// Tokens out, as the driver reported them.
        output_tokens_actual: Option<u64>,
        /// `tool_call`, `end_turn`, `text` or `error`.
        decision: Decision,
        /// The driver's own word.
        stop_reason: String,
        /// The first tool asked for.
        tool_name: Option<String>,
        /// Hashes of what was sent and received, when captured: system, tools, response, messages.
        shas: Option<InferenceShas>,
        /// Code and text of a failed call.
        error: Option<(InferenceError, String)>,
    },
    /// `tool_call`
    ToolCall {
        /// The turn.
        turn: u32,
        /// The task.
        task_id: Option<String>,
        /// The tool.
        tool_name: String,
        /// The model's id for the call.
        tool_call_id: Option<String>,
        /// The input as the model sent it, JSON text of an object.
        input: String,
        /// Bytes of the input as serialised.
        input_bytes: u64,
        /// The output as the model sees it, when captured.
        output: Option<String>,
        /// Bytes of the output, fence included.
        output_bytes: u64,
        /// Milliseconds.
        duration_ms: u64,
        /// Whether the tool ran and passed.
        ok: bool,
        /// Why the runtime could not run it, at most 2000 bytes.
        error: Option<String>,
    },
    /// `shell`
    Shell {
        /// The turn.
        turn: u32,
        /// The task.
        task_id: Option<String>,
        /// Absolute path of the program.
        binary: String,
        /// Its arguments; the script text for `-c`.
        command: String,
        /// Exit code, 128 + n for signal n.
        exit_code: i32,
        /// Bytes printed to stdout.
        stdout_bytes: u64,
        /// Bytes printed to stderr.
        stderr_bytes: u64,
        /// Milliseconds.
        duration_ms: u64,
        /// Names of variables that were asked for and not set, sorted.
        env_dropped: Vec<String>,
        /// The one limit that is known to have been hit.
        resource_limit: Option<ResourceLimit>,
    },
    /// `protected_path_denied`
    ProtectedPathDenied {
        /// The turn.
        turn: u32,
        /// Whether a program was to start; else a tool was to be called.
        program: bool,
        /// The program's path or the tool's name.
        target: String,
        /// Where the write leads, relative to the workdir.
        path: String,
        /// The entry as declared.
        rule: String,
        /// What marked it as a write.
        signal: String,
        /// The text the model or the tool received.
        reason: String,
    },
    /// `call_denied`
    CallDenied {
        /// The turn.
        turn: u32,
        /// The decision that was asked for.
        event: HookEvent,
        /// Who refused.
        hook_name: String,
        /// The program's path or the tool's name.
        target: String,
        /// The hook's words, or the runtime's where it gave none.
        reason: String,
    },
    /// What `murmur:process` was used for.
    Process(ProcessEvent),
    /// `peer_handle_mint` of a mint that failed before [`HostToBroker::Mint`]
    PeerHandleMintFailed {
        /// As the agent named it, at most 4096 bytes.
        path: String,
        /// The audience; empty if the card could not be read.
        audience: String,
        /// Why.
        cause: MintFailure,
    },
    /// `peer_file_fetch`
    PeerFileFetch {
        /// The address the tool was given, at most 4096 bytes.
        peer: String,
        /// Identifier of the handle it was given.
        handle_id: String,
        /// How it went.
        outcome: FetchOutcome,
    },
}

/// A line of `murmur:process`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum ProcessEvent {
    /// `process_run`: `run` returned after a program started
    Run {
        /// Who ran what.
        call: ProcessCall,
        /// Bytes of stdin, if there was one.
        stdin_bytes: Option<u64>,
        /// Exit code, 128 + n for signal n.
        exit_code: i32,
        /// The time limit passed.
        timed_out: bool,
        /// The limit, after it was clamped to the call's own.
        timeout_ms: u64,
        /// Bytes printed to stdout, those that were discarded included.
        stdout_bytes: u64,
        /// The same for stderr.
        stderr_bytes: u64,
        /// Not all of stdout was kept.
        stdout_truncated: bool,
        /// Not all of stderr was kept.
        stderr_truncated: bool,
        /// Milliseconds.
        duration_ms: u64,
        /// The one limit that is known to have been hit.
        resource_limit: Option<ResourceLimit>,
    },
    /// `process_start`: `start` made a session process, or found one running
    Start {
        /// Who started what.
        call: ProcessCall,
        /// The handle, `prc_…`
        process_id: String,
        /// The tool's name for it.
        name: String,
        /// Nothing new ran.
        already_running: bool,
        /// Session processes that run now.
        running: u32,
    },
    /// `process_exit`: a session process is gone
    Exit {
        /// The handle.
        process_id: String,
        /// The tool's name for it.
        name: String,
        /// The tool.
        tool_name: String,
        /// Absolute path of the program.
        binary: String,
        /// Exit code, 128 + n for signal n.
        exit_code: i32,
        /// Why it ended.
        cause: ExitCause,
        /// SIGKILL was needed.
        killed: bool,
        /// Milliseconds from its start.
        duration_ms: u64,
        /// Bytes printed to stdout.
        stdout_bytes: u64,
        /// Bytes printed to stderr.
        stderr_bytes: u64,
        /// Of them, bytes that nobody read in time.
        stdout_dropped: u64,
        /// The same for stderr.
        stderr_dropped: u64,
        /// Bytes written to its stdin.
        stdin_bytes: u64,
        /// The one limit that is known to have been hit.
        resource_limit: Option<ResourceLimit>,
    },
    /// `process_denied`: a function of `murmur:process` answered `refused`
    Denied {
        /// The turn.
        turn: Option<u32>,
        /// The task.
        task_id: Option<String>,
        /// The tool; `None` outside a tool call.
        tool_name: Option<String>,
        /// The function.
        function: String,
        /// What was asked for: a program, or a handle with a port.
        target: String,
        /// The rule, in the interface's words.
        rule: String,
        /// What the component was told.
        reason: String,
    },
    /// `process_connect`: a connection to a session process was closed
    Connect {
        /// The handle.
        process_id: String,
        /// The tool.
        tool_name: String,
        /// The port.
        port: u16,
        /// Bytes read.
        bytes_in: u64,
        /// Bytes written.
        bytes_out: u64,
        /// Milliseconds.
        duration_ms: u64,
    },
}

/// What the lines of `run` and `start` have in common.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessCall {
    /// The turn.
    pub turn: u32,
    /// The task.
    pub task_id: Option<String>,
    /// The tool.
    pub tool_name: String,
    /// The model's id for the tool's call.
    pub tool_call_id: Option<String>,
    /// Absolute path of the program.
    pub binary: String,
    /// Its arguments.
    pub command: String,
    /// Names of the variables that were added, sorted.
    pub env_names: Vec<String>,
    /// Names of those that were asked for and not set, sorted.
    pub env_dropped: Vec<String>,
}

/// Why a session process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitCause {
    /// `exited`: by itself.
    Exited,
    /// `stopped`: its tool stopped it.
    Stopped,
    /// `session_end`: it was killed at the end of the session.
    SessionEnd,
    /// `resource_limit`: a limit ended it.
    ResourceLimit,
}

/// Why a mint failed before the broker was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MintFailure {
    /// `outside_root`: the path is refused lexically.
    OutsideRoot,
    /// `peer_unreachable`: not allowed, not reached, or without a usable card.
    PeerUnreachable,
}

/// How a fetch went (`seed: What lands in the trace`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FetchOutcome {
    /// `ok`
    Stored {
        /// `peer-in/…`, relative to the accessible workdir.
        path: String,
        /// Bytes stored.
        bytes: u64,
        /// Their SHA-256.
        sha256: [u8; 32],
    },
    /// `peer_not_allowed`: nothing was connected.
    NotAllowed,
    /// `peer_unreachable`: no answer, or a broken one.
    Unreachable,
    /// `etag_mismatch`: other bytes than announced, or nothing announced.
    EtagMismatch,
    /// `io_error`: too large, or it could not be stored.
    IoError,
    /// `path_refused`: something at the destination is no directory or file of the runtime's making.
    PathRefused,
    /// The peer's own code, of those a redeem can answer.
    Peer(PlaneCode),
    /// `http_<status>`: an answer without such a code.
    Http(u16),
}

/// Hashes of an inference call.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct InferenceShas {
    /// Of the system prompt.
    pub system: [u8; 32],
    /// Of the tool array.
    pub tools: [u8; 32],
    /// Of the response.
    pub response: [u8; 32],
}

/// Where a task came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskSource {
    /// `a2a`
    A2a,
    /// `task_md`: the launch's own task.
    TaskMd,
}

/// Who a task is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// `user`
    User,
    /// `peer`
    Peer,
    /// `event`
    Event,
    /// `completion`
    Completion,
}

/// Why an attempt failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureCause {
    /// `driver_error`
    DriverError,
    /// `malformed_response`
    MalformedResponse,
    /// `runtime_error`
    RuntimeError,
}

/// When a cancel met its task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelPhase {
    /// `queued`
    Queued,
    /// `turn`
    Turn,
    /// `inference`
    Inference,
}

/// What a turn decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// `tool_call`
    ToolCall,
    /// `end_turn`
    EndTurn,
    /// `text`
    Text,
    /// `error`
    Error,
}

/// Code of a failed inference call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InferenceError {
    /// `driver_error`: the driver said so.
    DriverError,
    /// `driver_failed`: the component trapped or met a limit.
    DriverFailed,
    /// `malformed_response`
    MalformedResponse,
}

impl Message for HostToBroker {
    const MAX_DESCRIPTORS: usize = 0;

    fn descriptors(&self) -> usize {
        0
    }
}

/// Broker to sandbox-host.
#[derive(Debug, Serialize, Deserialize)]
pub enum BrokerToHost {
    /// The generation was stored; the task's terminal status may be released.
    TaskEndedStored {
        /// The task.
        task_id: String,
        /// The generation after it.
        generation: u64,
    },
    /// A handle, or why there is none.
    Minted {
        /// The request.
        id: RequestId,
        /// The handle.
        outcome: Result<Minted, PlaneCode>,
    },
}

/// A handle that was minted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Minted {
    /// The token.
    pub handle: String,
    /// Its identifier.
    pub handle_id: String,
    /// When it expires, Unix milliseconds.
    pub expires_at_ms: u64,
}

impl Message for BrokerToHost {
    const MAX_DESCRIPTORS: usize = 0;

    fn descriptors(&self) -> usize {
        0
    }
}

/// Everything sandbox-host needs to be one capsule's agent, as a document in a sealed memory file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Agent {
    /// `ses_…`
    pub session_id: String,
    /// Capsule name.
    pub name: String,
    /// Capsule version.
    pub version: String,
    /// What `MURMUR_CAPSULE_URL` says: `host:port`.
    pub url: String,
    /// The class programs get.
    pub class: Class,
    /// Artifacts in declaration order.
    pub artifacts: Vec<Artifact>,
    /// Name of the artifact that drives the loop.
    pub driver: String,
    /// Model name.
    pub model: String,
    /// `inference.driver.config` as compact JSON.
    pub driver_config: Option<String>,
    /// The most inference calls per task.
    pub max_turns: u32,
    /// `max_tokens` of a driver request.
    pub max_tokens: u32,
    /// The operator's system prompt, without the `[Capsule]` block.
    pub system_prompt: Option<String>,
    /// Programs the model may ask for: name and absolute path. One tool each.
    pub shell: Vec<(String, String)>,
    /// Host variables that components may see (`env.allow`), already filtered.
    pub environment: Vec<(String, String)>,
    /// Acceptance of A2A tasks.
    pub acceptance: Acceptance,
    /// Whether the session outlives its tasks (`after_task: sleep`).
    pub sleep: bool,
    /// Tasks that may wait.
    pub queue_depth: u32,
    /// The launch's own task.
    pub task: Option<String>,
    /// `capabilities.limits` for tools and drivers.
    pub limits: ComponentLimits,
    /// The same for one call of a hook.
    pub hook_limits: ComponentLimits,
    /// `capabilities.filesystem.read_only` as declared: relative paths without `..`.
    pub read_only: Vec<String>,
    /// `capabilities.resources.workdir_max_bytes`.
    pub workdir_max_bytes: u64,
    /// What is captured in the trace.
    pub capture: Capture,
    /// The accessible workdir as programs name it, for the `[Capsule]` block.
    pub workdir: String,
    /// Hosts of `capabilities.network.allow` as declared, for the `[Capsule]` block.
    pub network_allow: Vec<String>,
    /// `exports.peer_files` is declared: the model gets `share-file`.
    pub share_file: bool,
    /// `capabilities.peer_fetch` is declared: the model gets `fetch-peer-file`.
    pub fetch_peer_file: Option<FetchPeerFile>,
}

/// What `fetch-peer-file` needs to know.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FetchPeerFile {
    /// This capsule's own audience, `<name>@<host:port>` in lower case.
    pub audience: String,
    /// The most bytes of a file that is fetched.
    pub max_bytes: u64,
}

/// An artifact of the capsule, compiled.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Artifact {
    /// Name the model and the manifest use (the part after `/`).
    pub name: String,
    /// Role.
    pub role: Role,
    /// File name of the compiled component below [`super::control::CACHE`].
    pub cache_entry: String,
    /// Description for the model.
    pub description: Option<String>,
    /// JSON text of the input schema, for the model.
    pub input_schema: Option<String>,
    /// `config` as compact JSON (`MURMUR_ARTIFACT_CONFIG`).
    pub config: Option<String>,
    /// Path part of the gateway's endpoint, without a trailing `/`, if the artifact has a gateway.
    pub gateway_path: Option<String>,
    /// `filesystem.scope`: components below the workdir; empty for the whole.
    pub scope: Vec<String>,
    /// What a hook decides on; `None` for any other role.
    pub hook: Option<HookEvent>,
}

/// What an artifact is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Called by the model.
    Tool,
    /// Called for each turn.
    Driver,
    /// Asked before a call.
    Hook,
}

/// The event a policy hook (`commit_policy: deny`) is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum HookEvent {
    /// Before a program starts, whoever asks for it.
    OnShell,
    /// Before any other tool call.
    OnToolCall,
}

impl HookEvent {
    /// Name of the function, as manifests and the trace spell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            HookEvent::OnShell => "on-shell",
            HookEvent::OnToolCall => "on-tool-call",
        }
    }
}

/// `lifecycle.task_acceptance`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Acceptance {
    /// No task over A2A.
    None,
    /// One task in total.
    Single,
    /// As many as the queue holds.
    Queue,
}

/// `capabilities.limits`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct ComponentLimits {
    /// Bytes of linear memory.
    pub memory_bytes: u64,
    /// Table elements.
    pub table_elements: u64,
    /// Instances per call.
    pub instances: u64,
    /// Seconds per call.
    pub deadline_seconds: u64,
}

/// `trace.capture`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Capture {
    /// No hashes.
    None,
    /// Hashes.
    Meta,
    /// Hashes and tool output.
    Content,
}
