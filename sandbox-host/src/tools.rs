//! The tools a model may ask for, and what happens when it does.

use std::time::{Duration, Instant};

use ipc::edge::host_broker::{Agent, Artifact, Capture, Event, Role};
use serde_json::{Value, json};

use crate::driver::{Answer, Status};
use crate::fault::Fault;
use crate::fence::fence;
use crate::fetch_peer_file;
use crate::gate::{self, Refusal};
use crate::ids::millis;
use crate::process::{self, Place};
use crate::response::ToolCall;
use crate::session::Session;
use crate::share_file;
use crate::shell::{self, Outcome};
use crate::text::{RECORDED, clip};

/// Bytes of one tool result that reach the model.
const MAX_RESULT: usize = 1024 * 1024;
/// Bytes of one input that a line of the trace repeats; one that is cut is no JSON any more and recorded as text.
const MAX_INPUT: usize = 1024 * 1024;

/// The tool array of every request, sorted by name and fixed for the session.
pub(crate) fn inventory(agent: &Agent) -> Value {
    let share = agent.share_file.then(|| (share_file::NAME.to_owned(), share_file::tool()));
    let fetch =
        agent.fetch_peer_file.as_ref().map(|_| (fetch_peer_file::NAME.to_owned(), fetch_peer_file::tool()));
    let mut tools: Vec<(String, Value)> = share
        .into_iter()
        .chain(fetch)
        .chain(agent.shell.iter().map(|(name, _path)| (name.clone(), shell_tool(name))))
        .chain(wasm_tools(agent).map(|artifact| (artifact.name.clone(), wasm_tool(artifact))))
        .collect();
    tools.sort_by(|(a, _), (b, _)| a.cmp(b));
    // The runtime's own come before a program, and that before a component, of the same name, as in dispatch.
    tools.dedup_by(|(a, _), (b, _)| a == b);
    Value::Array(tools.into_iter().map(|(_, tool)| tool).collect())
}

fn wasm_tools(agent: &Agent) -> impl Iterator<Item = &Artifact> {
    agent.artifacts.iter().filter(|artifact| artifact.role == Role::Tool)
}

fn shell_tool(name: &str) -> Value {
    let (what, command) = if shell::takes_script(name) {
        (format!("Runs a command with {name} in the work folder."), "The script, as after -c.".to_owned())
    } else {
        (
            format!("Runs {name} in the work folder, without a shell: no expansion, pipes or redirection."),
            format!("The arguments of {name}, without its name; quotes and backslash keep words together."),
        )
    };
    json!({
        "name": name,
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": command}},
            "required": ["command"],
        },
        "description": what,
    })
}

fn wasm_tool(artifact: &Artifact) -> Value {
    let parameters = artifact
        .input_schema
        .as_deref()
        .and_then(|schema| serde_json::from_str(schema).ok())
        .unwrap_or_else(|| json!({"type": "object"}));
    let mut tool = json!({"name": artifact.name, "parameters": parameters});
    if let (Some(description), Some(members)) = (&artifact.description, tool.as_object_mut()) {
        members.insert("description".into(), Value::String(description.clone()));
    }
    tool
}

/// What the model gets back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) text: String,
    pub(crate) is_error: bool,
}

/// How a call went, before it is told to anyone.
struct Done {
    /// For the model, unfenced.
    text: String,
    /// The text is the runtime's own and not fenced.
    own_words: bool,
    /// The tool ran and passed.
    ok: bool,
    /// Why the runtime could not run it.
    error: Option<String>,
    /// The line that follows the call's own.
    line: Option<Event>,
    /// The refusal has a line of its own, and the call none.
    recorded: bool,
}

impl Done {
    fn refused(reason: String) -> Self {
        let (text, error) = (reason.clone(), Some(reason));
        Done { text, own_words: true, ok: false, error, line: None, recorded: false }
    }
}

impl From<Refusal> for Done {
    fn from(refusal: Refusal) -> Self {
        Done { recorded: refusal.is_recorded(), ..Done::refused(refusal.reason) }
    }
}

/// What came of a tool of the runtime's own.
pub(crate) struct Told {
    /// The result, or the runtime's words on why there is none.
    pub(crate) result: Result<Value, String>,
    /// The line that follows the call's own.
    pub(crate) line: Option<Event>,
}

impl Told {
    pub(crate) fn result(result: Value) -> Self {
        Told { result: Ok(result), line: None }
    }

    pub(crate) fn refused(reason: String) -> Self {
        Told { result: Err(reason), line: None }
    }
}

impl From<Told> for Done {
    fn from(told: Told) -> Self {
        match told.result {
            Ok(result) => {
                let text = result.to_string();
                Done { text, own_words: false, ok: true, error: None, line: told.line, recorded: false }
            }
            Err(reason) => Done { line: told.line, ..Done::refused(reason) },
        }
    }
}

/// The text of a required argument of one of the runtime's own tools.
///
/// # Errors
/// A sentence for the model.
pub(crate) fn text_argument<'i>(tool: &str, input: &'i Value, name: &str) -> Result<&'i str, String> {
    match input.get(name) {
        None => Err(format!("the input of '{tool}' lacks: {name}")),
        Some(Value::String(text)) if text.is_empty() => Err(format!("the `{name}` of '{tool}' is empty")),
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(format!("the `{name}` of '{tool}' is not a text")),
    }
}

/// Runs a tool and reports it: its `tool_call` line, then the one of a program that ran or of the peer plane.
///
/// # Errors
/// [`Fault`] if the session cannot go on; anything the tool does is a reply.
pub(crate) async fn dispatch(
    session: &Session,
    call: &ToolCall,
    turn: u32,
    task_id: &str,
) -> Result<Reply, Fault> {
    let started = Instant::now();
    let done = perform(session, call, turn, task_id).await?;
    let clipped = clip(&done.text, MAX_RESULT);
    let text = if done.own_words { clipped } else { fence(&format!("tool:{}", call.name), &clipped) };
    if done.recorded {
        return Ok(Reply { text, is_error: true });
    }
    let input = call.input.to_string();
    session.counters.borrow_mut().tool_calls += 1;
    let mut lines = vec![Event::ToolCall {
        turn,
        task_id: Some(task_id.to_owned()),
        tool_name: clip(&call.name, RECORDED),
        tool_call_id: recorded_id(call),
        input_bytes: input.len() as u64,
        input: if call.input.is_object() { clip(&input, MAX_INPUT) } else { "{}".to_owned() },
        output: (session.agent.capture == Capture::Content).then(|| clip(&text, MAX_RESULT)),
        output_bytes: text.len() as u64,
        duration_ms: millis(started.elapsed()),
        ok: done.ok,
        error: done.error.map(|error| clip(&error, 2000)),
    }];
    if matches!(done.line, Some(Event::Shell { .. })) {
        session.counters.borrow_mut().shell_calls += 1;
    }
    lines.extend(done.line);
    session.broker.events(lines).await?;
    Ok(Reply { text, is_error: !done.ok })
}

/// The runtime's own tools first, whose names are reserved, then programs, then components of role tool, then nothing
/// (`spec: Dispatch order`).
async fn perform(session: &Session, call: &ToolCall, turn: u32, task_id: &str) -> Result<Done, Fault> {
    if !call.input.is_object() {
        return Ok(Done::refused(format!("the input of '{}' is not a JSON object", call.name)));
    }
    if call.name == share_file::NAME && session.agent.share_file {
        if let Err(refusal) = gate::pass_tool(session, turn, &call.name, &call.input, None).await {
            return Ok(refusal.into());
        }
        return Ok(share_file::run(session, &call.input).await?.into());
    }
    if let Some(settings) = session.agent.fetch_peer_file.as_ref()
        && call.name == fetch_peer_file::NAME
    {
        if let Err(refusal) = gate::pass_tool(session, turn, &call.name, &call.input, None).await {
            return Ok(refusal.into());
        }
        return Ok(fetch_peer_file::run(session, settings, &call.input).await.into());
    }
    if let Some((name, path)) = session.agent.shell.iter().find(|(name, _)| *name == call.name) {
        return run_program(session, call, name, path, turn, task_id).await;
    }
    let Some(tool) = wasm_tools(&session.agent).find(|tool| tool.name == call.name) else {
        return Ok(Done::refused(format!("tool '{}' is not declared in manifest allowlist", call.name)));
    };
    let missing = missing(tool.input_schema.as_deref(), &call.input);
    if !missing.is_empty() {
        return Ok(Done::refused(format!("the input of '{}' lacks: {}", call.name, missing.join(", "))));
    }
    if let Err(refusal) = gate::pass_tool(session, turn, &call.name, &call.input, Some(tool)).await {
        return Ok(refusal.into());
    }
    let place = Place {
        task_id: Some(task_id.to_owned()),
        turn: Some(turn),
        tool: Some(process::ToolCall { name: call.name.clone(), id: recorded_id(call) }),
    };
    let input = call.input.to_string();
    let answer = session.caller.call(&session.agent, &session.directory, &call.name, input, place).await;
    match answer {
        Ok(answer) => {
            let ok = answer.status == Status::Passed;
            Ok(Done { text: reduce(answer), own_words: false, ok, error: None, line: None, recorded: false })
        }
        Err(error) => {
            // A call that was given up in the middle of a `run` must leave nothing of it.
            session.runner.quiesce().await?;
            Ok(Done::refused(error.to_string()))
        }
    }
}

async fn run_program(
    session: &Session,
    call: &ToolCall,
    name: &str,
    path: &str,
    turn: u32,
    task_id: &str,
) -> Result<Done, Fault> {
    let command = match call.input.get("command").and_then(Value::as_str) {
        Some(command) if !command.trim().is_empty() => command,
        Some(_) => return Ok(Done::refused(format!("the `command` of '{name}' is empty"))),
        None => return Ok(Done::refused(format!("the input of '{name}' lacks: command"))),
    };
    let timeout = Duration::from_secs(session.agent.limits.deadline_seconds);
    let ran = match shell::run(session, name, command, turn, task_id, timeout).await? {
        Outcome::Ran(ran) => ran,
        Outcome::Refused(refusal) => return Ok(refusal.into()),
        Outcome::DidNot(reason) => return Ok(Done::refused(reason)),
    };
    let error = ran.timed_out.then(|| format!("the command ran longer than {} seconds", timeout.as_secs()));
    Ok(Done {
        text: ran.text,
        own_words: false,
        ok: error.is_none(),
        error,
        recorded: false,
        line: Some(Event::Shell {
            turn,
            task_id: Some(task_id.to_owned()),
            binary: path.to_owned(),
            command: ran.command,
            exit_code: ran.exit_code,
            stdout_bytes: ran.stdout_bytes,
            stderr_bytes: ran.stderr_bytes,
            duration_ms: ran.duration_ms,
            env_dropped: ran.env_dropped,
            resource_limit: ran.resource_limit,
        }),
    })
}

/// The model's id for a call, as lines of the trace repeat it.
fn recorded_id(call: &ToolCall) -> Option<String> {
    Some(clip(&call.id, RECORDED)).filter(|id| !id.is_empty())
}

/// The schema's `required` names that the input lacks.
fn missing(schema: Option<&str>, input: &Value) -> Vec<String> {
    let schema: Option<Value> = schema.and_then(|schema| serde_json::from_str(schema).ok());
    schema
        .as_ref()
        .and_then(|schema| schema.get("required"))
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .filter(|name| input.get(name).is_none())
        .map(str::to_owned)
        .collect()
}

/// The text the model sees of an answer.
fn reduce(answer: Answer) -> String {
    let mut text = answer.data.or(answer.summary).unwrap_or_else(|| "tool returned no data".to_owned());
    if answer.truncated {
        text.push_str("\n[the tool says that this is not the whole result]");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::agent;

    #[test]
    fn the_inventory_is_sorted_and_holds_programs_and_tools_only() {
        let mut agent = agent();
        let mut tool = agent.artifacts[0].clone();
        tool.name = "alpha".into();
        tool.role = Role::Tool;
        tool.description = Some("Does alpha.".into());
        tool.input_schema = Some(r#"{"type":"object","required":["x"]}"#.into());
        agent.artifacts.push(tool);
        agent.shell = vec![("wc".into(), "/usr/bin/wc".into()), ("bash".into(), "/bin/bash".into())];
        let tools = inventory(&agent);
        let names: Vec<&str> =
            tools.as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["alpha", "bash", "wc"]);
        assert_eq!(
            tools[0].to_string(),
            r#"{"name":"alpha","parameters":{"type":"object","required":["x"]},"description":"Does alpha."}"#
        );
        assert_eq!(inventory(&agent).to_string(), tools.to_string());
    }

    #[test]
    fn required_names_are_looked_for_at_the_top_level() {
        let schema = Some(r#"{"required":["a","b",7]}"#);
        for (schema, input, expected) in [
            (schema, json!({"a": null, "b": 1}), vec![]),
            (schema, json!({"b": {"a": 1}}), vec!["a"]),
            (schema, json!({}), vec!["a", "b"]),
            (None, json!({}), vec![]),
            (Some("no json"), json!({}), vec![]),
            (Some(r#"{"required":"a"}"#), json!({}), vec![]),
        ] {
            assert_eq!(missing(schema, &input), expected, "{schema:?} {input}");
        }
    }

    #[test]
    fn a_result_is_its_data_else_its_summary() {
        let answer = |data: Option<&str>, summary: Option<&str>, truncated| Answer {
            status: Status::Passed,
            data: data.map(str::to_owned),
            summary: summary.map(str::to_owned),
            truncated,
        };
        assert_eq!(reduce(answer(Some("d"), Some("s"), false)), "d");
        assert_eq!(reduce(answer(None, Some("s"), false)), "s");
        assert_eq!(reduce(answer(None, None, false)), "tool returned no data");
        assert!(reduce(answer(Some("d"), None, true)).starts_with("d\n[the tool says"));
    }
}
