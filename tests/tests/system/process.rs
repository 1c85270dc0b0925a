//! `murmur:process` from a tool component, through the whole system.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use system_tests::a2a;
use system_tests::broker::{Launch, Session};
use system_tests::capsule::Capsule;
use system_tests::needs_root;
use system_tests::process;
use system_tests::trace::Trace;

/// A driver must have a gateway; nothing of these tests uses it.
const NO_GATEWAY: &str = "http://127.0.0.1:9";

/// Listens on a port of loopback and answers what it gets in capitals; Perl needs no file of its own for this.
const SERVER: &str = r#"socket(my $s, 2, 1, 0) or die; setsockopt($s, 1, 2, pack('l', 1)); $| = 1; $SIG{PIPE} = 'IGNORE';
bind($s, pack('S n C4 x8', 2, $ARGV[0], 127, 0, 0, 1)) or die; listen($s, 5) or die; print "listens\n";
while (accept(my $c, $s)) { while (sysread($c, my $t, 65536)) { syswrite($c, uc $t) } close $c }"#;

fn capsule(allow: &str, capabilities: &str) -> Capsule {
    let capabilities = format!("shell: {{allow: [{allow}]}}, {capabilities}");
    Capsule::driven_by("spin-driver", NO_GATEWAY, &["process-tool"], &capabilities)
}

/// What the tool got back for its steps.
fn steps(session: &Session, steps: &Value) -> Vec<Value> {
    let task = format!("tool process-tool {}", json!({"steps": steps}));
    let told = a2a::answer(&a2a::complete(session.url(), "m", &task)).to_owned();
    let inner = told.split_once('\n').and_then(|(_, rest)| rest.rsplit_once('\n')).expect("a fence").0;
    let answer: Value = serde_json::from_str(inner).unwrap_or_else(|error| panic!("{error}: {told}"));
    answer["steps"].as_array().unwrap_or_else(|| panic!("{told}")).clone()
}

fn bash(script: &str) -> Value {
    json!({"run": "bash", "args": ["-c", script]})
}

/// Programs of the session that run.
fn programs(session: &Session) -> Vec<String> {
    let roles = ["broker", "door", "fileserver", "sandbox-host", "runner", "egress", "compiler"];
    let all = process::descendants(session.pid());
    all.into_iter().map(|process| process.name).filter(|name| !roles.contains(&name.as_str())).collect()
}

#[test]
fn a_tool_runs_programs_as_a_shell_command_would_run() {
    needs_root!();
    let capsule = capsule("bash, cat, env", "");
    capsule.write("notes/given.txt", b"given\n");
    let mut session = Launch::of(&capsule).start();
    let many = 4 * 1024 * 1024 / 16;
    let got = steps(
        &session,
        &json!([
            bash("cat notes/given.txt; echo made > out/made.txt; echo err >&2; exit 3"),
            bash("kill -9 $$"),
            {"run": "cat", "stdin": "0123456789abcdef", "times": many},
            {"run": "env", "env": [["KEPT", "yes"], ["LD_PRELOAD", "evil"], ["HOME", "evil"], ["MY_API_KEY", "evil"]]},
            bash("cat /etc/shadow"),
            {"run": "bash", "args": ["-c", "while :; do :; done"], "timeout_ms": 300},
            {"run": "sleep"},
            bash("(setsid bash -c '(trap : TERM HUP; while :; do read -t 1; done <> <(:)) & wait' >&- 2>&- &) ; echo left"),
        ]),
    );
    let first = &got[0]["ok"];
    assert_eq!(
        (&first["exit_code"], &first["stdout"], &first["stderr"]),
        (&json!(3), &json!("given\n"), &json!("err\n"))
    );
    assert_eq!(got[1]["ok"]["exit_code"], 137);
    assert_eq!(
        (&got[2]["ok"]["stdout"]["bytes"], &got[2]["ok"]["stdout_truncated"]),
        (&json!(1_048_576), &json!(true))
    );
    let environment = got[3]["ok"]["stdout"].as_str().expect("text");
    assert!(environment.contains("KEPT=yes\n") && !environment.contains("evil"), "{environment}");
    assert_ne!(got[4]["ok"]["exit_code"], 0, "{}", got[4]);
    assert_eq!((&got[5]["ok"]["exit_code"], &got[5]["ok"]["timed_out"]), (&json!(137), &json!(true)));
    assert_eq!(got[6]["error"]["refused"]["rule"], "capabilities.shell.allow");
    assert_eq!(got[7]["ok"]["stdout"], "left\n", "{}", got[7]);
    assert_eq!(programs(&session), Vec::<String>::new(), "the daemon is dead");
    let records = session.records();
    session.stop();

    let trace = Trace::read(&records);
    assert_eq!(trace.counts(["process_run", "process_denied", "tool_call", "shell"]), [7, 1, 1, 0]);
    let runs = trace.of("process_run");
    let turn = &trace.of("inference")[0]["event_id"];
    assert_eq!((&runs[0]["parent_id"], &runs[0]["exit_code"]), (turn, &json!(3)));
    assert_eq!((&runs[2]["stdin_bytes"], &runs[2]["stdout_bytes"]), (&json!(16 * many), &json!(16 * many)));
    assert_eq!(runs[3]["env_names"], json!(["KEPT"]));
    assert_eq!(runs[3]["env_dropped"], json!(["HOME", "LD_PRELOAD", "MY_API_KEY"]));
    assert!(runs[0].get("env_dropped").is_none() && runs[0].get("stdin_bytes").is_none(), "{}", runs[0]);
    assert!(runs[0]["binary"].as_str().is_some_and(|path| path.starts_with('/')), "{}", runs[0]);
    let denied = trace.of("process_denied")[0];
    assert_eq!((&denied["function"], &denied["target"]), (&json!("run"), &json!("sleep")));
    assert_eq!(denied["rule"], "capabilities.shell.allow");
}

#[test]
fn a_server_lives_over_calls_is_connected_to_and_dies_with_the_session() {
    needs_root!();
    let capsule = capsule("bash, perl, sleep", "");
    let mut session = Launch::of(&capsule).start();
    let serve = json!({"start": "perl", "args": ["-e", SERVER, "8080"], "name": "server"});
    let got = steps(&session, &json!([serve, {"until": "listens\n", "of": "$server"}]));
    let handle = got[0]["ok"]["handle"].as_str().unwrap_or_else(|| panic!("{got:?}")).to_owned();
    assert_eq!(got[1]["ok"], "listens\n");
    let got = steps(
        &session,
        &json!([
            serve,
            {"connect": "$server", "port": 8080},
            {"send": 0, "text": "hello"},
            {"receive": 0},
            {"receive": 0, "timeout_ms": 50},
            {"send": 0, "text": "x", "times": 60_000},
            {"receive": 0, "max": 1},
            {"close": 0},
            {"start": "sleep", "args": ["600"], "name": "other"},
            {"connect": "$other", "port": 8080},
            {"connect": "$server", "port": 8081},
            bash("exec 3<>/dev/tcp/127.0.0.1/8080; echo -n shell >&3; read -r -N 5 -u 3 answer; echo $answer"),
        ]),
    );
    assert_eq!(got[0]["ok"], json!({"handle": handle, "already_running": true}));
    assert_eq!((&got[3]["ok"], &got[4]["error"]), (&json!("HELLO"), &json!("timed-out")), "{got:?}");
    assert_eq!(got[6]["ok"], "X");
    for number in [9, 10] {
        assert_eq!(got[number]["error"]["refused"]["rule"], "connect", "{number}");
    }
    assert_eq!(got[11]["ok"]["stdout"], "SHELL\n", "a program of a run reaches it, too");
    let began = Instant::now();
    let stopped = steps(&session, &json!([{"stop": "$other"}, {"stop": "$other"}, {"status": "$other"}]));
    for result in &stopped {
        assert_eq!(result["ok"], json!({"exited": 143}));
    }
    assert!(began.elapsed() < Duration::from_secs(10));
    assert_eq!(programs(&session), ["perl"]);
    let records = session.records();
    session.stop();

    let trace = Trace::read(&records);
    assert_eq!(trace.counts(["process_start", "process_exit", "process_connect"]), [3, 2, 1]);
    let exits = trace.of("process_exit");
    assert_eq!(
        (&exits[0]["name"], &exits[0]["cause"], &exits[0]["killed"]),
        (&json!("other"), &json!("stopped"), &json!(false))
    );
    assert_eq!(
        (&exits[1]["process_id"], &exits[1]["cause"], &exits[1]["killed"]),
        (&json!(handle), &json!("session_end"), &json!(true))
    );
    assert_eq!(exits[1]["exit_code"], 137);
    let connection = trace.of("process_connect")[0];
    assert_eq!((&connection["port"], &connection["bytes_out"]), (&json!(8080), &json!(60_005)));
}

#[test]
fn eight_processes_of_all_tools_fit_beside_runs_and_a_ninth_does_not() {
    needs_root!();
    let capsule = capsule("sleep, bash", "");
    let mut session = Launch::of(&capsule).start();
    let sleeps: Vec<Value> = (0..9)
        .map(|number| json!({"start": "sleep", "args": ["600"], "name": format!("p{number}")}))
        .chain([bash("echo beside")])
        .collect();
    let got = steps(&session, &json!(sleeps));
    assert!(got[..8].iter().all(|result| result["ok"]["already_running"] == false), "{got:?}");
    assert_eq!(got[8]["error"]["refused"]["rule"], "session-process-cap");
    assert_eq!(got[9]["ok"]["stdout"], "beside\n");
    assert_eq!(programs(&session).len(), 8);
    let records = session.records();
    session.stop();
    assert_eq!(Trace::read(&records).counts(["process_start", "process_exit"]), [8, 8]);
}
