//! A task as clients see it.

use serde_json::{Value, json};

use crate::ids::rfc3339;
use crate::tasks::{State, Task};

/// The task document (`spec: Task out`).
pub(crate) fn task(task: &Task) -> Value {
    let context_id = &task.incoming.context_id;
    let mut status = json!({"state": task.state.as_str(), "timestamp": rfc3339(task.changed)});
    let message = task.message.as_deref().filter(|text| task.state.is_terminal() && !text.is_empty());
    if let (Some(text), Some(status)) = (message, status.as_object_mut()) {
        let message = json!({
            "messageId": format!("msg_{}_status", task.id),
            "contextId": context_id,
            "taskId": task.id,
            "role": "ROLE_AGENT",
            "parts": [text_part(text)],
        });
        status.insert("message".into(), message);
    }
    let mut document = json!({"id": task.id, "contextId": context_id, "status": status});
    let response = task.response.as_deref().filter(|_| task.state == State::Completed);
    if let (Some(text), Some(document)) = (response, document.as_object_mut()) {
        let artifact = json!({"artifactId": "response", "name": "response", "parts": [text_part(text)]});
        document.insert("artifacts".into(), json!([artifact]));
    }
    document
}

fn text_part(text: &str) -> Value {
    json!({"text": text, "mediaType": "text/plain"})
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use ipc::edge::host_broker::{Origin, TaskSource};

    use super::*;
    use crate::tasks::Incoming;

    fn sample(state: State, message: Option<&str>, response: Option<&str>) -> Value {
        task(&Task {
            id: "tsk_1".into(),
            incoming: Incoming {
                context_id: "ctx_1".into(),
                text: String::new(),
                bytes: 0,
                source: TaskSource::A2a,
                origin: Origin::Event,
                trusted: false,
            },
            state,
            changed: UNIX_EPOCH + Duration::from_millis(1),
            message: message.map(str::to_owned),
            response: response.map(str::to_owned),
            cancel: false,
        })
    }

    #[test]
    fn a_completed_task_has_its_message_and_its_response() {
        assert_eq!(
            sample(State::Completed, Some("task completed"), Some("hi")).to_string(),
            concat!(
                r#"{"id":"tsk_1","contextId":"ctx_1","status":{"state":"TASK_STATE_COMPLETED","#,
                r#""timestamp":"1970-01-01T00:00:00.001Z","message":{"messageId":"msg_tsk_1_status","#,
                r#""contextId":"ctx_1","taskId":"tsk_1","role":"ROLE_AGENT","#,
                r#""parts":[{"text":"task completed","mediaType":"text/plain"}]}},"#,
                r#""artifacts":[{"artifactId":"response","name":"response","#,
                r#""parts":[{"text":"hi","mediaType":"text/plain"}]}]}"#
            )
        );
    }

    #[test]
    fn a_task_that_is_not_over_has_neither() {
        assert_eq!(
            sample(State::Working, Some("x"), Some("y")).to_string(),
            concat!(
                r#"{"id":"tsk_1","contextId":"ctx_1","status":{"state":"TASK_STATE_WORKING","#,
                r#""timestamp":"1970-01-01T00:00:00.001Z"}}"#
            )
        );
        assert!(sample(State::Failed, Some("task failed"), None).get("artifacts").is_none());
    }
}
