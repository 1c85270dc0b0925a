//! The door's side of a session: requests come as typed heads with a stream each, answers go back on it.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use ipc::aio::AsyncReceiver;
use ipc::edge::door_host::{Content, DoorToHost, MAX_BODY, ResponseHead};
use ipc::stream::frame_head;
use ipc::{ChannelError, Received};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::task::{JoinSet, spawn_local};

use crate::a2a::{self, Headers, Reply};
use crate::fault::Fault;
use crate::session::Session;

/// Requests that may be under way; the door admits fewer connections than this, and those whose client has gone end by
/// themselves. What comes on top waits in the channel.
const MAX_REQUESTS: usize = 512;
/// How long the door may take to deliver a body it announced, or to take an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whoever waits for an answer: the way it takes.
pub(crate) struct Client(pipe::Sender);

impl Client {
    /// Waits until nobody waits for the answer any more.
    pub(crate) async fn gone(&self) {
        // Failing to learn it is taken for the same.
        let _ = self.0.ready(Interest::ERROR).await;
    }
}

/// Serves one door until it goes away. A door that breaks the rules is a fault; one that dies is not, the broker brings
/// another.
pub(crate) async fn serve(
    session: Rc<Session>,
    mut receiver: AsyncReceiver<DoorToHost>,
    faults: mpsc::UnboundedSender<Fault>,
) {
    let mut requests = JoinSet::new();
    loop {
        while requests.try_join_next().is_some() {}
        if requests.len() >= MAX_REQUESTS {
            requests.join_next().await;
            continue;
        }
        match receiver.receive().await {
            Ok(received) => {
                requests.spawn_local(request(Rc::clone(&session), received, faults.clone()));
            }
            Err(ChannelError::Closed) => break,
            Err(error) => {
                let _ = faults.send(Fault::Door(error.to_string()));
                break;
            }
        }
    }
    // What was asked before the door went away is still carried out; the answers find nobody.
    spawn_local(async move { while requests.join_next().await.is_some() {} });
}

async fn request(session: Rc<Session>, received: Received<DoorToHost>, faults: mpsc::UnboundedSender<Fault>) {
    let Ok((message, [input, output])) = received.exactly::<2>() else { return };
    let _answering = session.answering();
    let DoorToHost::Request {
        content_length,
        a2a_version,
        traceparent,
        task_origin,
        task_trust,
        id: _,
        a2a_extensions: _,
        last_event_id: _,
    } = message;
    let Ok(output) = pipe::Sender::from_owned_fd(output) else { return };
    let client = Client(output);
    let headers = Headers { a2a_version, traceparent, task_origin, task_trust };
    // A body that does not come is the client's doing: without an answer the door closes the connection.
    let Some(body) = read_body(input, content_length).await else { return };
    match a2a::answer(&session, &headers, &body, &client).await {
        Ok(reply) => {
            let _ = tokio::time::timeout(PATIENCE, write_reply(client.0, reply)).await;
        }
        Err(fault) => {
            let _ = faults.send(fault);
        }
    }
}

async fn read_body(input: OwnedFd, length: u64) -> Option<Vec<u8>> {
    if length > MAX_BODY {
        return None;
    }
    let input = pipe::Receiver::from_owned_fd(input).ok()?;
    let mut body = Vec::new();
    // One byte more than announced, to see that the body ends there.
    let mut limited = input.take(length + 1);
    tokio::time::timeout(PATIENCE, limited.read_to_end(&mut body)).await.ok()?.ok()?;
    (body.len() as u64 == length).then_some(body)
}

async fn write_reply(mut output: pipe::Sender, reply: Reply) -> std::io::Result<()> {
    let head = ResponseHead {
        status: reply.status,
        content: Content::Json,
        content_length: Some(reply.body.len() as u64),
        a2a_extensions: None,
    };
    output.write_all(&frame_head(&head).map_err(std::io::Error::other)?).await?;
    output.write_all(reply.body.as_bytes()).await
}
