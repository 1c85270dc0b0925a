//! Tasks and their states: what may follow what, and what clients are told.

use std::collections::{HashMap, VecDeque};
use std::time::SystemTime;

use ipc::edge::host_broker::{Origin, TaskSource};

/// Finished tasks that can still be asked for; older ones are forgotten.
const REMEMBERED: usize = 1000;

/// A task's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Submitted,
    Working,
    Completed,
    Failed,
    Canceled,
    Rejected,
}

impl State {
    /// The wire word.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            State::Submitted => "TASK_STATE_SUBMITTED",
            State::Working => "TASK_STATE_WORKING",
            State::Completed => "TASK_STATE_COMPLETED",
            State::Failed => "TASK_STATE_FAILED",
            State::Canceled => "TASK_STATE_CANCELED",
            State::Rejected => "TASK_STATE_REJECTED",
        }
    }

    /// Whether nothing follows.
    pub(crate) fn is_terminal(self) -> bool {
        matches!(self, State::Completed | State::Failed | State::Canceled | State::Rejected)
    }

    /// Whether `next` may follow (`spec: State machine`).
    fn may_become(self, next: State) -> bool {
        match self {
            State::Submitted => matches!(next, State::Working | State::Canceled | State::Rejected),
            State::Working => matches!(next, State::Completed | State::Failed | State::Canceled),
            State::Completed | State::Failed | State::Canceled | State::Rejected => false,
        }
    }
}

/// A task as it came in.
#[derive(Debug, Clone)]
pub(crate) struct Incoming {
    pub(crate) context_id: String,
    pub(crate) text: String,
    pub(crate) bytes: u64,
    pub(crate) source: TaskSource,
    pub(crate) origin: Origin,
    pub(crate) trusted: bool,
}

/// A task.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) id: String,
    pub(crate) incoming: Incoming,
    pub(crate) state: State,
    /// When it took this state.
    pub(crate) changed: SystemTime,
    /// The terminal status message.
    pub(crate) message: Option<String>,
    /// The answer of a completed task.
    pub(crate) response: Option<String>,
    /// A cancel was accepted; it wins over whatever the loop comes to.
    pub(crate) cancel: bool,
}

/// Every task that is not forgotten.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    by_id: HashMap<String, Task>,
    finished: VecDeque<String>,
}

impl Tasks {
    /// Takes a task in as submitted and names it.
    pub(crate) fn submit(&mut self, incoming: Incoming) -> String {
        let id = crate::ids::fresh("tsk");
        let task = Task {
            id: id.clone(),
            incoming,
            state: State::Submitted,
            changed: SystemTime::now(),
            message: None,
            response: None,
            cancel: false,
        };
        self.by_id.insert(id.clone(), task);
        id
    }

    pub(crate) fn get(&self, id: &str) -> Option<&Task> {
        self.by_id.get(id)
    }

    /// Notes that a cancel was accepted.
    pub(crate) fn cancel(&mut self, id: &str) {
        if let Some(task) = self.by_id.get_mut(id) {
            task.cancel = true;
        }
    }

    /// Moves a task to its next state; false, and nothing changes, if that may not follow.
    pub(crate) fn advance(
        &mut self,
        id: &str,
        next: State,
        message: Option<String>,
        response: Option<String>,
    ) -> bool {
        let Some(task) = self.by_id.get_mut(id).filter(|task| task.state.may_become(next)) else {
            return false;
        };
        task.state = next;
        task.changed = SystemTime::now();
        task.message = message;
        task.response = response;
        if next.is_terminal() {
            task.incoming.text = String::new();
            self.finished.push_back(id.to_owned());
            if self.finished.len() > REMEMBERED
                && let Some(oldest) = self.finished.pop_front()
            {
                self.by_id.remove(&oldest);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn incoming() -> Incoming {
        Incoming {
            context_id: "ctx_1".into(),
            text: "text".into(),
            bytes: 4,
            source: TaskSource::A2a,
            origin: Origin::Event,
            trusted: false,
        }
    }

    #[test]
    fn only_the_listed_transitions_happen() {
        use State::{Canceled, Completed, Failed, Rejected, Submitted, Working};
        let all = [Submitted, Working, Completed, Failed, Canceled, Rejected];
        let allowed = [
            (Submitted, Working),
            (Submitted, Canceled),
            (Submitted, Rejected),
            (Working, Completed),
            (Working, Failed),
            (Working, Canceled),
        ];
        for from in all {
            for to in all {
                assert_eq!(from.may_become(to), allowed.contains(&(from, to)), "{from:?} to {to:?}");
                assert!(!(from.is_terminal() && from.may_become(to)));
            }
        }
    }

    #[test]
    fn a_terminal_state_is_final_and_old_tasks_are_forgotten() {
        let mut tasks = Tasks::default();
        let first = tasks.submit(incoming());
        assert!(tasks.advance(&first, State::Working, None, None));
        assert!(tasks.advance(&first, State::Completed, Some("task completed".into()), Some("a".into())));
        assert!(!tasks.advance(&first, State::Failed, None, None));
        assert_eq!(tasks.get(&first).unwrap().response.as_deref(), Some("a"));
        for _ in 0..REMEMBERED {
            let id = tasks.submit(incoming());
            tasks.advance(&id, State::Rejected, None, None);
        }
        assert!(tasks.get(&first).is_none());
        assert_eq!(tasks.by_id.len(), REMEMBERED);
    }
}
