//! No state per handle and none per redeem: descriptors and memory are where they were.

use system_tests::broker::{Launch, Session};
use system_tests::handle::{Handle, redeem, redeem_request};
use system_tests::{http, memory, needs_root, process};

use super::answer;

const ROLES: [&str; 3] = ["broker", "door", "fileserver"];

fn pids(session: &Session) -> [i32; 3] {
    [session.pid(), session.role("door").pid, session.role("fileserver").pid]
}

/// Redeems of every kind, so many of each.
fn redeems(session: &Session, handle: &Handle, count: usize) {
    let own = format!("x-murmur-audience: {}", handle.audience);
    let target = format!("/{}", handle.token);
    for _ in 0..count {
        assert_eq!(redeem(session.url(), &handle.token, &handle.audience).body, b"hello\n");
        assert_eq!(redeem(session.url(), &handle.token, "third@h:1").error(), "handle_not_valid");
        for (target, headers) in [("/x", &[own.as_str()][..]), (&target, &[])] {
            assert_eq!(answer(session, &redeem_request("GET", target, headers)).status, 400);
        }
    }
}

/// `seed: The handle`: no used-set and no per-handle server state; B of the cases asks for the mints in a unit test.
#[test]
fn a_thousand_redeems_leave_descriptors_and_memory_where_they_were() {
    needs_root!();
    let capsule = super::capsule();
    let mut session = Launch::of(&capsule).start();
    let handle = Handle::mint_for_itself(&session, "report.md");
    // Buffers and arenas grow to their size, and stay.
    redeems(&session, &handle, 500);
    let pids = pids(&session);
    let mut last = pids.map(process::descriptors);
    let descriptors = process::until("counts that stay", http::PATIENCE, || {
        let now = pids.map(process::descriptors);
        std::mem::replace(&mut last, now).eq(&now).then_some(now)
    });
    let before = pids.map(memory::anonymous);
    redeems(&session, &handle, 1000);
    let mut now = [0; 3];
    process::until(&format!("{descriptors:?} descriptors again"), http::PATIENCE, || {
        now = pids.map(process::descriptors);
        (now == descriptors).then_some(())
    });
    let after = pids.map(memory::anonymous);
    eprintln!("{ROLES:?}: {descriptors:?} descriptors, {before:?} bytes, then {after:?}");
    for (role, (before, after)) in ROLES.into_iter().zip(before.into_iter().zip(after)) {
        // Of 4000 requests: 64 bytes each that stayed would be seen.
        assert!(after <= before + 256 * 1024, "{role} grew from {before} to {after} bytes");
    }
    session.stop();
}
