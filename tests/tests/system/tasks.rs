//! Tasks from launch, from other agents, and what is served after each.

use std::fs;

use serde_json::Value;
use system_tests::broker::{END_PATIENCE, LAUNCH_PATIENCE, Launch};
use system_tests::capsule::{Capsule, expected_rows, rows};
use system_tests::process::until;
use system_tests::trace::Trace;
use system_tests::{a2a, http, needs_root, programs};

/// Reads the report over HTTP, checks listing, headers and generation against each other and the hash against
/// `sha256sum`, and returns the text.
fn report(url: &str, generation: u64) -> String {
    let listing = http::get(url, "/resources/files").json();
    assert_eq!(listing["generation"], generation, "{listing}");
    let read = http::get(url, "/resources/files/report.md");
    assert_eq!(read.status, 200, "{}", read.text());
    assert_eq!(read.header("x-murmur-generation"), Some(generation.to_string().as_str()));
    let sum = programs::sha256sum_of(&read.body);
    assert_eq!(read.header("etag"), Some(format!("\"sha256:{sum}\"").as_str()));
    let entries = listing["entries"].as_array().unwrap();
    let paths: Vec<&Value> = entries.iter().map(|entry| &entry["path"]).collect();
    assert_eq!(paths, ["report.md"], "{listing}");
    assert_eq!((&entries[0]["sha256"], &entries[0]["size_bytes"]), (&sum.into(), &read.body.len().into()));
    read.text().to_owned()
}

#[test]
fn three_tasks_over_a2a_give_three_generations_and_leave_nothing() {
    needs_root!();
    let capsule = Capsule::reporter();
    let before = capsule.paths();
    let mut session = Launch::of(&capsule).start();
    let url = session.url().to_owned();
    assert_eq!(http::get(&url, "/resources/files").json()["generation"], 0);

    let mut reports = Vec::new();
    for (generation, folder) in [(1, "inputs"), (2, "notes"), (3, "inputs")] {
        let task = format!("Report on {folder}/");
        a2a::complete(&url, &format!("message-{generation}"), &task);
        let report = report(&url, generation);
        assert_eq!(rows(&report), expected_rows(&capsule.work().join(folder)), "{report}");
        assert!(report.contains(&task), "{report}");
        reports.push(report);
    }
    assert_ne!(reports[0], reports[1], "two tasks, two reports");
    assert_eq!(reports[0], reports[2], "the same inputs, the same report");

    let records = session.records();
    session.stop();
    let mut expected: Vec<String> = before.into_iter().filter(|path| !path.starts_with("out")).collect();
    expected.extend(["out".to_owned(), "out/report.md".to_owned()]);
    expected.sort();
    assert_eq!(capsule.paths(), expected, "nothing but the report is new in the work folder");
    trace_of_three_tasks(&Trace::read(&records));
}

fn trace_of_three_tasks(trace: &Trace) {
    let kinds = ["session_start", "task_start", "task_end", "resource_list", "resource_read", "session_end"];
    assert_eq!(trace.counts(kinds), [1, 3, 3, 4, 3, 1], "{}", trace.text());
    for end in trace.of("task_end") {
        assert_eq!(end["exit_status"], "ok", "{end}");
    }
    let generations: Vec<&Value> = trace.of("resource_read").iter().map(|read| &read["generation"]).collect();
    assert_eq!(generations, [1, 2, 3]);
    let shells = trace.of("shell");
    assert!(shells.len() >= 3, "{}", trace.text());
    for shell in &shells {
        assert_eq!(shell["exit_code"], 0, "{shell}");
        assert!(shell["binary"].as_str().unwrap().ends_with("bash"), "{shell}");
    }
    let calls = trace.of("tool_call");
    assert_eq!(calls.len(), shells.len());
    let end = trace.of("session_end")[0];
    assert_eq!(end["exit_status"], "ok", "{end}");
    assert_eq!(end["total_tool_calls"], calls.len(), "{end}");
    assert_eq!(end["total_shell_calls"], shells.len(), "{end}");
    assert_eq!(end["total_turns"], trace.of("inference").len(), "{end}");
}

#[test]
fn the_task_of_the_command_line_is_done_and_readable() {
    needs_root!();
    let capsule = Capsule::reporter();
    let mut session = Launch::of(&capsule).arguments(&["--task", "Report on notes/"]).start();
    let url = session.url().to_owned();
    // Nothing calls a reader back when a task ends; the plane is asked.
    until("generation 1", LAUNCH_PATIENCE, || {
        (http::get(&url, "/resources/files").json()["generation"] == 1).then_some(())
    });
    assert_eq!(rows(&report(&url, 1)), expected_rows(&capsule.work().join("notes")));
    session.stop();
}

/// What a person sees, and a program does not.
#[test]
fn a_terminal_shows_a_banner_with_class_address_and_processes() {
    needs_root!();
    let arguments = ["--once", "--task", "Report on inputs/"];
    let capsule = Capsule::reporter();
    let ended = Launch::of(&capsule).arguments(&arguments).on_a_terminal().run(LAUNCH_PATIENCE);
    assert_eq!(ended.code(), Some(0), "{}{}", ended.stdout, ended.stderr);
    let shown = ended.stdout;
    assert!(shown.contains("capsule-broker ") && shown.contains("  session    ses_"), "{shown}");
    for part in [
        "address",
        "class",
        "workdir",
        "records",
        "broker  ",
        "door",
        "fileserver",
        "sandbox-host",
        "runner",
        "egress",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(shown.contains("http://127.0.0.1:") && shown.contains("sealed: mountns+pivot_root"), "{shown}");
    assert_eq!(shown.matches(" uid ").count(), 6, "{shown}");
    for quiet in [&["--quiet"], &["--json"]] {
        let capsule = Capsule::reporter();
        let ended =
            Launch::of(&capsule).arguments(&arguments).arguments(quiet).on_a_terminal().run(LAUNCH_PATIENCE);
        assert_eq!(ended.code(), Some(0), "{}", ended.stdout);
        assert!(!ended.stdout.contains("  address "), "{quiet:?}: {}", ended.stdout);
    }
}

#[test]
fn once_ends_by_itself_after_the_task() {
    needs_root!();
    let capsule = Capsule::reporter();
    let mut session = Launch::of(&capsule).arguments(&["--task", "Report on inputs/", "--once"]).start();
    let footprint = session.footprint();
    let records = session.records();
    let code = session.wait(LAUNCH_PATIENCE);
    assert_eq!(code, Some(0), "{}", session.stderr());
    footprint.assert_gone();
    let report = fs::read_to_string(capsule.work().join("out/report.md")).unwrap();
    assert_eq!(rows(&report), expected_rows(&capsule.work().join("inputs")));
    let trace = Trace::read(&records);
    assert_eq!(trace.counts(["task_start", "task_end", "session_end"]), [1, 1, 1]);
    assert_eq!(session.rest_of_stdout(), "", "one line on standard output");
}

#[test]
fn files_are_read_while_a_task_runs() {
    needs_root!();
    let capsule = Capsule::reporter();
    // Enough to measure that reads fall into the task.
    for number in 0..80 {
        capsule.write(&format!("many/{number:03}.txt"), format!("{number}\n").repeat(100).as_bytes());
    }
    capsule.write("out/kept.txt", b"kept\n");
    let mut session = Launch::of(&capsule).start();
    let url = session.url().to_owned();
    let task = std::thread::spawn({
        let url = url.clone();
        move || a2a::complete(&url, "long", "Report on many/")
    });
    let mut during = 0_u32;
    while !task.is_finished() {
        let read = http::get(&url, "/resources/files/kept.txt");
        assert_eq!((read.status, read.text()), (200, "kept\n"));
        if read.header("x-murmur-generation") == Some("0") {
            during += 1;
        }
    }
    task.join().unwrap();
    assert!(during > 0, "no read fell into the task");
    assert_eq!(rows(http::get(&url, "/resources/files/report.md").text()).len(), 81);
    session.stop();
}

/// V3, V4: what counts is that a task ran and is over, however it ended.
#[test]
fn a_task_that_fails_counts_and_one_that_never_ran_does_not() {
    needs_root!();
    let shell = "shell: {allow: [bash, sleep]}";
    let capsule = Capsule::driven_by("spin-driver", "http://127.0.0.1:9", &[], shell);
    let mut session = Launch::of(&capsule).start();
    let url = session.url().to_owned();
    let generation = || http::get(&url, "/resources/files").json()["generation"].clone();
    let ends = |text: &str, state: &str| {
        let task = a2a::send_message(&url, "m", text);
        assert_eq!(task["status"]["state"], state, "{text}: {task}");
    };
    ends("trap", "TASK_STATE_FAILED");
    assert_eq!(generation(), 1, "failed");
    // The manifest allows four turns.
    ends("again bash {\"command\": \":\"}", "TASK_STATE_FAILED");
    assert_eq!(generation(), 2, "out of turns");

    let held = a2a::submit(&url, "tool bash {\"command\": \"sleep 1000\"}");
    until("the task runs", a2a::PATIENCE, || {
        (a2a::state_of(&url, &held) == "TASK_STATE_WORKING").then_some(())
    });
    let waiting = a2a::submit(&url, "never runs");
    assert_eq!(a2a::cancel(&url, &waiting)["status"]["state"], "TASK_STATE_CANCELED");
    assert_eq!(generation(), 2, "canceled before it ran");
    assert_eq!(a2a::cancel(&url, &held)["status"]["state"], "TASK_STATE_CANCELED");
    assert_eq!(generation(), 3, "canceled while it ran");
    ends("the end", "TASK_STATE_COMPLETED");
    assert_eq!(generation(), 4);
    session.stop();
}

/// V8: an answer and its line say the same generation, whichever side of a task's end they fall on.
#[test]
fn the_generation_of_an_answer_is_that_of_its_line() {
    needs_root!();
    let capsule = Capsule::driven_by("spin-driver", "http://127.0.0.1:9", &[], "");
    capsule.write("out/kept.txt", &b"kept\n".repeat(20_000));
    let mut session = Launch::of(&capsule).start();
    let url = session.url().to_owned();
    let tasks = std::thread::spawn({
        let url = url.clone();
        move || (0..40).for_each(|_| drop(a2a::complete(&url, "m", "done at once")))
    });
    let mut said: Vec<u64> = Vec::new();
    while !tasks.is_finished() {
        let read = http::get(&url, "/resources/files/kept.txt");
        said.push(read.header("x-murmur-generation").unwrap().parse().unwrap());
    }
    tasks.join().unwrap();
    let records = session.records();
    session.stop();
    assert!(said.is_sorted() && said.last() > said.first(), "{said:?}");
    let trace = Trace::read(&records);
    let recorded: Vec<u64> =
        trace.of("resource_read").into_iter().map(|line| line["generation"].as_u64().unwrap()).collect();
    assert_eq!(recorded, said);
}

#[test]
fn card_and_health_say_who_serves() {
    needs_root!();
    let capsule = Capsule::reporter();
    let mut session = Launch::of(&capsule).start();
    let response = http::get(session.url(), "/.well-known/agent-card.json");
    assert_eq!((response.status, response.header("content-type")), (200, Some("application/json")));
    let card = response.json();
    assert_eq!((&card["name"], &card["version"]), (&"reporter".into(), &"0.1.0".into()));
    let interface = &card["supportedInterfaces"][0];
    assert_eq!(card["url"], interface["url"], "where minters read it, and where clients do");
    assert_eq!(
        (&interface["protocolBinding"], &interface["protocolVersion"]),
        (&"JSONRPC".into(), &"1.0".into())
    );
    let port = |url: &str| url.trim_end_matches('/').rsplit(':').next().unwrap().to_owned();
    assert_eq!(port(interface["url"].as_str().unwrap()), port(session.url()), "{card}");
    assert_eq!(card["skills"].as_array().unwrap().len(), 1, "{card}");
    let extensions = card["capabilities"]["extensions"].as_array().unwrap();
    let capsule_extension =
        extensions.iter().find(|one| one["uri"].as_str().unwrap().contains("murmur-capsule")).unwrap();
    assert_eq!(capsule_extension["params"]["sessionId"], session.id(), "{card}");
    let health = http::get(session.url(), "/healthz");
    assert_eq!((health.status, health.body.len()), (204, 0));
    session.stop();
}

#[test]
fn a_call_that_is_no_json_rpc_request_is_answered_with_its_code() {
    needs_root!();
    let capsule = Capsule::reporter();
    let mut session = Launch::of(&capsule).start();
    for (body, code) in [
        ("{", -32700),
        ("[]", -32600),
        ("{}", -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":"Unknown","params":{}}"#, -32601),
        (r#"{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":[]}"#, -32602),
    ] {
        let response = a2a::post(session.url(), body);
        assert_eq!((response.status, &response.json()["error"]["code"]), (200, &code.into()), "{body}");
    }
    assert_eq!(
        http::get(session.url(), "/resources/files").json()["generation"],
        0,
        "none of them was a task"
    );
    session.stop();
}

#[test]
fn a_second_session_over_the_same_folder_starts_at_generation_0_with_the_same_etag() {
    needs_root!();
    let capsule = Capsule::reporter();
    let mut first = Launch::of(&capsule).start();
    a2a::complete(first.url(), "one", "Report on inputs/");
    let etag = http::get(first.url(), "/resources/files/report.md").header("etag").unwrap().to_owned();
    let (id, url) = (first.id().to_owned(), first.url().to_owned());
    first.stop();
    assert!(http::try_request(&url, "GET", "/healthz").is_err(), "nobody listens after the end");

    let mut second = Launch::of(&capsule).arguments(&["--serve-only"]).start();
    assert_ne!(second.id(), id);
    let read = http::get(second.url(), "/resources/files/report.md");
    assert_eq!((read.header("etag"), read.header("x-murmur-generation")), (Some(etag.as_str()), Some("0")));
    second.signal(system_tests::process::Signal::INT);
    assert_eq!(second.wait(END_PATIENCE), Some(0));
}
