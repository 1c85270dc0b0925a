//! Components that misbehave, and what a component can do to the work folder.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::json;
use system_tests::broker::{Launch, Session};
use system_tests::capsule::Capsule;
use system_tests::trace::Trace;
use system_tests::{a2a, http, needs_root, programs};

/// A driver must have a gateway; nothing of these tests uses it.
const NO_GATEWAY: &str = "http://127.0.0.1:9";

fn generation(session: &Session) -> u64 {
    http::get(session.url(), "/resources/files").json()["generation"].as_u64().unwrap()
}

#[test]
fn a_driver_that_misbehaves_fails_its_task_with_the_cause_and_nothing_else() {
    needs_root!();
    let limits = "limits: {deadline_seconds: 1, memory_bytes: 16777216}";
    let capsule = Capsule::driven_by("spin-driver", NO_GATEWAY, &[], limits);
    let mut session = Launch::of(&capsule).start();
    let host = session.role("sandbox-host");
    // The task, the cause of `task_failed`, the code of `inference`, words of the message.
    let cases = [
        ("spin", "driver_error", "driver_failed", "capabilities.limits.deadline_seconds"),
        ("hoard", "driver_error", "driver_failed", "capabilities.limits.memory_bytes"),
        ("trap", "driver_error", "driver_failed", "unreachable"),
        ("garble", "malformed_response", "malformed_response", "not JSON"),
        ("nothing", "malformed_response", "malformed_response", "no data"),
        ("fail", "driver_error", "driver_error", "asked to fail"),
        ("refuse", "driver_error", "driver_error", "asked to refuse"),
    ];
    let mut done = 0;
    for (task, cause, _, words) in cases {
        let failed = a2a::send_message(session.url(), task, task);
        assert_eq!(failed["status"]["state"], "TASK_STATE_FAILED", "{task}: {failed}");
        let message = a2a::message(&failed);
        assert!(message.contains(cause) && message.contains(words), "{task}: {message}");
        assert!(failed.get("artifacts").is_none(), "{task}: {failed}");
        let text = format!("after {task}");
        let next = a2a::complete(session.url(), &text, &text);
        assert_eq!(a2a::answer(&next), text);
        done += 2;
        assert_eq!(generation(&session), done, "a failed task may have written too: {task}");
        assert_eq!(session.role("sandbox-host"), host, "{task}");
    }
    let records = session.records();
    session.stop();

    let trace = Trace::read(&records);
    let failures = trace.of("task_failed");
    let wrong: Vec<_> =
        trace.of("inference").into_iter().filter(|event| event["error_code"].is_string()).collect();
    assert_eq!((failures.len(), wrong.len()), (cases.len(), cases.len()), "{}", trace.text());
    for ((task, cause, code, words), (failure, inference)) in cases.iter().zip(failures.iter().zip(wrong)) {
        assert_eq!((&failure["cause"], &failure["turn"]), (&json!(cause), &json!(0)), "{task}: {failure}");
        assert_eq!(inference["error_code"], *code, "{task}: {inference}");
        assert_eq!((&inference["decision"], &inference["turn"]), (&json!("error"), &json!(0)), "{inference}");
        assert_eq!(inference["task_id"], failure["task_id"], "{task}");
        for text in [&failure["reason"], &inference["error"]] {
            assert!(text.as_str().unwrap().contains(words), "{task}: {text}");
        }
    }
    let statuses: Vec<_> = trace.of("task_end").iter().map(|end| end["exit_status"].clone()).collect();
    let expected: Vec<_> = cases.iter().flat_map(|_| [json!("failed"), json!("ok")]).collect();
    assert_eq!(statuses, expected);
}

/// What its tools wrote until then stays.
#[test]
fn a_driver_that_never_ends_is_ended_by_the_budget_of_turns() {
    needs_root!();
    let capsule = Capsule::driven_by("spin-driver", NO_GATEWAY, &["file-tool"], "");
    let mut session = Launch::of(&capsule).start();
    let task = r#"again file-tool {"write": "out/again.txt", "text": "again"}"#;
    let failed = a2a::send_message(session.url(), "one", task);
    assert_eq!(failed["status"]["state"], "TASK_STATE_FAILED", "{failed}");
    assert!(a2a::message(&failed).contains("inference.max_turns"), "{failed}");
    assert_eq!(http::get(session.url(), "/resources/files/again.txt").text(), "again");
    let records = session.records();
    session.stop();
    let trace = Trace::read(&records);
    assert_eq!(trace.of("task_end")[0]["exit_status"], "max_turns_reached");
    assert_eq!(trace.counts(["inference", "tool_call"]), [4, 4]);
}

#[test]
fn a_client_reads_the_plane_while_a_driver_spins() {
    needs_root!();
    let capsule = Capsule::driven_by("spin-driver", NO_GATEWAY, &[], "limits: {deadline_seconds: 2}");
    capsule.write("out/kept.txt", b"kept\n");
    let mut session = Launch::of(&capsule).start();
    let task = std::thread::spawn({
        let url = session.url().to_owned();
        move || a2a::send_message(&url, "spin", "spin")
    });
    let mut during = 0_u32;
    while !task.is_finished() {
        let read = http::get(session.url(), "/resources/files/kept.txt");
        assert_eq!((read.status, read.text()), (200, "kept\n"));
        let card = http::get(session.url(), "/.well-known/agent-card.json");
        assert_eq!(card.status, 200);
        during += u32::from(read.header("x-murmur-generation") == Some("0"));
    }
    assert_eq!(task.join().unwrap()["status"]["state"], "TASK_STATE_FAILED");
    assert!(during > 0, "no read fell into the task");
    session.stop();
}

/// Asks file-tool for something and returns what the driver was told of it.
fn file_tool(session: &Session, input: &serde_json::Value) -> String {
    let task = format!("tool file-tool {input}");
    a2a::answer(&a2a::complete(session.url(), &task, &task)).to_owned()
}

#[test]
fn a_tool_writes_into_the_work_folder_and_what_is_below_the_root_is_served() {
    needs_root!();
    let capsule = Capsule::driven_by("spin-driver", NO_GATEWAY, &["file-tool"], "");
    capsule.write("notes/given.txt", b"given\n");
    let mut session = Launch::of(&capsule).start();
    let told = file_tool(&session, &json!({"write": "out/made.txt", "text": "made by a tool"}));
    assert!(told.contains(r#"{"written":14}"#), "{told}");
    let read = http::get(session.url(), "/resources/files/made.txt");
    assert_eq!((read.status, read.text()), (200, "made by a tool"));
    assert_eq!(read.header("x-murmur-generation"), Some("1"));
    let sum = programs::sha256sum(&capsule.work().join("out/made.txt"));
    assert_eq!(read.header("etag"), Some(format!("\"sha256:{sum}\"").as_str()));

    let told = file_tool(&session, &json!({"write": "notes/kept.txt", "text": "not exported"}));
    assert!(told.contains(r#"{"written":12}"#), "{told}");
    assert_eq!(fs::read_to_string(capsule.work().join("notes/kept.txt")).unwrap(), "not exported");
    assert_eq!(http::get(session.url(), "/resources/files/kept.txt").status, 404);
    let told = file_tool(&session, &json!({"read": "notes/given.txt"}));
    assert!(told.contains(r#"{"text":"given\n"}"#), "{told}");

    let records = session.records();
    session.stop();
    let trace = Trace::read(&records);
    let calls = trace.of("tool_call");
    assert_eq!(calls.len(), 3);
    for call in calls {
        assert_eq!((&call["tool_name"], &call["status"]), (&json!("file-tool"), &json!("ok")), "{call}");
    }
}

#[test]
fn a_tool_cannot_leave_the_work_folder() {
    needs_root!();
    let capsule = Capsule::driven_by("spin-driver", NO_GATEWAY, &["file-tool"], "");
    fs::write(capsule.folder().join("secret.txt"), "do not tell").unwrap();
    capsule.write("notes/given.txt", b"given\n");
    symlink("../../secret.txt", capsule.work().join("out/up")).unwrap();
    symlink(capsule.folder().join("secret.txt"), capsule.work().join("out/absolute")).unwrap();
    symlink("../..", capsule.work().join("out/folder")).unwrap();
    let before = capsule.paths();
    let mut session = Launch::of(&capsule).start();
    let absolute = capsule.folder().join("secret.txt");
    let paths = [
        "../secret.txt",
        "out/../../secret.txt",
        "out/up",
        "out/absolute",
        "out/folder/secret.txt",
        "/etc/passwd",
        "/proc/self/environ",
        absolute.to_str().unwrap(),
    ];
    for path in paths {
        let told = file_tool(&session, &json!({"read": path}));
        assert!(told.contains("\"error\":\"not-permitted\""), "{path}: {told}");
        let told = file_tool(&session, &json!({"write": path, "text": "overwritten"}));
        assert!(told.contains("\"error\":\"not-permitted\""), "{path}: {told}");
    }
    let told = file_tool(&session, &json!({"write": "../new.txt", "text": "new"}));
    assert!(told.contains("\"error\":\"not-permitted\""), "{told}");
    session.stop();
    assert_eq!(fs::read_to_string(absolute).unwrap(), "do not tell");
    assert!(!capsule.folder().join("new.txt").exists());
    assert_eq!(capsule.paths(), before);
}
