//! Grants that a manifest gives or takes one by one: variables of programs, Unix sockets, the directory of a component.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use serde_json::{Value, json};
use system_tests::broker::{Launch, Session};
use system_tests::capsule::Capsule;
use system_tests::trace::Trace;
use system_tests::{a2a, host, needs_root, not_run};

/// A driver must have a gateway; nothing of these tests uses it.
const NO_GATEWAY: &str = "http://127.0.0.1:9";
const QUICK: Duration = Duration::from_secs(20);

/// What a tool's answer says, fence and all.
fn tool(session: &Session, name: &str, input: &Value) -> String {
    a2a::answer(&a2a::complete(session.url(), "m", &format!("tool {name} {input}"))).to_owned()
}

#[test]
fn a_program_gets_the_variables_that_are_listed_and_none_that_is_stripped() {
    needs_root!();
    let capabilities = "shell: {allow: [env], strip_env: [LANG, 'SITE_*', '*_URL', '*PRIVATE*'], \
                        baseline_env: [PLAIN, 'BUILD_*', SITE_NAME, MY_API_KEY, 'LD_*', 'MURMUR_*', HOME, PATH]}";
    let capsule = Capsule::driven_by("spin-driver", NO_GATEWAY, &["process-tool"], capabilities);
    let given = [
        ("PLAIN", "host"),
        ("BUILD_ID", "host"),
        ("OTHER", "host"),
        ("SITE_NAME", "host"),
        ("LANG", "host"),
        ("TERM", "host"),
        ("MY_API_KEY", "host"),
        ("LD_PRELOAD", ""),
        ("MURMUR_CAPSULE_NAME", "host"),
        ("HOME", "host"),
    ];
    let mut session = Launch::of(&capsule).environment(&given).start();
    let asked = json!([
        ["ASKED", "request"],
        ["SITE_ROOT", "request"],
        ["DB_URL", "request"],
        ["A_PRIVATE_B", "request"],
        ["PLAIN", "request"]
    ]);
    let steps = json!({"steps": [{"run": "env", "env": asked}]});
    let told = tool(&session, "process-tool", &steps);
    let records = session.records();
    session.stop();
    for there in ["PLAIN=request", "BUILD_ID=host", "TERM=host", "ASKED=request", "MURMUR_CAPSULE_NAME=guest"]
    {
        assert!(told.contains(there), "{there}: {told}");
    }
    for absent in ["OTHER=", "SITE_", "LANG=", "API_KEY", "LD_PRELOAD", "HOME=host", "DB_URL", "PRIVATE"] {
        assert!(!told.contains(absent), "{absent}: {told}");
    }
    let run = &Trace::read(&records).of("process_run")[0].clone();
    assert_eq!(run["env_names"], json!(["ASKED", "PLAIN"]), "{run}");
    assert_eq!(run["env_dropped"], json!(["A_PRIVATE_B", "DB_URL", "SITE_ROOT"]), "{run}");
}

/// Makes a Unix socket and either listens at a path and connects to it, or only connects; Perl needs no file for this.
const UNIX: &str = r#"my ($how, $path) = @ARGV; socket(my $s, 1, 1, 0) or die "socket: $!\n"; my $at = pack("S a*", 1, $path);
if ($how eq "own") { bind($s, $at) or die "bind: $!\n"; listen($s, 1) or die; socket(my $c, 1, 1, 0) or die;
connect($c, $at) or die "connect: $!\n"; print "connected" } else { connect($s, $at) or die "connect: $!\n"; print "escaped" }"#;

#[test]
fn programs_talk_over_unix_sockets_of_their_own_where_that_is_granted_and_never_over_the_hosts() {
    needs_root!();
    let capsule = |more: &str| {
        let capabilities = format!("shell: {{allow: [perl]}}{more}");
        Capsule::driven_by("spin-driver", NO_GATEWAY, &["process-tool"], &capabilities)
    };
    let perform = |session: &Session, how: &str, path: &str| {
        let steps = json!({"steps": [{"run": "perl", "args": ["-e", UNIX, how, path]}]});
        tool(session, "process-tool", &steps)
    };
    let without = capsule("");
    let mut session = Launch::of(&without).start();
    let told = perform(&session, "own", "out/socket");
    assert!(told.contains("socket: Permission denied"), "{told}");
    let sealed = session.containment() == "sealed";
    session.stop();
    if !sealed {
        not_run!("this host gives no sealed root");
    }

    let with = capsule(", network: {unix_sockets: true}, containment: sealed");
    let path = with.folder().join("hosts");
    let _listener = UnixListener::bind(&path).unwrap();
    let mut session = Launch::of(&with).start();
    let told = perform(&session, "own", "out/socket");
    assert!(told.contains("connected"), "{told}");
    let told = perform(&session, "hosts", path.to_str().unwrap());
    assert!(told.contains("connect: No such file"), "{told}");
    session.stop();

    let scoped = capsule(", network: {unix_sockets: true}, containment: scoped");
    let ended = Launch::of(&scoped).run(QUICK);
    assert_eq!(ended.code(), Some(1), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("error[E-CAP-003]: capabilities.network.unix_sockets: "),
        "{}",
        ended.stderr
    );
    assert!(host::is_root() && ended.stderr.contains("hint: declare sealed"), "{}", ended.stderr);
}

#[test]
fn a_component_has_its_scope_for_a_directory_and_no_way_out_of_it() {
    needs_root!();
    let one =
        "  - name: file-tool\n    source: ./artifacts/file-tool\n    local_source: true\n    runtime: tool\n";
    let own = format!("{one}    capabilities: {{filesystem: {{scope: notes/deep}}}}\n");
    let capabilities = "filesystem: {scope: ./out/}";
    let capsule =
        Capsule::driven_by("spin-driver", NO_GATEWAY, &["file-tool", "file-tool=other"], capabilities)
            .with(one, &own);
    capsule.write("secret", b"s\n");
    let mut session = Launch::of(&capsule).start();
    let told = tool(&session, "file-tool", &json!({"write": "made", "text": "own scope"}));
    assert!(told.contains("written"), "{told}");
    let told = tool(&session, "other", &json!({"write": "made", "text": "the capsule's"}));
    assert!(told.contains("written"), "{told}");
    let read = |path: &str| std::fs::read_to_string(capsule.work().join(path)).unwrap();
    assert_eq!((read("notes/deep/made").as_str(), read("out/made").as_str()), ("own scope", "the capsule's"));
    for name in ["file-tool", "other"] {
        for path in ["../secret", "../../secret", "/secret"] {
            let told = tool(&session, name, &json!({ "read": path }));
            assert!(told.contains("error"), "{name} {path}: {told}");
        }
    }
    session.stop();

    // A link where the scope should be is no directory of the workdir's.
    std::fs::remove_dir_all(capsule.work().join("notes")).unwrap();
    symlink("out", capsule.work().join("notes")).unwrap();
    let mut session = Launch::of(&capsule).start();
    let task = a2a::send_message(session.url(), "m", "tool file-tool {\"read\": \"made\"}");
    assert!(!task.to_string().contains("the capsule's"), "{task}");
    session.stop();
}
