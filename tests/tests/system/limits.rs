//! `capabilities.resources`: what a program that hits a limit looks like, to the model and in the record. What needs the cgroup
//! controllers runs where they are (`tests/vm/system.sh limits`), and says so elsewhere.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use system_tests::broker::{Launch, Session};
use system_tests::capsule::Capsule;
use system_tests::trace::Trace;
use system_tests::{a2a, needs_root};

/// A driver must have a gateway; nothing of these tests uses it.
const NO_GATEWAY: &str = "http://127.0.0.1:9";

/// A count is made every ten seconds, on machines that may be slow.
const PATIENCE: Duration = Duration::from_secs(90);

fn capsule(resources: &str) -> Capsule {
    let capabilities = format!("shell: {{allow: [bash, perl, sleep]}}, resources: {{{resources}}}");
    Capsule::driven_by("spin-driver", NO_GATEWAY, &["process-tool"], &capabilities)
}

/// What the model is shown of a shell command.
fn bash(session: &Session, command: &str) -> String {
    let task = format!("tool bash {}", json!({ "command": command }));
    a2a::answer(&a2a::complete(session.url(), "m", &task)).to_owned()
}

/// What a tool gets of steps over `murmur:process`.
fn steps(session: &Session, steps: &Value) -> Vec<Value> {
    let task = format!("tool process-tool {}", json!({ "steps": steps }));
    let told = a2a::answer(&a2a::complete(session.url(), "m", &task)).to_owned();
    let inner = told.split_once('\n').and_then(|(_, rest)| rest.rsplit_once('\n')).expect("a fence").0;
    let answer: Value = serde_json::from_str(inner).unwrap_or_else(|error| panic!("{error}: {told}"));
    answer["steps"].as_array().unwrap_or_else(|| panic!("{told}")).clone()
}

fn words<'a>(trace: &'a Trace, event: &str) -> Vec<Option<&'a Value>> {
    trace.of(event).iter().map(|line| line.get("resource_limit")).collect()
}

/// The session's own group, where the host has all the controllers.
fn group(session: &Session) -> Option<PathBuf> {
    let missing = system_tests::host::missing_controllers();
    if missing.is_empty() {
        return Some(system_tests::host::session_group(session));
    }
    let why = format!("this host lacks the cgroup controllers {}", missing.join(", "));
    system_tests::host::say_not_run("limits", &why);
    None
}

#[test]
fn a_signal_of_a_limit_is_named_to_the_model_and_in_the_record() {
    needs_root!();
    let capsule = capsule("cpu_seconds: 1, max_file_size_bytes: 4096");
    let mut session = Launch::of(&capsule).start();
    let told = bash(&session, "while :; do :; done");
    assert!(
        told.contains("Exit code: 152\nE-RUN-011: it hit capabilities.resources.cpu_seconds\n"),
        "{told}"
    );
    let told = bash(&session, "printf %08192d 0 >out/file");
    assert!(
        told.contains("Exit code: 153\nE-RUN-011: it hit capabilities.resources.max_file_size_bytes\n"),
        "{told}"
    );
    let told = bash(&session, "exit 152");
    assert!(!told.contains("E-RUN-011"), "{told}");
    let got = steps(
        &session,
        &json!([
            {"run": "bash", "args": ["-c", "printf %08192d 0 >out/file"]},
            {"start": "bash", "name": "filler", "args": ["-c", "printf %08192d 0 >out/file"]},
            {"over": "$filler"},
        ]),
    );
    assert_eq!(got[0]["ok"]["exit_code"], 153, "{got:?}");
    assert_eq!(fs::metadata(capsule.work().join("out/file")).unwrap().len(), 4096, "not a byte more");
    let records = session.records();
    session.stop();
    let trace = Trace::read(&records);
    let limit = |name: &str| json!(name);
    let (cpu, size) = (limit("cpu_seconds"), limit("max_file_size_bytes"));
    assert_eq!(words(&trace, "shell"), [Some(&cpu), Some(&size), None], "{}", trace.text());
    assert_eq!(words(&trace, "process_run"), [Some(&size)]);
    let exits = trace.of("process_exit");
    assert_eq!(
        (&exits[0]["cause"], &exits[0]["resource_limit"]),
        (&limit("resource_limit"), &size),
        "{}",
        exits[0]
    );
}

#[test]
fn a_workdir_over_its_budget_lets_no_program_start_and_ends_the_session() {
    needs_root!();
    let capsule = capsule("workdir_max_bytes: 1000000");
    capsule.write("inputs/large", &vec![0; 1_000_001]);
    let mut session = Launch::of(&capsule).start();
    let records = session.records();
    let input = json!({"steps": [{"run": "bash", "args": ["-c", "touch out/ran"]}]});
    let task = a2a::send_message(session.url(), "m", &format!("tool process-tool {input}"));
    assert!(task.to_string().contains("E-RUN-013"), "{task}");
    assert_eq!(session.wait(PATIENCE), Some(1), "{}", session.stderr());
    assert!(session.stderr().contains("error[E-RUN-013]: workdir: "), "{}", session.stderr());
    assert!(!capsule.work().join("out/ran").exists());
    let trace = Trace::read(&records);
    assert!(trace.of("process_run").is_empty(), "{}", trace.text());
    for denied in trace.of("process_denied") {
        assert_eq!(denied["rule"], "capabilities.resources.max_workdir_bytes", "{denied}");
    }
    assert_eq!(trace.of("session_end")[0]["exit_status"], "failed");
}

#[test]
fn a_program_that_fills_home_or_workdir_is_ended_with_its_session() {
    needs_root!();
    for place in ["out", "$HOME", "$TMPDIR"] {
        let capsule = capsule("workdir_max_bytes: 3000000");
        let mut session = Launch::of(&capsule).start();
        let command = format!("printf %04000000d 0 >{place}/file; exec sleep 600");
        let task =
            a2a::send_message(session.url(), "m", &format!("tool bash {}", json!({ "command": command })));
        assert!(task.to_string().contains("E-RUN-013"), "{place}: {task}");
        assert_eq!(session.wait(PATIENCE), Some(1), "{place}: {}", session.stderr());
        assert!(session.stderr().contains("error[E-RUN-013]"), "{place}: {}", session.stderr());
    }
}

#[test]
fn memory_and_processes_of_all_programs_together_are_limited_and_named() {
    needs_root!();
    let capsule = capsule("cgroup_memory_bytes: 100000000, cgroup_pids_max: 20, memory_bytes: 1000000000");
    let mut session = Launch::of(&capsule).start();
    let Some(group) = group(&session) else { return };
    let programs = group.join("programs");
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    assert_eq!(read(&programs.join("memory.max")), "99999744", "whole pages");
    assert_eq!(read(&programs.join("pids.max")), "20");
    assert_eq!(read(&programs.join("cpu.max")), "200000 100000");
    for role in ["door", "fileserver", "sandbox-host", "runner", "egress"] {
        let bounds = ["memory.max", "pids.max"].map(|file| read(&group.join(role).join(file)));
        assert!(bounds.iter().all(|bound| bound.parse::<u64>().is_ok()), "{role}: {bounds:?}");
    }
    let eats = "exec perl -e '$x = \"x\" x 300000000; sleep 600'";
    let told = bash(&session, eats);
    assert!(
        told.contains("Exit code: 137\nE-RUN-011: it hit capabilities.resources.cgroup_memory_bytes\n"),
        "{told}"
    );
    let forks = "for i in {1..40}; do sleep 600 & done; wait -n";
    let told = bash(&session, forks);
    assert!(told.contains("E-RUN-011: it hit capabilities.resources.cgroup_pids_max\n"), "{told}");
    let got = steps(
        &session,
        &json!([
            {"run": "bash", "args": ["-c", eats]},
            {"run": "bash", "args": ["-c", "echo still here"]},
        ]),
    );
    assert_eq!(
        (&got[0]["ok"]["exit_code"], &got[1]["ok"]["stdout"]),
        (&json!(137), &json!("still here\n")),
        "{got:?}"
    );
    let crowd = "trap : TERM; for i in {1..18}; do sleep 600 & done; echo full; wait";
    let got = steps(
        &session,
        &json!([
            {"start": "bash", "name": "crowd", "args": ["-c", crowd]},
            {"until": "full\n", "of": "$crowd"},
            {"start": "sleep", "name": "last", "args": ["600"]},
            {"run": "bash", "args": ["-c", "true"]},
            {"stop": "$crowd"},
            {"run": "bash", "args": ["-c", "true"]},
        ]),
    );
    let failed = got[3]["error"]["failed"].as_str().unwrap_or_else(|| panic!("{got:?}"));
    assert!(failed.contains("limit of processes"), "{failed}");
    assert_eq!(got[5]["ok"]["exit_code"], 0, "{got:?}");
    let records = session.records();
    session.stop();
    let trace = Trace::read(&records);
    let (memory, pids) = (json!("cgroup_memory_bytes"), json!("cgroup_pids_max"));
    assert_eq!(words(&trace, "shell"), [Some(&memory), Some(&pids)], "{}", trace.text());
    assert_eq!(words(&trace, "process_run"), [Some(&memory), None, None]);
}

#[test]
fn a_session_says_whether_reads_and_writes_are_limited() {
    needs_root!();
    let capsule = capsule("cgroup_io_bytes_per_sec: 5000000");
    let mut session = Launch::of(&capsule).start();
    let group = system_tests::host::session_group(&session);
    let applied = fs::read_to_string(group.join("programs/io.max")).unwrap_or_default();
    let records = session.records();
    session.stop();
    let said = &Trace::read(&records).of("session_start")[0]["effective_grants"]["io_max"].clone();
    assert_eq!(said["declared_bytes_per_sec"], 5_000_000);
    if applied.contains("rbps=5000000 wbps=5000000") {
        assert_eq!(said["status"], "enforced", "{said}");
    } else {
        assert_eq!(said["status"], "unavailable", "{said} {applied:?}");
        assert!(said["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{said}");
        assert!(session.stderr().contains("warning[W-SEC-021]: "), "{}", session.stderr());
    }
}
