//! The runs that are going on: which leaf each has, when it must be over, and when it may be called finished.
//!
//! A run is *started*, then *ending* (its leaf was killed: because its program ended, its time ran out or the host asked), then
//! answered. It is answered only when its program was reaped and its leaf is empty, so that nothing it started is alive and
//! no pipe it held is open when the host reads `Finished`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ipc::edge::host_runner::{Run, RunnerToHost};
use ipc::types::{RequestId, ResourceLimit};
use nix::unistd::Pid;

use crate::child::{Child, NotStarted};
use crate::command::Allowed;
use crate::leaves::Leaves;
use crate::limits::Exit;
use crate::outbox::Outbox;
use crate::serve::ServeError;

/// The longest time limit of a run; a request that names more gets this.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// The table of runs.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    active: Vec<Call>,
}

/// One run.
#[derive(Debug)]
struct Call {
    id: RequestId,
    child: Child,
    /// When its time runs out.
    deadline: Instant,
    timed_out: bool,
    env_dropped: Vec<String>,
}

impl Calls {
    /// Whether a run has this number.
    pub(crate) fn knows(&self, id: RequestId) -> bool {
        self.active.iter().any(|call| call.id == id)
    }

    /// Starts a run, or answers at once why not. The descriptors are closed here in any case.
    pub(crate) fn start(
        &mut self,
        allowed: &Allowed,
        leaves: &mut Leaves,
        run: &Run,
        descriptors: Vec<OwnedFd>,
        now: Instant,
    ) -> Option<RunnerToHost> {
        let id = run.id;
        let mut descriptors = descriptors.iter().map(AsFd::as_fd);
        let stdin = if run.stdin { descriptors.next() } else { None };
        let (Some(stdout), Some(stderr)) = (descriptors.next(), descriptors.next()) else {
            let reason = "the request came without its pipes".to_owned();
            return Some(RunnerToHost::Failed { id, reason });
        };
        match Child::start(allowed, leaves, &run.program, (stdin, stdout, stderr)) {
            Ok(child) => {
                let deadline = now + Duration::from_millis(run.timeout_ms).min(LONGEST);
                let env_dropped = allowed.dropped(&run.program.env);
                self.active.push(Call { id, child, deadline, timed_out: false, env_dropped });
                None
            }
            Err(NotStarted::NotAllowed) => Some(RunnerToHost::NotAllowed { id }),
            Err(NotStarted::Failed(reason)) => Some(RunnerToHost::Failed { id, reason }),
        }
    }

    /// Ends a run because the host asks; one that is over already is no error.
    ///
    /// # Errors
    /// The kernel refuses to kill the leaf.
    pub(crate) fn kill(&mut self, leaves: &Leaves, id: RequestId, now: Instant) -> Result<(), ServeError> {
        match self.active.iter_mut().find(|call| call.id == id) {
            Some(call) => call.child.kill(leaves, now),
            None => Ok(()),
        }
    }

    /// Notes how a child ended.
    pub(crate) fn reaped(&mut self, pid: Pid, exit: Exit) {
        // A number is used again once its process was reaped, so only one that was not can be meant.
        let running = |call: &&mut Call| call.child.pid == pid && call.child.ended.is_none();
        if let Some(call) = self.active.iter_mut().find(running) {
            call.child.ended = Some(exit);
        }
    }

    /// Moves every run as far as it can go now and appends the answers of those that are over.
    ///
    /// # Errors
    /// The kernel refuses to kill a leaf or to tell whether it is empty.
    pub(crate) fn settle(
        &mut self,
        leaves: &mut Leaves,
        now: Instant,
        outbox: &mut Outbox,
    ) -> Result<(), ServeError> {
        for mut call in std::mem::take(&mut self.active) {
            let child = &mut call.child;
            if !child.is_killed() {
                call.timed_out = child.ended.is_none() && now >= call.deadline;
                if call.timed_out || child.ended.is_some() {
                    child.kill(leaves, now)?;
                }
            }
            if child.is_killed() && child.is_gone(leaves)? {
                let limit = child.limit(leaves);
                leaves.give_back(child.leaf);
                outbox.push(call.answer(limit));
            } else if child.is_stuck(now) {
                leaves.give_up(child.leaf);
                let reason = "the program was killed but did not go away".to_owned();
                outbox.push(RunnerToHost::Failed { id: call.id, reason });
            } else {
                self.active.push(call);
            }
        }
        Ok(())
    }

    /// When something is due although nothing happens.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.active.iter().map(|call| call.child.patience_ends().unwrap_or(call.deadline)).min()
    }

    /// `cgroup.events` of every leaf that is waited for.
    pub(crate) fn watched<'a>(&'a self, leaves: &'a Leaves) -> impl Iterator<Item = BorrowedFd<'a>> {
        let ending = self.active.iter().filter(|call| call.child.is_killed());
        ending.filter_map(|call| leaves.events(call.child.leaf))
    }
}

impl Call {
    fn answer(self, resource_limit: Option<ResourceLimit>) -> RunnerToHost {
        RunnerToHost::Finished {
            id: self.id,
            exit_code: self.child.ended.map_or(0, |exit| exit.code),
            timed_out: self.timed_out,
            env_dropped: self.env_dropped,
            resource_limit,
        }
    }
}
