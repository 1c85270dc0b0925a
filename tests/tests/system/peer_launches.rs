//! Launches with `exports.peer_files`: the root that leads out, and the longest life of a handle.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use system_tests::broker::{Ended, Launch};
use system_tests::capsule::Capsule;
use system_tests::handle::{Handle, redeem};
use system_tests::needs_root;
use system_tests::remains::assert_nothing_made;

use crate::operator_plane::classes;

const QUICK: Duration = Duration::from_secs(5);

/// What the writer's example says of the life of its handles.
const TTL: &str =
    "    # A capsule that waits for tasks must keep handles short-lived: 15m at most.\n    max_ttl: 5m\n";

/// A writer whose lifecycle and `max_ttl` are these.
fn writer(after_task: &str, max_ttl: Option<&str>) -> Capsule {
    let line = max_ttl.map(|ttl| format!("    max_ttl: {ttl}\n")).unwrap_or_default();
    let capsule = Capsule::handoff("writer")
        .with(TTL, &line)
        .with("after_task: sleep", &format!("after_task: {after_task}"));
    capsule.write("out/report.md", b"hello\n");
    capsule
}

fn assert_refused(what: &str, ended: &Ended, code: &str, capsule: &Capsule) {
    assert_eq!((ended.code(), ended.stdout.as_str()), (Some(1), ""), "{what}: {}", ended.stderr);
    assert!(ended.stderr.contains(&format!("error[{code}]: ")), "{what}: {}", ended.stderr);
    assert!(ended.stderr.contains("exports.peer_files"), "{what}: the thing is named: {}", ended.stderr);
    assert_nothing_made(capsule.folder());
}

/// R24, R6, R10: any part of the root of handles that leads out, in every class, also with a sound root of files beside it.
#[test]
fn a_root_of_handles_with_any_part_that_leads_out_refuses_the_launch() {
    needs_root!();
    for class in classes() {
        for (root, link, target) in [
            ("out/", "out", "/tmp"),
            ("out/", "out", ".."),
            ("out/", "out", "/"),
            ("a/b/", "a", "/tmp"),
            ("a/b/", "a", ".."),
            ("a/b/c", "a/b", "../.."),
        ] {
            for (beside, arguments) in
                [("", &[][..]), ("  files: {root: inputs/, mode: read-only}", &[]), ("", &["--serve-only"])]
            {
                let capsule = Capsule::handoff("writer")
                    .with("root: out/", &format!("root: {root}"))
                    .with("capabilities:\n", &format!("capabilities:\n  containment: {class}\n"))
                    .and(beside);
                let link = capsule.work().join(link);
                fs::create_dir_all(link.parent().unwrap()).unwrap();
                symlink(target, &link).unwrap();
                let ended = Launch::of(&capsule).arguments(arguments).run(QUICK);
                let what = format!("{root} by {target}, {class}, {beside} {arguments:?}");
                assert_refused(&what, &ended, "E-CAP-007", &capsule);
            }
        }
    }
}

/// `seed: The minting key`, its table; B11.
#[test]
fn a_capsule_that_sleeps_must_say_how_long_its_handles_live_and_at_most_15_minutes() {
    needs_root!();
    for (after_task, max_ttl, arguments) in [
        ("sleep", None, &[][..]),
        ("sleep", Some("16m"), &[]),
        ("sleep", Some("15m1s"), &[]),
        ("sleep", Some("901"), &[]),
        ("sleep", Some("1h"), &[]),
        ("sleep", Some("30d"), &[]),
        // What the command line says counts, whatever the manifest says.
        ("exit", None, &["--after-task", "sleep"]),
        ("exit", Some("16m"), &["--after-task", "sleep"]),
        ("sleep", None, &["--check"]),
    ] {
        let capsule = writer(after_task, max_ttl);
        let ended = Launch::of(&capsule).arguments(arguments).run(QUICK);
        let what = format!("{after_task}, {max_ttl:?}, {arguments:?}");
        // Durations have one unit; 15m1s is none, which is refused all the same.
        let code = if max_ttl == Some("15m1s") { "E-MAN-003" } else { "E-CAP-008" };
        assert_refused(&what, &ended, code, &capsule);
        assert!(ended.stderr.contains("  hint: "), "{what}: a remedy: {}", ended.stderr);
    }
}

/// B12, B13: the handles say how long they live.
#[test]
fn what_may_be_declared_is_how_long_handles_live() {
    needs_root!();
    for (after_task, max_ttl, arguments, seconds) in [
        ("sleep", Some("15m"), &[][..], 900),
        ("sleep", Some("900"), &[], 900),
        ("sleep", Some("5m"), &["--after-task", "exit"], 300),
        ("exit", None, &[], 3600),
        ("exit", Some("30d"), &[], 30 * 86_400),
        ("exit", Some("15m"), &["--after-task", "sleep"], 900),
        ("sleep", None, &["--after-task", "exit"], 3600),
        ("sleep", Some("16m"), &["--after-task", "exit"], 960),
        ("sleep", None, &["--once"], 3600),
    ] {
        let what = format!("{after_task}, {max_ttl:?}, {arguments:?}");
        let capsule = writer(after_task, max_ttl);
        let mut session = Launch::of(&capsule).arguments(arguments).start();
        let before = now();
        let handle = Handle::mint_for_itself(&session, "report.md");
        let payload: serde_json::Value = serde_json::from_str(&handle.payload()).unwrap();
        let expires = payload["exp"].as_u64().unwrap();
        let most = now() + seconds * 1000;
        assert!((before + seconds * 1000..=most).contains(&expires), "{what}: {expires}, {before} to {most}");
        let ends = arguments.contains(&"--once")
            || arguments == ["--after-task", "exit"]
            || (after_task == "exit" && arguments.is_empty());
        if ends {
            // The mint was its task: it ends by itself, and its handles with it.
            assert_eq!(session.wait(Duration::from_secs(20)), Some(0), "{what}: {}", session.stderr());
        } else {
            assert_eq!(redeem(session.url(), &handle.token, &handle.audience).body, b"hello\n", "{what}");
            session.stop();
        }
    }
}

fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}
