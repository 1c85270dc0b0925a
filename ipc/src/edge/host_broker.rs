//! sandbox-host ↔ broker: the agent's configuration, the end of tasks, and the lines of the trace that the agent writes.

use serde::{Deserialize, Serialize};

use crate::channel::Message;
use crate::types::Class;

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
    },
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
    /// What is captured in the trace.
    pub capture: Capture,
    /// The accessible workdir as programs name it, for the `[Capsule]` block.
    pub workdir: String,
    /// Hosts of `capabilities.network.allow` as declared, for the `[Capsule]` block.
    pub network_allow: Vec<String>,
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
}

/// What an artifact is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Called by the model.
    Tool,
    /// Called for each turn.
    Driver,
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
