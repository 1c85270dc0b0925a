//! What the test guests share: reading an inference request and writing a response.

use serde_json::{Value, json};

/// The parts of an inference request the test drivers look at.
pub struct Request {
    /// The first user message without its fence.
    pub task: String,
    /// The text of each message of role `tool`, exactly as it came, fence included.
    pub results: Vec<String>,
}

impl Request {
    /// Reads `tool-input.data`; what is missing is empty.
    pub fn read(data: &str) -> Self {
        let request: Value = serde_json::from_str(data).unwrap_or_default();
        let messages = request["messages"].as_array().cloned().unwrap_or_default();
        let of = |role: &'static str| messages.iter().filter(move |message| message["role"] == role);
        Self {
            task: of("user").next().map(|message| unfence(&text(message))).unwrap_or_default(),
            results: of("tool").map(text).collect(),
        }
    }
}

fn text(message: &Value) -> String {
    let blocks = message["content"].as_array().cloned().unwrap_or_default();
    let texts: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
    texts.join("\n")
}

fn unfence(text: &str) -> String {
    let inner = text
        .strip_prefix("<untrusted-content")
        .and_then(|rest| rest.split_once('\n'))
        .and_then(|(_, rest)| rest.strip_suffix("\n</untrusted-content>"));
    inner.unwrap_or(text).to_owned()
}

/// A response that ends the turn with `text`.
pub fn end_turn(text: &str) -> String {
    stop("end_turn", text)
}

/// A response with any stop reason and one text block.
pub fn stop(reason: &str, text: &str) -> String {
    json!({"stop_reason": reason, "content": [{"type": "text", "text": text}]}).to_string()
}

/// A response that asks for the tool `name` with `input`.
pub fn tool_call(id: &str, name: &str, input: &Value) -> String {
    let call = json!({"type": "tool_call", "id": id, "name": name, "input": input});
    json!({"stop_reason": "tool_call", "content": [call]}).to_string()
}

/// Splits off the first word; the rest is trimmed.
pub fn word(text: &str) -> (&str, &str) {
    let text = text.trim();
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    (word, rest.trim())
}
