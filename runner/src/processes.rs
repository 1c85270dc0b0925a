//! The session's processes: programs that go on between calls.
//!
//! A process *runs* until its program is reaped; that is when the host hears `Ended`. What it started may outlive it, in the same
//! leaf, until the process is stopped or the session ends (`docs/decisions.md`, what a started process leaves behind). A process
//! that is *stopping* got SIGTERM and is killed two seconds later; it counts as ended once nothing of it lives.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ipc::edge::host_runner::{MAX_PROCESSES, RunnerToHost, Start};
use ipc::types::RequestId;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::child::{Child, NotStarted};
use crate::command::Allowed;
use crate::leaves::Leaves;
use crate::limits::Exit;
use crate::outbox::Outbox;
use crate::serve::ServeError;

/// Between SIGTERM and SIGKILL (seed: `stop`).
const GRACE: Duration = Duration::from_secs(2);

/// Ended processes whose children may live on; of more, what the oldest left is killed, so that leaves do not run out.
const MAX_LEFT_BEHIND: usize = 8;

/// The table of session processes, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    all: Vec<Process>,
}

#[derive(Debug)]
struct Process {
    id: RequestId,
    child: Child,
    /// Since when it has been asked to end.
    stopping: Option<Instant>,
    /// SIGKILL was needed to end it.
    forced: bool,
    /// The host knows that it ended.
    announced: bool,
}

impl Processes {
    /// Whether a process has this number.
    pub(crate) fn knows(&self, id: RequestId) -> bool {
        self.all.iter().any(|process| process.id == id)
    }

    /// Starts a process. The descriptors are closed here in any case.
    pub(crate) fn start(
        &mut self,
        allowed: &Allowed,
        leaves: &mut Leaves,
        start: &Start,
        descriptors: &[OwnedFd],
    ) -> RunnerToHost {
        let id = start.id;
        let failed = |reason: String| RunnerToHost::Failed { id, reason };
        let [stdin, stdout, stderr] = descriptors else {
            return failed("the request came without its pipes".to_owned());
        };
        if self.all.iter().filter(|process| process.child.ended.is_none()).count() >= MAX_PROCESSES {
            return failed(format!("{MAX_PROCESSES} session processes run already"));
        }
        let standard = (Some(stdin.as_fd()), stdout.as_fd(), stderr.as_fd());
        match Child::start(allowed, leaves, &start.program, standard) {
            Ok(child) => {
                self.all.push(Process { id, child, stopping: None, forced: false, announced: false });
                RunnerToHost::Started { id, env_dropped: allowed.dropped(&start.program.env) }
            }
            Err(NotStarted::NotAllowed) => RunnerToHost::NotAllowed { id },
            Err(NotStarted::Failed(reason)) => failed(reason),
        }
    }

    /// Asks a process to end, or ends what it left behind; a process that is gone is no error.
    ///
    /// # Errors
    /// The kernel refuses to kill the leaf.
    pub(crate) fn stop(&mut self, leaves: &Leaves, id: RequestId, now: Instant) -> Result<(), ServeError> {
        let Some(process) = self.all.iter_mut().find(|process| process.id == id) else { return Ok(()) };
        if process.announced {
            return process.child.kill(leaves, now);
        }
        if process.stopping.is_none() {
            process.child.terminate();
            process.stopping = Some(now);
        }
        Ok(())
    }

    /// Ends a process and all it started at once; a process that is gone is no error.
    ///
    /// # Errors
    /// The kernel refuses to kill the leaf.
    pub(crate) fn kill(&mut self, leaves: &Leaves, id: RequestId, now: Instant) -> Result<(), ServeError> {
        match self.all.iter_mut().find(|process| process.id == id) {
            Some(process) => process.kill(leaves, now),
            None => Ok(()),
        }
    }

    /// The process group of a process that runs.
    pub(crate) fn group(&self, id: RequestId) -> Option<Pid> {
        let process = self.all.iter().find(|process| process.id == id)?;
        process.child.ended.is_none().then_some(process.child.pid)
    }

    /// Notes how a child ended.
    pub(crate) fn reaped(&mut self, pid: Pid, exit: Exit) {
        // A number is used again once its process was reaped, so only one that was not can be meant.
        let running = |process: &&mut Process| process.child.pid == pid && process.child.ended.is_none();
        if let Some(process) = self.all.iter_mut().find(running) {
            process.child.ended = Some(exit);
        }
    }

    /// Moves every process as far as it can go now and appends the ends to be told.
    ///
    /// # Errors
    /// The kernel refuses to kill a leaf or to tell whether it is empty.
    pub(crate) fn settle(
        &mut self,
        leaves: &mut Leaves,
        now: Instant,
        outbox: &mut Outbox,
    ) -> Result<(), ServeError> {
        for mut process in std::mem::take(&mut self.all) {
            if process.kill_at().is_some_and(|at| now >= at) {
                process.kill(leaves, now)?;
            }
            let gone = process.child.is_gone(leaves)?;
            let stuck = process.child.is_stuck(now);
            let by_itself = process.stopping.is_none() && !process.child.is_killed();
            if !process.announced && (gone || stuck || (by_itself && process.child.ended.is_some())) {
                process.announced = true;
                outbox.push(process.end(leaves));
            }
            if gone {
                leaves.give_back(process.child.leaf);
            } else if stuck {
                leaves.give_up(process.child.leaf);
            } else {
                self.all.push(process);
            }
        }
        let left = |process: &&mut Process| process.announced && !process.child.is_killed();
        let count = self.all.iter_mut().filter(left).count();
        for process in self.all.iter_mut().filter(left).take(count.saturating_sub(MAX_LEFT_BEHIND)) {
            process.child.kill(leaves, now)?;
        }
        Ok(())
    }

    /// When something is due although nothing happens.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.all.iter().filter_map(|process| process.child.patience_ends().or(process.kill_at())).min()
    }

    /// `cgroup.events` of every leaf that is waited for; [`Processes::settle`] reads each of them.
    pub(crate) fn watched<'a>(&'a self, leaves: &'a Leaves) -> impl Iterator<Item = BorrowedFd<'a>> {
        let ended = self.all.iter().filter(|process| process.child.ended.is_some());
        ended.filter_map(|process| leaves.events(process.child.leaf))
    }
}

impl Process {
    fn kill(&mut self, leaves: &Leaves, now: Instant) -> Result<(), ServeError> {
        self.forced |= !self.announced;
        self.child.kill(leaves, now)
    }

    /// When its grace is over.
    fn kill_at(&self) -> Option<Instant> {
        if self.child.is_killed() { None } else { self.stopping.map(|since| since + GRACE) }
    }

    fn end(&self, leaves: &Leaves) -> RunnerToHost {
        // One that does not go away was killed all the same.
        let exit_code = self.child.ended.map_or(128 + Signal::SIGKILL as i32, |exit| exit.code);
        let resource_limit = self.child.limit(leaves);
        RunnerToHost::Ended { id: self.id, exit_code, killed: self.forced, resource_limit }
    }
}
