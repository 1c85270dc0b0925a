//! What is answered below `/resources/`? The order of the checks, and carrying the answer out.
//!
//! Operator plane: method, route, declared, decode, lexical check, and only then the fileserver (`docs/decisions.md`, Non-GET
//! under `/resources/`). Peer plane: method, declared, a token at all, its shape, an audience, and only then the broker, which
//! checks MAC and expiry (`seed: GET /resources/peer/<handle>`).

use std::pin::pin;
use std::time::Duration;

use handle::{Token, handle_id};
use ipc::edge::control::DoorConfigure;
use ipc::edge::door_broker::DoorToBroker;
use ipc::types::{Moment, PlaneCode, RelPath};

use crate::client::Client;
use crate::door::Door;
use crate::fileserver::{Answer, Content};
use crate::head::Head;
use crate::record::{Unrecorded, audience, refused};
use crate::respond::{self, Provenance};
use crate::route::Resource;
use crate::wire;

/// What the door makes of a request before it asks anybody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict<'t> {
    /// Ask for the listing.
    List,
    /// Ask for this file.
    Read(RelPath),
    /// Have this handle verified, for this audience.
    Redeem(Token<'t>, String),
    /// Refuse.
    Refuse(PlaneCode),
}

/// Judges a request by itself and by what the session declares; no I/O.
#[must_use]
pub fn judge<'t>(head: &Head<'_>, resource: Resource<'t>, declared: &DoorConfigure) -> Verdict<'t> {
    if head.method != "GET" {
        return Verdict::Refuse(PlaneCode::MethodNotAllowed);
    }
    match resource {
        Resource::Unknown(_) => Verdict::Refuse(PlaneCode::NotFound),
        Resource::Peer(_) if !declared.peer_files => Verdict::Refuse(PlaneCode::NoPeerPlane),
        Resource::Peer("") => Verdict::Refuse(PlaneCode::NotFound),
        Resource::Peer(text) => match (Token::parse(text), audience(head)) {
            (Err(_), _) => Verdict::Refuse(PlaneCode::MalformedHandle),
            (Ok(_), None) => Verdict::Refuse(PlaneCode::MissingAudience),
            (Ok(_), Some(audience)) if audience.is_empty() => Verdict::Refuse(PlaneCode::MissingAudience),
            (Ok((token, _)), Some(audience)) => Verdict::Redeem(token, audience),
        },
        Resource::Listing | Resource::File(_) if declared.files.is_none() => {
            Verdict::Refuse(PlaneCode::NoResourcePlane)
        }
        Resource::Listing => Verdict::List,
        Resource::File(encoded) => match RelPath::from_encoded(encoded) {
            Ok(path) => Verdict::Read(path),
            Err(_) => Verdict::Refuse(PlaneCode::OutsideRoot),
        },
    }
}

/// Why a connection ends without its whole answer.
#[derive(Debug, thiserror::Error)]
pub enum Cut {
    /// The broker could not be told.
    #[error("the broker could not be told")]
    Unrecorded,
    /// The client is gone, reset or too slow.
    #[error(transparent)]
    Client(#[from] std::io::Error),
}

impl From<Unrecorded> for Cut {
    fn from(_: Unrecorded) -> Self {
        Cut::Unrecorded
    }
}

/// Answers a request below `/resources/`.
///
/// # Errors
/// [`Cut`]; the connection is to be closed.
pub async fn answer(
    door: &Door,
    client: &mut Client,
    head: &Head<'_>,
    resource: Resource<'_>,
) -> Result<(), Cut> {
    let limits = &door.limits;
    let verdict = judge(head, resource, &door.constants);
    if matches!(verdict, Verdict::List | Verdict::Read(_)) {
        door.has_fileserver().await;
    }
    let (asked, wait, brief) = match verdict {
        Verdict::Redeem(token, audience) => return redeem(door, client, &token, audience).await,
        Verdict::Refuse(code) => return refuse(door, client, head, resource, code).await,
        Verdict::List => (
            door.fileserver().map(|fileserver| fileserver.list(until(limits.list_wait))),
            limits.list_wait,
            false,
        ),
        Verdict::Read(path) => (
            door.fileserver().map(|fileserver| fileserver.read(path, until(limits.read_wait))),
            limits.read_wait,
            true,
        ),
    };
    let Some(Ok(mut pending)) = asked else {
        return refuse(door, client, head, resource, PlaneCode::IoError).await;
    };
    let answer = match wait_for(door, client, pending.answer(), brief, wait).await {
        Waited::Settled(answer) => answer,
        Waited::Left => return Err(Cut::Client(std::io::ErrorKind::ConnectionReset.into())),
        Waited::TooLong => {
            pending.abandon();
            return refuse(door, client, head, resource, PlaneCode::IoError).await;
        }
    };
    let root = door.constants.files.as_ref().map_or("", |files| files.root.as_str());
    let provenance = Provenance { class: door.constants.class, root };
    match answer {
        Some(Answer::File { meta, content }) => {
            send(client, &respond::file(&meta, provenance), content, door).await
        }
        Some(Answer::Listing { generation, content }) => {
            let head = respond::listing(content.length(), generation, provenance);
            send(client, &head, content, door).await
        }
        // The fileserver has put this one on record.
        Some(Answer::Refused(code)) => {
            Ok(wire::write(client, &respond::refusal(code, true), &[], limits).await?)
        }
        None => refuse(door, client, head, resource, PlaneCode::IoError).await,
    }
}

/// Has a handle verified and carries the outcome out; the broker puts every one of them on record.
async fn redeem(door: &Door, client: &mut Client, token: &Token<'_>, audience: String) -> Result<(), Cut> {
    let limits = &door.limits;
    let mut pending = door.redeems.begin();
    let id = pending.id();
    let (payload, mac) = (token.payload().to_owned(), token.mac().to_owned());
    door.broker.send(&DoorToBroker::Redeem { id, payload, mac, audience }).await?;
    let outcome = match wait_for(door, client, pending.outcome(), true, limits.read_wait).await {
        Waited::Settled(outcome) => outcome,
        given_up => {
            door.broker.send(&DoorToBroker::RedeemAbandoned { id }).await?;
            match given_up {
                Waited::Left => return Err(Cut::Client(std::io::ErrorKind::ConnectionReset.into())),
                _ => Err(PlaneCode::IoError),
            }
        }
    };
    match outcome {
        Ok((meta, content)) => {
            let head = respond::redeemed(&meta, door.constants.class, &handle_id(token.text()));
            send(client, &head, content, door).await
        }
        Err(code) => Ok(wire::write(client, &respond::refusal(code, true), &[], limits).await?),
    }
}

/// Until when the fileserver may answer a request that is given up after `wait`: what it takes up later, the door has refused
/// and recorded already, or will in a moment.
fn until(wait: Duration) -> Moment {
    Moment::after(wait - wait / 20)
}

/// How waiting for an answer ended.
enum Waited<T> {
    /// With the answer.
    Settled(T),
    /// The client left.
    Left,
    /// The time ran out.
    TooLong,
}

/// Waits for an answer. One that is usually there in a moment is waited for by itself at first: client and time are watched
/// only once it is late.
async fn wait_for<T>(
    door: &Door,
    client: &mut Client,
    answer: impl Future<Output = T>,
    brief: bool,
    wait: Duration,
) -> Waited<T> {
    let mut answer = pin!(answer);
    if brief {
        tokio::select! {
            biased;
            answer = &mut answer => return Waited::Settled(answer),
            () = door.ticker.a_period() => {}
        }
    }
    tokio::select! {
        biased;
        answer = &mut answer => Waited::Settled(answer),
        () = wire::gone(client, &door.limits) => Waited::Left,
        () = tokio::time::sleep(wait) => Waited::TooLong,
    }
}

/// Writes a served answer; the slot is freed when `content` is dropped, however the writing ended.
async fn send(client: &mut Client, head: &[u8], content: Content, door: &Door) -> Result<(), Cut> {
    match content {
        Content::Slot(slot) => wire::write(client, head, slot.bytes(), &door.limits).await?,
        Content::File(file, length) => wire::write_file(client, head, &file, length, &door.limits).await?,
    }
    Ok(())
}

/// Records a refusal of the door's own, then answers it.
async fn refuse(
    door: &Door,
    client: &mut Client,
    head: &Head<'_>,
    resource: Resource<'_>,
    code: PlaneCode,
) -> Result<(), Cut> {
    door.broker.send(&refused(resource, code, head)).await?;
    let answer = respond::refusal(code, head.method != "HEAD");
    Ok(wire::write(client, &answer, &[], &door.limits).await?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::{Route, route};
    use ipc::edge::control::PlaneConstants;
    use ipc::types::Class;

    fn constants(declared: bool) -> DoorConfigure {
        DoorConfigure {
            class: Class::Sealed,
            files: declared.then(|| PlaneConstants { root: "out/".into(), max_bytes: 1024 }),
            peer_files: declared,
            requests_from: 0,
            card: "{}".into(),
            agent: true,
        }
    }

    fn verdict<'t>(method: &str, target: &'t str, declared: bool) -> Verdict<'t> {
        judged(method, target, "", declared)
    }

    fn judged<'t>(method: &str, target: &'t str, headers: &str, declared: bool) -> Verdict<'t> {
        let text = format!("{method} / HTTP/1.1\r\n{headers}\r\n");
        let head = Head::parse(text.as_bytes()).unwrap();
        match route(method, target) {
            Route::Resource(resource) => judge(&head, resource, &constants(declared)),
            other => panic!("{target} is routed to {other:?}"),
        }
    }

    #[test]
    fn checks_come_in_the_order_method_route_declared_path() {
        use PlaneCode::{
            MalformedHandle, MethodNotAllowed, MissingAudience, NoPeerPlane, NoResourcePlane, NotFound,
            OutsideRoot,
        };
        // Target, refusal when declared (`None`: served), refusal when not, for GET; any other method is 405.
        let cases = [
            ("/resources/files", None, Some(NoResourcePlane)),
            ("/resources/files/report.md", None, Some(NoResourcePlane)),
            ("/resources/files/", Some(OutsideRoot), Some(NoResourcePlane)),
            ("/resources/files/../x", Some(OutsideRoot), Some(NoResourcePlane)),
            ("/resources/files/%ff", Some(OutsideRoot), Some(NoResourcePlane)),
            ("/resources/", Some(NotFound), Some(NotFound)),
            ("/resources/unknown", Some(NotFound), Some(NotFound)),
            ("/resources//files", Some(NotFound), Some(NotFound)),
            ("/resources/files%2Freport.md", Some(NotFound), Some(NotFound)),
            ("/resources/peer", Some(NotFound), Some(NoPeerPlane)),
            ("/resources/peer/", Some(NotFound), Some(NoPeerPlane)),
            ("/resources/peer/mh1.a.b", Some(MalformedHandle), Some(NoPeerPlane)),
            ("/resources/peer/mh1.eyJ2IjoxfQ.AAAA", Some(MissingAudience), Some(NoPeerPlane)),
        ];
        for (target, declared, undeclared) in cases {
            for (code, has) in [(declared, true), (undeclared, false)] {
                let found = verdict("GET", target, has);
                match code {
                    Some(code) => assert_eq!(found, Verdict::Refuse(code), "{target} {has}"),
                    None => assert!(!matches!(found, Verdict::Refuse(_)), "{target} {has}"),
                }
                for method in ["HEAD", "OPTIONS", "PUT", "POST", "DELETE", "get", "PROPFIND", "CONNECT"] {
                    assert_eq!(
                        verdict(method, target, has),
                        Verdict::Refuse(MethodNotAllowed),
                        "{method} {target}"
                    );
                }
            }
        }
        assert_eq!(verdict("GET", "/resources/files", true), Verdict::List);
        assert_eq!(
            verdict("GET", "/resources/files/sub%2Fr.md?x", true),
            Verdict::Read(RelPath::new("sub/r.md").unwrap())
        );
    }

    #[test]
    fn a_handle_is_for_the_joined_audiences_and_not_for_an_empty_one() {
        let name = "X-Murmur-Audience";
        let cases = [
            (String::new(), None),
            (format!("{name}:\r\n"), None),
            (format!("{name}: \t \r\n"), None),
            (format!("{name}: A@b:1\r\n"), Some("A@b:1")),
            (format!("{name}: a@b:1\r\n{name}: a@b:1\r\n"), Some("a@b:1, a@b:1")),
            (format!("{name}: a@b:1\r\n{name}:\r\n"), Some("a@b:1, ")),
            (format!("{name}:\r\n{name}:\r\n"), Some(", ")),
            (format!("{name}: caf\u{e9}@b:1\r\n"), Some("caf\u{e9}@b:1")),
        ];
        for (headers, expected) in cases {
            let found = judged("GET", "/resources/peer/mh1.eyJ2IjoxfQ.AAAA?q", &headers, true);
            let (token, _) = Token::parse("mh1.eyJ2IjoxfQ.AAAA").unwrap();
            let expected = match expected {
                Some(audience) => Verdict::Redeem(token, audience.into()),
                None => Verdict::Refuse(PlaneCode::MissingAudience),
            };
            assert_eq!(found, expected, "{headers:?}");
        }
    }
}
