//! A2A over the door: one JSON-RPC request in, one document out.

pub(crate) mod envelope;
pub(crate) mod message;
pub(crate) mod task_json;

use ipc::edge::host_broker::{CancelPhase, Event, Origin, TaskSource};
use serde_json::{Map, Value, json};

use crate::door::Client;
use crate::fault::Fault;
use crate::ids::fresh;
use crate::session::Session;
use crate::tasks::{Incoming, State};
use envelope::{Call, Method, RpcError};

/// What the door said about a request besides its body.
#[derive(Debug, Default, Clone)]
pub(crate) struct Headers {
    pub(crate) a2a_version: Vec<String>,
    pub(crate) traceparent: Option<String>,
    pub(crate) task_origin: Option<String>,
    pub(crate) task_trust: Option<String>,
}

/// An HTTP status and a JSON document.
#[derive(Debug, PartialEq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: String,
}

/// Answers one request. A message is held until its task has settled, unless the client does not want to wait or has gone;
/// the task goes on without it.
///
/// # Errors
/// [`Fault`] if the session cannot go on.
pub(crate) async fn answer(
    session: &Session,
    headers: &Headers,
    body: &[u8],
    client: &Client,
) -> Result<Reply, Fault> {
    let (origin, trusted) = provenance(headers);
    if origin == Origin::Peer {
        // No manifest can consent to peers' tasks yet (`spec: Routing order`, row 5).
        let body =
            r#"{"error":"peer_not_accepted","message":"this capsule does not accept tasks from peers"}"#;
        return Ok(Reply { status: 403, body: body.to_owned() });
    }
    let takes_tasks = session.queue.borrow().takes_tasks();
    let call = match envelope::read(body, &headers.a2a_version, takes_tasks) {
        Ok(call) => call,
        Err(refused) => return Ok(document(&refused.error.document(&refused.id))),
    };
    let Call { id, method, params } = call;
    let result = match method {
        Method::SendMessage => send_message(session, headers, (origin, trusted), &params, client).await?,
        Method::GetTask => get_task(session, &params),
        Method::CancelTask => cancel_task(session, &params, client).await?,
    };
    Ok(document(&match result {
        Ok(result) => envelope::result(&id, result),
        Err(error) => error.document(&id),
    }))
}

fn document(document: &Value) -> Reply {
    Reply { status: 200, body: document.to_string() }
}

/// Where a message says it comes from, and whether its text is trusted (`spec: Provenance headers`).
fn provenance(headers: &Headers) -> (Origin, bool) {
    let origin = match headers.task_origin.as_deref() {
        Some("peer") => Origin::Peer,
        Some("completion") => Origin::Completion,
        _ => Origin::Event,
    };
    let trusted = origin != Origin::Event && headers.task_trust.as_deref() == Some("trusted");
    (origin, trusted)
}

async fn send_message(
    session: &Session,
    headers: &Headers,
    (origin, trusted): (Origin, bool),
    params: &Map<String, Value>,
    client: &Client,
) -> Result<Result<Value, RpcError>, Fault> {
    let message = match message::read(params) {
        Ok(message) => message,
        Err(error) => return Ok(Err(error)),
    };
    if let Some(id) = &message.task_id {
        return Ok(Err(continue_task(session, id)));
    }
    let incoming = Incoming {
        context_id: message.context_id.unwrap_or_else(|| fresh("ctx")),
        text: message.text,
        bytes: message.bytes,
        source: TaskSource::A2a,
        origin,
        trusted,
    };
    let context_id = incoming.context_id.clone();
    let id = session.tasks.borrow_mut().submit(incoming);
    let admitted = session.queue.borrow_mut().admit(&id);
    if let Err(reason) = admitted {
        session.tasks.borrow_mut().advance(&id, State::Rejected, Some(reason.to_owned()), None);
        return Ok(sent(session, &id));
    }
    session
        .broker
        .event(Event::A2aTaskReceived {
            task_id: id.clone(),
            context_id,
            message_id: message.message_id,
            traceparent_from_caller: headers.traceparent.clone(),
        })
        .await?;
    session.queue.borrow_mut().ready(&id);
    session.changed();
    if !message.return_immediately {
        settled(session, &id, client).await;
    }
    Ok(sent(session, &id))
}

/// A message that names a task can only answer a question of it, and no task asks any yet.
fn continue_task(session: &Session, id: &str) -> RpcError {
    match session.tasks.borrow().get(id) {
        Some(_) => RpcError::unsupported("The task is not waiting for input"),
        None => RpcError::task_not_found(id),
    }
}

fn sent(session: &Session, id: &str) -> Result<Value, RpcError> {
    task_document(session, id).map(|task| json!({"task": task}))
}

/// Waits until a task is over or forgotten, or until nobody waits for it.
async fn settled(session: &Session, id: &str, client: &Client) {
    let over = session.when(|| {
        let tasks = session.tasks.borrow();
        tasks.get(id).is_none_or(|task| task.state.is_terminal()).then_some(())
    });
    tokio::select! {
        () = over => {}
        () = client.gone() => {}
    }
}

fn task_document(session: &Session, id: &str) -> Result<Value, RpcError> {
    match session.tasks.borrow().get(id) {
        Some(task) => Ok(task_json::task(task)),
        None => Err(RpcError::internal("the task was forgotten")),
    }
}

fn get_task(session: &Session, params: &Map<String, Value>) -> Result<Value, RpcError> {
    let id = task_id(params)?;
    match session.tasks.borrow().get(id) {
        Some(task) => Ok(task_json::task(task)),
        None => Err(RpcError::task_not_found(&crate::text::clip(id, 200))),
    }
}

fn task_id(params: &Map<String, Value>) -> Result<&str, RpcError> {
    match params.get("id") {
        Some(Value::String(id)) if !id.is_empty() => Ok(id),
        _ => Err(RpcError::invalid_params("`id` must be a non-empty string")),
    }
}

async fn cancel_task(
    session: &Session,
    params: &Map<String, Value>,
    client: &Client,
) -> Result<Result<Value, RpcError>, Fault> {
    let id = match task_id(params) {
        Ok(id) => id,
        Err(error) => return Ok(Err(error)),
    };
    let state = session.tasks.borrow().get(id).map(|task| task.state);
    match state {
        None => return Ok(Err(RpcError::task_not_found(&crate::text::clip(id, 200)))),
        Some(state) if state.is_terminal() => return Ok(Err(RpcError::task_not_cancelable(id))),
        Some(_) => {}
    }
    if session.queue.borrow_mut().remove(id) {
        let message = "task canceled before it started".to_owned();
        session.tasks.borrow_mut().advance(id, State::Canceled, Some(message), None);
        session.changed();
        let event = Event::TaskCanceled { task_id: id.to_owned(), turn: None, phase: CancelPhase::Queued };
        session.broker.event(event).await?;
    } else {
        session.tasks.borrow_mut().cancel(id);
        session.changed();
        settled(session, id, client).await;
    }
    Ok(task_document(session, id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trust_is_read_only_with_an_origin_that_counts() {
        for (origin, trust, expected) in [
            (None, None, (Origin::Event, false)),
            (None, Some("trusted"), (Origin::Event, false)),
            (Some("user"), Some("trusted"), (Origin::Event, false)),
            (Some("event"), Some("trusted"), (Origin::Event, false)),
            (Some("completion"), Some("trusted"), (Origin::Completion, true)),
            (Some("completion"), Some("Trusted"), (Origin::Completion, false)),
            (Some("completion"), None, (Origin::Completion, false)),
            (Some("peer"), Some("trusted"), (Origin::Peer, true)),
        ] {
            let headers = Headers {
                task_origin: origin.map(str::to_owned),
                task_trust: trust.map(str::to_owned),
                ..Headers::default()
            };
            assert_eq!(provenance(&headers), expected, "{origin:?} {trust:?}");
        }
    }
}
