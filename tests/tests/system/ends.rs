//! Ends that somebody asked for: signals, one and two of them.

use std::time::{Duration, Instant};

use system_tests::broker::{END_PATIENCE, LAUNCH_PATIENCE, Launch};
use system_tests::capsule::Capsule;
use system_tests::process::{self, Signal};
use system_tests::remains::assert_nothing_made;
use system_tests::trace::Trace;
use system_tests::{a2a, http, needs_root};

#[test]
fn sigterm_and_sigint_end_with_status_0_and_leave_workdir_and_records() {
    needs_root!();
    for signal in [Signal::TERM, Signal::INT] {
        let capsule = Capsule::reporter();
        let mut session = Launch::of(&capsule).start();
        a2a::complete(session.url(), "one", "Report on notes/");
        let (footprint, records) = (session.footprint(), session.records());
        assert!(footprint.processes().len() >= 5, "{:?}", footprint.processes());
        session.signal(signal);
        assert_eq!(session.wait(END_PATIENCE), Some(0), "{signal:?}: {}", session.stderr());
        footprint.assert_gone();
        assert!(capsule.work().join("out/report.md").is_file(), "the workdir is kept");
        let trace = Trace::read(&records);
        assert_eq!(trace.of("session_end")[0]["exit_status"], "ok", "the records are kept");
    }
}

#[test]
fn sighup_ends_nothing() {
    needs_root!();
    let capsule = Capsule::reporter();
    let mut session = Launch::of(&capsule).arguments(&["--serve-only"]).start();
    session.signal(Signal::HUP);
    process::wait_signal_taken(session.pid(), Signal::HUP, END_PATIENCE);
    assert_eq!(http::get(session.url(), "/healthz").status, 204);
    session.stop();
}

/// A stopped process answers no request to finish, so the first signal cannot be done with before the second comes.
#[test]
fn a_second_signal_ends_at_once_with_143() {
    needs_root!();
    let capsule = Capsule::reporter();
    let mut session = Launch::of(&capsule).arguments(&["--serve-only"]).start();
    let footprint = session.footprint();
    process::signal(session.role("fileserver").pid, Signal::STOP);
    session.signal(Signal::TERM);
    process::wait_signal_taken(session.pid(), Signal::TERM, END_PATIENCE);
    let second = Instant::now();
    session.signal(Signal::TERM);
    assert_eq!(session.wait(END_PATIENCE), Some(143), "{}", session.stderr());
    assert!(second.elapsed() < Duration::from_secs(2), "at once, not after {:?}", second.elapsed());
    footprint.assert_gone();
}

/// The artifacts are compiled for the first time here, which takes a while.
#[test]
fn a_signal_before_the_session_serves_ends_the_launch_and_leaves_nothing() {
    needs_root!();
    for signal in [Signal::TERM, Signal::INT] {
        let capsule = Capsule::reporter();
        let ended = Launch::of(&capsule).run_and(END_PATIENCE, |broker| {
            process::until("a compiler", END_PATIENCE, || {
                process::children(broker).iter().any(|child| child.name == "compiler").then_some(())
            });
            process::signal(broker, signal);
        });
        assert_eq!(ended.code(), Some(143), "{signal:?}: {}", ended.stderr);
        assert!(ended.stderr.contains("a signal ended it before it served"), "{}", ended.stderr);
        assert_eq!(ended.stdout, "", "no ready line");
        assert_nothing_made(capsule.folder());
    }
}

#[test]
fn once_says_by_its_status_that_the_task_did_not_complete() {
    needs_root!();
    let capsule = Capsule::driven_by("spin-driver", "http://127.0.0.1:9", &[], "");
    let ended = Launch::of(&capsule).arguments(&["--once", "--task", "fail"]).run(LAUNCH_PATIENCE);
    assert_eq!(ended.code(), Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("error[E-RUN-040]"), "{}", ended.stderr);
}

#[test]
fn sigterm_in_the_middle_of_a_task_ends_cleanly() {
    needs_root!();
    let capsule = Capsule::reporter();
    for number in 0..300 {
        capsule.write(&format!("many/{number:03}.txt"), b"text\n");
    }
    let mut session = Launch::of(&capsule).arguments(&["--task", "Report on many/"]).start();
    let records = session.records();
    // The runner's first program is the sign that the task runs.
    process::until("a program runs or the task is over", END_PATIENCE, || {
        let runs = session.processes().iter().any(|process| process.name == "bash");
        let over = http::get(session.url(), "/resources/files").json()["generation"] == 1;
        (runs || over).then_some(())
    });
    session.stop();
    let trace = Trace::read(&records);
    assert_eq!(trace.counts(["session_start", "session_end"]), [1, 1], "{}", trace.text());
}
