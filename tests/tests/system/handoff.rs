//! Two capsules, two brokers, one host: one mints, the other redeems, and nobody else learns anything.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use system_tests::broker::Launch;
use system_tests::capsule::Capsule;
use system_tests::handle::{Handle, redeem, unique};
use system_tests::trace::Trace;
use system_tests::{a2a, http, needs_root, programs};

#[test]
fn a_report_is_handed_from_one_capsule_to_another() {
    needs_root!();
    let writer = Capsule::handoff("writer");
    let reader = Capsule::handoff("reader").and("exports: {files: {root: ., mode: read-only}}");
    let mut writing = Launch::of(&writer).start();
    let mut reading = Launch::of(&reader).start();
    let (from, to) = (http::authority(writing.url()).to_owned(), http::authority(reading.url()).to_owned());

    a2a::complete(writing.url(), &unique("task"), "Report on inputs/");
    let handle = Handle::mint(&writing, "report.md", &to);
    assert_eq!(handle.audience, format!("reader@{to}"));
    let answer =
        a2a::complete(reading.url(), &unique("task"), &format!("Fetch {} from {from}", handle.token));
    let answer = a2a::answer(&answer);

    let report = writer.work().join("out/report.md");
    let sum = programs::sha256sum(&report);
    let fetched: Vec<String> =
        reader.paths().into_iter().filter(|path| path.starts_with("peer-in")).collect();
    let [folder, stored] = fetched.as_slice() else { panic!("{fetched:?}") };
    assert_eq!(folder, "peer-in");
    assert!(stored.starts_with("peer-in/") && stored.ends_with("-report.md"), "{stored}");
    assert_eq!(programs::sha256sum(&reader.work().join(stored)), sum);
    let bytes = fs::read(&report).unwrap().len();
    assert_eq!(answer, format!("From {from}: {stored}, {bytes} bytes, SHA-256 {sum}."));
    // T38: where the planes serve it, it is a file like any other.
    let listing = http::get(reading.url(), "/resources/files").json();
    let entries = listing["entries"].as_array().unwrap();
    let listed: Vec<_> = entries.iter().filter(|entry| entry["path"] == stored.as_str()).collect();
    assert!(matches!(listed[..], [entry] if entry["sha256"] == sum.as_str()), "{listing}");
    let read = http::get(reading.url(), &format!("/resources/files/{stored}"));
    assert_eq!((read.status, programs::sha256sum_of(&read.body)), (200, sum.clone()), "T38");
    let mode = |path: &str| fs::metadata(reader.work().join(path)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("peer-in"), mode(stored)), (0o700, 0o600));

    let (mint, fetch) = (writing.records(), reading.records());
    writing.stop();
    reading.stop();
    assert_handoff(&Trace::read(&mint), &Trace::read(&fetch), &handle, &from, stored, &sum);
    for place in [writer.folder(), reader.folder()] {
        assert!(assert_no_token(place, &handle.token) > 0, "{}: no file was looked at", place.display());
    }
}

/// The three lines of a handoff, and the identifier that joins them.
fn assert_handoff(minter: &Trace, fetcher: &Trace, handle: &Handle, from: &str, stored: &str, sum: &str) {
    let [mint] = minter.of("peer_handle_mint")[..] else { panic!("{}", minter.text()) };
    let [redeem] = minter.of("peer_handle_redeem")[..] else { panic!("{}", minter.text()) };
    let [fetch] = fetcher.of("peer_file_fetch")[..] else { panic!("{}", fetcher.text()) };
    let id = &programs::sha256sum_of(handle.token.as_bytes())[..16];
    for line in [mint, redeem, fetch] {
        assert_eq!(line["handle_id"], id, "{line}");
        assert_eq!((&line["outcome"], line["reason"].is_null()), (&"ok".into(), true), "{line}");
    }
    assert_eq!((&mint["path"], &mint["audience"]), (&"report.md".into(), &handle.audience.as_str().into()));
    let payload: serde_json::Value = serde_json::from_str(&handle.payload()).unwrap();
    assert_eq!(payload["exp"], mint["expires_at_ms"], "{mint}");
    assert_eq!(payload["iss"], mint["session_id"], "{mint}");
    assert_eq!((&redeem["path"], &redeem["sha256"]), (&"report.md".into(), &sum.into()), "{redeem}");
    assert_eq!(redeem["audience_asserted"], handle.audience.as_str(), "{redeem}");
    assert_eq!(redeem["generation"], 2, "the report and the mint were two tasks: {redeem}");
    assert!(redeem.get("containment_achieved").is_none(), "{redeem}");
    assert_eq!((&fetch["peer"], &fetch["stored_path"]), (&from.into(), &stored.into()), "{fetch}");
    assert_eq!((&fetch["sha256"], &fetch["bytes"]), (&sum.into(), &redeem["bytes"]), "{fetch}");
    let call =
        fetcher.of("tool_call").into_iter().find(|call| call["tool_name"] == "fetch-peer-file").unwrap();
    assert_eq!(call["input"]["handle"], format!("<handle:{id}>"), "{call}");
    assert_eq!(call["status"], "ok", "{call}");
}

/// No file of the broker's says the token: records, sessions, logs, standard error. The number of files that were looked at.
fn assert_no_token(folder: &Path, token: &str) -> usize {
    let mut looked_at = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let kind = path.symlink_metadata().unwrap();
        if kind.is_dir() {
            looked_at += assert_no_token(&path, token);
        } else if kind.is_file() {
            let bytes = fs::read(&path).unwrap();
            let found = bytes.windows(token.len()).any(|window| window == token.as_bytes());
            assert!(!found, "the handle stands in {}", path.display());
            looked_at += 1;
        }
    }
    looked_at
}

#[test]
fn a_third_capsule_is_refused_and_a_dead_session_refuses_everybody() {
    needs_root!();
    let writer = Capsule::handoff("writer").and("  files: {root: out/, mode: read-only}");
    writer.write("out/report.md", b"hello\n");
    let mut session = Launch::of(&writer).start();
    let handle = Handle::mint_for_itself(&session, "report.md");
    assert_eq!(redeem(session.url(), &handle.token, &handle.audience).body, b"hello\n");
    assert_eq!(redeem(session.url(), &handle.token, "third@127.0.0.1:9").error(), "handle_not_valid");
    session.stop();

    // The files are served again, at generation 0; the handle is not.
    for arguments in [&[][..], &["--serve-only"][..]] {
        let mut session = Launch::of(&writer).arguments(arguments).start();
        let read = http::get(session.url(), "/resources/files/report.md");
        assert_eq!((read.status, read.header("x-murmur-generation")), (200, Some("0")), "{arguments:?}");
        let refused = redeem(session.url(), &handle.token, &handle.audience);
        assert_eq!((refused.status, refused.error().as_str()), (403, "handle_not_valid"), "{arguments:?}");
        session.stop();
    }
}

#[test]
fn the_tools_exist_only_where_their_grant_is_declared_and_change_no_class() {
    needs_root!();
    let bare = Capsule::reporter();
    let mut session = Launch::of(&bare).start();
    let class = session.containment().to_owned();
    for (task, tool) in
        [("Hand report.md to h:1", "share-file"), ("Fetch mh1.a.b from h:1", "fetch-peer-file")]
    {
        let task = a2a::send_message(session.url(), &unique("task"), task);
        assert_eq!(task["status"]["state"], "TASK_STATE_FAILED", "{task}");
        assert!(task.to_string().contains(&format!("`{tool}` tool is not offered")), "{task}");
    }
    assert_eq!(redeem(session.url(), "mh1.a.b", "x@h:1").error(), "no_peer_plane");
    let card = http::get(session.url(), "/.well-known/agent-card.json").text().to_owned();
    assert!(card.contains("\"planes\":[\"files\"]"), "{card}");
    session.stop();
    for (side, planes) in [("writer", "[\"peer_files\"]"), ("reader", "[]")] {
        let capsule = Capsule::handoff(side);
        let mut session = Launch::of(&capsule).start();
        assert_eq!(session.containment(), class, "{side}");
        let card = http::get(session.url(), "/.well-known/agent-card.json").text().to_owned();
        assert!(card.contains(&format!("\"planes\":{planes}")), "{card}");
        let plane = if side == "writer" { "malformed_handle" } else { "no_peer_plane" };
        assert_eq!(redeem(session.url(), "x", "x@h:1").error(), plane, "{side}");
        assert_eq!(http::get(session.url(), "/resources/files").error(), "no_resource_plane", "{side}");
        session.stop();
    }
}

#[test]
fn what_cannot_be_shared_or_fetched_is_refused_in_words_and_on_record() {
    needs_root!();
    // The class in which a link is refused on sight.
    let writer = Capsule::handoff("writer").with("capabilities:\n", "capabilities:\n  containment: scoped\n");
    writer.write("out/report.md", b"hello\n");
    std::os::unix::fs::symlink("../inputs", writer.work().join("out/way-out")).unwrap();
    let mut session = Launch::of(&writer).start();
    let own = http::authority(session.url()).to_owned();
    let refused = |task: String| {
        let task = a2a::complete(session.url(), &unique("task"), &task);
        a2a::answer(&task).to_owned()
    };
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (path, peer, code) in [
        ("../inputs/bread.txt", own.as_str(), "outside_root"),
        ("%2e%2e/inputs/bread.txt", &own, "outside_root"),
        ("/etc/passwd", &own, "outside_root"),
        ("a//b", &own, "outside_root"),
        ("none.md", &own, "not_found"),
        ("way-out/bread.txt", &own, "symlink_refused"),
        ("report.md", &closed.to_string(), "peer_unreachable"),
        ("report.md", "10.1.2.3:80", "peer_unreachable"),
    ] {
        let answer = refused(format!("Hand {path} to {peer}"));
        assert!(answer.contains(code), "{path} to {peer}: {answer}");
        let trace = Trace::read(&session.records());
        let line = *trace.of("peer_handle_mint").last().unwrap();
        assert_eq!((&line["outcome"], &line["path"]), (&code.into(), &path.into()), "{line}");
        assert!(line["handle_id"].is_null() && line["expires_at_ms"].is_null(), "{line}");
    }
    session.stop();

    let reader = Capsule::handoff("reader");
    let mut session = Launch::of(&reader).start();
    let refused = |task: String| {
        let task = a2a::complete(session.url(), &unique("task"), &task);
        a2a::answer(&task).to_owned()
    };
    let payload = system_tests::handle::encode(b"{\"v\":1,\"p\":\"x\"}");
    let token = format!("mh1.{payload}.AAAA");
    for (handle, peer, code) in [
        ("not-a-handle", closed.to_string(), "malformed_handle"),
        (token.as_str(), "10.1.2.3:80".to_owned(), "peer_not_allowed"),
        (&token, closed.to_string(), "peer_unreachable"),
        (&token, http::authority(session.url()).to_owned(), "no_peer_plane"),
    ] {
        let answer = refused(format!("Fetch {handle} from {peer}"));
        assert!(answer.contains(code), "{handle} from {peer}: {answer}");
        let trace = Trace::read(&session.records());
        let line = *trace.of("peer_file_fetch").last().unwrap();
        assert_eq!((&line["outcome"], &line["peer"]), (&code.into(), &peer.as_str().into()), "{line}");
        assert!(
            line["stored_path"].is_null() && line["bytes"].is_null() && line["sha256"].is_null(),
            "{line}"
        );
    }
    session.stop();
    assert!(!reader.paths().iter().any(|path| path.starts_with("peer-in/")), "{:?}", reader.paths());
}
