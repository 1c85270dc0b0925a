//! Ends that nobody asked for: each process killed in turn.

use std::time::Duration;

use system_tests::broker::{END_PATIENCE, Launch, Session};
use system_tests::capsule::Capsule;
use system_tests::process::{self, Signal};
use system_tests::{a2a, http, needs_root};

fn with_a_report() -> (Capsule, Session) {
    let capsule = Capsule::reporter();
    let session = Launch::of(&capsule).start();
    a2a::complete(session.url(), "one", "Report on inputs/");
    (capsule, session)
}

#[test]
fn a_killed_door_is_replaced_and_the_next_request_is_answered() {
    needs_root!();
    let (_capsule, mut session) = with_a_report();
    let door = session.role("door");
    let watched = process::watch(std::slice::from_ref(&door));
    process::signal(door.pid, Signal::KILL);
    assert!(process::wait_ended(&watched, END_PATIENCE).is_empty());
    // The listening socket is the broker's: a connection made now waits for the next door.
    let read = http::get(session.url(), "/resources/files/report.md");
    assert_eq!((read.status, read.header("x-murmur-generation")), (200, Some("1")));
    assert_ne!(session.role("door"), door);
    a2a::complete(session.url(), "two", "Report on notes/");
    named(&session, "door");
    session.stop();
}

#[test]
fn a_killed_fileserver_is_replaced_and_the_next_request_is_answered() {
    needs_root!();
    let (_capsule, mut session) = with_a_report();
    let old = session.role("fileserver");
    session.replace("fileserver");
    // The next request waits for the new one's channel, or is refused as one that was in flight at the old one: once at most.
    let answers: Vec<_> = (0..2)
        .map(|_| http::get(session.url(), "/resources/files/report.md"))
        .map(|read| (read.status, read.header("x-murmur-generation").map(str::to_owned)))
        .collect();
    assert_eq!(answers[1], (200, Some("1".to_owned())), "{answers:?}: the number survives");
    assert!(answers[0] == answers[1] || answers[0].0 == 500, "{answers:?}");
    assert_ne!(session.role("fileserver"), old);
    named(&session, "fileserver");
    session.stop();
}

#[test]
fn processes_that_are_killed_together_are_replaced_together() {
    needs_root!();
    let (_capsule, mut session) = with_a_report();
    // Not three times of any: that would be the end.
    for names in [&["door", "fileserver"][..], &["fileserver", "egress", "door"]] {
        let old: Vec<_> = names.iter().map(|name| session.role(name)).collect();
        let watched = process::watch(&old);
        for process in &old {
            process::signal(process.pid, Signal::KILL);
        }
        assert!(process::wait_ended(&watched, END_PATIENCE).is_empty());
        process::until("all of them again", END_PATIENCE, || {
            let now = session.roles();
            let again =
                |name: &&str| now.iter().any(|process| process.name == **name && !old.contains(process));
            names.iter().all(again).then_some(())
        });
        process::until("a read", END_PATIENCE, || {
            (http::get(session.url(), "/resources/files/report.md").status == 200).then_some(())
        });
    }
    a2a::complete(session.url(), "two", "Report on notes/");
    assert_eq!(http::get(session.url(), "/resources/files").json()["generation"], 2);
    session.stop();
}

#[test]
fn a_broker_whose_standard_error_takes_nothing_goes_on() {
    needs_root!();
    let capsule = Capsule::reporter();
    let mut session = Launch::of(&capsule).unheard().start();
    a2a::complete(session.url(), "one", "Report on inputs/");
    // Each of them is worth a warning.
    session.replace("door");
    session.replace("egress");
    a2a::complete(session.url(), "two", "Report on notes/");
    assert_eq!(http::get(session.url(), "/resources/files").json()["generation"], 2);
    session.stop();
}

#[test]
fn a_killed_egress_is_replaced_and_the_next_task_is_done() {
    needs_root!();
    let (_capsule, mut session) = with_a_report();
    session.replace("egress");
    a2a::complete(session.url(), "two", "Report on notes/");
    assert_eq!(http::get(session.url(), "/resources/files").json()["generation"], 2);
    named(&session, "egress");
    session.stop();
}

/// The death is announced to the operator with the role and the signal.
fn named(session: &Session, role: &str) {
    let log = session.stderr();
    let told = log
        .lines()
        .any(|line| line.contains(role) && (line.contains("signal 9") || line.contains("SIGKILL")));
    assert!(told, "no line names {role} and its signal:\n{log}");
}

#[test]
fn a_third_death_of_a_role_within_a_minute_ends_the_session_with_status_3() {
    needs_root!();
    let (_capsule, mut session) = with_a_report();
    let footprint = session.footprint();
    session.replace("door");
    session.replace("door");
    process::signal(session.role("door").pid, Signal::KILL);
    assert_eq!(session.wait(END_PATIENCE), Some(3), "{}", session.stderr());
    named(&session, "door");
    footprint.assert_gone();
}

#[test]
fn a_killed_sandbox_host_or_runner_ends_the_session_with_its_name_and_status_3() {
    needs_root!();
    for role in ["sandbox-host", "runner"] {
        let (capsule, mut session) = with_a_report();
        let footprint = session.footprint();
        process::signal(session.role(role).pid, Signal::KILL);
        assert_eq!(session.wait(END_PATIENCE), Some(3), "{role}: {}", session.stderr());
        named(&session, role);
        footprint.assert_gone();
        assert!(capsule.work().join("out/report.md").is_file(), "the workdir is kept");
    }
}

#[test]
fn no_process_outlives_a_killed_broker_by_two_seconds_and_the_next_launch_sweeps_the_rest() {
    needs_root!();
    let (capsule, mut session) = with_a_report();
    let footprint = session.footprint();
    let watched = process::watch(footprint.processes());
    assert_eq!(watched.len(), footprint.processes().len());
    session.signal(Signal::KILL);
    assert_eq!(session.wait(END_PATIENCE), None, "ended by the signal");
    let late = process::wait_ended(&watched, Duration::from_secs(2));
    assert!(late.is_empty(), "outlived the broker: {late:?}");
    let left = [footprint.living(), footprint.mounts()].concat();
    assert!(left.is_empty(), "left behind:\n{}", left.join("\n"));

    // Its run directory and control group may stay until somebody launches again, in the same directories.
    let mut next = Launch::of(&capsule).arguments(&["--serve-only"]).start();
    assert_eq!(http::get(next.url(), "/resources/files/report.md").status, 200);
    footprint.assert_gone();
    next.stop();
}
