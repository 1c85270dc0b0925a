//! `murmur:process` as a component sees it: each function asks the session's [`service`] and waits, so that a tool that waits
//! holds up nobody else. Only tool calls are served.

pub(crate) mod connection;
pub(crate) mod service;
mod stream;
pub(crate) mod table;

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use wasmtime::component::Resource;
use wasmtime_wasi::WasiView;

use crate::gate::Refusal;
use crate::load::bindings::murmur::process::process as wit;
use crate::process::connection::{Closed, Connection};
use crate::store::CallState;

pub(crate) use wit::{Output, ProcessError, RunOutput, RunRequest, StartRequest, Started, State};

/// Connections one call may hold at a time: each is a descriptor of this process.
const MOST_CONNECTIONS: usize = 64;

/// From what a component is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// The task.
    pub(crate) task_id: Option<String>,
    /// The turn.
    pub(crate) turn: Option<u32>,
    /// The tool call; outside one no program is run.
    pub(crate) tool: Option<ToolCall>,
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ToolCall {
    /// The tool's name.
    pub(crate) name: String,
    /// The model's id for the call.
    pub(crate) id: Option<String>,
}

/// What a component asks for.
pub(crate) struct Ask {
    pub(crate) place: Arc<Place>,
    /// When the call's time is over.
    pub(crate) deadline: Instant,
    pub(crate) what: What,
}

/// A function with its arguments, and where the answer goes. An answer nobody waits for any more is one whose call was dropped.
pub(crate) enum What {
    Run(RunRequest, Reply<RunOutput>),
    Start(StartRequest, Reply<Started>),
    Find(String, oneshot::Sender<Option<String>>),
    Status(String, Reply<State>),
    Write(String, Vec<u8>, Reply<()>),
    Read(String, u32, Reply<Output>),
    Stop(String, Reply<State>),
    /// The permit is the connection's.
    Connect(String, u16, OwnedSemaphorePermit, Reply<Connection>),
    /// A connection was dropped.
    Closed(Closed),
}

pub(crate) type Reply<T> = oneshot::Sender<Result<T, ProcessError>>;

/// The way of one store to the service.
#[derive(Clone)]
pub(crate) struct Access {
    place: Arc<Place>,
    service: mpsc::UnboundedSender<Ask>,
    /// Connections that the call may still open.
    room: Arc<Semaphore>,
}

impl Access {
    pub(crate) fn new(place: Place, service: mpsc::UnboundedSender<Ask>) -> Self {
        Access { place: Arc::new(place), service, room: Arc::new(Semaphore::new(MOST_CONNECTIONS)) }
    }

    fn send(&self, deadline: Instant, what: What) {
        // A service that is gone drops the reply, and that is an answer.
        let _ = self.service.send(Ask { place: Arc::clone(&self.place), deadline, what });
    }

    async fn ask<T>(
        &self,
        deadline: Instant,
        what: impl FnOnce(Reply<T>) -> What,
    ) -> wasmtime::Result<Result<T, ProcessError>> {
        let (reply, answer) = oneshot::channel();
        self.send(deadline, what(reply));
        Ok(answer.await.unwrap_or_else(|_| Err(ProcessError::from(ended()))))
    }
}

/// The session is over.
pub(crate) fn ended() -> Refusal {
    Refusal::new("session-ended", "the session has ended, and with it its processes")
}

impl From<Refusal> for ProcessError {
    fn from(refusal: Refusal) -> Self {
        ProcessError::Refused(wit::Refusal { rule: refusal.rule.to_owned(), reason: refusal.reason })
    }
}

impl wit::Host for CallState {
    async fn run(&mut self, request: RunRequest) -> wasmtime::Result<Result<RunOutput, ProcessError>> {
        self.processes.ask(self.deadline(), |reply| What::Run(request, reply)).await
    }

    async fn start(&mut self, request: StartRequest) -> wasmtime::Result<Result<Started, ProcessError>> {
        self.processes.ask(self.deadline(), |reply| What::Start(request, reply)).await
    }

    async fn find(&mut self, name: String) -> wasmtime::Result<Option<String>> {
        let (reply, answer) = oneshot::channel();
        self.processes.send(self.deadline(), What::Find(name, reply));
        Ok(answer.await.unwrap_or_default())
    }

    async fn status(&mut self, handle: String) -> wasmtime::Result<Result<State, ProcessError>> {
        self.processes.ask(self.deadline(), |reply| What::Status(handle, reply)).await
    }

    async fn write(&mut self, handle: String, bytes: Vec<u8>) -> wasmtime::Result<Result<(), ProcessError>> {
        self.processes.ask(self.deadline(), |reply| What::Write(handle, bytes, reply)).await
    }

    async fn read(&mut self, handle: String, max: u32) -> wasmtime::Result<Result<Output, ProcessError>> {
        self.processes.ask(self.deadline(), |reply| What::Read(handle, max, reply)).await
    }

    async fn stop(&mut self, handle: String) -> wasmtime::Result<Result<State, ProcessError>> {
        self.processes.ask(self.deadline(), |reply| What::Stop(handle, reply)).await
    }

    async fn connect(
        &mut self,
        handle: String,
        port: u16,
    ) -> wasmtime::Result<Result<Resource<Connection>, ProcessError>> {
        let Ok(permit) = Arc::clone(&self.processes.room).try_acquire_owned() else {
            let reason = format!("the call holds {MOST_CONNECTIONS} connections; drop one first");
            return Ok(Err(ProcessError::Failed(reason)));
        };
        let connect = |reply| What::Connect(handle, port, permit, reply);
        match self.processes.ask(self.deadline(), connect).await? {
            Ok(connection) => Ok(Ok(self.ctx().table.push(connection)?)),
            Err(error) => Ok(Err(error)),
        }
    }
}

impl wit::HostConnection for CallState {
    async fn read(
        &mut self,
        connection: Resource<Connection>,
        max_bytes: u32,
        timeout_ms: u32,
    ) -> wasmtime::Result<Result<Vec<u8>, ProcessError>> {
        let deadline = self.deadline();
        let connection = self.ctx().table.get_mut(&connection)?;
        Ok(connection.read(max_bytes, timeout_ms, deadline).await)
    }

    async fn write(
        &mut self,
        connection: Resource<Connection>,
        bytes: Vec<u8>,
    ) -> wasmtime::Result<Result<(), ProcessError>> {
        let deadline = self.deadline();
        let connection = self.ctx().table.get_mut(&connection)?;
        Ok(connection.write(&bytes, deadline).await)
    }

    async fn drop(&mut self, connection: Resource<Connection>) -> wasmtime::Result<()> {
        self.ctx().table.delete(connection)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_that_nobody_answers_any_more_is_refused_for_the_end_of_the_session() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for taken in [false, true] {
            let (service, mut asks) = mpsc::unbounded_channel();
            let tool = Some(ToolCall { name: "one".into(), id: None });
            let access = Access::new(Place { task_id: None, turn: Some(0), tool }, service);
            if !taken {
                asks.close();
            }
            let answer = runtime.block_on(async {
                let status = access.ask(Instant::now(), |reply| What::Status("prc_1".into(), reply));
                let gone = async { drop(if taken { asks.recv().await } else { None }) };
                tokio::join!(status, gone).0
            });
            let Ok(Err(ProcessError::Refused(refusal))) = answer else { panic!("{answer:?}") };
            assert_eq!(refusal.rule, "session-ended");
        }
    }
}
