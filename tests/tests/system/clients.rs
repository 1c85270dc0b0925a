//! Load, and clients that do not behave.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use system_tests::broker::{Launch, Session};
use system_tests::capsule::Capsule;
use system_tests::plane::get;
use system_tests::process::{self, until};
use system_tests::temporary::{self, OWNER};
use system_tests::trace::{Tail, Trace};
use system_tests::{http, needs_root, not_run, programs};

use crate::operator_plane::serve;

/// For what must happen, however loaded the host is.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

pub(crate) const REPORT: &str = "/resources/files/report.md";

/// A capsule that exports files up to `max_bytes`.
pub(crate) fn shelf(max_bytes: &str) -> Capsule {
    let capsule = Capsule::reporter().with("root: out/", &format!("root: out/\n    max_bytes: {max_bytes}"));
    capsule.write("out/report.md", b"hello\n");
    capsule
}

/// How many descriptors door and fileserver hold when nothing is going on.
struct Descriptors<'s> {
    session: &'s Session,
    at_rest: [usize; 2],
}

impl<'s> Descriptors<'s> {
    /// Counts after a first read and listing, which leave nothing but what stays.
    fn of(session: &'s Session) -> Self {
        for target in [REPORT, "/resources/files", REPORT] {
            assert_eq!(http::get(session.url(), target).status, 200);
        }
        // The connections of these end a moment after their answers.
        let mut last = Self::count(session);
        let at_rest = until("counts that stay", PATIENCE, || {
            let now = Self::count(session);
            std::mem::replace(&mut last, now).eq(&now).then_some(now)
        });
        Descriptors { session, at_rest }
    }

    fn count(session: &Session) -> [usize; 2] {
        ["door", "fileserver"].map(|name| process::descriptors(session.role(name).pid))
    }

    /// Waits until both hold what they held at first.
    fn are_back(&self, after: &str) {
        let mut now = [0; 2];
        until(&format!("{:?} descriptors again after {after}", self.at_rest), PATIENCE, || {
            now = Self::count(self.session);
            (now == self.at_rest).then_some(())
        });
    }
}

pub(crate) fn connect(session: &Session) -> TcpStream {
    let socket = TcpStream::connect(http::authority(session.url())).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// A connection that takes almost nothing in, with a request on it.
fn reluctant(session: &Session, target: &str) -> TcpStream {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};
    let address: std::net::SocketAddr = http::authority(session.url()).parse().unwrap();
    // Not for the brokers that other tests start meanwhile.
    let descriptor =
        socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    // Before connecting: the window that is offered follows from it.
    sockopt::set_socket_recv_buffer_size(descriptor.as_fd(), 2048).unwrap();
    connect(&descriptor, &address).unwrap();
    let mut stream = TcpStream::from(descriptor);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&get(target)).unwrap();
    stream
}

/// Everything that still comes, whether the connection ends in order or not.
pub(crate) fn rest(mut stream: TcpStream) -> Vec<u8> {
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
    }
    answer
}

/// As many descriptors for this process as the host allows, if it has fewer than needed.
pub(crate) fn can_hold(needed: u64) -> bool {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return true;
    }
    let current = limit.maximum.map_or(needed, |maximum| maximum.min(needed));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum: limit.maximum });
    raised.is_ok() && current >= needed
}

#[test]
fn a_thousand_clients_that_never_end_their_heads_do_not_stop_one_that_does() {
    needs_root!();
    if !can_hold(2048) {
        not_run!("this process may not hold 1000 connections");
    }
    let capsule = shelf("1Mi");
    let mut session = serve(&capsule);
    let descriptors = Descriptors::of(&session);
    let mut slow = Vec::new();
    for number in 0..1000 {
        let mut socket = connect(&session);
        socket.write_all(b"GET /resources/files/rep").unwrap();
        slow.push(socket);
        if number % 20 == 0 {
            let read = http::get(session.url(), REPORT);
            assert_eq!((read.status, read.text()), (200, "hello\n"), "with {number} slow ones");
        }
    }
    let read = http::get(session.url(), REPORT);
    assert_eq!((read.status, read.text()), (200, "hello\n"));
    drop(slow);
    descriptors.are_back("1000 half heads");
    session.stop();
}

/// M47.
#[test]
fn a_connection_that_stalls_in_its_head_is_closed_and_nothing_is_recorded() {
    needs_root!();
    let capsule = shelf("1Mi");
    let mut session = serve(&capsule);
    let descriptors = Descriptors::of(&session);
    let stalled: Vec<TcpStream> = [
        "",
        "GET /resources/fi",
        "GET /resources/files/report.md HTTP/1.1\r\nHost: h\r\n",
        "GET /resources/files/report.md HTTP/1.1\r\nHost: h\r\n\r",
        "\r\n\r\n",
    ]
    .into_iter()
    .map(|half| {
        let mut socket = connect(&session);
        socket.write_all(half.as_bytes()).unwrap();
        socket
    })
    .collect();
    assert_eq!(http::get(session.url(), REPORT).status, 200);
    for socket in stalled {
        assert_eq!(rest(socket), b"", "no answer to half a head");
    }
    descriptors.are_back("half heads");
    let mut tail = Tail::of(&session.records());
    let lines = std::iter::from_fn(|| tail.next_there()).count();
    assert_eq!(lines, 4, "the reads of this test and nothing else");
    session.stop();
}

#[test]
fn a_client_that_stops_reading_is_cut_while_others_are_served() {
    needs_root!();
    let capsule = shelf("64Mi");
    let large = vec![b'x'; 32 << 20];
    capsule.write("out/large", &large);
    let mut session = serve(&capsule);
    let descriptors = Descriptors::of(&session);
    let stopped = reluctant(&session, "f/large");
    for _ in 0..50 {
        assert_eq!(http::get(session.url(), REPORT).text(), "hello\n");
    }
    let whole = http::get(session.url(), "/resources/files/large");
    assert!(whole.body == large, "another client gets all of it");
    descriptors.are_back("a client that stopped reading");
    let answer = rest(stopped);
    assert!(!answer.is_empty() && answer.len() < large.len(), "{} bytes came", answer.len());
    session.stop();
}

/// As many clients as the door serves, none of which reads: the next one is served once the first of them are cut.
#[test]
fn a_full_house_of_clients_that_do_not_read_ends_by_itself() {
    needs_root!();
    let capsule = shelf("4Mi");
    // As many as fit leave a little space in the window of 64 MiB.
    capsule.write("out/large", &vec![b'x'; 3 << 20]);
    let mut session = serve(&capsule);
    let descriptors = Descriptors::of(&session);
    let mut stopped: Vec<TcpStream> = Vec::new();
    for _ in 0..8 {
        stopped.extend((0..32).map(|_| reluctant(&session, "f/large")));
        // With this answer the door has read the heads of those before it, or will when it has room for them.
        let read = http::exchange(session.url(), &get("f/report.md"), PATIENCE).unwrap();
        assert_eq!(http::parse(&read).unwrap().text(), "hello\n", "with {} that do not read", stopped.len());
    }
    descriptors.are_back("256 clients that did not read");
    for stopped in stopped {
        let answer = rest(stopped);
        // Whoever found no space in time has a refusal; whoever had to make room before its head was read has nothing.
        let line = String::from_utf8_lossy(&answer[..answer.len().min(12)]).into_owned();
        assert!(["HTTP/1.1 200", "HTTP/1.1 500", ""].contains(&line.as_str()), "{line:?}");
    }
    assert_eq!(http::get(session.url(), REPORT).text(), "hello\n");
    session.stop();
}

#[test]
fn a_door_that_is_out_of_descriptors_recovers() {
    needs_root!();
    let capsule = shelf("1Mi");
    // Fewer than the half heads that the door would keep waiting.
    let most = 60;
    let mut session = Launch::of(&capsule).arguments(&["--serve-only"]).descriptors(most).start();
    let descriptors = Descriptors::of(&session);
    let door = session.role("door");
    assert!(descriptors.at_rest[0] + 5 < most as usize, "{:?}", descriptors.at_rest);
    for round in 0..5 {
        let slow: Vec<TcpStream> = (0..70)
            .map(|_| {
                let mut socket = connect(&session);
                // Refused already, if there is room for no other.
                let _ = socket.write_all(b"GET /resources/files/rep");
                socket
            })
            .collect();
        for _ in 0..10 {
            let read = http::get(session.url(), REPORT);
            assert_eq!((read.status, read.text()), (200, "hello\n"), "round {round}");
        }
        drop(slow);
        descriptors.are_back("more clients than it may have descriptors");
    }
    assert_eq!(session.role("door"), door, "the same door");
    assert!(
        session.stderr().contains("cannot accept connections"),
        "it never ran out:\n{}",
        session.stderr()
    );
    session.stop();
}

/// Peak of the resident memory of a process, in bytes.
fn peak(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Bytes of memory that one entry of a listing may take in the fileserver, at the peak.
///
/// An entry is its path, two numbers and a hash: 72 bytes and the path's own allocation (32). Before it there is the name
/// from the directory: 32 bytes and its allocation (32). Then comes its text in the document: some 170 bytes. Each of the
/// three grows by doubling, and while it is moved the old one is still there: at most three times its length. That is
/// below 1000 bytes; the buffers that do not depend on the entries are the allowance.
const PER_ENTRY: u64 = 1000;
const ALLOWANCE: u64 = 8 << 20;

#[test]
fn ten_thousand_and_a_hundred_thousand_files_are_listed_completely_in_bounded_memory() {
    needs_root!();
    let capsule = shelf("1Mi");
    let out = capsule.work().join("out");
    let mut session = serve(&capsule);
    assert_eq!(http::get(session.url(), "/resources/files").status, 200);
    let mut made = 0;
    for wanted in [10_000, 100_000_usize] {
        for number in made..wanted {
            // Spread over a few directories, and in an order that is not theirs.
            let folder = out.join(format!("{}", number % 7));
            if number < 7 {
                fs::create_dir(&folder).unwrap();
                temporary::give(&folder, OWNER);
            }
            fs::write(folder.join(format!("{}", number * 7919 % 1_000_003)), number.to_string()).unwrap();
        }
        made = wanted;
        let mut expected: Vec<(String, String)> = (0..wanted)
            .map(|number| {
                let path = format!("{}/{}", number % 7, number * 7919 % 1_000_003);
                (path, programs::sha256(number.to_string().as_bytes()))
            })
            .collect();
        expected.push(("report.md".into(), programs::sha256(b"hello\n")));
        expected.sort();
        let fileserver = session.role("fileserver").pid;
        let before = peak(fileserver);
        let bytes = http::exchange(session.url(), &get("/resources/files"), PATIENCE).unwrap();
        let listing = http::parse(&bytes).unwrap();
        assert_eq!(listing.status, 200);
        let document = listing.json();
        let entries = document["entries"].as_array().unwrap();
        assert_eq!(entries.len(), expected.len());
        for (entry, (path, hash)) in entries.iter().zip(&expected) {
            assert_eq!((&entry["path"], &entry["sha256"]), (&path.as_str().into(), &hash.as_str().into()));
        }
        let grown = peak(fileserver).saturating_sub(before);
        let bound = wanted as u64 * PER_ENTRY + ALLOWANCE;
        assert!(grown <= bound, "{wanted} files: the fileserver grew by {grown} bytes, more than {bound}");
        eprintln!(
            "{wanted} files listed: the fileserver's peak grew by {} bytes an entry",
            grown / wanted as u64
        );
    }
    session.stop();
}

/// L12, L29: a client that leaves ends its listing; it is recorded once, and the next one is not kept waiting for it.
#[test]
fn a_listing_is_abandoned_when_its_client_leaves() {
    needs_root!();
    let capsule = shelf("1Mi");
    capsule.write("out/a-sparse", b"");
    let mut session = serve(&capsule);
    let descriptors = Descriptors::of(&session);
    let records = session.records();
    let mut tail = Tail::of(&records);
    while tail.next_there().is_some() {}
    let fileserver = session.role("fileserver").pid;
    let sparse = File::options().write(true).open(capsule.work().join("out/a-sparse")).unwrap();
    for leave in [Shutdown::Write, Shutdown::Both] {
        sparse.set_len(1 << 40).unwrap();
        let mut leaving = connect(&session);
        leaving.write_all(&get("/resources/files")).unwrap();
        until("the file is open", PATIENCE, || {
            (process::descriptors(fileserver) > descriptors.at_rest[1]).then_some(())
        });
        // Reads are not behind the listing.
        assert_eq!(http::get(session.url(), REPORT).text(), "hello\n");
        let read = tail.next_within(PATIENCE).unwrap();
        assert_eq!((&read["event_type"], &read["outcome"]), (&"resource_read".into(), &"ok".into()));
        leaving.shutdown(leave).unwrap();
        let line = tail.next_within(PATIENCE).expect("the abandoned listing on record");
        assert_eq!(
            (&line["event_type"], &line["outcome"]),
            (&"resource_list".into(), &"io_error".into()),
            "{line}"
        );
        assert_eq!((&line["entry_count"], &line["total_bytes"]), (&0.into(), &0.into()), "{line}");
        drop(leaving);
        descriptors.are_back("an abandoned listing");
        sparse.set_len(0).unwrap();
        let listing = http::get(session.url(), "/resources/files");
        assert_eq!(listing.json()["entries"].as_array().unwrap().len(), 2);
        let line = tail.next_within(PATIENCE).unwrap();
        assert_eq!(
            (&line["event_type"], &line["outcome"]),
            (&"resource_list".into(), &"ok".into()),
            "{line}"
        );
    }
    session.stop();
    let outcomes = Trace::read(&records);
    let listings: Vec<_> = outcomes.of("resource_list").iter().map(|line| line["outcome"].clone()).collect();
    assert_eq!(listings, ["ok", "io_error", "ok", "io_error", "ok"], "each once");
}

/// F24.
#[test]
fn two_hundred_reads_at_one_time_are_all_served_in_bounded_memory() {
    needs_root!();
    if !can_hold(2048) {
        not_run!("this process may not hold 200 connections");
    }
    let capsule = shelf("10Mi");
    let content: Vec<u8> =
        (0..3 << 20).map(|index: u32| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    capsule.write("out/large", &content);
    let mut session = serve(&capsule);
    let descriptors = Descriptors::of(&session);
    let fileserver = session.role("fileserver").pid;
    let before = peak(fileserver);
    let etag = format!("\"sha256:{}\"", programs::sha256(&content));
    std::thread::scope(|scope| {
        for _ in 0..200 {
            let mut socket = connect(&session);
            socket.write_all(&get("f/large")).unwrap();
            // With this answer the door has read the head of the one before it: nobody has to make room.
            assert_eq!(http::get(session.url(), "/healthz").status, 204);
            scope.spawn(|| {
                let read = http::parse(&rest(socket)).unwrap();
                assert_eq!((read.status, read.header("etag")), (200, Some(etag.as_str())));
                assert!(read.body == content);
            });
        }
    });
    let grown = peak(fileserver) - before;
    assert!(grown <= (64 << 20) + ALLOWANCE, "more than the one window of 64 MiB: {grown} bytes");
    descriptors.are_back("200 reads");
    session.stop();
}
