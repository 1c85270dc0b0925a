//! A server for requests that leave a session: says what arrived, byte for byte, and answers what it was told to.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

/// How long a request that was made may take to arrive.
const PATIENCE: Duration = Duration::from_secs(20);

/// One request as it arrived.
#[derive(Debug, PartialEq, Eq)]
pub struct Arrived {
    /// The request line.
    pub line: String,
    /// Names in lower case, values as sent, in order.
    pub headers: Vec<(String, String)>,
    /// The body, of the length its `content-length` says.
    pub body: Vec<u8>,
}

impl Arrived {
    /// Every value of a header.
    #[must_use]
    pub fn all(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str()).collect()
    }
}

/// A server on a loopback port, for as long as the test runs.
#[derive(Debug)]
pub struct Upstream {
    port: u16,
    arrived: mpsc::Receiver<Arrived>,
}

impl Upstream {
    /// Starts one that gives the same answer to every request and closes.
    ///
    /// # Panics
    /// If there is no port.
    #[must_use]
    pub fn answering(answer: &'static str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let (sender, arrived) = mpsc::channel();
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let mut connection = connection.expect("a connection");
                if sender.send(read(&mut connection)).is_err() {
                    return;
                }
                connection.write_all(answer.as_bytes()).expect("the answer is taken");
            }
        });
        Self { port, arrived }
    }

    /// `127.0.0.1:port`.
    #[must_use]
    pub fn authority(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The next request that has arrived.
    ///
    /// # Panics
    /// If none does.
    #[must_use]
    pub fn next(&self) -> Arrived {
        self.arrived.recv_timeout(PATIENCE).expect("a request arrives")
    }

    /// # Panics
    /// If a request has arrived that [`Upstream::next`] did not return.
    pub fn assert_idle(&self) {
        assert_eq!(self.arrived.try_recv(), Err(mpsc::TryRecvError::Empty));
    }
}

fn read(connection: &mut TcpStream) -> Arrived {
    connection.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut bytes = Vec::new();
    let mut more = |bytes: &mut Vec<u8>| {
        let mut chunk = [0; 4096];
        let count = connection.read(&mut chunk).expect("a request");
        assert_ne!(count, 0, "broken off: {:?}", String::from_utf8_lossy(bytes));
        bytes.extend_from_slice(&chunk[..count]);
    };
    let end = loop {
        match bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            Some(end) => break end,
            None => more(&mut bytes),
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).expect("a head of text");
    let mut lines = head.split("\r\n").map(str::to_owned);
    let line = lines.next().unwrap_or_default();
    let headers = lines.map(|line| {
        let (name, value) = line.split_once(':').unwrap_or_else(|| panic!("no header: {line}"));
        (name.to_ascii_lowercase(), value.trim().to_owned())
    });
    let mut arrived = Arrived { line, headers: headers.collect(), body: Vec::new() };
    assert!(arrived.all("transfer-encoding").is_empty(), "a body without a length: {arrived:?}");
    let length = arrived.all("content-length").first().map_or(0, |length| length.parse().expect("a length"));
    while bytes.len() < end + 4 + length {
        more(&mut bytes);
    }
    arrived.body = bytes.split_off(end + 4);
    arrived
}
