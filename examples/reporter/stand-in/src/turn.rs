//! What to do next, decided from the conversation alone.

use serde_json::{Value, json};

use crate::conversation::{self, Conversation, ToolAnswer};
use crate::shell::{self, Outcome};
use crate::handoff::{self, Handoff};
use crate::{listing, measure, report};

/// The tool that runs commands.
pub const TOOL: &str = "bash";

/// One turn's answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Decision {
    /// Ask for a tool.
    Call {
        /// The call's id, distinct within the conversation.
        id: String,
        /// What the call is for, in words.
        purpose: &'static str,
        /// The tool.
        tool: &'static str,
        /// Its arguments.
        input: Value,
    },
    /// End the turn with this answer.
    Say(String),
    /// The task cannot be done here at all.
    GiveUp(String),
}

impl Decision {
    /// The inference response as JSON text. Usage is an estimate at four bytes a token.
    pub fn response(&self, request_bytes: usize) -> String {
        let (mut response, written) = match self {
            Self::Call { id, purpose, tool, input } => (
                json!({"stop_reason": "tool_call", "content": [
                    {"type": "text", "text": purpose},
                    {"type": "tool_call", "id": id, "name": tool, "input": input},
                ]}),
                purpose.len() + input.to_string().len(),
            ),
            Self::Say(text) => {
                (json!({"stop_reason": "end_turn", "content": [{"type": "text", "text": text}]}), text.len())
            }
            Self::GiveUp(reason) => (json!({"stop_reason": "error", "error": reason, "content": []}), 0),
        };
        if let Value::Object(members) = &mut response {
            let usage =
                json!({"input_tokens": request_bytes.div_ceil(4), "output_tokens": written.div_ceil(4)});
            members.insert("usage".to_owned(), usage);
        }
        response.to_string()
    }
}

/// The `data` of a result whose status is not `passed`.
pub fn failure(reason: &str) -> String {
    json!({"error": reason}).to_string()
}

/// Decides on `tool-input.data`. The error says why it is no inference request.
pub fn decide(request: &str) -> Result<Decision, String> {
    let conversation = conversation::read(request, |text| {
        handoff::asked(text).is_some() || listing::directory(text).is_some()
    })?;
    Ok(next(&conversation).unwrap_or_else(Decision::Say))
}

/// The next step, or as `Err` the sentence that ends the turn because a step went wrong.
fn next(conversation: &Conversation) -> Result<Decision, String> {
    if let Some(handoff) = handoff::asked(&conversation.task) {
        return hand_off(conversation, &handoff);
    }
    let call = |purpose, command: String| ask(conversation, TOOL, purpose, json!({"command": command}));
    let directory = listing::directory(&conversation.task).ok_or(
        "I can report on the files of one directory. Please name it with a slash, as in \"Report on inputs/\".",
    )?;
    let mut results = conversation.results.iter();

    let Some(listed) = results.next() else {
        return call("I look which files are there.", listing::command(&directory));
    };
    let files = listing::files(&succeeded(listed, &format!("list {directory}"))?)
        .ok_or_else(|| format!("I could not list {directory}: the result is not complete."))?;
    if files.is_empty() {
        return Err(format!("There are no files in {directory}, so there is nothing to report."));
    }

    let Some(measured) = results.next() else {
        return call("I count and hash them.", measure::command(&directory, &files));
    };
    let measured = measure::read(&succeeded(measured, &format!("measure the files in {directory}"))?, &files)
        .ok_or_else(|| {
            format!("I could not measure the files in {directory}: the result is not complete.")
        })?;

    let Some(written) = results.next() else {
        let lines = report::lines(&conversation.task, &directory, &measured);
        return call("I write the report.", report::command(&lines));
    };
    succeeded(written, &format!("write {}", report::PATH))?;
    let total = &measured.total;
    Ok(Decision::Say(format!(
        "The report on {directory} is in {}: {} files, {} lines, {} words, {} bytes.",
        report::PATH,
        measured.files.len(),
        total.lines,
        total.words,
        total.bytes
    )))
}

/// Asks for a tool, or gives up where it is not offered.
fn ask(
    conversation: &Conversation,
    tool: &'static str,
    purpose: &'static str,
    input: Value,
) -> Result<Decision, String> {
    if !conversation.tools.iter().any(|offered| offered == tool) {
        return Ok(Decision::GiveUp(format!("the `{tool}` tool is not offered, and nothing else will do")));
    }
    Ok(Decision::Call { id: format!("call-{}", conversation.length), purpose, tool, input })
}

/// The steps of one side of a handoff.
fn hand_off(conversation: &Conversation, handoff: &Handoff) -> Result<Decision, String> {
    let mut results = conversation.results.iter();
    let (tool, purpose, input) = handoff::first_call(handoff);
    let Some(first) = results.next() else { return ask(conversation, tool, purpose, input) };
    if first.is_error {
        let reason: String = first.text.chars().take(300).collect();
        return Err(format!("The {tool} tool was refused: {reason}"));
    }
    let strange = || format!("The result of the {tool} tool has a shape I do not know.");
    match handoff {
        Handoff::Hand { .. } => handoff::minted(&first.text).map(Decision::Say).ok_or_else(strange),
        Handoff::Fetch { peer, .. } => {
            let (path, bytes) = handoff::fetched(&first.text).ok_or_else(strange)?;
            let Some(hashed) = results.next() else {
                let command = handoff::hash_command(&path);
                return ask(conversation, TOOL, "I hash what came.", json!({"command": command}));
            };
            let outcome = succeeded(hashed, &format!("hash {path}"))?;
            let hash = handoff::hash(&outcome).ok_or_else(|| format!("I could not read the hash of {path}."))?;
            Ok(Decision::Say(format!("From {peer}: {path}, {bytes} bytes, SHA-256 {hash}.")))
        }
    }
}

/// The outcome of a command that ended with exit code 0; else the sentence that says what happened.
fn succeeded<'a>(answer: &'a ToolAnswer, aim: &str) -> Result<Outcome<'a>, String> {
    if answer.is_error {
        let reason: String = answer.text.chars().take(300).collect();
        return Err(format!("I could not {aim}: the {TOOL} tool was refused or broke: {reason}"));
    }
    let outcome = shell::outcome(&answer.text).ok_or_else(|| {
        format!("I could not {aim}: the result of the {TOOL} tool has a shape I do not know.")
    })?;
    match outcome.exit_code {
        0 => Ok(outcome),
        code => Err(format!("I could not {aim}: exit code {code}: {}", outcome.complaint())),
    }
}

#[cfg(test)]
mod tests;
