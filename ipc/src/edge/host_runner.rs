//! sandbox-host ↔ runner: programs.

use serde::{Deserialize, Serialize};

use crate::channel::Message;
use crate::types::{RequestId, ResourceLimit};

/// The most session processes that run at one time (seed: `start`). Sandbox-host refuses the next one by rule; the runner
/// starts none, whatever it is asked.
pub const MAX_PROCESSES: usize = 8;

/// Sandbox-host to runner.
#[derive(Debug, Serialize, Deserialize)]
pub enum HostToRunner {
    /// Run a program to its end. Descriptors: stdin to read from if `stdin`, then stdout and stderr to write to; all are
    /// pipes made by the sender, which drains them until they end. When `Finished` arrives, everything the program started
    /// is dead, so both pipes end.
    Run(Run),
    /// Kill this run or session process and everything it started, at once; its `Finished` or `Ended` follows. One that is
    /// over already is no error.
    Kill {
        /// The run or process.
        id: RequestId,
    },
    /// Start a session process. Descriptors: stdin to read from, stdout and stderr to write to, made by the sender. Answered
    /// by `Started`, `NotAllowed` or `Failed`; after `Started`, `Ended` comes once.
    Start(Start),
    /// SIGTERM to the process group of a session process, SIGKILL to all it started two seconds later; its `Ended` follows.
    /// Of one that ended already, what it left behind is killed.
    Stop {
        /// The process.
        id: RequestId,
    },
    /// Connect to a port of loopback on which a process in the group of a session process listens. Answered by `Connected`,
    /// `NotListening`, `NotAccepted` or `Failed`.
    Connect {
        /// The request.
        id: RequestId,
        /// The process.
        process: RequestId,
        /// The port.
        port: u16,
        /// Milliseconds the listener may take.
        timeout_ms: u64,
    },
}

/// A program to run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Run {
    /// The request.
    pub id: RequestId,
    /// What to run.
    pub program: Program,
    /// Whether a stdin descriptor is attached; without one the program reads `/dev/null`.
    pub stdin: bool,
    /// Milliseconds after which the run is killed.
    pub timeout_ms: u64,
}

/// A session process to start.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Start {
    /// The request; it names the process from then on.
    pub id: RequestId,
    /// What to start.
    pub program: Program,
}

/// What is executed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Name as in `capabilities.shell.allow`.
    pub name: String,
    /// Arguments without the program.
    pub args: Vec<String>,
    /// Variables added to the program environment.
    pub env: Vec<(String, String)>,
}

impl Message for HostToRunner {
    const MAX_DESCRIPTORS: usize = 3;

    fn descriptors(&self) -> usize {
        match self {
            HostToRunner::Run(run) => 2 + usize::from(run.stdin),
            HostToRunner::Start(_) => 3,
            HostToRunner::Kill { .. } | HostToRunner::Stop { .. } | HostToRunner::Connect { .. } => 0,
        }
    }
}

/// Runner to sandbox-host: exactly one per `Run`, `Start` and `Connect`, and an `Ended` per `Started`.
#[derive(Debug, Serialize, Deserialize)]
pub enum RunnerToHost {
    /// The program ended, and nothing it started lives.
    Finished {
        /// The run.
        id: RequestId,
        /// Exit code, 128 + n for signal n.
        exit_code: i32,
        /// The time limit passed and everything was killed.
        timed_out: bool,
        /// Names of requested variables that no request may set, sorted: the program ran without them.
        env_dropped: Vec<String>,
        /// The one limit that is known to have been hit.
        resource_limit: Option<ResourceLimit>,
    },
    /// The program is not on the allow-list; nothing ran.
    NotAllowed {
        /// The run or process.
        id: RequestId,
    },
    /// The program could not be started, or the connection could not be made.
    Failed {
        /// The request.
        id: RequestId,
        /// Why, in words of ours.
        reason: String,
    },
    /// The session process runs.
    Started {
        /// The process.
        id: RequestId,
        /// As in `Finished`.
        env_dropped: Vec<String>,
    },
    /// The session process ended. After `Stop` and `Kill`, nothing it started lives; otherwise its children may.
    Ended {
        /// The process.
        id: RequestId,
        /// Exit code, 128 + n for signal n.
        exit_code: i32,
        /// SIGKILL was needed: something still lived two seconds after `Stop`, or `Kill` came before the end.
        killed: bool,
        /// As in `Finished`.
        resource_limit: Option<ResourceLimit>,
    },
    /// A connection. Descriptor: the connected, non-blocking TCP socket.
    Connected {
        /// The request.
        id: RequestId,
    },
    /// No process in the group listens on the port, or others listen there, too.
    NotListening {
        /// The request.
        id: RequestId,
    },
    /// The listener took no connection in time.
    NotAccepted {
        /// The request.
        id: RequestId,
    },
}

impl RunnerToHost {
    /// The run, process or request it is about.
    #[must_use]
    pub fn id(&self) -> RequestId {
        match self {
            RunnerToHost::Finished { id, .. }
            | RunnerToHost::NotAllowed { id }
            | RunnerToHost::Failed { id, .. }
            | RunnerToHost::Started { id, .. }
            | RunnerToHost::Ended { id, .. }
            | RunnerToHost::Connected { id }
            | RunnerToHost::NotListening { id }
            | RunnerToHost::NotAccepted { id } => *id,
        }
    }
}

impl Message for RunnerToHost {
    const MAX_DESCRIPTORS: usize = 1;

    fn descriptors(&self) -> usize {
        usize::from(matches!(self, RunnerToHost::Connected { .. }))
    }
}
