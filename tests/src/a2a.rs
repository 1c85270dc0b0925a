//! Giving the agent a task the way another agent would: A2A v1.0 over JSON-RPC.

use std::time::Duration;

use serde_json::{Value, json};

use crate::http::{self, Response};

/// How long a task of a test may take.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// POSTs a JSON-RPC body to the root and returns the answer. The call returns when the task has settled.
///
/// # Panics
/// If there is no answer.
#[must_use]
pub fn post(url: &str, body: &str) -> Response {
    let host = http::authority(url);
    let request = format!(
        "POST / HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nA2A-Version: 1.0\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    );
    let answer =
        http::exchange(url, request.as_bytes(), PATIENCE).unwrap_or_else(|error| panic!("POST /: {error}"));
    http::parse(&answer).unwrap_or_else(|error| panic!("POST /: {error}"))
}

/// `SendMessage` with one text part; returns the task as it stands at the end.
///
/// # Panics
/// If the answer is not a JSON-RPC result that holds a task.
#[must_use]
pub fn send_message(url: &str, message_id: &str, text: &str) -> Value {
    let message = json!({"messageId": message_id, "role": "ROLE_USER", "parts": [{"text": text}]});
    let result = call(url, "SendMessage", &json!({ "message": message }));
    assert!(result["task"].is_object(), "{result}");
    result["task"].clone()
}

/// Calls a method; its result.
fn call(url: &str, method: &str, params: &Value) -> Value {
    let id = json!(format!("a call of {method}"));
    let call = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
    let response = post(url, &call.to_string());
    assert_eq!(response.status, 200, "{}", response.text());
    let mut answer = response.json();
    assert_eq!((&answer["jsonrpc"], &answer["id"]), (&json!("2.0"), &id), "{answer}");
    answer["result"].take()
}

/// `SendMessage` with one text part by a client that does not wait; returns the task's id.
///
/// # Panics
/// If the task has none.
#[must_use]
pub fn submit(url: &str, text: &str) -> String {
    let message = json!({"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]});
    let params = json!({"message": message, "configuration": {"returnImmediately": true}});
    call(url, "SendMessage", &params)["task"]["id"].as_str().expect("the task's id").to_owned()
}

/// `CancelTask`; returns the task as it stands then.
#[must_use]
pub fn cancel(url: &str, id: &str) -> Value {
    call(url, "CancelTask", &json!({ "id": id }))
}

/// The state that `GetTask` gives.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn state_of(url: &str, id: &str) -> String {
    let task = call(url, "GetTask", &json!({ "id": id }));
    task["status"]["state"].as_str().unwrap_or_else(|| panic!("no state: {task}")).to_owned()
}

/// `SendMessage` whose task must end well; returns the task.
///
/// # Panics
/// If it does not.
pub fn complete(url: &str, message_id: &str, text: &str) -> Value {
    let task = send_message(url, message_id, text);
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED", "{task}");
    task
}

/// The answer of a task that ended well.
///
/// # Panics
/// If it has none.
#[must_use]
pub fn answer(task: &Value) -> &str {
    task["artifacts"][0]["parts"][0]["text"].as_str().unwrap_or_else(|| panic!("no answer: {task}"))
}

/// What the agent says of a task's state, for one that failed the cause.
///
/// # Panics
/// If it says nothing.
#[must_use]
pub fn message(task: &Value) -> &str {
    let status = &task["status"];
    status["message"]["parts"][0]["text"].as_str().unwrap_or_else(|| panic!("no message: {task}"))
}
