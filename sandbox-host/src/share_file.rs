//! The tool `share-file`: a handle of one file for one peer. The peer's card says whom the handle is for; the broker mints.

use std::time::Duration;

use handle::Address;
use ipc::edge::host_broker::{Event, MintFailure};
use ipc::edge::host_egress::Purpose;
use ipc::types::RelPath;
use serde_json::{Value, json};

use crate::card::{MAX_CARD, audience_of};
use crate::fault::Fault;
use crate::http::{EgressLink, ask_peer, read_whole};
use crate::session::Session;
use crate::text::{RECORDED, clip};
use crate::tools::{Told, text_argument};

/// Its name.
pub(crate) const NAME: &str = "share-file";

/// How long the card may take at most, and how long the broker.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of a path argument; no path a kernel takes is that long, percent-encoded or not.
const MAX_PATH: usize = 16 * 1024;

/// What the model is told of it.
pub(crate) fn tool() -> Value {
    json!({
        "name": NAME,
        "parameters": {
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "The file, relative to the folder of shared files."},
                "peer": {
                    "type": "string",
                    "description": "The address of the capsule that may fetch it: host:port or an http(s) URL.",
                },
                "ttl": {
                    "type": "string",
                    "description": "How long the handle is valid, for example 90s, 15m or 2h; never longer than allowed.",
                },
            },
            "required": ["path", "peer"],
        },
        "description": "Makes a handle with which one other capsule, and no one else, can fetch one file. \
                        Send the handle to it in a message.",
    })
}

/// Mints a handle, or says why there is none.
///
/// # Errors
/// [`Fault`] if the session cannot go on.
pub(crate) async fn run(session: &Session, input: &Value) -> Result<Told, Fault> {
    let arguments = text_argument(NAME, input, "path").and_then(|path| {
        let peer = text_argument(NAME, input, "peer")?;
        if path.len() > MAX_PATH {
            Err(format!("the `path` of '{NAME}' is too long"))
        } else {
            Ok((path, peer))
        }
    });
    let (encoded, peer) = match arguments {
        Ok(arguments) => arguments,
        Err(reason) => return Ok(Told::refused(reason)),
    };
    // Before anything of the peer's: no network is touched for a path that is hopeless.
    let Ok(path) = RelPath::from_encoded(encoded) else {
        return Ok(failed(encoded, MintFailure::OutsideRoot));
    };
    let Ok(peer) = Address::of_peer(peer) else {
        return Ok(Told::refused(format!("the `peer` of '{NAME}' is neither host:port nor an http(s) URL")));
    };
    let ttl_ms = match input.get("ttl").map(ttl_ms).transpose() {
        Ok(ttl_ms) => ttl_ms,
        Err(NotADuration) => {
            return Ok(Told::refused(format!(
                "the `ttl` of '{NAME}' is no duration above zero: write for example 90s, 15m or 2h"
            )));
        }
    };
    let patience = PATIENCE.min(Duration::from_secs(session.agent.limits.deadline_seconds));
    let card = tokio::time::timeout(patience, card(&session.caller.egress, &peer, patience)).await;
    let Some(audience) = card.ok().flatten().as_deref().and_then(audience_of) else {
        return Ok(failed(encoded, MintFailure::PeerUnreachable));
    };
    let minted = match session.broker.mint(path, audience.clone(), ttl_ms, PATIENCE).await? {
        Some(Ok(minted)) => minted,
        Some(Err(code)) => return Ok(Told::refused(sentence(code.as_str(), code.message()))),
        None => return Ok(Told::refused(sentence("io_error", "it took too long"))),
    };
    Ok(Told::result(json!({
        "handle": minted.handle,
        "handle_id": minted.handle_id,
        "expires_at_ms": minted.expires_at_ms,
        "audience": audience,
    })))
}

fn sentence(code: &str, why: &str) -> String {
    format!("the file was not shared: {code}: {why}")
}

/// A mint that failed before the broker was asked: it is this process that reports it.
fn failed(path: &str, cause: MintFailure) -> Told {
    let reason = match cause {
        MintFailure::OutsideRoot => sentence("outside_root", "the path leaves the folder of shared files"),
        MintFailure::PeerUnreachable => sentence(
            "peer_unreachable",
            "the peer is not allowed, does not answer or has no usable agent card",
        ),
    };
    let line = Event::PeerHandleMintFailed { path: clip(path, RECORDED), audience: String::new(), cause };
    Told { result: Err(reason), line: Some(line) }
}

/// The bytes of a peer's card; `None` for anything but a whole answer with status 200.
async fn card(egress: &EgressLink, peer: &Address, patience: Duration) -> Option<Vec<u8>> {
    let response = ask_peer(egress, Purpose::Card, peer, patience).await.ok()?;
    if response.status() != http::StatusCode::OK {
        return None;
    }
    read_whole(response.into_body(), MAX_CARD).await
}

/// The value is no duration above zero.
#[derive(Debug, PartialEq, Eq)]
struct NotADuration;

/// Milliseconds of a `ttl`: whole seconds as a number, or the manifest's durations as a text. Whether it is longer than
/// allowed is the broker's business; what cannot be read is never taken for the longest.
fn ttl_ms(value: &Value) -> Result<u64, NotADuration> {
    let seconds = match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => seconds(text),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    seconds.filter(|seconds| *seconds > 0).map(|seconds| seconds.saturating_mul(1000)).ok_or(NotADuration)
}

fn seconds(text: &str) -> Option<u64> {
    let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at_checked(digits_end)?;
    let factor = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_is_a_duration_above_zero_or_an_error() {
        for (value, expected) in [
            (json!("90"), 90_000),
            (json!("90s"), 90_000),
            (json!("15m"), 900_000),
            (json!("2h"), 7_200_000),
            (json!("1d"), 86_400_000),
            (json!("007"), 7_000),
            (json!(60), 60_000),
            (json!(u64::MAX), u64::MAX),
        ] {
            assert_eq!(ttl_ms(&value), Ok(expected), "{value}");
        }
        for bad in [
            json!("0"),
            json!("0s"),
            json!(0),
            json!(-1),
            json!(1.5),
            json!(60.0),
            json!(""),
            json!("s"),
            json!("5 m"),
            json!("+5"),
            json!("-5"),
            json!("1.5h"),
            json!("15M"),
            json!("1w"),
            json!("1h30m"),
            json!("٣"),
            json!("soon"),
            json!("99999999999999999999"),
            json!("18446744073709551615d"),
            json!(null),
            json!(true),
            json!([60]),
            json!({}),
        ] {
            assert_eq!(ttl_ms(&bad), Err(NotADuration), "{bad}");
        }
    }
}
