//! What a driver answered, and what the loop makes of it.

use serde_json::Value;

use crate::driver::{Answer, Status};

/// A parsed inference response.
#[derive(Debug, PartialEq)]
pub(crate) struct Response {
    /// The driver's own word, `""` if it gave none.
    pub(crate) stop_reason: String,
    /// The model's blocks as they came, to be sent back verbatim.
    pub(crate) content: Vec<Value>,
    /// The driver's error text, for `stop_reason` `error`.
    pub(crate) error: Option<String>,
    /// Tokens in and out, where they were reported as such.
    pub(crate) input_tokens: Option<u64>,
    pub(crate) output_tokens: Option<u64>,
}

/// A tool the model asked for.
#[derive(Debug, PartialEq)]
pub(crate) struct ToolCall {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) input: Value,
}

/// Why an answer is no response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoResponse {
    /// The driver says the call failed.
    Failed(String),
    /// The bytes are no response document.
    Malformed(String),
}

impl Response {
    /// Reads what a driver returned (`spec: Driver response`).
    ///
    /// # Errors
    /// [`NoResponse::Failed`] for any status but passed, [`NoResponse::Malformed`] otherwise.
    pub(crate) fn read(answer: &Answer) -> Result<Self, NoResponse> {
        let payload = answer.data.as_deref().or(answer.summary.as_deref());
        if answer.status != Status::Passed {
            return Err(NoResponse::Failed(failure_text(payload)));
        }
        let malformed = |reason: &str| NoResponse::Malformed(reason.to_owned());
        let payload = payload.ok_or_else(|| malformed("the driver returned no data"))?;
        let document: Value =
            serde_json::from_str(payload).map_err(|_| malformed("the driver's response is not JSON"))?;
        let members =
            document.as_object().ok_or_else(|| malformed("the driver's response is not an object"))?;
        let stop_reason = match members.get("stop_reason") {
            Some(Value::String(word)) => word.clone(),
            _ => return Err(malformed("the driver's response has no `stop_reason`")),
        };
        let content = match members.get("content") {
            Some(Value::Array(blocks)) => blocks.clone(),
            None | Some(Value::Null) => Vec::new(),
            Some(_) => return Err(malformed("the driver's `content` is not an array")),
        };
        let usage =
            |name: &str| members.get("usage").and_then(|usage| usage.get(name)).and_then(Value::as_u64);
        Ok(Response {
            stop_reason,
            content,
            error: members.get("error").and_then(Value::as_str).map(str::to_owned),
            input_tokens: usage("input_tokens"),
            output_tokens: usage("output_tokens"),
        })
    }

    /// The text blocks joined by line feeds.
    pub(crate) fn text(&self) -> String {
        let texts: Vec<&str> = self
            .content
            .iter()
            .filter(|block| block.get("type").and_then(Value::as_str) == Some("text"))
            .filter_map(|block| block.get("text").and_then(Value::as_str))
            .collect();
        texts.join("\n")
    }

    /// The tools asked for, in order.
    ///
    /// # Errors
    /// A text if a `tool_call` block has no name or id.
    pub(crate) fn tool_calls(&self) -> Result<Vec<ToolCall>, String> {
        let mut calls = Vec::new();
        for block in &self.content {
            if block.get("type").and_then(Value::as_str) != Some("tool_call") {
                continue;
            }
            let word = |name: &str| block.get(name).and_then(Value::as_str);
            let name = word("name").filter(|name| !name.is_empty()).ok_or("a tool call has no name")?;
            calls.push(ToolCall {
                id: word("id").unwrap_or_default().to_owned(),
                name: name.to_owned(),
                input: block.get("input").cloned().unwrap_or_else(|| Value::Object(Default::default())),
            });
        }
        Ok(calls)
    }
}

fn failure_text(payload: Option<&str>) -> String {
    let text = payload.unwrap_or_default();
    let document: Option<Value> = serde_json::from_str(text).ok();
    match document.as_ref().and_then(|document| document.get("error")).and_then(Value::as_str) {
        Some(error) => error.to_owned(),
        None if text.is_empty() => "driver returned error".to_owned(),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: Status, data: Option<&str>, summary: Option<&str>) -> Answer {
        Answer {
            status,
            data: data.map(str::to_owned),
            summary: summary.map(str::to_owned),
            truncated: false,
        }
    }

    #[test]
    fn a_failed_call_says_why_and_a_bad_document_is_malformed() {
        let failed = |text: &str| NoResponse::Failed(text.into());
        let malformed = |text: &str| NoResponse::Malformed(text.into());
        let cases = [
            (answer(Status::Failed, Some(r#"{"error":"no key"}"#), None), failed("no key")),
            (answer(Status::Error, Some("plain"), None), failed("plain")),
            (answer(Status::Error, None, Some("summary")), failed("summary")),
            (answer(Status::Error, None, None), failed("driver returned error")),
            (answer(Status::Error, Some(r#"{"error":7}"#), None), failed(r#"{"error":7}"#)),
            (answer(Status::Passed, None, None), malformed("the driver returned no data")),
            (answer(Status::Passed, Some("{"), None), malformed("the driver's response is not JSON")),
            (answer(Status::Passed, Some("[]"), None), malformed("the driver's response is not an object")),
            (
                answer(Status::Passed, Some("{}"), None),
                malformed("the driver's response has no `stop_reason`"),
            ),
            (
                answer(Status::Passed, Some(r#"{"stop_reason":"end_turn","content":7}"#), None),
                malformed("the driver's `content` is not an array"),
            ),
        ];
        for (answer, expected) in cases {
            assert_eq!(Response::read(&answer).unwrap_err(), expected);
        }
    }

    #[test]
    fn texts_tools_and_counts_are_taken_from_their_blocks() {
        let data = r#"{"stop_reason":"tool_call","usage":{"input_tokens":3,"output_tokens":-1},"content":[
            {"type":"text","text":"a"},{"type":"thinking","text":"no"},{"type":"text","text":"b"},
            {"type":"tool_call","id":"1","name":"bash","input":{"command":"ls"}},{"type":"tool_call","name":"x"}]}"#;
        let response = Response::read(&answer(Status::Passed, Some(data), None)).unwrap();
        assert_eq!(response.text(), "a\nb");
        assert_eq!((response.input_tokens, response.output_tokens), (Some(3), None));
        let calls = response.tool_calls().unwrap();
        assert_eq!((calls[0].id.as_str(), calls[0].name.as_str()), ("1", "bash"));
        assert_eq!((calls[1].id.as_str(), calls[1].input.to_string().as_str()), ("", "{}"));
        let summary = answer(Status::Passed, None, Some(r#"{"stop_reason":"end_turn"}"#));
        assert_eq!(Response::read(&summary).unwrap().text(), "");
        let nameless = r#"{"stop_reason":"tool_call","content":[{"type":"tool_call","id":"1"}]}"#;
        assert!(Response::read(&answer(Status::Passed, Some(nameless), None)).unwrap().tool_calls().is_err());
    }
}
