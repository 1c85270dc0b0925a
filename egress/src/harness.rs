//! What the tests of exchanges share: an upstream whose names are a table, and the asker's side of an exchange.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use ipc::edge::control::{EgressConfigure, Gateway, NetworkRule, Scheme};
use ipc::edge::host_egress::{AnswerHead, FailureKind, HttpRequest, Purpose};
use ipc::types::RequestId;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::net::unix::pipe;
use tokio::task::JoinHandle;

use crate::addresses::Addresses;
use crate::exchange::{Outcome, Upstream};
use crate::resolve::{Family, NoAddress, Resolve};
use crate::rules::{Denied, Rules};
use crate::tls::Tls;

/// Answers from a table, one answer after another, and counts.
pub(crate) struct Fake {
    answers: HashMap<&'static str, Vec<Vec<IpAddr>>>,
    pub(crate) asked: AtomicUsize,
}

impl Resolve for Fake {
    async fn resolve(&self, host: &str, _: Family) -> Result<Vec<IpAddr>, NoAddress> {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        let answers = self.answers.get(host).map_or(&[][..], Vec::as_slice);
        answers.get(asked.min(answers.len().saturating_sub(1))).cloned().ok_or(NoAddress::NotFound)
    }
}

pub(crate) fn upstream(port: u16) -> Arc<Upstream<Fake>> {
    upstream_that_trusts(port, vec![])
}

/// The same with these PEM files. Cards and handles may be asked for at `localhost` and 127.0.0.1, this port.
pub(crate) fn upstream_that_trusts(port: u16, certificates: Vec<OwnedFd>) -> Arc<Upstream<Fake>> {
    let loopback: IpAddr = "127.0.0.1".parse().unwrap();
    let other: IpAddr = "127.0.0.2".parse().unwrap();
    let answers = HashMap::from([
        ("127.0.0.1", vec![vec![loopback]]),
        ("localhost", vec![vec![other], vec![loopback]]),
        ("inside.example", vec![vec![loopback, "169.254.169.254".parse().unwrap()]]),
    ]);
    let gateway = |artifact: &str, tls, host: &str, port| Gateway {
        artifact: artifact.into(),
        tls,
        host: host.into(),
        port,
    };
    let rule = |host: &str, port| NetworkRule { scheme: None, host: host.into(), port };
    let configure = EgressConfigure {
        gateways: vec![gateway("driver", false, "127.0.0.1", port), gateway("tls", true, "localhost", port)],
        allow: vec![(
            "tool".into(),
            vec![
                rule("127.0.0.1", Some(port)),
                rule("inside.example", None),
                rule("localhost", Some(port ^ 3)),
                rule("nowhere.example", None),
            ],
        )],
        card: Some(vec![rule("127.0.0.1", Some(port)), rule("localhost", Some(port))]),
        redeem: Some(vec![rule("127.0.0.1", Some(port)), rule("localhost", Some(port))]),
        programs: vec![],
        door: None,
        certificates: 0,
    };
    let resolver = Fake { answers, asked: AtomicUsize::new(0) };
    let tls = Tls::trusting(certificates).unwrap();
    let addresses = Addresses::new(configure.door);
    Arc::new(Upstream { rules: Rules::new(&configure), resolver, addresses, tls })
}

pub(crate) fn request(port: u16) -> HttpRequest {
    HttpRequest {
        id: RequestId(1),
        purpose: Purpose::Component { artifact: "tool".into() },
        method: "POST".into(),
        scheme: Scheme::Http,
        host: "127.0.0.1".into(),
        port,
        path: "/p?q".into(),
        headers: vec![],
        timeout_ms: 10_000,
    }
}

/// The asker's side of one exchange.
pub(crate) struct Asked {
    pub(crate) input: pipe::Sender,
    pub(crate) output: pipe::Receiver,
    pub(crate) outcome: JoinHandle<Outcome>,
    pub(crate) reported: Arc<Mutex<Vec<Denied>>>,
}

pub(crate) fn ask(upstream: &Arc<Upstream<Fake>>, request: HttpRequest) -> Asked {
    let stream = ipc::stream::stream().unwrap();
    let reported = Arc::new(Mutex::new(Vec::new()));
    let (upstream, log) = (Arc::clone(upstream), Arc::clone(&reported));
    let outcome = tokio::spawn(async move {
        let report = async |denied: &Denied| log.lock().unwrap().push(denied.clone());
        upstream.exchange(request, [stream.far.input, stream.far.output], report).await
    });
    Asked {
        input: pipe::Sender::from_owned_fd(stream.near.output).unwrap(),
        output: pipe::Receiver::from_owned_fd(stream.near.input).unwrap(),
        outcome,
        reported,
    }
}

impl Asked {
    pub(crate) async fn head(&mut self) -> AnswerHead {
        let mut prefix = [0; 4];
        self.output.read_exact(&mut prefix).await.unwrap();
        let mut bytes = vec![0; ipc::stream::head_length(prefix).unwrap()];
        self.output.read_exact(&mut bytes).await.unwrap();
        ipc::codec::decode(&bytes).unwrap()
    }

    /// Sends a body and takes the whole answer.
    pub(crate) async fn finish(mut self, body: &[u8]) -> (AnswerHead, Vec<u8>, Outcome) {
        let mut input = self.input;
        let body = body.to_vec();
        // An exchange that is refused does not read the body.
        tokio::spawn(async move { input.write_all(&body).await });
        self.input = pipe::Sender::from_owned_fd(ipc::stream::stream().unwrap().near.output).unwrap();
        let head = self.head().await;
        let mut rest = Vec::new();
        self.output.read_to_end(&mut rest).await.unwrap();
        (head, rest, self.outcome.await.unwrap())
    }
}

pub(crate) async fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// Reads to the end of a request head and returns it with the body bytes that came along.
pub(crate) async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> (String, Vec<u8>) {
    let mut bytes = Vec::new();
    loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let body = bytes.split_off(at + 4);
            return (String::from_utf8(bytes).unwrap(), body);
        }
        assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0, "the request ended within its head");
    }
}

pub(crate) fn status(head: &AnswerHead) -> u16 {
    match head {
        AnswerHead::Response { status, .. } => *status,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn failed(head: &AnswerHead) -> FailureKind {
    match head {
        AnswerHead::Failed(kind) => *kind,
        other => panic!("{other:?}"),
    }
}
