//! A peer named by an https URL is spoken to by TLS or not at all: both of the tools, against a proxy in front of the other
//! capsule that keeps every byte it gets.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use system_tests::broker::{Ended, Launch, Session};
use system_tests::capsule::Capsule;
use system_tests::handle::{Handle, redeem, unique};
use system_tests::remains::assert_nothing_made;
use system_tests::tls::{Authority, Proxy};
use system_tests::trace::Trace;
use system_tests::{a2a, http, needs_root, programs};

/// What both examples may reach.
const ALLOWED: &str = "allow: [localhost, \"127.0.0.1\"]";

fn writer() -> Capsule {
    let writer = Capsule::handoff("writer");
    writer.write("out/report.md", b"hello\n");
    writer
}

/// Starts a capsule that trusts an authority besides those of the host.
fn trusting(capsule: &Capsule, authority: &Authority) -> Session {
    let file = capsule.folder().join("ca.pem");
    fs::write(&file, authority.pem()).unwrap();
    Launch::of(capsule).arguments(&["--ca-file"]).path(&file).start()
}

fn answer(session: &Session, task: &str) -> String {
    a2a::answer(&a2a::complete(session.url(), &unique("task"), task)).to_owned()
}

#[test]
fn a_handle_is_redeemed_by_tls_where_the_operator_trusts_the_authority() {
    needs_root!();
    let authority = Authority::new("an authority of the test");
    let writer = writer();
    let mut writing = Launch::of(&writer).start();
    let proxy = Proxy::start(&authority, &["localhost", "127.0.0.1"], writing.url());
    let port = proxy.port();
    for (allow, host) in [
        (ALLOWED.to_owned(), "localhost"),
        (format!("allow: [\"https://localhost:{port}\"]"), "localhost"),
        (format!("allow: [\"https://127.0.0.1:{port}\"]"), "127.0.0.1"),
    ] {
        let reader = Capsule::handoff("reader").with(ALLOWED, &allow);
        let mut reading = trusting(&reader, &authority);
        let handle = Handle::mint(&writing, "report.md", http::authority(reading.url()));
        let peer = format!("https://{host}:{port}");
        let said = answer(&reading, &format!("Fetch {} from {peer}", handle.token));
        let sum = programs::sha256sum_of(b"hello\n");
        assert!(said.ends_with(&format!("-report.md, 6 bytes, SHA-256 {sum}.")), "{allow}: {said}");

        let seen = proxy.next();
        seen.assert_nothing_in_clear(&[&handle.token, &handle.audience]);
        let line = seen.head.as_deref().unwrap().lines().next().unwrap().to_owned();
        assert_eq!(line, format!("GET /resources/peer/{} HTTP/1.1", handle.token));
        assert_eq!(seen.header("x-murmur-audience"), [handle.audience.as_str()]);
        assert_eq!(seen.header("host"), [format!("{host}:{port}")]);
        proxy.assert_idle();

        let records = reading.records();
        reading.stop();
        let trace = Trace::read(&records);
        let [fetch] = trace.of("peer_file_fetch")[..] else { panic!("{}", trace.text()) };
        assert_eq!((&fetch["outcome"], &fetch["peer"]), (&"ok".into(), &peer.as_str().into()), "{fetch}");
        let stored = fs::read(reader.work().join(fetch["stored_path"].as_str().unwrap())).unwrap();
        assert_eq!(stored, b"hello\n");
    }
    writing.stop();
}

#[test]
fn a_card_is_read_by_tls_where_the_operator_trusts_the_authority() {
    needs_root!();
    let authority = Authority::new("an authority of the test");
    let reader = Capsule::handoff("reader");
    let mut reading = Launch::of(&reader).start();
    let proxy = Proxy::start(&authority, &["localhost"], reading.url());
    let peer = format!("https://localhost:{}", proxy.port());
    for allow in [ALLOWED.to_owned(), format!("allow: [\"{peer}\"]")] {
        let writer = writer().with(ALLOWED, &allow);
        let mut writing = trusting(&writer, &authority);
        let handle = Handle::mint(&writing, "report.md", &peer);
        // The card says where its capsule is, not where the proxy is.
        assert_eq!(handle.audience, format!("reader@{}", http::authority(reading.url())));
        let seen = proxy.next();
        seen.assert_nothing_in_clear(&["agent-card"]);
        let line = seen.head.as_deref().unwrap().lines().next().unwrap().to_owned();
        assert_eq!(line, "GET /.well-known/agent-card.json HTTP/1.1");
        proxy.assert_idle();
        assert_eq!(redeem(writing.url(), &handle.token, &handle.audience).body, b"hello\n");
        writing.stop();
    }
    reading.stop();
}

/// Where a TLS connection cannot be made, nothing else is tried: the other end gets a handshake and nothing in clear.
#[test]
fn without_a_certificate_that_holds_nothing_is_sent() {
    needs_root!();
    let authority = Authority::new("an authority of the test");
    let stranger = Authority::new("an authority of somebody else");
    let (writer, reader) = (writer(), Capsule::handoff("reader"));
    let serving = [Launch::of(&writer).start(), Launch::of(&reader).start()];
    let [behind, card] = serving.each_ref().map(|session| session.url().to_owned());
    for (what, trusted, names) in [
        ("an authority that nobody trusts", None, &["localhost", "127.0.0.1"][..]),
        ("a certificate of another authority", Some(&stranger), &["localhost", "127.0.0.1"]),
        ("a certificate for another name", Some(&authority), &["elsewhere.example", "127.0.0.2"]),
    ] {
        let start = |capsule: &Capsule| match trusted {
            Some(trusted) => trusting(capsule, trusted),
            None => Launch::of(capsule).start(),
        };
        let (sharing, fetching) = (self::writer(), Capsule::handoff("reader"));
        let mut sessions = [start(&sharing), start(&fetching)];
        let handle = Handle::mint(&serving[0], "report.md", http::authority(sessions[1].url()));
        for (session, event, behind, task) in [
            (&sessions[0], "peer_handle_mint", &card, "Hand report.md to".to_owned()),
            (&sessions[1], "peer_file_fetch", &behind, format!("Fetch {} from", handle.token)),
        ] {
            let proxy = Proxy::start(&authority, names, behind);
            for host in ["localhost", "127.0.0.1"] {
                let peer = format!("https://{host}:{}", proxy.port());
                let said = answer(session, &format!("{task} {peer}"));
                assert!(said.contains("peer_unreachable"), "{what}: {peer}: {said}");
                let seen = proxy.next();
                seen.assert_nothing_in_clear(&[&handle.token, &handle.audience, "agent-card"]);
                assert_eq!(seen.head, None, "{what}: {peer}");
                let trace = Trace::read(&session.records());
                let line = *trace.of(event).last().unwrap();
                assert_eq!(line["outcome"], "peer_unreachable", "{what}: {line}");
            }
            proxy.assert_idle();
        }
        assert!(!fetching.paths().iter().any(|path| path.starts_with("peer-in/")), "{what}");
        sessions.iter_mut().for_each(Session::stop);
    }
    let records = serving[0].records();
    for mut session in serving {
        session.stop();
    }
    assert!(Trace::read(&records).of("peer_handle_redeem").is_empty());
}

#[test]
fn an_https_peer_on_a_plain_port_is_unreachable() {
    needs_root!();
    let (writer, reader) = (writer(), Capsule::handoff("reader"));
    let (mut writing, mut reading) = (Launch::of(&writer).start(), Launch::of(&reader).start());
    let (from, to) = (http::authority(writing.url()).to_owned(), http::authority(reading.url()).to_owned());
    let handle = Handle::mint(&writing, "report.md", &to);
    for (session, task) in [
        (&reading, format!("Fetch {} from https://{from}", handle.token)),
        (&writing, format!("Hand report.md to https://{to}")),
    ] {
        let said = answer(session, &task);
        assert!(said.contains("peer_unreachable"), "{task}: {said}");
    }
    // In clear the same works, so that it was the scheme.
    assert!(answer(&reading, &format!("Fetch {} from http://{from}", handle.token)).contains("6 bytes"));
    let records = writing.records();
    writing.stop();
    reading.stop();
    assert_eq!(Trace::read(&records).counts(["peer_handle_redeem"]), [1]);
}

/// An entry that pins a scheme allows no other, whoever listens there.
#[test]
fn a_scheme_that_is_not_allowed_is_refused_before_anything_is_connected() {
    needs_root!();
    let authority = Authority::new("an authority of the test");
    let writer = writer();
    let mut writing = Launch::of(&writer).start();
    let proxy = Proxy::start(&authority, &["localhost"], writing.url());
    let port = proxy.port();
    for (allowed, asked) in [("http", "https://"), ("https", "http://"), ("https", "")] {
        let allow = format!("allow: [\"{allowed}://localhost:{port}\"]");
        let reader = Capsule::handoff("reader").with(ALLOWED, &allow);
        let mut reading = trusting(&reader, &authority);
        let handle = Handle::mint(&writing, "report.md", http::authority(reading.url()));
        let said = answer(&reading, &format!("Fetch {} from {asked}localhost:{port}", handle.token));
        assert!(said.contains("peer_not_allowed"), "{allowed}, {asked}: {said}");
        proxy.assert_idle();
        reading.stop();

        let sharer = self::writer().with(ALLOWED, &allow);
        let mut sharing = trusting(&sharer, &authority);
        let said = answer(&sharing, &format!("Hand report.md to {asked}localhost:{port}"));
        assert!(said.contains("peer_unreachable"), "{allowed}, {asked}: {said}");
        proxy.assert_idle();
        sharing.stop();
    }
    writing.stop();
}

/// Launches a reader that is told to trust what `make` puts at a place, and gives back how it ended.
fn told_to_trust(make: impl FnOnce(&Path)) -> (Capsule, Ended) {
    let capsule = Capsule::handoff("reader");
    let file = capsule.folder().join("ca.pem");
    make(&file);
    let ended = Launch::of(&capsule).arguments(&["--ca-file"]).path(&file).run(Duration::from_secs(10));
    (capsule, ended)
}

#[test]
fn a_ca_file_that_cannot_be_read_refuses_the_launch() {
    needs_root!();
    let fifo = |path: &Path| {
        let mode = Mode::from_raw_mode(0o644);
        mknodat(CWD, path, FileType::Fifo, mode, 0).unwrap();
    };
    let directory = |path: &Path| fs::create_dir(path).unwrap();
    let large = |path: &Path| fs::write(path, vec![b'\n'; 5 << 20]).unwrap();
    for (what, make, code) in [
        ("none", &(|_: &Path| {}) as &dyn Fn(&Path), "E-IO-001"),
        ("a directory", &directory, "E-IO-003"),
        ("a fifo", &fifo, "E-IO-003"),
        ("5 MiB", &large, "E-IO-003"),
    ] {
        let (capsule, ended) = told_to_trust(make);
        assert_eq!((ended.code(), ended.stdout.as_str()), (Some(1), ""), "{what}: {}", ended.stderr);
        assert!(ended.stderr.contains(&format!("error[{code}]: ")), "{what}: {}", ended.stderr);
        assert!(ended.stderr.contains("ca.pem"), "{what}: {}", ended.stderr);
        assert_nothing_made(capsule.folder());
    }
}

/// The broker reads no certificates, egress does: whoever refuses says which file it was and what to do.
#[test]
fn a_ca_file_without_a_certificate_ends_the_launch_with_a_code_and_a_remedy() {
    needs_root!();
    let key = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIA==\n-----END PRIVATE KEY-----\n";
    let torn = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let mut failures = Vec::new();
    for (what, content) in [
        ("empty", ""),
        ("garbage", "\0\u{1}\u{2} no certificate\n"),
        ("a key", key),
        ("a certificate that is none", torn),
    ] {
        let (_capsule, ended) = told_to_trust(|path| fs::write(path, content).unwrap());
        let told = ["error[E-", "ca.pem", "  hint: "].iter().all(|piece| ended.stderr.contains(piece));
        let never_served = ended.stdout.is_empty();
        if !told || !never_served || !matches!(ended.code(), Some(1 | 3)) {
            let Ended { stdout, stderr, .. } = &ended;
            failures.push(format!("{what}: status {:?}\n{stdout}{stderr}", ended.code()));
        }
    }
    assert!(failures.is_empty(), "a code, the file, a remedy, and no ready line:\n{}", failures.join("\n"));
}
