//! Requests to other capsules against raw listeners: their bytes, and what is refused before there is a connection.

use std::sync::Arc;

use ipc::edge::control::Scheme;
use ipc::edge::egress_broker::{Asker, Reason};
use ipc::edge::host_egress::{AnswerHead, HttpRequest, Purpose};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::exchange::Outcome;
use crate::harness::{ask, listener, request, status, upstream};
use crate::rules::Denied;

const HANDLE: &str = "mh1.eyJ2IjoxfQ.ECkY-_A";

fn redeem(handle: &str, audience: &str) -> Purpose {
    Purpose::Redeem { handle: handle.into(), audience: audience.into() }
}

/// A request whose method, path, fields and body ask for something else.
fn forged(purpose: Purpose, port: u16) -> HttpRequest {
    let mut request = request(port);
    request.purpose = purpose;
    request.method = "DELETE".into();
    request.path = "/resources/files/secret?x".into();
    request.headers = vec![
        ("x-murmur-audience".into(), b"other@h:1".to_vec()),
        ("authorization".into(), b"Bearer x".to_vec()),
        ("content-length".into(), b"4".to_vec()),
    ];
    request
}

#[tokio::test(flavor = "current_thread")]
async fn a_card_and_a_handle_are_asked_for_in_one_shape_whatever_the_message_says() {
    for (purpose, sent) in [
        (
            Purpose::Card,
            "GET /.well-known/agent-card.json HTTP/1.1\r\naccept: application/json\r\n".to_owned(),
        ),
        (
            redeem(HANDLE, "Re porter@localhost:41234"),
            format!(
                "GET /resources/peer/{HANDLE} HTTP/1.1\r\nx-murmur-audience: Re porter@localhost:41234\r\n"
            ),
        ),
    ] {
        let (listener, port) = listener().await;
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut bytes = Vec::new();
            while !bytes.ends_with(b"\r\n\r\n") {
                assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0);
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\netag: \"sha256:0\"\r\n\r\nanswer").await.unwrap();
            stream.shutdown().await.unwrap();
            // Whatever of a body came after the head is in the bytes too.
            stream.read_to_end(&mut bytes).await.unwrap();
            String::from_utf8(bytes).unwrap()
        });
        let (head, body, outcome) = ask(&upstream(port), forged(purpose, port)).finish(b"body").await;
        let AnswerHead::Response { status: 200, headers } = head else { panic!("{head:?}") };
        assert_eq!(headers, [("etag".into(), b"\"sha256:0\"".to_vec())]);
        assert_eq!((body.as_slice(), outcome), (&b"answer"[..], Outcome::Done));
        let expected = format!("{sent}host: 127.0.0.1:{port}\r\nconnection: close\r\n\r\n");
        assert_eq!(server.await.unwrap(), expected);
    }
}

#[tokio::test(flavor = "current_thread")]
async fn an_asker_that_never_ends_its_input_gets_the_answer_all_the_same() {
    let (listener, port) = listener().await;
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        crate::harness::read_head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
        std::future::pending::<()>().await;
    });
    let mut asked = ask(&upstream(port), forged(redeem(HANDLE, "a@h:1"), port));
    assert_eq!(status(&asked.head().await), 404);
    let mut body = Vec::new();
    asked.output.read_to_end(&mut body).await.unwrap();
    assert_eq!((body.as_slice(), asked.outcome.await.unwrap()), (&b"{}"[..], Outcome::Done));
}

#[tokio::test(flavor = "current_thread")]
async fn a_redirect_is_an_answer_and_nobody_follows_it() {
    let (elsewhere, target) = listener().await;
    let followed = tokio::spawn(async move { elsewhere.accept().await.map(|_| ()) });
    for purpose in [Purpose::Card, redeem(HANDLE, "a@h:1")] {
        for code in [301, 302, 303, 307, 308] {
            let (listener, port) = listener().await;
            let server = tokio::spawn(async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                crate::harness::read_head(&mut stream).await;
                let answer = format!(
                    "HTTP/1.1 {code} Moved\r\nlocation: http://127.0.0.1:{target}/\r\ncontent-length: 0\r\n\r\n"
                );
                stream.write_all(answer.as_bytes()).await.unwrap();
                // Nobody comes back over this listener either.
                listener
            });
            let (head, _, outcome) = ask(&upstream(port), forged(purpose.clone(), port)).finish(b"").await;
            assert_eq!((status(&head), outcome), (code, Outcome::Done));
            let listener = server.await.unwrap().into_std().unwrap();
            assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        }
    }
    assert!(!followed.is_finished(), "a redirect was followed");
}

#[tokio::test(flavor = "current_thread")]
async fn what_no_list_names_and_what_is_no_handle_is_refused_before_a_connection() {
    let (listener, port) = listener().await;
    let long = format!("mh1.{}.A", "a".repeat(20 * 1024));
    let audience = "a".repeat(1025);
    let mut cases = vec![
        (Purpose::Card, "127.0.0.1", port ^ 1),
        (Purpose::Card, "inside.example", port),
        (redeem(HANDLE, "a@h:1"), "127.0.0.1", port ^ 1),
        (redeem(HANDLE, "a@h:1"), "inside.example", port),
    ];
    for handle in
        ["", ".", "..", "mh1.a.b\r\nx: y", "mh1.a b.c", "mh1.a.b/..", "mh1.a.b/../../files/x", &long]
    {
        cases.push((redeem(handle, "a@h:1"), "127.0.0.1", port));
    }
    for audience in ["", "a@h:1\r\nx: y", "a\0", "é@h:1", &audience] {
        cases.push((redeem(HANDLE, audience), "127.0.0.1", port));
    }
    for (purpose, host, port) in cases {
        for scheme in [Scheme::Http, Scheme::Https] {
            let asker = if purpose == Purpose::Card { Asker::Card } else { Asker::Redeem };
            let denied = Denied { asker, destination: format!("{host}:{port}"), reason: Reason::NotListed };
            let mut request = forged(purpose.clone(), port);
            (request.host, request.scheme) = (host.into(), scheme);
            let asked = ask(&upstream(listener.local_addr().unwrap().port()), request);
            let reported = Arc::clone(&asked.reported);
            let (head, rest, outcome) = asked.finish(b"").await;
            assert!(matches!(head, AnswerHead::Denied) && rest.is_empty(), "{purpose:?} {head:?}");
            assert_eq!(outcome, Outcome::Denied(denied.clone()), "{purpose:?}");
            assert_eq!(*reported.lock().unwrap(), [denied]);
        }
    }
    // A connection would be in the queue by now, whether or not somebody took it.
    let listener = listener.into_std().unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "something connected");
}
