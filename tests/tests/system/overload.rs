//! What must hold when more comes at once than can be looked at, or when a process does not answer.

use std::io::{Read, Write};
use std::net::TcpStream;

use nix::sys::fanotify::{EventFFlags, Fanotify, InitFlags, MarkFlags, MaskFlags};
use rustix::fs::CWD;
use system_tests::plane::get;
use system_tests::process::{self, Signal, until};
use system_tests::trace::Trace;
use system_tests::{http, needs_root, not_run};

use crate::clients::{PATIENCE, REPORT, can_hold, connect, rest, shelf};
use crate::operator_plane::serve;

/// Clients that send whole requests are served, however many come at one moment, as long as they are fewer than the door
/// serves at one time: none of them is one that keeps its head back.
#[test]
fn two_hundred_clients_that_come_at_one_moment_are_all_served() {
    needs_root!();
    if !can_hold(2048) {
        not_run!("this process may not hold 200 connections");
    }
    let capsule = shelf("1Mi");
    let mut session = serve(&capsule);
    let request = get("f/report.md");
    let mut unanswered = 0;
    for _ in 0..20 {
        let mut clients: Vec<TcpStream> = (0..200)
            .map(|_| {
                let mut socket = connect(&session);
                // One that was turned away already is counted below.
                let _ = socket.write_all(&request);
                socket
            })
            .collect();
        for socket in clients.drain(..) {
            unanswered += usize::from(!rest(socket).ends_with(b"hello\n"));
        }
    }
    assert_eq!(unanswered, 0, "of 4000 whole requests, 200 at one moment");
    session.stop();
}

/// TR1: a request is on record once, also if the door gave up waiting for the fileserver before it answered.
#[test]
fn a_read_that_the_fileserver_never_answers_is_refused_and_recorded_once() {
    needs_root!();
    let capsule = shelf("1Mi");
    let mut session = serve(&capsule);
    let fileserver = session.role("fileserver");
    process::signal(fileserver.pid, Signal::STOP);
    let answer = http::exchange(session.url(), &get("f/report.md"), PATIENCE);
    process::signal(fileserver.pid, Signal::CONT);
    let answer = http::parse(&answer.unwrap()).unwrap();
    assert_eq!((answer.status, answer.error().as_str()), (500, "io_error"), "F27");
    // Answered by whoever serves now: what came before it is on record.
    let mut sent = 1;
    until("served again", PATIENCE, || {
        sent += 1;
        (http::get(session.url(), REPORT).status == 200).then_some(())
    });
    let records = session.records();
    session.stop();
    let trace = Trace::read(&records);
    // A late answer of the fileserver that nobody got is neither a second refusal nor a file served.
    assert_eq!(trace.of("resource_read").len(), sent, "{}", trace.text());
}

/// F27: a read that does not come back holds up nobody else, and is answered when it does. The kernel holds the open of one file
/// until a listener has judged it, which this one never does.
#[test]
fn a_file_whose_open_never_returns_holds_up_no_other_read() {
    needs_root!();
    let capsule = shelf("1Mi");
    capsule.write("out/stuck.md", b"late\n");
    let mut session = serve(&capsule);
    let listener =
        Fanotify::init(InitFlags::FAN_CLASS_CONTENT | InitFlags::FAN_CLOEXEC, EventFFlags::O_RDONLY);
    let Ok(listener) = listener else {
        not_run!("the kernel offers no fanotify to hold an open with: {listener:?}");
    };
    let stuck = capsule.work().join("out/stuck.md");
    if let Err(error) = listener.mark(MarkFlags::FAN_MARK_ADD, MaskFlags::FAN_OPEN_PERM, CWD, Some(&stuck)) {
        not_run!("the kernel has no permission events of fanotify: {error}");
    }
    let mut waiting: Vec<TcpStream> = Vec::new();
    // One less than the threads that read.
    for _ in 0..2 {
        let mut socket = connect(&session);
        socket.write_all(&get("f/stuck.md")).unwrap();
        waiting.push(socket);
    }
    for _ in 0..200 {
        assert_eq!(http::get(session.url(), REPORT).status, 200);
    }
    for socket in &waiting {
        socket.set_nonblocking(true).unwrap();
        let nothing = (&*socket).read(&mut [0]).unwrap_err();
        assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock, "it was not held");
        socket.set_nonblocking(false).unwrap();
    }
    // Without a listener nothing is held any more.
    drop(listener);
    for socket in waiting {
        assert!(rest(socket).ends_with(b"late\n"));
    }
    session.stop();
}
