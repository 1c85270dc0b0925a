//! What the command line answers besides launching.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use system_tests::broker::Launch;
use system_tests::capsule::Capsule;
use system_tests::remains::assert_nothing_made;
use system_tests::temporary::Temporary;
use system_tests::{a2a, binaries, host, http, needs_root};

const QUICK: Duration = Duration::from_secs(5);

fn broker(arguments: &[&str]) -> system_tests::broker::Ended {
    let folder = Temporary::new();
    Launch::bare(folder.path()).without_accepting().arguments(arguments).run(QUICK)
}

#[test]
fn help_lists_every_flag_and_version_prints_one() {
    let help = broker(&["--help"]);
    assert_eq!(help.code(), Some(0), "{}", help.stderr);
    for flag in [
        "--manifest",
        "--workdir",
        "--task",
        "--once",
        "--task-acceptance",
        "--after-task",
        "--serve-only",
        "--containment",
        "--listen",
        "--public-url",
        "--uid-range",
        "--check",
        "--json",
        "--quiet",
        "--allow-unknown-keys",
        "--accept-missing",
        "--artifact-dir",
        "--state-dir",
        "--cache-dir",
        "--run-dir",
        "--help",
        "--version",
    ] {
        assert!(help.stdout.contains(flag), "{flag} in\n{}", help.stdout);
    }
    let version = broker(&["--version"]);
    assert_eq!(version.code(), Some(0));
    assert!(version.stdout.contains(env!("CARGO_PKG_VERSION")), "{}", version.stdout);
}

#[test]
fn usage_errors_end_with_status_2_and_say_what_is_wrong() {
    for (arguments, named) in [
        (&[][..], "--manifest"),
        (&["--manifest"], "--manifest"),
        (&["--manifset", "murmur.yaml"], "--manifset"),
        (&["--manifest", "murmur.yaml", "--accept-missing", "everything"], "everything"),
        (&["--manifest", "murmur.yaml", "--containment", "airtight"], "airtight"),
        (&["--manifest", "murmur.yaml", "--listen", "nowhere"], "nowhere"),
        (&["--manifest", "murmur.yaml", "--serve-only", "--task", "x"], "--serve-only"),
    ] {
        let ended = broker(arguments);
        assert_eq!(ended.code(), Some(2), "{arguments:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(named), "{arguments:?}: {}", ended.stderr);
        assert_eq!(ended.stdout, "", "{arguments:?}");
    }
}

#[test]
fn codes_are_explained_offline_and_a_mistyped_one_has_its_neighbour() {
    let explain = |words: &[&str]| {
        let command = Command::new(binaries::directory().join("broker")).arg("explain").args(words).output();
        let output = command.expect("the broker");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (status, text, _) = explain(&["e-run-012"]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.starts_with("E-RUN-012: ") && text.contains("\n  What helps: "), "{text}");
    let (status, all, _) = explain(&[]);
    let page = std::fs::read_to_string(binaries::checkout().join("docs/diagnostics.md")).unwrap();
    let headings = page.lines().filter_map(|line| line.strip_prefix("## "));
    let listed: Vec<String> = all.lines().map(|line| line.replacen("  ", ": ", 1)).collect();
    assert_eq!((status, listed), (Some(0), headings.map(str::to_owned).collect()));
    for (word, hint) in [("E-CAP-033", "E-CAP-003"), ("\u{1b}[31m", "broker explain")] {
        let (status, text, error) = explain(&[word]);
        assert_eq!((status, text.as_str()), (Some(2), ""), "{word:?}");
        assert!(error.contains(hint) && !error.contains('\u{1b}'), "{word:?}: {error}");
    }
}

#[test]
fn a_record_is_told_as_a_timeline_and_followed_to_its_end() {
    needs_root!();
    let capsule = Capsule::reporter();
    let mut session = Launch::of(&capsule).start();
    let records = session.records();
    let trace = |words: &[&str]| {
        let mut command = Command::new(binaries::directory().join("broker"));
        command.arg("trace").arg(&records).args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let followed = trace(&["--follow"]).spawn().expect("the broker");
    let _ = a2a::complete(session.url(), "one", "Report on inputs/");
    let _ = http::get(session.url(), "/resources/files/report.md");
    let _ = http::get(session.url(), "/resources/files/%1b%5b31m");
    let running = trace(&[]).output().expect("the broker");
    assert_eq!(running.status.code(), Some(1), "it has no end yet");
    assert!(String::from_utf8_lossy(&running.stderr).contains("error[E-TRC-001]: "), "{running:?}");
    session.stop();

    let followed = followed.wait_with_output().expect("its end");
    let whole = trace(&[]).output().expect("the broker");
    assert_eq!((followed.status.code(), whole.status.code()), (Some(0), Some(0)), "{followed:?}");
    assert_eq!(followed.stdout, whole.stdout);
    let text = String::from_utf8(whole.stdout).expect("text");
    let mut rest = text.as_str();
    for word in ["session  ", "task  ", "asks for bash", "bash  ", "task ends  ", "read  ", "session ends  "]
    {
        let found = rest.find(word).unwrap_or_else(|| panic!("{word:?} in this place:\n{text}"));
        rest = &rest[found..];
    }
    assert!(text.contains("\\u{1b}[31m → not_found") && !text.contains('\u{1b}'), "{text}");
    assert!(text.contains("(UTC+00:00)"), "no terminal, no local time: {text}");
    let json = trace(&["--json"]).output().expect("the broker").stdout;
    assert!(json == std::fs::read(records.join("trace.jsonl")).unwrap());

    let none =
        Command::new(binaries::directory().join("broker")).args(["trace", "nowhere"]).output().unwrap();
    let said = String::from_utf8_lossy(&none.stderr).into_owned();
    assert_eq!(none.status.code(), Some(1));
    assert!(said.starts_with("error[E-IO-001]: nowhere: ") && said.contains("\n  hint: "), "{said}");
}

#[test]
fn check_says_what_a_capsule_would_be_allowed_and_makes_nothing() {
    needs_root!();
    let capsule = Capsule::handoff("writer").and("  files: {root: out/, mode: read-only, max_bytes: 1Ki}");
    let checked = Launch::of(&capsule).arguments(&["--check", "--json"]).run(QUICK);
    assert_eq!((checked.code(), checked.stderr.as_str()), (Some(0), ""), "{}", checked.stdout);
    let report: Value = serde_json::from_str(&checked.stdout).expect("one document");
    assert_eq!((&report["launchable"], &report["capsule"]["name"]), (&json!(true), &json!("writer")));
    assert_eq!(report["class"]["floor"], Value::Null);
    assert!(
        report["warnings"][0].as_str().is_some_and(|text| text.starts_with("warning[W-SEC-025]: ")),
        "{report}"
    );
    assert!(
        report["programs"]["allow"]["bash"].as_str().is_some_and(|path| path.starts_with('/')),
        "{report}"
    );
    assert_eq!(report["components"]["stand-in"]["role"], "driver", "{report}");
    assert_eq!(
        report["planes"],
        json!({
            "files": {"root": "out/", "max_bytes": 1024},
            "peer_files": {"root": "out/", "max_ttl_seconds": 300, "max_bytes": report["planes"]["peer_files"]["max_bytes"]},
        })
    );
    let rows = Launch::of(&capsule).arguments(&["--check"]).run(QUICK);
    let class = report["class"]["achieved"].as_str().unwrap();
    assert!(rows.stdout.contains(&format!("  achieved                 {class}\n")), "{}", rows.stdout);
    assert!(rows.stdout.ends_with("It would be launched.\n"), "{}", rows.stdout);
    assert_nothing_made(capsule.folder());

    // What a launch says is what is launched.
    let mut session = Launch::of(&capsule).start();
    assert_eq!(session.containment(), class);
    session.stop();
}

#[test]
fn check_refuses_what_a_launch_refuses_with_the_same_words() {
    needs_root!();
    let unknown = Capsule::reporter().with("max_turns: ", "max_trns: ");
    let absent = Capsule::reporter().with("allow: [bash, ", "allow: [no-such-program, bash, ");
    let mut cases = vec![(unknown, "E-MAN-003", true), (absent, "E-IO-001", true)];
    if !host::missing_controllers().is_empty() {
        cases.push((Capsule::reporter(), "E-RUN-012", false));
    }
    for (capsule, code, accepting) in cases {
        let launch = |words: &[&str]| {
            let launch = Launch::of(&capsule).arguments(words);
            (if accepting { launch } else { launch.without_accepting() }).run(QUICK)
        };
        let (launched, checked) = (launch(&[]), launch(&["--check", "--json"]));
        assert_eq!((launched.code(), checked.code()), (Some(1), Some(1)), "{code}: {}", checked.stderr);
        assert_eq!(launched.stderr, checked.stderr, "{code}");
        let report: Value = serde_json::from_str(&checked.stdout).expect("one document");
        assert_eq!(
            (&report["launchable"], &report["refusal"]["code"]),
            (&json!(false), &json!(code)),
            "{report}"
        );
        assert_nothing_made(capsule.folder());
    }
}

#[test]
fn the_schema_of_the_manifest_is_printed_as_it_is_shipped() {
    let output =
        Command::new(binaries::directory().join("broker")).arg("schema").output().expect("the broker");
    let shipped = std::fs::read(binaries::checkout().join("docs/murmur.schema.json")).unwrap();
    assert!(output.status.success() && output.stdout == shipped);
}
