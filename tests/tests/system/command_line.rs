//! What the command line answers without launching anything. Needs no root.

use std::time::Duration;

use system_tests::broker::Launch;
use system_tests::temporary::Temporary;

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
