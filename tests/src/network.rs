//! A network of the test's own, in which every IPv4 address is this machine and names are a table: what a session may reach by
//! name must be a public address, and no test talks to a real one.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

use crate::temporary::Temporary;

/// Where the name server of [`inside`] is.
pub const SERVER: &str = "11.0.0.53";

/// Runs `test` on a thread with a network and `/etc/resolv.conf` and `/etc/hosts` of its own; what it starts inherits them.
/// `names` is what the name server knows; the test is given what it was asked.
///
/// # Panics
/// If the test does, or something cannot be made.
pub fn inside(names: &[(&str, &[&str])], hosts: &str, test: impl FnOnce(&Asked) + Send) {
    let known = names
        .iter()
        .map(|(name, addresses)| {
            let parse = |text: &&str| text.parse::<std::net::Ipv4Addr>().expect("an address").octets();
            ((*name).to_owned(), addresses.iter().map(parse).collect())
        })
        .collect();
    let files = Temporary::new();
    std::thread::scope(|scope| {
        let run = || {
            let network = confine::net::session_namespace().expect("a network namespace");
            setns(network, CloneFlags::CLONE_NEWNET).expect("to be in it");
            unshare(CloneFlags::CLONE_NEWNS).expect("a mount namespace");
            let none: Option<&str> = None;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("mounts of its own");
            if ["resolv.conf", "hosts"].iter().any(|name| !Path::new("/etc").join(name).exists()) {
                etc_with_room(&files.path().join("etc"));
            }
            for (name, text) in [("resolv.conf", format!("nameserver {SERVER}\n").as_str()), ("hosts", hosts)]
            {
                let file = files.path().join(name);
                fs::write(&file, text).expect("a file");
                let target = Path::new("/etc").join(name).canonicalize().expect("the host's file");
                mount(Some(&file), &target, none, MsFlags::MS_BIND, none).expect("a file over the host's");
            }
            let asked = Asked::default();
            serve(known, &asked);
            test(&asked);
        };
        if let Err(panic) = scope.spawn(run).join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Puts a copy of `/etc` in its place, in this mount namespace, that has the two files: a fresh system has none.
fn etc_with_room(copy: &Path) {
    let copied = Command::new("cp").arg("--archive").arg("/etc").arg(copy).status().expect("cp");
    assert!(copied.success(), "a copy of /etc");
    for name in ["resolv.conf", "hosts"] {
        // A link that leads nowhere is in the way of a file.
        let file = copy.join(name);
        if !file.exists() {
            let _ = fs::remove_file(&file);
            fs::write(&file, "").expect("a file");
        }
    }
    let none: Option<&str> = None;
    mount(Some(copy), "/etc", none, MsFlags::MS_BIND, none).expect("a copy over the host's");
}

/// The names that a name server was asked for.
#[derive(Debug, Default, Clone)]
pub struct Asked(Arc<Mutex<Vec<String>>>);

impl Asked {
    /// All of them so far.
    ///
    /// # Panics
    /// If the server has.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.0.lock().expect("the list").clone()
    }
}

type Names = BTreeMap<String, Vec<[u8; 4]>>;

/// Answers for as long as the test runs; a name that begins with `big` only over TCP.
fn serve(names: Names, asked: &Asked) {
    let datagrams = UdpSocket::bind((SERVER, 53)).expect("the port of name servers");
    let connections = TcpListener::bind((SERVER, 53)).expect("the port of name servers");
    let (known, log) = (names.clone(), asked.clone());
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok((length, from)) = datagrams.recv_from(&mut buffer) {
            let answer = answer(&known, &log, &buffer[..length], false);
            let _ = datagrams.send_to(&answer, from);
        }
    });
    let log = asked.clone();
    std::thread::spawn(move || {
        for connection in connections.incoming() {
            let mut connection = connection.expect("a connection");
            let mut length = [0; 2];
            connection.read_exact(&mut length).expect("a length");
            let mut question = vec![0; u16::from_be_bytes(length).into()];
            connection.read_exact(&mut question).expect("a question");
            let answer = answer(&names, &log, &question, true);
            let length = u16::try_from(answer.len()).expect("a short answer").to_be_bytes();
            connection.write_all(&[&length, answer.as_slice()].concat()).expect("the answer is taken");
        }
    });
}

/// The answer to one question, as RFC 1035 has it.
fn answer(names: &Names, asked: &Asked, question: &[u8], tcp: bool) -> Vec<u8> {
    let mut name = String::new();
    let mut at = 12;
    while question[at] != 0 {
        let label = &question[at + 1..=at + usize::from(question[at])];
        name.push_str(std::str::from_utf8(label).expect("a plain label"));
        name.push('.');
        at += 1 + label.len();
    }
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let kind = u16::from_be_bytes([question[at + 1], question[at + 2]]);
    asked.0.lock().expect("the list").push(name.clone());
    let known = names.get(&name);
    let truncated = name.starts_with("big") && !tcp;
    let addresses = known.filter(|_| kind == 1 && !truncated).map_or(&[][..], Vec::as_slice);
    let flags = [0x81 | if truncated { 2 } else { 0 }, 0x80 | if known.is_some() { 0 } else { 3 }];
    let count = u8::try_from(addresses.len()).expect("few addresses");
    let mut answer = [&question[..2], &flags, &[0, 1, 0, count, 0, 0, 0, 0], &question[12..at + 5]].concat();
    for address in addresses {
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4]);
        answer.extend(address);
    }
    answer
}

/// A server that says one line to whoever connects, and its address. Where it is, an address alone decides.
///
/// # Panics
/// If there is no such address.
#[must_use]
pub fn greeter(address: &str, line: &'static str) -> SocketAddr {
    let listener = TcpListener::bind(address).expect("an address to listen at");
    let address = listener.local_addr().expect("its address");
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.expect("a connection");
            let _ = connection.write_all(line.as_bytes());
        }
    });
    address
}
