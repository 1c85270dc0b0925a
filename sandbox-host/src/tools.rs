//! The tools a model may ask for, and what happens when it does.

use std::time::{Duration, Instant};

use ipc::edge::host_broker::{Agent, Artifact, Capture, Event, Role};
use serde_json::{Value, json};

use crate::driver::{Answer, Status};
use crate::fault::Fault;
use crate::fence::fence;
use crate::ids::millis;
use crate::response::ToolCall;
use crate::session::Session;
use crate::shell::{self, Outcome};
use crate::text::clip;

/// Bytes of one tool result that reach the model.
const MAX_RESULT: usize = 1024 * 1024;

/// The tool array of every request, sorted by name and fixed for the session.
pub(crate) fn inventory(agent: &Agent) -> Value {
    let mut tools: Vec<(String, Value)> = agent
        .shell
        .iter()
        .map(|(name, _path)| (name.clone(), shell_tool(name)))
        .chain(wasm_tools(agent).map(|artifact| (artifact.name.clone(), wasm_tool(artifact))))
        .collect();
    tools.sort_by(|(a, _), (b, _)| a.cmp(b));
    // A program comes before a component of the same name, as in dispatch.
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
    shell: Option<Event>,
}

impl Done {
    fn refused(reason: String) -> Self {
        Done { text: reason.clone(), own_words: true, ok: false, error: Some(reason), shell: None }
    }
}

/// Runs a tool and reports it: its `tool_call` line, then the `shell` line of a program.
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
    let input = call.input.to_string();
    session.counters.borrow_mut().tool_calls += 1;
    session
        .broker
        .event(Event::ToolCall {
            turn,
            task_id: Some(task_id.to_owned()),
            tool_name: call.name.clone(),
            tool_call_id: Some(call.id.clone()).filter(|id| !id.is_empty()),
            input_bytes: input.len() as u64,
            input: if call.input.is_object() { input } else { "{}".to_owned() },
            output: (session.agent.capture == Capture::Content).then(|| text.clone()),
            output_bytes: text.len() as u64,
            duration_ms: millis(started.elapsed()),
            ok: done.ok,
            error: done.error.map(|error| clip(&error, 2000)),
        })
        .await?;
    if let Some(event) = done.shell {
        session.counters.borrow_mut().shell_calls += 1;
        session.broker.event(event).await?;
    }
    Ok(Reply { text, is_error: !done.ok })
}

/// Programs first, then components of role tool, then nothing (`spec: Dispatch order`).
async fn perform(session: &Session, call: &ToolCall, turn: u32, task_id: &str) -> Result<Done, Fault> {
    if !call.input.is_object() {
        return Ok(Done::refused(format!("the input of '{}' is not a JSON object", call.name)));
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
    Ok(
        match session
            .caller
            .call(&session.agent, &session.directory, &call.name, call.input.to_string())
            .await
        {
            Ok(answer) => {
                let ok = answer.status == Status::Passed;
                Done { text: reduce(answer), own_words: false, ok, error: None, shell: None }
            }
            Err(error) => Done::refused(error.to_string()),
        },
    )
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
    let ran = match shell::run(&session.runner, &session.directory, name, command, timeout).await? {
        Outcome::Ran(ran) => ran,
        Outcome::DidNot(reason) => return Ok(Done::refused(reason)),
    };
    let error = ran.timed_out.then(|| format!("the command ran longer than {} seconds", timeout.as_secs()));
    Ok(Done {
        text: ran.text,
        own_words: false,
        ok: error.is_none(),
        error,
        shell: Some(Event::Shell {
            turn,
            task_id: Some(task_id.to_owned()),
            binary: path.to_owned(),
            command: ran.command,
            exit_code: ran.exit_code,
            stdout_bytes: ran.stdout_bytes,
            stderr_bytes: ran.stderr_bytes,
            duration_ms: ran.duration_ms,
        }),
    })
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
