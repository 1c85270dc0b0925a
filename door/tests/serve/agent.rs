//! `POST /`: what sandbox-host gets and what comes back.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use door::Limits;
use ipc::edge::control::DoorConfigure;
use ipc::edge::door_host::{Content, DoorToHost, MAX_BODY, ResponseHead};

use crate::house::{House, LONG, Reply, connect, constants, finish, pattern, raw};

/// A request as sandbox-host gets it.
struct Call {
    message: DoorToHost,
    input: File,
    output: File,
}

fn call(house: &mut House) -> Call {
    let received = house.host.as_mut().unwrap().receive_until(Instant::now() + LONG).unwrap();
    let (message, [input, output]) = received.exactly().unwrap();
    Call { message, input: input.into(), output: output.into() }
}

impl Call {
    fn body(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        self.input.read_to_end(&mut body).unwrap();
        body
    }

    fn head(&mut self, content: Content, content_length: Option<u64>) {
        let head = ResponseHead { status: 200, content, content_length, a2a_extensions: None };
        ipc::stream::write_head(&mut self.output, &head).unwrap();
    }
}

fn post(house: &House, length: usize) -> TcpStream {
    let mut stream = connect(house.address);
    let head = format!(
        "POST / HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream
}

fn new() -> House {
    House::new(Limits::default(), constants())
}

#[test]
fn a_request_reaches_the_host_typed_and_its_answer_comes_back_with_its_length() {
    let mut house = new();
    let mut stream = connect(house.address);
    // Head and body in one packet: the bytes behind the head are replayed.
    let request = "POST / HTTP/1.1\r\nhost: x\r\nContent-Type: application/json\r\nContent-Length: 7\r\n\
                   A2A-Version: 1.0\r\ntraceparent: t\r\nx-murmur-task-trust: trusted\r\n\r\n{\"a\":1}EXTRA";
    stream.write_all(request.as_bytes()).unwrap();
    let mut call = call(&mut house);
    assert_eq!(call.body(), b"{\"a\":1}");
    let DoorToHost::Request { content_length, a2a_version, traceparent, task_trust, .. } = &call.message;
    assert_eq!((*content_length, a2a_version.as_slice()), (7, &["1.0".to_string()][..]));
    assert_eq!((traceparent.as_deref(), task_trust.as_deref()), (Some("t"), Some("trusted")));
    let head = ResponseHead {
        status: 200,
        content: Content::Json,
        content_length: Some(4),
        a2a_extensions: Some("u".into()),
    };
    ipc::stream::write_head(&mut call.output, &head).unwrap();
    // More than was announced is cut.
    call.output.write_all(b"trueXXXX").unwrap();
    let reply = finish(stream);
    assert_eq!((reply.status(), reply.body()), (200, &b"true"[..]));
    for line in
        ["content-type: application/json", "content-length: 4", "connection: close", "a2a-extensions: u"]
    {
        assert!(reply.has(line), "{line}: {}", reply.head());
    }
    house.shut_down();
}

#[test]
fn a_large_body_arrives_whole_while_the_host_reads_it_slowly() {
    let mut house = new();
    let bytes = pattern(MAX_BODY as usize);
    let mut stream = post(&house, bytes.len());
    let sent = bytes.clone();
    let client = std::thread::spawn(move || {
        stream.write_all(&sent).unwrap();
        finish(stream)
    });
    let mut call = call(&mut house);
    assert!(call.body() == bytes);
    call.head(Content::Empty, None);
    drop(call);
    let reply: Reply = client.join().unwrap();
    assert_eq!((reply.status(), reply.body()), (200, &b""[..]));
    house.shut_down();
}

#[test]
fn a_host_may_answer_before_it_has_read_the_body() {
    let mut house = new();
    let mut stream = post(&house, 1 << 20);
    stream.write_all(&[b' '; 1000]).unwrap();
    let mut call = call(&mut house);
    call.head(Content::Json, Some(2));
    call.output.write_all(b"{}").unwrap();
    drop(call);
    let reply = finish(stream);
    assert_eq!((reply.status(), reply.body()), (200, &b"{}"[..]));
    house.shut_down();
}

#[test]
fn events_come_one_by_one_and_a_client_that_leaves_ends_the_stream() {
    let mut house = new();
    let mut stream = post(&house, 2);
    stream.write_all(b"{}").unwrap();
    let mut call = call(&mut house);
    call.head(Content::EventStream, None);
    let mut seen = Vec::new();
    for event in ["data: 1\n\n", "data: 2\n\n"] {
        call.output.write_all(event.as_bytes()).unwrap();
        while !String::from_utf8_lossy(&seen).contains(event) {
            let mut piece = [0; 4096];
            let read = stream.read(&mut piece).unwrap();
            assert!(read > 0);
            seen.extend_from_slice(&piece[..read]);
        }
    }
    let head = String::from_utf8_lossy(&seen).to_ascii_lowercase();
    assert!(
        head.contains("content-type: text/event-stream\r\n") && head.contains("cache-control: no-cache\r\n")
    );
    drop(stream);
    let started = Instant::now();
    while call.output.write_all(b":heartbeat\n\n").is_ok() {
        assert!(started.elapsed() < LONG);
        std::thread::yield_now();
    }
    house.shut_down();
}

#[test]
fn a_client_that_leaves_before_the_answer_ends_the_stream() {
    let mut house = new();
    let mut stream = post(&house, 2);
    stream.write_all(b"{}").unwrap();
    let mut call = call(&mut house);
    assert_eq!(call.body(), b"{}");
    drop(stream);
    let started = Instant::now();
    while call.output.write_all(&[0]).is_ok() {
        assert!(started.elapsed() < LONG);
        std::thread::yield_now();
    }
    house.shut_down();
}

#[test]
fn a_host_without_an_answer_is_500_and_one_that_breaks_off_is_not_taken_for_whole() {
    let mut house = new();
    for first in [&b""[..], b"\x05\0\0\0ab", b"\xff\xff\xff\xff", b"\x02\0\0\0ab"] {
        let mut stream = post(&house, 2);
        stream.write_all(b"{}").unwrap();
        let mut call = call(&mut house);
        call.output.write_all(first).unwrap();
        drop(call);
        let reply = finish(stream);
        assert_eq!((reply.status(), reply.body()), (500, &b""[..]));
        assert!(reply.has("content-length: 0"));
    }
    let mut stream = post(&house, 2);
    stream.write_all(b"{}").unwrap();
    let mut broken = call(&mut house);
    broken.head(Content::Json, Some(10));
    broken.output.write_all(b"abc").unwrap();
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"abc") {
        let mut piece = [0; 1024];
        let read = stream.read(&mut piece).unwrap();
        assert!(read > 0);
        bytes.extend_from_slice(&piece[..read]);
    }
    drop(broken);
    let reply = finish(stream);
    assert!(String::from_utf8(bytes).unwrap().contains("content-length: 10\r\n"));
    assert!(reply.0.is_empty());
    // The host itself is gone.
    house.host = None;
    let mut stream = post(&house, 2);
    stream.write_all(b"{}").unwrap();
    assert_eq!(finish(stream).status(), 500);
    house.shut_down();
}

#[test]
fn a_body_that_stops_is_408_and_the_host_sees_its_end() {
    let limits = Limits { body_time: Duration::from_millis(200), ..Limits::default() };
    let mut house = House::new(limits, constants());
    let mut stream = post(&house, 10);
    stream.write_all(b"{").unwrap();
    let mut call = call(&mut house);
    assert_eq!(call.body(), b"{");
    assert_eq!(finish(stream).status(), 408);
    house.shut_down();
}

#[test]
fn requests_that_are_none_of_the_agents_never_reach_it() {
    let mut house = new();
    let json = "content-type: application/json\r\n";
    for (lines, status) in [
        (format!("{json}content-length: {}\r\n", MAX_BODY + 1), 413),
        (format!("{json}content-length: 0\r\n"), 404),
        (format!("{json}transfer-encoding: chunked\r\n"), 404),
        ("content-type: text/plain\r\ncontent-length: 1\r\n".into(), 404),
    ] {
        let reply = raw(house.address, format!("POST / HTTP/1.1\r\n{lines}\r\n").as_bytes());
        assert_eq!((reply.status(), reply.has("content-length: 0")), (status, true), "{lines}");
    }
    let host = house.host.as_mut().unwrap();
    assert!(matches!(host.receive_until(Instant::now()), Err(ipc::ChannelError::TimedOut)));
    house.shut_down();

    let house = House::new(Limits::default(), DoorConfigure { agent: false, ..constants() });
    assert_eq!(finish(post(&house, 2)).status(), 404);
    house.shut_down();
}

#[test]
fn connections_to_the_agent_leave_places_for_everything_else() {
    let mut house = House::new(Limits { agent: 1, ..Limits::default() }, constants());
    let held = post(&house, 2);
    let call = call(&mut house);
    assert_eq!(finish(post(&house, 2)).status(), 503);
    drop((held, call));
    // The place is free again once the door has noticed.
    let started = Instant::now();
    loop {
        let mut stream = post(&house, 2);
        stream.write_all(b"{}").unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        if !matches!(stream.read(&mut [0]), Ok(1)) {
            break;
        }
        assert!(started.elapsed() < LONG);
    }
    house.shut_down();
}
