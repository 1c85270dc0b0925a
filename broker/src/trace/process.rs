//! The lines of `murmur:process`.

use ipc::edge::host_broker::{ProcessCall, ProcessEvent};
use ipc::types::ResourceLimit;
use serde_json::Value;

use super::events::{HOST, Nodes, word};
use super::line::Line;

/// The line of an event.
pub(super) fn line(nodes: &Nodes, session: &str, event: &ProcessEvent) -> String {
    match event {
        ProcessEvent::Run {
            call,
            stdin_bytes,
            exit_code,
            timed_out,
            timeout_ms,
            stdout_bytes,
            stderr_bytes,
            stdout_truncated,
            stderr_truncated,
            duration_ms,
            resource_limit,
        } => {
            let mut line = Line::new("process_run", nodes.nearest(), session);
            who_ran_what(&mut line, call);
            if let Some(bytes) = stdin_bytes {
                line.number("stdin_bytes", *bytes);
            }
            line.value("exit_code", &Value::from(*exit_code))
                .value("timed_out", &Value::from(*timed_out))
                .number("timeout_ms", *timeout_ms)
                .number("stdout_bytes", *stdout_bytes)
                .number("stderr_bytes", *stderr_bytes)
                .value("stdout_truncated", &Value::from(*stdout_truncated))
                .value("stderr_truncated", &Value::from(*stderr_truncated))
                .number("duration_ms", *duration_ms);
            limit(&mut line, *resource_limit);
            line.end(HOST)
        }
        ProcessEvent::Start { call, process_id, name, already_running, running } => {
            let mut line = Line::new("process_start", nodes.nearest(), session);
            who_ran_what(&mut line, call);
            line.text("process_id", process_id)
                .text("name", name)
                .value("already_running", &Value::from(*already_running))
                .number("running", (*running).into())
                .end(HOST)
        }
        ProcessEvent::Exit {
            process_id,
            name,
            tool_name,
            binary,
            exit_code,
            cause,
            killed,
            duration_ms,
            stdout_bytes,
            stderr_bytes,
            stdout_dropped,
            stderr_dropped,
            stdin_bytes,
            resource_limit,
        } => {
            let mut line = Line::new("process_exit", nodes.session.as_deref(), session);
            line.text("process_id", process_id)
                .text("name", name)
                .text("tool_name", tool_name)
                .text("binary", binary)
                .value("exit_code", &Value::from(*exit_code))
                .value("cause", &word(cause))
                .value("killed", &Value::from(*killed))
                .number("duration_ms", *duration_ms)
                .number("stdout_bytes", *stdout_bytes)
                .number("stderr_bytes", *stderr_bytes)
                .number("stdout_dropped", *stdout_dropped)
                .number("stderr_dropped", *stderr_dropped)
                .number("stdin_bytes", *stdin_bytes);
            limit(&mut line, *resource_limit);
            line.end(HOST)
        }
        ProcessEvent::Denied { turn, task_id, tool_name, function, target, rule, reason } => {
            let mut line = Line::new("process_denied", nodes.nearest(), session);
            if let Some(turn) = turn {
                line.number("turn", (*turn).into());
            }
            line.optional_text("task_id", task_id.as_deref());
            if let Some(tool) = tool_name {
                line.text("tool_name", tool);
            }
            line.text("function", function)
                .text("target", target)
                .text("rule", rule)
                .text("reason", reason)
                .end(HOST)
        }
        ProcessEvent::Connect { process_id, tool_name, port, bytes_in, bytes_out, duration_ms } => {
            Line::new("process_connect", nodes.session.as_deref(), session)
                .text("process_id", process_id)
                .text("tool_name", tool_name)
                .number("port", (*port).into())
                .number("bytes_in", *bytes_in)
                .number("bytes_out", *bytes_out)
                .number("duration_ms", *duration_ms)
                .end(HOST)
        }
    }
}

/// `resource_limit`, where one is proven.
pub(super) fn limit(line: &mut Line, limit: Option<ResourceLimit>) {
    if let Some(limit) = limit {
        line.text("resource_limit", limit.as_str());
    }
}

fn who_ran_what(line: &mut Line, call: &ProcessCall) {
    line.number("turn", call.turn.into())
        .optional_text("task_id", call.task_id.as_deref())
        .text("tool_name", &call.tool_name)
        .optional_text("tool_call_id", call.tool_call_id.as_deref())
        .text("binary", &call.binary)
        .text("command", &call.command)
        .value("env_names", &word(&call.env_names));
    if !call.env_dropped.is_empty() {
        line.value("env_dropped", &word(&call.env_dropped));
    }
}
