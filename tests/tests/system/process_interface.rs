//! `murmur:process` in whole sessions: a component, the real runner, real programs. Each case names the sentence of the seed page
//! it keeps.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use system_tests::broker::{Launch, Session};
use system_tests::capsule::Capsule;
use system_tests::trace::Trace;
use system_tests::{a2a, needs_root};

/// A driver must have a gateway; nothing of these tests uses it.
const NO_GATEWAY: &str = "http://127.0.0.1:9";

fn capsule(more: &str) -> Capsule {
    let capabilities = format!("shell: {{allow: [bash, cat, sleep, perl, \"true\"]}}{more}");
    Capsule::driven_by("spin-driver", NO_GATEWAY, &["process-tool", "process-tool=other"], &capabilities)
}

/// Has a tool go through steps and returns what came of each.
fn by(session: &Session, tool: &str, steps: &Value) -> Vec<Value> {
    let input = json!({"steps": steps});
    let task = a2a::complete(session.url(), "m", &format!("tool {tool} {input}"));
    let told = a2a::answer(&task);
    let (begin, end) = (told.find("{\"steps\""), told.rfind('}'));
    let (Some(begin), Some(end)) = (begin, end) else { panic!("{told}") };
    let answer: Value =
        serde_json::from_str(&told[begin..=end]).unwrap_or_else(|error| panic!("{error}: {told}"));
    answer["steps"].as_array().unwrap_or_else(|| panic!("{told}")).clone()
}

fn perform(session: &Session, steps: &Value) -> Vec<Value> {
    by(session, "process-tool", steps)
}

fn bash(script: &str) -> Value {
    json!({"run": "bash", "args": ["-c", script]})
}

fn rule(result: &Value) -> &str {
    result["error"]["refused"]["rule"].as_str().unwrap_or_else(|| panic!("not refused: {result}"))
}

/// Programs of any session with these words in their command line.
fn alive(words: &str) -> usize {
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok())
        .filter(|line| String::from_utf8_lossy(line).replace('\0', " ").trim() == words)
        .count()
}

#[test]
fn run_gives_exit_code_output_and_input_as_the_program_left_them() {
    needs_root!();
    let capsule = capsule("");
    let mut session = Launch::of(&capsule).start();
    let results = perform(
        &session,
        &json!([
            bash("exit 7"),
            bash("kill -9 $$"),
            bash("kill -TERM $$"),
            bash("echo out; echo err >&2"),
            {"run": "bash", "args": ["-c", "printf '<%s>' \"$@\"", "x", "a b", "", "'"]},
            {"run": "cat"},
            {"run": "cat", "stdin": "bytes\n"},
            {"run": "cat", "stdin": ""},
            {"run": "bash", "args": ["-c", "echo $A $B $PATH"], "env": [["A", "1"], ["B", "2"], ["PATH", "/x"]]},
            bash("pwd; cd /proc/self/fd; for f in *; do printf '%s ' $f; done"),
            {"run": "nc"},
            {"run": "/bin/bash"},
            {"run": "bash", "args": ["-c", "a\u{0}b"]},
        ]),
    );
    let ok = |index: usize| &results[index]["ok"];
    for (index, code) in [(0, 7), (1, 137), (2, 143), (3, 0)] {
        assert_eq!(ok(index)["exit_code"], code, "{}", results[index]);
        assert_eq!(ok(index)["timed_out"], false);
    }
    assert_eq!((&ok(3)["stdout"], &ok(3)["stderr"]), (&json!("out\n"), &json!("err\n")));
    assert_eq!(ok(4)["stdout"], "<a b><><'>");
    assert_eq!(
        (&ok(5)["stdout"], &ok(6)["stdout"], &ok(7)["stdout"]),
        (&json!(""), &json!("bytes\n"), &json!(""))
    );
    let environment = ok(8)["stdout"].as_str().unwrap();
    assert!(environment.starts_with("1 2 /usr/local/sbin:"), "{environment}");
    let place = ok(9)["stdout"].as_str().unwrap();
    // 0, 1, 2 and the one that reads the directory.
    assert_eq!(place, format!("{}\n0 1 2 3 ", capsule.work().display()));
    assert_eq!(rule(&results[10]), "capabilities.shell.allow");
    assert_eq!(rule(&results[11]), "capabilities.shell.allow");
    assert!(results[12]["error"]["failed"].as_str().unwrap().contains("NUL"), "{}", results[12]);
    let records = session.records();
    session.stop();
    let trace = Trace::read(&records);
    let runs = trace.of("process_run");
    assert_eq!(runs.len(), 10, "{}", trace.text());
    let line = &runs[8];
    assert_eq!(
        (&line["env_names"], &line["env_dropped"], &line["tool_name"], &line["exit_code"]),
        (&json!(["A", "B"]), &json!(["PATH"]), &json!("process-tool"), &json!(0)),
        "{line}"
    );
    assert_eq!((&runs[6]["stdin_bytes"], runs[5].get("stdin_bytes")), (&json!(6), None));
    let denied = trace.of("process_denied");
    assert_eq!(denied.len(), 2, "{}", trace.text());
    assert_eq!(
        (&denied[0]["function"], &denied[0]["target"], &denied[0]["rule"]),
        (&json!("run"), &json!("nc"), &json!("capabilities.shell.allow"))
    );
}

/// Writes what it reads to both streams.
const TEE: &str = "while (sysread(STDIN, $b, 65536)) { syswrite(STDOUT, $b); syswrite(STDERR, $b) }";

#[test]
fn the_first_mebibyte_of_each_stream_is_kept_and_every_stream_moves_at_once() {
    needs_root!();
    let capsule = capsule("");
    let mut session = Launch::of(&capsule).start();
    let mebibyte = 1 << 20;
    let results = perform(
        &session,
        &json!([
            {"run": "cat", "stdin": "0123456789abcdef", "times": mebibyte / 16},
            {"run": "bash", "args": ["-c", "cat; printf x"], "stdin": "0123456789abcdef", "times": mebibyte / 16},
            {"run": "perl", "args": ["-e", TEE], "stdin": "0123456789abcdef", "times": mebibyte / 2},
            {"run": "true", "stdin": "0123456789abcdef", "times": mebibyte / 4},
        ]),
    );
    let whole = &results[0]["ok"];
    assert_eq!((&whole["stdout"]["bytes"], &whole["stdout_truncated"]), (&json!(mebibyte), &json!(false)));
    let cut = &results[1]["ok"];
    assert_eq!((&cut["stdout"], &cut["stdout_truncated"]), (&whole["stdout"], &json!(true)));
    // 8 MiB in, 8 MiB out twice: no pipe holds as much.
    let both = &results[2]["ok"];
    for stream in ["stdout", "stderr"] {
        assert_eq!(
            (&both[stream], &both[format!("{stream}_truncated")]),
            (&whole["stdout"], &json!(true)),
            "{stream}"
        );
    }
    assert_eq!(results[3]["ok"]["exit_code"], 0, "a program need not read its input: {}", results[3]);
    session.stop();
}

#[test]
fn a_run_ends_with_its_time_or_its_program_and_leaves_nothing() {
    needs_root!();
    let capsule = capsule("");
    let mut session = Launch::of(&capsule).start();
    let started = Instant::now();
    let results = perform(
        &session,
        &json!([
            {"run": "sleep", "args": ["7001"], "timeout_ms": 300},
            {"run": "bash", "args": ["-c", "echo begun; sleep 7002; echo never"], "timeout_ms": 300},
            bash("sleep 7003 & echo left"),
            bash("(setsid bash -c 'sleep 7004; true' &) ; (setsid setsid sleep 7005 &); echo left"),
        ]),
    );
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    assert_eq!(
        (&results[0]["ok"]["timed_out"], &results[0]["ok"]["exit_code"]),
        (&json!(true), &json!(137)),
        "{}",
        results[0]
    );
    assert_eq!(
        (&results[1]["ok"]["timed_out"], &results[1]["ok"]["stdout"]),
        (&json!(true), &json!("begun\n"))
    );
    for index in [2, 3] {
        assert_eq!(
            (&results[index]["ok"]["timed_out"], &results[index]["ok"]["stdout"]),
            (&json!(false), &json!("left\n"))
        );
    }
    for seconds in 7001..=7005 {
        assert_eq!(alive(&format!("sleep {seconds}")), 0, "sleep {seconds} lives");
    }
    session.stop();
}

#[test]
fn a_session_process_lives_between_calls_and_belongs_to_its_tool() {
    needs_root!();
    let capsule = capsule("");
    let mut session = Launch::of(&capsule).start();
    let first = perform(
        &session,
        &json!([
            {"start": "cat", "name": "echo.1"},
            {"status": "$echo.1"},
            {"write": "$echo.1", "text": "hello\n"},
            {"until": "hello\n", "of": "$echo.1"},
            {"start": "cat", "name": "echo.1"},
        ]),
    );
    let handle = first[0]["ok"]["handle"].as_str().unwrap_or_else(|| panic!("{first:?}")).to_owned();
    let digits = handle.strip_prefix("prc_").unwrap();
    assert!(digits.len() == 32 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')), "{handle}");
    assert_eq!((&first[1]["ok"], &first[3]["ok"]), (&json!("running"), &json!("hello\n")), "{first:?}");
    assert_eq!(first[4]["ok"], json!({"handle": handle, "already_running": true}));

    // Another tool knows neither the handle nor the name.
    let other = by(
        &session,
        "other",
        &json!([
            {"find": "echo.1"}, {"status": handle}, {"write": handle, "text": "x"}, {"read": handle}, {"stop": handle},
            {"connect": handle, "port": 80},
        ]),
    );
    assert_eq!(other[0]["ok"], Value::Null);
    for result in &other[1..] {
        assert_eq!(result["error"], "unknown-handle", "{other:?}");
    }

    let second = perform(
        &session,
        &json!([
            {"find": "echo.1"},
            {"write": handle, "text": "again\n"},
            {"until": "again\n", "of": handle},
            {"write": handle, "text": "unread"},
            {"stop": handle},
            {"stop": handle},
            {"status": handle},
            {"write": handle, "text": "late"},
            {"read": handle},
            {"find": "echo.1"},
            {"start": "cat", "name": "echo.1"},
            {"status": "prc_00000000000000000000000000000000"},
        ]),
    );
    assert_eq!((&second[0]["ok"], &second[2]["ok"]), (&json!(handle), &json!("again\n")), "{second:?}");
    for index in [4, 5, 6] {
        assert_eq!(second[index]["ok"], json!({"exited": 143}), "{second:?}");
    }
    assert_eq!(second[7]["error"], "not-running");
    assert!(second[8]["ok"]["stdout"].is_string(), "what was not read stays readable: {second:?}");
    assert_eq!(second[9]["ok"], json!(handle), "the latest of that name, though it ended");
    assert_ne!(second[10]["ok"]["handle"], json!(handle), "a new one");
    assert_eq!(second[11]["error"], "unknown-handle");
    let records = session.records();
    session.stop();
    let trace = Trace::read(&records);
    let exits = trace.of("process_exit");
    let causes: Vec<_> = exits.iter().map(|exit| exit["cause"].as_str().unwrap()).collect();
    assert_eq!(causes, ["stopped", "session_end"], "{}", trace.text());
    assert_eq!((&exits[0]["exit_code"], &exits[0]["killed"]), (&json!(143), &json!(false)));
    let starts = trace.of("process_start");
    let again: Vec<_> = starts.iter().map(|start| (&start["already_running"], &start["running"])).collect();
    assert_eq!(again, [(&json!(false), &json!(1)), (&json!(true), &json!(1)), (&json!(false), &json!(1))]);
}

#[test]
fn names_and_numbers_of_session_processes_are_bounded() {
    needs_root!();
    let capsule = capsule("");
    let mut session = Launch::of(&capsule).start();
    let long = "n".repeat(65);
    let names = ["", "a b", "a/b", "ü", "a\n", long.as_str()];
    let steps: Vec<_> =
        names.iter().map(|name| json!({"start": "sleep", "args": ["7100"], "name": name})).collect();
    for (name, result) in names.iter().zip(perform(&session, &json!(steps))) {
        assert_eq!(rule(&result), "name", "{name:?}");
    }
    let fits = "A-z_0.9".to_owned() + &"n".repeat(57);
    let start = |name: &str| json!({"start": "sleep", "args": ["7100"], "name": name});
    let mine = perform(&session, &json!([start("1"), start("2"), start("3"), start("4"), start(&fits)]));
    assert!(mine.iter().all(|result| result["ok"]["handle"].is_string()), "{mine:?}");
    let theirs = by(&session, "other", &json!([start("1"), start("2"), start("3"), start("4")]));
    assert!(theirs[..3].iter().all(|result| result["ok"]["handle"].is_string()), "{theirs:?}");
    assert_eq!(rule(&theirs[3]), "session-process-cap");
    // One that runs already is no new one; one that ended makes room.
    let room = perform(&session, &json!([start("1"), {"stop": "$1"}, start("new"), start("one more")]));
    assert_eq!(room[0]["ok"]["already_running"], true);
    assert!(room[2]["ok"]["handle"].is_string(), "{room:?}");
    assert_eq!(rule(&room[3]), "name");
    assert_eq!(rule(&perform(&session, &json!([start("one-more")]))[0]), "session-process-cap");
    assert_eq!(alive("sleep 7100"), 8);
    session.stop();
    assert_eq!(alive("sleep 7100"), 0);
}

#[test]
fn stop_terminates_and_then_kills_and_the_newest_mebibyte_of_output_is_kept() {
    needs_root!();
    let capsule = capsule("");
    let mut session = Launch::of(&capsule).start();
    let stubborn = "trap '' TERM; echo ready; while :; do sleep 0.1; done";
    let results = perform(
        &session,
        &json!([
            {"start": "bash", "name": "stubborn", "args": ["-c", stubborn]},
            {"until": "ready\n", "of": "$stubborn"},
            {"stop": "$stubborn"},
            {"start": "bash", "name": "quick", "args": ["-c", "exit 3"]},
            {"over": "$quick"},
            {"stop": "$quick"},
        ]),
    );
    assert_eq!(results[2]["ok"], json!({"exited": 137}), "{results:?}");
    assert_eq!((&results[4]["ok"], &results[5]["ok"]), (&json!({"exited": 3}), &json!({"exited": 3})));

    // Bash alone: no other program is allowed.
    let loud = "s=aaaaaaaaaaaaaaaa; for i in 1 2 3 4 5 6 7 8 9 10 11 12; do s=$s$s; done; \
                printf %s $s $s $s $s $s $s $s $s $s $s $s $s $s $s $s $s $s $s $s $s $s $s $s $s $s $s $s $s $s $s $s $s; \
                s=${s//a/b}; printf %s $s $s $s $s $s $s $s $s $s $s $s $s $s $s $s $s; echo over >&2";
    let results = perform(
        &session,
        &json!([
            {"start": "bash", "name": "loud", "args": ["-c", loud]},
            {"over": "$loud"},
            {"read": "$loud", "max": 4},
            {"read": "$loud"},
            {"read": "$loud"},
        ]),
    );
    let (some, rest, none) = (&results[2]["ok"], &results[3]["ok"], &results[4]["ok"]);
    // Two MiB of a and one of b were printed.
    assert_eq!((&some["stdout"], &some["stdout_dropped"]), (&json!("bbbb"), &json!(2 << 20)), "{results:?}");
    assert_eq!(
        (&rest["stdout"]["bytes"], &rest["stdout_dropped"]),
        (&json!((1 << 20) - 4), &json!(0)),
        "{results:?}"
    );
    assert_eq!((&some["stderr"], &some["stderr_dropped"]), (&json!("over"), &json!(0)));
    assert_eq!((&none["stdout"], &none["stderr"]), (&json!(""), &json!("")));
    session.stop();
}

/// Listens on `$ARGV[0]`, says so, and gives back what it is sent, one connection at a time.
const ECHO: &str = "use Socket; $| = 1; socket(L, PF_INET, SOCK_STREAM, 0); \
                    bind(L, sockaddr_in($ARGV[0], INADDR_LOOPBACK)) or die $!; listen(L, 5); print \"listening\\n\"; \
                    while (accept(C, L)) { while (sysread(C, $b, 65536)) { syswrite(C, $b) } close C; print \"closed\\n\" }";

#[test]
fn a_connection_leads_to_a_listener_of_the_processes_own_group_and_ends_with_the_call() {
    needs_root!();
    let capsule = capsule("");
    let mut session = Launch::of(&capsule).start();
    let server = |name: &str, port: &str| json!({"start": "perl", "name": name, "args": ["-e", ECHO, port]});
    let results = perform(
        &session,
        &json!([
            server("a", "4001"),
            server("b", "4002"),
            {"until": "listening\n", "of": "$a"},
            {"until": "listening\n", "of": "$b"},
            {"connect": "$a", "port": 4001},
            {"send": 0, "text": "over the wire"},
            {"receive": 0},
            {"receive": 0, "timeout_ms": 50},
            {"connect": "$a", "port": 4002},
            {"connect": "$a", "port": 4003},
            {"connect": "$b", "port": 4002},
            {"send": 1, "text": "0123456789abcdef", "times": 4096},
            {"receive": 1, "max": 5},
            {"close": 1},
            {"until": "closed\n", "of": "$b"},
        ]),
    );
    assert_eq!(
        (&results[2]["ok"], &results[3]["ok"]),
        (&json!("listening\n"), &json!("listening\n")),
        "{results:?}"
    );
    assert_eq!((&results[4]["ok"], &results[6]["ok"]), (&json!(0), &json!("over the wire")), "{results:?}");
    assert_eq!(results[7]["error"], "timed-out");
    assert_eq!(
        (rule(&results[8]), rule(&results[9])),
        ("connect", "connect"),
        "another's port, and nobody's"
    );
    assert_eq!((&results[10]["ok"], &results[12]["ok"]), (&json!(1), &json!("01234")), "{results:?}");
    assert_eq!(results[14]["ok"], "closed\n", "{results:?}");
    // The first connection ended with the call that opened it.
    let later = perform(
        &session,
        &json!([{"until": "closed\n", "of": "$a"}, {"stop": "$a"}, {"connect": "$a", "port": 4001}]),
    );
    assert_eq!(later[0]["ok"], "closed\n", "{later:?}");
    assert_eq!(later[2]["error"], "not-running", "{later:?}");
    session.stop();
}

#[test]
fn outside_a_tool_call_every_function_is_unavailable() {
    needs_root!();
    let capsule = Capsule::driven_by("process-tool", NO_GATEWAY, &[], "shell: {allow: [bash]}");
    let mut session = Launch::of(&capsule).start();
    let handle = "prc_00000000000000000000000000000000";
    let steps = json!({"steps": [
        bash("true"), {"start": "bash", "name": "a"}, {"status": handle}, {"write": handle, "text": "x"}, {"read": handle},
        {"stop": handle}, {"connect": handle, "port": 1}, {"find": "a"},
    ]});
    let task = a2a::complete(session.url(), "m", &steps.to_string());
    let answer: Value = serde_json::from_str(a2a::answer(&task)).unwrap();
    let results = answer["steps"].as_array().unwrap();
    for result in &results[..7] {
        assert_eq!(rule(result), "unavailable");
    }
    assert_eq!(results[7]["ok"], Value::Null);
    let records = session.records();
    session.stop();
    let trace = Trace::read(&records);
    assert!(trace.of("process_denied").iter().all(|line| line["rule"] == "unavailable"), "{}", trace.text());
}

#[test]
fn a_program_of_a_tool_passes_the_same_gate_as_a_shell_command() {
    needs_root!();
    let capabilities = "shell: {allow: [bash, touch]}, filesystem: {read_only: [inputs]}";
    let tools = ["process-tool", "policy-hook"];
    let capsule = Capsule::driven_by("spin-driver", NO_GATEWAY, &tools, capabilities);
    capsule.write("inputs/a", b"kept");
    let mut session = Launch::of(&capsule).start();
    let results = perform(
        &session,
        &json!([
            bash("echo x > inputs/a; : hook:deny"),
            bash("touch out/ran; : hook:deny"),
            bash("echo went on"),
            {"start": "bash", "name": "a", "args": ["-c", ": hook:trap"]},
            bash("touch out/ran; : of a hook that failed"),
        ]),
    );
    assert_eq!(rule(&results[0]), "capabilities.filesystem.read_only", "read_only comes first");
    assert_eq!(rule(&results[1]), "on-shell");
    assert_eq!(results[2]["ok"]["stdout"], "went on\n", "{results:?}");
    assert_eq!(
        (rule(&results[3]), rule(&results[4])),
        ("on-shell", "on-shell"),
        "a hook that failed denies from then on"
    );
    let records = session.records();
    session.stop();
    assert!(!capsule.work().join("out/ran").exists());
    let trace = Trace::read(&records);
    let kinds: Vec<_> = trace
        .events
        .iter()
        .map(|event| event["event_type"].as_str().unwrap())
        .filter(|kind| {
            matches!(*kind, "protected_path_denied" | "call_denied" | "process_denied" | "tool_call")
        })
        .collect();
    let expected = [
        "protected_path_denied",
        "process_denied",
        "call_denied",
        "process_denied",
        "call_denied",
        "process_denied",
        "call_denied",
        "process_denied",
        "tool_call",
    ];
    assert_eq!(kinds, expected, "{}", trace.text());
}
