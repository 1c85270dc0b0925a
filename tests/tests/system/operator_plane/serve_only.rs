//! What `--serve-only` runs and answers besides the plane.

use system_tests::trace::Trace;
use system_tests::{a2a, http, needs_root};

use super::{classes, serve, shelf};

#[test]
fn serve_only_runs_broker_door_and_fileserver_and_takes_no_task() {
    needs_root!();
    let capsule = shelf(classes()[0]);
    let mut session = serve(&capsule);
    let mut roles: Vec<String> = session.roles().into_iter().map(|process| process.name).collect();
    roles.sort();
    assert_eq!(roles, ["door", "fileserver"]);
    let card = http::get(session.url(), "/.well-known/agent-card.json");
    assert_eq!((card.status, &card.json()["skills"]), (200, &serde_json::json!([])));
    assert_eq!(a2a::post(session.url(), "{}").status, 404);
    let health = http::get(session.url(), "/healthz");
    assert_eq!((health.status, health.body.len()), (204, 0));

    let records = session.records();
    session.stop();
    let trace = Trace::read(&records);
    assert_eq!(trace.counts(["session_start", "session_end", "task_start", "inference"]), [1, 1, 0, 0]);
}

#[test]
fn a_line_of_the_trace_names_the_process_that_answered() {
    needs_root!();
    let capsule = shelf(classes()[0]);
    let mut session = serve(&capsule);
    for (target, status) in [("report.md", 200), ("missing", 404), ("../secret.txt", 403)] {
        assert_eq!(http::get(session.url(), &format!("/resources/files/{target}")).status, status);
    }
    assert_eq!(http::get(session.url(), "/resources/files").status, 200);
    let records = session.records();
    session.stop();
    let trace = Trace::read(&records);
    let origin = |kind: &str, outcome: &str| {
        let mut events = trace.of(kind).into_iter().filter(|event| event["outcome"] == outcome);
        events.next().unwrap_or_else(|| panic!("no {kind} {outcome}: {}", trace.text()))["process"].clone()
    };
    for (kind, outcome, process) in [
        ("resource_read", "ok", "fileserver"),
        ("resource_read", "not_found", "fileserver"),
        ("resource_read", "outside_root", "door"),
        ("resource_list", "ok", "fileserver"),
    ] {
        assert_eq!(origin(kind, outcome), process, "{kind} {outcome}");
    }
}
