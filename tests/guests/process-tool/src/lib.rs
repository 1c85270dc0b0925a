//! A tool that calls the functions of `murmur:process`, as its input says, and tells what came back.
//!
//! Input `{"steps": [STEP, …]}`; answer `{"steps": [RESULT, …]}`, one RESULT per STEP, `{"ok": …}` or
//! `{"error": …}` with an error as `{"refused": {"rule", "reason"}}`, `"unknown-handle"`, `"not-running"`,
//! `"timed-out"` or `{"failed": TEXT}`. Connections are numbered from 0 and end with the call.
//!
//! | step | function |
//! | --- | --- |
//! | `{"run": PROGRAM, "args", "env": [[NAME, VALUE]], "stdin": TEXT, "times": N, "timeout_ms": N}` | `run` |
//! | `{"start": PROGRAM, "name": NAME, "args", "env"}` | `start` |
//! | `{"find": NAME}`, `{"status": HANDLE}`, `{"stop": HANDLE}` | the same |
//! | `{"write": HANDLE, "text": TEXT, "times": N}` | `write` |
//! | `{"read": HANDLE, "max": N}` | `read` |
//! | `{"connect": HANDLE, "port": N}` | `connect` |
//! | `{"receive": NUMBER, "max": N, "timeout_ms": N}`, `{"send": NUMBER, "text": TEXT, "times": N}` | of a connection |
//! | `{"close": NUMBER}` | drops a connection |
//! | `{"echo": NUMBER, "text": TEXT, "times": N}` | sends TEXT and receives as many bytes, N times; tells the last |
//! | `{"until": TEXT, "of": HANDLE}` | `read` until stdout held TEXT or the process is over |
//! | `{"over": HANDLE}` | `status` until the process is over |
//!
//! A HANDLE is one, or `$NAME` for what `find` answers. What is longer than 4 KiB is told as `{"bytes", "fnv1a",
//! "start"}`.
//!
//! It also loads as a driver: it takes the steps from the task's text and ends the turn with the answer.

wit_bindgen::generate!({
    path: "../../../wit",
    world: "murmur:runtime-guest/tool",
    generate_all,
});

use exports::murmur::tool::run::{Guest, Status, ToolInput, ToolResult};
use guest_kit::{Request, end_turn};
use murmur::process::process::{self, Connection, ProcessError, RunRequest, StartRequest, State};
use serde_json::{Value, json};

struct ProcessTool;

impl Guest for ProcessTool {
    fn run(input: ToolInput) -> ToolResult {
        let input = input.data.unwrap_or_default();
        let is_driver = serde_json::from_str::<Value>(&input).is_ok_and(|input| input["messages"].is_array());
        let data = if is_driver { end_turn(&perform(&Request::read(&input).task)) } else { perform(&input) };
        ToolResult {
            status: Status::Passed,
            summary: None,
            data: Some(data),
            data_path: None,
            truncated: false,
            metadata: Vec::new(),
        }
    }
}

fn perform(input: &str) -> String {
    let input: Value = serde_json::from_str(input).unwrap_or_default();
    let mut connections = Vec::new();
    let steps = input["steps"].as_array().cloned().unwrap_or_default();
    let results: Vec<Value> = steps
        .iter()
        .map(|step| match perform_step(step, &mut connections) {
            Ok(answer) => json!({"ok": answer}),
            Err(error) => json!({"error": describe(error)}),
        })
        .collect();
    json!({"steps": results}).to_string()
}

fn describe(error: ProcessError) -> Value {
    match error {
        ProcessError::Refused(refusal) => {
            json!({"refused": {"rule": refusal.rule, "reason": refusal.reason}})
        }
        ProcessError::UnknownHandle => json!("unknown-handle"),
        ProcessError::NotRunning => json!("not-running"),
        ProcessError::TimedOut => json!("timed-out"),
        ProcessError::Failed(text) => json!({"failed": text}),
    }
}

fn perform_step(step: &Value, connections: &mut Vec<Option<Connection>>) -> Result<Value, ProcessError> {
    if let Some(program) = step["run"].as_str() {
        let output = process::run(&RunRequest {
            program: program.to_owned(),
            args: texts(&step["args"]),
            env: pairs(&step["env"]),
            stdin: step["stdin"].as_str().map(|text| repeated(text, step)),
            timeout_ms: step["timeout_ms"].as_u64(),
        })?;
        return Ok(json!({
            "exit_code": output.exit_code,
            "timed_out": output.timed_out,
            "stdout": shown(&output.stdout),
            "stdout_truncated": output.stdout_truncated,
            "stderr": shown(&output.stderr),
            "stderr_truncated": output.stderr_truncated,
        }));
    }
    if let Some(program) = step["start"].as_str() {
        let started = process::start(&StartRequest {
            name: text(&step["name"]),
            program: program.to_owned(),
            args: texts(&step["args"]),
            env: pairs(&step["env"]),
        })?;
        return Ok(json!({"handle": started.handle, "already_running": started.already_running}));
    }
    if let Some(name) = step["find"].as_str() {
        return Ok(json!(process::find(name)));
    }
    if step["status"].is_string() {
        return process::status(&handle(&step["status"])).map(state);
    }
    if step["stop"].is_string() {
        return process::stop(&handle(&step["stop"])).map(state);
    }
    if step["write"].is_string() {
        process::write(&handle(&step["write"]), &repeated(&text(&step["text"]), step))?;
        return Ok(Value::Null);
    }
    if step["read"].is_string() {
        return read(&handle(&step["read"]), step["max"].as_u64().unwrap_or(u64::from(u32::MAX)));
    }
    if step["connect"].is_string() {
        let port = step["port"].as_u64().unwrap_or_default() as u16;
        connections.push(Some(process::connect(&handle(&step["connect"]), port)?));
        return Ok(json!(connections.len() - 1));
    }
    if let Some(until) = step["until"].as_str() {
        return read_until(&handle(&step["of"]), until);
    }
    if step["over"].is_string() {
        let handle = handle(&step["over"]);
        loop {
            match process::status(&handle)? {
                State::Running => pause(),
                over => return Ok(state(over)),
            }
        }
    }
    connection_step(step, connections)
}

fn connection_step(step: &Value, connections: &mut [Option<Connection>]) -> Result<Value, ProcessError> {
    let number = ["close", "receive", "send", "echo"].iter().find_map(|function| step[function].as_u64());
    let slot = number.and_then(|number| connections.get_mut(number as usize));
    let Some(slot) = slot else {
        return Err(ProcessError::Failed("no such step or connection".to_owned()));
    };
    if step["close"].is_u64() {
        slot.take();
        return Ok(Value::Null);
    }
    let Some(connection) = slot else {
        return Err(ProcessError::Failed("the connection was closed".to_owned()));
    };
    if step["echo"].is_u64() {
        return echo(connection, text(&step["text"]).as_bytes(), step["times"].as_u64().unwrap_or(1));
    }
    if step["receive"].is_u64() {
        let number = |value: &Value, other: u32| value.as_u64().map_or(other, |number| number as u32);
        let bytes = connection.read(number(&step["max"], 65536), number(&step["timeout_ms"], 10_000))?;
        return Ok(shown(&bytes));
    }
    connection.write(&repeated(&text(&step["text"]), step))?;
    Ok(Value::Null)
}

fn echo(connection: &Connection, bytes: &[u8], times: u64) -> Result<Value, ProcessError> {
    let mut answer = Vec::new();
    for _ in 0..times {
        connection.write(bytes)?;
        answer.clear();
        while answer.len() < bytes.len() {
            let more = connection.read((bytes.len() - answer.len()) as u32, 10_000)?;
            if more.is_empty() {
                return Err(ProcessError::Failed("the other side closed".to_owned()));
            }
            answer.extend(more);
        }
    }
    Ok(shown(&answer))
}

fn read(handle: &str, most: u64) -> Result<Value, ProcessError> {
    let output = process::read(handle, most.min(u64::from(u32::MAX)) as u32)?;
    Ok(json!({
        "stdout": shown(&output.stdout),
        "stderr": shown(&output.stderr),
        "stdout_dropped": output.stdout_dropped,
        "stderr_dropped": output.stderr_dropped,
    }))
}

fn read_until(handle: &str, until: &str) -> Result<Value, ProcessError> {
    let mut stdout = String::new();
    loop {
        let over = matches!(process::status(handle)?, State::Exited(_));
        stdout.push_str(&String::from_utf8_lossy(&process::read(handle, u32::MAX)?.stdout));
        if over || stdout.contains(until) {
            return Ok(shown(stdout.as_bytes()));
        }
        pause();
    }
}

/// The interface has no way to wait for output.
fn pause() {
    wasip2::clocks::monotonic_clock::subscribe_duration(5_000_000).block();
}

fn handle(value: &Value) -> String {
    let text = text(value);
    match text.strip_prefix('$') {
        Some(name) => process::find(name).unwrap_or_default(),
        None => text,
    }
}

fn state(state: State) -> Value {
    match state {
        State::Running => json!("running"),
        State::Exited(code) => json!({"exited": code}),
    }
}

fn shown(bytes: &[u8]) -> Value {
    if bytes.len() <= 4096 {
        return json!(String::from_utf8_lossy(bytes));
    }
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    json!({
        "bytes": bytes.len(),
        "fnv1a": format!("{hash:016x}"),
        "start": String::from_utf8_lossy(bytes.get(..16).unwrap_or_default()),
    })
}

fn repeated(text: &str, step: &Value) -> Vec<u8> {
    text.repeat(step["times"].as_u64().unwrap_or(1) as usize).into_bytes()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(text).collect()
}

fn pairs(value: &Value) -> Vec<(String, String)> {
    value.as_array().into_iter().flatten().map(|pair| (text(&pair[0]), text(&pair[1]))).collect()
}

export!(ProcessTool);
