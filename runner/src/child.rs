//! One program in its leaf: from its start to the moment nothing of it is left.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use confine::programs::{Start, StartError};
use ipc::edge::host_runner::Program;
use ipc::types::ResourceLimit;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::command::{Allowed, Refusal};
use crate::leaves::Leaves;
use crate::limits::{Before, Exit};
use crate::serve::ServeError;

/// How long a killed leaf may take to become empty.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a caller is told where the limit of tasks is reached.
const FULL: &str =
    "no further process may be started: the session's limit of processes (cgroup_pids_max) is reached";

/// A program that was started.
#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) leaf: usize,
    /// Also the number of its process group, as long as it was not reaped.
    pub(crate) pid: Pid,
    /// How it ended, once it was reaped.
    pub(crate) ended: Option<Exit>,
    /// Since when its leaf is being emptied.
    killed: Option<Instant>,
    before: Before,
}

/// Why a program was not started.
#[derive(Debug)]
pub(crate) enum NotStarted {
    /// It is not on the list.
    NotAllowed,
    /// In words.
    Failed(String),
}

impl Child {
    /// Starts a program in a leaf of its own.
    ///
    /// # Errors
    /// [`NotStarted`]; the leaf is free again.
    pub(crate) fn start(
        allowed: &Allowed,
        leaves: &mut Leaves,
        program: &Program,
        standard: (Option<BorrowedFd<'_>>, BorrowedFd<'_>, BorrowedFd<'_>),
    ) -> Result<Self, NotStarted> {
        let failed = |reason: &str| NotStarted::Failed(reason.to_owned());
        let command = allowed.command(program).map_err(|refusal| match refusal {
            Refusal::NotAllowed => NotStarted::NotAllowed,
            Refusal::Unusable(reason) => failed(reason),
        })?;
        if leaves.are_full() {
            return Err(failed(FULL));
        }
        let (stdin, stdout, stderr) = standard;
        let leaf = leaves.take().ok_or_else(|| failed("too many programs run at the same time"))?;
        let start = Start {
            program: command.program,
            arguments: &command.arguments,
            environment: &command.environment,
            directory: allowed.workdir(),
            stdin,
            stdout,
            stderr,
            leaf: leaves.procs(leaf),
            limits: allowed.limits(),
        };
        let before = leaves.before(leaf);
        match confine::programs::start(&start) {
            Ok(pid) => Ok(Child { leaf, pid: Pid::from_raw(pid), ended: None, killed: None, before }),
            Err(error) => {
                leaves.give_back(leaf);
                Err(NotStarted::Failed(words(&error)))
            }
        }
    }

    /// Kills the leaf and, should it not have got there yet, the child itself.
    ///
    /// # Errors
    /// The kernel refuses to kill the leaf.
    pub(crate) fn kill(&mut self, leaves: &Leaves, now: Instant) -> Result<(), ServeError> {
        leaves.kill(self.leaf)?;
        if self.ended.is_none() {
            // Not reaped, so the number is still this child's.
            let _ = nix::sys::signal::kill(self.pid, Signal::SIGKILL);
        }
        self.killed.get_or_insert(now);
        Ok(())
    }

    /// Asks its process group to end.
    pub(crate) fn terminate(&self) {
        if self.ended.is_none() {
            // Not reaped, so the group is still this child's. What cannot be asked is killed later.
            let _ = nix::sys::signal::killpg(self.pid, Signal::SIGTERM);
        }
    }

    pub(crate) fn is_killed(&self) -> bool {
        self.killed.is_some()
    }

    /// Whether it was reaped and nothing it started lives.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub(crate) fn is_gone(&self, leaves: &Leaves) -> Result<bool, ServeError> {
        Ok(self.ended.is_some() && leaves.is_empty(self.leaf)?)
    }

    /// The one limit it is known to have hit so far.
    pub(crate) fn limit(&self, leaves: &Leaves) -> Option<ResourceLimit> {
        leaves.proven(self.leaf, &self.before, self.ended.and_then(|exit| exit.signal))
    }

    /// Whether it was killed and does not go away.
    pub(crate) fn is_stuck(&self, now: Instant) -> bool {
        self.patience_ends().is_some_and(|at| now >= at)
    }

    /// When a killed leaf counts as stuck.
    pub(crate) fn patience_ends(&self) -> Option<Instant> {
        self.killed.map(|since| since + PATIENCE)
    }
}

/// What a caller is told of a program that did not start.
fn words(error: &StartError) -> String {
    let errno = Errno::from_raw(error.cause.raw_os_error().unwrap_or_default());
    match (error.step, errno) {
        ("exec", Errno::ENOENT) => "the program's file, or the interpreter it names, is not there".to_owned(),
        ("exec", Errno::EACCES | Errno::EPERM) => "the program's file may not be executed".to_owned(),
        ("exec", Errno::ENOEXEC) => "the program's file is in no format that can be executed".to_owned(),
        ("exec", Errno::E2BIG) => "the arguments and the environment are too long".to_owned(),
        ("fork" | "exec", Errno::EAGAIN) => FULL.to_owned(),
        ("fork" | "exec", Errno::ENOMEM) => "there is no memory left to start it".to_owned(),
        _ => format!("the program could not be started ({}: {})", error.step, error.cause),
    }
}
