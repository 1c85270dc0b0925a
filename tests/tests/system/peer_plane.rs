//! The peer plane on the wire: rows of raw requests with status, headers, body and the line of the trace each leaves.

mod declarations;
mod order;
mod records;
mod replaced;
mod root;
mod steady;

use std::fs;

use serde_json::Value;
use system_tests::broker::{Launch, Session};
use system_tests::capsule::Capsule;
use system_tests::handle::{Handle, encode, redeem, redeem_request};
use system_tests::trace::Trace;
use system_tests::{http, needs_root, process, programs};

/// A capsule with both planes, 1 KiB each at most, and `hello` to share.
fn capsule() -> Capsule {
    let capsule = Capsule::handoff("writer")
        .with("    root: out/\n", "    root: share/\n    max_bytes: 1Ki\n")
        .and("  files: {root: out/, mode: read-only, max_bytes: 1Ki}");
    capsule.write("out/report.md", b"operator\n");
    capsule.write("share/report.md", b"hello\n");
    capsule
}

fn answer(session: &Session, request: &[u8]) -> http::Response {
    let answer = http::exchange(session.url(), request, http::PATIENCE).expect("an answer");
    http::parse(&answer).unwrap_or_else(|error| panic!("{error}"))
}

/// The lines of redeems, one by one. A line is on its way to the file before its answer is, and may get there after it.
struct Lines<'s> {
    session: &'s Session,
    seen: std::cell::Cell<usize>,
}

impl<'s> Lines<'s> {
    fn of(session: &'s Session) -> Self {
        Self { session, seen: std::cell::Cell::new(0) }
    }

    /// The line of the request that was answered last; there was exactly one request since the last call.
    fn next(&self) -> Value {
        self.skip(1)
    }

    /// The last of so many further lines.
    fn skip(&self, count: usize) -> Value {
        let wanted = self.seen.get() + count;
        self.seen.set(wanted);
        let lines = process::until("the line of a redeem", http::PATIENCE, || {
            let trace = Trace::read(&self.session.records());
            let lines: Vec<Value> = trace.of("peer_handle_redeem").into_iter().cloned().collect();
            (lines.len() >= wanted).then_some(lines)
        });
        assert_eq!(lines.len(), wanted, "one line per request");
        lines[wanted - 1].clone()
    }
}

fn id(token: &str) -> String {
    programs::sha256sum_of(token.as_bytes())[..16].to_owned()
}

fn names(response: &http::Response) -> Vec<&str> {
    response.headers.iter().map(|(name, _)| name.as_str()).collect()
}

/// `seed: GET /resources/peer/<handle>`
#[test]
fn a_redeem_serves_the_file_with_its_validators_and_no_path() {
    needs_root!();
    let capsule = capsule();
    let mut session = Launch::of(&capsule).start();
    let lines = Lines::of(&session);
    let handle = Handle::mint_for_itself(&session, "report.md");
    let sum = programs::sha256sum_of(b"hello\n");
    for (target, audience) in [
        (format!("/{}", handle.token), handle.audience.clone()),
        // A query is ignored; an audience is compared in lower case.
        (format!("/{}?x=1", handle.token), handle.audience.to_ascii_uppercase()),
    ] {
        let header = format!("X-Murmur-Audience:   {audience}  ");
        let extra = ["range: bytes=0-1", "if-none-match: *", &header];
        let served = answer(&session, &redeem_request("GET", &target, &extra));
        assert_eq!((served.status, served.body.as_slice()), (200, b"hello\n".as_slice()));
        let mut found = names(&served);
        found.sort_unstable();
        assert_eq!(
            found,
            [
                "connection",
                "content-length",
                "content-type",
                "etag",
                "x-murmur-containment",
                "x-murmur-generation",
                "x-murmur-handle-id",
                "x-murmur-mtime-ms",
            ]
        );
        assert_eq!(served.header("etag"), Some(format!("\"sha256:{sum}\"").as_str()));
        assert_eq!(served.header("x-murmur-handle-id"), Some(id(&handle.token).as_str()));
        assert_eq!(served.header("x-murmur-generation"), Some("1"), "the mint was a task");
        assert_eq!(served.header("x-murmur-containment"), Some(session.containment()));
        let line = lines.next();
        assert_eq!(line["audience_asserted"], audience.as_str(), "as asserted: {line}");
        assert_eq!((&line["outcome"], &line["path"]), (&"ok".into(), &"report.md".into()), "{line}");
        assert_eq!((&line["bytes"], &line["sha256"]), (&6.into(), &sum.as_str().into()), "{line}");
        assert_eq!(line["handle_id"], id(&handle.token).as_str(), "{line}");
    }
    // Idempotent: as often as the holder likes, at one time too.
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..13 {
                        assert_eq!(redeem(session.url(), &handle.token, &handle.audience).body, b"hello\n");
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert_eq!(lines.skip(8 * 13)["outcome"], "ok");
    session.stop();
}

/// H19: the payload's last character in another spelling of the same bits; a payload has spare bits for some lengths of its path.
#[test]
fn a_payload_in_another_spelling_is_malformed() {
    needs_root!();
    let capsule = capsule();
    let names = ["a", "aa", "aaa"];
    names.iter().for_each(|name| capsule.write(&format!("share/{name}"), b"hello\n"));
    let mut session = Launch::of(&capsule).start();
    let mut respelt = 0;
    for name in names {
        let handle = Handle::mint_for_itself(&session, name);
        assert_eq!(redeem(session.url(), &handle.token, &handle.audience).body, b"hello\n", "{name}");
        let (payload, mac) = handle.segments();
        let spare = match payload.len() % 4 {
            2 => 16,
            3 => 4,
            _ => continue,
        };
        for bits in 1..spare {
            let twin = respell(payload, bits);
            let refused = redeem(session.url(), &format!("mh1.{twin}.{mac}"), &handle.audience);
            assert_eq!(
                (refused.status, refused.error().as_str()),
                (400, "malformed_handle"),
                "{payload}: {twin}"
            );
            respelt += 1;
        }
    }
    assert_eq!(respelt, 15 + 3, "one name of three leaves no bits to spare");
    session.stop();
}

/// The text of the same bytes with spare bits that are not zero.
fn respell(text: &str, bits: usize) -> String {
    let alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let (front, last) = text.split_at(text.len() - 1);
    let place = alphabet.find(last).unwrap();
    format!("{front}{}", char::from(alphabet.as_bytes()[place + bits]))
}

/// `seed: The peer plane's error table`, and the order of its checks.
#[test]
fn refusals_come_in_order_with_one_body_per_code_and_leave_a_line_each() {
    needs_root!();
    let capsule = capsule();
    let mut session = Launch::of(&capsule).start();
    let lines = Lines::of(&session);
    let handle = Handle::mint_for_itself(&session, "report.md");
    let (token, audience) = (handle.token.as_str(), handle.audience.as_str());
    let own = format!("x-murmur-audience: {audience}");
    let (payload, _) = handle.segments();
    // The last character of 32 bytes carries two spare bits.
    let twin = respell(token, 1);
    let forged = |payload: &str| format!("/{}", handle.with_payload(payload));
    let deep = format!("{{\"v\":1,\"x\":{}{}}}", "[".repeat(200), "]".repeat(200));
    let none: &[&str] = &[];
    let own = &[own.as_str()][..];
    // Row, target, headers, status and code.
    let rows: Vec<(&str, String, &[&str], u16, &str)> = vec![
        ("H2", String::new(), own, 404, "not_found"),
        ("H2", "/".into(), own, 404, "not_found"),
        ("H8", format!("/{token}/"), own, 400, "malformed_handle"),
        ("H8", format!("/{token}/x"), own, 400, "malformed_handle"),
        ("H9", format!("//{token}"), own, 400, "malformed_handle"),
        ("H10", "/report.md".into(), own, 400, "malformed_handle"),
        ("H11", format!("/%6d{}", &token[1..]), own, 400, "malformed_handle"),
        ("H14", format!("/mh2{}", &token[3..]), own, 400, "malformed_handle"),
        ("H14", format!("/MH1{}", &token[3..]), own, 400, "malformed_handle"),
        ("H15", format!("/{token}="), own, 400, "malformed_handle"),
        ("H17", format!("/{token}~"), own, 400, "malformed_handle"),
        ("H18", format!("/{twin}"), own, 400, "malformed_handle"),
        ("H21", format!("/mh1.{payload}.AAAA"), own, 403, "handle_not_valid"),
        ("H22", forged("no JSON"), own, 400, "malformed_handle"),
        ("H23", forged("{\"v\":2}"), own, 400, "malformed_handle"),
        ("H24", forged("{\"v\":1.0}"), own, 400, "malformed_handle"),
        ("H25", forged("[]"), own, 400, "malformed_handle"),
        ("H27", forged("{\"v\":1}{}"), own, 400, "malformed_handle"),
        ("H28", forged("{\"v\":1,\"v\":1}"), own, 400, "malformed_handle"),
        ("H29", forged("{\"v\":1,\"more\":true}"), own, 403, "handle_not_valid"),
        ("H30", forged("{\"v\":1,\"exp\":\"x\"}"), own, 403, "handle_not_valid"),
        ("H31", forged("{\"v\":1,\"p\":\"../x\"}"), own, 403, "handle_not_valid"),
        ("H32", forged(&deep), own, 400, "malformed_handle"),
        ("A1", format!("/{token}"), none, 400, "missing_audience"),
        ("A1", format!("/{token}"), &["x-murmur-audience:"], 400, "missing_audience"),
        ("X3", "/report.md".into(), none, 400, "malformed_handle"),
        ("A7", format!("/{token}"), &["x-murmur-audience: third@h:1"], 403, "handle_not_valid"),
        ("A18", format!("/{token}"), &["x-murmur-audience: \u{e9}@h:1"], 403, "handle_not_valid"),
        ("K17", format!("/mh1.{payload}.{}", encode(&[0; 32])), own, 403, "handle_not_valid"),
        ("K17", forged(&handle.payload().replace("report.md", "other.md")), own, 403, "handle_not_valid"),
    ];
    let mut not_valid: Option<http::Response> = None;
    for (row, target, headers, status, code) in rows {
        let refused = answer(&session, &redeem_request("GET", &target, headers));
        assert_eq!((refused.status, refused.error().as_str()), (status, code), "{row} {target}");
        assert_eq!(names(&refused), ["content-type", "content-length", "connection"], "{row} {target}");
        if code == "handle_not_valid" {
            let first = not_valid.get_or_insert_with(|| refused.clone());
            assert_eq!(*first, refused, "{row}: one status, one set of headers, one body");
        }
        let line = lines.next();
        assert_eq!((&line["outcome"], line["path"].is_null()), (&code.into(), true), "{row}: {line}");
        assert_eq!(
            line["handle_id"],
            id(target.strip_prefix('/').unwrap_or_default()).as_str(),
            "{row}: {line}"
        );
        assert_eq!(line["reason"], refused.json()["message"], "{row}: {line}");
        assert!(line["bytes"].is_null() && line["sha256"].is_null(), "{row}: {line}");
    }
    // Two values are not one: joined they are nobody's audience, whichever comes first.
    for other in ["x-murmur-audience: third@h:1", own[0], "x-murmur-audience:"] {
        for headers in [[own[0], other], [other, own[0]]] {
            let refused = answer(&session, &redeem_request("GET", &format!("/{token}"), &headers));
            assert_eq!(refused, not_valid.clone().unwrap(), "{headers:?}");
            assert_eq!(lines.next()["outcome"], "handle_not_valid", "{headers:?}");
        }
    }
    assert_methods(&session, &lines, token, own);
    session.stop();
}

/// `seed: Endpoints`: every other method is 405, whatever it names.
fn assert_methods(session: &Session, lines: &Lines<'_>, token: &str, own: &[&str]) {
    for method in ["HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PROPFIND", "get"] {
        for target in [format!("/{token}"), String::new(), "/x".to_owned()] {
            let refused = answer(session, &redeem_request(method, &target, own));
            assert_eq!((refused.status, refused.header("allow")), (405, Some("GET")), "{method} {target}");
            assert_eq!(refused.body.is_empty(), method == "HEAD", "{method}");
            let line = lines.next();
            assert_eq!(line["outcome"], "method_not_allowed", "{method} {target}: {line}");
        }
    }
}

/// `seed: Path resolution`, shared by both planes; `docs/decisions.md`, What a verified refusal records.
#[test]
fn a_verified_handle_meets_the_file_as_it_is_now() {
    needs_root!();
    for class in ["sealed", "scoped"] {
        meets_the_file(class);
    }
}

fn meets_the_file(class: &str) {
    let capsule = capsule().with("capabilities:\n", &format!("capabilities:\n  containment: {class}\n"));
    capsule.write("share/sub/r%41.md", b"literal\n");
    capsule.write("share/sub/rA.md", b"decoded\n");
    let mut session = Launch::of(&capsule).start();
    let lines = Lines::of(&session);
    let share = capsule.work().join("share");
    let handle = Handle::mint_for_itself(&session, "report.md");
    let asked = || (redeem(session.url(), &handle.token, &handle.audience), lines.next());
    let get = || asked().0;
    let refused = |code: &str| {
        let (response, line) = asked();
        assert_eq!(response.error(), code);
        assert_eq!((&line["outcome"], &line["path"]), (&code.into(), &"report.md".into()), "{line}");
        response.status
    };
    let file = share.join("report.md");
    assert_eq!(get().body, b"hello\n");
    capsule.write("share/report.md", b"newer\n");
    assert_eq!(get().body, b"newer\n", "K10: a handle names a file, not a version");
    capsule.write("share/report.md", &[b'x'; 1024]);
    assert_eq!(get().body.len(), 1024);
    capsule.write("share/report.md", &[b'x'; 1025]);
    assert_eq!(refused("too_large"), 413);
    fs::remove_file(&file).unwrap();
    assert_eq!(refused("not_found"), 404);
    fs::create_dir(&file).unwrap();
    assert_eq!(refused("not_a_regular_file"), 403);
    fs::remove_dir(&file).unwrap();
    std::os::unix::fs::symlink("sub/rA.md", &file).unwrap();
    match class {
        "scoped" => assert_eq!(refused("symlink_refused"), 403),
        _ => assert_eq!(get().body, b"decoded\n", "a link that stays inside is followed"),
    }
    fs::remove_file(&file).unwrap();
    let away = capsule.work().join("away");
    fs::rename(&share, &away).unwrap();
    assert_eq!(refused("not_found"), 404);
    std::os::unix::fs::symlink("/etc", &share).unwrap();
    assert_eq!(refused("outside_root"), 403);
    fs::remove_file(&share).unwrap();
    fs::rename(&away, &share).unwrap();
    capsule.write("share/report.md", b"back\n");
    assert_eq!(get().body, b"back\n");

    // T11: decoded once, at the mint; the payload is never decoded again.
    let literal = Handle::mint_for_itself(&session, "sub/r%2541.md");
    assert!(literal.payload().contains("\"p\":\"sub/r%41.md\""), "{}", literal.payload());
    assert_eq!(redeem(session.url(), &literal.token, &literal.audience).body, b"literal\n");
    // The operator plane knows nothing of it.
    assert_eq!(http::get(session.url(), "/resources/files/report.md").body, b"operator\n");
    session.stop();
}

/// `seed: Limits of a handle`: K2, K4.
#[test]
fn an_expired_handle_is_gone_after_its_mac_and_before_its_file() {
    needs_root!();
    let capsule = capsule().with("max_ttl: 5m", "max_ttl: 1s");
    let mut session = Launch::of(&capsule).start();
    let lines = Lines::of(&session);
    let handle = Handle::mint_for_itself(&session, "report.md");
    let payload: Value = serde_json::from_str(&handle.payload()).unwrap();
    let expires = payload["exp"].as_u64().unwrap();
    let now = || {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        u64::try_from(since.as_millis()).unwrap()
    };
    fs::remove_file(capsule.work().join("share/report.md")).unwrap();
    process::until("the expiry", http::PATIENCE, || (now() >= expires).then_some(()));
    let gone = redeem(session.url(), &handle.token, &handle.audience);
    assert_eq!((gone.status, gone.error().as_str()), (410, "handle_expired"));
    assert_eq!(lines.next()["path"], "report.md");
    assert_eq!(redeem(session.url(), &handle.token, "third@h:1").error(), "handle_not_valid");
    assert!(lines.next()["path"].is_null());
    let bare = answer(&session, &redeem_request("GET", &format!("/{}", handle.token), &[]));
    assert_eq!(bare.error(), "missing_audience");
    session.stop();
}
