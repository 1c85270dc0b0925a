//! One call of a component: a fresh store, instantiation, `run`, and every way it can end.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use ipc::edge::host_broker::Agent;
use tokio::sync::mpsc;
use wasmtime::Store;

use crate::http::{EgressLink, Hooks};
use crate::load::bindings::exports::murmur::tool::run;
use crate::load::{Components, Loaded};
use crate::process::{Access, Ask, Place};
use crate::results::SessionDirectory;
use crate::stdio::Printed;
use crate::store::{self, CallError, CallState};
use crate::wasi;

/// How a call went in the component's own judgement.
pub(crate) use crate::load::bindings::exports::murmur::tool::run::Status;

/// What a component returned.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: Status,
    pub(crate) summary: Option<String>,
    pub(crate) data: Option<String>,
    pub(crate) truncated: bool,
}

/// Everything a call needs besides its input.
pub(crate) struct Caller {
    pub(crate) components: Components,
    pub(crate) workdir: OwnedFd,
    pub(crate) egress: Arc<EgressLink>,
    /// To whom `murmur:process` leads.
    pub(crate) processes: mpsc::UnboundedSender<Ask>,
}

/// Host calls cannot be interrupted by the epoch; a call that sits in one is dropped this long after its deadline.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

impl Caller {
    /// Calls an artifact's `run`. What it prints is in a log below `session` afterwards, however the call ends.
    ///
    /// # Errors
    /// [`CallError`]; its text is fit for the model and the trace.
    pub(crate) async fn call(
        &self,
        agent: &Agent,
        session: &SessionDirectory,
        name: &str,
        input: String,
        place: Place,
    ) -> Result<Answer, CallError> {
        let host = |reason: String| CallError::Host { artifact: name.to_owned(), reason };
        let loaded = self
            .components
            .by_name
            .get(name)
            .ok_or_else(|| host("is not among the capsule's artifacts".into()))?;
        let artifact = &loaded.artifact;
        let directory = wasi::open_scope(&self.workdir, &artifact.scope)
            .map_err(|errno| host(format!("its directory could not be opened: {errno}")))?;
        let hooks = Hooks::new(Arc::clone(&self.egress), name, artifact.gateway_path.is_some());
        let printed = Printed::new(session, name);
        let context = wasi::context(agent, artifact, &printed);
        let processes = Access::new(place, self.processes.clone());
        let engine = &self.components.engine;
        let mut store = store::new(engine, &agent.limits, context, hooks, processes, Some(directory));
        let late = CallError::Deadline { artifact: name.to_owned(), seconds: agent.limits.deadline_seconds };
        let patience = store::allowed(&agent.limits) * 2 + GRACE;
        match tokio::time::timeout(patience, run(loaded, agent, &mut store, input)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(store.data().classify(name, &error)),
            Err(_elapsed) => Err(late),
        }
    }
}

async fn run(
    loaded: &Loaded,
    agent: &Agent,
    store: &mut Store<CallState>,
    input: String,
) -> wasmtime::Result<Answer> {
    let instance = loaded.component.instantiate_async(&mut *store).await?;
    store::start_clock(store, &agent.limits);
    let input = run::ToolInput { data: Some(input), log_path: None };
    let result = instance.murmur_tool_run().call_run(&mut *store, &input).await?;
    Ok(Answer {
        status: result.status,
        summary: result.summary,
        data: result.data,
        truncated: result.truncated,
    })
}
