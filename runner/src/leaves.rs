//! Which leaf is whose: a fixed set, used again as soon as a leaf is empty.

use std::os::fd::{BorrowedFd, OwnedFd};

use ipc::types::ResourceLimit;
use nix::sys::signal::Signal;

use crate::leaf::{Leaf, counter, number};
use crate::limits::{self, Before, Counters};
use crate::serve::ServeError;

/// Processes and threads of all programs together.
#[derive(Debug)]
pub(crate) struct Tasks {
    /// `pids.events`
    pub(crate) events: OwnedFd,
    /// `pids.current`
    pub(crate) current: OwnedFd,
    /// `pids.max`
    pub(crate) max: u64,
}

/// All leaves of the session.
#[derive(Debug)]
pub(crate) struct Leaves {
    all: Vec<Leaf>,
    /// Leaves that hold nothing.
    free: Vec<usize>,
    /// Leaves that did not become empty in time; they return when they are.
    stuck: Vec<usize>,
    /// Those of them the broker was not told of yet.
    newly_stuck: Vec<u32>,
    /// Of the scope of all leaves, where they are counted.
    tasks: Option<Tasks>,
    /// How often a leaf was taken.
    taken: u64,
}

impl Leaves {
    pub(crate) fn new(all: Vec<Leaf>, tasks: Option<Tasks>) -> Self {
        let free = (0..all.len()).rev().collect();
        Leaves { all, free, stuck: vec![], newly_stuck: vec![], tasks, taken: 0 }
    }

    /// Takes a leaf that holds nothing, if there is one.
    pub(crate) fn take(&mut self) -> Option<usize> {
        let leaf = self.free.pop()?;
        self.taken += 1;
        Some(leaf)
    }

    /// Whether there is no room for one task more. The kernel itself refuses a fork there, but not that a process which was forked
    /// outside joins.
    pub(crate) fn are_full(&self) -> bool {
        let full = |tasks: &Tasks| number(&tasks.current).is_some_and(|current| current >= tasks.max);
        self.tasks.as_ref().is_some_and(full)
    }

    /// What is to be known of a leaf that was just taken, so that a limit can be named later.
    pub(crate) fn before(&self, leaf: usize) -> Before {
        Before {
            counters: self.counters(leaf),
            taken: self.taken,
            alone: self.free.len() + 1 == self.all.len(),
        }
    }

    /// The one limit that the call of a leaf is known to have hit.
    pub(crate) fn proven(
        &self,
        leaf: usize,
        before: &Before,
        signal: Option<Signal>,
    ) -> Option<ResourceLimit> {
        limits::proven(before, self.counters(leaf), self.taken, signal)
    }

    fn counters(&self, leaf: usize) -> Counters {
        let own = self.all.get(leaf).map(Leaf::counters).unwrap_or_default();
        let scope = self.tasks.as_ref().and_then(|tasks| counter(&tasks.events, "max"));
        let pids = own.pids.zip(scope).map(|(leaf, scope)| leaf.saturating_add(scope));
        Counters { pids, ..own }
    }

    /// Returns a leaf that is empty.
    pub(crate) fn give_back(&mut self, leaf: usize) {
        self.free.push(leaf);
    }

    /// Returns a leaf that was killed and is not empty.
    pub(crate) fn give_up(&mut self, leaf: usize) {
        self.stuck.push(leaf);
        self.newly_stuck.extend(u32::try_from(leaf));
    }

    /// Looks whether a leaf that was given up can be used again.
    ///
    /// # Errors
    /// As [`Leaves::is_empty`].
    pub(crate) fn recover(&mut self) -> Result<(), ServeError> {
        for leaf in std::mem::take(&mut self.stuck) {
            if self.is_empty(leaf)? {
                self.free.push(leaf);
            } else {
                self.stuck.push(leaf);
            }
        }
        Ok(())
    }

    /// The leaves that were given up since the last call.
    pub(crate) fn take_stuck(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.newly_stuck)
    }

    /// `cgroup.procs` of a leaf.
    pub(crate) fn procs(&self, leaf: usize) -> Option<BorrowedFd<'_>> {
        self.all.get(leaf).map(Leaf::procs)
    }

    /// `cgroup.events` of a leaf.
    pub(crate) fn events(&self, leaf: usize) -> Option<BorrowedFd<'_>> {
        self.all.get(leaf).map(Leaf::events)
    }

    /// `cgroup.events` of the leaves that were given up.
    pub(crate) fn stuck_events(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.stuck.iter().filter_map(|leaf| self.events(*leaf))
    }

    /// Sends SIGKILL to all that lives in a leaf.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn kill(&self, leaf: usize) -> Result<(), ServeError> {
        self.all.get(leaf).map_or(Ok(()), Leaf::kill).map_err(ServeError::system("kill a cgroup leaf"))
    }

    /// Whether nothing lives in a leaf.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub(crate) fn is_empty(&self, leaf: usize) -> Result<bool, ServeError> {
        self.all.get(leaf).map_or(Ok(true), Leaf::is_empty).map_err(ServeError::system("read cgroup.events"))
    }

    /// The end of the session: kills every leaf, in use or not.
    pub(crate) fn kill_all(&self) {
        for leaf in &self.all {
            // A leaf that cannot be killed ends with this process, which is pid 1.
            let _ = leaf.kill();
        }
    }
}
