//! The operator plane over an existing work folder: `--serve-only`.

use std::os::unix::fs::symlink;
use std::process::Command;

use system_tests::broker::{Launch, Session};
use system_tests::capsule::Capsule;
use system_tests::trace::Trace;
use system_tests::{a2a, http, needs_root, programs};

/// The example with a small limit, and one of each kind of thing below its export root.
fn shelf() -> Capsule {
    let capsule = Capsule::reporter().with("root: out/", "root: out/\n    max_bytes: 1024");
    capsule.write("out/report.md", b"hello\n");
    capsule.write("out/a-b", b"");
    capsule.write("out/a.txt", b"dot\n");
    capsule.write("out/a/b", b"below\n");
    capsule.write("out/a0", b"zero\n");
    capsule.write("out/100%", b"percent\n");
    capsule.write("out/exact", &[b'x'; 1024]);
    capsule.write("out/large", &[b'x'; 1025]);
    capsule.write("secret.txt", b"not for the plane\n");
    symlink("../secret.txt", capsule.work().join("out/escape")).unwrap();
    symlink("report.md", capsule.work().join("out/alias")).unwrap();
    let fifo = capsule.work().join("out/fifo");
    assert!(Command::new("mkfifo").arg(fifo).status().unwrap().success());
    capsule
}

fn serve(capsule: &Capsule) -> Session {
    Launch::of(capsule).arguments(&["--serve-only"]).start()
}

#[test]
fn listing_names_every_file_in_byte_order_with_its_real_hash_and_size() {
    needs_root!();
    let capsule = shelf();
    let mut session = serve(&capsule);
    let response = http::get(session.url(), "/resources/files");
    assert_eq!((response.status, response.header("content-type")), (200, Some("application/json")));

    let text = response.text();
    let keys = ["root", "mode", "max_bytes", "generation", "containment_achieved", "entries"];
    let places: Vec<usize> = keys.iter().map(|key| text.find(&format!("\"{key}\":")).unwrap()).collect();
    assert!(places.is_sorted(), "keys in the order of the page: {text}");

    let listing = response.json();
    assert_eq!((&listing["root"], &listing["mode"]), (&"out/".into(), &"read-only".into()));
    assert_eq!((&listing["max_bytes"], &listing["generation"]), (&1024.into(), &0.into()));
    assert_eq!(listing["containment_achieved"], session.containment());

    let mut expected = vec!["100%", "a-b", "a.txt", "a/b", "a0", "alias", "exact", "large", "report.md"];
    if session.containment() == "scoped" {
        expected.retain(|name| *name != "alias");
    }
    let entries = listing["entries"].as_array().unwrap();
    let paths: Vec<&str> = entries.iter().map(|entry| entry["path"].as_str().unwrap()).collect();
    assert_eq!(paths, expected);
    for entry in entries {
        let file = capsule.work().join("out").join(entry["path"].as_str().unwrap());
        assert_eq!(entry["sha256"], programs::sha256sum(&file), "{entry}");
        assert_eq!(entry["size_bytes"], programs::wc(&file).bytes, "{entry}");
        assert_eq!(entry["mtime_ms"], mtime_ms(&file), "{entry}");
    }
    session.stop();
}

fn mtime_ms(file: &std::path::Path) -> u64 {
    let modified = file.metadata().unwrap().modified().unwrap();
    modified.duration_since(std::time::UNIX_EPOCH).unwrap().as_millis().try_into().unwrap()
}

#[test]
fn read_serves_the_bytes_with_the_headers_of_the_page() {
    needs_root!();
    let capsule = shelf();
    let mut session = serve(&capsule);
    let file = capsule.work().join("out/report.md");
    let etag = format!("\"sha256:{}\"", programs::sha256sum(&file));
    let mtime = mtime_ms(&file).to_string();
    for target in
        ["/resources/files/report.md", "/resources/files/report.md?x=/../..", "/resources/files/%72eport.md"]
    {
        let response = http::get(session.url(), target);
        assert_eq!((response.status, response.body.as_slice()), (200, b"hello\n".as_slice()), "{target}");
        let expected = [
            ("content-type", "application/octet-stream"),
            ("content-length", "6"),
            ("etag", &etag),
            ("x-murmur-mtime-ms", &mtime),
            ("x-murmur-generation", "0"),
            ("x-murmur-containment", session.containment()),
            ("x-murmur-export-root", "out/"),
            ("connection", "close"),
        ];
        for (name, value) in expected {
            assert_eq!(response.header(name), Some(value), "{target}: {name}");
        }
    }
    for (target, body) in [("a%2Fb", "below\n"), ("100%", "percent\n"), ("a-b", "")] {
        let response = http::get(session.url(), &format!("/resources/files/{target}"));
        assert_eq!((response.status, response.text()), (200, body), "{target}");
    }
    assert_eq!(http::get(session.url(), "/resources/files/exact").body.len(), 1024);
    session.stop();
}

#[test]
fn every_refusal_has_its_status_and_code_and_a_line_in_the_trace() {
    needs_root!();
    let capsule = shelf();
    let mut session = serve(&capsule);
    let link = if session.containment() == "scoped" { "symlink_refused" } else { "outside_root" };
    let cases = [
        ("GET", "missing", 404, "not_found"),
        ("GET", "report.md/x", 404, "not_found"),
        ("GET", "%252e%252e%252fsecret.txt", 404, "not_found"),
        ("GET", "", 403, "outside_root"),
        ("GET", "../secret.txt", 403, "outside_root"),
        ("GET", "%2e%2e%2fsecret.txt", 403, "outside_root"),
        ("GET", "a/../report.md", 403, "outside_root"),
        ("GET", "./report.md", 403, "outside_root"),
        ("GET", "a//b", 403, "outside_root"),
        ("GET", "report.md/", 403, "outside_root"),
        ("GET", "/etc/passwd", 403, "outside_root"),
        ("GET", "%2Fetc%2Fpasswd", 403, "outside_root"),
        ("GET", "report.md%00", 403, "outside_root"),
        ("GET", "%ff", 403, "outside_root"),
        ("GET", "escape", 403, link),
        ("GET", "a", 403, "not_a_regular_file"),
        ("GET", "fifo", 403, "not_a_regular_file"),
        ("GET", "large", 413, "too_large"),
        ("PUT", "report.md", 405, "method_not_allowed"),
        ("POST", "../secret.txt", 405, "method_not_allowed"),
        ("DELETE", "missing", 405, "method_not_allowed"),
        ("OPTIONS", "report.md", 405, "method_not_allowed"),
        ("PROPFIND", "a", 405, "method_not_allowed"),
    ];
    for (method, path, status, code) in cases {
        let response = http::request(session.url(), method, &format!("/resources/files/{path}"));
        assert_eq!((response.status, response.error().as_str()), (status, code), "{method} {path}");
        let allow = (status == 405).then_some("GET");
        assert_eq!(response.header("allow"), allow, "{method} {path}");
        assert!(!response.text().contains("secret"), "{method} {path}: the path is echoed");
    }
    let head = http::request(session.url(), "HEAD", "/resources/files/report.md");
    assert_eq!((head.status, head.header("allow"), head.body.len()), (405, Some("GET"), 0));

    let records = session.records();
    session.stop();
    let trace = Trace::read(&records);
    let outcomes: Vec<&str> =
        trace.of("resource_read").iter().map(|event| event["outcome"].as_str().unwrap()).collect();
    let expected: Vec<&str> = cases.iter().map(|case| case.3).chain(["method_not_allowed"]).collect();
    assert_eq!(outcomes, expected, "{}", trace.text());
}

#[test]
fn paths_that_are_not_the_plane_are_never_tidied_into_it() {
    needs_root!();
    let capsule = shelf();
    let mut session = serve(&capsule);
    for target in [
        "//resources/files",
        "/resources//files/report.md",
        "/resources/./files/report.md",
        "/x/../resources/files/report.md",
        "/resources%2Ffiles/report.md",
        "/resources/files%2Freport.md",
        "/resources/filesX",
        "/resources/files../secret.txt",
        "/Resources/files",
        "/resources/unknown",
        "/resources/",
        "/resources",
        "/",
    ] {
        let response = http::get(session.url(), target);
        assert_eq!(response.status, 404, "{target}");
        assert_eq!(response.header("location"), None, "{target}");
    }
    session.stop();
}

#[test]
fn a_root_that_does_not_exist_lists_nothing_and_reads_are_not_found() {
    needs_root!();
    let capsule = Capsule::reporter();
    let mut session = serve(&capsule);
    let listing = http::get(session.url(), "/resources/files");
    assert_eq!((listing.status, &listing.json()["entries"]), (200, &serde_json::json!([])));
    let read = http::get(session.url(), "/resources/files/report.md");
    assert_eq!((read.status, read.error().as_str()), (404, "not_found"));
    session.stop();
}

#[test]
fn nothing_declared_is_no_resource_plane() {
    needs_root!();
    let capsule = Capsule::reporter()
        .with("exports:\n  files:\n    root: out/\n    mode: read-only\n", "exports: {}\n");
    capsule.write("out/report.md", b"hello\n");
    let mut session = serve(&capsule);
    for target in ["/resources/files", "/resources/files/report.md", "/resources/files/../x"] {
        let response = http::get(session.url(), target);
        assert_eq!((response.status, response.error().as_str()), (404, "no_resource_plane"), "{target}");
    }
    session.stop();
}

#[test]
fn serve_only_runs_broker_door_and_fileserver_and_takes_no_task() {
    needs_root!();
    let capsule = shelf();
    let mut session = serve(&capsule);
    let mut roles: Vec<String> = session.roles().into_iter().map(|process| process.name).collect();
    roles.sort();
    assert_eq!(roles, ["door", "fileserver"]);
    let card = http::get(session.url(), "/.well-known/agent-card.json");
    assert_eq!((card.status, &card.json()["skills"]), (200, &serde_json::json!([])));
    assert_eq!(a2a::post(session.url(), "{}").status, 404);
    let health = http::get(session.url(), "/healthz");
    assert_eq!((health.status, health.body.len()), (204, 0));

    let records = session.records();
    session.stop();
    let trace = Trace::read(&records);
    assert_eq!(trace.counts(["session_start", "session_end", "task_start", "inference"]), [1, 1, 0, 0]);
}

#[test]
fn a_served_file_is_traced_with_the_hash_and_size_that_were_sent() {
    needs_root!();
    let capsule = shelf();
    let mut session = serve(&capsule);
    assert_eq!(http::get(session.url(), "/resources/files/report.md").status, 200);
    assert_eq!(http::get(session.url(), "/resources/files").status, 200);
    let records = session.records();
    session.stop();
    let trace = Trace::read(&records);
    let read = trace.of("resource_read")[0];
    assert_eq!(
        (&read["path"], &read["outcome"], &read["bytes"]),
        (&"report.md".into(), &"ok".into(), &6.into())
    );
    assert_eq!(read["sha256"], programs::sha256sum_of(b"hello\n"));
    assert_eq!(read["process"], "fileserver");
    let list = trace.of("resource_list")[0];
    assert_eq!((&list["root"], &list["outcome"]), (&"out/".into(), &"ok".into()));
    assert!(list["entry_count"].as_u64().unwrap() >= 8, "{list}");
}

#[test]
fn a_client_that_stalls_in_the_head_is_cut_and_disturbs_nobody() {
    needs_root!();
    use std::io::{Read, Write};
    let capsule = shelf();
    let mut session = serve(&capsule);
    let mut stalled = std::net::TcpStream::connect(http::authority(session.url())).unwrap();
    stalled.write_all(b"GET /resources/fi").unwrap();
    assert_eq!(http::get(session.url(), "/resources/files/report.md").status, 200);
    // The deadline for a head is 10 seconds; whatever the door says, the connection ends.
    stalled.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
    let mut answer = Vec::new();
    match stalled.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
    }
    session.stop();
}
