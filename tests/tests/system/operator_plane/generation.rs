//! V: the generation, and what is on record.

use std::fs;
use std::process::Command;

use system_tests::broker::{END_PATIENCE, Launch, Session};
use system_tests::capsule::Capsule;
use system_tests::handle::{Handle, redeem};
use system_tests::plane::{Table, file, get, row};
use system_tests::process::Signal;
use system_tests::{a2a, http, needs_root, not_run};

use super::{LIMIT, classes, serve, shelf};

/// V1, V7: two reads of an unchanged file across a task have one etag and two generations, in answer and record.
#[test]
fn the_generation_advances_with_a_task_and_the_etag_does_not() {
    needs_root!();
    for class in classes() {
        let capsule = shelf(class);
        capsule.write("out/kept.txt", b"kept\n");
        let mut session = Launch::of(&capsule).start();
        let mut table = Table::new(&session, "out/", LIMIT);
        table.check(&row("V1", get("f/kept.txt"), file("kept.txt")));
        a2a::complete(session.url(), "one", "Report on inputs/");
        table.generation = 1;
        table.check(&row("V7", get("f/kept.txt"), file("kept.txt")));
        table.finish();
        assert_eq!(http::get(session.url(), "/resources/files").json()["generation"], 1, "V7");
        session.stop();
    }
}

/// Takes its mount away whatever happens.
struct Mounted(std::path::PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Puts the records of the next session of a capsule on a filesystem of 1 MiB.
///
/// # Errors
/// Why the kernel does not mount it.
fn small_state(capsule: &Capsule) -> Result<Mounted, String> {
    let state = capsule.folder().join("state");
    fs::create_dir(&state).unwrap();
    let mount = ["-t", "tmpfs", "-o", "size=1m,mode=700", "none"];
    let made = Command::new("mount").args(mount).arg(&state).output().unwrap();
    if made.status.success() {
        Ok(Mounted(state))
    } else {
        Err(String::from_utf8_lossy(&made.stderr).trim().to_owned())
    }
}

/// Fills the disk of the records, has `read` try, makes room, reads on and ends: the trace is whole lines but for the one that met
/// the full disk, and has that of `after`, a request that is refused with 404.
fn with_a_full_disk(state: &Mounted, mut session: Session, read: &dyn Fn(&str, usize), after: &str) {
    let filler = state.0.join("filler");
    // Until there is no room for another byte.
    let _ = fs::write(&filler, vec![0; 2 << 20]);
    for number in 0..200 {
        read(session.url(), number);
    }
    fs::remove_file(&filler).unwrap();
    assert_eq!(http::get(session.url(), &format!("/resources/files/{after}")).status, 404);
    let records = session.records();
    session.signal(Signal::TERM);
    assert_eq!(session.wait(END_PATIENCE), Some(0), "{}", session.stderr());
    let text = fs::read_to_string(records.join("trace.jsonl")).unwrap();
    let lines: Vec<Option<serde_json::Value>> =
        text.lines().map(|line| serde_json::from_str(line).ok()).collect();
    let torn = lines.iter().filter(|line| line.is_none()).count();
    assert!(torn <= 1, "at most the line that met the full disk is torn:\n{text}");
    let whole: Vec<_> = lines.into_iter().flatten().collect();
    assert!(
        whole.iter().any(|event| event["path"] == after),
        "the line after the disk had room again:\n{text}"
    );
    assert_eq!(whole.last().unwrap()["event_type"], "session_end", "{text}");
}

/// V13: whoever fills the disk of the records does not take the plane down, and the trace is whole lines afterwards.
#[test]
fn a_full_disk_under_the_trace_refuses_nobody() {
    needs_root!();
    let capsule = shelf(classes()[0]);
    let state = match small_state(&capsule) {
        Ok(state) => state,
        Err(reason) => not_run!("cannot mount: {reason}"),
    };
    let session = serve(&capsule);
    let read = |url: &str, number: usize| {
        let answer = http::get(url, "/resources/files/report.md");
        assert_eq!((answer.status, answer.text()), (200, "hello\n"), "V13: read {number}");
        let refused = http::get(url, "/resources/files/missing");
        assert_eq!((refused.status, refused.error().as_str()), (404, "not_found"), "V13: read {number}");
    };
    read(session.url(), 0);
    with_a_full_disk(&state, session, &read, "after");
}

/// V13 of the other plane.
#[test]
fn a_full_disk_under_the_trace_refuses_no_peer() {
    needs_root!();
    let capsule = Capsule::handoff("writer").and("  files: {root: out/, mode: read-only}");
    capsule.write("out/report.md", b"hello\n");
    let state = match small_state(&capsule) {
        Ok(state) => state,
        Err(reason) => not_run!("cannot mount: {reason}"),
    };
    let session = Launch::of(&capsule).start();
    let handle = Handle::mint_for_itself(&session, "report.md");
    let read = |url: &str, number: usize| {
        let answer = redeem(url, &handle.token, &handle.audience);
        assert_eq!((answer.status, answer.text()), (200, "hello\n"), "V13: redeem {number}");
        let refused = redeem(url, &handle.token, "third@h:1");
        assert_eq!((refused.status, refused.error().as_str()), (403, "handle_not_valid"), "V13: {number}");
    };
    read(session.url(), 0);
    with_a_full_disk(&state, session, &read, "after");
}

/// V6, and a relaunch in another class over the same folder.
#[test]
fn a_relaunch_over_the_same_folder_serves_the_same_bytes_from_generation_0() {
    needs_root!();
    let capsule: Capsule = shelf(classes()[0]);
    for class in [None, Some("advisory")] {
        let mut launch = Launch::of(&capsule).arguments(&["--serve-only"]);
        if let Some(class) = class {
            // A floor below the declared class changes nothing.
            launch = launch.arguments(&["--containment", class]);
        }
        let mut session = launch.start();
        assert_eq!(session.containment(), classes()[0]);
        let mut table = Table::new(&session, "out/", LIMIT);
        table.check(&row("V6", get("f/report.md"), file("report.md")));
        table.finish();
        session.stop();
    }
}
