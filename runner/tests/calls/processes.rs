//! Session processes and connections to them, against the real, confined runner.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use ipc::edge::host_runner::{HostToRunner, MAX_PROCESSES, RunnerToHost};
use ipc::types::RequestId;

use crate::end;
use crate::session::{Request, Session, not_run};

fn sleep() -> Request<'static> {
    Request { program: "sleep", args: &["600"], ..Request::default() }
}

fn ended(session: &mut Session, id: RequestId) -> (i32, bool) {
    match session.answer() {
        RunnerToHost::Ended { id: other, exit_code, killed, .. } if other == id => (exit_code, killed),
        other => panic!("{other:?}"),
    }
}

/// Waits until a process has printed a line.
pub(crate) fn line(pipe: &mut impl Read) -> String {
    let mut text = Vec::new();
    let mut byte = [0];
    while text.last() != Some(&b'\n') && pipe.read(&mut byte).unwrap() == 1 {
        text.push(byte[0]);
    }
    String::from_utf8(text).unwrap()
}

#[test]
fn a_process_goes_on_between_calls_and_its_end_is_told_once() {
    let Some(mut session) = Session::new(3) else { return };
    let (id, [mut stdin, mut stdout, _]) =
        session.started(Request { program: "cat", env: &[("PATH", "x"), ("A", "1")], ..Request::default() });
    stdin.write_all(b"hello\n").unwrap();
    assert_eq!(line(&mut stdout), "hello\n");
    assert_eq!(session.run(Request::default()).finished(), (0, false));
    drop(stdin);
    assert_eq!(ended(&mut session, id), (0, false));
    for (script, code) in [("exit 7", 7), ("kill -SEGV $$", 139)] {
        let (id, _pipes) =
            session.started(Request { program: "bash", args: &["-c", script], ..Request::default() });
        assert_eq!(ended(&mut session, id), (code, false), "{script}");
    }
    assert_eq!(session.living(), "");
    end(session);
}

#[test]
fn a_stop_is_sigterm_to_the_group_and_two_seconds_later_sigkill_to_all() {
    let Some(mut session) = Session::new(2) else { return };
    for (what, script, code, killed) in [
        ("ends at once", "echo x; exec sleep 600", 143, false),
        ("ends in its own way", "trap 'exit 5' TERM; echo x; while :; do sleep 0.05; done", 5, false),
        ("ignores it", "trap '' TERM; echo x; while :; do sleep 1; done", 137, true),
        ("a child ignores it", "(trap '' TERM; echo x; sleep 600) & wait", 143, true),
        ("a child left the group", "setsid bash -c 'echo x; exec sleep 600' & wait", 143, true),
    ] {
        let (id, [_in, mut stdout, _err]) =
            session.started(Request { program: "bash", args: &["-c", script], ..Request::default() });
        assert_eq!(line(&mut stdout), "x\n", "{what}");
        let began = Instant::now();
        session.host.send(&HostToRunner::Stop { id }).unwrap();
        session.host.send(&HostToRunner::Stop { id }).unwrap();
        assert_eq!(ended(&mut session, id), (code, killed), "{what}");
        let took = began.elapsed();
        assert_eq!(took >= Duration::from_secs(2), killed, "{what}: {took:?}");
        assert!(took < Duration::from_secs(8), "{what}: {took:?}");
        assert_eq!((session.living().as_str(), session.children().len()), ("", 0), "{what}");
        // It is over, and that is no error.
        session.host.send(&HostToRunner::Stop { id }).unwrap();
    }
    end(session);
}

#[test]
fn what_an_ended_process_left_lives_until_it_is_stopped_or_its_leaf_is_needed() {
    let Some(mut session) = Session::new(16) else { return };
    let leave = || Request { program: "bash", args: &["-c", "sleep 600 & exit 3"], ..Request::default() };
    let (first, _pipes) = session.started(leave());
    assert_eq!(ended(&mut session, first), (3, false));
    assert_eq!(session.living().lines().count(), 1);
    session.host.send(&HostToRunner::Stop { id: first }).unwrap();
    until(|| session.living().is_empty());
    for _ in 0..12 {
        let (id, _pipes) = session.started(leave());
        assert_eq!(ended(&mut session, id), (3, false));
    }
    until(|| session.living().lines().count() == 8);
    end(session);
}

fn until(mut good: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !good() {
        assert!(Instant::now() < deadline, "it does not come about");
        std::thread::yield_now();
    }
}

#[test]
fn eight_processes_run_beside_runs_and_no_ninth_does() {
    let Some(mut session) = Session::new(2 * MAX_PROCESSES) else { return };
    let running: Vec<_> = (0..MAX_PROCESSES).map(|_| session.started(sleep())).collect();
    let (_, _pipes) = session.launch(sleep());
    let answer = session.answer();
    assert!(matches!(&answer, RunnerToHost::Failed { reason, .. } if reason.contains('8')), "{answer:?}");
    let going: Vec<_> = (0..MAX_PROCESSES).map(|_| session.begin(sleep())).collect();
    for one in going {
        session.host.send(&HostToRunner::Kill { id: one.id }).unwrap();
        let answer = session.answer();
        assert_eq!(session.output(one, answer).finished(), (137, false));
    }
    let (id, _) = &running[3];
    session.host.send(&HostToRunner::Kill { id: *id }).unwrap();
    assert_eq!(ended(&mut session, *id), (137, true));
    let _another = session.started(sleep());
    end(session);
}

#[test]
fn a_process_is_refused_as_a_run_is() {
    let Some(mut session) = Session::with(2, |configure| {
        configure.programs.push(("tilt".into(), "/etc/passwd".into()));
    }) else {
        return;
    };
    let (id, _pipes) = session.launch(Request { program: "git", ..Request::default() });
    let answer = session.answer();
    assert!(matches!(answer, RunnerToHost::NotAllowed { id: other } if other == id), "{answer:?}");
    let (_, _pipes) = session.launch(Request { program: "tilt", ..Request::default() });
    let answer = session.answer();
    assert!(
        matches!(&answer, RunnerToHost::Failed { reason, .. } if reason.contains("executed")),
        "{answer:?}"
    );
    end(session);
}

/// A process that listens, in Perl, which needs no file of its own for this: address family, address as hexadecimal bytes,
/// port, and whether a child in the group (`child`) or outside it (`leave`) is the one that listens, or one that takes no connection
/// (`deaf`).
const SERVER: &str = r#"
my ($family, $address, $port, $how) = (@ARGV, "");
my $name = $family == 2 ? pack('S n H8 x8', 2, $port, $address) : pack('S n N H32 N', 10, $port, 0, $address, 0);
socket(my $s, $family, 1, 0) or die "socket: $!";
setsockopt($s, 1, 2, pack('l', 1)) or die "setsockopt: $!";
if ($family == 10) { setsockopt($s, 41, 26, pack('l', 1)) or die "v6only: $!"; }
bind($s, $name) or die "bind: $!";
listen($s, $how eq 'deaf' ? 0 : 5) or die "listen: $!";
$| = 1;
if ($how eq 'deaf') { print "x\n"; sleep 600; }
if ($how) {
    if (fork) { close $s; sleep 600; }
    setpgrp(0, 0) if $how eq 'leave';
}
print "x\n";
while (accept(my $c, $s)) {
    sysread($c, my $text, 100);
    syswrite($c, uc $text);
    close $c;
}
"#;

fn with_perl() -> Option<Session> {
    let Ok(perl) = std::fs::canonicalize("/usr/bin/perl") else {
        not_run("there is no perl to listen");
        return None;
    };
    let perl = perl.to_str().unwrap().to_owned();
    Session::with(10, |configure| configure.programs.push(("perl".into(), perl)))
}

fn talks(socket: OwnedFd) {
    let mut stream = TcpStream::from(socket);
    stream.set_nonblocking(false).unwrap();
    stream.write_all(b"hello").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "HELLO");
}

#[test]
fn a_connection_leads_to_a_listener_of_the_group_and_to_nobody_else() {
    let Some(mut session) = with_perl() else { return };
    let (local, any, local_6) = ("7f000001", "00000000", "00000000000000000000000000000001");
    let cases: [(&[&str], u16, bool); 6] = [
        (&["2", local, "8001"], 8001, true),
        (&["2", any, "8002"], 8002, true),
        (&["10", local_6, "8003"], 8003, true),
        (&["2", local, "8004", "child"], 8004, true),
        (&["2", local, "8005", "leave"], 8005, false),
        (&["2", "7f000002", "8006"], 8006, false),
    ];
    let (other, _other_pipes) = session.started(sleep());
    let mut kept = Vec::new();
    for (args, port, good) in cases {
        let args: Vec<&str> = ["-e", SERVER].iter().chain(args).copied().collect();
        let (id, [stdin, mut stdout, stderr]) =
            session.started(Request { program: "perl", args: &args, ..Request::default() });
        assert_eq!(line(&mut stdout), "x\n");
        kept.push((stdin, stdout, stderr));
        let (answer, socket) = session.connect(id, port);
        if good {
            assert!(matches!(answer, RunnerToHost::Connected { .. }), "{args:?} {answer:?}");
            talks(socket.unwrap());
        } else {
            assert!(matches!(answer, RunnerToHost::NotListening { .. }), "{args:?} {answer:?}");
        }
        let (answer, _) = session.connect(other, port);
        assert!(matches!(answer, RunnerToHost::NotListening { .. }), "{args:?} {answer:?}");
        let (answer, _) = session.connect(id, 1);
        assert!(matches!(answer, RunnerToHost::NotListening { .. }), "{args:?} {answer:?}");
        session.host.send(&HostToRunner::Stop { id }).unwrap();
        let _ = ended(&mut session, id);
        let (answer, _) = session.connect(id, port);
        assert!(matches!(answer, RunnerToHost::NotListening { .. }), "{args:?} {answer:?}");
    }
    end(session);
}

#[test]
fn a_listener_that_takes_no_connection_is_waited_for_and_holds_up_nobody() {
    let Some(mut session) = with_perl() else { return };
    let args = ["-e", SERVER, "2", "7f000001", "8001", "deaf"];
    let (id, [_in, mut stdout, _err]) =
        session.started(Request { program: "perl", args: &args, ..Request::default() });
    assert_eq!(line(&mut stdout), "x\n");
    // What fits into its queue is connected, the next is not.
    let mut kept = Vec::new();
    let waits = loop {
        let began = Instant::now();
        match session.connect(id, 8001) {
            (RunnerToHost::Connected { .. }, socket) => kept.extend(socket),
            (RunnerToHost::NotAccepted { .. }, None) => break began.elapsed(),
            (other, _) => panic!("{other:?}"),
        }
        assert!(kept.len() < 100);
    };
    assert!(waits >= Duration::from_secs(2) && waits < Duration::from_secs(10), "{waits:?}");
    session
        .host
        .send(&HostToRunner::Connect { id: RequestId(9000), process: id, port: 8001, timeout_ms: 1500 })
        .unwrap();
    let began = Instant::now();
    assert_eq!(session.run(Request::default()).finished(), (0, false));
    assert!(began.elapsed() < Duration::from_millis(1400), "a run need not wait for it");
    let answer = session.answer();
    assert!(matches!(answer, RunnerToHost::NotAccepted { id: RequestId(9000) }), "{answer:?}");
    end(session);
}
