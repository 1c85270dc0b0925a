//! Which tasks are let in, which is next, and when no more will come: no I/O, no time.

use std::collections::VecDeque;

use ipc::edge::host_broker::Acceptance;

/// Refused because of what runs or waits already.
pub(crate) const BUSY: &str = "task rejected: capsule is busy";
/// Refused because the session takes nothing more.
pub(crate) const CLOSING: &str = "task rejected: the session is closing";

/// Tasks that wait.
#[derive(Debug)]
pub(crate) struct Queue {
    acceptance: Acceptance,
    sleeps: bool,
    depth: usize,
    waiting: VecDeque<Waiting>,
    admitted: u64,
    closed: bool,
}

#[derive(Debug)]
struct Waiting {
    id: String,
    /// Its arrival is on record, so it may start.
    ready: bool,
}

impl Queue {
    pub(crate) fn new(acceptance: Acceptance, sleeps: bool, depth: u32) -> Self {
        Queue {
            acceptance,
            sleeps,
            depth: depth as usize,
            waiting: VecDeque::new(),
            admitted: 0,
            closed: false,
        }
    }

    /// Lets the launch's own task in, whatever the acceptance.
    pub(crate) fn admit_own(&mut self, id: &str) {
        self.admitted += 1;
        self.waiting.push_back(Waiting { id: id.to_owned(), ready: true });
    }

    /// Lets a task in that came over A2A; it starts only after [`Queue::ready`].
    ///
    /// # Errors
    /// The terminal status text of the refused task.
    pub(crate) fn admit(&mut self, id: &str) -> Result<(), &'static str> {
        if self.closed {
            return Err(CLOSING);
        }
        let room = match self.acceptance {
            Acceptance::None => false,
            Acceptance::Single => self.admitted == 0,
            Acceptance::Queue => self.waiting.len() < self.depth,
        };
        if !room {
            return Err(BUSY);
        }
        self.admitted += 1;
        self.waiting.push_back(Waiting { id: id.to_owned(), ready: false });
        Ok(())
    }

    /// An admitted task may start.
    pub(crate) fn ready(&mut self, id: &str) {
        for waiting in &mut self.waiting {
            if waiting.id == id {
                waiting.ready = true;
            }
        }
    }

    /// Takes the next task, in order of arrival.
    pub(crate) fn next(&mut self) -> Option<String> {
        if self.waiting.front()?.ready { self.waiting.pop_front().map(|waiting| waiting.id) } else { None }
    }

    /// Takes a waiting task out; false if it does not wait.
    pub(crate) fn remove(&mut self, id: &str) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|waiting| waiting.id != id);
        self.waiting.len() < before
    }

    /// Whether no task will run after the one that just ended (`spec: Lifecycle keys`).
    pub(crate) fn is_over(&self) -> bool {
        match self.acceptance {
            Acceptance::None | Acceptance::Single => true,
            Acceptance::Queue => !self.sleeps && self.waiting.is_empty(),
        }
    }

    /// Whether an idle session waits for its next task without limit.
    pub(crate) fn waits_forever(&self) -> bool {
        self.acceptance == Acceptance::Queue && self.sleeps
    }

    /// Whether a task can still come.
    pub(crate) fn takes_tasks(&self) -> bool {
        self.acceptance != Acceptance::None
    }

    /// Lets nothing in any more and gives up what waits.
    pub(crate) fn close(&mut self) -> Vec<String> {
        self.closed = true;
        self.waiting.drain(..).map(|waiting| waiting.id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(acceptance: Acceptance, sleeps: bool, depth: u32) -> Queue {
        Queue::new(acceptance, sleeps, depth)
    }

    #[test]
    fn acceptance_decides_who_is_let_in() {
        let mut none = queue(Acceptance::None, false, 9);
        assert_eq!(none.admit("a"), Err(BUSY));
        none.admit_own("own");
        assert_eq!(none.next().as_deref(), Some("own"));
        assert!(none.is_over());

        let mut single = queue(Acceptance::Single, true, 9);
        assert_eq!(single.admit("a"), Ok(()));
        assert_eq!(single.admit("b"), Err(BUSY));
        single.ready("a");
        assert_eq!(single.next().as_deref(), Some("a"));
        assert_eq!(single.admit("b"), Err(BUSY), "one task in total");
        assert!(single.is_over(), "single never sleeps");

        let mut with_own = queue(Acceptance::Single, false, 9);
        with_own.admit_own("own");
        assert_eq!(with_own.admit("a"), Err(BUSY));

        let mut two = queue(Acceptance::Queue, true, 2);
        assert_eq!((two.admit("a"), two.admit("b"), two.admit("c")), (Ok(()), Ok(()), Err(BUSY)));
        assert_eq!(two.next(), None, "its arrival is not on record yet");
        two.ready("a");
        two.ready("b");
        assert_eq!(two.next().as_deref(), Some("a"));
        assert_eq!(two.admit("d"), Ok(()), "the running task does not count");
        assert!(!two.is_over());
    }

    #[test]
    fn a_queue_that_does_not_sleep_runs_down() {
        let mut queue = queue(Acceptance::Queue, false, 2);
        queue.admit("a").unwrap();
        queue.ready("a");
        assert!(!queue.is_over());
        assert_eq!(queue.next().as_deref(), Some("a"));
        assert!(queue.is_over());
    }

    #[test]
    fn a_waiting_task_can_leave_and_a_closed_queue_lets_nobody_in() {
        let mut queue = queue(Acceptance::Queue, true, 1);
        queue.admit("a").unwrap();
        assert!(queue.remove("a") && !queue.remove("a"));
        queue.admit("b").unwrap();
        assert_eq!(queue.close(), ["b"]);
        assert_eq!(queue.admit("c"), Err(CLOSING));
    }
}
