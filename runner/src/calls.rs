//! The runs that are going on: which leaf each has, when it must be over, and when it may be called finished.
//!
//! A run is *started*, then *ending* (its leaf was killed: because its program ended, its time ran out or the host asked), then
//! answered. It is answered only when its program was reaped and its leaf is empty, so that nothing it started is alive and
//! no pipe it held is open when the host reads `Finished`.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use confine::programs::{Start, StartError};
use ipc::edge::host_runner::{Run, RunnerToHost};
use ipc::types::RequestId;
use nix::errno::Errno;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::command::{Allowed, Refusal};
use crate::leaf::Leaf;
use crate::serve::ServeError;

/// How long a killed leaf may take to become empty.
const PATIENCE: Duration = Duration::from_secs(2);

/// The longest time limit of a run; a request that names more gets this.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// The table of runs over a fixed set of leaves.
#[derive(Debug)]
pub(crate) struct Calls {
    allowed: Allowed,
    leaves: Vec<Leaf>,
    /// Leaves that hold nothing.
    free: Vec<usize>,
    /// Leaves that did not become empty in time; they return when they are.
    stuck: Vec<usize>,
    /// Those of them the broker was not told of yet.
    newly_stuck: Vec<u32>,
    active: Vec<Call>,
}

/// One run.
#[derive(Debug)]
struct Call {
    id: RequestId,
    leaf: usize,
    pid: Pid,
    /// When its time runs out.
    deadline: Instant,
    timed_out: bool,
    /// Since when its leaf is being emptied.
    killed: Option<Instant>,
    /// How its program ended, once it was reaped.
    ended: Option<i32>,
}

impl Calls {
    pub(crate) fn new(allowed: Allowed, leaves: Vec<Leaf>) -> Self {
        let free = (0..leaves.len()).rev().collect();
        Calls { allowed, leaves, free, stuck: vec![], newly_stuck: vec![], active: vec![] }
    }

    /// Starts a run, or answers at once why not. The descriptors are closed here in any case.
    ///
    /// # Errors
    /// [`ServeError::Reused`].
    pub(crate) fn start(
        &mut self,
        run: &Run,
        descriptors: Vec<OwnedFd>,
        now: Instant,
    ) -> Result<Option<RunnerToHost>, ServeError> {
        let id = run.id;
        if self.active.iter().any(|call| call.id == id) {
            return Err(ServeError::Reused);
        }
        let failed = |reason: &str| Ok(Some(RunnerToHost::Failed { id, reason: reason.to_owned() }));
        let command = match self.allowed.command(run) {
            Ok(command) => command,
            Err(Refusal::NotAllowed) => return Ok(Some(RunnerToHost::NotAllowed { id })),
            Err(Refusal::Unusable(reason)) => return failed(reason),
        };
        let mut descriptors = descriptors.iter().map(AsFd::as_fd);
        let stdin = if run.stdin { descriptors.next() } else { None };
        let (Some(stdout), Some(stderr)) = (descriptors.next(), descriptors.next()) else {
            return failed("the request came without its pipes");
        };
        let Some((index, leaf)) = self.free.last().and_then(|index| Some((*index, self.leaves.get(*index)?)))
        else {
            return failed("too many programs run at the same time");
        };
        let start = Start {
            program: command.program,
            arguments: &command.arguments,
            environment: &command.environment,
            directory: self.allowed.workdir(),
            stdin,
            stdout,
            stderr,
            leaf: Some(leaf.procs()),
            limits: self.allowed.limits(),
        };
        let pid = match confine::programs::start(&start) {
            Ok(pid) => Pid::from_raw(pid),
            Err(error) => return failed(&words(&error)),
        };
        self.free.pop();
        let limit = Duration::from_millis(run.timeout_ms).min(LONGEST);
        self.active.push(Call {
            id,
            leaf: index,
            pid,
            deadline: now + limit,
            timed_out: false,
            killed: None,
            ended: None,
        });
        Ok(None)
    }

    /// Ends a run because the host asks; one that is over already is no error.
    ///
    /// # Errors
    /// The kernel refuses to kill the leaf.
    pub(crate) fn kill(&mut self, id: RequestId, now: Instant) -> Result<(), ServeError> {
        match self.active.iter_mut().find(|call| call.id == id) {
            Some(call) => call.end(&self.leaves, now),
            None => Ok(()),
        }
    }

    /// Reaps everything that ended, adopted orphans too.
    ///
    /// # Errors
    /// The error of `waitpid`.
    pub(crate) fn reap(&mut self) -> std::io::Result<()> {
        loop {
            let (pid, code) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, code),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, 128 + signal as i32),
                Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return Ok(()),
                Ok(_) | Err(Errno::EINTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            if let Some(call) = self.active.iter_mut().find(|call| call.pid == pid) {
                call.ended = Some(code);
            }
        }
    }

    /// Moves every run as far as it can go now and appends the answers of those that are over.
    ///
    /// # Errors
    /// The kernel refuses to kill a leaf or to tell whether it is empty.
    pub(crate) fn settle(
        &mut self,
        now: Instant,
        answers: &mut VecDeque<RunnerToHost>,
    ) -> Result<(), ServeError> {
        for mut call in std::mem::take(&mut self.active) {
            if call.killed.is_none() && call.ended.is_none() && now >= call.deadline {
                call.timed_out = true;
                call.end(&self.leaves, now)?;
            }
            if call.killed.is_none() && call.ended.is_some() {
                call.end(&self.leaves, now)?;
            }
            let empty = call.killed.is_some() && call.ended.is_some() && is_empty(&self.leaves, call.leaf)?;
            if empty {
                self.free.push(call.leaf);
                answers.push_back(call.answer());
            } else if call.killed.is_some_and(|since| now >= since + PATIENCE) {
                self.stuck.push(call.leaf);
                self.newly_stuck.extend(u32::try_from(call.leaf));
                let reason = "the program was killed but did not go away".to_owned();
                answers.push_back(RunnerToHost::Failed { id: call.id, reason });
            } else {
                self.active.push(call);
            }
        }
        for leaf in std::mem::take(&mut self.stuck) {
            if is_empty(&self.leaves, leaf)? {
                self.free.push(leaf);
            } else {
                self.stuck.push(leaf);
            }
        }
        Ok(())
    }

    /// When something is due although nothing happens.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.active.iter().map(|call| call.killed.map_or(call.deadline, |since| since + PATIENCE)).min()
    }

    /// `cgroup.events` of every leaf that is waited for.
    pub(crate) fn watched(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let ending = self.active.iter().filter(|call| call.killed.is_some()).map(|call| call.leaf);
        ending.chain(self.stuck.iter().copied()).filter_map(|leaf| Some(self.leaves.get(leaf)?.events()))
    }

    /// The leaves that got stuck since the last call.
    pub(crate) fn take_stuck(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.newly_stuck)
    }

    /// The end of the session: kills every leaf, in use or not.
    pub(crate) fn kill_all(&self) {
        for leaf in &self.leaves {
            // A leaf that cannot be killed ends with this process, which is pid 1.
            let _ = leaf.kill();
        }
    }
}

impl Call {
    /// Kills the leaf and, should it not have got there yet, the child itself.
    fn end(&mut self, leaves: &[Leaf], now: Instant) -> Result<(), ServeError> {
        if let Some(leaf) = leaves.get(self.leaf) {
            leaf.kill().map_err(ServeError::system("kill a cgroup leaf"))?;
        }
        if self.ended.is_none() {
            // Not reaped, so the number is still this child's.
            let _ = nix::sys::signal::kill(self.pid, nix::sys::signal::Signal::SIGKILL);
        }
        self.killed.get_or_insert(now);
        Ok(())
    }

    fn answer(&self) -> RunnerToHost {
        let exit_code = self.ended.unwrap_or_default();
        RunnerToHost::Finished { id: self.id, exit_code, timed_out: self.timed_out }
    }
}

fn is_empty(leaves: &[Leaf], leaf: usize) -> Result<bool, ServeError> {
    leaves.get(leaf).map_or(Ok(true), Leaf::is_empty).map_err(ServeError::system("read cgroup.events"))
}

/// What a caller is told of a program that did not start.
fn words(error: &StartError) -> String {
    let errno = Errno::from_raw(error.cause.raw_os_error().unwrap_or_default());
    match (error.step, errno) {
        ("exec", Errno::ENOENT) => "the program's file, or the interpreter it names, is not there".to_owned(),
        ("exec", Errno::EACCES | Errno::EPERM) => "the program's file may not be executed".to_owned(),
        ("exec", Errno::ENOEXEC) => "the program's file is in no format that can be executed".to_owned(),
        ("exec", Errno::E2BIG) => "the arguments and the environment are too long".to_owned(),
        ("fork", Errno::EAGAIN) => "no further process may be started".to_owned(),
        _ => format!("the program could not be started ({}: {})", error.step, error.cause),
    }
}
