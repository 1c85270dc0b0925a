//! What programs reach: real ones, in a real session, against real listeners; and what they do not.

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream, UdpSocket};

use serde_json::json;
use system_tests::broker::{END_PATIENCE, LAUNCH_PATIENCE, Launch, Session};
use system_tests::capsule::Capsule;
use system_tests::network::{greeter, inside};
use system_tests::process::{descriptors, until};
use system_tests::trace::Trace;
use system_tests::{a2a, needs_root, not_run};

/// A driver must have a gateway; nothing of these tests uses it.
const NO_GATEWAY: &str = "http://127.0.0.1:9";

/// A capsule that may run these programs and reach what `allow` lists.
fn running(programs: &str, allow: &str) -> Capsule {
    let capabilities = format!("shell: {{allow: [{programs}]}}, network: {{allow: [{allow}]}}");
    Capsule::driven_by("spin-driver", NO_GATEWAY, &[], &capabilities)
}

/// Has the session's bash run a script and returns what the driver was told of it, without the script.
fn bash(session: &Session, script: &str) -> String {
    let task = format!("tool bash {}", json!({"command": script}));
    let done = a2a::complete(session.url(), script, &task);
    let (_, told) =
        a2a::answer(&done).split_once("Exit code: ").unwrap_or_else(|| panic!("{script}: {done}"));
    told.to_owned()
}

/// Connects, reads one line and says it, or says what became of it; `$1` to `$3` in `/dev/tcp/`.
fn greeting(session: &Session, host: &str, port: u16) -> String {
    let told = bash(
        session,
        &format!(
            "if exec 3<>/dev/tcp/{host}/{port}; then if read -r line <&3; then echo \"said:$line\"; else echo ended; fi; fi"
        ),
    );
    let words = [
        "said:",
        "ended",
        "Connection refused",
        "Network is unreachable",
        "not known",
        "failure in name resolution",
        "No address associated",
    ];
    let found = words.into_iter().find(|word| told.contains(word));
    match found {
        Some("said:") => {
            let rest = told.split_once("said:").unwrap().1;
            rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == ' ').collect()
        }
        Some("not known" | "failure in name resolution" | "No address associated") => "no name".to_owned(),
        Some(word) => word.to_owned(),
        None => panic!("{host}:{port}: {told}"),
    }
}

fn denied(trace: &Trace) -> Vec<(String, String, u64)> {
    let text = |event: &serde_json::Value, key: &str| event[key].as_str().unwrap().to_owned();
    trace
        .of("network_denied")
        .into_iter()
        .map(|event| {
            assert_eq!(
                (&event["process"], &event["rule"]),
                (&json!("egress"), &json!("capabilities.network.allow")),
                "{event}"
            );
            assert!(event["reason"].is_string() && event["parent_id"].is_string(), "{event}");
            (text(event, "surface"), text(event, "destination"), event["count"].as_u64().unwrap())
        })
        .collect()
}

#[test]
fn a_program_reaches_a_listed_address_at_its_port_and_nothing_else_of_the_host() {
    needs_root!();
    let listed = greeter("127.0.0.1:0", "hello\n");
    let other = greeter("127.0.0.1:0", "never\n");
    let same_port = greeter(&format!("127.0.0.2:{}", listed.port()), "never\n");
    let capsule = running("bash", &format!("'{listed}'"));
    let mut session = Launch::of(&capsule).start();
    let door: u16 = session.url().rsplit(':').next().unwrap().parse().unwrap();
    for (host, port, told) in [
        ("127.0.0.1", listed.port(), "hello"),
        ("127.0.0.1", listed.port(), "hello"),
        // Nobody takes connections at these ports in the session's own network.
        ("127.0.0.1", other.port(), "Connection refused"),
        ("127.0.0.1", door, "Connection refused"),
        ("127.0.0.1", 22, "Connection refused"),
        ("11.0.0.1", 80, "Connection refused"),
        ("169.254.169.254", 80, "Connection refused"),
        // At the port of an entry they are taken, judged and closed.
        ("127.0.0.2", same_port.port(), "ended"),
        ("169.254.169.254", listed.port(), "ended"),
        ("10.0.0.1", listed.port(), "ended"),
        ("localhost", listed.port(), "hello"),
        ("2606:4700::1111", 80, "Network is unreachable"),
        ("::1", listed.port(), "Connection refused"),
    ] {
        assert_eq!(greeting(&session, host, port), told, "{host}:{port}");
    }
    let records = session.records();
    session.stop();
    let expected: Vec<_> = ["127.0.0.2", "169.254.169.254", "10.0.0.1"]
        .map(|host| ("subprocess".to_owned(), format!("{host}:{}", listed.port()), 1))
        .into();
    assert_eq!(denied(&Trace::read(&records)), expected);
}

#[test]
fn a_name_is_reached_at_its_own_port_and_its_neighbour_at_the_same_address_is_not() {
    needs_root!();
    let names: &[(&str, &[&str])] = &[
        ("one.example", &["11.0.0.1"]),
        ("two.example", &["11.0.0.1"]),
        ("big.example", &["11.0.0.2"]),
        ("inside.example", &["10.0.0.1", "127.0.0.1", "169.254.169.254"]),
        ("unlisted.example", &["11.0.0.1"]),
    ];
    inside(names, "127.0.0.1 localhost\n11.0.0.3 file.example\n", |asked| {
        for address in ["11.0.0.1:8001", "11.0.0.2:8001", "11.0.0.3:8001", "11.0.0.9:8001"] {
            let _ = greeter(address, "first\n");
        }
        let _ = greeter("11.0.0.1:8002", "second\n");
        let trap = TcpListener::bind("10.0.0.1:8001").unwrap();
        trap.set_nonblocking(true).unwrap();
        let capsule = running(
            "bash",
            "'one.example:8001', 'two.example:8002', 'big.example:8001', 'file.example:8001', 'inside.example:8001', \
             'gone.example:8001'",
        );
        let mut session = Launch::of(&capsule).start();
        for (host, port, told) in [
            // Where the list led at launch, each at its own port.
            ("11.0.0.1", 8001, "first"),
            ("11.0.0.1", 8002, "second"),
            ("11.0.0.9", 8001, "ended"),
            ("one.example", 8001, "first"),
            ("ONE.example", 8001, "first"),
            // Given out for the first name alone now: the second name's port is closed until that is asked for.
            ("one.example", 8002, "ended"),
            ("two.example", 8002, "second"),
            ("two.example", 8001, "first"),
            ("big.example", 8001, "first"),
            ("file.example", 8001, "first"),
            ("inside.example", 8001, "no name"),
            ("10.0.0.1", 8001, "ended"),
            ("gone.example", 8001, "no name"),
            ("unlisted.example", 8001, "no name"),
            ("c2VjcmV0.one.example", 8001, "no name"),
        ] {
            assert_eq!(greeting(&session, host, port), told, "{host}:{port}");
        }
        let records = session.records();
        session.stop();
        assert_eq!(trap.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "somebody connected");
        let asked = asked.names();
        assert!(asked.contains(&"one.example".to_owned()), "{asked:?}");
        let leaked = asked.iter().find(|name| name.contains("c2vjcmv0") || *name == "unlisted.example");
        assert_eq!(leaked, None, "a name that no entry is was asked for");
        let denied = denied(&Trace::read(&records));
        for (surface, destination) in [
            ("subprocess", "11.0.0.9:8001"),
            ("subprocess", "11.0.0.1:8002"),
            ("subprocess", "10.0.0.1:8001"),
            ("dns", "inside.example"),
            ("dns", "unlisted.example"),
            ("dns", "c2vjcmv0.one.example"),
        ] {
            let told =
                denied.iter().filter(|(own, to, _)| (own.as_str(), to.as_str()) == (surface, destination));
            assert!(told.count() > 0, "{surface} {destination}: {denied:?}");
        }
        assert!(!denied.iter().any(|(_, to, _)| to == "gone.example"), "{denied:?}");
    });
}

/// The same resolver and the same rule about addresses as for programs.
#[test]
fn a_component_reaches_a_name_of_the_network_and_no_private_address_behind_one() {
    needs_root!();
    let names: &[(&str, &[&str])] = &[("one.example", &["11.0.0.1"]), ("inside.example", &["10.0.0.1"])];
    inside(names, "127.0.0.1 localhost\n", |_| {
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
        let listener = TcpListener::bind("11.0.0.1:8001").unwrap();
        std::thread::spawn(move || {
            use std::io::{Read, Write};
            for connection in listener.incoming() {
                let mut connection = connection.unwrap();
                let _ = connection.read(&mut [0; 4096]);
                let _ = connection.write_all(answer.as_bytes());
            }
        });
        let allow = "network: {allow: ['one.example:8001', 'inside.example:8001', 'gone.example:8001']}";
        let capsule = Capsule::driven_by("fetch-driver", NO_GATEWAY, &[], allow);
        let mut session = Launch::of(&capsule).start();
        for (host, told) in [
            ("one.example", "status 200\nhello"),
            ("inside.example", "HttpRequestDenied"),
            ("gone.example", "DnsError"),
        ] {
            let task = format!("GET http://{host}:8001/");
            let answer = a2a::answer(&a2a::complete(session.url(), &task, &task)).to_owned();
            assert!(answer.contains(told), "{host}: {answer}");
        }
        session.stop();
    });
}

#[test]
fn datagrams_reach_the_resolver_at_any_address_and_nobody_else() {
    needs_root!();
    let outside = UdpSocket::bind("127.0.0.1:0").unwrap();
    outside.set_nonblocking(true).unwrap();
    let port = outside.local_addr().unwrap().port();
    let capsule = running("bash, od", "");
    let mut session = Launch::of(&capsule).start();
    let _ = bash(
        &session,
        &format!("echo secret > /dev/udp/127.0.0.1/{port}; echo secret > /dev/udp/11.0.0.1/{port}"),
    );
    assert_eq!(outside.recv(&mut [0; 16]).unwrap_err().kind(), ErrorKind::WouldBlock, "a datagram left");
    // A question about `evil.example`, asked of name servers nobody ever heard of; the answer's first four bytes.
    let question = r"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x04evil\x07example\x00\x00\x01\x00\x01";
    for server in ["9.9.9.9", "127.0.0.53", "10.255.255.53"] {
        let script = format!("exec 3<>/dev/udp/{server}/53; printf '{question}' >&3; od -An -tx1 -N4 <&3");
        let told = bash(&session, &script);
        assert!(told.contains("12 34 81 85"), "{server}: {told}");
    }
    let records = session.records();
    session.stop();
    let trace = Trace::read(&records);
    let denied = denied(&trace);
    assert!(denied.iter().all(|(surface, name, _)| surface == "dns" && name == "evil.example"), "{denied:?}");
    assert_eq!(denied.iter().map(|(.., count)| count).sum::<u64>(), 3, "{}", trace.text());
}

#[test]
fn a_loop_of_refused_connections_is_counted_and_does_not_flood_the_trace() {
    needs_root!();
    let listed = greeter("127.0.0.1:0", "hello\n");
    let capsule = running("bash", &format!("'{listed}'"));
    let mut session = Launch::of(&capsule).start();
    let port = listed.port();
    assert_eq!(greeting(&session, "127.0.0.1", port), "hello");
    let egress = session.role("egress").pid;
    let before = descriptors(egress);
    let script = format!(
        "for n in {{1..300}}; do exec 3<>/dev/tcp/10.0.0.1/{port}; read -r line <&3; exec 3>&-; done; echo done"
    );
    assert!(bash(&session, &script).contains("done"));
    let counted = until("the counts", END_PATIENCE, || {
        let denied = denied(&Trace::read(&session.records()));
        (denied.iter().map(|(.., count)| count).sum::<u64>() == 300).then_some(denied)
    });
    assert!(counted.len() < 60, "{counted:?}");
    until("no descriptor is left of them", END_PATIENCE, || (descriptors(egress) == before).then_some(()));
    session.stop();
}

/// A script of perl for a server on loopback that says `here` once; it says why it cannot listen, and `served` at the end. By
/// bare calls: its modules are not granted.
fn server(port: u16) -> String {
    format!(
        "alarm 20; socket(S, 2, 1, 0) && setsockopt(S, 1, 2, pack(\"i\", 1)) or die; \
         bind(S, pack(\"SnC4x8\", 2, {port}, 127, 0, 0, 1)) && listen(S, 1) or print(\"no: $!\"), exit; \
         open(F, \">\", \"out/listening\"); close F; \
         accept(C, S); syswrite(C, \"here\\n\"); close C; print \"served\""
    )
}

#[test]
fn loopback_is_the_sessions_own_and_one_session_does_not_see_anothers() {
    needs_root!();
    if !std::path::Path::new("/usr/bin/perl").exists() {
        not_run!("no perl here to listen with");
    }
    let one = running("bash, perl, readlink", "");
    let two = running("bash, readlink", "");
    let mut one_session = Launch::of(&one).start();
    let mut two_session = Launch::of(&two).start();
    let namespace = |session: &Session| bash(session, "echo net:$(readlink /proc/self/ns/net)");
    let own = namespace(&one_session);
    assert!(own.contains("net:["), "{own}");
    let inode = |told: &str| told.split_once("net:[").unwrap().1.split_once(']').unwrap().0.to_owned();
    assert_eq!(inode(&namespace(&one_session)), inode(&own), "two calls are in one network");
    assert_ne!(inode(&namespace(&two_session)), inode(&own));

    let port = 40_123;
    std::thread::scope(|scope| {
        // Within one call, for what a call starts ends with it.
        let serving = scope.spawn(|| {
            bash(&one_session, &format!("perl -e '{}' & for n in {{1..2000000}}; do [ -e out/asked ] && break; done; exec 3<>/dev/tcp/127.0.0.1/{port}; read -r line <&3; echo said:$line; wait", server(port)))
        });
        until("a server in the session", END_PATIENCE, || {
            one.work().join("out/listening").exists().then_some(())
        });
        assert_eq!(greeting(&two_session, "127.0.0.1", port), "Connection refused");
        let from_host = TcpStream::connect(("127.0.0.1", port)).unwrap_err();
        assert_eq!(from_host.kind(), ErrorKind::ConnectionRefused);
        one.write("out/asked", b"");
        let told = serving.join().unwrap();
        assert!(told.contains("said:here") && told.contains("served"), "{told}");
    });
    two_session.stop();
    one_session.stop();
}

#[test]
fn a_program_cannot_take_the_place_of_a_way_out() {
    needs_root!();
    if !std::path::Path::new("/usr/bin/perl").exists() {
        not_run!("no perl here to listen with");
    }
    let listed = greeter("127.0.0.1:0", "hello\n");
    let capsule = running("bash, perl", &format!("'{listed}'"));
    let mut session = Launch::of(&capsule).start();
    let taken = |session: &Session| bash(session, &format!("perl -e '{}'", server(listed.port())));
    assert!(taken(&session).contains("Address already in use"), "{}", taken(&session));
    session.replace("egress");
    assert!(taken(&session).contains("Address already in use"), "{}", taken(&session));
    session.stop();
}

#[test]
fn after_the_death_of_egress_programs_go_on_with_another() {
    needs_root!();
    let listed = greeter("127.0.0.1:0", "hello\n");
    let capsule = running("bash", &format!("'{listed}'"));
    let mut session = Launch::of(&capsule).start();
    assert_eq!(greeting(&session, "127.0.0.1", listed.port()), "hello");
    let other = session.replace("egress");
    // Whoever comes while there is none waits in the queue of the listener, which the broker keeps.
    assert_eq!(greeting(&session, "127.0.0.1", listed.port()), "hello");
    assert_eq!(greeting(&session, "evil.example", listed.port()), "no name");
    assert_eq!(session.role("egress"), other, "one other was enough");
    session.stop();
}

#[test]
fn more_ports_than_there_are_ways_out_are_refused_before_anything_is_started() {
    needs_root!();
    let entries =
        |most: u16| (1..=most).map(|port| format!("'a.example:{port}'")).collect::<Vec<_>>().join(", ");
    let capsule = running("bash", &entries(17));
    for check in [&["--check"][..], &[]] {
        let ended = Launch::of(&capsule).arguments(check).run(LAUNCH_PATIENCE);
        assert_eq!(ended.code(), Some(1), "{}", ended.stderr);
        assert!(ended.stderr.contains("error[E-CAP-001]: capabilities.network.allow:"), "{}", ended.stderr);
    }
    // Without programs the list is that of components, which need no listener.
    let capsule =
        Capsule::driven_by("spin-driver", NO_GATEWAY, &[], &format!("network: {{allow: [{}]}}", entries(17)));
    Launch::of(&capsule).start().stop();
}
