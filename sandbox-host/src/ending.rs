//! What the end of an attempt means: to clients, to the trace, to programs.

use ipc::edge::host_broker::{Agent, ExitStatus, FailureCause};

use crate::agent_loop::Outcome;
use crate::tasks::State;

/// What an outcome means to everybody who is told.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) state: State,
    pub(crate) exit_status: ExitStatus,
    /// `status.message`.
    pub(crate) message: String,
    /// `out/result.txt`.
    pub(crate) result: String,
    pub(crate) response: Option<String>,
    pub(crate) failure: Option<(Option<u32>, FailureCause, String)>,
}

impl Ending {
    pub(crate) fn of(outcome: Outcome, agent: &Agent) -> Self {
        match outcome {
            Outcome::Answered(text) => Ending {
                state: State::Completed,
                exit_status: ExitStatus::Ok,
                message: "task completed".into(),
                result: text.clone(),
                response: Some(text).filter(|text| !text.is_empty()),
                failure: None,
            },
            Outcome::Failed { turn, cause, reason } => {
                let word = match cause {
                    FailureCause::DriverError => "driver_error",
                    FailureCause::MalformedResponse => "malformed_response",
                    FailureCause::RuntimeError => "runtime_error",
                };
                Ending {
                    state: State::Failed,
                    exit_status: ExitStatus::Failed,
                    message: format!("task failed ({word}): {reason}"),
                    result: format!("error: {reason}"),
                    response: None,
                    failure: Some((turn, cause, reason)),
                }
            }
            Outcome::MaxTurns { turns } => {
                let reason =
                    format!("the task used {turns} of {} turns (inference.max_turns)", agent.max_turns);
                Ending {
                    state: State::Failed,
                    exit_status: ExitStatus::MaxTurnsReached,
                    message: format!("task failed: {reason}"),
                    result: format!("error: {reason}"),
                    response: None,
                    failure: None,
                }
            }
            Outcome::Canceled => Ending {
                state: State::Canceled,
                exit_status: ExitStatus::Canceled,
                message: "task canceled".into(),
                result: "canceled: the task was canceled before it completed, so it has no result".into(),
                response: None,
                failure: None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::agent;

    #[test]
    fn every_outcome_has_its_state_and_its_words() {
        let agent = agent();
        let failed =
            Outcome::Failed { turn: Some(1), cause: FailureCause::MalformedResponse, reason: "bad".into() };
        for (outcome, state, status, message, result, response) in [
            (
                Outcome::Answered("hi".into()),
                State::Completed,
                ExitStatus::Ok,
                "task completed",
                "hi",
                Some("hi"),
            ),
            (Outcome::Answered(String::new()), State::Completed, ExitStatus::Ok, "task completed", "", None),
            (
                failed,
                State::Failed,
                ExitStatus::Failed,
                "task failed (malformed_response): bad",
                "error: bad",
                None,
            ),
            (
                Outcome::MaxTurns { turns: 10 },
                State::Failed,
                ExitStatus::MaxTurnsReached,
                "task failed: the task used 10 of 10 turns (inference.max_turns)",
                "error: the task used 10 of 10 turns (inference.max_turns)",
                None,
            ),
            (
                Outcome::Canceled,
                State::Canceled,
                ExitStatus::Canceled,
                "task canceled",
                "canceled: the task was canceled before it completed, so it has no result",
                None,
            ),
        ] {
            let ending = Ending::of(outcome, &agent);
            assert_eq!((ending.state, ending.exit_status), (state, status));
            assert_eq!((ending.message.as_str(), ending.result.as_str()), (message, result));
            assert_eq!(ending.response.as_deref(), response);
        }
    }
}
