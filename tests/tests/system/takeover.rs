//! A process of a session that has been taken over: the broker says which call it tried, and the session is not served by it.

use std::fs;
use std::time::Duration;

use system_tests::broker::Launch;
use system_tests::capsule::Capsule;
use system_tests::handle::redeem;
use system_tests::process;
use system_tests::trace::Trace;
use system_tests::{binaries, memory, needs_root};

/// Calls no role lists; sandbox-host may open files for writing below its directories, egress makes sockets.
const PROBES: [&str; 7] = ["socket", "openat", "execve", "unshare", "mount", "ptrace", "kill"];

fn listed(role: &str, probe: &str) -> bool {
    matches!((role, probe), ("egress", "socket") | ("sandbox-host", "openat"))
}

/// A copy of the binaries in which one role is the hostile one.
fn mixed(capsule: &Capsule, role: &str, probe: &str) -> std::path::PathBuf {
    let mixed = capsule.folder().join("bin");
    fs::create_dir(&mixed).unwrap();
    for name in binaries::SIBLINGS.into_iter().chain(["broker"]) {
        let from = if name == role { "hostile" } else { name };
        binaries::copy(&binaries::directory().join(from), &mixed.join(name));
    }
    fs::write(mixed.join("probe"), probe).unwrap();
    mixed
}

/// `seed: The handle`: no per-handle state.
#[test]
fn a_hundred_thousand_handles_cost_the_broker_no_memory() {
    needs_root!();
    let mint = |handles: u32| {
        let capsule = Capsule::handoff("writer");
        capsule.write("out/report.md", b"hello\n");
        let mixed = mixed(&capsule, "sandbox-host", &format!("mint {handles}"));
        let mut session = Launch::of(&capsule).binaries(&mixed).start();
        let said = process::until("the last handle", Duration::from_secs(300), || {
            let stderr = session.stderr();
            let (_, after) = stderr.split_once(&format!("minted {handles}, last "))?;
            Some(after.split_once('\n')?.0.trim().to_owned())
        });
        // Every one of them lives: this is no cache that forgot.
        assert_eq!(redeem(session.url(), &said, "reader@h:1").body, b"hello\n");
        // Without the pages of its own binary, which come and go.
        let used = memory::anonymous(session.pid()) / 1024;
        let lines = Trace::read(&session.records()).of("peer_handle_mint").len();
        assert_eq!(lines, handles as usize);
        session.stop();
        used
    };
    let (few, many) = (mint(1_000), mint(100_000));
    // 99,000 more handles at a single byte each would show.
    eprintln!("broker: {few} KiB of its own after 1,000 handles, {many} KiB after 100,000");
    assert!(many < few + 96, "{few} KiB after 1,000 handles, {many} KiB after 100,000");
}

#[test]
fn a_role_that_makes_a_call_its_filter_does_not_list_is_ended_and_the_call_is_named() {
    needs_root!();
    for role in ["door", "fileserver", "sandbox-host", "egress", "compiler"] {
        for probe in PROBES.into_iter().filter(|probe| !listed(role, probe)) {
            let capsule = Capsule::reporter();
            let mixed = mixed(&capsule, role, probe);
            let ended = Launch::of(&capsule).binaries(&mixed).run(Duration::from_secs(30));
            assert_eq!(ended.code(), Some(3), "{role}, {probe}: {}", ended.stderr);
            let told = ended
                .stderr
                .lines()
                .any(|line| line.contains(role) && line.contains(&format!("it called {probe}")));
            assert!(told, "{role}: no line names {probe}:\n{}", ended.stderr);
        }
    }
}

/// Invariant 8: what a process says of itself is not believed.
#[test]
fn a_role_that_only_says_that_it_is_confined_is_ended_before_it_is_given_anything() {
    needs_root!();
    for role in ["door", "fileserver", "sandbox-host", "egress", "runner", "compiler"] {
        let capsule = Capsule::reporter();
        let mixed = mixed(&capsule, role, "unconfined");
        let ended = Launch::of(&capsule).binaries(&mixed).run(Duration::from_secs(30));
        assert_eq!(ended.code(), Some(3), "{role}: {}", ended.stderr);
        let told = ended.stderr.lines().any(|line| line.contains(role) && line.contains("seen from outside"));
        assert!(told, "{role}: no line says what differs:\n{}", ended.stderr);
        assert!(!ended.stderr.contains("was given Order"), "{role}: {}", ended.stderr);
        assert_eq!(ended.stdout, "", "{role}: no ready line");
    }
}
