//! A fileserver that is slow, dies, is replaced or breaks the rules.

use std::io::Write;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use door::Limits;
use ipc::edge::control::{DoorOrder, ToRole};
use ipc::edge::door_broker::{BrokerToDoor, DoorToBroker};
use ipc::edge::door_fileserver::{Body, DoorToFileserver, FileserverToDoor};
use ipc::types::{PlaneCode, RequestId};

use crate::house::{Files, House, LONG, REPORT, connect, constants, finish, get, house, served};

const NEVER: &[u8] = b"GET /resources/files/never HTTP/1.1\r\n\r\n";

fn quick() -> Limits {
    Limits { half_closed: Duration::from_millis(50), ..Limits::default() }
}

fn io_error_of(house: &mut House, expected: &str) {
    match house.record() {
        DoorToBroker::ReadRefused { path, code: PlaneCode::IoError } => assert_eq!(path, expected),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_client_that_leaves_cancels_and_a_late_answer_frees_its_slot() {
    let house = House::new(quick(), constants());
    let (mut fileserver, _window) = house.fileserver();
    let mut next = move |answer: Option<FileserverToDoor>| {
        if let Some(answer) = answer {
            fileserver.send(&answer).unwrap();
        }
        fileserver.receive_until(Instant::now() + LONG).unwrap().message
    };
    let mut client = connect(house.address);
    client.write_all(NEVER).unwrap();
    let DoorToFileserver::Read { id, .. } = next(None) else { panic!("no read") };
    drop(client);
    assert!(matches!(next(None), DoorToFileserver::Cancel { id: cancelled } if cancelled == id));
    let late = served(id, 3, Body::Slot { slot: 7, offset: 0, length: 3 });
    assert!(matches!(next(Some(late)), DoorToFileserver::SlotFree { slot: 7 }));
    house.shut_down();
}

#[test]
fn a_client_that_only_ended_its_sending_side_is_answered() {
    let (house, _files) = house();
    let mut client = connect(house.address);
    client.write_all(b"GET /resources/files/report.md HTTP/1.1\r\n\r\n").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(finish(client).body(), REPORT);
    house.shut_down();
}

#[test]
fn an_answer_that_never_comes_is_500_recorded_and_abandoned() {
    let limits = Limits { read_wait: Duration::from_millis(100), ..Limits::default() };
    let mut house = House::new(limits, constants());
    let files = Files::start(&house);
    assert!(get(house.address, "/resources/files/never").refuses(PlaneCode::IoError));
    io_error_of(&mut house, "never");
    assert!(matches!(files.next(), DoorToFileserver::Read { .. }));
    assert!(matches!(files.next(), DoorToFileserver::Abandon { .. }));
    house.shut_down();
}

#[test]
fn without_a_fileserver_reads_and_listings_are_500_and_recorded() {
    let limits = Limits { replace_wait: Duration::from_millis(50), ..Limits::default() };
    let mut house = House::new(limits, constants());
    assert!(get(house.address, "/resources/files/a%20b").refuses(PlaneCode::IoError));
    io_error_of(&mut house, "a b");
    assert!(get(house.address, "/resources/files").refuses(PlaneCode::IoError));
    assert!(matches!(house.record(), DoorToBroker::ListRefused { code: PlaneCode::IoError }));
    house.shut_down();
}

#[test]
fn a_fileserver_that_dies_answers_what_it_held_with_500_and_its_successor_serves() {
    let mut house = House::new(Limits::default(), constants());
    let (mut fileserver, _window) = house.fileserver();
    let mut client = connect(house.address);
    client.write_all(NEVER).unwrap();
    fileserver.receive_until(Instant::now() + LONG).unwrap();
    drop(fileserver);
    assert!(finish(client).refuses(PlaneCode::IoError));
    io_error_of(&mut house, "never");
    let _files = Files::start(&house);
    assert_eq!(get(house.address, "/resources/files/report.md").body(), REPORT);
    house.shut_down();
}

#[test]
fn what_is_asked_before_there_is_a_fileserver_or_between_two_is_answered_by_the_next() {
    let house = House::new(Limits { replace_wait: LONG, ..Limits::default() }, constants());
    let ask = |path: &str| {
        let mut client = connect(house.address);
        client.write_all(format!("GET /resources/files/{path} HTTP/1.1\r\n\r\n").as_bytes()).unwrap();
        client
    };
    let (before, held) = (ask("report.md"), ask("never"));
    let (mut fileserver, _window) = house.fileserver();
    for _ in 0..2 {
        fileserver.receive_until(Instant::now() + LONG).unwrap();
    }
    drop(fileserver);
    // What it held is lost with it; that this was answered says that its end was seen.
    for client in [before, held] {
        assert!(finish(client).refuses(PlaneCode::IoError));
    }
    let between = ask("report.md");
    let _files = Files::start(&house);
    assert_eq!(finish(between).body(), REPORT);
    house.shut_down();
}

#[test]
fn what_a_replaced_fileserver_held_is_500_at_once() {
    let mut house = House::new(Limits::default(), constants());
    let (mut old, _window) = house.fileserver();
    let mut client = connect(house.address);
    client.write_all(NEVER).unwrap();
    old.receive_until(Instant::now() + LONG).unwrap();
    let _files = Files::start(&house);
    assert!(finish(client).refuses(PlaneCode::IoError));
    io_error_of(&mut house, "never");
    assert_eq!(get(house.address, "/resources/files/report.md").body(), REPORT);
    house.shut_down();
}

#[test]
fn a_fileserver_that_breaks_the_rules_ends_the_door_which_says_how() {
    let id = RequestId(0);
    let slot = |offset, length| Body::Slot { slot: 0, offset, length };
    let window = ipc::memory::WINDOW_BYTES as u64;
    let refused = FileserverToDoor::Refused { id: RequestId(1), generation: 0, code: PlaneCode::NotFound };
    let listing = FileserverToDoor::Listing { id, generation: 0, body: slot(0, 1) };
    let cases = [
        (refused, "an answer to no question"),
        (listing, "an answer to no question"),
        (served(id, 1, slot(window, 1)), "a slot outside the window"),
        (served(id, 2, slot(window - 1, 2)), "a slot outside the window"),
        (served(id, 1, slot(u64::MAX, 1)), "a slot outside the window"),
        (served(id, 2, slot(0, 1)), "a file of another length than its body"),
        (served(id, 2, Body::File { length: 2 }), "a memory file of another length"),
    ];
    for (answer, reason) in cases {
        let house = House::new(Limits::default(), constants());
        let (mut fileserver, _window) = house.fileserver();
        let mut client = connect(house.address);
        client.write_all(NEVER).unwrap();
        fileserver.receive_until(Instant::now() + LONG).unwrap();
        let file = ipc::memory::sealed_bytes("file", b"x").unwrap();
        let files = if matches!(answer, FileserverToDoor::File { body: Body::File { .. }, .. }) {
            vec![file.as_fd()]
        } else {
            vec![]
        };
        fileserver.send_with(&answer, &files).unwrap();
        let error = house.join().unwrap_err().to_string();
        assert_eq!(error, format!("fileserver broke the protocol: {reason}"));
    }
}

#[test]
fn an_order_out_of_turn_ends_the_door() {
    let house = House::new(Limits::default(), constants());
    let (_, spare) = ipc::pair::<BrokerToDoor, DoorToBroker>().unwrap();
    let again = ToRole::Order(DoorOrder::Configure(constants()));
    house.control.send_with(&again, &[spare.as_fd()]).unwrap();
    assert_eq!(house.join().unwrap_err().to_string(), "control channel: a second Configure");
}

#[test]
fn a_door_whose_broker_is_gone_ends() {
    let house = House::new(Limits::default(), constants());
    assert_eq!(get(house.address, "/healthz").status(), 204);
    assert_eq!(house.orphan().unwrap_err().to_string(), "control channel: the peer closed the channel");
}
