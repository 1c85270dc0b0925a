//! What the kernel says about the processes of a running session: read from `/proc`, not asked of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use system_tests::broker::{END_PATIENCE, Launch, Session};
use system_tests::capsule::Capsule;
use system_tests::process::{Process, descriptors, until};
use system_tests::trace::Trace;
use system_tests::{a2a, http, needs_root, not_run};

const ROLES: [&str; 5] = ["door", "egress", "fileserver", "runner", "sandbox-host"];

fn roles(session: &Session) -> Vec<Process> {
    let mut roles = session.roles();
    roles.sort_by(|one, other| one.name.cmp(&other.name));
    let names: Vec<&str> = roles.iter().map(|role| role.name.as_str()).collect();
    assert_eq!(names, ROLES);
    roles
}

fn namespace(pid: impl std::fmt::Display, kind: &str) -> String {
    fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap().to_string_lossy().into_owned()
}

/// The lines of `/proc/<pid>/task/<tid>/status` of each thread, by name.
fn threads(pid: i32) -> Vec<BTreeMap<String, String>> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let read = |path: std::path::PathBuf| {
        let status = fs::read_to_string(path.join("status")).unwrap();
        let lines = status.lines().filter_map(|line| line.split_once(':'));
        lines
            .map(|(name, value)| (name.to_owned(), value.split_whitespace().collect::<Vec<_>>().join(" ")))
            .collect()
    };
    tasks.map(|task| read(task.unwrap().path())).collect()
}

#[test]
fn every_thread_of_every_role_is_filtered_and_without_privilege() {
    needs_root!();
    let capsule = Capsule::reporter();
    let mut session = Launch::of(&capsule).start();
    a2a::complete(session.url(), "one", "Report on inputs/");
    let mut users = BTreeSet::new();
    for role in roles(&session) {
        for thread in threads(role.pid) {
            for (field, value) in [
                ("NoNewPrivs", "1"),
                ("Seccomp", "2"),
                ("CapInh", "0000000000000000"),
                ("CapPrm", "0000000000000000"),
                ("CapEff", "0000000000000000"),
                ("CapBnd", "0000000000000000"),
                ("CapAmb", "0000000000000000"),
                ("Groups", ""),
            ] {
                assert_eq!(thread[field], value, "{field} of a thread of {}", role.name);
            }
            let uids: BTreeSet<&str> = thread["Uid"].split(' ').collect();
            assert!(uids.len() == 1 && !uids.contains("0"), "{}: {uids:?}", role.name);
            users.insert((role.name.clone(), thread["Uid"].clone()));
        }
    }
    // Where the work folder cannot be shown under other owners, three roles run as its owner, which the trace says.
    let distinct: BTreeSet<&String> = users.iter().map(|(_, user)| user).collect();
    let trace = Trace::read(&session.records());
    let shared = trace.of("session_start")[0]["effective_grants"]["shared_owner"] == true;
    assert_eq!(users.len(), ROLES.len(), "one user per role, whatever the thread: {users:?}");
    assert_eq!(distinct.len(), if shared { 3 } else { ROLES.len() }, "{users:?}");
    session.stop();
}

/// How many filters each of these threads has: one is added by whatever confines itself once more.
fn filters(threads: &[BTreeMap<String, String>]) -> BTreeSet<u32> {
    threads.iter().map(|thread| thread["Seccomp_filters"].parse().unwrap()).collect()
}

/// sandbox-host has sealed itself; every thread of the broker but the one that spawns has given up what reading needs not.
#[test]
fn the_second_layers_are_there_on_the_live_processes() {
    needs_root!();
    let capsule = Capsule::reporter();
    let mut session = Launch::of(&capsule).start();
    a2a::complete(session.url(), "one", "Report on inputs/");
    if !threads(session.pid())[0].contains_key("Seccomp_filters") {
        session.stop();
        not_run!("this kernel does not count filters (Linux 5.9)");
    }
    let of = |name: &str| filters(&threads(session.role(name).pid));
    let (door, host) = (of("door"), of("sandbox-host"));
    assert_eq!((door.len(), host.len()), (1, 1), "all threads of a process alike: {door:?} {host:?}");
    assert_eq!(host.first().unwrap(), &(door.first().unwrap() + 1), "sandbox-host is sealed");
    let broker = threads(session.pid());
    let (main, others): (Vec<_>, Vec<_>) =
        broker.into_iter().partition(|thread| thread["Pid"] == thread["Tgid"]);
    let (main, others) = (filters(&main), filters(&others));
    assert_eq!(
        others,
        BTreeSet::from([main.first().unwrap() + 1]),
        "threads that read, and the one that spawns"
    );
    session.stop();
}

#[test]
fn every_role_has_namespaces_of_its_own_and_only_egress_the_hosts_network() {
    needs_root!();
    let capsule = Capsule::reporter();
    let mut session = Launch::of(&capsule).start();
    let roles = roles(&session);
    for kind in ["pid", "mnt", "ipc", "uts"] {
        let mut found: BTreeSet<String> = roles.iter().map(|role| namespace(role.pid, kind)).collect();
        found.insert(namespace(session.pid(), kind));
        assert_eq!(found.len(), roles.len() + 1, "{kind}: {found:?}");
    }
    let host = namespace(session.pid(), "net");
    for role in &roles {
        let own = namespace(role.pid, "net");
        assert_eq!(own == host, role.name == "egress", "{}: {own}, the host's is {host}", role.name);
    }
    session.stop();
}

/// Two descriptors of the listening socket are the broker's and the door's; no other process has an internet socket.
#[test]
fn only_broker_and_door_hold_the_listening_socket_and_nobody_another_internet_socket() {
    needs_root!();
    let capsule = Capsule::reporter();
    let mut session = Launch::of(&capsule).start();
    let port: u16 = http::authority(session.url()).rsplit(':').next().unwrap().parse().unwrap();
    let listening = listening_inode(port);
    let internet = internet_inodes(session.pid());
    assert!(internet.contains(&listening));
    for process in
        roles(&session).iter().map(|role| (role.pid, role.name.as_str())).chain([(session.pid(), "broker")])
    {
        let held: BTreeSet<String> = sockets(process.0).intersection(&internet).cloned().collect();
        let expected: BTreeSet<String> = match process.1 {
            "broker" | "door" => BTreeSet::from([listening.clone()]),
            _ => BTreeSet::new(),
        };
        // The broker keeps listeners of the session's network beside it; those are not in this network's table.
        assert_eq!(held, expected, "{}", process.1);
    }
    session.stop();
}

/// Inodes of the sockets a process holds.
fn sockets(pid: i32) -> BTreeSet<String> {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let links = links.filter_map(|entry| fs::read_link(entry.path()).ok());
    let names =
        links.filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()));
    names.collect()
}

/// Inodes of every internet socket in a process's network.
fn internet_inodes(pid: i32) -> BTreeSet<String> {
    let tables = ["tcp", "tcp6", "udp", "udp6", "raw", "raw6"];
    let tables =
        tables.iter().filter_map(|table| fs::read_to_string(format!("/proc/{pid}/net/{table}")).ok());
    let inodes = tables.flat_map(|table| {
        let lines: Vec<String> = table
            .lines()
            .skip(1)
            .filter_map(|line| line.split_whitespace().nth(9).map(str::to_owned))
            .collect();
        lines
    });
    inodes.collect()
}

fn listening_inode(port: u16) -> String {
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let line = table.lines().find(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.get(1).is_some_and(|local| local.ends_with(&format!(":{port:04X}")))
            && fields.get(3) == Some(&"0A")
    });
    line.unwrap().split_whitespace().nth(9).unwrap().to_owned()
}

#[test]
fn descriptor_counts_are_the_same_after_ten_thousand_requests() {
    needs_root!();
    let capsule = Capsule::reporter();
    let mut session = Launch::of(&capsule).start();
    a2a::complete(session.url(), "one", "Report on inputs/");
    let targets = [
        "/resources/files/report.md",
        "/resources/files/missing",
        "/resources/files/../secret",
        "/resources/files",
        "/healthz",
    ];
    let counts = |session: &Session| -> BTreeMap<String, usize> {
        let roles = roles(session).into_iter().map(|role| (role.name, descriptors(role.pid)));
        roles.chain([("broker".to_owned(), descriptors(session.pid()))]).collect()
    };
    // The first of each kind may open what stays open.
    for target in targets {
        let _ = http::get(session.url(), target);
    }
    let before = counts(&session);
    for _ in 0..2_000 {
        for target in targets {
            let _ = http::get(session.url(), target);
        }
    }
    // The door may shut the last connection a moment before it closes its descriptor.
    until(&format!("the counts of {before:?} again"), END_PATIENCE, || {
        (counts(&session) == before).then_some(())
    });
    session.stop();
}
