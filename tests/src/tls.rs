//! A proxy that ends TLS in front of a plain server, with a certificate of an authority that was made for the test.
//!
//! It keeps every byte that came over the wire, so that a test sees what was sent in clear, if anything was.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rcgen::{BasicConstraints, Certificate, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::http;

/// What a TLS connection begins with: a record of the handshake.
pub const HANDSHAKE: u8 = 0x16;

/// Somebody who signs certificates.
#[derive(Debug)]
pub struct Authority {
    certificate: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// A new one, whom nobody trusts yet.
    ///
    /// # Panics
    /// If none can be made.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("a certificate");
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    /// What `--ca-file` takes.
    #[must_use]
    pub fn pem(&self) -> String {
        self.certificate.pem()
    }

    /// A server's side, with a certificate for these names and addresses.
    fn server(&self, names: &[&str]) -> Arc<ServerConfig> {
        let key = KeyPair::generate().expect("a key");
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let params = CertificateParams::new(names).expect("names");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key in DER");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .expect("a certificate with its key");
        Arc::new(config)
    }
}

/// One connection as the proxy saw it.
#[derive(Debug)]
pub struct Seen {
    /// Every byte that came, as it came.
    pub wire: Vec<u8>,
    /// The head of the request inside; `None` if there was no TLS, or no request in it.
    pub head: Option<String>,
}

impl Seen {
    /// # Panics
    /// If it did not begin as TLS does, or one of `secrets` or any request came in clear.
    pub fn assert_nothing_in_clear(&self, secrets: &[&str]) {
        assert_eq!(self.wire.first(), Some(&HANDSHAKE), "{}", String::from_utf8_lossy(&self.wire));
        for secret in secrets.iter().chain(&["GET ", "HTTP/1.1"]) {
            let found = self.wire.windows(secret.len()).any(|window| window == secret.as_bytes());
            assert!(!found, "{secret:?} came in clear: {}", String::from_utf8_lossy(&self.wire));
        }
    }

    /// The values of a header of the request inside.
    ///
    /// # Panics
    /// If there was no request.
    #[must_use]
    pub fn header(&self, name: &str) -> Vec<&str> {
        let head = self.head.as_deref().expect("a request");
        let fields = head.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
        let values = fields.filter(|(found, _)| found.eq_ignore_ascii_case(name));
        values.map(|(_, value)| value.trim()).collect()
    }
}

/// A proxy on a loopback port, for as long as the test runs.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    seen: mpsc::Receiver<Seen>,
}

impl Proxy {
    /// Starts one in front of the plain server at `behind`, `http://…`, with a certificate for these names.
    ///
    /// # Panics
    /// If there is no port.
    #[must_use]
    pub fn start(authority: &Authority, names: &[&str], behind: &str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let (config, behind) = (authority.server(names), behind.to_owned());
        let (sender, seen) = mpsc::channel();
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let (config, behind, sender) = (Arc::clone(&config), behind.clone(), sender.clone());
                std::thread::spawn(move || {
                    let socket = connection.expect("a connection");
                    // Nobody is listening any more if the test has ended.
                    let _ = sender.send(carry(socket, config, &behind));
                });
            }
        });
        Self { port, seen }
    }

    /// The port it listens at, on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The next connection that has ended.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn next(&self) -> Seen {
        self.seen.recv_timeout(http::PATIENCE).expect("a connection")
    }

    /// # Panics
    /// If there was a connection that [`Proxy::next`] did not return.
    pub fn assert_idle(&self) {
        if let Ok(seen) = self.seen.try_recv() {
            panic!("somebody connected: {seen:?}");
        }
    }
}

/// A socket that remembers what came.
struct Wire {
    socket: TcpStream,
    came: Vec<u8>,
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.socket.read(buffer)?;
        self.came.extend_from_slice(&buffer[..count]);
        Ok(count)
    }
}

impl Write for Wire {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.socket.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

/// One request without a body, and its answer.
fn carry(socket: TcpStream, config: Arc<ServerConfig>, behind: &str) -> Seen {
    socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    let connection = ServerConnection::new(config).expect("a configuration that holds");
    let mut stream = StreamOwned::new(connection, Wire { socket, came: Vec::new() });
    let head = head(&mut stream).ok().and_then(|head| String::from_utf8(head).ok());
    if let Some(head) = &head {
        let answer = http::exchange(behind, head.as_bytes(), http::PATIENCE).expect("an answer");
        // The client may have left; what it sent is what counts here.
        let _ = stream.write_all(&answer);
        stream.conn.send_close_notify();
        let _ = stream.flush();
    }
    Seen { wire: stream.sock.came, head }
}

fn head(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, ServerName};
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    fn ask(proxy: &Proxy, trusted: &Authority, request: &[u8]) -> io::Result<Vec<u8>> {
        let mut roots = RootCertStore::empty();
        let certificate = CertificateDer::from_pem_slice(trusted.pem().as_bytes()).unwrap();
        roots.add(certificate).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        let connection = ClientConnection::new(Arc::new(config), name).unwrap();
        let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).unwrap();
        let mut stream = StreamOwned::new(connection, socket);
        stream.write_all(request)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    }

    /// A plain server that answers every request the same.
    fn plain() -> String {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let mut socket = socket.unwrap();
                let _ = socket.read(&mut [0; 1000]);
                let _ = socket.write_all(b"the answer");
            }
        });
        url
    }

    #[test]
    fn a_request_is_carried_and_seen_and_an_authority_of_somebody_else_is_not_enough() {
        let (ours, other) = (Authority::new("ours"), Authority::new("other"));
        let proxy = Proxy::start(&ours, &["localhost"], &plain());
        let request = b"GET /a HTTP/1.1\r\nX-A:  b \r\n\r\n";
        assert_eq!(ask(&proxy, &ours, request).unwrap(), b"the answer");
        let seen = proxy.next();
        seen.assert_nothing_in_clear(&[]);
        assert_eq!((seen.header("x-a"), seen.header("x-b")), (vec!["b"], vec![]));
        assert!(ask(&proxy, &other, request).is_err());
        let seen = proxy.next();
        assert_eq!((seen.wire[0], seen.head), (HANDSHAKE, None));
        proxy.assert_idle();
    }

    #[test]
    fn what_comes_in_clear_is_found() {
        let proxy = Proxy::start(&Authority::new("ours"), &["localhost"], "http://127.0.0.1:1");
        let mut socket = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).unwrap();
        socket.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let seen = proxy.next();
        assert!(seen.wire.starts_with(b"GET / HTTP") && seen.head.is_none(), "{seen:?}");
        let found = std::panic::catch_unwind(|| seen.assert_nothing_in_clear(&[]));
        assert!(found.is_err());
    }
}
