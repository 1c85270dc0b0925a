//! What clients get below `/resources/`, and what is recorded of it.

use std::io::Write;

use door::Limits;
use ipc::edge::control::DoorConfigure;
use ipc::edge::door_broker::DoorToBroker;
use ipc::edge::door_fileserver::DoorToFileserver;
use ipc::types::PlaneCode;

use crate::house::{House, LISTING, REPORT, connect, constants, finish, get, house, pattern, raw};

#[test]
fn a_read_is_the_seeds_head_and_exactly_the_bytes_of_the_slot_which_is_then_freed() {
    let (house, files) = house();
    let etag = "ab".repeat(32);
    let expected = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\netag: \"sha256:{etag}\"\r\n\
         x-murmur-mtime-ms: 1787577327015\r\nx-murmur-generation: 3\r\nx-murmur-containment: sealed\r\n\
         x-murmur-export-root: out/\r\ncontent-length: 6\r\nconnection: close\r\n\r\nhello\n"
    );
    for request in [
        "GET /resources/files/report.md HTTP/1.1\r\n\r\n",
        "GET /resources/files/report.md?a=/../.. HTTP/1.0\r\n\r\n",
        "GET http://any.host:1/resources/files/report.md HTTP/1.1\r\n\r\n",
        "GET /resources/files/repor%74.md HTTP/1.1\r\nRange: bytes=0-1\r\nIf-None-Match: *\r\n\r\n",
        "\r\nGET /resources/files/report.md HTTP/1.1\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n",
    ] {
        let reply = raw(house.address, request.as_bytes());
        assert_eq!(String::from_utf8_lossy(&reply.0), expected, "{request}");
        let DoorToFileserver::Read { path, .. } = files.next() else { panic!("no read") };
        assert_eq!(path.as_str(), "report.md");
        assert!(matches!(files.next(), DoorToFileserver::SlotFree { .. }));
    }
    house.shut_down();
}

#[test]
fn a_listing_is_the_fileservers_document_with_its_provenance() {
    let (house, files) = house();
    let reply = get(house.address, "/resources/files?path=x");
    assert_eq!(
        reply.head(),
        format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-murmur-generation: 3\r\n\
             x-murmur-containment: sealed\r\nx-murmur-export-root: out/\r\ncontent-length: {}\r\n\
             connection: close\r\n\r\n",
            LISTING.len()
        )
    );
    assert_eq!(reply.body(), LISTING);
    assert!(matches!(files.next(), DoorToFileserver::List { .. }));
    assert!(matches!(files.next(), DoorToFileserver::SlotFree { .. }));
    house.shut_down();
}

#[test]
fn bodies_of_every_size_arrive_whole() {
    let (house, _files) = house();
    for (name, length) in [("empty", 0), ("large", 24 << 20), ("file", 20_000_001)] {
        let reply = get(house.address, &format!("/resources/files/{name}"));
        assert!(reply.has(&format!("content-length: {length}")), "{}", reply.head());
        assert!(reply.body() == pattern(length), "{name}");
    }
    house.shut_down();
}

#[test]
fn a_refusal_of_the_fileserver_is_passed_on_and_not_recorded_again() {
    let (mut house, _files) = house();
    for code in PlaneCode::ALL {
        assert!(get(house.address, &format!("/resources/files/{}", code.as_str())).refuses(code), "{code:?}");
    }
    assert!(get(house.address, "/resources/nothing").refuses(PlaneCode::NotFound));
    assert!(matches!(house.record(), DoorToBroker::ReadRefused { path, .. } if path == "nothing"));
    house.shut_down();
}

#[test]
fn what_the_door_refuses_is_recorded_by_kind_and_never_reaches_the_fileserver() {
    use PlaneCode::{MethodNotAllowed, NoPeerPlane, NotFound, OutsideRoot};
    let (mut house, files) = house();
    // Target, refusal of a GET, kind and path of its record.
    let cases = [
        ("/resources/files", MethodNotAllowed, "list", ""),
        ("/resources/files/report.md", MethodNotAllowed, "read", "report.md"),
        ("/resources/files/", OutsideRoot, "read", ""),
        ("/resources/files/../secret.txt", OutsideRoot, "read", "../secret.txt"),
        ("/resources/files/..%2f..%2fetc%2fpasswd", OutsideRoot, "read", "../../etc/passwd"),
        ("/resources/files/%2e%2E/x", OutsideRoot, "read", "../x"),
        ("/resources/files//etc/passwd", OutsideRoot, "read", "/etc/passwd"),
        ("/resources/files/a%00b", OutsideRoot, "read", "a\0b"),
        ("/resources/files/caf%E9", OutsideRoot, "read", "caf\u{fffd}"),
        ("/resources/files/ok/", OutsideRoot, "read", "ok/"),
        ("/resources/", NotFound, "read", ""),
        ("/resources//files/ok", NotFound, "read", "/files/ok"),
        ("/resources/files%2Freport.md", NotFound, "read", "files/report.md"),
        ("/resources/files../secret", NotFound, "read", "files../secret"),
        ("/resources/peer", NoPeerPlane, "redeem", "e3b0c44298fc1c14"),
        ("/resources/peer/", NoPeerPlane, "redeem", "e3b0c44298fc1c14"),
        ("/resources/peer/MARKER?x", NoPeerPlane, "redeem", "efbaa13ba0b07c03"),
    ];
    for (target, code, kind, path) in cases {
        for method in ["GET", "PUT", "get", "PROPFIND"] {
            let code = if method == "GET" { code } else { MethodNotAllowed };
            if method == "GET" && code == MethodNotAllowed {
                continue;
            }
            let reply = raw(house.address, format!("{method} {target} HTTP/1.1\r\n\r\n").as_bytes());
            assert!(reply.refuses(code), "{method} {target}: {}", String::from_utf8_lossy(&reply.0));
            let record = house.record();
            let found = match &record {
                DoorToBroker::ListRefused { code } => ("list", "", *code),
                DoorToBroker::ReadRefused { path, code } => ("read", path.as_str(), *code),
                DoorToBroker::RedeemRefused { handle_id, audience, code } => {
                    assert_eq!(*audience, None);
                    ("redeem", handle_id.as_str(), *code)
                }
                DoorToBroker::Redeem { .. } | DoorToBroker::RedeemAbandoned { .. } => panic!("{record:?}"),
            };
            assert_eq!(found, (kind, path, code), "{method} {target}");
            assert!(!format!("{record:?}").contains("MARKER"));
        }
    }
    assert!(files.messages.try_recv().is_err());
    house.shut_down();
}

#[test]
fn head_is_405_without_body_bytes() {
    let (house, _files) = house();
    for target in ["/resources/files", "/resources/files/../x", "/resources/peer/x"] {
        let reply = raw(house.address, format!("HEAD {target} HTTP/1.1\r\n\r\n").as_bytes());
        assert_eq!((reply.status(), reply.body()), (405, &b""[..]));
        assert!(reply.has("allow: GET"));
    }
    house.shut_down();
}

#[test]
fn an_undeclared_plane_is_said_to_be_one_before_the_path_is_looked_at() {
    let undeclared = DoorConfigure { files: None, ..constants() };
    let house = House::new(Limits::default(), undeclared);
    for target in ["/resources/files", "/resources/files/x", "/resources/files/../x"] {
        assert!(get(house.address, target).refuses(PlaneCode::NoResourcePlane), "{target}");
    }
    assert!(get(house.address, "/resources/x").refuses(PlaneCode::NotFound));
    house.shut_down();
}

#[test]
fn a_refusal_comes_at_once_however_large_the_declared_body() {
    let (house, files) = house();
    let head = "PUT /resources/files/x HTTP/1.1\r\ncontent-length: 1073741824\r\n\r\n";
    assert!(raw(house.address, head.as_bytes()).refuses(PlaneCode::MethodNotAllowed));

    // A client that is in the middle of sending gets the whole answer all the same.
    let mut stream = connect(house.address);
    stream.write_all(head.as_bytes()).unwrap();
    while stream.write_all(&[0; 65536]).is_ok() {}
    assert!(finish(stream).refuses(PlaneCode::MethodNotAllowed));
    assert!(files.messages.try_recv().is_err());
    house.shut_down();
}

#[test]
fn a_second_request_on_the_connection_is_never_looked_at() {
    let (house, files) = house();
    let two = "GET /resources/files/report.md HTTP/1.1\r\n\r\nGET /resources/files/large HTTP/1.1\r\n\r\n";
    let reply = raw(house.address, two.as_bytes());
    assert_eq!((reply.status(), reply.body()), (200, REPORT));
    assert!(matches!(files.next(), DoorToFileserver::Read { .. }));
    assert!(matches!(files.next(), DoorToFileserver::SlotFree { .. }));
    assert!(files.messages.try_recv().is_err());
    house.shut_down();
}

#[test]
fn a_request_with_two_lengths_gets_one_400_and_nothing_behind_it_is_a_request() {
    let (house, files) = house();
    let smuggled = "0\r\n\r\nGET /resources/files/report.md HTTP/1.1\r\n\r\n";
    for lines in [
        "content-length: 4\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 4\r\n",
        "content-length: 4\r\ncontent-length: 4\r\n",
        "content-length: 4\r\ncontent-length: 5\r\n",
    ] {
        for target in ["/resources/files/report.md", "/healthz", "/"] {
            for method in ["GET", "POST"] {
                let request = format!("{method} {target} HTTP/1.1\r\n{lines}\r\n{smuggled}");
                let reply = raw(house.address, request.as_bytes());
                assert_eq!(
                    String::from_utf8_lossy(&reply.0),
                    "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                );
            }
        }
    }
    assert!(files.messages.try_recv().is_err());
    house.shut_down();
}

#[test]
fn without_its_record_a_refusal_is_not_answered() {
    let limits = Limits { record_wait: std::time::Duration::from_millis(50), ..Limits::default() };
    let house = House::new(limits, constants());
    // Nobody reads the records; the channel takes some of them.
    let target = format!("/resources/{}", "x".repeat(15_000));
    let mut answered = 0;
    loop {
        let reply = get(house.address, &target);
        if reply.0.is_empty() {
            break;
        }
        assert!(reply.refuses(PlaneCode::NotFound));
        answered += 1;
        assert!(answered < 10_000);
    }
    assert!(answered > 0);
    assert_eq!(get(house.address, "/healthz").status(), 204);
    house.shut_down();
}
