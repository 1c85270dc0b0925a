//! Redeems while a process of the session is killed and replaced: what was answered is on record once, and so is what was
//! in flight.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use system_tests::broker::{Launch, Session};
use system_tests::capsule::Capsule;
use system_tests::handle::{Handle, redeem_request};
use system_tests::process::{self, Signal};
use system_tests::trace::Trace;
use system_tests::{http, needs_root};

/// Letters enough to number requests by their case.
const NAME: &str = "a-capsule-whose-name-has-letters-enough";

fn capsule() -> Capsule {
    super::capsule().with("name: writer", &format!("name: {NAME}"))
}

/// Longer than the door waits for an answer that never comes.
const PATIENCE: Duration = Duration::from_secs(90);

/// A redeem that takes longer was lost, and the door gave up on it.
const LOST: Duration = Duration::from_secs(20);

/// The audience in a spelling of its own for each number: it is compared in lower case and recorded as asserted, so that
/// every request is known again in the trace.
fn spelled(audience: &str, number: usize) -> String {
    let mut bit = 0;
    audience
        .chars()
        .map(|letter| {
            if !letter.is_ascii_lowercase() || bit == usize::BITS {
                return letter;
            }
            bit += 1;
            if number >> (bit - 1) & 1 == 1 { letter.to_ascii_uppercase() } else { letter }
        })
        .collect()
}

fn request(handle: &Handle, number: usize) -> Vec<u8> {
    let header = format!("x-murmur-audience: {}", spelled(&handle.audience, number));
    redeem_request("GET", &format!("/{}", handle.token), &[&header])
}

/// `ok` or the code, if there was an answer.
fn outcome(url: &str, handle: &Handle, number: usize) -> Option<String> {
    let answer = http::exchange_early(url, &request(handle, number), PATIENCE).ok()?;
    if answer.is_empty() {
        return None;
    }
    let response = http::parse(&answer).unwrap_or_else(|error| panic!("{error}"));
    if response.status == 200 {
        assert_eq!(response.body, b"hello\n");
        return Some("ok".to_owned());
    }
    Some(response.error())
}

/// The outcomes on record, by spelling.
fn recorded(trace: &Trace) -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::<String, Vec<String>>::new();
    for line in trace.of("peer_handle_redeem") {
        let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
        found.entry(text("audience_asserted")).or_default().push(text("outcome"));
    }
    found
}

/// Redeems until it is served; what was refused meanwhile was refused as one in flight.
fn served_again(session: &Session, handle: &Handle, numbers: &mut impl Iterator<Item = usize>) -> usize {
    let deadline = Instant::now() + http::PATIENCE;
    for (tries, number) in (1..).zip(numbers) {
        match outcome(session.url(), handle, number).as_deref() {
            Some("ok") => return tries,
            Some("io_error") | None => assert!(Instant::now() < deadline, "still refused"),
            Some(other) => panic!("{other}"),
        }
    }
    unreachable!("numbers do not end")
}

/// Nothing outside says when a redeem has reached the stopped fileserver: it has long since, and if not the test is no less
/// true, only easier.
const REACHED: Duration = Duration::from_millis(300);

/// Whether a client's connection was accepted and is open: until then its socket has no inode.
fn taken(url: &str) -> bool {
    let port: u16 = url.rsplit(':').next().unwrap().trim_end_matches('/').parse().unwrap();
    let local = format!(":{port:04X}");
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    table.lines().skip(1).any(|line| {
        let column: Vec<&str> = line.split_whitespace().collect();
        // Local address, state (1 is established), inode.
        column[1].ends_with(&local) && column[3] == "01" && column[9] != "0"
    })
}

#[test]
fn a_redeem_that_a_killed_process_had_is_on_record_once_and_the_next_one_is_served() {
    needs_root!();
    for (kind, killed) in
        [("verified and at the fileserver", "fileserver"), ("waited for by the door", "door")]
    {
        let capsule = capsule();
        let mut session = Launch::of(&capsule).start();
        let handle = Handle::mint_for_itself(&session, "report.md");
        let mut numbers = 1..;
        assert_eq!(served_again(&session, &handle, &mut numbers), 1);
        let fileserver = session.role("fileserver");
        process::signal(fileserver.pid, Signal::STOP);
        let (url, number) = (session.url().to_owned(), numbers.next().unwrap());
        let of_it = std::thread::spawn({
            let handle = handle.clone();
            move || outcome(&url, &handle, number)
        });
        // A client that this door has not taken is taken by the next one.
        process::until("the door takes the client", PATIENCE, || taken(session.url()).then_some(()));
        std::thread::sleep(REACHED);
        session.replace(killed);
        if killed == "door" {
            process::signal(fileserver.pid, Signal::CONT);
        }
        let of_it = of_it.join().unwrap();
        let tries = served_again(&session, &handle, &mut numbers);
        // The killed door cannot answer any more; the others can, and say what is on record.
        assert_eq!(of_it.is_none(), killed == "door", "{kind}: all of an answer or nothing: {of_it:?}");
        let records = session.records();
        session.stop();
        let trace = Trace::read(&records);
        let recorded = recorded(&trace);
        let lines = recorded.get(&spelled(&handle.audience, number)).cloned().unwrap_or_default();
        assert_eq!(lines.len(), 1, "{kind}: {lines:?}\n{}", trace.text());
        if let Some(answered) = of_it {
            assert_eq!(lines, [answered], "{kind}: what is recorded is what was answered");
        }
        assert_eq!(recorded.len(), 2 + tries, "{kind}");
        assert!(recorded.values().all(|lines| lines.len() == 1), "{kind}: {recorded:?}");
        eprintln!("{kind}: {lines:?}, served again at try {tries}");
    }
}

/// Tells clients to stop when it is dropped.
struct Stop<'s>(&'s AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Killed while several clients redeem: whoever got an answer is on record with it, once; whoever got none, at most once.
#[test]
fn a_process_killed_under_load_loses_no_line_of_an_answer() {
    needs_root!();
    for killed in ["fileserver", "door"] {
        let capsule = capsule();
        let mut session = Launch::of(&capsule).start();
        let handle = Handle::mint_for_itself(&session, "report.md");
        let (next, stop) = (AtomicUsize::new(1), AtomicBool::new(false));
        let answers = Mutex::new(BTreeMap::new());
        std::thread::scope(|scope| {
            // Also when something below panics: else the clients never end, and the scope waits for them.
            let _stop = Stop(&stop);
            for _ in 0..4 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        let begun = Instant::now();
                        let outcome = outcome(session.url(), &handle, number);
                        let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
                        answers.insert(number, (outcome, begun.elapsed()));
                    }
                });
            }
            for _ in 0..2 {
                let so_far = next.load(Ordering::Relaxed);
                process::until("some hundred redeems", 2 * PATIENCE, || {
                    (next.load(Ordering::Relaxed) > so_far + 300).then_some(())
                });
                session.replace(killed);
            }
        });
        let mut numbers = next.load(Ordering::Relaxed)..;
        served_again(&session, &handle, &mut numbers);
        let records = session.records();
        session.stop();
        let trace = Trace::read(&records);
        let recorded = recorded(&trace);
        let answers = answers.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut tally = BTreeMap::<&str, usize>::new();
        let mut wrong = Vec::new();
        for (number, (answer, took)) in &answers {
            let asserted = spelled(&handle.audience, *number);
            let lines = recorded.get(&asserted).map_or(&[][..], Vec::as_slice);
            let right = match answer.as_deref() {
                Some(code) => matches!(code, "ok" | "io_error") && lines == [code],
                None => lines.len() <= 1,
            };
            if !right || *took > LOST {
                let events = &trace.events;
                let place = events.iter().position(|line| line["audience_asserted"] == asserted.as_str());
                let at = |place: usize| events[place]["timestamp"].as_u64().unwrap_or_default();
                let gap = place.map(|place| at(place).saturating_sub(at(place - 1)));
                wrong.push(format!(
                    "request {number}: {answer:?} after {took:.1?}, on record {lines:?}, {gap:?} ms after the line before"
                ));
            }
            *tally.entry(answer.as_deref().unwrap_or("no answer")).or_default() += 1;
        }
        eprintln!("{killed} killed twice: {tally:?}");
        assert!(wrong.is_empty(), "{killed} killed twice, {tally:?}:\n{}", wrong.join("\n"));
        assert!(tally.get("ok").is_some_and(|served| *served > 300), "{tally:?}");
    }
}

#[test]
fn a_client_that_leaves_a_redeem_in_flight_leaves_one_line() {
    needs_root!();
    let capsule = capsule();
    let mut session = Launch::of(&capsule).start();
    let handle = Handle::mint_for_itself(&session, "report.md");
    let fileserver = session.role("fileserver");
    process::signal(fileserver.pid, Signal::STOP);
    let mut left: Vec<TcpStream> = Vec::new();
    for number in 1..=5 {
        let mut socket = TcpStream::connect(http::authority(session.url())).unwrap();
        socket.write_all(&request(&handle, number)).unwrap();
        left.push(socket);
    }
    std::thread::sleep(REACHED);
    drop(left);
    std::thread::sleep(REACHED);
    process::signal(fileserver.pid, Signal::CONT);
    let tries = served_again(&session, &handle, &mut (6..));
    let records = session.records();
    session.stop();
    let trace = Trace::read(&records);
    let recorded = recorded(&trace);
    assert_eq!(recorded.len(), 5 + tries, "{recorded:?}");
    assert!(recorded.values().all(|lines| lines.len() == 1), "{recorded:?}");
    for line in trace.of("peer_handle_redeem") {
        let path: &Value = &line["path"];
        assert_eq!(path, "report.md", "verified, whatever became of it: {line}");
    }
}
