//! Invariant 2: the minting key is in the broker's memory and nowhere else, from its birth to its end.

use std::fs;
use std::path::Path;

use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use system_tests::broker::{Launch, Session};
use system_tests::capsule::Capsule;
use system_tests::handle::{Handle, encode};
use system_tests::ordinary::{self, Delegated};
use system_tests::process::Signal;
use system_tests::{http, memory, needs_root, not_run, process, programs};

/// The one locked page of the broker that is left out of cores and empty in children, and the key at its beginning.
fn key(session: &Session) -> (u64, Vec<u8>) {
    let wanted = ["lo", "dd", "wf"];
    let mut pages = memory::mappings(session.pid());
    pages.retain(|page| wanted.iter().all(|flag| page.flags.iter().any(|found| found == flag)));
    let [page] = pages.as_slice() else { panic!("{pages:?}") };
    let bytes =
        memory::read(session.pid(), page.start, usize::try_from(page.end - page.start).unwrap()).unwrap();
    assert!(bytes[32..].iter().all(|byte| *byte == 0), "nothing but the key is in its page");
    (page.start, bytes[..32].to_vec())
}

fn padded(key: &[u8], with: u8) -> Vec<u8> {
    let mut block = vec![with; 64];
    block.iter_mut().zip(key).for_each(|(byte, key)| *byte = key ^ with);
    block
}

fn digest(bytes: &[u8]) -> Vec<u8> {
    let sum = programs::sha256sum_of(bytes);
    (0..32).map(|index| u8::from_str_radix(&sum[2 * index..2 * index + 2], 16).unwrap()).collect()
}

/// HMAC-SHA256 by `sha256sum`, so that the product is not its own witness.
fn hmac(key: &[u8], message: &[u8]) -> Vec<u8> {
    let inner = digest(&[padded(key, 0x36), message.to_vec()].concat());
    digest(&[padded(key, 0x5c), inner].concat())
}

/// What SHA-256 keeps of one block, as words lie in memory.
fn state_after(block: &[u8]) -> Vec<u8> {
    let mut state = [
        0x6a09_e667,
        0xbb67_ae85,
        0x3c6e_f372,
        0xa54f_f53a,
        0x510e_527f,
        0x9b05_688c,
        0x1f83_d9ab,
        0x5be0_cd19_u32,
    ];
    sha2::block_api::compress256(&mut state, &[block.try_into().unwrap()]);
    state.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// The key, the two blocks that HMAC makes of it, and what hashing those leaves: each of them mints.
fn needles(key: &[u8]) -> Vec<Vec<u8>> {
    let (inner, outer) = (padded(key, 0x36), padded(key, 0x5c));
    let states = [&inner, &outer].map(|block| state_after(block));
    [&[key.to_vec(), inner[..32].to_vec(), outer[..32].to_vec()], &states[..]].concat()
}

fn assert_absent(pid: i32, who: &str, needles: &[&[u8]]) {
    let search = memory::search(pid, needles);
    assert!(search.mappings > 5 && search.bytes > 100_000, "{who}: nothing was searched: {search:?}");
    assert_eq!(search.found, [], "{who}");
}

fn assert_not_on_disk(folder: &Path, needles: &[&[u8]]) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let kind = path.symlink_metadata().unwrap();
        // Copies of the binaries, older than the key.
        if path.ends_with("binaries") {
            continue;
        }
        if kind.is_dir() {
            assert_not_on_disk(&path, needles);
        } else if kind.is_file() {
            let bytes = fs::read(&path).unwrap();
            for needle in needles {
                assert!(!bytes.windows(needle.len()).any(|window| window == *needle), "{}", path.display());
            }
        }
    }
}

#[test]
fn the_minting_key_is_in_one_process_and_in_no_child_of_it() {
    needs_root!();
    let capsule = Capsule::handoff("writer");
    let session = Launch::of(&capsule).start();
    holds_its_key_alone(&capsule, session);
}

#[test]
fn the_minting_key_is_in_one_process_where_all_have_the_users_id() {
    needs_root!();
    let delegated = match Delegated::new() {
        Ok(delegated) => delegated,
        Err(why) => not_run!("{why}"),
    };
    let capsule = Capsule::handoff("writer");
    let session = Launch::of(&capsule).as_user(Some(delegated.path()), &[]).start();
    // The user's other processes do not see it either.
    let memory = format!("/proc/{}/mem", session.pid());
    let read = ordinary::run_as_owner(&["head", "-c", "1", &memory]);
    let said = String::from_utf8_lossy(&read.stderr);
    assert!(said.contains("cannot open") && said.contains("Permission denied"), "{said}");
    holds_its_key_alone(&capsule, session);
}

fn holds_its_key_alone(capsule: &Capsule, mut session: Session) {
    capsule.write("out/report.md", b"hello\n");
    let handle = Handle::mint_for_itself(&session, "report.md");
    let (page, key) = key(&session);

    // It is the key: it makes the MAC of a handle that was minted.
    let (payload, mac) = handle.segments();
    let message = format!("murmur-peer-handle-v1\u{1f}{payload}\u{1f}{}", handle.audience);
    assert_eq!(encode(&hmac(&key, message.as_bytes())), mac, "the page does not hold the key");

    let needles = needles(&key);
    let needles: Vec<&[u8]> = needles.iter().map(Vec::as_slice).collect();
    // The page holds the key alone: what is computed from it is overwritten at once, and must not be found there either.
    let found = memory::search(session.pid(), &needles[..1]).found;
    assert!(
        found.iter().any(|(place, _)| *place == page),
        "a search that finds nothing proves nothing: {found:?}"
    );
    for process in session.processes() {
        assert_absent(process.pid, &process.name, &needles);
    }
    assert_not_on_disk(capsule.folder(), &needles);
    in_a_child_before_exec(&session, &needles);
    in_the_broker_at_its_end(&mut session, &needles);
}

/// Kills the door and stops the broker's next child before it runs an instruction.
fn in_a_child_before_exec(session: &Session, needles: &[&[u8]]) {
    let broker = Pid::from_raw(session.pid());
    let options = Options::PTRACE_O_TRACECLONE | Options::PTRACE_O_TRACEFORK | Options::PTRACE_O_TRACEVFORK;
    ptrace::seize(broker, options).expect("the broker can be traced by root");
    let old = session.role("door");
    process::signal(old.pid, Signal::KILL);
    loop {
        match waitpid(broker, Some(WaitPidFlag::__WALL)).expect("the broker is traced") {
            WaitStatus::PtraceEvent(_, _, event) if event != nix::libc::PTRACE_EVENT_STOP => break,
            WaitStatus::Stopped(_, signal) => ptrace::cont(broker, signal).expect("it goes on"),
            WaitStatus::PtraceEvent(..) => ptrace::cont(broker, None).expect("it goes on"),
            other => panic!("{other:?}"),
        }
    }
    let child = Pid::from_raw(i32::try_from(ptrace::getevent(broker).expect("an event")).unwrap());
    waitpid(child, Some(WaitPidFlag::__WALL)).expect("the child is stopped");
    let exe = fs::read_link(format!("/proc/{child}/exe")).unwrap();
    assert!(exe.ends_with("broker"), "before exec: {}", exe.display());
    assert_absent(child.as_raw(), "a child before exec", needles);
    ptrace::detach(child, None).expect("the child goes on");
    ptrace::detach(broker, None).expect("the broker goes on");
    process::until("another door", http::PATIENCE, || {
        session.roles().into_iter().find(|role| role.name == "door" && *role != old)
    });
}

/// Stops the broker at its exit, when its memory is still there.
fn in_the_broker_at_its_end(session: &mut Session, needles: &[&[u8]]) {
    let broker = Pid::from_raw(session.pid());
    let footprint = session.footprint();
    ptrace::seize(broker, Options::PTRACE_O_TRACEEXIT).expect("the broker can be traced by root");
    session.signal(Signal::TERM);
    loop {
        match waitpid(broker, Some(WaitPidFlag::__WALL)).expect("the broker is traced") {
            WaitStatus::PtraceEvent(_, _, nix::libc::PTRACE_EVENT_EXIT) => break,
            WaitStatus::Stopped(_, signal) => ptrace::cont(broker, signal).expect("it goes on"),
            WaitStatus::PtraceEvent(..) => ptrace::cont(broker, None).expect("it goes on"),
            other => panic!("{other:?}"),
        }
    }
    assert_absent(session.pid(), "the broker at its end", needles);
    ptrace::detach(broker, None).expect("the broker ends");
    assert_eq!(session.wait(http::PATIENCE), Some(0), "{}", session.stderr());
    footprint.assert_gone();
}

/// `seed: The minting key`: generated only where it is declared.
#[test]
fn without_the_declaration_there_is_no_key() {
    needs_root!();
    for capsule in [Capsule::reporter(), Capsule::handoff("reader")] {
        let mut session = Launch::of(&capsule).start();
        let locked = memory::mappings(session.pid())
            .into_iter()
            .filter(|page| page.flags.iter().any(|flag| flag == "lo"));
        assert_eq!(locked.count(), 0);
        session.stop();
    }
}
