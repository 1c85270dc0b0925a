//! The tool `fetch-peer-file`: redeems a handle at the peer that sent it. The bytes become a file and never text: nothing a
//! peer says reaches the model but a code, a size, a hash and a sanitised name.

use std::time::Duration;

use handle::{Address, Token, handle_id};
use http::HeaderMap;
use http_body_util::BodyExt;
use ipc::edge::host_broker::{Event, FetchOutcome, FetchPeerFile};
use ipc::edge::host_egress::Purpose;
use ipc::types::{PlaneCode, hex};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use wasmtime_wasi_http::{Error, WasiBody};

use crate::http::{ask_peer, read_whole};
use crate::peer_in::{self, Incoming, NotStored};
use crate::session::Session;
use crate::text::{RECORDED, clip};
use crate::tools::{Told, text_argument};

/// Its name.
pub(crate) const NAME: &str = "fetch-peer-file";

/// Bytes of a handle; a longer one fits no request line.
const MAX_HANDLE: usize = 16 * 1024;
/// Bytes of a refusal that are read.
const MAX_REFUSAL: usize = 4096;

/// What the model is told of it.
pub(crate) fn tool() -> Value {
    json!({
        "name": NAME,
        "parameters": {
            "type": "object",
            "properties": {
                "peer": {
                    "type": "string",
                    "description": "The address of the capsule that sent the handle: host:port or an http(s) URL.",
                },
                "handle": {"type": "string", "description": "The handle as it was sent, beginning with mh1."},
            },
            "required": ["peer", "handle"],
        },
        "description": "Fetches the file that a handle of another capsule stands for and stores it below peer-in/ in the \
                        work folder. The result names the file and does not contain it.",
    })
}

/// A file that was fetched.
struct Fetched {
    path: String,
    bytes: u64,
    sha256: [u8; 32],
    generation: Option<u64>,
}

/// Fetches a file, or says why it did not.
pub(crate) async fn run(session: &Session, settings: &FetchPeerFile, input: &Value) -> Told {
    let arguments = text_argument(NAME, input, "peer").and_then(|peer| {
        let handle = text_argument(NAME, input, "handle")?;
        let address = Address::of_peer(peer)
            .map_err(|_| format!("the `peer` of '{NAME}' is neither host:port nor an http(s) URL"))?;
        Ok((peer, address, handle))
    });
    let (peer, address, handle) = match arguments {
        Ok(arguments) => arguments,
        Err(reason) => return Told::refused(reason),
    };
    let patience = Duration::from_secs(session.agent.limits.deadline_seconds);
    let fetched = tokio::time::timeout(patience, fetch(session, settings, &address, handle, patience)).await;
    let (result, outcome) = match fetched.unwrap_or(Err(FetchOutcome::Unreachable)) {
        Ok(fetched) => {
            let result = result(&fetched, peer);
            let Fetched { path, bytes, sha256, generation: _ } = fetched;
            (Ok(result), FetchOutcome::Stored { path, bytes, sha256 })
        }
        Err(outcome) => (Err(refusal(&outcome)), outcome),
    };
    let line = Event::PeerFileFetch { peer: clip(peer, RECORDED), handle_id: handle_id(handle), outcome };
    Told { result, line: Some(line) }
}

fn result(fetched: &Fetched, peer: &str) -> Value {
    let mut members = Map::new();
    members.insert("path".into(), fetched.path.clone().into());
    members.insert("bytes".into(), fetched.bytes.into());
    members.insert("sha256".into(), hex(&fetched.sha256).into());
    if let Some(generation) = fetched.generation {
        members.insert("generation".into(), generation.into());
    }
    members.insert("peer".into(), peer.into());
    Value::Object(members)
}

/// Code and constant sentence of a fetch that failed.
fn refusal(outcome: &FetchOutcome) -> String {
    let (code, why) = match outcome {
        FetchOutcome::Stored { .. } => ("ok".to_owned(), "it is stored"),
        FetchOutcome::NotAllowed => {
            ("peer_not_allowed".to_owned(), "capabilities.peer_fetch.allow does not list the peer")
        }
        FetchOutcome::Unreachable => ("peer_unreachable".to_owned(), "the peer did not answer or broke off"),
        FetchOutcome::EtagMismatch => {
            ("etag_mismatch".to_owned(), "the bytes are not those the peer announced")
        }
        FetchOutcome::IoError => ("io_error".to_owned(), "it is larger than allowed or could not be stored"),
        FetchOutcome::PathRefused => {
            ("path_refused".to_owned(), "peer-in/ or the file's name in it is taken by something else")
        }
        FetchOutcome::Peer(code) => (code.as_str().to_owned(), code.message()),
        FetchOutcome::Http(status) => (format!("http_{status}"), "the peer's answer is none of a capsule's"),
    };
    format!("the file was not fetched: {code}: {why}")
}

async fn fetch(
    session: &Session,
    settings: &FetchPeerFile,
    peer: &Address,
    handle: &str,
    patience: Duration,
) -> Result<Fetched, FetchOutcome> {
    // It becomes part of a request: nothing is sent that is not a handle's.
    let malformed = FetchOutcome::Peer(PlaneCode::MalformedHandle);
    if handle.len() > MAX_HANDLE {
        return Err(malformed);
    }
    let (token, payload) = Token::parse(handle).map_err(|_| malformed)?;
    let purpose = Purpose::Redeem { handle: token.text().to_owned(), audience: settings.audience.clone() };
    let response = ask_peer(&session.caller.egress, purpose, peer, patience).await;
    let (head, body) = match response {
        Ok(response) => response.into_parts(),
        Err(Error::HttpRequestDenied) => return Err(FetchOutcome::NotAllowed),
        Err(_) => return Err(FetchOutcome::Unreachable),
    };
    if head.status != http::StatusCode::OK {
        let code = read_whole(body, MAX_REFUSAL).await.as_deref().and_then(code_of);
        return Err(code.map_or(FetchOutcome::Http(head.status.as_u16()), FetchOutcome::Peer));
    }
    let announced = Announced::read(&head.headers)?;
    if announced.length.is_some_and(|length| length > settings.max_bytes) {
        return Err(FetchOutcome::IoError);
    }
    let name = format!("{}-{}", handle_id(handle), sanitised(payload.path.as_deref().unwrap_or_default()));
    let mut incoming = Incoming::begin(&session.caller.workdir).map_err(not_stored)?;
    let (bytes, sha256) = receive(body, &mut incoming, settings.max_bytes).await?;
    if announced.length.is_some_and(|length| length != bytes) {
        return Err(FetchOutcome::Unreachable);
    }
    if announced.etag != format!("\"sha256:{}\"", hex(&sha256)) {
        return Err(FetchOutcome::EtagMismatch);
    }
    incoming.store(&name).map_err(not_stored)?;
    Ok(Fetched { path: format!("{}/{name}", peer_in::NAME), bytes, sha256, generation: announced.generation })
}

fn not_stored(error: NotStored) -> FetchOutcome {
    match error {
        NotStored::Refused => FetchOutcome::PathRefused,
        NotStored::Failed(_) => FetchOutcome::IoError,
    }
}

/// Writes a body down as it comes; its length and hash.
async fn receive(
    mut body: WasiBody,
    incoming: &mut Incoming,
    limit: u64,
) -> Result<(u64, [u8; 32]), FetchOutcome> {
    let (mut bytes, mut hash) = (0u64, Sha256::new());
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| FetchOutcome::Unreachable)?.into_data() else { continue };
        bytes = bytes.saturating_add(data.len() as u64);
        if bytes > limit {
            return Err(FetchOutcome::IoError);
        }
        hash.update(&data);
        incoming.write(&data).map_err(not_stored)?;
    }
    Ok((bytes, hash.finalize().into()))
}

/// What the head of an answer says about the bytes that follow.
struct Announced {
    etag: String,
    length: Option<u64>,
    generation: Option<u64>,
}

impl Announced {
    /// Reads it; a head without a hash announces nothing that could be stored.
    fn read(headers: &HeaderMap) -> Result<Self, FetchOutcome> {
        let etag = only(headers, "etag").ok_or(FetchOutcome::EtagMismatch)?.to_owned();
        let length = match only(headers, "content-length") {
            Some(length) => Some(number(length).ok_or(FetchOutcome::Unreachable)?),
            None if headers.contains_key("content-length") => return Err(FetchOutcome::Unreachable),
            None => None,
        };
        let generation = only(headers, "x-murmur-generation").and_then(number);
        Ok(Announced { etag, length, generation })
    }
}

/// The value of a header that is there exactly once.
fn only<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().ok(),
        _ => None,
    }
}

/// Digits and nothing else, as a number.
fn number(text: &str) -> Option<u64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// The code of a refusal, if it is one that a redeem can answer: no other word of a peer's becomes one of ours.
fn code_of(body: &[u8]) -> Option<PlaneCode> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let word = body.get("error")?.as_str()?;
    let redeem = |code: &PlaneCode| *code != PlaneCode::NoResourcePlane;
    PlaneCode::ALL.into_iter().filter(redeem).find(|code| code.as_str() == word)
}

/// What of a path that a stranger chose becomes part of a file's name.
fn sanitised(path: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '_' };
    let name: String = path.rsplit('/').next().unwrap_or_default().chars().take(120).map(safe).collect();
    if matches!(name.as_str(), "" | "." | "..") { "file".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_made_of_harmless_characters() {
        for (path, expected) in [
            ("report.md", "report.md"),
            ("out/Report-2_a.md", "Report-2_a.md"),
            ("../../etc/cron.d/x", "x"),
            ("a/b\0c", "b_c"),
            ("a\\b c\n", "a_b_c_"),
            ("é€", "__"),
            ("..", "file"),
            (".", "file"),
            ("", "file"),
            ("a/", "file"),
            ("a/..", "file"),
            ("...", "..."),
            (".hidden", ".hidden"),
        ] {
            assert_eq!(sanitised(path), expected, "{path:?}");
        }
        assert_eq!(sanitised(&"é".repeat(4096)), "_".repeat(120));
    }

    #[test]
    fn only_codes_of_a_redeem_are_taken_from_a_refusal() {
        for code in PlaneCode::ALL {
            let body = format!(r#"{{"error":"{}","message":"x"}}"#, code.as_str());
            let expected = (code != PlaneCode::NoResourcePlane).then_some(code);
            assert_eq!(code_of(body.as_bytes()), expected, "{body}");
        }
        for body in ["", "{}", r#"{"error":7}"#, r#"{"error":"Not_Found"}"#, r#"["not_found"]"#, "not_found"]
        {
            assert_eq!(code_of(body.as_bytes()), None, "{body}");
        }
    }

    #[test]
    fn a_head_announces_hash_length_and_generation_or_is_refused() {
        let etag = ("etag", "\"sha256:00\"");
        let read = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, value.parse().unwrap());
            }
            Announced::read(&headers).map(|announced| (announced.length, announced.generation))
        };
        let cases: [(&[(&str, &str)], _); 11] = [
            (&[etag], Ok((None, None))),
            (&[etag, ("content-length", "7"), ("x-murmur-generation", "3")], Ok((Some(7), Some(3)))),
            (&[etag, ("x-murmur-generation", "+3")], Ok((None, None))),
            (&[etag, ("x-murmur-generation", "three")], Ok((None, None))),
            (&[etag, ("x-murmur-generation", "18446744073709551616")], Ok((None, None))),
            (&[etag, ("x-murmur-generation", "1"), ("x-murmur-generation", "1")], Ok((None, None))),
            (&[], Err(FetchOutcome::EtagMismatch)),
            (&[etag, etag], Err(FetchOutcome::EtagMismatch)),
            (&[etag, ("content-length", "+7")], Err(FetchOutcome::Unreachable)),
            (&[etag, ("content-length", "")], Err(FetchOutcome::Unreachable)),
            (&[etag, ("content-length", "7"), ("content-length", "7")], Err(FetchOutcome::Unreachable)),
        ];
        for (pairs, expected) in cases {
            assert_eq!(read(pairs), expected, "{pairs:?}");
        }
    }
}
