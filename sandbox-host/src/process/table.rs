//! The session's processes: whose each is, what state it is in, what it printed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use ipc::edge::host_broker::{Event, ExitCause, ProcessEvent};
use ipc::edge::host_runner::MAX_PROCESSES;
use ipc::types::RequestId;
use tokio::net::unix::pipe;
use tokio::sync::{Mutex, watch};

use super::stream::Stream;
use crate::fault::Fault;
use crate::gate::Refusal;
use crate::ids::millis;
use crate::runner::{Exit, PATIENCE};
use crate::session::Session;

/// Bytes that processes which are over may leave unread, all together; of more, the oldest are lost.
const LEFT_UNREAD: usize = 64 * 1024 * 1024;

/// All processes of the session, in the order of their start.
#[derive(Default)]
pub(crate) struct Processes {
    all: RefCell<Vec<Rc<Process>>>,
    /// Being started.
    starting: Cell<usize>,
    /// Started, and their end is not on record.
    open: Cell<usize>,
    ended: Cell<bool>,
}

/// A session process.
pub(crate) struct Process {
    pub(crate) handle: String,
    pub(crate) tool: String,
    pub(crate) name: String,
    pub(crate) binary: String,
    pub(crate) id: RequestId,
    pub(crate) started: Instant,
    /// Until it is over.
    pub(crate) stdin: Mutex<Option<pipe::Sender>>,
    /// Bytes its stdin took.
    pub(crate) written: Cell<u64>,
    pub(crate) stdout: Rc<Stream>,
    pub(crate) stderr: Rc<Stream>,
    /// How it ended, once it did.
    pub(crate) exit: watch::Sender<Option<Exit>>,
    /// Its tool asked it to end.
    pub(crate) stopping: Cell<bool>,
}

impl Process {
    /// How it ended; `None` while it runs.
    pub(crate) fn exited(&self) -> Option<Exit> {
        *self.exit.borrow()
    }

    /// Waits for its end.
    pub(crate) async fn until_exited(&self) -> Exit {
        let mut exit = self.exit.subscribe();
        loop {
            if let Some(exit) = *exit.borrow_and_update() {
                return exit;
            }
            // The sender lives as long as `self`.
            let _ = exit.changed().await;
        }
    }
}

/// A place for a process that is being started.
pub(crate) struct Reserved<'a>(&'a Session);

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let starting = &self.0.processes.starting;
        starting.set(starting.get().saturating_sub(1));
        self.0.changed();
    }
}

impl Processes {
    /// Whether the session takes no more calls.
    pub(crate) fn is_over(&self) -> bool {
        self.ended.get()
    }

    /// A tool's process by its handle.
    pub(crate) fn of(&self, tool: &str, handle: &str) -> Option<Rc<Process>> {
        let all = self.all.borrow();
        all.iter().find(|process| process.handle == handle && process.tool == tool).cloned()
    }

    /// A tool's latest process of a name.
    pub(crate) fn named(&self, tool: &str, name: &str) -> Option<Rc<Process>> {
        let all = self.all.borrow();
        all.iter().rev().find(|process| process.name == name && process.tool == tool).cloned()
    }

    /// Processes that run.
    pub(crate) fn running(&self) -> usize {
        self.all.borrow().iter().filter(|process| process.exited().is_none()).count()
    }

    /// Holds a place for one more process.
    ///
    /// # Errors
    /// [`Refusal`] by `session-process-cap`.
    pub(crate) fn reserve<'a>(&self, session: &'a Session) -> Result<Reserved<'a>, Refusal> {
        if self.running() + self.starting.get() >= MAX_PROCESSES {
            let reason = format!("{MAX_PROCESSES} session processes run already; stop one first");
            return Err(Refusal::new("session-process-cap", reason));
        }
        self.starting.set(self.starting.get() + 1);
        Ok(Reserved(session))
    }

    /// Takes up a process that runs.
    pub(crate) fn add(&self, process: Rc<Process>) {
        self.open.set(self.open.get() + 1);
        self.all.borrow_mut().push(process);
    }

    /// Records the end of a process. What it printed before is there when anybody can see that it ended.
    ///
    /// # Errors
    /// [`Fault::Broker`].
    pub(crate) async fn over(&self, session: &Session, process: &Process, exit: Exit) -> Result<(), Fault> {
        process.stdout.catch_up();
        process.stderr.catch_up();
        let cause = if process.stopping.get() {
            ExitCause::Stopped
        } else if self.ended.get() {
            ExitCause::SessionEnd
        } else if exit.limit.is_some() {
            ExitCause::ResourceLimit
        } else {
            ExitCause::Exited
        };
        process.exit.send_replace(Some(exit));
        self.bound_unread();
        // Whoever still wrote gives up now.
        process.stdin.lock().await.take();
        let (stdout_bytes, stdout_dropped) = process.stdout.totals();
        let (stderr_bytes, stderr_dropped) = process.stderr.totals();
        let line = ProcessEvent::Exit {
            process_id: process.handle.clone(),
            name: process.name.clone(),
            tool_name: process.tool.clone(),
            binary: process.binary.clone(),
            exit_code: exit.code,
            cause,
            killed: exit.killed,
            duration_ms: millis(process.started.elapsed()),
            stdout_bytes,
            stderr_bytes,
            stdout_dropped,
            stderr_dropped,
            stdin_bytes: process.written.get(),
            resource_limit: exit.limit,
        };
        let recorded = session.broker.event(Event::Process(line)).await;
        self.open.set(self.open.get().saturating_sub(1));
        session.changed();
        recorded
    }

    fn bound_unread(&self) {
        let all = self.all.borrow();
        let over = || all.iter().filter(|process| process.exited().is_some());
        let waiting = |process: &Rc<Process>| process.stdout.waiting() + process.stderr.waiting();
        let mut unread: usize = over().map(waiting).sum();
        for process in over() {
            if unread <= LEFT_UNREAD {
                return;
            }
            unread = unread.saturating_sub(waiting(process));
            process.stdout.forget();
            process.stderr.forget();
        }
    }

    /// Ends all processes: the session is over. Their ends are on record when this returns.
    ///
    /// # Errors
    /// [`Fault`].
    pub(crate) async fn end(&self, session: &Session) -> Result<(), Fault> {
        self.ended.set(true);
        let running: Vec<RequestId> = {
            let all = self.all.borrow();
            all.iter().filter(|process| process.exited().is_none()).map(|process| process.id).collect()
        };
        for id in running {
            session.runner.kill(id).await?;
        }
        let recorded = session.when(|| (self.starting.get() == 0 && self.open.get() == 0).then_some(()));
        let late = |_| Fault::Runner("the session's processes did not end".into());
        tokio::time::timeout(PATIENCE, recorded).await.map_err(late)
    }
}
