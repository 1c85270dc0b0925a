//! TLS exchanges against real listeners on loopback, with authorities and certificates made for each test.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use ipc::edge::control::Scheme;
use ipc::edge::host_egress::{AnswerHead, FailureKind, HttpRequest, Purpose};
use rcgen::{BasicConstraints, Certificate, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::{HandshakeKind, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::exchange::Outcome;
use crate::harness::{ask, failed, listener, read_head, request, status, upstream, upstream_that_trusts};
use crate::tls::{Tls, TrustError};

struct Authority {
    certificate: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

fn authority() -> Authority {
    authority_named("ours")
}

fn authority_named(name: &str) -> Authority {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).unwrap();
    Authority { certificate, issuer: Issuer::new(params, key) }
}

/// A server's side of TLS with a certificate of this authority for these names.
fn server(authority: &Authority, names: &[&str], last_year: i32, tls: &'static Version) -> TlsAcceptor {
    let key = KeyPair::generate().unwrap();
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.not_after = rcgen::date_time_ymd(last_year, 1, 1);
    let certificate = params.signed_by(&key, &authority.issuer).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_protocol_versions(&[tls]).unwrap();
    let chain = vec![certificate.der().clone()];
    let mut config = builder.with_no_client_auth().with_single_cert(chain, key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

type Version = rustls::SupportedProtocolVersion;

const BOTH: [&Version; 2] = [&rustls::version::TLS12, &rustls::version::TLS13];

fn file(text: &str) -> OwnedFd {
    let descriptor = rustix::fs::memfd_create("certificates", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let mut file = File::from(descriptor);
    file.write_all(text.as_bytes()).unwrap();
    // Its position is at its end now, as after another process has read it.
    file.into()
}

fn https(port: u16) -> HttpRequest {
    let mut request = request(port);
    request.scheme = Scheme::Https;
    request
}

fn gateway(port: u16) -> HttpRequest {
    let mut request = request(port);
    // The endpoint of this one is `https://localhost`.
    request.purpose = Purpose::Gateway { artifact: "tls".into() };
    request
}

/// Takes one TLS connection, answers its request and returns the head of that.
async fn serve(listener: tokio::net::TcpListener, tls: TlsAcceptor, answer: &'static [u8]) -> String {
    let (stream, _) = listener.accept().await.unwrap();
    let mut stream: TlsStream<TcpStream> = tls.accept(stream).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    let (head, _) = read_head(&mut stream).await;
    stream.write_all(answer).await.unwrap();
    stream.shutdown().await.unwrap();
    head
}

#[tokio::test(flavor = "current_thread")]
async fn every_purpose_speaks_tls_with_a_host_whose_certificate_an_authority_of_ours_signed() {
    let authority = authority();
    let redeem = Purpose::Redeem { handle: "mh1.a.b".into(), audience: "a@h:1".into() };
    for version in BOTH {
        for (purpose, names, line) in [
            (None, &["127.0.0.1"][..], "POST /p?q HTTP/1.1"),
            (Some(Purpose::Gateway { artifact: "tls".into() }), &["localhost"], "POST /p?q HTTP/1.1"),
            (Some(Purpose::Card), &["127.0.0.1"], "GET /.well-known/agent-card.json HTTP/1.1"),
            (Some(redeem.clone()), &["x.example", "127.0.0.1"], "GET /resources/peer/mh1.a.b HTTP/1.1"),
        ] {
            let (listener, port) = listener().await;
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
            let served = tokio::spawn(serve(listener, server(&authority, names, 4000, version), answer));
            let mut request = https(port);
            if let Some(purpose) = purpose {
                request.purpose = purpose;
            }
            let upstream = upstream_that_trusts(port, vec![file(&authority.certificate.pem())]);
            // The table of names answers `localhost` with 127.0.0.2 first.
            upstream.resolver.asked.store(1, std::sync::atomic::Ordering::Relaxed);
            let (head, body, outcome) = ask(&upstream, request).finish(b"").await;
            assert_eq!(
                (status(&head), body.as_slice(), outcome),
                (200, &b"hello"[..], Outcome::Done),
                "{line}"
            );
            assert_eq!(served.await.unwrap().lines().next(), Some(line));
        }
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_certificate_that_does_not_hold_ends_the_handshake_before_anything_is_sent() {
    let (ours, other, namesake) = (authority(), authority_named("other"), authority());
    for version in BOTH {
        for (signed_by, trusted, names, last_year, why) in [
            (
                &other,
                Some(&ours),
                &["127.0.0.1"][..],
                4000,
                "the certificate is from an authority that is not trusted",
            ),
            (&namesake, Some(&ours), &["127.0.0.1"], 4000, "the certificate is not valid"),
            (&ours, None, &["127.0.0.1"], 4000, "the certificate is from an authority that is not trusted"),
            (&ours, Some(&ours), &["127.0.0.2"], 4000, "the certificate is for another name"),
            (&ours, Some(&ours), &["localhost", "x.example"], 4000, "the certificate is for another name"),
            (&ours, Some(&ours), &["127.0.0.1"], 2001, "the certificate has expired"),
        ] {
            let (listener, port) = listener().await;
            let tls = server(signed_by, names, last_year, version);
            let refused = tokio::spawn(async move {
                let (stream, _) = listener.accept().await.unwrap();
                match tls.accept(stream).await {
                    Err(_) => true,
                    // The handshake of 1.3 may be over for the server before the client judges.
                    Ok(mut stream) => {
                        let mut sent = Vec::new();
                        let _ = stream.read_to_end(&mut sent).await;
                        sent.is_empty()
                    }
                }
            });
            let files = trusted.map(|authority| file(&authority.certificate.pem()));
            let upstream = upstream_that_trusts(port, files.into_iter().collect());
            let (head, rest, outcome) = ask(&upstream, https(port)).finish(b"secret").await;
            assert_eq!((failed(&head), rest.len()), (FailureKind::Tls, 0));
            assert_eq!(outcome, Outcome::Failed(FailureKind::Tls, why));
            assert!(refused.await.unwrap(), "{why}: a request came");
        }
    }
}

#[tokio::test(flavor = "current_thread")]
async fn an_https_destination_is_never_spoken_to_in_clear() {
    for answer in
        [&b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno"[..], b"", b"\x15\x03\x01\x00\x02\x02\x28"]
    {
        for make in [https, gateway] {
            let (listener, port) = listener().await;
            let server = tokio::spawn(async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut bytes = vec![0; 16 * 1024];
                let first = stream.read(&mut bytes).await.unwrap();
                bytes.truncate(first);
                stream.write_all(answer).await.unwrap();
                stream.shutdown().await.unwrap();
                let _ = stream.read_to_end(&mut bytes).await;
                bytes
            });
            let upstream = upstream(port);
            upstream.resolver.asked.store(1, std::sync::atomic::Ordering::Relaxed);
            let (head, _, outcome) = ask(&upstream, make(port)).finish(b"secret").await;
            assert_eq!(failed(&head), FailureKind::Tls, "{outcome:?}");
            let sent = server.await.unwrap();
            assert_eq!(sent.first(), Some(&0x16), "a handshake record");
            for word in [&b"POST"[..], b"HTTP/", b"secret"] {
                assert!(!sent.windows(word.len()).any(|window| window == word), "{sent:?}");
            }
        }
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_tls_server_that_is_asked_by_http_breaks_the_protocol() {
    let authority = authority();
    let (listener, port) = listener().await;
    let tls = server(&authority, &["127.0.0.1"], 4000, &rustls::version::TLS13);
    let served = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        tls.accept(stream).await.map(|_| ())
    });
    let upstream = upstream_that_trusts(port, vec![file(&authority.certificate.pem())]);
    let (head, rest, _) = ask(&upstream, request(port)).finish(b"").await;
    assert_eq!((failed(&head), rest.len()), (FailureKind::Protocol, 0));
    assert!(served.await.unwrap().is_err());
}

#[tokio::test(flavor = "current_thread")]
async fn a_handshake_that_never_ends_runs_into_the_deadline() {
    let (listener, port) = listener().await;
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut sink = Vec::new();
        // Until the exchange has given up.
        stream.read_to_end(&mut sink).await.map(|_| ())
    });
    let mut request = https(port);
    request.timeout_ms = 300;
    let began = std::time::Instant::now();
    let (head, _, _) = ask(&upstream(port), request).finish(b"x").await;
    assert_eq!(failed(&head), FailureKind::TimedOut);
    assert!(began.elapsed() >= Duration::from_millis(300) && began.elapsed() < Duration::from_secs(5));
    let _ = server.await.unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn bodies_stream_both_ways_at_once_over_tls() {
    const BIG: usize = 10 * 1024 * 1024;
    let authority = authority();
    let (listener, port) = listener().await;
    let tls = server(&authority, &["127.0.0.1"], 4000, &rustls::version::TLS13);
    let served = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = tls.accept(stream).await.unwrap();
        let (_, rest) = read_head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        stream.write_all(&rest).await.unwrap();
        let (mut from, mut to) = tokio::io::split(stream);
        let mut total = rest.len();
        let mut buffer = vec![0; 65536];
        while total < BIG {
            let read = from.read(&mut buffer).await.unwrap();
            to.write_all(&buffer[..read]).await.unwrap();
            total += read;
        }
        to.shutdown().await.unwrap();
    });
    let pattern: Vec<u8> = (0..BIG).map(|n| (n / 7) as u8).collect();
    let mut request = https(port);
    request.headers = vec![("content-length".into(), BIG.to_string().into_bytes())];
    let upstream = upstream_that_trusts(port, vec![file(&authority.certificate.pem())]);
    let (head, body, outcome) = ask(&upstream, request).finish(&pattern).await;
    assert_eq!((status(&head), outcome), (200, Outcome::Done));
    assert!(body == pattern, "{} bytes came back", body.len());
    served.await.unwrap();
}

/// Somebody on the way can end a TCP connection; only the upstream can end the TLS one.
#[tokio::test(flavor = "current_thread")]
async fn an_answer_that_ends_without_the_end_of_tls_is_not_called_done() {
    let authority = authority();
    let (listener, port) = listener().await;
    let tls = server(&authority, &["127.0.0.1"], 4000, &rustls::version::TLS13);
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = tls.accept(stream).await.unwrap();
        read_head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nhalf").await.unwrap();
        stream.flush().await.unwrap();
        stream.get_mut().0.shutdown().await.unwrap();
    });
    let upstream = upstream_that_trusts(port, vec![file(&authority.certificate.pem())]);
    let (head, body, outcome) = ask(&upstream, https(port)).finish(b"").await;
    assert_eq!((status(&head), body.as_slice()), (200, &b"half"[..]));
    assert_eq!(outcome, Outcome::Cut("the upstream broke off its answer"));
}

#[tokio::test(flavor = "current_thread")]
async fn no_handshake_rests_on_an_earlier_one() {
    let authority = authority();
    for version in BOTH {
        let (listener, port) = listener().await;
        let tls = server(&authority, &["127.0.0.1"], 4000, version);
        let served = tokio::spawn(async move {
            let mut kinds = Vec::new();
            for _ in 0..3 {
                let mut stream = tls.accept(listener.accept().await.unwrap().0).await.unwrap();
                read_head(&mut stream).await;
                stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
                stream.shutdown().await.unwrap();
                kinds.push(stream.get_ref().1.handshake_kind());
            }
            kinds
        });
        let upstream = upstream_that_trusts(port, vec![file(&authority.certificate.pem())]);
        for _ in 0..3 {
            let (head, _, _) = ask(&upstream, https(port)).finish(b"").await;
            assert_eq!(status(&head), 204);
        }
        assert_eq!(served.await.unwrap(), [Some(HandshakeKind::Full); 3]);
    }
}

#[tokio::test(flavor = "current_thread")]
async fn redirects_over_tls_are_answers() {
    let authority = authority();
    let (listener, port) = listener().await;
    let answer = b"HTTP/1.1 307 Moved\r\nlocation: http://127.0.0.1/\r\ncontent-length: 0\r\n\r\n";
    let tls = server(&authority, &["127.0.0.1"], 4000, &rustls::version::TLS13);
    let served = tokio::spawn(serve(listener, tls, answer));
    let upstream = upstream_that_trusts(port, vec![file(&authority.certificate.pem())]);
    let (head, _, outcome) = ask(&upstream, https(port)).finish(b"").await;
    let AnswerHead::Response { status: 307, headers } = head else { panic!("{head:?}") };
    assert!(headers.contains(&("location".into(), b"http://127.0.0.1/".to_vec())), "{headers:?}");
    assert_eq!(outcome, Outcome::Done);
    served.await.unwrap();
}

#[test]
fn a_file_without_a_certificate_is_refused_and_odd_ones_are_left_out() {
    let certificate = authority().certificate.pem();
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let no_base64 = "-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n";
    let key = KeyPair::generate().unwrap().serialize_pem();
    let unended = "-----BEGIN CERTIFICATE-----\nAAAA\n";
    for bad in ["", "garbage", broken, no_base64, &key, unended, "\0\0\0"] {
        let error = Tls::trusting(vec![file(&certificate), file(bad)]).unwrap_err();
        assert!(matches!(error, TrustError::None(2)), "{bad}: {error}");
    }
    for good in [
        certificate.clone(),
        certificate.replace('\n', "\r\n"),
        format!("# name\n\n{broken}{no_base64}{key}{certificate}{unended}"),
    ] {
        assert!(Tls::trusting(vec![file(&good)]).is_ok(), "{good}");
    }
    assert!(Tls::trusting(vec![]).is_ok(), "nobody is trusted");
}

#[test]
fn files_are_bounded_together_and_must_be_files() {
    let certificate = authority().certificate.pem();
    let padded = |length: usize| file(&format!("{certificate}{}", "\n".repeat(length - certificate.len())));
    let half = 8 * 1024 * 1024;
    assert!(Tls::trusting(vec![padded(half), padded(half)]).is_ok());
    let error = Tls::trusting(vec![padded(half), padded(half + 1)]).unwrap_err();
    assert!(matches!(error, TrustError::TooLarge), "{error}");
    let (read, _write) = rustix::pipe::pipe().unwrap();
    assert!(matches!(Tls::trusting(vec![read]).unwrap_err(), TrustError::Read(1, _)));
}
