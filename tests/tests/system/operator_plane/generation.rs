//! V: the generation, and what is on record.

use std::fs;
use std::process::Command;

use system_tests::broker::Launch;
use system_tests::capsule::Capsule;
use system_tests::plane::{Table, file, get, row};
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

/// V13: whoever fills the disk of the records does not take the plane down, and the trace is whole lines afterwards.
#[test]
fn a_full_disk_under_the_trace_refuses_nobody() {
    needs_root!();
    let capsule = shelf(classes()[0]);
    let state = capsule.folder().join("state");
    fs::create_dir(&state).unwrap();
    let mount = ["-t", "tmpfs", "-o", "size=1m,mode=700", "none"];
    let made = Command::new("mount").args(mount).arg(&state).output().unwrap();
    if !made.status.success() {
        not_run!("cannot mount: {}", String::from_utf8_lossy(&made.stderr).trim());
    }
    let _mounted = Mounted(state.clone());
    let mut session = serve(&capsule);
    let read = || http::get(session.url(), "/resources/files/report.md");
    assert_eq!(read().status, 200);
    let filler = state.join("filler");
    // Until there is no room for another byte.
    let _ = fs::write(&filler, vec![0; 2 << 20]);
    for number in 0..200 {
        let answer = read();
        assert_eq!((answer.status, answer.text()), (200, "hello\n"), "V13: read {number}");
        let refused = http::get(session.url(), "/resources/files/missing");
        assert_eq!((refused.status, refused.error().as_str()), (404, "not_found"), "V13: read {number}");
    }
    fs::remove_file(&filler).unwrap();
    assert_eq!(http::get(session.url(), "/resources/files/after").status, 404);
    let records = session.records();
    session.signal(system_tests::process::Signal::TERM);
    assert_eq!(session.wait(system_tests::broker::END_PATIENCE), Some(0), "{}", session.stderr());
    let text = fs::read_to_string(records.join("trace.jsonl")).unwrap();
    let lines: Vec<Option<serde_json::Value>> =
        text.lines().map(|line| serde_json::from_str(line).ok()).collect();
    let torn = lines.iter().filter(|line| line.is_none()).count();
    assert!(torn <= 1, "at most the line that met the full disk is torn:\n{text}");
    let whole: Vec<_> = lines.into_iter().flatten().collect();
    assert!(
        whole.iter().any(|event| event["path"] == "after"),
        "the line after the disk had room again:\n{text}"
    );
    assert_eq!(whole.last().unwrap()["event_type"], "session_end", "{text}");
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
