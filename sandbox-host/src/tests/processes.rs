//! `murmur:process` from a real component, against a runner made of threads.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use ipc::edge::host_broker::{Agent, Event, ProcessEvent};
use serde_json::{Value, json};

use super::rig::{Rig, Seen, tool};
use super::{SPIN, persistent, response, state};

const PROCESS_TOOL: &str = "tests/guests/process-tool/artifact/capsule.wasm";
const MEBI: usize = 1024 * 1024;

fn with_tools(agent: &mut Agent) {
    persistent(agent);
    agent.limits.deadline_seconds = 20;
    agent.shell = [("bash", "/bin/bash"), ("cat", "/bin/cat"), ("sleep", "/bin/sleep"), ("nothing", "/x")]
        .map(|(name, path)| (name.to_owned(), path.to_owned()))
        .to_vec();
    for name in ["one", "two"] {
        let mut artifact = tool(PROCESS_TOOL, &[]);
        artifact.name = name.into();
        agent.artifacts.push(artifact);
    }
}

/// What a tool got back for its steps.
fn steps(rig: &mut Rig, tool: &str, steps: &Value) -> Vec<Value> {
    let sent = rig.send(&format!("tool {tool} {}", json!({"steps": steps}))).join().unwrap().unwrap();
    assert_eq!(state(&sent["task"]), "TASK_STATE_COMPLETED", "{sent}");
    let text = response(&sent["task"]);
    let inner = text.split_once('\n').unwrap().1.rsplit_once('\n').unwrap().0;
    let answer: Value = serde_json::from_str(inner).unwrap_or_else(|error| panic!("{error}: {text}"));
    answer["steps"].as_array().unwrap().clone()
}

fn bash(script: &str) -> Value {
    json!({"run": "bash", "args": ["-c", script]})
}

fn fnv1a(bytes: impl Iterator<Item = u8>) -> String {
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// The words of the process lines of the task that ends next.
fn words(rig: &Rig) -> Vec<String> {
    let mut words = rig.until_task_ended();
    words.retain(|word| {
        ["run ", "start ", "exit ", "denied ", "connection "].iter().any(|start| word.starts_with(start))
    });
    words
}

#[test]
fn a_run_is_its_exit_code_and_the_beginning_of_its_output() {
    let mut rig = Rig::start(SPIN, with_tools);
    let got = steps(
        &mut rig,
        "one",
        &json!([
            bash("echo out; echo err >&2; exit 3"),
            bash("kill -9 $$"),
            {"run": "cat", "stdin": "hello"},
            {"run": "cat", "stdin": ""},
            {"run": "cat"},
            {"run": "bash", "args": ["-c", "echo $A-$PATH"], "env": [["A", "1"], ["PATH", "evil"]]},
            {"run": "cat", "stdin": "0123456789abcdef", "times": MEBI / 16},
            {"run": "cat", "stdin": "0123456789abcdef", "times": MEBI / 16 * 5},
            {"run": "bash", "args": ["-c", "cat >&2; echo end"], "stdin": "x", "times": 3 * MEBI},
            {"run": "bash", "args": ["-c", "exec sleep 0"], "stdin": "x", "times": 3 * MEBI},
            {"run": "sleep", "args": ["60"], "timeout_ms": 100},
            {"run": "nothing"},
            {"run": "git"},
            {"run": "/bin/bash"},
        ]),
    );
    let ran = |number: usize| {
        let output = &got[number]["ok"];
        assert!(output.is_object(), "{number}: {}", got[number]);
        (output["exit_code"].as_i64().unwrap(), &output["stdout"], &output["stderr"])
    };
    assert_eq!(ran(0), (3, &json!("out\n"), &json!("err\n")));
    assert_eq!(ran(1), (137, &json!(""), &json!("")));
    assert_eq!(ran(2).1, "hello");
    assert_eq!((ran(3), ran(4)), ((0, &json!(""), &json!("")), (0, &json!(""), &json!(""))));
    let told = ran(5).1.as_str().unwrap();
    assert!(told.starts_with("1-") && !told.contains("evil"), "{told}");
    let whole = fnv1a(b"0123456789abcdef".iter().copied().cycle().take(MEBI));
    for (number, truncated) in [(6, false), (7, true)] {
        let output = &got[number]["ok"];
        assert_eq!((&output["stdout"]["bytes"], &output["stdout"]["fnv1a"]), (&json!(MEBI), &json!(whole)));
        assert_eq!(output["stdout_truncated"], truncated, "{number}");
        assert_eq!((&output["stderr_truncated"], &output["timed_out"]), (&json!(false), &json!(false)));
    }
    assert_eq!((ran(8).1, &got[8]["ok"]["stderr_truncated"]), (&json!("end\n"), &json!(true)));
    assert_eq!(ran(9).0, 0, "input that nobody reads holds up nothing");
    assert_eq!((ran(10).0, &got[10]["ok"]["timed_out"]), (137, &json!(true)));
    assert!(got[11]["error"]["failed"].is_string(), "{}", got[11]);
    for number in [12, 13] {
        let refused = &got[number]["error"]["refused"];
        assert_eq!(refused["rule"], "capabilities.shell.allow", "{number}");
        assert!(refused["reason"].as_str().unwrap().contains("not in capabilities.shell.allow"));
    }
    let mut words = words(&rig);
    assert_eq!(
        words.split_off(10),
        ["run 137 true", "denied run capabilities.shell.allow", "denied run capabilities.shell.allow"]
    );
    assert_eq!(rig.shut_down(), Ok(()));
}

#[test]
fn the_line_of_a_run_says_who_ran_what_and_what_was_not_set() {
    let mut rig = Rig::start(SPIN, with_tools);
    let run = json!([{"run": "bash", "args": ["-c", "head -c 2000000 /dev/zero"], "stdin": "abc",
        "env": [["PATH", "x"], ["B", "1"], ["A", "2"], ["B", "3"]], "timeout_ms": 3_600_000}]);
    steps(&mut rig, "one", &run);
    let (call, rest) = loop {
        if let Seen::Event(event) = rig.next()
            && let Event::Process(ProcessEvent::Run {
                call,
                stdin_bytes,
                timeout_ms,
                stdout_bytes,
                stdout_truncated,
                ..
            }) = *event
        {
            break (call, (stdin_bytes, timeout_ms, stdout_bytes, stdout_truncated));
        }
    };
    assert_eq!((call.binary.as_str(), call.command.as_str()), ("/bin/bash", "-c head -c 2000000 /dev/zero"));
    assert_eq!(
        (call.tool_name.as_str(), call.tool_call_id.as_deref(), call.turn),
        ("one", Some("call-0"), 0)
    );
    assert!(call.task_id.is_some_and(|id| id.starts_with("tsk_")));
    assert_eq!((call.env_names, call.env_dropped), (vec!["A".into(), "B".into()], vec!["PATH".to_owned()]));
    let (stdin_bytes, timeout_ms, stdout_bytes, truncated) = rest;
    assert_eq!((stdin_bytes, stdout_bytes, truncated), (Some(3), 2_000_000, true));
    assert!(timeout_ms > 10_000 && timeout_ms <= 20_000, "clamped to the call's own: {timeout_ms}");
    assert_eq!(rig.shut_down(), Ok(()));
}

#[test]
fn what_is_too_large_for_a_message_or_a_line_is_refused_or_cut_and_ends_nothing() {
    let mut rig = Rig::start(SPIN, |agent| {
        with_tools(agent);
        agent.shell.push(("rm".into(), "/bin/rm".into()));
        agent.read_only = vec!["inputs".into()];
        agent.limits.memory_bytes = 1 << 30;
        agent.limits.deadline_seconds = 60;
    });
    let huge = "x".repeat(5 * MEBI);
    let got = steps(
        &mut rig,
        "one",
        &json!([
            {"start": "sleep", "args": ["600"], "name": "s"},
            {"start": "sleep", "args": [&huge], "name": "s"},
            {"run": "rm", "args": [format!("inputs/{huge}")]},
            {"run": "bash", "args": ["-c", "true"], "env": [["A", "x".repeat(65_536)]]},
        ]),
    );
    assert_eq!(got[0]["ok"]["already_running"], false);
    for result in &got[1..] {
        assert!(result["error"]["failed"].as_str().unwrap().contains("64 KiB"), "{result:.200}");
    }
    assert_eq!(words(&rig), ["start s false 1"]);
    for (call, told) in [
        (format!("tool {huge} {{}}"), "tool 'xxx"),
        (format!("tool bash {}", json!({"command": huge})), "'bash' could not be started: the arguments"),
        (format!("tool cat {}", json!({"command": format!("{}x", " ".repeat(70_000))})), "64 KiB"),
    ] {
        let sent = rig.send(&call).join().unwrap().unwrap();
        assert!(response(&sent["task"]).contains(told), "{told}: {:.200}", response(&sent["task"]));
    }
    assert_eq!(rig.shut_down(), Ok(()));
}

#[test]
fn a_process_goes_on_over_calls_and_is_its_tools_alone() {
    let mut rig = Rig::start(SPIN, with_tools);
    let cat = json!({"start": "cat", "name": "echo"});
    let got =
        steps(&mut rig, "one", &json!([cat, cat, {"find": "echo"}, {"find": "other"}, {"status": "$echo"}]));
    let handle = got[0]["ok"]["handle"].as_str().unwrap().to_owned();
    let hex = handle.strip_prefix("prc_").unwrap();
    assert!(hex.len() == 32 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')), "{handle}");
    assert_eq!(got[0]["ok"]["already_running"], false);
    assert_eq!(got[1]["ok"], json!({"handle": handle, "already_running": true}));
    assert_eq!(
        (&got[2]["ok"], &got[3]["ok"], &got[4]["ok"]),
        (&json!(handle), &Value::Null, &json!("running"))
    );
    assert_eq!(words(&rig), ["start echo false 1", "start echo true 1"]);

    let of_it = json!([{"status": handle}, {"write": handle, "text": "x"}, {"read": handle}, {"stop": handle},
        {"connect": handle, "port": 1}]);
    for result in steps(&mut rig, "two", &of_it) {
        assert_eq!(result["error"], "unknown-handle");
    }
    assert_eq!(steps(&mut rig, "two", &json!([{"find": "echo"}]))[0]["ok"], Value::Null);
    let got = steps(&mut rig, "two", &json!([cat]));
    assert_ne!(got[0]["ok"]["handle"], handle, "a name is its tool's own");

    let got = steps(
        &mut rig,
        "one",
        &json!([
            {"write": handle, "text": "hello\n"},
            {"until": "hello\n", "of": handle},
            {"read": handle},
            {"stop": handle},
            {"stop": handle},
            {"status": handle},
            {"find": "echo"},
            {"write": handle, "text": "x"},
            {"connect": handle, "port": 1},
            {"read": handle},
        ]),
    );
    assert_eq!((&got[0]["ok"], &got[1]["ok"]), (&Value::Null, &json!("hello\n")));
    assert_eq!(got[2]["ok"], json!({"stdout": "", "stderr": "", "stdout_dropped": 0, "stderr_dropped": 0}));
    for result in &got[3..6] {
        assert_eq!(result["ok"], json!({"exited": 143}));
    }
    assert_eq!((&got[6]["ok"], &got[7]["error"]), (&json!(handle), &json!("not-running")));
    assert_eq!((&got[8]["error"], &got[9]["ok"]["stdout"]), (&json!("not-running"), &json!("")));
    let got = steps(&mut rig, "one", &json!([cat, {"find": "echo"}]));
    assert_eq!(got[0]["ok"]["already_running"], false, "the earlier one is over");
    assert_eq!(got[1]["ok"], got[0]["ok"]["handle"]);
    assert_ne!(got[1]["ok"], handle);
    assert_eq!(rig.shut_down(), Ok(()));
}

#[test]
fn what_is_printed_waits_in_parts_and_the_oldest_goes_first_when_it_is_too_much() {
    let mut rig = Rig::start(SPIN, with_tools);
    let start = |script: &str, name: &str| json!({"start": "bash", "args": ["-c", script], "name": name});
    let got = steps(
        &mut rig,
        "one",
        &json!([
            start("printf abcdef; printf uvw >&2", "small"),
            {"over": "$small"},
            {"read": "$small", "max": 4},
            {"read": "$small", "max": 4},
            {"read": "$small", "max": 4},
            start("head -c 3000000 /dev/zero; printf 'the end'; exit 4", "large"),
            {"over": "$large"},
            {"read": "$large", "max": 0},
            {"read": "$large"},
            {"read": "$large"},
        ]),
    );
    let read = |number: usize| {
        let output = &got[number]["ok"];
        (output["stdout"].clone(), output["stderr"].clone(), output["stdout_dropped"].as_u64().unwrap())
    };
    assert_eq!(got[1]["ok"], json!({"exited": 0}));
    assert_eq!(read(2), (json!("abcd"), json!("uvw"), 0));
    assert_eq!(read(3), (json!("ef"), json!(""), 0));
    assert_eq!(read(4), (json!(""), json!(""), 0));
    assert_eq!(got[6]["ok"], json!({"exited": 4}));
    assert_eq!(read(7), (json!(""), json!(""), 3_000_007 - MEBI as u64));
    let (stdout, _, dropped) = read(8);
    let zeros = std::iter::repeat_n(0, MEBI - 7).chain(*b"the end");
    assert_eq!((&stdout["bytes"], &stdout["fnv1a"], dropped), (&json!(MEBI), &json!(fnv1a(zeros)), 0));
    assert_eq!(read(9), (json!(""), json!(""), 0));
    assert_eq!(
        words(&rig),
        [
            "start small false 1",
            "exit small 0 Exited false",
            "start large false 1",
            "exit large 4 Exited false"
        ]
    );
    assert_eq!(rig.shut_down(), Ok(()));
}

#[test]
fn eight_processes_run_at_a_time_and_names_are_plain() {
    let mut rig = Rig::start(SPIN, with_tools);
    let sleep = |name: &str| json!({"start": "sleep", "args": ["600"], "name": name});
    let five: Vec<Value> = (0..5).map(|number| sleep(&format!("p{number}"))).collect();
    steps(&mut rig, "one", &json!(five));
    let four: Vec<Value> = (0..4).map(|number| sleep(&format!("q{number}"))).collect();
    let got = steps(&mut rig, "two", &json!(four));
    assert_eq!(got[3]["error"]["refused"]["rule"], "session-process-cap");
    let got = steps(
        &mut rig,
        "one",
        &json!([sleep("p0"), sleep("p5"), {"stop": "$p0"}, sleep("p5"), sleep(""), sleep("a b"), sleep(&"n".repeat(65)),
            {"start": "git", "name": "x"}, {"start": "nothing", "name": "x"}, {"find": "x"}]),
    );
    assert_eq!(got[0]["ok"]["already_running"], true, "it needs no place");
    assert_eq!(got[1]["error"]["refused"]["rule"], "session-process-cap");
    assert_eq!((&got[2]["ok"], got[3]["ok"]["handle"].is_string()), (&json!({"exited": 143}), true));
    for result in &got[4..7] {
        assert_eq!(result["error"]["refused"]["rule"], "name");
    }
    assert_eq!(got[7]["error"]["refused"]["rule"], "capabilities.shell.allow");
    assert_eq!(got[8]["error"]["refused"]["rule"], "session-process-cap", "nothing is tried then");
    assert_eq!(got[9]["ok"], Value::Null);

    let began = Instant::now();
    let mut ended = Vec::new();
    assert_eq!(rig.shut_down_seeing(&mut ended), Ok(()));
    let killed = ended.iter().filter(|word| word.contains("SessionEnd true")).count();
    assert_eq!(killed, 8, "each has its line before the loop's end: {ended:?}");
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_write_waits_for_the_process_and_no_longer_than_the_call() {
    let mut rig = Rig::start(SPIN, |agent| {
        with_tools(agent);
        agent.limits.deadline_seconds = 2;
    });
    let start = |script: &str, name: &str| json!({"start": "bash", "args": ["-c", script], "name": name});
    let got = steps(
        &mut rig,
        "one",
        &json!([
            start("sleep 0.3; head -c 1000000 | wc -c; sleep 600", "late"),
            {"write": "$late", "text": "x", "times": 1_000_000},
            {"until": "1000000\n", "of": "$late"},
            start("exec <&-; echo closed; sleep 600", "shut"),
            {"until": "closed", "of": "$shut"},
            {"write": "$shut", "text": "x"},
            start("sleep 0.2; exit 9", "brief"),
            {"write": "$brief", "text": "x", "times": 1_000_000},
        ]),
    );
    assert_eq!((&got[1]["ok"], &got[2]["ok"]), (&Value::Null, &json!("1000000\n")), "{got:?}");
    assert!(got[5]["error"]["failed"].as_str().unwrap().contains("stdin"), "{got:?}");
    assert_eq!(got[7]["error"], "not-running");
    let stuck = format!(
        "tool one {}",
        json!({"steps": [start("sleep 600", "deaf"), {"write": "$deaf", "text": "x", "times": 1_000_000}]})
    );
    let began = Instant::now();
    let sent = rig.send(&stuck).join().unwrap().unwrap();
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(2) && took < Duration::from_secs(8), "{took:?}");
    // The deadline may meet the tool before it can tell what it was told.
    let text = response(&sent["task"]);
    assert!(text.contains("timed-out") || text.contains("ran longer than 2 seconds"), "{text}");
    assert_eq!(rig.shut_down(), Ok(()));
}

#[test]
fn a_connection_carries_bytes_both_ways_and_ends_with_its_call() {
    let mut rig = Rig::start(SPIN, with_tools);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let peer = std::thread::spawn(move || {
        let (mut first, _) = listener.accept().unwrap();
        let mut hello = [0; 5];
        first.read_exact(&mut hello).unwrap();
        first.write_all(b"answer").unwrap();
        let (mut second, _) = listener.accept().unwrap();
        let mut many = vec![0; 3_000_000];
        second.read_exact(&mut many).unwrap();
        drop(second);
        // The end of the call is the end of what was left open.
        let mut rest = Vec::new();
        first.read_to_end(&mut rest).unwrap();
        (hello, rest)
    });
    let got = steps(
        &mut rig,
        "one",
        &json!([
            {"start": "sleep", "args": ["600"], "name": "s"},
            {"connect": "$s", "port": port},
            {"receive": 0, "timeout_ms": 50},
            {"send": 0, "text": "hello"},
            {"receive": 0, "max": 3},
            {"receive": 0, "max": 0},
            {"receive": 0},
            {"connect": "$s", "port": port},
            {"send": 1, "text": "x", "times": 3_000_000},
            {"receive": 1},
            {"close": 1},
            {"connect": "$s", "port": 1},
            {"connect": "prc_00000000000000000000000000000000", "port": port},
        ]),
    );
    assert_eq!(got[2]["error"], "timed-out");
    assert_eq!((&got[4]["ok"], &got[5]["ok"], &got[6]["ok"]), (&json!("ans"), &json!(""), &json!("wer")));
    assert_eq!((&got[8]["ok"], &got[9]["ok"]), (&Value::Null, &json!("")), "an empty list is the peer's end");
    assert_eq!(got[11]["error"]["refused"]["rule"], "connect");
    assert_eq!(got[12]["error"], "unknown-handle");
    assert_eq!(peer.join().unwrap(), (*b"hello", vec![]));
    let mut words = words(&rig);
    words.sort();
    assert_eq!(
        words,
        ["connection 0 3000000", "connection 6 5", "denied connect connect", "start s false 1"]
    );
    assert_eq!(rig.shut_down(), Ok(()));
}

#[test]
fn nothing_starts_for_a_task_that_was_cancelled_while_it_was_judged() {
    for step in [json!({"start": "bash", "args": ["-c", "touch ran"], "name": "x"}), bash("touch ran")] {
        let mut rig = Rig::start(SPIN, with_tools);
        // Counting what the work folder holds takes a while: until then a program is not let start.
        for number in 0..60_000 {
            if number % 20_000 == 0 {
                std::fs::write(rig.workdir.path().join(format!("file{number}")), "").unwrap();
            }
            let first = rig.workdir.path().join(format!("file{}", number / 20_000 * 20_000));
            std::fs::hard_link(first, rig.workdir.path().join(format!("link{number}"))).unwrap();
        }
        let held = rig.send(&format!("tool one {}", json!({"steps": [step]})));
        let (task_id, _) = rig.received();
        rig.until_inference();
        rig.call("CancelTask", json!({"id": task_id})).join().unwrap().unwrap();
        assert_eq!(state(&held.join().unwrap().unwrap()["task"]), "TASK_STATE_CANCELED");
        std::thread::sleep(Duration::from_secs(1));
        assert!(!rig.workdir.path().join("ran").exists(), "{step}");
        let mut words = Vec::new();
        assert_eq!(rig.shut_down_seeing(&mut words), Ok(()));
        assert!(!words.iter().any(|word| word.starts_with("start x")), "{words:?}");
    }
}

#[test]
fn a_call_holds_sixty_four_connections_at_a_time() {
    let mut rig = Rig::start(SPIN, with_tools);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connect = json!({"connect": "$s", "port": port});
    let mut all = vec![json!({"start": "sleep", "args": ["600"], "name": "s"})];
    all.extend(vec![connect.clone(); 65]);
    all.extend([json!({"close": 7}), connect.clone(), connect.clone()]);
    let got = steps(&mut rig, "one", &json!(all));
    assert_eq!(got[64]["ok"], 63);
    for number in [65, 68] {
        assert!(got[number]["error"]["failed"].as_str().unwrap().contains("64 connections"), "{number}");
    }
    assert!(got[67]["ok"].is_u64(), "{}", got[67]);
    assert!(steps(&mut rig, "one", &json!([connect]))[0]["ok"].is_u64(), "another call has its own");
    assert_eq!(rig.shut_down(), Ok(()));
}

/// Descriptors are the whole process's: this test runs in one of its own.
#[test]
fn a_call_for_which_no_descriptor_is_left_is_failed_and_the_session_goes_on() {
    const ALONE: &str = "SANDBOX_HOST_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let name = "a_call_for_which_no_descriptor_is_left_is_failed_and_the_session_goes_on";
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("tests::processes::{name}")])
            .env(ALONE, "1")
            .status();
        assert!(status.unwrap().success());
        return;
    }
    let mut rig = Rig::start(SPIN, with_tools);
    let file = |name: &str| rig.workdir.path().join(name);
    let (written, first, second) = (file("written"), file("first"), file("second"));
    std::fs::write(&written, "").unwrap();
    let gate = |name: &str| json!({"start": "bash", "args": ["-c", format!("until [ -e {name} ]; do sleep 0.05; done")], "name": name});
    let start = json!({"start": "sleep", "args": ["600"], "name": "s"});
    let call = json!({"steps": [gate("first"), gate("second"), {"over": "$first"}, bash("true"),
        {"run": "cat", "stdin": "x"}, start, {"run": "git"}, {"over": "$second"}]});
    let sent = rig.send(&format!("tool one {call}"));
    let until =
        |word: &str| while !matches!(rig.next(), Seen::Event(event) if super::rig::word(&event) == word) {};
    until("start second false 2");
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let set = |current| {
        let limit = rustix::process::Rlimit { current, ..limit };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    };
    set(Some(3));
    // Takes no descriptor.
    std::fs::rename(&written, &first).unwrap();
    until("denied run capabilities.shell.allow");
    set(limit.current);
    std::fs::rename(&first, &second).unwrap();
    let sent = sent.join().unwrap().unwrap();
    let text = response(&sent["task"]);
    assert_eq!(text.matches("a pipe could not be made").count(), 3, "{text}");
    let got = steps(&mut rig, "one", &json!([bash("echo back"), start]));
    assert_eq!((&got[0]["ok"]["stdout"], got[1]["ok"]["handle"].is_string()), (&json!("back\n"), true));
    assert_eq!(rig.shut_down(), Ok(()));
}

#[test]
fn outside_a_tool_call_every_function_is_unavailable() {
    let mut rig = Rig::start(PROCESS_TOOL, with_tools);
    let task = json!({"steps": [bash("true"), {"start": "sleep", "name": "x"}, {"find": "x"}, {"status": "prc_1"},
        {"write": "prc_1", "text": "x"}, {"read": "prc_1"}, {"stop": "prc_1"}, {"connect": "prc_1", "port": 1}]});
    let sent = rig.send(&task.to_string()).join().unwrap().unwrap();
    let answer: Value = serde_json::from_str(response(&sent["task"])).unwrap();
    for (number, step) in answer["steps"].as_array().unwrap().iter().enumerate() {
        match number {
            2 => assert_eq!(step, &json!({"ok": null})),
            _ => assert_eq!(step["error"]["refused"]["rule"], "unavailable", "{number}"),
        }
    }
    let functions = ["run", "start", "find", "status", "write", "read", "stop", "connect"];
    let expected: Vec<String> =
        functions.iter().map(|function| format!("denied {function} unavailable")).collect();
    assert_eq!(words(&rig), expected);
    assert_eq!(rig.shut_down(), Ok(()));
}

#[test]
fn clients_are_answered_while_a_tool_waits_and_a_cancel_ends_its_run() {
    let mut rig = Rig::start(SPIN, with_tools);
    let run = json!({"steps": [{"run": "sleep", "args": ["600"]}]});
    let held = rig.send(&format!("tool one {run}"));
    let (task_id, _) = rig.received();
    rig.until_inference();
    let began = Instant::now();
    for _ in 0..3 {
        let task = rig.call("GetTask", json!({"id": task_id})).join().unwrap().unwrap();
        assert_eq!(state(&task), "TASK_STATE_WORKING");
    }
    rig.call("CancelTask", json!({"id": task_id})).join().unwrap().unwrap();
    assert!(began.elapsed() < Duration::from_secs(10));
    assert_eq!(state(&held.join().unwrap().unwrap()["task"]), "TASK_STATE_CANCELED");
    assert_eq!(rig.shut_down(), Ok(()));
}
