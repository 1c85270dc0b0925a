//! Exchanges against real listeners on loopback, through real pipes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ipc::edge::egress_broker::{Asker, Reason};
use ipc::edge::host_egress::Purpose;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use super::*;
use crate::harness::{ask, failed, listener, read_head, request, status, upstream};

#[tokio::test(flavor = "current_thread")]
async fn a_body_of_announced_length_is_echoed_and_the_head_is_what_was_asked() {
    let (listener, port) = listener().await;
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (head, mut body) = read_head(&mut stream).await;
        while body.len() < 11 {
            stream.read_buf(&mut body).await.unwrap();
        }
        stream
            .write_all(
                b"HTTP/1.1 201 Created\r\nx-a: 1\r\nconnection: x-b\r\nx-b: 2\r\ncontent-length: 11\r\n\r\n",
            )
            .await
            .unwrap();
        stream.write_all(&body).await.unwrap();
        head
    });
    let mut request = request(port);
    request.headers = vec![("content-length".into(), b"11".to_vec()), ("x-own".into(), b"v".to_vec())];
    let (head, body, outcome) = ask(&upstream(port), request).finish(b"hello world").await;
    let AnswerHead::Response { status, headers } = head else { panic!("{head:?}") };
    assert_eq!((status, body.as_slice(), outcome), (201, &b"hello world"[..], Outcome::Done));
    assert_eq!(headers, [("x-a".into(), b"1".to_vec()), ("content-length".into(), b"11".to_vec())]);
    let sent = server.await.unwrap().to_ascii_lowercase();
    assert!(sent.starts_with("post /p?q http/1.1\r\n"), "{sent}");
    for line in [
        format!("host: 127.0.0.1:{port}"),
        "x-own: v".into(),
        "content-length: 11".into(),
        "connection: close".into(),
    ] {
        assert!(sent.contains(&format!("\r\n{line}\r\n")), "{line} in {sent}");
    }
    assert!(!sent.contains("transfer-encoding"), "{sent}");
}

#[tokio::test(flavor = "current_thread")]
async fn a_get_without_a_body_is_sent_without_any_framing() {
    let (listener, port) = listener().await;
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (head, body) = read_head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
        (head.to_ascii_lowercase(), body)
    });
    let mut request = request(port);
    request.method = "GET".into();
    let (head, body, _) = ask(&upstream(port), request).finish(b"").await;
    assert_eq!((status(&head), body.len()), (204, 0));
    let (head, body) = server.await.unwrap();
    assert!(
        !head.contains("transfer-encoding") && !head.contains("content-length") && body.is_empty(),
        "{head}"
    );
}

#[tokio::test(flavor = "current_thread")]
async fn big_bodies_move_in_both_directions_at_once() {
    const BIG: usize = 10 * 1024 * 1024;
    let (listener, port) = listener().await;
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (_, rest) = read_head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        // An echo: the answer ends with the connection, once everything came.
        let (mut from, mut to) = stream.split();
        to.write_all(&rest).await.unwrap();
        let mut total = rest.len();
        let mut buffer = vec![0; 65536];
        while total < BIG {
            let read = from.read(&mut buffer).await.unwrap();
            to.write_all(&buffer[..read]).await.unwrap();
            total += read;
        }
    });
    let pattern: Vec<u8> = (0..BIG).map(|n| (n / 7) as u8).collect();
    let mut request = request(port);
    request.headers = vec![("content-length".into(), BIG.to_string().into_bytes())];
    let (head, body, outcome) = ask(&upstream(port), request).finish(&pattern).await;
    assert_eq!((status(&head), outcome), (200, Outcome::Done));
    assert!(body == pattern, "{} bytes came back", body.len());
    server.await.unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn an_upstream_that_reads_everything_first_gets_everything_first() {
    const BIG: usize = 10 * 1024 * 1024;
    let (listener, port) = listener().await;
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (_, mut body) = read_head(&mut stream).await;
        while body.len() < BIG {
            assert_ne!(stream.read_buf(&mut body).await.unwrap(), 0);
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
        body
    });
    let mut request = request(port);
    request.headers = vec![("content-length".into(), BIG.to_string().into_bytes())];
    let (head, body, _) = ask(&upstream(port), request).finish(&vec![7; BIG]).await;
    assert_eq!((status(&head), body.as_slice()), (200, &b"ok"[..]));
    assert!(server.await.unwrap().iter().all(|byte| *byte == 7));
}

#[tokio::test(flavor = "current_thread")]
async fn an_upstream_that_answers_first_is_passed_on_while_the_request_goes_on() {
    let (listener, port) = listener().await;
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno").await.unwrap();
        std::future::pending::<()>().await;
    });
    // The asker never ends its body and never fills it.
    let mut asked = ask(&upstream(port), request(port));
    asked.input.write_all(b"begin").await.unwrap();
    assert_eq!(status(&asked.head().await), 413);
    let mut body = Vec::new();
    asked.output.read_to_end(&mut body).await.unwrap();
    assert_eq!((body.as_slice(), asked.outcome.await.unwrap()), (&b"no"[..], Outcome::Done));
}

#[tokio::test(flavor = "current_thread")]
async fn an_upstream_that_never_reads_or_never_answers_runs_into_the_deadline() {
    for read in [false, true] {
        let (listener, port) = listener().await;
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut sink = vec![0; 65536];
            while read && stream.read(&mut sink).await.unwrap_or(0) > 0 {}
            std::future::pending::<()>().await;
        });
        let mut request = request(port);
        request.timeout_ms = 300;
        let began = std::time::Instant::now();
        let (head, _, outcome) = ask(&upstream(port), request).finish(&vec![0; 16 << 20]).await;
        assert_eq!(failed(&head), FailureKind::TimedOut);
        assert!(matches!(outcome, Outcome::Failed(FailureKind::TimedOut, _)), "{outcome:?}");
        assert!(began.elapsed() >= Duration::from_millis(300) && began.elapsed() < Duration::from_secs(5));
    }
}

#[tokio::test(flavor = "current_thread")]
async fn an_answer_that_drips_is_cut_at_the_deadline() {
    let (listener, port) = listener().await;
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        loop {
            tokio::time::sleep(Duration::from_millis(20)).await;
            if stream.write_all(b".").await.is_err() {
                break;
            }
        }
    });
    let mut request = request(port);
    request.timeout_ms = 300;
    let (head, body, outcome) = ask(&upstream(port), request).finish(b"").await;
    assert_eq!((status(&head), outcome), (200, Outcome::Cut("the time ran out")));
    assert!(!body.is_empty());
}

#[tokio::test(flavor = "current_thread")]
async fn an_asker_that_goes_away_ends_the_exchange() {
    for answered in [false, true] {
        let (listener, port) = listener().await;
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            read_head(&mut stream).await;
            if answered {
                stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            }
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
        });
        let mut asked = ask(&upstream(port), request(port));
        asked.input.write_all(b"x").await.unwrap();
        if answered {
            assert_eq!(status(&asked.head().await), 200);
        } else {
            // Until the upstream has the request, so that the exchange waits for its answer.
            tokio::task::yield_now().await;
        }
        drop((asked.input, asked.output));
        assert!(matches!(asked.outcome.await.unwrap(), Outcome::Cut(_)));
        server.await.unwrap();
    }
}

#[tokio::test(flavor = "current_thread")]
async fn broken_upstreams_fail_by_kind() {
    let huge = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "a".repeat(200_000));
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(200));
    for answer in [
        "",
        "garbage\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        huge.as_str(),
        many.as_str(),
    ] {
        let (listener, port) = listener().await;
        let answer = answer.to_owned();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            read_head(&mut stream).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        });
        let (head, _, _) = ask(&upstream(port), request(port)).finish(b"").await;
        assert_eq!(failed(&head), FailureKind::Protocol);
    }
}

#[tokio::test(flavor = "current_thread")]
async fn an_answer_that_breaks_off_is_not_called_done() {
    for answer in [
        "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ] {
        let (listener, port) = listener().await;
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            read_head(&mut stream).await;
            stream.write_all(answer.as_bytes()).await.unwrap();
        });
        let (head, body, outcome) = ask(&upstream(port), request(port)).finish(b"").await;
        assert_eq!((status(&head), body.as_slice()), (200, &b"abc"[..]));
        assert_eq!(outcome, Outcome::Cut("the upstream broke off its answer"));
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_body_shorter_than_announced_is_no_request() {
    let (listener, port) = listener().await;
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes).await;
        bytes
    });
    let mut request = request(port);
    request.headers = vec![("content-length".into(), b"10".to_vec())];
    let (head, _, _) = ask(&upstream(port), request).finish(b"short").await;
    assert_eq!(failed(&head), FailureKind::Protocol);
    assert!(!server.await.unwrap().ends_with(b"shortGET"));
}

#[tokio::test(flavor = "current_thread")]
async fn bytes_beyond_the_announced_length_do_not_become_a_second_request() {
    let (listener, port) = listener().await;
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (_, mut body) = read_head(&mut stream).await;
        while body.len() < 4 {
            stream.read_buf(&mut body).await.unwrap();
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        stream.read_to_end(&mut body).await.unwrap();
        body
    });
    let mut request = request(port);
    request.headers = vec![("content-length".into(), b"4".to_vec())];
    let (head, _, _) =
        ask(&upstream(port), request).finish(b"bodyGET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert_eq!((status(&head), server.await.unwrap().as_slice()), (200, &b"body"[..]));
}

#[tokio::test(flavor = "current_thread")]
async fn refused_destinations_are_reported_and_never_connected() {
    let (listener, port) = listener().await;
    let accepted = tokio::spawn(async move { listener.accept().await.map(|_| ()) });
    let upstream = upstream(port);
    for (artifact, host, port, reason) in [
        ("tool", "localhost", port, Reason::NotListed),
        ("tool", "127.0.0.1", port ^ 1, Reason::NotListed),
        ("other", "127.0.0.1", port, Reason::NotListed),
        ("tool", "inside.example", port, Reason::Address),
    ] {
        let mut request = request(port);
        request.purpose = Purpose::Component { artifact: artifact.into() };
        request.host = host.into();
        let asked = ask(&upstream, request);
        let reported = Arc::clone(&asked.reported);
        let (head, rest, outcome) = asked.finish(b"").await;
        let asker = Asker::Artifact(artifact.into());
        let denied = Denied { asker, destination: format!("{host}:{port}"), reason };
        assert!(matches!(head, AnswerHead::Denied) && rest.is_empty(), "{host} {head:?}");
        assert_eq!(outcome, Outcome::Denied(denied.clone()));
        assert_eq!(*reported.lock().unwrap(), [denied]);
    }
    assert!(!accepted.is_finished(), "something was connected");
}

#[tokio::test(flavor = "current_thread")]
async fn a_name_is_resolved_once_and_a_second_answer_is_never_asked_for() {
    let (second, port) = listener().await;
    let first = TcpListener::bind(("127.0.0.2", port)).await.unwrap();
    let server = tokio::spawn(async move {
        let (mut stream, _) = first.accept().await.unwrap();
        read_head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nfirst").await.unwrap();
    });
    let accepted = tokio::spawn(async move { second.accept().await.map(|_| ()) });
    // The list of this upstream names `localhost` with this port.
    let upstream = upstream(port ^ 3);
    let mut request = request(port);
    request.host = "localhost".into();
    let (head, body, _) = ask(&upstream, request).finish(b"").await;
    assert_eq!((status(&head), body.as_slice()), (200, &b"first"[..]));
    assert_eq!(upstream.resolver.asked.load(Ordering::Relaxed), 1);
    server.await.unwrap();
    assert!(!accepted.is_finished(), "the second answer was dialled");
}

#[tokio::test(flavor = "current_thread")]
async fn names_without_address_and_closed_ports_fail_by_kind() {
    let (listener, port) = listener().await;
    drop(listener);
    let tls = Purpose::Gateway { artifact: "tls".into() };
    let tool = Purpose::Component { artifact: "tool".into() };
    for (purpose, host, kind) in [
        (tool.clone(), "nowhere.example", FailureKind::Name),
        (tool, "127.0.0.1", FailureKind::Connect),
        (tls, "anything", FailureKind::Connect),
    ] {
        let mut request = request(port);
        (request.purpose, request.host) = (purpose, host.into());
        let (head, _, _) = ask(&upstream(port), request).finish(b"").await;
        assert_eq!(failed(&head), kind, "{host}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_gateway_gets_path_and_query_at_the_operators_endpoint_and_redirects_are_answers() {
    let (listener, port) = listener().await;
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (head, _) = read_head(&mut stream).await;
        stream
            .write_all(
                b"HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n",
            )
            .await
            .unwrap();
        head
    });
    let mut request = request(9);
    request.purpose = Purpose::Gateway { artifact: "driver".into() };
    request.headers = vec![("host".into(), b"127.0.0.1:9".to_vec())];
    let (head, _, outcome) = ask(&upstream(port), request).finish(b"{}").await;
    assert_eq!((status(&head), outcome), (302, Outcome::Done));
    let sent = server.await.unwrap();
    assert!(
        sent.starts_with("POST /p?q HTTP/1.1\r\n") && sent.contains(&format!("host: 127.0.0.1:{port}\r\n")),
        "{sent}"
    );
}
