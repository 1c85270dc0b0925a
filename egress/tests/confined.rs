//! The real egress, confined as in a session, against listeners on loopback. Needs root; says so otherwise.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail at any step"
)]

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use confine::spawn::{Child, Exit, Program};
use ipc::edge::control::{
    Begin, BrokerControl, EgressConfigure, EgressOrder, FromRole, Gateway, NetworkRule, Scheme, ToRole,
    expect_hello,
};
use ipc::edge::egress_broker::EgressToBroker;
use ipc::edge::host_egress::{AnswerHead, FailureKind, HostToEgress, HttpRequest, Purpose};
use ipc::types::{Class, RequestId};
use ipc::{Channel, Never};

const UID: u32 = 61_302;

struct Session {
    child: Child,
    control: BrokerControl<EgressOrder>,
    host: Channel<HostToEgress, Never>,
    broker: Channel<Never, EgressToBroker>,
    log: JoinHandle<String>,
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn start(port: u16, bare: bool) -> Option<Session> {
    if !rustix::process::geteuid().is_root() {
        let name = std::thread::current().name().unwrap_or("test").to_owned();
        let _ = writeln!(std::io::stderr(), "NOT RUN: {name}: needs root");
        return None;
    }
    let binary = Path::new(env!("CARGO_BIN_EXE_egress"));
    let program = Program::open(binary.parent().unwrap(), "egress").unwrap();
    let (mut control, far) = ipc::pair::<ToRole<EgressOrder>, FromRole>().unwrap();
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let child = confine::spawn::spawn(&program, None, far.as_fd(), write.as_fd()).unwrap();
    drop((far, write));
    let log = std::thread::spawn(move || {
        let mut log = String::new();
        let _ = File::from(read).read_to_string(&mut log);
        // Shown if the test fails.
        println!("log of egress: {log}");
        log
    });
    expect_hello(&control, soon()).unwrap();
    let begin = Begin {
        uid: UID,
        gid: UID,
        join_network: false,
        trees: vec![],
        class: Class::Scoped,
        shared_owner: false,
    };
    control.send(&ToRole::Begin(begin)).unwrap();
    let ready = control.receive_until(soon()).unwrap().message;
    assert!(matches!(ready, FromRole::Ready(_)), "{ready:?}");

    let rule = |host: &str, port| NetworkRule { scheme: None, host: host.into(), port };
    let mut list = vec![rule("localhost", Some(port))];
    list.extend(bare.then(|| rule("127.0.0.1", None)));
    let gateway = Gateway { artifact: "driver".into(), tls: false, host: "127.0.0.1".into(), port };
    let configure = EgressConfigure { gateways: vec![gateway], allow: vec![("tool".into(), list)] };
    let (host, host_far) = ipc::pair::<HostToEgress, Never>().unwrap();
    let (broker, broker_far) = ipc::pair::<Never, EgressToBroker>().unwrap();
    let order = ToRole::Order(EgressOrder::Configure(configure));
    control.send_with(&order, &[host_far.as_fd(), broker_far.as_fd()]).unwrap();
    control.send(&ToRole::Order(EgressOrder::Run)).unwrap();
    Some(Session { child, control, host, broker, log })
}

impl Session {
    fn ask(&self, purpose: Purpose, host: &str, port: u16, body: &[u8]) -> (AnswerHead, Vec<u8>) {
        let ipc::stream::Stream { near, far } = ipc::stream::stream().unwrap();
        let request = HttpRequest {
            id: RequestId(1),
            purpose,
            method: "POST".into(),
            scheme: Scheme::Http,
            host: host.into(),
            port,
            path: "/v1/x?y".into(),
            headers: vec![("content-length".into(), body.len().to_string().into_bytes())],
            timeout_ms: 10_000,
        };
        let message = HostToEgress::HttpRequest(request);
        self.host.send_with(&message, &[far.input.as_fd(), far.output.as_fd()]).unwrap();
        drop(far);
        let (mut output, body) = (File::from(near.output), body.to_vec());
        let writer = std::thread::spawn(move || drop(output.write_all(&body)));
        let mut input = File::from(near.input);
        let head = ipc::stream::read_head(&mut input).unwrap();
        let mut rest = Vec::new();
        input.read_to_end(&mut rest).unwrap();
        writer.join().unwrap();
        (head, rest)
    }

    fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.pid)).unwrap().count()
    }

    fn end(self, shutdown: bool) -> (Exit, String) {
        if shutdown {
            self.control.send(&ToRole::Shutdown).unwrap();
        }
        let kept = shutdown.then_some(self.host);
        let exit = self.child.wait().unwrap();
        drop((kept, self.control, self.broker));
        (exit, self.log.join().unwrap())
    }
}

fn gateway() -> Purpose {
    Purpose::Gateway { artifact: "driver".into() }
}

fn tool() -> Purpose {
    Purpose::Component { artifact: "tool".into() }
}

/// Echoes bodies of announced length until the listener is dropped with the test.
fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || answer(&mut stream));
        }
    });
    port
}

fn answer(stream: &mut TcpStream) {
    let mut bytes = Vec::new();
    let mut buffer = [0; 65536];
    let end = loop {
        match bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            Some(at) => break at + 4,
            None => match stream.read(&mut buffer) {
                Ok(0) | Err(_) => return,
                Ok(read) => bytes.extend_from_slice(&buffer[..read]),
            },
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let length =
        head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap().parse().unwrap();
    while bytes.len() - end < length {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(read) => bytes.extend_from_slice(&buffer[..read]),
        }
    }
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nx-path: {}\r\n\r\n",
        head.lines().next().unwrap()
    );
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&bytes[end..]));
}

#[test]
fn a_gateway_and_an_allowed_name_are_reached_and_the_rest_is_denied_and_reported() {
    let port = echo();
    let Some(mut session) = start(port, false) else { return };
    let big: Vec<u8> = (0..3 << 20).map(|n: u32| (n / 5) as u8).collect();
    for (purpose, host) in [(gateway(), "127.0.0.1"), (tool(), "localhost")] {
        let (head, body) = session.ask(purpose, host, port, &big);
        let AnswerHead::Response { status: 200, headers } = head else { panic!("{head:?}") };
        assert!(headers.contains(&("x-path".into(), b"post /v1/x?y http/1.1".to_vec())), "{headers:?}");
        assert!(body == big);
    }
    let (head, body) = session.ask(tool(), "169.254.169.254", 80, b"x");
    assert!(matches!(head, AnswerHead::Denied) && body.is_empty(), "{head:?}");
    let EgressToBroker::NetworkDenied { artifact, destination } =
        session.broker.receive_until(soon()).unwrap().message;
    assert_eq!((artifact.as_str(), destination.as_str()), ("tool", "169.254.169.254:80"));
    assert_eq!(session.end(true), (Exit::Status(0), String::new()));
}

#[test]
fn an_entry_without_a_port_leaves_all_ports_to_the_lists() {
    let port = echo();
    let Some(session) = start(1, true) else { return };
    let (head, body) = session.ask(tool(), "127.0.0.1", port, b"hello");
    assert!(matches!(head, AnswerHead::Response { status: 200, .. }) && body == b"hello", "{head:?}");
    assert_eq!(session.end(false), (Exit::Status(0), String::new()));
}

#[test]
fn requests_of_every_outcome_leave_no_descriptor() {
    let port = echo();
    let Some(mut session) = start(port, true) else { return };
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut before = 0;
    for round in 0..500 {
        session.ask(gateway(), "x", 1, b"body");
        let (head, _) = session.ask(tool(), "127.0.0.1", closed, b"");
        assert!(matches!(head, AnswerHead::Failed(FailureKind::Connect)), "{head:?}");
        session.ask(tool(), "elsewhere.example", 80, b"x");
        session.broker.receive_until(soon()).unwrap();
        if round == 0 {
            before = session.descriptors();
        }
    }
    // The last exchange's task ends a moment after its answer.
    let until = soon();
    while session.descriptors() != before {
        assert!(
            Instant::now() < until,
            "{} descriptors, {before} after the first round",
            session.descriptors()
        );
        std::thread::yield_now();
    }
    let (exit, log) = session.end(true);
    assert_eq!(exit, Exit::Status(0));
    assert_eq!(log.lines().count(), 500, "one line per failed connection");
}
