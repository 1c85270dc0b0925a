//! The real egress, confined as in a session, against listeners on loopback. Needs root; says so otherwise.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail at any step"
)]

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use confine::spawn::{Child, Exit, Program};
use ipc::edge::control::{
    Begin, BrokerControl, EgressConfigure, EgressOrder, FromRole, Gateway, NetworkRule, Scheme, ToRole,
    expect_hello,
};
use ipc::edge::egress_broker::{Asker, EgressToBroker};
use ipc::edge::host_egress::{AnswerHead, FailureKind, HostToEgress, HttpRequest, Purpose};
use ipc::types::RequestId;
use ipc::{Channel, Never};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

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
    start_with(port, bare, port, &[])
}

/// An egress with a port of its own for cards and handles, and with these files of trusted certificates.
fn start_with(port: u16, bare: bool, peer: u16, trusted: &[OwnedFd]) -> Option<Session> {
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
        user_namespace: false,
        join_network: false,
        trees: vec![],
        read_only: vec![],
        programs: None,
    };
    control.send(&ToRole::Begin(begin)).unwrap();
    let ready = control.receive_until(soon()).unwrap().message;
    assert!(matches!(ready, FromRole::Ready(_)), "{ready:?}");

    let rule = |host: &str, port| NetworkRule { scheme: None, host: host.into(), port };
    let mut list = vec![rule("localhost", Some(port))];
    list.extend(bare.then(|| rule("127.0.0.1", None)));
    let gateway = Gateway { artifact: "driver".into(), tls: false, host: "127.0.0.1".into(), port };
    let configure = EgressConfigure {
        gateways: vec![gateway],
        allow: vec![("tool".into(), list)],
        card: Some(vec![rule("localhost", Some(peer))]),
        redeem: Some(vec![rule("localhost", Some(peer))]),
        programs: vec![],
        door: None,
        certificates: u8::try_from(trusted.len()).unwrap(),
    };
    let (host, host_far) = ipc::pair::<HostToEgress, Never>().unwrap();
    let (broker, broker_far) = ipc::pair::<Never, EgressToBroker>().unwrap();
    let order = ToRole::Order(EgressOrder::Configure(configure));
    let mut descriptors = vec![host_far.as_fd(), broker_far.as_fd()];
    descriptors.extend(trusted.iter().map(AsFd::as_fd));
    control.send_with(&order, &descriptors).unwrap();
    // One that trusts nobody it was told to trust is gone by now.
    let _ = control.send(&ToRole::Order(EgressOrder::Run));
    Some(Session { child, control, host, broker, log })
}

impl Session {
    fn ask(&self, purpose: Purpose, host: &str, port: u16, body: &[u8]) -> (AnswerHead, Vec<u8>) {
        self.ask_by(Scheme::Http, purpose, host, port, body)
    }

    fn ask_by(
        &self,
        scheme: Scheme,
        purpose: Purpose,
        host: &str,
        port: u16,
        body: &[u8],
    ) -> (AnswerHead, Vec<u8>) {
        let ipc::stream::Stream { near, far } = ipc::stream::stream().unwrap();
        let request = HttpRequest {
            id: RequestId(1),
            purpose,
            method: "POST".into(),
            scheme,
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

fn answer(stream: &mut (impl Read + Write)) {
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
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length = length.map_or(0, |length| length.parse().unwrap());
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

/// Echoes over TLS, by the given version, as `localhost` and 127.0.0.1; and a file with the authority that says so.
fn tls_echo(version: &'static rustls::SupportedProtocolVersion) -> (u16, OwnedFd) {
    let (authority_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&authority_key).unwrap();
    let issuer = Issuer::new(params, authority_key);
    let params = CertificateParams::new(vec!["localhost".into(), "127.0.0.1".into()]).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();

    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key).unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = StreamOwned::new(connection, stream.unwrap());
            std::thread::spawn(move || {
                answer(&mut stream);
                stream.conn.send_close_notify();
                let _ = stream.flush();
            });
        }
    });
    (port, file(&authority.pem()))
}

fn file(text: &str) -> OwnedFd {
    let descriptor = rustix::fs::memfd_create("certificates", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let mut file = File::from(descriptor);
    file.write_all(text.as_bytes()).unwrap();
    file.into()
}

#[test]
fn tls_works_under_the_filter_and_leaves_no_descriptor() {
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let (port, authority) = tls_echo(version);
        let Some(session) = start_with(port, false, port, &[authority, system_bundle()]) else { return };
        let big: Vec<u8> = (0..3 << 20).map(|n: u32| (n / 5) as u8).collect();
        let mut before = 0;
        for round in 0..20 {
            let (head, body) = session.ask_by(Scheme::Https, tool(), "localhost", port, &big);
            assert!(matches!(head, AnswerHead::Response { status: 200, .. }), "{head:?}");
            assert!(body == big);
            let (head, _) = session.ask_by(Scheme::Https, Purpose::Card, "localhost", port, b"");
            let AnswerHead::Response { status: 200, headers } = head else { panic!("{head:?}") };
            let path = b"get /.well-known/agent-card.json http/1.1".to_vec();
            assert!(headers.contains(&("x-path".into(), path)), "{headers:?}");
            if round == 0 {
                before = session.descriptors();
            }
        }
        // The last exchange's task ends a moment after its answer.
        let until = soon();
        while session.descriptors() > before {
            assert!(Instant::now() < until, "{} descriptors, {before} at first", session.descriptors());
            std::thread::yield_now();
        }
        assert_eq!(session.end(true), (Exit::Status(0), String::new()));
    }
}

/// The machine's own authorities if it has any, so that the real thing is parsed; else one more of ours.
fn system_bundle() -> OwnedFd {
    match File::open("/etc/ssl/certs/ca-certificates.crt") {
        Ok(bundle) => bundle.into(),
        Err(_) => tls_echo(&rustls::version::TLS13).1,
    }
}

#[test]
fn an_authority_nobody_named_is_not_trusted_and_the_log_says_so() {
    let (port, _) = tls_echo(&rustls::version::TLS13);
    let Some(session) = start(port, false) else { return };
    let (head, _) = session.ask_by(Scheme::Https, tool(), "localhost", port, b"secret");
    assert!(matches!(head, AnswerHead::Failed(FailureKind::Tls)), "{head:?}");
    let (exit, log) = session.end(true);
    assert_eq!(exit, Exit::Status(0));
    assert_eq!(log, "egress: request 1: the certificate is from an authority that is not trusted\n");
}

#[test]
fn a_file_that_names_no_authority_ends_egress_with_a_line() {
    let (port, authority) = tls_echo(&rustls::version::TLS13);
    let Some(session) = start_with(port, false, port, &[authority, file("nothing")]) else { return };
    let (exit, log) = session.end(false);
    assert_eq!(exit, Exit::Status(1));
    assert_eq!(log, "egress: file 2 of trusted certificates holds none that can be read\n");
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
    let EgressToBroker::NetworkDenied { asker, destination, .. } =
        session.broker.receive_until(soon()).unwrap().message;
    assert_eq!((asker, destination.as_str()), (Asker::Artifact("tool".into()), "169.254.169.254:80"));
    assert_eq!(session.end(true), (Exit::Status(0), String::new()));
}

#[test]
fn a_port_that_only_the_lists_of_peers_name_is_open_to_cards_and_handles() {
    let peer = echo();
    let Some(mut session) = start_with(1, false, peer, &[]) else { return };
    let redeem = Purpose::Redeem { handle: "mh1.a.b".into(), audience: "a@localhost:1".into() };
    for (purpose, line) in [
        (Purpose::Card, "get /.well-known/agent-card.json http/1.1"),
        (redeem.clone(), "get /resources/peer/mh1.a.b http/1.1"),
    ] {
        let (head, _) = session.ask(purpose, "localhost", peer, b"");
        let AnswerHead::Response { status: 200, headers } = head else { panic!("{head:?}") };
        assert!(headers.contains(&("x-path".into(), line.into())), "{headers:?}");
    }
    let forged = Purpose::Redeem { handle: "mh1.a.b\r\nx: y".into(), audience: "a@localhost:1".into() };
    for (purpose, host, port, asker) in [
        (tool(), "localhost", peer, Asker::Artifact("tool".into())),
        (Purpose::Card, "localhost", 1, Asker::Card),
        (redeem, "127.0.0.1", peer, Asker::Redeem),
        (forged, "localhost", peer, Asker::Redeem),
    ] {
        let (head, _) = session.ask(purpose, host, port, b"");
        assert!(matches!(head, AnswerHead::Denied), "{head:?}");
        let EgressToBroker::NetworkDenied { asker: reported, destination, .. } =
            session.broker.receive_until(soon()).unwrap().message;
        assert_eq!((reported, destination), (asker, format!("{host}:{port}")));
    }
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
