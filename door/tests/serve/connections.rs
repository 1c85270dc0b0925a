//! Clients that are many, slow, silent or malformed.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use door::Limits;
use ipc::edge::control::ToRole;
use ipc::edge::door_fileserver::DoorToFileserver;

use crate::house::{Files, House, REPORT, connect, constants, finish, get, house, pattern, raw};

fn closed(mut stream: TcpStream) -> bool {
    matches!(stream.read(&mut [0]), Ok(0) | Err(_))
}

fn open(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let open = matches!((&*stream).read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock);
    stream.set_nonblocking(false).unwrap();
    open
}

#[test]
fn the_listeners_own_routes_answer_and_everything_else_is_404() {
    let (house, _files) = house();
    let health = raw(house.address, b"GET /healthz HTTP/1.1\r\n\r\n");
    assert_eq!(health.0, b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n");
    let card = get(house.address, "/.well-known/agent-card.json");
    assert_eq!((card.status(), card.body()), (200, &b"{\"name\":\"reporter\"}"[..]));
    assert!(card.has("content-type: application/json") && card.has("content-length: 19"));
    for line in [
        "GET /",
        "GET /resources",
        "POST /resources",
        "GET //resources/files",
        "GET /%72esources/files",
        "OPTIONS *",
        "CONNECT host:443",
        "HEAD /healthz",
        "HEAD /.well-known/agent-card.json",
        "GET /.well-known/agent.json",
        "POST /",
        "GET //evil.example/..%2f..%2fsub",
    ] {
        let reply = raw(house.address, format!("{line} HTTP/1.1\r\n\r\n").as_bytes());
        assert_eq!(
            String::from_utf8_lossy(&reply.0),
            "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
            "{line}"
        );
    }
    house.shut_down();
}

#[test]
fn heads_over_a_bound_are_refused_by_name_and_malformed_ones_too() {
    let (house, _files) = house();
    let line = |length: usize| format!("GET /{} HTTP/1.1", "a".repeat(length - 14));
    let cases = [
        (format!("{}\r\n\r\n", line(16 * 1024)), 404),
        (format!("{}\r\n\r\n", line(16 * 1024 + 1)), 414),
        (format!("GET /{}", "a".repeat(1 << 20)), 414),
        (format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "a".repeat(60_000)), 404),
        (format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "a".repeat(1 << 20)), 431),
        (format!("GET / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(10_000)), 431),
        ("GET / HTTP/3.0\r\n\r\n".into(), 400),
        ("nonsense\r\n\r\n".into(), 400),
    ];
    for (request, status) in cases {
        let mut stream = connect(house.address);
        let _ = stream.write_all(request.as_bytes());
        let reply = finish(stream);
        assert_eq!(reply.status(), status, "{}", &request[..request.len().min(40)]);
        assert!(reply.has("connection: close"));
    }
    assert_eq!(raw(house.address, b"GET /\xff HTTP/1.1\r\n\r\n").status(), 400);
    house.shut_down();
}

#[test]
fn a_connection_without_a_complete_head_is_closed_in_time_and_hinders_nobody() {
    let limits = Limits { head_time: Duration::from_millis(400), ..Limits::default() };
    let house = House::new(limits, constants());
    let started = Instant::now();
    let silent = connect(house.address);
    let mut half = connect(house.address);
    half.write_all(b"GET /healthz HTT").unwrap();
    let mut dripping = connect(house.address);
    dripping.write_all(b"GET /healthz HTTP/1.1\r\n").unwrap();
    let drip = std::thread::spawn(move || {
        while dripping.write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
        Instant::now()
    });
    assert_eq!(get(house.address, "/healthz").status(), 204);
    assert!(started.elapsed() < Duration::from_millis(400));
    assert!(finish(silent).0.is_empty());
    assert!(finish(half).0.is_empty());
    assert!(started.elapsed() >= Duration::from_millis(400));
    assert!(drip.join().unwrap() - started < Duration::from_secs(3));
    house.shut_down();
}

#[test]
fn the_oldest_connection_without_a_head_makes_room() {
    let limits = Limits { headless: 3, ..Limits::default() };
    let house = House::new(limits, constants());
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(connect(house.address));
    }
    assert_eq!(get(house.address, "/healthz").status(), 204);
    assert!(closed(held.remove(0)));
    assert!(held.iter().all(open));
    // Each of these has its head at once: none of them pushes out more than one.
    for _ in 0..20 {
        assert_eq!(get(house.address, "/healthz").status(), 204);
    }
    assert!(held.iter().all(open));
    house.shut_down();
}

#[test]
fn a_connection_beyond_the_limit_waits_for_one_to_end() {
    let limits = Limits { connections: 2, ..Limits::default() };
    let house = House::new(limits, constants());
    let files = Files::start(&house);
    let held: Vec<TcpStream> = (0..2).map(|_| busy(house.address, &files)).collect();
    let mut waiting = connect(house.address);
    waiting.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").unwrap();
    waiting.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert!(waiting.read(&mut [0]).is_err());
    drop(held);
    waiting.set_read_timeout(Some(crate::house::LONG)).unwrap();
    assert_eq!(finish(waiting).status(), 204);
    house.shut_down();
}

/// A connection whose request the fileserver has and does not answer.
fn busy(address: SocketAddr, files: &Files) -> TcpStream {
    let mut stream = connect(address);
    stream.write_all(b"GET /resources/files/never HTTP/1.1\r\n\r\n").unwrap();
    assert!(matches!(files.next(), DoorToFileserver::Read { .. }));
    stream
}

#[test]
fn a_client_that_takes_nothing_is_cut_and_its_slot_freed() {
    let limits = Limits { pace_time: Duration::from_millis(300), connections: 1, ..Limits::default() };
    let house = House::new(limits, constants());
    let files = Files::start(&house);
    for target in ["large", "file"] {
        let mut stream = connect(house.address);
        stream.write_all(format!("GET /resources/files/{target} HTTP/1.1\r\n\r\n").as_bytes()).unwrap();
        assert!(matches!(files.next(), DoorToFileserver::Read { .. }));
        if target == "large" {
            assert!(matches!(files.next(), DoorToFileserver::SlotFree { .. }));
        }
        // There is one place: this answer means that the connection before it is over.
        assert_eq!(get(house.address, "/healthz").status(), 204);
        let reply = finish(stream);
        assert!(reply.body().len() < pattern(20_000_001).len(), "{target} was not cut");
    }
    house.shut_down();
}

#[test]
fn a_client_that_keeps_the_pace_gets_everything_however_long_it_takes() {
    let limits = Limits { pace_time: Duration::from_millis(150), ..Limits::default() };
    let house = House::new(limits, constants());
    let _files = Files::start(&house);
    let mut stream = connect(house.address);
    stream.write_all(b"GET /resources/files/large HTTP/1.1\r\n\r\n").unwrap();
    let mut bytes = Vec::new();
    let mut piece = vec![0; 1 << 20];
    let started = Instant::now();
    loop {
        let read = stream.read(&mut piece).unwrap();
        if read == 0 {
            break;
        }
        bytes.extend_from_slice(&piece[..read]);
        if started.elapsed() < Duration::from_millis(900) {
            std::thread::sleep(Duration::from_millis(30));
        }
    }
    assert!(started.elapsed() > Duration::from_millis(600));
    assert!(bytes.ends_with(&pattern(24 << 20)[(24 << 20) - 4096..]));
    house.shut_down();
}

#[test]
fn shutdown_accepts_nobody_lets_what_is_in_flight_end_and_then_cuts_it() {
    let limits = Limits { shutdown: Duration::from_millis(300), ..Limits::default() };
    let house = House::new(limits, constants());
    let files = Files::start(&house);
    let idle = connect(house.address);
    let held = busy(house.address, &files);
    let mut reading = connect(house.address);
    reading.write_all(b"GET /resources/files/large HTTP/1.1\r\n\r\n").unwrap();
    assert!(matches!(files.next(), DoorToFileserver::Read { .. }));
    let address = house.address;
    let started = Instant::now();
    house.control.send(&ToRole::Shutdown).unwrap();
    assert!(closed(idle));
    assert!(started.elapsed() < Duration::from_millis(300));
    assert!(TcpStream::connect(address).is_err());
    assert_eq!(finish(reading).body().len(), 24 << 20);
    house.join().unwrap();
    assert!(started.elapsed() >= Duration::from_millis(300));
    assert!(finish(held).0.is_empty());
}

#[test]
fn many_clients_at_once_are_all_served() {
    let (house, _files) = house();
    let address = house.address;
    let clients: Vec<_> = (0..8)
        .map(|_| {
            std::thread::spawn(move || {
                for _ in 0..50 {
                    assert_eq!(get(address, "/resources/files/report.md").body(), REPORT);
                }
            })
        })
        .collect();
    for client in clients {
        client.join().unwrap();
    }
    house.shut_down();
}

#[test]
fn of_many_that_come_at_once_nobody_with_a_whole_head_is_turned_out() {
    let (house, _files) = house();
    let limits = Limits::default();
    for _ in 0..5 {
        // The door has more connections than it keeps without a head before it can read one of them.
        let clients: Vec<TcpStream> = (0..limits.connections - 20)
            .map(|_| {
                let mut client = connect(house.address);
                client.write_all(b"GET /resources/files/report.md HTTP/1.1\r\n\r\n").unwrap();
                client
            })
            .collect();
        assert!(clients.len() > 2 * limits.headless);
        for client in clients {
            assert_eq!(finish(client).body(), REPORT);
        }
    }
    house.shut_down();
}
