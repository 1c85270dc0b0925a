//! The agent's lines, and where each hangs in the tree: session → task → turn.

use ipc::edge::host_broker::{Event, FetchOutcome, InferenceShas, MintFailure};
use ipc::types::{PlaneCode, hex};
use serde_json::Value;

use super::line::Line;
use super::process;

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
pub(super) fn word(value: impl serde::Serialize) -> Value {
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
            env_dropped,
            resource_limit,
        } => {
            let mut line = Line::new("shell", nodes.nearest(), session);
            line.number("turn", (*turn).into())
                .optional_text("task_id", task_id.as_deref())
                .text("binary", binary)
                .text("command", command)
                .value("exit_code", &Value::from(*exit_code))
                .number("stdout_bytes", *stdout_bytes)
                .number("stderr_bytes", *stderr_bytes)
                .number("duration_ms", *duration_ms);
            if !env_dropped.is_empty() {
                line.value("env_dropped", &word(env_dropped));
            }
            super::process::limit(&mut line, *resource_limit);
            line.end(HOST)
        }
        Event::ProtectedPathDenied { turn, program, target, path, rule, signal, reason } => {
            Line::new("protected_path_denied", nodes.nearest(), session)
                .number("turn", (*turn).into())
                .text("call", if *program { "shell" } else { "tool" })
                .text("target", target)
                .text("path", path)
                .text("rule", rule)
                .text("signal", signal)
                .text("reason", reason)
                .end(HOST)
        }
        Event::CallDenied { turn, event, hook_name, target, reason } => {
            Line::new("call_denied", nodes.nearest(), session)
                .number("turn", (*turn).into())
                .text("event", event.as_str())
                .text("hook_name", hook_name)
                .text("target", target)
                .text("reason", reason)
                .end(HOST)
        }
        Event::Process(event) => process::line(nodes, session, event),
        Event::PeerHandleMintFailed { path, audience, cause } => mint(
            at_session,
            session,
            &Minting {
                handle_id: None,
                path,
                audience,
                expires_at_ms: None,
                refused: Some(mint_failure(*cause)),
                process: HOST,
            },
        ),
        Event::PeerFileFetch { peer, handle_id, outcome } => {
            let stored = match outcome {
                FetchOutcome::Stored { path, bytes, sha256 } => Some((path.as_str(), *bytes, hex(sha256))),
                _ => None,
            };
            let failed = fetch_failure(outcome);
            Line::new("peer_file_fetch", at_session, session)
                .text("peer", peer)
                .text("handle_id", handle_id)
                .optional_text("stored_path", stored.as_ref().map(|(path, ..)| *path))
                .optional_number("bytes", stored.as_ref().map(|(_, bytes, _)| *bytes))
                .optional_text("sha256", stored.as_ref().map(|(_, _, sha256)| sha256.as_str()))
                .text("outcome", failed.as_ref().map_or("ok", |(code, _)| code))
                .optional_text("reason", failed.as_ref().map(|(_, reason)| *reason))
                .end(HOST)
        }
    }
}

/// The payload of a `peer_handle_mint` line.
pub(super) struct Minting<'a> {
    pub(super) handle_id: Option<&'a str>,
    pub(super) path: &'a str,
    pub(super) audience: &'a str,
    pub(super) expires_at_ms: Option<u64>,
    /// Code and sentence.
    pub(super) refused: Option<(&'static str, &'static str)>,
    pub(super) process: &'static str,
}

/// A `peer_handle_mint` line, whoever decided.
pub(super) fn mint(parent: Option<&str>, session: &str, minting: &Minting<'_>) -> String {
    Line::new("peer_handle_mint", parent, session)
        .optional_text("handle_id", minting.handle_id)
        .text("path", minting.path)
        .text("audience", minting.audience)
        .optional_number("expires_at_ms", minting.expires_at_ms)
        .text("outcome", minting.refused.map_or("ok", |(code, _)| code))
        .optional_text("reason", minting.refused.map(|(_, reason)| reason))
        .end(minting.process)
}

/// Why a mint failed before the broker was asked.
fn mint_failure(cause: MintFailure) -> (&'static str, &'static str) {
    match cause {
        MintFailure::OutsideRoot => (PlaneCode::OutsideRoot.as_str(), PlaneCode::OutsideRoot.message()),
        MintFailure::PeerUnreachable => {
            ("peer_unreachable", "the peer's card could not be read, or names no usable identity")
        }
    }
}

/// Code and sentence of a fetch that stored nothing.
fn fetch_failure(outcome: &FetchOutcome) -> Option<(String, &'static str)> {
    let (code, reason) = match outcome {
        FetchOutcome::Stored { .. } => return None,
        FetchOutcome::NotAllowed => {
            ("peer_not_allowed", "capabilities.peer_fetch.allow does not name the peer")
        }
        FetchOutcome::Unreachable => ("peer_unreachable", "the peer did not answer, or broke off"),
        FetchOutcome::EtagMismatch => ("etag_mismatch", "the bytes are not those the peer announced"),
        FetchOutcome::IoError => ("io_error", "the file is too large, or could not be stored"),
        FetchOutcome::PathRefused => ("path_refused", "something else stands where the file belongs"),
        FetchOutcome::Peer(code) => (code.as_str(), code.message()),
        FetchOutcome::Http(status) => {
            return Some((
                format!("http_{status}"),
                "the peer answered with another status than a redeem has",
            ));
        }
    };
    Some((code.to_owned(), reason))
}

/// The process all of these come from.
pub(super) const HOST: &str = "sandbox-host";
