//! Reads the inference request: the task, the tools on offer and what they answered.

use serde_json::Value;

/// What one request tells.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Conversation {
    /// The text of the user message that holds the task, without its fence.
    pub(crate) task: String,
    /// How many messages there are; makes the ids of tool calls distinct within a conversation.
    pub(crate) length: usize,
    /// The names in `tools[]`.
    pub(crate) tools: Vec<String>,
    /// The answers to tool calls, oldest first.
    pub(crate) results: Vec<ToolAnswer>,
}

/// One message of role `tool`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ToolAnswer {
    /// The call was refused or broke; the text says why.
    pub(crate) is_error: bool,
    /// The result's text, without its fence.
    pub(crate) text: String,
}

/// Reads `tool-input.data`. The task is the first user message; in a conversation of several tasks
/// it is the latest one `is_task` accepts, and only what came after it belongs to it. The error
/// names what is missing.
pub(crate) fn read(request: &str, is_task: impl Fn(&str) -> bool) -> Result<Conversation, String> {
    let request: Value =
        serde_json::from_str(request).map_err(|e| format!("the request is not JSON: {e}"))?;
    let messages =
        request.get("messages").and_then(Value::as_array).ok_or("the request has no `messages` array")?;
    let users = || {
        let users = messages.iter().enumerate().filter(|(_, message)| role(message) == Some("user"));
        users.map(|(at, message)| (at, unfence(&text_of(message))))
    };
    let (at, task) = users()
        .filter(|(_, text)| is_task(text))
        .last()
        .or_else(|| users().next())
        .ok_or("the request has no user message")?;
    let results = messages
        .iter()
        .skip(at)
        .filter(|message| role(message) == Some("tool"))
        .map(|message| ToolAnswer {
            is_error: message.get("is_error").and_then(Value::as_bool).unwrap_or(false),
            text: unfence(&text_of(message)),
        })
        .collect();
    let tools = request
        .get("tools")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|tool| tool.get("name")?.as_str().map(str::to_owned))
        .collect();
    Ok(Conversation { task, length: messages.len(), tools, results })
}

fn role(message: &Value) -> Option<&str> {
    message.get("role")?.as_str()
}

/// The text blocks of a message, joined by line feeds. A bare string counts as one block.
fn text_of(message: &Value) -> String {
    match message.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(blocks)) => {
            let texts: Vec<&str> = blocks
                .iter()
                .filter(|block| block.get("type").and_then(Value::as_str) == Some("text"))
                .filter_map(|block| block.get("text")?.as_str())
                .collect();
            texts.join("\n")
        }
        _ => String::new(),
    }
}

/// Takes away the fence the host puts around text it does not vouch for. Text without one is kept
/// as it is. The stand-in obeys neither kind: it only looks for a directory, or for numbers.
fn unfence(text: &str) -> String {
    let trimmed = text.trim();
    let inner = trimmed
        .strip_prefix("<untrusted-content")
        .and_then(|rest| rest.split_once('\n'))
        .and_then(|(_, rest)| rest.strip_suffix("</untrusted-content>"));
    match inner {
        Some(inner) => inner.strip_suffix('\n').unwrap_or(inner).to_owned(),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_task_is_read_fenced_or_not() {
        for text in [
            "Report on inputs/",
            "<untrusted-content source=task:event>\nReport on inputs/\n</untrusted-content>",
        ] {
            let request =
                json!({"messages": [{"role": "user", "content": [{"type": "text", "text": text}]}]});
            assert_eq!(read(&request.to_string(), |_| true).unwrap().task, "Report on inputs/", "{text}");
        }
    }

    #[test]
    fn of_several_tasks_the_latest_counts_with_the_answers_after_it() {
        let user = |text: &str| json!({"role": "user", "content": [{"type": "text", "text": text}]});
        let tool = |text: &str| json!({"role": "tool", "is_error": false, "content": [{"type": "text", "text": text}]});
        let request = json!({"messages": [user("task 1"), tool("one"), user("task 2"), tool("two"), user("do better")]});
        for (prefix, task, first) in [("task", "task 2", "two"), ("other", "task 1", "one")] {
            let got = read(&request.to_string(), |text| text.starts_with(prefix)).unwrap();
            assert_eq!((got.task.as_str(), got.results[0].text.as_str()), (task, first));
        }
    }

    #[test]
    fn tool_answers_are_read_in_order_without_their_fence() {
        let request = json!({
            "tools": [{"name": "bash", "parameters": {}}, {"name": "wc", "parameters": {}}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "t"}]},
                {"role": "assistant", "content": [{"type": "tool_call", "id": "a", "name": "bash", "input": {}}]},
                {"role": "tool", "tool_call_id": "a", "is_error": false, "content": [
                    {"type": "text", "text": "<untrusted-content source=tool:bash>\n$ x\nExit code: 0\n</untrusted-content>"}]},
                {"role": "tool", "tool_call_id": "b", "is_error": true, "content": [{"type": "text", "text": "no"}]},
            ],
        });
        let conversation = read(&request.to_string(), |_| true).unwrap();
        assert_eq!(conversation.tools, ["bash", "wc"]);
        assert_eq!(conversation.length, 4);
        assert_eq!(
            conversation.results,
            [
                ToolAnswer { is_error: false, text: "$ x\nExit code: 0".to_owned() },
                ToolAnswer { is_error: true, text: "no".to_owned() },
            ]
        );
    }

    #[test]
    fn a_request_that_is_no_request_is_an_error_that_says_why() {
        for (request, reason) in [
            ("", "not JSON"),
            ("[1", "not JSON"),
            ("{}", "no `messages` array"),
            (r#"{"messages":{}}"#, "no `messages` array"),
            (r#"{"messages":[]}"#, "no user message"),
            (r#"{"messages":[7,null,{"role":3}]}"#, "no user message"),
        ] {
            let error = read(request, |_| true).unwrap_err();
            assert!(error.contains(reason), "{request}: {error}");
        }
    }
}
