//! A client's message: what it must hold, and the text it becomes.

use serde_json::{Map, Value};

use crate::a2a::envelope::RpcError;

/// The longest identifier a client may choose, in bytes.
const MAX_ID: usize = 512;
/// The most tasks a message may refer to.
const MAX_REFERENCES: usize = 16;

/// A message that may become a task.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) message_id: String,
    pub(crate) context_id: Option<String>,
    pub(crate) task_id: Option<String>,
    /// Text parts joined by line feeds; data parts as JSON in a labelled fence.
    pub(crate) text: String,
    /// Bytes of the parts' contents as they came.
    pub(crate) bytes: u64,
    /// Whether the answer is wanted before the task has ended.
    pub(crate) return_immediately: bool,
}

/// Reads the parameters of `SendMessage` (`spec: Message in`).
///
/// # Errors
/// -32602 for a wrong shape, -32005 for a `raw` or `url` part, -32003 for a push configuration.
pub(crate) fn read(params: &Map<String, Value>) -> Result<Message, RpcError> {
    let Some(Value::Object(message)) = params.get("message") else {
        return Err(RpcError::invalid_params("`message` must be an object"));
    };
    let message_id = match identifier(message, "messageId")? {
        Some(id) => id,
        None => return Err(RpcError::invalid_params("`message.messageId` must be a non-empty string")),
    };
    if message.get("role").and_then(Value::as_str) != Some("ROLE_USER") {
        return Err(RpcError::invalid_params("`message.role` must be \"ROLE_USER\""));
    }
    let (context_id, task_id) = (identifier(message, "contextId")?, identifier(message, "taskId")?);
    check_references(message.get("referenceTaskIds"))?;
    let (text, bytes) = parts(message.get("parts"))?;
    let return_immediately = configuration(params.get("configuration"))?;
    Ok(Message { message_id, context_id, task_id, text, bytes, return_immediately })
}

/// An optional identifier; one that is there is a non-empty string.
fn identifier(message: &Map<String, Value>, name: &str) -> Result<Option<String>, RpcError> {
    match message.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(id)) if !id.is_empty() && id.len() <= MAX_ID => Ok(Some(id.clone())),
        Some(_) => Err(RpcError::invalid_params(&format!(
            "`message.{name}` must be a non-empty string of at most {MAX_ID} bytes"
        ))),
    }
}

fn check_references(references: Option<&Value>) -> Result<(), RpcError> {
    let wrong =
        || RpcError::invalid_params("`message.referenceTaskIds` must be at most 16 different strings");
    let ids = match references {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Array(ids)) if ids.len() <= MAX_REFERENCES => ids,
        Some(_) => return Err(wrong()),
    };
    let mut seen: Vec<&str> = Vec::new();
    for id in ids {
        match id.as_str() {
            Some(id) if !id.is_empty() && !seen.contains(&id) => seen.push(id),
            _ => return Err(wrong()),
        }
    }
    Ok(())
}

fn parts(parts: Option<&Value>) -> Result<(String, u64), RpcError> {
    let parts = match parts {
        Some(Value::Array(parts)) if !parts.is_empty() => parts,
        _ => return Err(RpcError::invalid_params("`message.parts` must be a non-empty array")),
    };
    let mut texts = Vec::new();
    let mut bytes = 0;
    for part in parts {
        let kinds: Vec<&str> =
            ["text", "raw", "url", "data"].into_iter().filter(|kind| part.get(*kind).is_some()).collect();
        let [kind] = kinds.as_slice() else {
            let message = "each part must set exactly one of `text`, `raw`, `url` and `data`";
            return Err(RpcError::invalid_params(message));
        };
        match (*kind, part.get(*kind)) {
            ("text", Some(Value::String(text))) => {
                bytes += text.len() as u64;
                texts.push(text.clone());
            }
            ("text", _) => return Err(RpcError::invalid_params("a part's `text` must be a string")),
            ("data", Some(data)) => {
                bytes += data.to_string().len() as u64;
                texts.push(format!("```json\n{data:#}\n```"));
            }
            (kind, _) => return Err(RpcError::content_type_not_supported(kind)),
        }
    }
    Ok((texts.join("\n"), bytes))
}

fn configuration(configuration: Option<&Value>) -> Result<bool, RpcError> {
    let configuration = match configuration {
        None | Some(Value::Null) => return Ok(false),
        Some(Value::Object(configuration)) => configuration,
        Some(_) => return Err(RpcError::invalid_params("`configuration` must be an object")),
    };
    if configuration.get("taskPushNotificationConfig").is_some_and(|config| !config.is_null()) {
        return Err(RpcError::push_not_supported());
    }
    match configuration.get("returnImmediately") {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(immediately)) => Ok(*immediately),
        Some(_) => Err(RpcError::invalid_params("`configuration.returnImmediately` must be a boolean")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn params(message: Value, configuration: Value) -> Map<String, Value> {
        let Value::Object(map) = json!({"message": message, "configuration": configuration}) else {
            unreachable!()
        };
        map
    }

    fn code(error: &RpcError) -> i64 {
        error.document(&Value::Null)["error"]["code"].as_i64().unwrap()
    }

    #[test]
    fn parts_become_one_text() {
        let message = json!({"messageId": "m", "role": "ROLE_USER", "contextId": "c",
            "parts": [{"text": "a"}, {"data": {"k": [1]}, "mediaType": "application/json"}, {"text": "é"}]});
        let message = read(&params(message, json!({"returnImmediately": true}))).unwrap();
        assert_eq!(message.text, "a\n```json\n{\n  \"k\": [\n    1\n  ]\n}\n```\né");
        assert_eq!((message.bytes, message.return_immediately), (1 + 9 + 2, true));
        assert_eq!((message.context_id.as_deref(), message.task_id), (Some("c"), None));
    }

    #[test]
    fn wrong_messages_are_refused_by_code() {
        let good = |extra: Value| {
            let mut message = json!({"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "t"}]});
            for (name, value) in extra.as_object().unwrap() {
                message[name] = value.clone();
            }
            message
        };
        let many: Vec<String> = (0..17).map(|n| n.to_string()).collect();
        for (message, configuration, expected) in [
            (json!(7), json!(null), -32602),
            (json!({}), json!(null), -32602),
            (good(json!({"messageId": ""})), json!(null), -32602),
            (good(json!({"messageId": 7})), json!(null), -32602),
            (good(json!({"messageId": "x".repeat(513)})), json!(null), -32602),
            (good(json!({"role": "ROLE_AGENT"})), json!(null), -32602),
            (good(json!({"role": "user"})), json!(null), -32602),
            (good(json!({"contextId": ""})), json!(null), -32602),
            (good(json!({"taskId": 1})), json!(null), -32602),
            (good(json!({"parts": []})), json!(null), -32602),
            (good(json!({"parts": {}})), json!(null), -32602),
            (good(json!({"parts": [{}]})), json!(null), -32602),
            (good(json!({"parts": ["t"]})), json!(null), -32602),
            (good(json!({"parts": [{"text": 1}]})), json!(null), -32602),
            (good(json!({"parts": [{"text": "a", "data": 1}]})), json!(null), -32602),
            (good(json!({"parts": [{"raw": "AA=="}]})), json!(null), -32005),
            (good(json!({"parts": [{"url": "http://x"}]})), json!(null), -32005),
            (good(json!({"referenceTaskIds": many})), json!(null), -32602),
            (good(json!({"referenceTaskIds": ["a", "a"]})), json!(null), -32602),
            (good(json!({})), json!([]), -32602),
            (good(json!({})), json!({"returnImmediately": "yes"}), -32602),
            (good(json!({})), json!({"taskPushNotificationConfig": {"url": "x"}}), -32003),
        ] {
            let error = read(&params(message.clone(), configuration.clone())).unwrap_err();
            assert_eq!(code(&error), expected, "{message} {configuration}");
        }
        assert!(
            read(&params(good(json!({"referenceTaskIds": ["a", "b"], "taskId": null})), json!({}))).is_ok()
        );
    }
}
