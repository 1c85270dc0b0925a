//! The agent's lines, and where each hangs in the tree: session → task → turn.

use ipc::edge::host_broker::{Event, InferenceShas};
use ipc::types::hex;
use serde_json::Value;

use super::line::Line;

/// Identifiers of the lines that others hang off.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    pub(super) session: Option<String>,
    task: Option<String>,
    turn: Option<String>,
}

impl Nodes {
    /// Turn, else task, else session.
    pub(super) fn nearest(&self) -> Option<&str> {
        self.turn.as_deref().or(self.task.as_deref()).or(self.session.as_deref())
    }

    fn task(&self) -> Option<&str> {
        self.task.as_deref().or(self.session.as_deref())
    }
}

/// A word as the wire spells it: our enums are serialised by name.
fn word(value: impl serde::Serialize) -> Value {
    serde_json::to_value(value).unwrap_or(Value::Null)
}

/// The line of an event; task and turn nodes move with it.
pub(super) fn line(nodes: &mut Nodes, session: &str, event: &Event) -> String {
    let at_session = nodes.session.clone();
    let at_session = at_session.as_deref();
    match event {
        Event::A2aTaskReceived { task_id, context_id, message_id, traceparent_from_caller } => {
            Line::new("a2a_task_received", at_session, session)
                .text("task_id", task_id)
                .text("context_id", context_id)
                .text("message_id", message_id)
                .optional_text("traceparent_from_caller", traceparent_from_caller.as_deref())
                .end(HOST)
        }
        Event::TaskStart { task_id, context_id, source, origin, trusted, message_parts_bytes } => {
            let mut line = Line::new("task_start", at_session, session);
            nodes.task = Some(line.event_id().to_owned());
            nodes.turn = None;
            let lane = match word(origin).as_str() {
                Some("user") => "user",
                Some("peer") => "peer",
                _ => "bg",
            };
            line.text("task_id", task_id)
                .text("context_id", context_id)
                .value("source", &word(source))
                .value("origin", &word(origin))
                .text("trust", if *trusted { "trusted" } else { "untrusted" })
                .text("lane", lane)
                .number("message_parts_bytes", *message_parts_bytes)
                .end(HOST)
        }
        Event::TaskEnd {
            task_id,
            exit_status,
            duration_ms,
            turns,
            input_tokens,
            output_tokens,
            tool_calls,
            shell_calls,
        } => {
            let mut line = Line::new("task_end", nodes.task(), session);
            nodes.task = None;
            nodes.turn = None;
            line.text("task_id", task_id)
                .text("exit_status", exit_status.as_str())
                .number("duration_ms", *duration_ms)
                .number("turns", (*turns).into())
                .number("input_tokens", *input_tokens)
                .number("output_tokens", *output_tokens)
                .number("tool_calls", (*tool_calls).into())
                .number("shell_calls", (*shell_calls).into())
                .number("reopen_count", 0)
                .end(HOST)
        }
        Event::TaskFailed { task_id, turn, cause, reason } => {
            let mut line = Line::new("task_failed", nodes.task(), session);
            line.text("task_id", task_id);
            if let Some(turn) = turn {
                line.number("turn", (*turn).into());
            }
            line.value("cause", &word(cause)).text("reason", reason).end(HOST)
        }
        Event::TaskCanceled { task_id, turn, phase } => {
            let mut line = Line::new("task_canceled", nodes.task(), session);
            line.text("task_id", task_id);
            if let Some(turn) = turn {
                line.number("turn", (*turn).into());
            }
            line.value("phase", &word(phase))
                .value("detached_work_ids", &Value::Array(Vec::new()))
                .value("delegation_ids", &Value::Array(Vec::new()))
                .end(HOST)
        }
        Event::TaskRejected { task_id, context_id, reason } => {
            Line::new("task_rejected", at_session, session)
                .text("task_id", task_id)
                .text("context_id", context_id)
                .text("source", "a2a")
                .text("cause", "session_ended")
                .text("reason", reason)
                .end(HOST)
        }
        Event::Inference {
            turn,
            task_id,
            input_tokens_actual,
            output_tokens_actual,
            decision,
            stop_reason,
            tool_name,
            shas,
            error,
        } => {
            let mut line = Line::new("inference", nodes.task(), session);
            nodes.turn = Some(line.event_id().to_owned());
            line.number("turn", (*turn).into())
                .optional_text("task_id", task_id.as_deref())
                .value("decision", &word(decision))
                .text("stop_reason", stop_reason)
                .optional_text("tool_name", tool_name.as_deref());
            for (key, count) in
                [("input_tokens_actual", input_tokens_actual), ("output_tokens_actual", output_tokens_actual)]
            {
                if let Some(count) = count {
                    line.number(key, *count);
                }
            }
            if let Some(InferenceShas { system, tools, response }) = shas {
                line.text("system_sha", &hex(system))
                    .text("tools_sha", &hex(tools))
                    .text("response_sha", &hex(response));
            }
            if let Some((code, text)) = error {
                line.value("error_code", &word(code)).text("error", text);
            }
            line.end(HOST)
        }
        Event::ToolCall {
            turn,
            task_id,
            tool_name,
            tool_call_id,
            input,
            input_bytes,
            output,
            output_bytes,
            duration_ms,
            ok,
            error,
        } => {
            // The input is an object in text form; text that is none is recorded as the text it is.
            let input = serde_json::from_str(input).unwrap_or_else(|_| Value::from(input.as_str()));
            let mut line = Line::new("tool_call", nodes.nearest(), session);
            line.number("turn", (*turn).into())
                .optional_text("task_id", task_id.as_deref())
                .text("tool_name", tool_name)
                .optional_text("tool_call_id", tool_call_id.as_deref())
                .value("input", &input)
                .number("input_bytes", *input_bytes);
            if let Some(output) = output {
                line.text("output", output);
            }
            line.number("output_bytes", *output_bytes)
                .number("duration_ms", *duration_ms)
                .text("status", if *ok { "ok" } else { "error" });
            if let Some(error) = error {
                line.text("error", error);
            }
            line.end(HOST)
        }
        Event::Shell {
            turn,
            task_id,
            binary,
            command,
            exit_code,
            stdout_bytes,
            stderr_bytes,
            duration_ms,
        } => Line::new("shell", nodes.nearest(), session)
            .number("turn", (*turn).into())
            .optional_text("task_id", task_id.as_deref())
            .text("binary", binary)
            .text("command", command)
            .value("exit_code", &Value::from(*exit_code))
            .number("stdout_bytes", *stdout_bytes)
            .number("stderr_bytes", *stderr_bytes)
            .number("duration_ms", *duration_ms)
            .end(HOST),
    }
}

/// The process all of these come from.
const HOST: &str = "sandbox-host";
