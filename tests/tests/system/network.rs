//! Requests that leave a session: what arrives, what does not, and that egress may be replaced in between.

use std::io::ErrorKind;
use std::net::TcpListener;

use system_tests::broker::{Launch, Session};
use system_tests::capsule::Capsule;
use system_tests::trace::Trace;
use system_tests::upstream::Upstream;
use system_tests::{a2a, needs_root};

const TEAPOT: &str =
    "HTTP/1.1 418 I'm a teapot\r\nContent-Length: 11\r\nX-Kind: pot\r\nConnection: close\r\n\r\nshort, dark";

/// A session whose driver has `upstream` behind its gateway, under a path prefix, and may reach what `allow` lists.
fn fetching(upstream: &Upstream, allow: &str) -> (Capsule, Session) {
    let gateway = format!("http://{}/prefix/of", upstream.authority());
    let capsule =
        Capsule::driven_by("fetch-driver", &gateway, &[], &format!("network: {{allow: [{allow}]}}"));
    let session = Launch::of(&capsule).start();
    (capsule, session)
}

#[test]
fn a_request_to_the_gateway_arrives_whole_and_its_answer_comes_back() {
    needs_root!();
    let upstream = Upstream::answering(TEAPOT);
    let (_capsule, mut session) = fetching(&upstream, "");
    for (task, line, body) in [
        ("POST a body: {\"ü\": 1}", "POST /prefix/of/v1/echo HTTP/1.1", "a body: {\"ü\": 1}"),
        ("GET", "GET /prefix/of/v1/echo HTTP/1.1", ""),
    ] {
        let done = a2a::complete(session.url(), task, task);
        assert_eq!(a2a::answer(&done), "status 418\nshort, dark");
        let arrived = upstream.next();
        assert_eq!((arrived.line.as_str(), arrived.body.as_slice()), (line, body.as_bytes()));
        assert_eq!(arrived.all("host"), [upstream.authority().as_str()], "{arrived:?}");
        assert!(arrived.all("authorization").is_empty(), "a gateway without a key gets none: {arrived:?}");
    }
    upstream.assert_idle();
    let records = session.records();
    session.stop();
    assert_eq!(Trace::read(&records).counts(["task_end", "network_denied"]), [2, 0]);
}

/// Also where somebody listens, and where the operator's gateway is: a gateway is reached as one or not at all.
#[test]
fn a_destination_that_is_not_listed_is_refused_and_recorded_and_nothing_arrives() {
    needs_root!();
    let upstream = Upstream::answering(TEAPOT);
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    other.set_nonblocking(true).unwrap();
    let port = other.local_addr().unwrap().port();
    let gateway = upstream.authority();
    let (_capsule, mut session) = fetching(&upstream, "'http://127.0.0.1:1'");
    let destinations = [
        format!("127.0.0.1:{port}"),
        format!("localhost:{port}"),
        gateway,
        "localhost:1".to_owned(),
        "127.0.0.2:1".to_owned(),
    ];
    for destination in &destinations {
        let task = format!("GET http://{destination}/secret");
        let done = a2a::complete(session.url(), &task, &task);
        assert!(a2a::answer(&done).contains("HttpRequestDenied"), "{destination}: {done}");
    }
    upstream.assert_idle();
    assert_eq!(other.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "somebody connected");
    let records = session.records();
    session.stop();
    let trace = Trace::read(&records);
    let denied = trace.of("network_denied");
    let recorded: Vec<&str> = denied.iter().map(|event| event["destination"].as_str().unwrap()).collect();
    assert_eq!(recorded, destinations);
    for event in denied {
        assert_eq!((&event["process"], &event["artifact"]), (&"egress".into(), &"fetch-driver".into()));
        assert_eq!(event["rule"], "capabilities.network.allow", "{event}");
    }
}

#[test]
fn an_allowed_destination_is_reached_past_the_gateway() {
    needs_root!();
    let gateway = Upstream::answering(TEAPOT);
    let listed = Upstream::answering("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    let (_capsule, mut session) = fetching(&gateway, &format!("'{}'", listed.authority()));
    let task = format!("GET http://{}/some/path?and=query", listed.authority());
    let done = a2a::complete(session.url(), "one", &task);
    assert_eq!(a2a::answer(&done), "status 200\nhello");
    let arrived = listed.next();
    assert_eq!(arrived.line, "GET /some/path?and=query HTTP/1.1");
    assert_eq!(arrived.all("host"), [listed.authority().as_str()], "{arrived:?}");
    gateway.assert_idle();
    session.stop();
}

/// The place a redirect names may be one the list does not.
#[test]
fn a_redirect_is_an_answer_and_is_not_followed() {
    needs_root!();
    let upstream =
        Upstream::answering("HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n");
    let (_capsule, mut session) = fetching(&upstream, "");
    let done = a2a::complete(session.url(), "one", "GET");
    assert_eq!(a2a::answer(&done), "status 302\n");
    assert_eq!(upstream.next().line, "GET /prefix/of/v1/echo HTTP/1.1");
    upstream.assert_idle();
    session.stop();
}

#[test]
fn after_the_death_of_egress_the_next_request_is_carried_by_another() {
    needs_root!();
    let upstream = Upstream::answering(TEAPOT);
    let (_capsule, mut session) = fetching(&upstream, "");
    let _ = a2a::complete(session.url(), "one", "POST before");
    assert_eq!(upstream.next().body, b"before");
    let other = session.replace("egress");
    let done = a2a::complete(session.url(), "two", "POST after");
    assert_eq!(a2a::answer(&done), "status 418\nshort, dark");
    assert_eq!(upstream.next().body, b"after");
    assert_eq!(session.role("egress"), other, "one other was enough");
    session.stop();
}
