//! JSON-RPC around an A2A call: the checks in their order, the error documents.

use serde_json::{Map, Value, json};

/// The version of A2A that is served.
const SUPPORTED: &str = "1.0";

/// A call that passed every check before its method's own.
#[derive(Debug, PartialEq)]
pub(crate) struct Call {
    /// A string or a number.
    pub(crate) id: Value,
    pub(crate) method: Method,
    pub(crate) params: Map<String, Value>,
}

/// The methods that are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    SendMessage,
    GetTask,
    CancelTask,
}

/// An error as the wire carries it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RpcError {
    code: i32,
    message: String,
    /// `reason` and `metadata` of the `ErrorInfo` detail, for A2A's own errors.
    info: Option<(&'static str, Vec<(&'static str, String)>)>,
}

impl RpcError {
    /// A JSON-RPC error.
    fn plain(code: i32, message: &str) -> Self {
        RpcError { code, message: message.to_owned(), info: None }
    }

    fn a2a(code: i32, reason: &'static str, message: &str, metadata: Vec<(&'static str, String)>) -> Self {
        RpcError { code, message: message.to_owned(), info: Some((reason, metadata)) }
    }

    /// -32602 with a sentence that names the parameter.
    pub(crate) fn invalid_params(message: &str) -> Self {
        RpcError::plain(-32602, message)
    }

    /// -32603: an error of ours that the caller cannot mend.
    pub(crate) fn internal(message: &str) -> Self {
        RpcError::plain(-32603, message)
    }

    pub(crate) fn task_not_found(id: &str) -> Self {
        RpcError::a2a(-32001, "TASK_NOT_FOUND", "Task not found", vec![("taskId", id.to_owned())])
    }

    pub(crate) fn task_not_cancelable(id: &str) -> Self {
        let metadata = vec![("taskId", id.to_owned())];
        RpcError::a2a(-32002, "TASK_NOT_CANCELABLE", "Task cannot be canceled: it has ended", metadata)
    }

    pub(crate) fn push_not_supported() -> Self {
        let message = "Push notifications are not supported";
        RpcError::a2a(-32003, "PUSH_NOTIFICATION_NOT_SUPPORTED", message, vec![])
    }

    pub(crate) fn unsupported(message: &str) -> Self {
        RpcError::a2a(-32004, "UNSUPPORTED_OPERATION", message, vec![])
    }

    pub(crate) fn content_type_not_supported(part: &str) -> Self {
        let message = format!("Parts of kind `{part}` are not supported; send `text` or `data`");
        RpcError::a2a(-32005, "CONTENT_TYPE_NOT_SUPPORTED", &message, vec![])
    }

    /// The response document.
    pub(crate) fn document(&self, id: &Value) -> Value {
        let mut error = json!({"code": self.code, "message": self.message});
        if let (Some((reason, metadata)), Some(members)) = (&self.info, error.as_object_mut()) {
            let metadata: Map<String, Value> = metadata
                .iter()
                .map(|(name, value)| ((*name).to_owned(), Value::from(value.as_str())))
                .collect();
            let info = json!([{
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": reason,
                "domain": "a2a-protocol.org",
                "metadata": metadata,
            }]);
            members.insert("data".into(), info);
        }
        json!({"jsonrpc": "2.0", "id": id, "error": error})
    }
}

/// A result as a response document.
pub(crate) fn result(id: &Value, result: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": result})
}

/// A request that is answered with an error.
#[derive(Debug)]
pub(crate) struct Refused {
    /// The request's own, `null` where there is none.
    pub(crate) id: Value,
    pub(crate) error: RpcError,
}

/// Checks a body up to its method's own parameters (`spec: JSON-RPC methods`): envelope, version, method, `params`,
/// `tenant`, in this order.
///
/// # Errors
/// [`Refused`].
pub(crate) fn read(body: &[u8], versions: &[String], takes_tasks: bool) -> Result<Call, Box<Refused>> {
    let refused = |id: Value, error: RpcError| Err(Box::new(Refused { id, error }));
    let Ok(document) = serde_json::from_slice::<Value>(body) else {
        return refused(Value::Null, RpcError::plain(-32700, "Invalid JSON payload"));
    };
    let Value::Object(mut envelope) = document else {
        let message = if document.is_array() { "Batches are not supported" } else { "Invalid request" };
        return refused(Value::Null, RpcError::plain(-32600, message));
    };
    let id = match envelope.remove("id") {
        Some(id @ (Value::String(_) | Value::Number(_))) => id,
        _ => return refused(Value::Null, RpcError::plain(-32600, "`id` must be a string or a number")),
    };
    let fail = |error| refused(id.clone(), error);
    if envelope.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return fail(RpcError::plain(-32600, "`jsonrpc` must be \"2.0\""));
    }
    let Some(Value::String(method)) = envelope.remove("method") else {
        return fail(RpcError::plain(-32600, "`method` must be a string"));
    };
    if !is_supported(versions) {
        let requested = crate::text::clip(&versions.join(", "), 200);
        let metadata = vec![("requestedVersion", requested), ("supportedVersions", SUPPORTED.to_owned())];
        let message = "Exactly one A2A-Version header is needed, with the value 1.0";
        return fail(RpcError::a2a(-32009, "VERSION_NOT_SUPPORTED", message, metadata));
    }
    let method = match find(&method, takes_tasks) {
        Ok(method) => method,
        Err(error) => return fail(error),
    };
    let params = match envelope.remove("params") {
        Some(Value::Object(params)) => params,
        None => Map::new(),
        Some(_) => return fail(RpcError::invalid_params("`params` must be an object")),
    };
    match params.get("tenant") {
        None => {}
        Some(Value::String(tenant)) if tenant.is_empty() => {}
        Some(_) => return fail(RpcError::invalid_params("`tenant` names no tenant of this agent")),
    }
    Ok(Call { id, method, params })
}

/// Whether the headers ask for 1.0 or a patch of it, once.
fn is_supported(versions: &[String]) -> bool {
    let [version] = versions else { return false };
    let Some(rest) = version.trim().strip_prefix(SUPPORTED) else { return false };
    rest.is_empty()
        || rest.strip_prefix('.').is_some_and(|patch| {
            !patch.is_empty() && patch.len() < 10 && patch.bytes().all(|byte| byte.is_ascii_digit())
        })
}

fn find(name: &str, takes_tasks: bool) -> Result<Method, RpcError> {
    match name {
        "SendMessage" if takes_tasks => Ok(Method::SendMessage),
        "SendMessage" | "SendStreamingMessage" | "SubscribeToTask" if !takes_tasks => {
            Err(RpcError::unsupported("This agent takes no tasks"))
        }
        "GetTask" => Ok(Method::GetTask),
        "CancelTask" => Ok(Method::CancelTask),
        "CreateTaskPushNotificationConfig"
        | "GetTaskPushNotificationConfig"
        | "ListTaskPushNotificationConfigs"
        | "DeleteTaskPushNotificationConfig" => Err(RpcError::push_not_supported()),
        "SendStreamingMessage" | "SubscribeToTask" | "murmur.WatchSession" => {
            Err(RpcError::unsupported("Streaming is not served by this version"))
        }
        "ListTasks" | "murmur.StopSession" => {
            Err(RpcError::unsupported(&format!("{name} is not served by this version")))
        }
        "GetExtendedAgentCard" => Err(RpcError::unsupported("This agent has no extended card")),
        _ => Err(RpcError::plain(-32601, "Method not found")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(headers: &[&str]) -> Vec<String> {
        headers.iter().map(|header| (*header).to_owned()).collect()
    }

    #[test]
    fn checks_come_in_their_order_and_answer_with_the_right_id() {
        let one = &["1.0"][..];
        let none = &[][..];
        let cases: [(&str, &[&str], i32, Value); 33] = [
            ("", one, -32700, Value::Null),
            ("{", one, -32700, Value::Null),
            ("\u{feff}{}", one, -32700, Value::Null),
            ("[]", none, -32600, Value::Null),
            ("[1]", one, -32600, Value::Null),
            (r#"[{"jsonrpc":"2.0","id":1,"method":"GetTask"}]"#, one, -32600, Value::Null),
            ("1", one, -32600, Value::Null),
            ("null", one, -32600, Value::Null),
            ("{}", none, -32600, Value::Null),
            (r#"{"jsonrpc":"2.0","method":"GetTask"}"#, one, -32600, Value::Null),
            (r#"{"jsonrpc":"2.0","id":null,"method":"GetTask"}"#, one, -32600, Value::Null),
            (r#"{"jsonrpc":"2.0","id":{},"method":"GetTask"}"#, one, -32600, Value::Null),
            (r#"{"jsonrpc":"2.0","id":true,"method":"GetTask"}"#, one, -32600, Value::Null),
            (r#"{"jsonrpc":"1.0","id":1,"method":"GetTask"}"#, none, -32600, json!(1)),
            (r#"{"id":"a","method":"GetTask"}"#, none, -32600, json!("a")),
            (r#"{"jsonrpc":"2.0","id":1}"#, none, -32600, json!(1)),
            (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, none, -32600, json!(1)),
            (r#"{"jsonrpc":"2.0","id":1,"method":"nope"}"#, none, -32009, json!(1)),
            (r#"{"jsonrpc":"2.0","id":1,"method":"nope"}"#, &["1.0", "1.0"], -32009, json!(1)),
            (r#"{"jsonrpc":"2.0","id":1,"method":"nope"}"#, &["0.3"], -32009, json!(1)),
            (r#"{"jsonrpc":"2.0","id":1,"method":"nope"}"#, &["1.1"], -32009, json!(1)),
            (r#"{"jsonrpc":"2.0","id":1,"method":"nope"}"#, &["1.0."], -32009, json!(1)),
            (r#"{"jsonrpc":"2.0","id":1,"method":"nope"}"#, &["1.0.x"], -32009, json!(1)),
            (r#"{"jsonrpc":"2.0","id":1,"method":"nope"}"#, &["1.0.12"], -32601, json!(1)),
            (r#"{"jsonrpc":"2.0","id":1,"method":"message/send"}"#, one, -32601, json!(1)),
            (r#"{"jsonrpc":"2.0","id":1,"method":"message/send"}"#, none, -32009, json!(1)),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"GetTaskPushNotificationConfig","params":[]}"#,
                one,
                -32003,
                json!(1),
            ),
            (r#"{"jsonrpc":"2.0","id":1,"method":"SendStreamingMessage"}"#, one, -32004, json!(1)),
            (r#"{"jsonrpc":"2.0","id":1,"method":"GetExtendedAgentCard"}"#, one, -32004, json!(1)),
            (r#"{"jsonrpc":"2.0","id":1,"method":"GetTask","params":[]}"#, one, -32602, json!(1)),
            (r#"{"jsonrpc":"2.0","id":1,"method":"GetTask","params":null}"#, one, -32602, json!(1)),
            (r#"{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"tenant":"t"}}"#, one, -32602, json!(1)),
            (
                r#"{"jsonrpc":"2.0","id":"x","method":"GetTask","params":{"tenant":null}}"#,
                one,
                -32602,
                json!("x"),
            ),
        ];
        for (body, headers, code, id) in cases {
            let Refused { id: got, error } = *read(body.as_bytes(), &versions(headers), true).unwrap_err();
            assert_eq!((error.code, got), (code, id), "{body} {headers:?}");
        }
        assert_eq!(read(&[0xff], &versions(&["1.0"]), true).unwrap_err().error.code, -32700);
    }

    #[test]
    fn a_good_call_is_taken_apart() {
        let body = br#"{"jsonrpc":"2.0","id":"a","method":"SendMessage","params":{"tenant":"","x":1}}"#;
        let call = read(body, &versions(&[" 1.0 "]), true).unwrap();
        assert_eq!((call.method, call.id), (Method::SendMessage, json!("a")));
        assert_eq!(call.params.get("x"), Some(&json!(1)));
        assert_eq!(read(body, &versions(&["1.0"]), false).unwrap_err().error.code, -32004);
        let bare = br#"{"jsonrpc":"2.0","id":1,"method":"GetTask"}"#;
        assert_eq!(read(bare, &versions(&["1.0"]), false).unwrap().method, Method::GetTask);
    }

    #[test]
    fn error_documents_have_the_agreed_shape() {
        let document = RpcError::plain(-32700, "Invalid JSON payload").document(&Value::Null);
        assert_eq!(
            document.to_string(),
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Invalid JSON payload"}}"#
        );
        let document = RpcError::task_not_found("tsk_1").document(&json!(7));
        assert_eq!(
            document.to_string(),
            concat!(
                r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32001,"message":"Task not found","data":["#,
                r#"{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"TASK_NOT_FOUND","#,
                r#""domain":"a2a-protocol.org","metadata":{"taskId":"tsk_1"}}]}}"#
            )
        );
        let Refused { id, error } =
            *read(br#"{"jsonrpc":"2.0","id":1,"method":"x"}"#, &versions(&["0.3"]), true).unwrap_err();
        assert_eq!(
            error.document(&id)["error"]["data"][0]["metadata"],
            json!({"requestedVersion": "0.3", "supportedVersions": "1.0"})
        );
    }
}
