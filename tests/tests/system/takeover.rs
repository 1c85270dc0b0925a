//! A process of a session that has been taken over: the broker says which call it tried, and the session is not served by it.

use std::fs;
use std::time::Duration;

use system_tests::broker::Launch;
use system_tests::capsule::Capsule;
use system_tests::{binaries, needs_root};

/// Calls no role lists; sandbox-host may open files for writing below its directories, egress makes sockets.
const PROBES: [&str; 7] = ["socket", "openat", "execve", "unshare", "mount", "ptrace", "kill"];

fn listed(role: &str, probe: &str) -> bool {
    matches!((role, probe), ("egress", "socket") | ("sandbox-host", "openat"))
}

#[test]
fn a_role_that_makes_a_call_its_filter_does_not_list_is_ended_and_the_call_is_named() {
    needs_root!();
    for role in ["door", "fileserver", "sandbox-host", "egress", "compiler"] {
        for probe in PROBES.into_iter().filter(|probe| !listed(role, probe)) {
            let capsule = Capsule::reporter();
            let mixed = capsule.folder().join("bin");
            fs::create_dir(&mixed).unwrap();
            for name in binaries::SIBLINGS.into_iter().chain(["broker"]) {
                let from = if name == role { "hostile" } else { name };
                binaries::copy(&binaries::directory().join(from), &mixed.join(name));
            }
            fs::write(mixed.join("probe"), probe).unwrap();
            let ended = Launch::of(&capsule).binaries(&mixed).run(Duration::from_secs(30));
            assert_eq!(ended.code(), Some(3), "{role}, {probe}: {}", ended.stderr);
            let told = ended
                .stderr
                .lines()
                .any(|line| line.contains(role) && line.contains(&format!("it called {probe}")));
            assert!(told, "{role}: no line names {probe}:\n{}", ended.stderr);
            assert_eq!(ended.stdout, "", "{role}, {probe}: it never served");
        }
    }
}
