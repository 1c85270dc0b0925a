//! From loaded components to the end of the session: threads, runtime, peers, shutdown.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ipc::aio::split;
use ipc::edge::control::{FromRole, HostOrder, RoleControl};
use rustix::fs::{CWD, Mode, OFlags};
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use wasmtime::Engine;

use crate::budget::{self, Budget};
use crate::driver::Caller;
use crate::events::BrokerLink;
use crate::fault::Fault;
use crate::http::EgressLink;
use crate::load::{self, Components};
use crate::orders::{Peers, Signal, Wired};
use crate::process::service;
use crate::results::SessionDirectory;
use crate::runner::RunnerLink;
use crate::session::Session;
use crate::store;

/// Threads for file operations of components; more wait.
const BLOCKING_THREADS: usize = 16;
/// How long an ordered end may take before this process ends anyway.
const SHUTDOWN: Duration = Duration::from_secs(15);
/// How long held answers may take to leave at the end.
const FAREWELL: Duration = Duration::from_millis(500);

/// A session that can be served: components mapped, directories held.
pub(crate) struct Prepared {
    wired: Wired,
    components: Components,
    workdir: OwnedFd,
    directory: SessionDirectory,
    budget: Budget,
}

/// Loads the components and opens the directories; needs executable pages and paths for the last time.
///
/// # Errors
/// One line for the operator.
pub(crate) fn prepare(
    engine: Engine,
    wired: Wired,
    cache: &Path,
    workdir: &Path,
    session: &Path,
) -> Result<Prepared, String> {
    let components = load::load(engine, &wired.agent, cache)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // `openat`, as everywhere here: rustix's `open` is a system call of its own on x86_64.
    let workdir = rustix::fs::openat(CWD, workdir, flags, Mode::empty())
        .map_err(|errno| format!("workdir: {errno}"))?;
    let directory = SessionDirectory::open(session).map_err(|errno| format!("session directory: {errno}"))?;
    let kept = || -> std::io::Result<Vec<OwnedFd>> { Ok(vec![workdir.try_clone()?, directory.root()?]) };
    let kept = kept().map_err(|error| format!("workdir: {error}"))?;
    let budget = Budget::new(wired.agent.workdir_max_bytes, kept);
    Ok(Prepared { wired, components, workdir, directory, budget })
}

/// Serves the session to its end. The process is sealed; from here on it has threads.
///
/// # Errors
/// [`Fault`] unless the end was ordered.
pub(crate) fn serve(control: RoleControl<HostOrder>, prepared: Prepared) -> Result<(), Fault> {
    let own = |error: std::io::Error| Fault::Own(error.to_string());
    store::start_ticker(&prepared.components.engine).map_err(own)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .build()
        .map_err(own)?;
    let result = LocalSet::new().block_on(&runtime, live(control, prepared));
    // A file operation that hangs (a component opened a pipe nobody writes to) must not hold the process.
    runtime.shutdown_background();
    result
}

async fn live(control: RoleControl<HostOrder>, prepared: Prepared) -> Result<(), Fault> {
    let own = |error: ipc::ChannelError| Fault::Own(error.to_string());
    let Prepared { wired, components, workdir, directory, budget } = prepared;
    control.send(&FromRole::Sealed).map_err(|error| Fault::Broker(error.to_string()))?;
    let (_control, orders) = split(control).map_err(own)?;
    let (to_broker, from_broker) = split(wired.broker).map_err(own)?;
    let (to_runner, from_runner) = split(wired.runner).map_err(own)?;
    let egress = Arc::new(EgressLink::new());
    let (processes, asks) = mpsc::unbounded_channel();
    let caller = Caller { components, workdir, egress: Arc::clone(&egress), processes: processes.clone() };
    let session = Rc::new(Session::new(
        wired.agent,
        caller,
        BrokerLink::new(to_broker),
        RunnerLink::new(to_runner),
        directory,
        budget,
    ));
    let (faults, mut faulted) = mpsc::unbounded_channel();
    let (signals, mut signalled) = mpsc::unbounded_channel();
    let mut peers = Peers::new(Rc::clone(&session), egress, faults);
    if let Some(door) = wired.door {
        peers.door(door)?;
    }
    if let Some(channel) = wired.egress {
        peers.egress(channel)?;
    }
    tokio::select! {
        fault = peers.follow(orders, signals) => Err(fault),
        fault = session.broker.receive(from_broker) => Err(fault),
        fault = session.runner.receive(from_runner) => Err(fault),
        fault = service::serve(Rc::clone(&session), processes, asks) => Err(fault),
        fault = budget::watch(&session) => Err(fault),
        Some(fault) = faulted.recv() => Err(fault),
        result = tasks(&session, &mut signalled) => result,
    }
}

/// Waits for `Run`, runs the tasks, waits for `Shutdown`; a `Shutdown` that comes earlier ends the tasks.
async fn tasks(session: &Session, signals: &mut mpsc::UnboundedReceiver<Signal>) -> Result<(), Fault> {
    match signals.recv().await {
        Some(Signal::Run) => {}
        Some(Signal::Shutdown) | None => return Ok(()),
    }
    let mut running = Box::pin(session.run());
    let over = tokio::select! {
        result = &mut running => {
            result?;
            true
        }
        () = shutdown(signals) => false,
    };
    if over {
        shutdown(signals).await;
    } else {
        session.stop();
        tokio::time::timeout(SHUTDOWN, running)
            .await
            .map_err(|_| Fault::Own("the running task did not end after its cancel".into()))??;
    }
    let _ = tokio::time::timeout(FAREWELL, session.all_answered()).await;
    Ok(())
}

/// Waits for the order to end; other orders are not for here.
async fn shutdown(signals: &mut mpsc::UnboundedReceiver<Signal>) {
    while let Some(signal) = signals.recv().await {
        if signal == Signal::Shutdown {
            return;
        }
    }
}
