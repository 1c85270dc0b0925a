//! Handles: what the door refuses by itself, what it has verified, and what becomes of a client meanwhile.

use std::io::Write;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use door::Limits;
use handle::{encode_segment, handle_id};
use ipc::Channel;
use ipc::edge::control::DoorConfigure;
use ipc::edge::door_broker::{BrokerToDoor, DoorToBroker};
use ipc::edge::door_fileserver::{Body, DoorToFileserver, FileserverToDoor};
use ipc::sys::Mapping;
use ipc::types::{PlaneCode, RequestId};

use crate::house::{
    FIRST, Files, House, LONG, REPORT, Reply, connect, constants, finish, get, meta, pattern, raw,
};

const PAYLOAD: &str = "eyJ2IjoxLCJpc3MiOiJzZXNfMDFhMDMzZWMyYzFmN2ViMmE1OTIyZjg0ZTAxMmU4OWQiLCJwIjoicmVwb3J0Lm1kIiwiZXhwIjoxNz\
                       U1OTUwMzAwMDAwLCJuIjoiN2YzYzBhNTUxMmU4NGI2ZDlhMDFjMmQzZTRmNTA2MTcifQ";
const MAC: &str = "ECkYCjRA7Yx4LxWc_e4m2HGEvVzj5X_REXzd5Tqzs4U";
const ID: &str = "cb3b91815ed11b2d";
const AUDIENCE: &str = "x-murmur-audience: reporter@localhost:41234\r\n";

fn token() -> String {
    format!("mh1.{PAYLOAD}.{MAC}")
}

/// A door that declares the peer plane, with the broker and the fileserver in the test's hands.
struct Peer {
    house: House,
    fileserver: Channel<FileserverToDoor, DoorToFileserver>,
    window: Mapping,
}

impl Peer {
    fn new(limits: Limits) -> Self {
        let house = House::new(limits, DoorConfigure { peer_files: true, ..constants() });
        let (fileserver, window) = house.fileserver();
        Peer { house, fileserver, window }
    }

    /// Asks for a handle, with these header lines.
    fn ask(&self, token: &str, headers: &str) -> TcpStream {
        let mut client = connect(self.house.address);
        let request = format!("GET /resources/peer/{token} HTTP/1.1\r\n{headers}\r\n");
        client.write_all(request.as_bytes()).unwrap();
        client
    }

    /// The next handle the broker is to verify: its request and the audience.
    fn next_handle(&mut self) -> (RequestId, String) {
        match self.house.record() {
            DoorToBroker::Redeem { id, payload, mac, audience } => {
                assert_eq!(format!("mh1.{payload}.{mac}"), token());
                (id, audience)
            }
            other => panic!("{other:?}"),
        }
    }

    fn refuse(&self, id: RequestId, code: PlaneCode) {
        self.house.broker.send(&BrokerToDoor::Refused { id, code }).unwrap();
    }

    /// Answers as the fileserver does once a handle has verified.
    fn serve(&mut self, id: RequestId, bytes: &[u8], slot: u32) {
        let offset = slot as usize * 4096;
        self.window.bytes_mut(offset, bytes.len()).unwrap().copy_from_slice(bytes);
        let body = Body::Slot { slot, offset: offset as u64, length: bytes.len() as u64 };
        let outcome = Ok((meta(bytes.len()), body));
        self.fileserver.send(&FileserverToDoor::Redeemed { id, outcome }).unwrap();
    }

    fn freed(&mut self) -> u32 {
        match self.fileserver.receive_until(Instant::now() + LONG).unwrap().message {
            DoorToFileserver::SlotFree { slot } => slot,
            other => panic!("{other:?}"),
        }
    }

    fn silent(&mut self) -> bool {
        self.house.broker.receive_until(Instant::now()).is_err()
            && self.fileserver.receive_until(Instant::now()).is_err()
    }
}

/// Names of a head's lines.
fn names(reply: &Reply) -> Vec<String> {
    let head = reply.head();
    let lines = head.trim_end().split("\r\n").skip(1);
    lines.map(|line| line.split_once(':').unwrap().0.to_owned()).collect()
}

#[test]
fn a_redeem_is_the_seeds_head_and_the_bytes_of_the_slot_which_is_then_freed() {
    let mut peer = Peer::new(Limits::default());
    let etag = "ab".repeat(32);
    let expected = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\netag: \"sha256:{etag}\"\r\n\
         x-murmur-mtime-ms: 1787577327015\r\nx-murmur-generation: 3\r\nx-murmur-containment: sealed\r\n\
         x-murmur-handle-id: {ID}\r\ncontent-length: 6\r\nconnection: close\r\n\r\nhello\n"
    );
    let conditional = format!("{AUDIENCE}range: bytes=0-1\r\nif-none-match: *\r\n");
    for (number, (suffix, headers)) in
        [("", AUDIENCE), ("?x=1", AUDIENCE), ("", conditional.as_str())].into_iter().enumerate()
    {
        let client = peer.ask(&format!("{}{suffix}", token()), headers);
        let (id, audience) = peer.next_handle();
        assert_eq!((id, audience.as_str()), (RequestId(FIRST + number as u64), "reporter@localhost:41234"));
        peer.serve(id, REPORT, 3);
        assert_eq!(String::from_utf8(finish(client).0).unwrap(), expected, "{suffix} {headers}");
        assert_eq!(peer.freed(), 3);
    }
    assert!(peer.silent(), "the door puts nothing of it on record");
    peer.house.shut_down();
}

#[test]
fn a_large_file_arrives_whole_through_a_sealed_file() {
    let mut peer = Peer::new(Limits::default());
    let client = peer.ask(&token(), AUDIENCE);
    let (id, _) = peer.next_handle();
    let bytes = pattern(20_000_001);
    let file = ipc::memory::sealed_bytes("file", &bytes).unwrap();
    let outcome = Ok((meta(bytes.len()), Body::File { length: bytes.len() as u64 }));
    peer.fileserver.send_with(&FileserverToDoor::Redeemed { id, outcome }, &[file.as_fd()]).unwrap();
    assert!(finish(client).body() == bytes);
    peer.house.shut_down();
}

#[test]
fn what_has_not_a_handles_shape_is_refused_before_the_audience_and_recorded_by_its_identifier() {
    let mut peer = Peer::new(Limits::default());
    let token = token();
    let with = |payload: &str| format!("mh1.{}.{MAC}", encode_segment(payload.as_bytes()));
    let deep = format!("{{\"v\":1,\"x\":{}{}}}", "[".repeat(200), "]".repeat(200));
    let malformed = [
        format!("{token}/"),
        format!("{token}/x"),
        format!("/{token}"),
        "report.md".into(),
        token.replacen("mh1", "%6dh1", 1),
        token.replacen("mh1", "mh2", 1),
        token.replacen("mh1", "MH1", 1),
        token.replacen("mh1", "mh01", 1),
        format!("{token}="),
        token.replacen("fQ.", "fQ=.", 1),
        token.replace('_', "/"),
        token.replace('_', "+"),
        token.replacen('.', ".%0A", 1),
        format!("{token}~"),
        format!("{}V", &token[..token.len() - 1]),
        format!("mh1.{PAYLOAD}"),
        format!("mh1.{PAYLOAD}."),
        format!("{token}.AAAA"),
        with("x"),
        with("{}"),
        with("{\"v\":2}"),
        with("{\"v\":\"1\"}"),
        with("{\"v\":1.0}"),
        with("{\"v\":1e0}"),
        with("{\"v\":true}"),
        with("{\"v\":null}"),
        with("[]"),
        with("null"),
        with("\u{feff}{\"v\":1}"),
        with("{\"v\":1}x"),
        with("{\"v\":1,\"v\":1}"),
        with(&deep),
        format!("mh1.{}.{MAC}", encode_segment(b"{\"v\":1,\"p\":\"\xff\"}")),
        with(&format!("{{\"v\":2,\"p\":\"{}\"}}", "a".repeat(11_000))),
    ];
    for text in &malformed {
        for (headers, audience) in [("", None), (AUDIENCE, Some("reporter@localhost:41234"))] {
            let reply = finish(peer.ask(text, headers));
            assert!(reply.refuses(PlaneCode::MalformedHandle), "{text}");
            assert_eq!(names(&reply), ["content-type", "content-length", "connection"]);
            match peer.house.record() {
                DoorToBroker::RedeemRefused { handle_id: id, audience: asserted, code } => {
                    assert_eq!((id, code), (handle_id(text), PlaneCode::MalformedHandle));
                    assert_eq!(asserted.as_deref(), audience);
                }
                other => panic!("{other:?}"),
            }
        }
    }
    let long = format!("mh1.{}.{MAC}", "A".repeat(20_000));
    assert_eq!(finish(peer.ask(&long, AUDIENCE)).status(), 414);
    assert!(peer.silent());
    peer.house.shut_down();
}

#[test]
fn what_only_the_mac_decides_is_handed_on_as_presented() {
    let mut peer = Peer::new(Limits::default());
    let payloads = [
        "{\"v\":1,\"exp\":\"x\"}",
        "{\"v\":1,\"exp\":-1}",
        "{\"v\":1,\"p\":\"../x\"}",
        "{\"v\":1}",
        "{\"v\":1,\"more\":[{}]}",
    ];
    for (payload, mac) in payloads.into_iter().flat_map(|payload| [(payload, MAC), (payload, "AA")]) {
        let segment = encode_segment(payload.as_bytes());
        let client = peer.ask(&format!("mh1.{segment}.{mac}"), AUDIENCE);
        match peer.house.record() {
            DoorToBroker::Redeem { id, payload, mac: sent, .. } => {
                assert_eq!((payload.as_str(), sent.as_str()), (segment.as_str(), mac));
                peer.refuse(id, PlaneCode::HandleNotValid);
            }
            other => panic!("{other:?}"),
        }
        assert!(finish(client).refuses(PlaneCode::HandleNotValid));
    }
    assert!(peer.silent());
    peer.house.shut_down();
}

#[test]
fn an_audience_is_all_that_is_asserted_and_an_empty_one_is_none() {
    let mut peer = Peer::new(Limits::default());
    let name = "x-murmur-audience";
    for (headers, asserted) in [
        (String::new(), None),
        (format!("{name}:\r\n"), Some("")),
        (format!("{name}:   \r\n"), Some("")),
        ("x-murmur-audienc: a@b:1\r\nx-murmur-audience2: a@b:1\r\n".into(), None),
    ] {
        let reply = finish(peer.ask(&token(), &headers));
        assert!(reply.refuses(PlaneCode::MissingAudience), "{headers}");
        match peer.house.record() {
            DoorToBroker::RedeemRefused { handle_id, audience, code: PlaneCode::MissingAudience } => {
                assert_eq!((handle_id.as_str(), audience.as_deref()), (ID, asserted));
            }
            other => panic!("{other:?}"),
        }
    }
    let long = "a".repeat(5000);
    for (headers, expected) in [
        (format!("{name}: Reporter@LOCALHOST:41234\r\n"), "Reporter@LOCALHOST:41234"),
        (format!("{name}: a@b:1\r\nX-Murmur-Audience: a@b:1\r\n"), "a@b:1, a@b:1"),
        (format!("{name}: a@b:1\r\n{name}: c@d:2\r\n"), "a@b:1, c@d:2"),
        (format!("{name}: a@b:1\r\n{name}:\r\n"), "a@b:1, "),
        (format!("{name}:\r\n{name}: a@b:1\r\n"), ", a@b:1"),
        (format!("{name}: a@b:1 x\r\n"), "a@b:1 x"),
        (format!("{name}: caf\u{e9}@b:1\r\n"), "caf\u{e9}@b:1"),
        (format!("{name}: {long}\r\n"), &long[..4096]),
    ] {
        let client = peer.ask(&token(), &headers);
        let (id, audience) = peer.next_handle();
        assert_eq!(audience, expected);
        peer.refuse(id, PlaneCode::HandleNotValid);
        assert!(finish(client).refuses(PlaneCode::HandleNotValid));
    }
    // What is no field value at all, and a head without end.
    for (headers, status) in [
        (format!("{name}: a@b:1\u{1f}x\r\n"), 400),
        (format!("{name}: a@b:1\r\n c\r\n"), 400),
        (format!("{name}: {}\r\n", "a".repeat(70_000)), 431),
    ] {
        assert_eq!(finish(peer.ask(&token(), &headers)).status(), status);
    }
    assert!(peer.silent());
    peer.house.shut_down();
}

#[test]
fn checks_come_in_the_order_method_declared_token_shape_audience() {
    let mut peer = Peer::new(Limits::default());
    let mut undeclared = House::new(Limits::default(), constants());
    let valid = format!("/resources/peer/{}", token());
    let broken = "/resources/peer/x".to_owned();
    let (bare, slash) = ("/resources/peer".to_owned(), "/resources/peer/".to_owned());
    // Target, refusal where the plane is declared and no audience is asserted.
    let cases = [
        (bare, PlaneCode::NotFound),
        (slash, PlaneCode::NotFound),
        ("/resources/peer?x".to_owned(), PlaneCode::NotFound),
        (broken, PlaneCode::MalformedHandle),
        (valid, PlaneCode::MissingAudience),
    ];
    for (target, code) in cases {
        for method in ["GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "get", "FOO"] {
            for (house, declared) in [(&mut peer.house, true), (&mut undeclared, false)] {
                let expected = match (method, declared) {
                    ("GET", true) => code,
                    ("GET", false) => PlaneCode::NoPeerPlane,
                    _ => PlaneCode::MethodNotAllowed,
                };
                let reply = raw(house.address, format!("{method} {target} HTTP/1.1\r\n\r\n").as_bytes());
                if method == "HEAD" {
                    assert!((reply.status(), reply.has("allow: GET")) == (405, true), "{target}");
                    assert!(reply.body().is_empty(), "{target}");
                } else {
                    assert!(reply.refuses(expected), "{method} {target} {declared}");
                }
                let text = target.strip_prefix("/resources/peer").unwrap().trim_start_matches('/');
                match house.record() {
                    DoorToBroker::RedeemRefused { handle_id: id, audience: None, code } => {
                        let text = text.split('?').next().unwrap();
                        assert_eq!((id, code), (handle_id(text), expected), "{method} {target}");
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    assert!(peer.silent());
    peer.house.shut_down();
    undeclared.shut_down();
}

#[test]
fn the_planes_are_declared_independently() {
    let only_peer = DoorConfigure { files: None, peer_files: true, ..constants() };
    let mut house = House::new(Limits::default(), only_peer);
    assert!(get(house.address, "/resources/files").refuses(PlaneCode::NoResourcePlane));
    house.record();
    assert!(get(house.address, "/resources/files/x").refuses(PlaneCode::NoResourcePlane));
    house.record();
    let (fileserver, window) = house.fileserver();
    let mut peer = Peer { house, fileserver, window };
    let client = peer.ask(&token(), AUDIENCE);
    let (id, _) = peer.next_handle();
    peer.serve(id, REPORT, 0);
    assert_eq!(finish(client).body(), REPORT);
    peer.house.shut_down();
}

#[test]
fn refusals_of_the_broker_and_the_fileserver_are_passed_on_with_nothing_added() {
    let mut peer = Peer::new(Limits::default());
    let codes = PlaneCode::ALL.into_iter().filter(|code| *code != PlaneCode::MethodNotAllowed);
    for code in codes {
        for by_broker in [true, false] {
            let client = peer.ask(&token(), AUDIENCE);
            let (id, _) = peer.next_handle();
            if by_broker {
                peer.refuse(id, code);
            } else {
                peer.fileserver.send(&FileserverToDoor::Redeemed { id, outcome: Err(code) }).unwrap();
            }
            let reply = finish(client);
            assert!(reply.refuses(code), "{code:?}");
            assert_eq!(names(&reply), ["content-type", "content-length", "connection"]);
        }
    }
    assert!(peer.silent());
    peer.house.shut_down();
}

#[test]
fn no_answer_tells_why_a_handle_is_not_valid() {
    let mut peer = Peer::new(Limits::default());
    let tampered = format!("mh1.{}.{MAC}", encode_segment(b"{\"v\":1,\"p\":\"other\"}"));
    let mut replies = Vec::new();
    for (token, headers) in [
        (tampered, AUDIENCE),
        (token(), AUDIENCE),
        (token(), "x-murmur-audience: other@localhost:1\r\n"),
        (
            token(),
            "x-murmur-audience: reporter@localhost:41234\r\nx-murmur-audience: reporter@localhost:41234\r\n",
        ),
    ] {
        let client = peer.ask(&token, headers);
        let DoorToBroker::Redeem { id, .. } = peer.house.record() else { panic!("no redeem") };
        peer.refuse(id, PlaneCode::HandleNotValid);
        replies.push(finish(client).0);
    }
    replies.dedup();
    assert_eq!(replies.len(), 1);
    peer.house.shut_down();
}

#[test]
fn a_hundred_redeems_of_one_handle_at_one_time_are_all_served() {
    let mut peer = Peer::new(Limits::default());
    let clients: Vec<TcpStream> = (0..100).map(|_| peer.ask(&token(), AUDIENCE)).collect();
    let mut ids: Vec<RequestId> = clients.iter().map(|_| peer.next_handle().0).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 100, "no identifier twice");
    for (slot, id) in ids.into_iter().rev().enumerate() {
        peer.serve(id, REPORT, slot as u32);
    }
    for client in clients {
        assert_eq!(finish(client).body(), REPORT);
    }
    let mut freed: Vec<u32> = (0..100).map(|_| peer.freed()).collect();
    freed.sort_unstable();
    assert_eq!(freed, (0..100).collect::<Vec<_>>());
    peer.house.shut_down();
}

fn abandoned(peer: &mut Peer, expected: RequestId) {
    match peer.house.record() {
        DoorToBroker::RedeemAbandoned { id } => assert_eq!(id, expected),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_redeem_that_nobody_answers_is_500_and_given_up() {
    let mut peer = Peer::new(Limits { read_wait: Duration::from_millis(100), ..Limits::default() });
    let client = peer.ask(&token(), AUDIENCE);
    let (id, _) = peer.next_handle();
    assert!(finish(client).refuses(PlaneCode::IoError));
    abandoned(&mut peer, id);
    // Either answer may still come.
    peer.refuse(id, PlaneCode::HandleExpired);
    peer.serve(id, REPORT, 9);
    assert_eq!(peer.freed(), 9);
    assert!(peer.silent());
    peer.house.shut_down();
}

#[test]
fn a_client_that_leaves_gives_its_redeem_up_and_a_late_answer_frees_its_slot() {
    let mut peer = Peer::new(Limits { half_closed: Duration::from_millis(50), ..Limits::default() });
    let client = peer.ask(&token(), AUDIENCE);
    let (id, _) = peer.next_handle();
    drop(client);
    abandoned(&mut peer, id);
    peer.serve(id, REPORT, 4);
    assert_eq!(peer.freed(), 4);
    // An answer to what was never asked is no fault either: a former door may have asked.
    peer.serve(RequestId(1), REPORT, 5);
    assert_eq!(peer.freed(), 5);
    peer.refuse(RequestId(1), PlaneCode::HandleNotValid);
    let client = peer.ask(&token(), AUDIENCE);
    let (id, _) = peer.next_handle();
    peer.serve(id, REPORT, 6);
    assert_eq!(finish(client).body(), REPORT);
    peer.house.shut_down();
}

#[test]
fn a_redeem_outlives_the_fileserver_of_its_beginning() {
    let mut peer = Peer::new(Limits::default());
    let clients = [peer.ask(&token(), AUDIENCE), peer.ask(&token(), AUDIENCE)];
    let ids = [peer.next_handle().0, peer.next_handle().0];
    let (fileserver, window) = peer.house.fileserver();
    peer.fileserver = fileserver;
    peer.window = window;
    for (slot, id) in ids.into_iter().enumerate() {
        peer.serve(id, REPORT, slot as u32);
    }
    for client in clients {
        assert_eq!(finish(client).body(), REPORT);
    }
    peer.house.shut_down();
}

#[test]
fn identifiers_of_reads_and_redeems_do_not_meet() {
    let constants = DoorConfigure { peer_files: true, requests_from: 0, ..constants() };
    let house = House::new(Limits::default(), constants);
    let (mut fileserver, window) = house.fileserver();
    let mut read = connect(house.address);
    read.write_all(b"GET /resources/files/x HTTP/1.1\r\n\r\n").unwrap();
    let DoorToFileserver::Read { id: of_read, .. } =
        fileserver.receive_until(Instant::now() + LONG).unwrap().message
    else {
        panic!("no read")
    };
    let mut peer = Peer { house, fileserver, window };
    let redeem = peer.ask(&token(), AUDIENCE);
    let (id, _) = peer.next_handle();
    assert_eq!(id, of_read);
    peer.serve(id, b"shared", 0);
    assert_eq!(finish(redeem).body(), b"shared");
    peer.freed();
    let refused = FileserverToDoor::Refused { id, generation: 0, code: PlaneCode::NotFound };
    peer.fileserver.send(&refused).unwrap();
    assert!(finish(read).refuses(PlaneCode::NotFound));
    peer.house.shut_down();
}

#[test]
fn a_redeem_the_broker_does_not_take_is_not_answered() {
    let limits = Limits { record_wait: Duration::from_millis(50), ..Limits::default() };
    let peer = Peer::new(Limits { read_wait: Duration::from_millis(10), ..limits });
    // Nobody reads at the broker's end; the channel takes some of them.
    let long = format!(
        "mh1.{}.{MAC}",
        encode_segment(format!("{{\"v\":1,\"x\":\"{}\"}}", "x".repeat(9000)).as_bytes())
    );
    let mut answered = 0;
    loop {
        let reply = finish(peer.ask(&long, AUDIENCE));
        if reply.0.is_empty() {
            break;
        }
        assert!(reply.refuses(PlaneCode::IoError));
        answered += 1;
        assert!(answered < 10_000);
    }
    assert!(answered > 0);
    assert_eq!(get(peer.house.address, "/healthz").status(), 204);
    peer.house.shut_down();
}

#[test]
fn without_the_broker_no_handle_is_answered() {
    let peer = Peer::new(Limits::default());
    let (spare, _) = ipc::pair::<BrokerToDoor, DoorToBroker>().unwrap();
    let Peer { mut house, fileserver, window } = peer;
    drop(std::mem::replace(&mut house.broker, spare));
    let peer = Peer { house, fileserver, window };
    for _ in 0..3 {
        assert!(finish(peer.ask(&token(), AUDIENCE)).0.is_empty());
        assert!(finish(peer.ask("x", AUDIENCE)).0.is_empty());
    }
    assert_eq!(get(peer.house.address, "/healthz").status(), 204);
    peer.house.shut_down();
}

#[test]
fn neighbours_that_break_the_rules_end_the_door_which_says_how() {
    let slot = |offset, length| Body::Slot { slot: 0, offset, length };
    let window = ipc::memory::WINDOW_BYTES as u64;
    for (bytes, body, reason) in [
        (1, slot(window, 1), "a slot outside the window"),
        (2, slot(0, 1), "a file of another length than its body"),
    ] {
        let mut peer = Peer::new(Limits::default());
        let _client = peer.ask(&token(), AUDIENCE);
        let (id, _) = peer.next_handle();
        let outcome = Ok((meta(bytes), body));
        peer.fileserver.send(&FileserverToDoor::Redeemed { id, outcome }).unwrap();
        let error = peer.house.join().unwrap_err().to_string();
        assert_eq!(error, format!("fileserver broke the protocol: {reason}"));
    }
    let peer = Peer::new(Limits::default());
    ipc::sys::send_packet(peer.house.broker.as_fd(), b"\xff\xff\xff\xff", &[], true).unwrap();
    let error = peer.house.join().unwrap_err().to_string();
    assert!(error.starts_with("broker channel: "), "{error}");
}

#[test]
fn redeems_and_reads_of_a_running_fileserver_do_not_disturb_each_other() {
    let house = House::new(Limits::default(), DoorConfigure { peer_files: true, ..constants() });
    let _files = Files::start(&house);
    assert_eq!(get(house.address, "/resources/files/report.md").body(), REPORT);
    assert!(get(house.address, "/resources/peer/").refuses(PlaneCode::NotFound));
    assert_eq!(get(house.address, "/resources/files/report.md").body(), REPORT);
    house.shut_down();
}
