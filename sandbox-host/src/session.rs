//! A session's tasks, one after the other: activation, attempt, record, release.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use ipc::edge::host_broker::{
    Agent, CancelPhase, Event, ExitStatus, FailureCause, LoopEnded, Origin, TaskSource, WorkdirSpent,
};
use serde_json::Value;
use tokio::sync::watch;

use crate::agent_loop::{self, Outcome};
use crate::budget::Budget;
use crate::driver::Caller;
use crate::ending::Ending;
use crate::events::BrokerLink;
use crate::fault::Fault;
use crate::fence::fence;
use crate::ids::{fresh, millis};
use crate::policy::Hooks;
use crate::process::table::Processes;
use crate::queue::Queue;
use crate::read_only::ReadOnly;
use crate::results::SessionDirectory;
use crate::runner::RunnerLink;
use crate::tasks::{Incoming, State, Tasks};
use crate::{prompt, tools};

/// How long a session that does not sleep waits for its first task.
const IDLE: Duration = Duration::from_secs(30);

/// What a running task is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Turn,
    Inference,
}

/// Counts of a task, or of all of them.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counters {
    pub(crate) turns: u32,
    pub(crate) input_tokens: u64,
    pub(crate) output_tokens: u64,
    pub(crate) tool_calls: u32,
    pub(crate) shell_calls: u32,
}

/// Everything of a session that is served by one thread.
pub(crate) struct Session {
    pub(crate) agent: Agent,
    pub(crate) caller: Caller,
    pub(crate) broker: BrokerLink,
    pub(crate) runner: RunnerLink,
    /// What tools started that goes on between their calls.
    pub(crate) processes: Processes,
    pub(crate) directory: Rc<SessionDirectory>,
    /// What all of it may keep.
    pub(crate) budget: Budget,
    /// `capabilities.filesystem.read_only`.
    pub(crate) read_only: ReadOnly,
    /// The policy hooks.
    pub(crate) hooks: Hooks,
    /// The system prompt and the tool array: the same bytes in every request.
    pub(crate) system: String,
    pub(crate) tools: Value,
    pub(crate) tasks: RefCell<Tasks>,
    pub(crate) queue: RefCell<Queue>,
    /// Of the running task.
    pub(crate) counters: RefCell<Counters>,
    pub(crate) phase: Cell<Phase>,
    pub(crate) turn: Cell<Option<u32>>,
    totals: RefCell<Counters>,
    /// How the first task that did not complete ended.
    worst: Cell<Option<ExitStatus>>,
    stopping: Cell<bool>,
    /// A task runs.
    working: Cell<bool>,
    answers: Cell<usize>,
    /// Moves with every change of a task, of the queue or of `stopping`.
    changes: watch::Sender<u64>,
}

impl Session {
    pub(crate) fn new(
        agent: Agent,
        mut caller: Caller,
        broker: BrokerLink,
        runner: RunnerLink,
        directory: SessionDirectory,
        budget: Budget,
    ) -> Self {
        let directory = Rc::new(directory);
        Session {
            read_only: ReadOnly::new(&agent.read_only, agent.workdir.clone()),
            hooks: Hooks::of(&mut caller, &agent, &directory),
            system: prompt::system(&agent),
            tools: tools::inventory(&agent),
            queue: RefCell::new(Queue::new(agent.acceptance, agent.sleep, agent.queue_depth)),
            agent,
            caller,
            broker,
            runner,
            processes: Processes::default(),
            directory,
            budget,
            tasks: RefCell::default(),
            counters: RefCell::default(),
            phase: Cell::new(Phase::Turn),
            turn: Cell::new(None),
            totals: RefCell::default(),
            worst: Cell::new(None),
            stopping: Cell::new(false),
            working: Cell::new(false),
            answers: Cell::new(0),
            changes: watch::Sender::new(0),
        }
    }

    /// Wakes whoever waits for a change.
    pub(crate) fn changed(&self) {
        self.changes.send_modify(|revision| *revision = revision.wrapping_add(1));
    }

    /// Waits until `look` finds something, looking again at every change.
    pub(crate) async fn when<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        let mut changes = self.changes.subscribe();
        loop {
            changes.borrow_and_update();
            if let Some(found) = look() {
                return found;
            }
            // The sender lives as long as `self`.
            let _ = changes.changed().await;
        }
    }

    /// Counts a request as under way until the guard is dropped.
    pub(crate) fn answering(&self) -> Answering<'_> {
        self.answers.set(self.answers.get() + 1);
        Answering(self)
    }

    /// Waits until no request is under way.
    pub(crate) async fn all_answered(&self) {
        self.when(|| (self.answers.get() == 0).then_some(())).await;
    }

    /// Whether anything runs that could write.
    pub(crate) fn is_active(&self) -> bool {
        self.working.get() || self.processes.running() > 0
    }

    /// Takes no more work and cancels what runs.
    pub(crate) fn stop(&self) {
        self.stopping.set(true);
        self.changed();
    }

    /// Runs tasks until none will come, refuses what waits, reports the end. The launch's own task is first.
    ///
    /// # Errors
    /// [`Fault`].
    pub(crate) async fn run(&self) -> Result<(), Fault> {
        if let Some(text) = &self.agent.task {
            let id = self.tasks.borrow_mut().submit(own_task(text.clone()));
            self.queue.borrow_mut().admit_own(&id);
        }
        while let Some(id) = self.next().await {
            self.run_task(&id).await?;
            if self.queue.borrow().is_over() {
                break;
            }
        }
        self.refuse_waiting().await?;
        self.processes.end(self).await?;
        let totals = *self.totals.borrow();
        self.broker
            .loop_ended(LoopEnded {
                exit_status: self.worst.get().unwrap_or(ExitStatus::Ok),
                turns: totals.turns,
                input_tokens: totals.input_tokens,
                output_tokens: totals.output_tokens,
                tool_calls: totals.tool_calls,
                shell_calls: totals.shell_calls,
                spent: self.budget.spent(),
            })
            .await
    }

    /// The next task; `None` once the session stops or has been idle for too long.
    async fn next(&self) -> Option<String> {
        let idle = if !self.queue.borrow().takes_tasks() {
            Duration::ZERO
        } else if self.queue.borrow().waits_forever() {
            Duration::MAX
        } else {
            IDLE
        };
        let look = || {
            let over = self.stopping.get() || self.budget.spent().is_some();
            if over { Some(None) } else { self.queue.borrow_mut().next().map(Some) }
        };
        // A task that is there is taken even where there is no patience at all.
        if let Some(found) = look() {
            return found;
        }
        tokio::time::timeout(idle, self.when(look)).await.unwrap_or(None)
    }

    async fn refuse_waiting(&self) -> Result<(), Fault> {
        let reason = if self.stopping.get() {
            "task rejected: the session was stopped before this task started"
        } else if self.budget.spent().is_some() {
            "task rejected: the session keeps more than capabilities.resources.workdir_max_bytes"
        } else {
            "task rejected: the session ended before this task started"
        };
        let waiting = self.queue.borrow_mut().close();
        for id in waiting {
            let context_id = self.tasks.borrow().get(&id).map(|task| task.incoming.context_id.clone());
            self.broker
                .event(Event::TaskRejected {
                    task_id: id.clone(),
                    context_id: context_id.unwrap_or_default(),
                    reason: reason.to_owned(),
                })
                .await?;
            self.tasks.borrow_mut().advance(&id, State::Rejected, Some(reason.to_owned()), None);
        }
        self.changed();
        Ok(())
    }

    /// One task from activation to the release of its terminal status, which comes after the generation is stored.
    async fn run_task(&self, id: &str) -> Result<(), Fault> {
        let Some(incoming) = self.tasks.borrow().get(id).map(|task| task.incoming.clone()) else {
            return Ok(());
        };
        let started = Instant::now();
        *self.counters.borrow_mut() = Counters::default();
        self.phase.set(Phase::Turn);
        self.turn.set(None);
        self.tasks.borrow_mut().advance(id, State::Working, None, None);
        self.working.set(true);
        self.changed();
        self.broker
            .event(Event::TaskStart {
                task_id: id.to_owned(),
                context_id: incoming.context_id.clone(),
                source: incoming.source,
                origin: incoming.origin,
                trusted: incoming.trusted,
                message_parts_bytes: incoming.bytes,
            })
            .await?;
        let outcome = self.attempt(id, &incoming).await?;
        self.runner.quiesce().await?;
        self.working.set(false);
        let ending = Ending::of(outcome, &self.agent);
        if let Err(errno) = self.directory.write_result(&ending.result) {
            // The record is a convenience for programs; the task's outcome does not depend on it.
            eprintln!("sandbox-host: out/result.txt could not be written: {errno}");
        }
        self.record_end(id, &ending, started).await?;
        self.broker.task_ended(id).await?;
        if ending.exit_status != ExitStatus::Ok && self.worst.get().is_none() {
            self.worst.set(Some(ending.exit_status));
        }
        self.tasks.borrow_mut().advance(id, ending.state, Some(ending.message), ending.response);
        self.changed();
        Ok(())
    }

    /// The attempt, unless a cancel comes first.
    async fn attempt(&self, id: &str, incoming: &Incoming) -> Result<Outcome, Fault> {
        if incoming.text.trim().is_empty() {
            let reason = format!("the task is empty; nothing was sent to the model {}", self.agent.model);
            return Ok(Outcome::Failed { turn: None, cause: FailureCause::RuntimeError, reason });
        }
        let text = if incoming.trusted {
            incoming.text.clone()
        } else {
            fence(&format!("task:{}", origin_word(incoming.origin)), &incoming.text)
        };
        let canceled = || self.is_canceled(id).then_some(());
        tokio::select! {
            biased;
            () = self.when(canceled) => Ok(Outcome::Canceled),
            spent = self.when(|| self.budget.spent()) => Ok(self.spent(spent)),
            outcome = agent_loop::attempt(self, id, &text) => outcome,
        }
    }

    /// How a task ends that ran while too much was kept.
    fn spent(&self, spent: WorkdirSpent) -> Outcome {
        let reason = format!("E-RUN-013: {}", self.budget.reason(spent));
        Outcome::Failed { turn: self.turn.get(), cause: FailureCause::RuntimeError, reason }
    }

    /// Whether a task was cancelled, or everything is.
    pub(crate) fn is_canceled(&self, id: &str) -> bool {
        self.stopping.get() || self.tasks.borrow().get(id).is_some_and(|task| task.cancel)
    }

    async fn record_end(&self, id: &str, ending: &Ending, started: Instant) -> Result<(), Fault> {
        let task_id = id.to_owned();
        match &ending.failure {
            Some((turn, cause, reason)) => {
                let event = Event::TaskFailed { task_id, turn: *turn, cause: *cause, reason: reason.clone() };
                self.broker.event(event).await?;
            }
            None if ending.state == State::Canceled => {
                let phase = match self.phase.get() {
                    Phase::Turn => CancelPhase::Turn,
                    Phase::Inference => CancelPhase::Inference,
                };
                self.broker.event(Event::TaskCanceled { task_id, turn: self.turn.get(), phase }).await?;
            }
            None => {}
        }
        let counters = *self.counters.borrow();
        {
            let mut totals = self.totals.borrow_mut();
            totals.turns = totals.turns.saturating_add(counters.turns);
            totals.input_tokens = totals.input_tokens.saturating_add(counters.input_tokens);
            totals.output_tokens = totals.output_tokens.saturating_add(counters.output_tokens);
            totals.tool_calls = totals.tool_calls.saturating_add(counters.tool_calls);
            totals.shell_calls = totals.shell_calls.saturating_add(counters.shell_calls);
        }
        self.broker
            .event(Event::TaskEnd {
                task_id: id.to_owned(),
                exit_status: ending.exit_status,
                duration_ms: millis(started.elapsed()),
                turns: counters.turns,
                input_tokens: counters.input_tokens,
                output_tokens: counters.output_tokens,
                tool_calls: counters.tool_calls,
                shell_calls: counters.shell_calls,
            })
            .await
    }
}

/// A request under way.
pub(crate) struct Answering<'a>(&'a Session);

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.0.answers.set(self.0.answers.get().saturating_sub(1));
        self.0.changed();
    }
}

fn own_task(text: String) -> Incoming {
    Incoming {
        context_id: fresh("ctx"),
        bytes: text.len() as u64,
        text,
        source: TaskSource::TaskMd,
        origin: Origin::User,
        trusted: true,
    }
}

/// The trace's word for an origin.
fn origin_word(origin: Origin) -> &'static str {
    match origin {
        Origin::User => "user",
        Origin::Peer => "peer",
        Origin::Event => "event",
        Origin::Completion => "completion",
    }
}
