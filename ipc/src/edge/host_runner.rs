//! sandbox-host ↔ runner: programs.

use serde::{Deserialize, Serialize};

use crate::channel::Message;
use crate::types::RequestId;

/// Sandbox-host to runner.
#[derive(Debug, Serialize, Deserialize)]
pub enum HostToRunner {
    /// Run a program to its end. Descriptors: stdin to read from if `stdin`, then stdout and stderr to write to; all are
    /// pipes made by the sender, which drains them until they end. When `Finished` arrives, everything the program started
    /// is dead, so both pipes end.
    Run(Run),
    /// Kill this run and everything it started; its `Finished` follows.
    Kill {
        /// The run.
        id: RequestId,
    },
}

/// A program to run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Run {
    /// The request.
    pub id: RequestId,
    /// Name as in `capabilities.shell.allow`.
    pub program: String,
    /// Arguments without the program.
    pub args: Vec<String>,
    /// Variables added to the program environment.
    pub env: Vec<(String, String)>,
    /// Whether a stdin descriptor is attached; without one the program reads `/dev/null`.
    pub stdin: bool,
    /// Milliseconds after which the run is killed.
    pub timeout_ms: u64,
}

impl Message for HostToRunner {
    const MAX_DESCRIPTORS: usize = 3;

    fn descriptors(&self) -> usize {
        match self {
            HostToRunner::Run(run) => 2 + usize::from(run.stdin),
            HostToRunner::Kill { .. } => 0,
        }
    }
}

/// Runner to sandbox-host: exactly one per `Run`.
#[derive(Debug, Serialize, Deserialize)]
pub enum RunnerToHost {
    /// The program ended.
    Finished {
        /// The run.
        id: RequestId,
        /// Exit code, 128 + n for signal n.
        exit_code: i32,
        /// The time limit passed and everything was killed.
        timed_out: bool,
    },
    /// The program is not on the allow-list; nothing ran.
    NotAllowed {
        /// The run.
        id: RequestId,
    },
    /// The program could not be started.
    Failed {
        /// The run.
        id: RequestId,
        /// Why, in words of ours.
        reason: String,
    },
}

impl Message for RunnerToHost {
    const MAX_DESCRIPTORS: usize = 0;

    fn descriptors(&self) -> usize {
        0
    }
}
