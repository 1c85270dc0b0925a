//! Calls of sandbox-host against the real, confined runner. Needs root and a writable cgroup v2; says so otherwise.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail at any step"
)]

mod limits;
mod processes;
mod session;

use std::time::{Duration, Instant};

use confine::spawn::Exit;
use ipc::edge::host_runner::{HostToRunner, RunnerToHost};
use ipc::edge::runner_broker::RunnerToBroker;
use session::{End, Request, Session};

/// Ends a session the ordinary way and checks that it was one.
fn end(session: Session) {
    assert_eq!(session.end(End::Shutdown), (Exit::Status(0), String::new()));
}

#[test]
fn exit_codes_and_signals_are_reported_as_a_shell_would() {
    let Some(mut session) = Session::new(2) else { return };
    for (script, code) in [
        ("exit 0", 0),
        ("exit 3", 3),
        ("exit 137", 137),
        ("kill -9 $$", 137),
        ("kill -SEGV $$", 139),
        ("kill -TERM $$", 143),
        ("exit 255", 255),
    ] {
        assert_eq!(session.bash(script).finished(), (code, false), "{script}");
    }
    assert_eq!(session.run(Request::default()).finished(), (0, false));
    assert_eq!(session.run(Request { program: "false", ..Request::default() }).finished(), (1, false));
    end(session);
}

#[test]
fn everything_a_call_started_is_dead_when_it_returns() {
    let Some(mut session) = Session::new(1) else { return };
    for (what, script) in [
        ("background", "sleep 600 & echo done"),
        ("new session", "setsid -f sleep 600; (setsid sh -c 'trap : TERM HUP; sleep 600' &); echo done"),
        ("double fork that holds stdout", "(setsid bash -c '(sleep 600 &) ; sleep 600' &) ; echo done"),
        ("stopped", "sleep 600 & kill -STOP $!; echo done"),
        ("many", "for i in $(seq 100); do sleep 600 & done; echo done"),
        ("forking on", "(while :; do (sleep 600 &); sleep 0.01; done) & sleep 0.2; echo done"),
    ] {
        let began = Instant::now();
        let output = session.bash(script);
        assert_eq!((output.finished(), output.text().as_str()), ((0, false), "done\n"), "{what}");
        assert!(began.elapsed() < Duration::from_secs(5), "{what}: {:?}", began.elapsed());
        assert_eq!(session.living(), "", "{what}");
        // A leaf is empty a moment before the kernel tells the runner of its last children.
        let deadline = began + Duration::from_secs(10);
        while !session.children().is_empty() {
            assert!(Instant::now() < deadline, "{what}: zombies stay: {:?}", session.children());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    end(session);
}

#[test]
fn a_call_ends_when_its_time_is_over_whatever_the_program_does() {
    let Some(mut session) = Session::new(1) else { return };
    for (what, script) in [
        ("sleeps", "sleep 600"),
        ("ignores", "trap '' TERM INT HUP; while :; do sleep 1; done"),
        ("is stopped", "kill -STOP $$"),
        ("spins in children", "for i in 1 2 3; do (while :; do :; done) & done; wait"),
        ("floods", "yes"),
    ] {
        let began = Instant::now();
        let timeout = Duration::from_millis(300);
        let output =
            session.run(Request { program: "bash", args: &["-c", script], timeout, ..Request::default() });
        assert_eq!(output.finished(), (137, true), "{what}");
        let took = began.elapsed();
        assert!(took >= timeout && took < Duration::from_secs(5), "{what}: {took:?}");
        assert_eq!((session.living().as_str(), session.children().len()), ("", 0), "{what}");
    }
    let output = session.run(Request {
        program: "sleep",
        args: &["9"],
        timeout: Duration::ZERO,
        ..Request::default()
    });
    assert_eq!(output.finished(), (137, true));
    let output = session.run(Request { timeout: Duration::MAX, ..Request::default() });
    assert_eq!(output.finished(), (0, false));
    end(session);
}

/// A program has its final id before its exec, so that another one may stop it there: the runner waits for no child without end.
#[test]
fn a_program_that_stops_all_others_holds_up_no_call() {
    let Some(mut session) = Session::new(2) else { return };
    let script = "trap '' TERM; echo began; while :; do kill -STOP -1 2>/dev/null; done";
    let (id, [_stdin, mut stdout, _]) =
        session.started(Request { program: "bash", args: &["-c", script], ..Request::default() });
    assert_eq!(processes::line(&mut stdout), "began\n");
    for _ in 0..5 {
        let began = Instant::now();
        let output = session.run(Request { timeout: Duration::from_millis(300), ..Request::default() });
        assert!(began.elapsed() < Duration::from_secs(10), "{output:?}");
        assert_ne!(output.answer.id(), id, "{output:?}");
    }
    session.host.send(&HostToRunner::Kill { id }).unwrap();
    let ended = session.answer();
    assert!(matches!(ended, RunnerToHost::Ended { id: other, .. } if other == id), "{ended:?}");
    assert_eq!(session.run(Request::default()).finished(), (0, false));
    end(session);
}

#[test]
fn a_call_that_is_killed_finishes_and_killing_it_twice_is_nothing() {
    let Some(mut session) = Session::new(2) else { return };
    let going = session.begin(Request { program: "sleep", args: &["600"], ..Request::default() });
    let other =
        session.begin(Request { program: "bash", args: &["-c", "sleep 1; echo x"], ..Request::default() });
    let kill = HostToRunner::Kill { id: going.id };
    session.host.send(&kill).unwrap();
    session.host.send(&kill).unwrap();
    let answer = session.answer();
    assert!(matches!(answer, RunnerToHost::Finished { id, .. } if id == going.id), "{answer:?}");
    assert_eq!(session.output(going, answer).finished(), (137, false));
    session.host.send(&kill).unwrap();
    let answer = session.answer();
    let output = session.output(other, answer);
    assert_eq!((output.finished(), output.text().as_str()), ((0, false), "x\n"));
    end(session);
}

#[test]
fn more_calls_than_leaves_are_refused_with_words_and_leaves_are_used_again() {
    let Some(mut session) = Session::new(3) else { return };
    for _ in 0..3 {
        let sleep = || Request { program: "sleep", args: &["600"], ..Request::default() };
        let going: Vec<_> = (0..3).map(|_| session.begin(sleep())).collect();
        let output = session.run(Request::default());
        let RunnerToHost::Failed { reason, .. } = &output.answer else { panic!("{output:?}") };
        assert_eq!(reason, "too many programs run at the same time");
        for one in going {
            session.host.send(&HostToRunner::Kill { id: one.id }).unwrap();
            let answer = session.answer();
            assert_eq!(session.output(one, answer).finished(), (137, false));
        }
    }
    assert_eq!(session.run(Request::default()).finished(), (0, false));
    end(session);
}

#[test]
fn stdin_is_what_was_given_or_nothing() {
    let Some(mut session) = Session::new(1) else { return };
    let cat = |stdin| Request { program: "cat", stdin, ..Request::default() };
    assert_eq!(session.run(cat(None)).stdout, b"");
    assert_eq!(session.run(cat(Some(vec![]))).stdout, b"");
    assert_eq!(session.run(cat(Some(b"hello".to_vec()))).stdout, b"hello");
    let big: Vec<u8> = (0..8 << 20).map(|n: u32| (n / 3) as u8).collect();
    assert!(session.run(cat(Some(big.clone()))).stdout == big);
    // Nobody reads it: the writer's end breaks, the call does not.
    let output = session.run(Request { stdin: Some(big), ..Request::default() });
    assert_eq!(output.finished(), (0, false));
    end(session);
}

#[test]
fn both_outputs_are_drained_while_the_program_runs() {
    let Some(mut session) = Session::new(1) else { return };
    let output = session.bash("head -c 50000000 /dev/zero & head -c 20000000 /dev/zero >&2; wait");
    assert_eq!(output.finished(), (0, false));
    assert_eq!((output.stdout.len(), output.stderr.len()), (50_000_000, 20_000_000));
    let output = session.bash("yes | head -1");
    assert_eq!((output.finished(), output.text().as_str()), ((0, false), "y\n"));
    end(session);
}

#[test]
fn only_names_on_the_list_run() {
    let Some(mut session) = Session::new(1) else { return };
    std::fs::write(session.workdir.join("true"), "#!/bin/sh\necho planted\n").unwrap();
    std::fs::write(session.workdir.join("git"), "#!/bin/sh\necho planted\n").unwrap();
    for program in ["git", "./git", "./true", "/usr/bin/true", "", "true\0", "../bin/true", "TRUE"] {
        let output = session.run(Request { program, ..Request::default() });
        assert!(matches!(output.answer, RunnerToHost::NotAllowed { .. }), "{program:?} {output:?}");
    }
    assert_eq!(session.run(Request::default()).text(), "");
    end(session);
}

#[test]
fn odd_requests_fail_with_words() {
    let Some(mut session) = Session::with(1, |configure| {
        configure.programs.push(("tilt".into(), "/etc/passwd".into()));
    }) else {
        return;
    };
    let long = "x".repeat(60_000);
    for (program, args, env) in [
        ("echo", &["a\0b"][..], &[][..]),
        ("echo", &[], &[("A\0", "x")]),
        ("echo", &[], &[("A", "x\0")]),
        ("echo", &[], &[("A=B", "x")]),
        ("echo", &[], &[("", "x")]),
        ("tilt", &[], &[]),
    ] {
        let output = session.run(Request { program, args, env, ..Request::default() });
        let RunnerToHost::Failed { reason, .. } = &output.answer else { panic!("{program} {output:?}") };
        assert!(reason.len() > 20, "{reason}");
    }
    // Long is not odd.
    let output = session.run(Request { program: "echo", args: &[&long], ..Request::default() });
    assert_eq!(output.stdout.len(), 60_001);
    let output =
        session.run(Request { program: "env", env: &[("A", "1"), ("A", "2")], ..Request::default() });
    assert!(output.text().contains("A=2\n") && !output.text().contains("A=1\n"));
    end(session);
}

#[test]
fn a_request_cannot_set_what_belongs_to_the_runtime_or_the_loader() {
    let Some(mut session) = Session::new(1) else { return };
    let names = [
        "LD_PRELOAD",
        "LD_AUDIT",
        "LD_LIBRARY_PATH",
        "BASH_ENV",
        "ENV",
        "PATH",
        "HOME",
        "TMPDIR",
        "MURMUR_RUNTIME_DIR",
        "MURMUR_X",
        "AWS_X",
        "MY_API_KEY",
    ];
    let pairs: Vec<_> = names.iter().map(|name| (*name, "./evil")).chain([("KEPT", "yes")]).collect();
    let output = session.run(Request { program: "env", env: &pairs, ..Request::default() });
    let text = output.text();
    let RunnerToHost::Finished { env_dropped, .. } = &output.answer else { panic!("{output:?}") };
    let mut sorted = names;
    sorted.sort_unstable();
    assert_eq!(*env_dropped, sorted);
    assert!(text.contains("KEPT=yes\n") && text.contains("PATH=/usr/bin:/bin\n"), "{text}");
    assert!(!text.contains("evil"), "{text}");
    end(session);
}

#[test]
fn a_program_begins_in_the_workdir_with_nothing_it_was_not_given() {
    let Some(mut session) = Session::new(1) else { return };
    let workdir = session.workdir.to_str().unwrap().to_owned();
    let output =
        session.run(Request { program: "readlink", args: &["/proc/self/cwd"], ..Request::default() });
    assert_eq!(output.text().trim_end(), workdir, "{output:?}");
    // The fourth is the directory it lists.
    let output = session.run(Request { program: "ls", args: &["/proc/self/fd"], ..Request::default() });
    assert_eq!(output.text(), "0\n1\n2\n3\n", "{output:?}");
    let output = session.bash("echo $$ $PPID; ulimit -n; ulimit -c; umask");
    let lines: Vec<_> = output.text().lines().map(str::to_owned).collect();
    assert!(lines[0].ends_with(" 1"), "the runner is pid 1: {lines:?}");
    assert_eq!(lines[1..], ["256", "0", "0022"], "{output:?}");
    let output = session.run(Request {
        program: "grep",
        args: &["-E", "^(Sig(Blk|Ign)|NoNewPrivs|Seccomp|Cap...):", "/proc/self/status"],
        ..Request::default()
    });
    for line in output.text().lines() {
        let value = line.split_whitespace().nth(1).unwrap();
        match line.split(':').next().unwrap() {
            "NoNewPrivs" => assert_eq!(value, "1"),
            "Seccomp" => assert_eq!(value, "2"),
            _ => assert_eq!(value, "0000000000000000", "{line}"),
        }
    }
    assert_eq!(output.text().lines().count(), 9, "{output:?}");
    end(session);
}

#[test]
fn programs_share_the_workdir_and_nothing_they_make_there_runs() {
    let Some(mut session) = Session::new(1) else { return };
    let output = session.bash(
        "umask 022; echo 'echo planted' > s.tmp && mv s.tmp s && mktemp -p . x.XXXX >/dev/null && echo ok",
    );
    assert_eq!((output.finished().0, output.text().as_str()), (0, "ok\n"), "{output:?}");
    assert_eq!(std::fs::read_to_string(session.workdir.join("s")).unwrap(), "echo planted\n");
    std::fs::copy(std::fs::canonicalize("/usr/bin/echo").unwrap(), session.workdir.join("copy")).unwrap();
    let output =
        session.bash("./copy planted; /lib64/ld-linux-x86-64.so.2 ./copy planted; exec ./copy planted");
    assert_eq!(output.finished().0, 126, "{output:?}");
    assert!(!output.text().contains("planted"), "{output:?}");
    let output = session.bash("cat /etc/shadow; echo x > /etc/hostname; cat /proc/1/environ; ls /root");
    assert_ne!(output.finished().0, 0);
    assert_eq!(output.text(), "", "{output:?}");
    end(session);
}

#[test]
fn programs_cannot_end_the_runner() {
    let Some(mut session) = Session::new(1) else { return };
    let script = "for s in ABRT SEGV SYS BUS KILL TERM HUP INT CHLD STOP QUIT PIPE USR1 ALRM 34 64; do kill -$s 1; done; echo sent";
    for _ in 0..3 {
        assert_eq!(session.bash(script).text(), "sent\n");
    }
    assert_eq!(session.run(Request::default()).finished(), (0, false));
    end(session);
}

#[test]
fn a_leaf_that_does_not_become_empty_is_reported_and_not_used_until_it_is() {
    // A kernel that cannot end a process is not to be had: a file says that the leaf is populated.
    let file = std::env::temp_dir().join(format!("runner-events-{}", std::process::id()));
    std::fs::write(&file, "populated 1\nfrozen 0\n").unwrap();
    let Some(mut session) = Session::with_events(2, &file) else { return };
    let began = Instant::now();
    let output = session.run(Request::default());
    assert!(matches!(output.answer, RunnerToHost::Failed { .. }), "{output:?}");
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(2) && took < Duration::from_secs(10), "{took:?}");
    let event = session.broker.receive_until(Instant::now() + Duration::from_secs(5)).unwrap().message;
    assert!(matches!(event, RunnerToBroker::LeafStuck { leaf: 0 }), "{event:?}");
    // One leaf is left, and the runner goes on with it.
    let sleeping = session.begin(Request { program: "sleep", args: &["600"], ..Request::default() });
    let refused = session.run(Request::default());
    assert!(matches!(refused.answer, RunnerToHost::Failed { .. }), "{refused:?}");
    std::fs::write(&file, "populated 0\nfrozen 0\n").unwrap();
    // Whatever wakes the runner next makes it look again: this request does.
    drop(session.run(Request { program: "nothing", ..Request::default() }));
    assert_eq!(session.run(Request::default()).finished(), (0, false));
    session.host.send(&HostToRunner::Kill { id: sleeping.id }).unwrap();
    let answer = session.answer();
    assert_eq!(session.output(sleeping, answer).finished(), (137, false));
    std::fs::remove_file(file).unwrap();
    end(session);
}

#[test]
fn ten_thousand_calls_leave_no_descriptor_and_no_process() {
    let Some(mut session) = Session::new(2) else { return };
    session.bash("true");
    let before = session.descriptors();
    let began = Instant::now();
    for number in 0..10_000 {
        match number % 10 {
            0 => drop(session.run(Request { program: "nothing", ..Request::default() })),
            1 => drop(session.run(Request { args: &["\0"], stdin: Some(vec![1]), ..Request::default() })),
            2 => drop(session.run(Request { stdin: Some(vec![1]), ..Request::default() })),
            _ => assert_eq!(session.run(Request::default()).finished(), (0, false)),
        }
    }
    println!("10,000 calls, 8,000 of them programs, took {:?}", began.elapsed());
    assert_eq!(session.descriptors(), before);
    assert_eq!((session.living().as_str(), session.children().len()), ("", 0));
    end(session);
}

#[test]
fn the_end_of_the_session_kills_what_runs_and_is_an_orderly_exit() {
    for end in [End::Shutdown, End::HostCloses] {
        let Some(mut session) = Session::new(2) else { return };
        let going = session.begin(Request {
            program: "bash",
            args: &["-c", "setsid -f sleep 600; sleep 600; :"],
            ..Request::default()
        });
        // Until the program runs, so that there is something to kill.
        let until = Instant::now() + Duration::from_secs(20);
        while session.living().lines().count() < 3 {
            assert!(Instant::now() < until, "the programs do not run");
            std::thread::yield_now();
        }
        let pids: Vec<String> = session.living().lines().map(str::to_owned).collect();
        assert_eq!(session.end(end), (Exit::Status(0), String::new()), "{end:?}");
        for pid in pids {
            assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "{pid} lives");
        }
        drop(going);
    }
}

#[test]
fn a_peer_that_breaks_the_rules_ends_the_runner_with_words() {
    let Some(mut session) = Session::new(2) else { return };
    let going = session.begin(Request { program: "sleep", args: &["600"], ..Request::default() });
    let again = going.id.0 - 1;
    // The same number once more.
    drop(going);
    session.reuse(again);
    let second = session.begin(Request::default());
    drop(second);
    assert_eq!(
        session.end(End::ByItself),
        (Exit::Status(1), "runner: sandbox-host used one request number twice\n".to_owned())
    );
}
