//! K and A: which check comes first, and headers and tokens that are not what they should be.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::Value;
use system_tests::broker::{Launch, Session};
use system_tests::capsule::Capsule;
use system_tests::handle::{Handle, encode, redeem_request};
use system_tests::trace::Tail;
use system_tests::{http, memory, needs_root, process};

use super::{Lines, answer};

fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

/// Handles for files that each came to another end, all of them expired.
fn expired(capsule: &Capsule, session: &Session) -> Vec<(&'static str, Handle)> {
    let names = ["fine.md", "gone.md", "large.md", "link.md", "directory.md", "fifo.md"];
    let share = capsule.work().join("share");
    let handles: Vec<_> = names
        .into_iter()
        .map(|name| {
            capsule.write(&format!("share/{name}"), b"hello\n");
            (name, Handle::mint_for_itself(session, name))
        })
        .collect();
    capsule.write("share/large.md", &[b'x'; 1025]);
    for name in &names[1..] {
        if *name != "large.md" {
            fs::remove_file(share.join(name)).unwrap();
        }
    }
    symlink("/etc/passwd", share.join("link.md")).unwrap();
    fs::create_dir(share.join("directory.md")).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    rustix::fs::mknodat(rustix::fs::CWD, share.join("fifo.md"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    for (_, handle) in &handles {
        let payload: Value = serde_json::from_str(&handle.payload()).unwrap();
        let expires = payload["exp"].as_u64().unwrap();
        process::until("the expiry", http::PATIENCE, || (now() >= expires).then_some(()));
    }
    handles
}

/// `seed: GET /resources/peer/<handle>`, the fixed order: method, shape, audience, MAC, expiry, file. Whatever is wrong
/// further down, the first that is wrong decides; the path is on record from the MAC on.
#[test]
fn the_first_thing_that_is_wrong_decides_whatever_else_is() {
    needs_root!();
    let capsule = super::capsule().with("max_ttl: 5m", "max_ttl: 1s");
    let mut session = Launch::of(&capsule).start();
    let handles = expired(&capsule, &session);
    let lines = Lines::of(&session);
    for (name, handle) in &handles {
        let own = format!("x-murmur-audience: {}", handle.audience);
        let own = own.as_str();
        let owned = [own];
        let other = "x-murmur-audience: third@h:1";
        let good = format!("/{}", handle.token);
        let forged = format!("/{}", handle.with_payload(&handle.payload().replace(name, "fine.md")));
        let later = handle.payload().replace("\"exp\":1", "\"exp\":9");
        let later = format!("/{}", handle.with_payload(&later));
        let broken = format!("{good}~");
        let rows: [(&str, &str, &[&str], u16, &str); 10] = [
            ("GET", &good, &[own], 410, "handle_expired"),
            ("GET", &good, &[other], 403, "handle_not_valid"),
            ("GET", &later, &[own], 403, "handle_not_valid"),
            ("GET", &good, &[], 400, "missing_audience"),
            ("GET", &good, &["x-murmur-audience: \t "], 400, "missing_audience"),
            ("GET", &later, &[], 400, "missing_audience"),
            ("GET", &broken, &[own], 400, "malformed_handle"),
            ("GET", &broken, &[], 400, "malformed_handle"),
            ("POST", &good, &[], 405, "method_not_allowed"),
            ("DELETE", &broken, &[other], 405, "method_not_allowed"),
        ];
        let tampered = (*name != "fine.md").then_some(("GET", &*forged, &owned[..], 403, "handle_not_valid"));
        for (method, target, headers, status, code) in rows.into_iter().chain(tampered) {
            let what = format!("{name}: {method} {headers:?}");
            let refused = answer(&session, &redeem_request(method, target, headers));
            assert_eq!((refused.status, refused.error().as_str()), (status, code), "{what}");
            let line = lines.next();
            let path = if code == "handle_expired" { Value::from(*name) } else { Value::Null };
            assert_eq!((&line["outcome"], &line["path"]), (&code.into(), &path), "{what}: {line}");
        }
    }
    session.stop();
}

/// K17, H36: whatever it is that keeps a MAC from verifying, the answer is the same to the byte, and the line says the same.
#[test]
fn nothing_tells_why_a_handle_is_not_valid() {
    needs_root!();
    let (capsule, elsewhere) = (super::capsule(), super::capsule());
    let mut before = Launch::of(&capsule).start();
    let of_before = Handle::mint_for_itself(&before, "report.md");
    before.stop();
    let mut session = Launch::of(&capsule).start();
    let mut other = Launch::of(&elsewhere).start();
    let place = http::authority(session.url());
    let handle = Handle::mint(&session, "report.md", place);
    let of_other = Handle::mint(&other, "report.md", place);
    other.stop();
    let tampered = |from: &str, to: &str| {
        let payload = handle.payload();
        assert!(payload.contains(from), "{payload}");
        handle.with_payload(&payload.replace(from, to))
    };
    let payload = handle.segments().0;
    let lines = Lines::of(&session);
    let mut answers = Vec::new();
    for (what, token, audience) in [
        ("a MAC of zeros", format!("mh1.{payload}.{}", encode(&[0; 32])), &handle.audience),
        ("a MAC of 31 bytes", format!("mh1.{payload}.{}", encode(&[0; 31])), &handle.audience),
        ("another path", tampered("report.md", "secret.md"), &handle.audience),
        ("a path that leaves", tampered("report.md", "../secret.txt"), &handle.audience),
        ("another expiry", tampered("\"exp\":1", "\"exp\":2"), &handle.audience),
        ("an expiry in the past", tampered("\"exp\":1", "\"exp\":0,\"x\":1"), &handle.audience),
        ("another session's, alive", of_other.token.clone(), &of_other.audience),
        ("a session's before", of_before.token.clone(), &of_before.audience),
        ("another audience", handle.token.clone(), &"third@127.0.0.1:1".to_owned()),
        ("half an audience", handle.token.clone(), &"w".to_owned()),
    ] {
        let header = format!("x-murmur-audience: {audience}");
        let request = redeem_request("GET", &format!("/{token}"), &[&header]);
        answers.push((what, http::exchange(session.url(), &request, http::PATIENCE).unwrap()));
        let line = lines.next();
        assert_eq!((&line["outcome"], &line["path"]), (&"handle_not_valid".into(), &Value::Null), "{what}");
        let said = http::parse(&answers[0].1).unwrap().json()["message"].clone();
        assert_eq!(line["reason"], said, "{what}: {line}");
    }
    for (what, answer) in &answers {
        assert_eq!(String::from_utf8_lossy(answer), String::from_utf8_lossy(&answers[0].1), "{what}");
    }
    assert_eq!(http::parse(&answers[0].1).unwrap().status, 403);
    session.stop();
}

/// What came of bytes that may be the listener's to refuse: its own answers have no body and leave no line.
struct Odd<'s> {
    session: &'s Session,
    tail: Tail,
}

impl Odd<'_> {
    /// Status, code if it was the plane that answered, and the audience on record.
    fn send(&mut self, request: &[u8]) -> (u16, String, Value) {
        let bytes = http::exchange_early(self.session.url(), request, http::PATIENCE).expect("an answer");
        let response = http::parse(&bytes).unwrap_or_else(|error| panic!("{error}"));
        if response.body.is_empty() {
            assert_eq!(self.tail.next_there(), None, "recorded, and is no part of the plane");
            return (response.status, String::new(), Value::Null);
        }
        let line = self.tail.next_within(http::PATIENCE).expect("a line");
        assert_eq!(line["event_type"], "peer_handle_redeem", "{line}");
        if response.status == 200 {
            assert_eq!(line["outcome"], "ok", "{line}");
            return (200, "ok".to_owned(), line["audience_asserted"].clone());
        }
        assert_eq!(line["outcome"], response.error().as_str(), "{line}");
        (response.status, response.error(), line["audience_asserted"].clone())
    }
}

/// A8, A14, A17 to A20, with a name whose first letter another one is lowered to.
#[test]
fn an_audience_is_compared_as_ascii_and_as_one_value_or_not_at_all() {
    needs_root!();
    let capsule = super::capsule().with("name: writer", "name: kiosk");
    let mut session = Launch::of(&capsule).start();
    let handle = Handle::mint_for_itself(&session, "report.md");
    let audience = handle.audience.clone();
    let (name, place) = audience.split_once('@').unwrap();
    assert_eq!(name, "kiosk");
    let target = format!("/{}", handle.token);
    let mut odd = Odd { session: &session, tail: Tail::of(&session.records()) };
    let request = |header: &[u8]| {
        let text = redeem_request("GET", &target, &[]);
        let head = &text[..text.len() - 2];
        [head, header, b"\r\n\r\n"].concat()
    };
    let value = |value: &str| request(format!("x-murmur-audience: {value}").as_bytes());

    for spelling in [
        audience.clone(),
        audience.to_ascii_uppercase(),
        format!("\t {audience} \t"),
        format!("KiOsK@{place}"),
    ] {
        let (status, _, asserted) = odd.send(&value(&spelling));
        assert_eq!(status, 200, "A8: {spelling:?}");
        assert_eq!(asserted, spelling.trim(), "A8: as asserted");
    }
    let padded = place.replacen(':', ":0", 1);
    for other in [
        format!("{audience} x"),
        format!("{audience}/"),
        format!("{name}@{padded}"),
        format!("{name} @{place}"),
        format!("http://{audience}"),
        format!("{audience}, {audience}"),
        format!("\"{audience}\""),
        place.to_owned(),
        name.to_owned(),
        "@".to_owned(),
        // U+212A is lowered to k, U+017F raised to S: not here.
        format!("\u{212a}iosk@{place}"),
        format!("kio\u{17f}k@{place}"),
        format!("{audience}\u{301}"),
        "\u{1f4e6}".to_owned(),
    ] {
        let (status, code, _) = odd.send(&value(&other));
        assert_eq!((status, code.as_str()), (403, "handle_not_valid"), "A14, A18: {other:?}");
    }
    for (id, raw) in [
        ("A17", [b"x-murmur-audience: ", audience.as_bytes(), b"\x1fx"].concat()),
        ("A17", [b"x-murmur-audience: \x1f", audience.as_bytes()].concat()),
        ("A17", [b"x-murmur-audience: ", audience.as_bytes(), b"\x01"].concat()),
        ("A17", [b"x-murmur-audience: ", audience.as_bytes(), b"\x7f"].concat()),
        ("A17", [b"x-murmur-audience: ", audience.as_bytes(), b"\0"].concat()),
        ("A17", [b"x-murmur-audience: ", audience.as_bytes(), b"\rx: y"].concat()),
        ("A18", [b"x-murmur-audience: ", audience.as_bytes(), b"\xe9"].concat()),
        ("A18", [b"x-murmur-audience: \xc0\x80", audience.as_bytes()].concat()),
        ("A19", format!("x-murmur-audience: {name}\r\n @{place}").into_bytes()),
        ("A19", format!("x-murmur-audience:\r\n {audience}").into_bytes()),
        ("A19", format!("x-murmur-audience: {audience}\r\n\t").into_bytes()),
        ("A19", format!("x-murmur-audience : {audience}").into_bytes()),
        ("A20", format!("x-murmur-audience: {audience}{}", "a".repeat(64 * 1024)).into_bytes()),
        ("A20", format!("x-murmur-audience: {}", "a".repeat(60 * 1024)).into_bytes()),
        ("A20", format!("x-murmur-audience: {}", "a".repeat(8 * 1024)).into_bytes()),
        ("A20", format!("x-murmur-audience: {}", "\u{e9}".repeat(3000)).into_bytes()),
    ] {
        let (status, code, asserted) = odd.send(&request(&raw));
        let shown = String::from_utf8_lossy(&raw[..raw.len().min(80)]).into_owned();
        let by_the_listener = code.is_empty() && matches!((id, status), ("A20", 431) | (_, 400));
        let by_the_plane = (status, code.as_str()) == (403, "handle_not_valid");
        assert!(by_the_listener || by_the_plane, "{id}: {status} {code:?}: {shown:?}");
        // What is recorded of it is bounded.
        assert!(asserted.as_str().is_none_or(|text| text.len() <= 4096), "{id}: {shown:?}");
    }
    let (status, _, _) = odd.send(&value(&audience));
    assert_eq!(status, 200, "and still serves");
    session.stop();
}

/// H32: deep and long tokens cost nothing that stays and little that goes.
#[test]
fn a_token_is_bounded_before_it_is_looked_at() {
    needs_root!();
    let capsule = super::capsule();
    let mut session = Launch::of(&capsule).start();
    let handle = Handle::mint_for_itself(&session, "report.md");
    let own = format!("x-murmur-audience: {}", handle.audience);
    let mac = encode(&[7; 32]);
    let token = |payload: &str| format!("mh1.{}.{mac}", encode(payload.as_bytes()));
    let padded = |size: usize| token(&format!("{{\"v\":1,\"x\":\"{}\"}}", "a".repeat(size)));
    let nested =
        |depth: usize| token(&format!("{{\"v\":1,\"x\":{}{}}}", "[".repeat(depth), "]".repeat(depth)));
    let mut odd = Odd { session: &session, tail: Tail::of(&session.records()) };
    let mut send = |token: &str| {
        let (status, code, _) = odd.send(&redeem_request("GET", &format!("/{token}"), &[&own]));
        (status, code)
    };
    let valid = (403, "handle_not_valid".to_owned());
    let malformed = (400, "malformed_handle".to_owned());
    assert_eq!(send(&padded(1000)), valid);
    assert_eq!(send(&padded(11_000)), valid, "a request line of 15 KiB is taken");
    assert_eq!(send(&nested(200)), malformed);
    assert_eq!(send(&nested(5000)), malformed);
    // 16 KiB is the most that a token may have, and a request line, whichever comes first.
    let of_20k = padded(15_000);
    assert!(of_20k.len() > 20_000, "{}", of_20k.len());
    assert!(matches!(send(&of_20k).0, 400 | 414), "{:?}", send(&of_20k));
    assert!(matches!(send(&nested(8000)).0, 400 | 414));
    let before = memory::anonymous(session.role("door").pid);
    let of_1m = padded(1 << 20);
    for _ in 0..50 {
        assert!(matches!(send(&of_1m).0, 400 | 414));
    }
    let after = memory::anonymous(session.role("door").pid);
    assert!(after < before + (2 << 20), "the door keeps what it refuses: {before} bytes, then {after}");
    assert_eq!(send(&handle.token), (200, "ok".to_owned()));
    session.stop();
}
