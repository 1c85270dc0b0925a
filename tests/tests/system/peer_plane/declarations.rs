//! B, and R22 and R23: which plane is there is decided by its own declaration and by nothing else.

use system_tests::broker::Launch;
use system_tests::capsule::Capsule;
use system_tests::handle::{Handle, redeem, redeem_request, unique};
use system_tests::trace::Trace;
use system_tests::{a2a, http, needs_root};

use super::{Lines, answer};
use crate::operator_plane::classes;

/// `exports.files` of the same root as the writer's handles have.
const FILES: &str = "  files: {root: out/, mode: read-only}";

/// What the handoff examples may fetch from.
const FETCH: &str = "capabilities:\n  peer_fetch:\n    allow: [localhost, \"127.0.0.1\"]\n";

fn with_report(capsule: Capsule) -> Capsule {
    capsule.write("out/report.md", b"hello\n");
    capsule
}

/// B1, B2, B4, L27, H3, H4, H6, A6: a request to a plane that is not declared, whatever it holds, is told so and recorded.
#[test]
fn a_plane_that_is_not_declared_is_refused_before_its_request_is_looked_at() {
    needs_root!();
    let token = "mh1.eyJ2IjoxfQ.AAAA";
    let audience = &["x-murmur-audience: reader@localhost:1"][..];
    let peer: [(String, &[&str]); 6] = [
        (format!("/{token}"), audience),
        (format!("/{token}"), &[]),
        ("/no handle at all".replace(' ', "-"), audience),
        (String::new(), &[]),
        ("/".into(), &[]),
        ("/a/b?c".into(), audience),
    ];
    for (what, capsule, files, peers) in [
        ("none", Capsule::handoff("reader"), false, false),
        ("files", Capsule::reporter(), true, false),
        ("peer_files", Capsule::handoff("writer"), false, true),
        ("both", Capsule::handoff("writer").and(FILES), true, true),
    ] {
        let capsule = with_report(capsule);
        let mut session = Launch::of(&capsule).start();
        for target in ["/resources/files", "/resources/files/report.md", "/resources/files/../x"] {
            let refused = http::get(session.url(), target);
            if files {
                assert_ne!(refused.status, 404, "{what}: {target}");
            } else {
                assert_eq!(
                    (refused.status, refused.error().as_str()),
                    (404, "no_resource_plane"),
                    "{what}: {target}"
                );
            }
        }
        let lines = Lines::of(&session);
        for (target, headers) in &peer {
            let refused = answer(&session, &redeem_request("GET", target, headers));
            let line = lines.next();
            if peers {
                assert_ne!(refused.error(), "no_peer_plane", "{what}: {target}");
            } else {
                assert_eq!(
                    (refused.status, refused.error().as_str()),
                    (404, "no_peer_plane"),
                    "{what}: {target}"
                );
                assert_eq!(line["outcome"], "no_peer_plane", "{what}: {target}: {line}");
                assert!(line["path"].is_null() && line["bytes"].is_null(), "{what}: {target}: {line}");
            }
            let refused = answer(&session, &redeem_request("PUT", target, headers));
            assert_eq!((refused.status, refused.header("allow")), (405, Some("GET")), "{what}: {target}");
            assert_eq!(lines.next()["outcome"], "method_not_allowed", "{what}: {target}");
        }
        if peers {
            let handle = Handle::mint_for_itself(&session, "report.md");
            assert_eq!(redeem(session.url(), &handle.token, &handle.audience).body, b"hello\n", "{what}");
        }
        let records = session.records();
        session.stop();
        let refused: Vec<String> = Trace::read(&records)
            .of("resource_read")
            .iter()
            .chain(&Trace::read(&records).of("resource_list"))
            .map(|line| line["outcome"].as_str().unwrap_or_default().to_owned())
            .collect();
        assert_eq!(refused.len(), 3, "{what}: {refused:?}");
        assert_eq!(refused.iter().all(|code| code == "no_resource_plane"), !files, "{what}: {refused:?}");
    }
}

/// B6: what is declared is what the model is offered.
#[test]
fn each_tool_is_offered_with_its_own_declaration_only() {
    needs_root!();
    let tools =
        [("share-file", "Hand report.md to 127.0.0.1:1"), ("fetch-peer-file", "Fetch mh1.a.b from h:1")];
    for (what, capsule, offered) in [
        ("neither", Capsule::reporter(), [false, false]),
        ("peer_files", Capsule::handoff("writer"), [true, false]),
        ("peer_fetch", Capsule::handoff("reader"), [false, true]),
        ("both", Capsule::handoff("writer").with("capabilities:\n", FETCH), [true, true]),
    ] {
        let capsule = with_report(capsule);
        let mut session = Launch::of(&capsule).start();
        for ((tool, task), offered) in tools.into_iter().zip(offered) {
            let task = a2a::send_message(session.url(), &unique("task"), task);
            let missing = task.to_string().contains(&format!("`{tool}` tool is not offered"));
            assert_eq!(missing, !offered, "{what}: {tool}: {task}");
        }
        // To fetch is no plane.
        let refused = redeem(session.url(), "mh1.a.b", "x@h:1").error();
        assert_eq!(refused == "no_peer_plane", !offered[0], "{what}: {refused}");
        session.stop();
    }
}

/// B8: neither declaration changes the class, whichever is asked for.
#[test]
fn no_declaration_changes_the_class() {
    needs_root!();
    for class in [None, Some("sealed"), Some("scoped"), Some("advisory")] {
        if class.is_some_and(|class| !classes().contains(&class)) {
            continue;
        }
        let mut achieved = Vec::new();
        for capsule in [
            Capsule::handoff("reader"),
            Capsule::handoff("reader").and(&format!("exports:\n{FILES}")),
            Capsule::handoff("writer"),
            Capsule::handoff("writer").and(FILES),
            Capsule::handoff("writer").and(FILES).with("capabilities:\n", FETCH),
        ] {
            let capsule = match class {
                None => capsule,
                Some(class) => {
                    capsule.with("capabilities:\n", &format!("capabilities:\n  containment: {class}\n"))
                }
            };
            let mut session = Launch::of(&capsule).start();
            achieved.push(session.containment().to_owned());
            let records = session.records();
            session.stop();
            let trace = Trace::read(&records);
            assert_eq!(trace.of("session_start")[0]["containment_achieved"], achieved[0].as_str());
        }
        assert!(achieved.iter().all(|found| *found == achieved[0]), "{class:?}: {achieved:?}");
    }
}

/// R22, R23: one root for both planes, or one within the other; each goes by its own declaration.
#[test]
fn roots_that_meet_are_served_by_each_plane_with_its_own_rules() {
    needs_root!();
    for (files, peers, on_files) in [
        ("out/", "out/", "report.md"),
        ("out/", "out/share/", "share/report.md"),
        (".", "out/", "out/report.md"),
    ] {
        let capsule = Capsule::handoff("writer")
            .with("root: out/", &format!("root: {peers}\n    max_bytes: 8"))
            .and(&format!("  files: {{root: {files}, mode: read-only, max_bytes: 16}}"));
        let file = format!("{}report.md", peers);
        capsule.write(&file, b"hello\n");
        let mut session = Launch::of(&capsule).start();
        let handle = Handle::mint_for_itself(&session, "report.md");
        let read = |what: &str| {
            let target = format!("/resources/files/{on_files}");
            (
                http::get(session.url(), &target),
                redeem(session.url(), &handle.token, &handle.audience),
                what.to_owned(),
            )
        };
        let (by_path, by_handle, _) = read("both");
        assert_eq!((by_path.status, by_handle.status), (200, 200), "{files} {peers}");
        assert_eq!(by_path.body, by_handle.body, "{files} {peers}");
        assert_eq!(by_path.header("etag"), by_handle.header("etag"), "{files} {peers}");
        assert_eq!(by_path.header("x-murmur-export-root"), Some(files));
        assert_eq!(by_handle.header("x-murmur-export-root"), None);
        let listing = http::get(session.url(), "/resources/files").text().to_owned();
        assert!(listing.contains(&format!("\"path\":\"{on_files}\"")), "{files} {peers}: {listing}");
        // Each has its own limit.
        for (size, by_path, by_handle) in [(8, 200, 200), (9, 200, 413), (16, 200, 413), (17, 413, 413)] {
            capsule.write(&file, &vec![b'x'; size]);
            let (one, other, _) = read("sizes");
            assert_eq!((one.status, other.status), (by_path, by_handle), "{files} {peers}: {size}");
        }
        // A path is no handle, and a handle no path.
        assert_eq!(redeem(session.url(), "report.md", &handle.audience).error(), "malformed_handle");
        let path = format!("/resources/files/{}", handle.token);
        assert_eq!(http::get(session.url(), &path).error(), "not_found");
        session.stop();
    }
}
