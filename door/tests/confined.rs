//! The built binary, locked down as the broker locks it down, gives every kind of answer and ends as told.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that fails panics, in its helpers too"
)]

#[allow(dead_code, reason = "each test binary uses its part of the house")]
mod house;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use confine::spawn::{Child, Exit, Program, spawn};
use ipc::edge::control::{Begin, DoorConfigure, DoorOrder, FromRole, ToRole, expect_hello};
use ipc::edge::door_broker::{BrokerToDoor, DoorToBroker};
use ipc::edge::door_fileserver::Body;
use ipc::edge::door_host::{Content, ResponseHead};
use ipc::types::{PlaneCode, RequestId};

use house::{Files, House, LONG, REPORT, connect, constants, finish, get, pattern, raw, served};

const ID: u32 = 61_237;

struct Confined {
    house: House,
    child: Child,
    log: File,
}

/// `None`, and why, where it cannot be confined.
fn start() -> Option<Confined> {
    let network = match confine::net::empty_namespace() {
        Ok(network) => network,
        Err(error) => {
            let _ = writeln!(
                std::io::stderr(),
                "NOT RUN: the confined binary: no network namespace can be made: {error}"
            );
            return None;
        }
    };
    let binary = Path::new(env!("CARGO_BIN_EXE_door"));
    let program = Program::open(binary.parent().unwrap(), "door").unwrap();
    let (mut control, far) = ipc::pair::<ToRole<DoorOrder>, FromRole>().unwrap();
    let far = far.into_descriptor().unwrap();
    let (log, log_end) = std::io::pipe().unwrap();
    let child = spawn(&program, None, far.as_fd(), log_end.as_fd()).unwrap();
    drop((far, log_end));
    let soon = Instant::now() + LONG;
    expect_hello(&control, soon).unwrap();
    let begin = Begin {
        uid: ID,
        gid: ID,
        user_namespace: false,
        join_network: true,
        trees: Vec::new(),
        read_only: Vec::new(),
        programs: None,
    };
    control.send_with(&ToRole::Begin(begin), &[network.as_fd()]).unwrap();
    match control.receive_until(soon).unwrap().message {
        FromRole::Ready(_) => {}
        other => panic!("{other:?}"),
    }
    Some(Confined {
        house: House::wired(control, DoorConfigure { peer_files: true, ..constants() }),
        child,
        log: OwnedFd::from(log).into(),
    })
}

impl Confined {
    fn end(mut self) -> (Exit, String) {
        let exit = self.child.wait().unwrap();
        let mut log = String::new();
        self.log.read_to_string(&mut log).unwrap();
        (exit, log)
    }
}

#[test]
fn the_confined_door_gives_every_kind_of_answer_and_ends_with_0() {
    let Some(mut confined) = start() else { return };
    let house = &mut confined.house;
    let address = house.address;
    assert!(get(address, "/resources/files/report.md").refuses(PlaneCode::IoError));
    house.record();
    let _files = Files::start(house);
    for _ in 0..100 {
        assert_eq!(get(address, "/resources/files/report.md").body(), REPORT);
    }
    assert!(get(address, "/resources/files/large").body() == pattern(24 << 20));
    assert!(get(address, "/resources/files/file").body() == pattern(20_000_001));
    assert_eq!(get(address, "/resources/files").status(), 200);
    assert!(get(address, "/resources/files/missing").refuses(PlaneCode::NotFound));
    assert!(get(address, "/resources/files/..%2fsecret").refuses(PlaneCode::OutsideRoot));
    assert!(matches!(house.record(), DoorToBroker::ReadRefused { path, .. } if path == "../secret"));
    assert!(get(address, "/resources/peer/x").refuses(PlaneCode::MalformedHandle));
    house.record();
    let mut client = connect(address);
    let redeem = "GET /resources/peer/mh1.eyJ2IjoxfQ.AAAA HTTP/1.1\r\nx-murmur-audience: a@b:1\r\n\r\n";
    client.write_all(redeem.as_bytes()).unwrap();
    let DoorToBroker::Redeem { id, .. } = house.record() else { panic!("no redeem") };
    house.broker.send(&BrokerToDoor::Refused { id, code: PlaneCode::HandleNotValid }).unwrap();
    assert!(finish(client).refuses(PlaneCode::HandleNotValid));
    assert_eq!(get(address, "/healthz").status(), 204);
    assert_eq!(get(address, "/.well-known/agent-card.json").status(), 200);
    assert_eq!(raw(address, b"\xff\r\n\r\n").status(), 400);

    // An answer before the body was read: the connection lingers.
    let mut put = connect(address);
    put.write_all(b"PUT /resources/files/x HTTP/1.1\r\ncontent-length: 1000000000\r\n\r\n").unwrap();
    while put.write_all(&[0; 65536]).is_ok() {}
    assert!(finish(put).refuses(PlaneCode::MethodNotAllowed));

    // The agent, with a body that does not fit into a pipe.
    let body = vec![b' '; 1 << 20];
    let head = format!(
        "POST / HTTP/1.1\r\nexpect: 100-continue\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    let mut client = connect(address);
    client.write_all(head.as_bytes()).unwrap();
    let sending = std::thread::spawn(move || {
        client.write_all(&body).unwrap();
        finish(client)
    });
    let Ok(received) = house.host.as_mut().unwrap().receive_until(Instant::now() + LONG) else {
        panic!("{:?}", confined.end());
    };
    let (_, [input, output]) = received.exactly().unwrap();
    let mut sent = Vec::new();
    File::from(input).read_to_end(&mut sent).unwrap();
    assert_eq!(sent.len(), 1 << 20);
    let mut output = File::from(output);
    let head = ResponseHead {
        status: 200,
        content: Content::EventStream,
        content_length: None,
        a2a_extensions: None,
    };
    ipc::stream::write_head(&mut output, &head).unwrap();
    output.write_all(&vec![b'.'; 1 << 20]).unwrap();
    drop(output);
    let reply = sending.join().unwrap();
    assert!(reply.0.len() > 1 << 20 && reply.0.ends_with(b"\r\n0\r\n\r\n"));

    // Clients that leave, early and in the middle of a body.
    drop(connect(address));
    let mut leaving = connect(address);
    leaving.write_all(b"GET /resources/files/large HTTP/1.1\r\n\r\n").unwrap();
    leaving.read_exact(&mut [0; 100]).unwrap();
    drop(leaving);
    let _successor = Files::start(house);
    assert_eq!(get(address, "/resources/files/report.md").body(), REPORT);
    let _idle = connect(address);
    house.control.send(&ToRole::Shutdown).unwrap();
    assert_eq!(confined.end(), (Exit::Status(0), String::new()));
}

#[test]
fn the_confined_door_says_why_it_ends() {
    let Some(confined) = start() else { return };
    let (fileserver, _window) = confined.house.fileserver();
    let answer = served(RequestId(9), 1, Body::Slot { slot: 0, offset: 0, length: 1 });
    fileserver.send(&answer).unwrap();
    let expected = "door: fileserver broke the protocol: an answer to no question\n".to_string();
    assert_eq!(confined.end(), (Exit::Status(3), expected));
}

#[test]
fn the_confined_door_is_one_thread_in_another_network() {
    let Some(confined) = start() else { return };
    assert_eq!(get(confined.house.address, "/healthz").status(), 204);
    let link = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
    let pid = confined.child.pid.to_string();
    assert_ne!(link(&pid), link("self"));
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().count();
    assert_eq!(tasks, 1, "threads of the door");
    confined.house.control.send(&ToRole::Shutdown).unwrap();
    assert_eq!(confined.end().0, Exit::Status(0));
}
