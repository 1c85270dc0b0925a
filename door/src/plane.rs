//! What is answered below `/resources/`? The order of the checks, and carrying the answer out.
//!
//! Method, route, declared, decode, lexical check, and only then the fileserver (`docs/decisions.md`, Non-GET under
//! `/resources/`).

use ipc::edge::control::DoorConfigure;
use ipc::types::{PlaneCode, RelPath};
use tokio::net::TcpStream;

use crate::decode::relative_path;
use crate::door::Door;
use crate::fileserver::{Answer, Content, Pending};
use crate::head::Head;
use crate::record::{Unrecorded, refused};
use crate::respond::{self, Provenance};
use crate::route::Resource;
use crate::wire;

/// What the door makes of a request before it asks anybody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Ask for the listing.
    List,
    /// Ask for this file.
    Read(RelPath),
    /// Refuse.
    Refuse(PlaneCode),
}

/// Judges a request by itself and by what the session declares; no I/O.
#[must_use]
pub fn judge(method: &str, resource: Resource<'_>, declared: &DoorConfigure) -> Verdict {
    if method != "GET" {
        return Verdict::Refuse(PlaneCode::MethodNotAllowed);
    }
    match resource {
        Resource::Unknown(_) => Verdict::Refuse(PlaneCode::NotFound),
        // Redeeming is not built; no session declares `exports.peer_files`.
        Resource::Peer(_) => Verdict::Refuse(PlaneCode::NoPeerPlane),
        Resource::Listing | Resource::File(_) if declared.files.is_none() => {
            Verdict::Refuse(PlaneCode::NoResourcePlane)
        }
        Resource::Listing => Verdict::List,
        Resource::File(encoded) => match relative_path(encoded) {
            Some(path) => Verdict::Read(path),
            None => Verdict::Refuse(PlaneCode::OutsideRoot),
        },
    }
}

/// Why a connection ends without its whole answer.
#[derive(Debug, thiserror::Error)]
pub enum Cut {
    /// The refusal could not be put on record.
    #[error("the refusal could not be put on record")]
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
    stream: &TcpStream,
    head: &Head<'_>,
    resource: Resource<'_>,
) -> Result<(), Cut> {
    let limits = &door.limits;
    let (asked, wait) = match judge(head.method, resource, &door.constants) {
        Verdict::Refuse(code) => return refuse(door, stream, head, resource, code).await,
        Verdict::List => (door.fileserver().map(|fileserver| fileserver.list()), limits.list_wait),
        Verdict::Read(path) => (door.fileserver().map(|fileserver| fileserver.read(path)), limits.read_wait),
    };
    let Some(Ok(pending)) = asked else {
        return refuse(door, stream, head, resource, PlaneCode::IoError).await;
    };
    let answer = tokio::select! {
        biased;
        answer = settled(pending) => answer,
        () = wire::gone(stream, limits) => return Err(Cut::Client(std::io::ErrorKind::ConnectionReset.into())),
        () = tokio::time::sleep(wait) => None,
    };
    let root = door.constants.files.as_ref().map_or("", |files| files.root.as_str());
    let provenance = Provenance { class: door.constants.class, root };
    match answer {
        Some(Answer::File { meta, content }) => {
            send(stream, &respond::file(&meta, provenance), content, door).await
        }
        Some(Answer::Listing { generation, content }) => {
            let head = respond::listing(content.length(), generation, provenance);
            send(stream, &head, content, door).await
        }
        // The fileserver has put this one on record.
        Some(Answer::Refused(code)) => {
            Ok(wire::write(stream, &respond::refusal(code, true), &[], limits).await?)
        }
        None => refuse(door, stream, head, resource, PlaneCode::IoError).await,
    }
}

async fn settled(mut pending: Pending) -> Option<Answer> {
    pending.answer().await
}

/// Writes a served answer; the slot is freed when `content` is dropped, however the writing ended.
async fn send(stream: &TcpStream, head: &[u8], content: Content, door: &Door) -> Result<(), Cut> {
    match content {
        Content::Slot(slot) => wire::write(stream, head, slot.bytes(), &door.limits).await?,
        Content::File(file, length) => wire::write_file(stream, head, &file, length, &door.limits).await?,
    }
    Ok(())
}

/// Records a refusal of the door's own, then answers it.
async fn refuse(
    door: &Door,
    stream: &TcpStream,
    head: &Head<'_>,
    resource: Resource<'_>,
    code: PlaneCode,
) -> Result<(), Cut> {
    door.broker.record(&refused(resource, code, head)).await?;
    let answer = respond::refusal(code, head.method != "HEAD");
    Ok(wire::write(stream, &answer, &[], &door.limits).await?)
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
            peer_files: false,
            card: "{}".into(),
            agent: true,
        }
    }

    fn verdict(method: &str, target: &str, declared: bool) -> Verdict {
        match route(method, target) {
            Route::Resource(resource) => judge(method, resource, &constants(declared)),
            other => panic!("{target} is routed to {other:?}"),
        }
    }

    #[test]
    fn checks_come_in_the_order_method_route_declared_path() {
        use PlaneCode::{MethodNotAllowed, NoPeerPlane, NoResourcePlane, NotFound, OutsideRoot};
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
            ("/resources/peer", Some(NoPeerPlane), Some(NoPeerPlane)),
            ("/resources/peer/", Some(NoPeerPlane), Some(NoPeerPlane)),
            ("/resources/peer/mh1.a.b", Some(NoPeerPlane), Some(NoPeerPlane)),
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
}
