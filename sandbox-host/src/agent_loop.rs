//! One attempt at a task: ask the driver, run the tools it wants, until the turn ends.

use ipc::edge::host_broker::{Capture, Decision, Event, FailureCause, InferenceError, InferenceShas};
use sha2::{Digest, Sha256};

use crate::driver::Answer;
use crate::fault::Fault;
use crate::process::Place;
use crate::prompt;
use crate::response::{NoResponse, Response};
use crate::session::{Phase, Session};
use crate::text::{RECORDED, clip};
use crate::tools;

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The model's answer.
    Answered(String),
    /// The attempt failed.
    Failed { turn: Option<u32>, cause: FailureCause, reason: String },
    /// The budget of turns is used up.
    MaxTurns { turns: u32 },
    /// The task was cancelled.
    Canceled,
}

/// What a turn leads to.
enum Step {
    End(Outcome),
    Tools(Response),
}

/// Works on `task` until it is answered, fails, or the turns are used up.
///
/// # Errors
/// [`Fault`] if the session cannot go on.
pub(crate) async fn attempt(session: &Session, task_id: &str, task: &str) -> Result<Outcome, Fault> {
    let mut messages = vec![prompt::user_message(task)];
    for turn in 0..session.agent.max_turns {
        let request = prompt::request(&session.agent, &session.system, &session.tools, &messages);
        session.phase.set(Phase::Inference);
        let place = Place { task_id: Some(task_id.to_owned()), turn: Some(turn), tool: None };
        let answer = session
            .caller
            .call(&session.agent, &session.directory, &session.agent.driver, request, place)
            .await;
        session.phase.set(Phase::Turn);
        session.turn.set(Some(turn));
        let response = match answer {
            Ok(answer) => {
                Response::read(&answer).map(|response| (response, answer)).map_err(|error| match error {
                    NoResponse::Failed(reason) => {
                        (InferenceError::DriverError, FailureCause::DriverError, reason)
                    }
                    NoResponse::Malformed(reason) => {
                        (InferenceError::MalformedResponse, FailureCause::MalformedResponse, reason)
                    }
                })
            }
            Err(error) => Err((InferenceError::DriverFailed, FailureCause::DriverError, error.to_string())),
        };
        session.counters.borrow_mut().turns += 1;
        let step = match response {
            Ok((response, answer)) => {
                report(session, task_id, turn, &response, &answer).await?;
                judge(response, turn)
            }
            Err((code, cause, reason)) => {
                let reason = clip(&reason, 2000);
                let error = Some((code, reason.clone()));
                session.broker.event(failed_inference(task_id, turn, error)).await?;
                Step::End(Outcome::Failed { turn: Some(turn), cause, reason })
            }
        };
        let response = match step {
            Step::End(outcome) => return Ok(outcome),
            Step::Tools(response) => response,
        };
        let calls = match response.tool_calls() {
            Ok(calls) => calls,
            Err(reason) => return Ok(malformed(turn, &reason)),
        };
        messages.push(prompt::assistant_message(&response.content));
        for call in calls {
            let reply = tools::dispatch(session, &call, turn, task_id).await?;
            messages.push(prompt::tool_message(&call.id, reply.is_error, &reply.text));
        }
    }
    Ok(Outcome::MaxTurns { turns: session.agent.max_turns })
}

/// Where a response leads (`spec: One attempt`).
fn judge(response: Response, turn: u32) -> Step {
    match response.stop_reason.as_str() {
        "end_turn" => Step::End(Outcome::Answered(response.text())),
        "max_tokens" => {
            let text = format!("{}\n[the answer was cut at the model's token limit]", response.text());
            Step::End(Outcome::Answered(text))
        }
        "tool_call" => match response.tool_calls() {
            Ok(calls) if calls.is_empty() => Step::End(malformed(turn, "the model asked for no tool")),
            Ok(_) => Step::Tools(response),
            Err(reason) => Step::End(malformed(turn, &reason)),
        },
        "error" => Step::End(Outcome::Failed {
            turn: Some(turn),
            cause: FailureCause::DriverError,
            reason: clip(response.error.as_deref().unwrap_or("driver returned error"), 2000),
        }),
        other => Step::End(Outcome::Failed {
            turn: Some(turn),
            cause: FailureCause::MalformedResponse,
            reason: format!("unsupported stop_reason '{}'", clip(other, 100)),
        }),
    }
}

fn malformed(turn: u32, reason: &str) -> Outcome {
    Outcome::Failed { turn: Some(turn), cause: FailureCause::MalformedResponse, reason: reason.to_owned() }
}

/// Reports a call that gave a response, and counts its tokens.
async fn report(
    session: &Session,
    task_id: &str,
    turn: u32,
    response: &Response,
    answer: &Answer,
) -> Result<(), Fault> {
    {
        let mut counters = session.counters.borrow_mut();
        counters.input_tokens = counters.input_tokens.saturating_add(response.input_tokens.unwrap_or(0));
        counters.output_tokens = counters.output_tokens.saturating_add(response.output_tokens.unwrap_or(0));
    }
    let decision = match response.stop_reason.as_str() {
        "tool_call" => Decision::ToolCall,
        "end_turn" => Decision::EndTurn,
        "error" => Decision::Error,
        _ => Decision::Text,
    };
    let error = (decision == Decision::Error).then(|| {
        let text = response.error.as_deref().unwrap_or("driver returned error");
        (InferenceError::DriverError, clip(text, 2000))
    });
    let payload = answer.data.as_deref().or(answer.summary.as_deref()).unwrap_or_default();
    let shas = (session.agent.capture != Capture::None).then(|| InferenceShas {
        system: sha256(&session.system),
        tools: sha256(&session.tools.to_string()),
        response: sha256(payload),
    });
    let calls = response.tool_calls().unwrap_or_default();
    session
        .broker
        .event(Event::Inference {
            turn,
            task_id: Some(task_id.to_owned()),
            input_tokens_actual: response.input_tokens,
            output_tokens_actual: response.output_tokens,
            decision,
            stop_reason: clip(&response.stop_reason, 200),
            tool_name: calls.first().map(|call| clip(&call.name, RECORDED)),
            shas,
            error,
        })
        .await
}

fn failed_inference(task_id: &str, turn: u32, error: Option<(InferenceError, String)>) -> Event {
    Event::Inference {
        turn,
        task_id: Some(task_id.to_owned()),
        input_tokens_actual: None,
        output_tokens_actual: None,
        decision: Decision::Error,
        stop_reason: "error".to_owned(),
        tool_name: None,
        shas: None,
        error,
    }
}

fn sha256(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(stop_reason: &str, content: serde_json::Value) -> Response {
        Response {
            stop_reason: stop_reason.into(),
            content: content.as_array().cloned().unwrap_or_default(),
            error: None,
            input_tokens: None,
            output_tokens: None,
        }
    }

    #[test]
    fn every_stop_reason_leads_somewhere() {
        let text = serde_json::json!([{"type": "text", "text": "hi"}]);
        let call = serde_json::json!([{"type": "tool_call", "id": "1", "name": "x", "input": {}}]);
        let failed = |cause, reason: &str| Outcome::Failed { turn: Some(3), cause, reason: reason.into() };
        let cases = [
            (response("end_turn", text.clone()), Some(Outcome::Answered("hi".into()))),
            (
                response("max_tokens", text.clone()),
                Some(Outcome::Answered("hi\n[the answer was cut at the model's token limit]".into())),
            ),
            (response("tool_call", call), None),
            (
                response("tool_call", text.clone()),
                Some(failed(FailureCause::MalformedResponse, "the model asked for no tool")),
            ),
            (
                response("error", text.clone()),
                Some(failed(FailureCause::DriverError, "driver returned error")),
            ),
            (
                response("pause", text),
                Some(failed(FailureCause::MalformedResponse, "unsupported stop_reason 'pause'")),
            ),
        ];
        for (response, expected) in cases {
            let word = response.stop_reason.clone();
            let got = match judge(response, 3) {
                Step::End(outcome) => Some(outcome),
                Step::Tools(_) => None,
            };
            assert_eq!(got, expected, "{word}");
        }
    }
}
