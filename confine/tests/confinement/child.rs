//! What a started copy of this binary does: become the role, then make the calls it is told to make.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;

use confine::composed::Composed;
use confine::{Resources, Rights, Role, View};

use crate::driver::{READ_ONLY, receive, send};
use crate::raw;

/// Becomes the role, answers `ready`, obeys one order, answers with its result and exits with status 0.
pub(crate) fn main(role: Role) -> ! {
    confine::handler::arm();
    confine::handler::arm_for_faults();
    let control = raw::inherited(3);
    send(control.as_fd(), "hello", &[]);
    let Some((begin, descriptors)) = receive(control.as_fd()) else { std::process::exit(2) };
    let mut words = begin.split_whitespace();
    let uid = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    let mut descriptors = descriptors.into_iter();
    let network = if words.next() == Some("1") { descriptors.next() } else { None };
    let view = match words.next() {
        Some("composed") => {
            View::Composed(Composed { unix_sockets: false, home: PathBuf::from("/home"), shown: Vec::new() })
        }
        _ => View::Host { fixed: false },
    };
    let (read_only, trees): (Vec<&str>, Vec<&str>) = words.partition(|word| word.starts_with(READ_ONLY));
    let read_only = read_only.iter().map(|word| PathBuf::from(&word[READ_ONLY.len()..])).collect();
    let trees = trees.into_iter().map(PathBuf::from).zip(descriptors).collect();
    match confine::enter(
        role,
        Resources { uid, gid: uid, rights: Rights::Root, network, trees, read_only, view },
    ) {
        Ok(_) => send(control.as_fd(), "ready", &[]),
        Err(error) => {
            send(control.as_fd(), &format!("failed: {error}"), &[]);
            std::process::exit(1);
        }
    }
    if let Some((order, descriptors)) = receive(control.as_fd()) {
        let answer = obey(&order, descriptors);
        send(control.as_fd(), &answer, &[]);
    }
    std::process::exit(0)
}

fn said<T: std::fmt::Debug>(result: std::io::Result<T>) -> String {
    match result {
        Ok(value) => format!("ok {value:?}"),
        Err(error) => format!("errno {}", error.raw_os_error().unwrap_or(0)),
    }
}

pub(crate) fn obey(order: &str, descriptors: Vec<OwnedFd>) -> String {
    let (verb, rest) = order.split_once(' ').unwrap_or((order, ""));
    match verb {
        // `call <number> <arguments>`: `@path` is the address of a string, `#0` the number of the first descriptor.
        "call" => {
            let mut memory = Vec::new();
            let mut numbers = [0_i64; 7];
            for (place, word) in numbers.iter_mut().zip(rest.split_whitespace()) {
                *place = if let Some(text) = word.strip_prefix('@') {
                    let bytes = [text.as_bytes(), &[0; 64]].concat().into_boxed_slice();
                    let address = raw::address(&*bytes);
                    memory.push(bytes);
                    address
                } else if let Some(index) = word.strip_prefix('#') {
                    descriptors[index.parse::<usize>().unwrap()].as_raw_fd().into()
                } else {
                    word.parse().unwrap()
                };
            }
            let [number, a, b, c, d, e, f] = numbers;
            said(raw::call(number, [a, b, c, d, e, f]))
        }
        "panic" => panic!("on purpose"),
        "abort" => std::process::abort(),
        "fault" => raw::fault(),
        "overflow" => format!("{}", overflow(1)),
        "allocate" => {
            let mut bytes: Vec<u8> = Vec::new();
            bytes.reserve_exact(rest.parse::<usize>().unwrap());
            format!("ok {}", bytes.capacity())
        }
        "thread" => {
            let thread = std::thread::Builder::new().name("another".into()).spawn(|| 7);
            said(thread.map(|thread| thread.join().unwrap_or(0)))
        }
        "read" => said(std::fs::read_to_string(rest)),
        "write" => said(std::fs::write(rest, "written")),
        "list" => said(std::fs::read_dir(rest).map(|entries| {
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        })),
        // As Wasmtime maps a compiled component: for reading and writing, then for executing.
        "map" => said(std::fs::File::open(rest).and_then(|file| {
            let fd = file.as_raw_fd().into();
            let start = raw::call(libc::SYS_mmap, [0, 4096, 3, libc::MAP_PRIVATE.into(), fd, 0])?;
            raw::call(libc::SYS_mprotect, [start, 4096, 5, 0, 0, 0])
        })),
        "owner" => said(std::fs::metadata(rest).map(|data| {
            use std::os::unix::fs::MetadataExt;
            (data.uid(), data.gid())
        })),
        "hostname" => {
            let name = rustix::system::uname();
            name.nodename().to_string_lossy().into_owned()
        }
        // The descriptors that are open, found without /proc.
        "descriptors" => (0..1024)
            .filter(|number| raw::call(libc::SYS_fcntl, [*number, libc::F_GETFD.into(), 0, 0, 0, 0]).is_ok())
            .map(|number| number.to_string())
            .collect::<Vec<_>>()
            .join(" "),
        "seal" => match confine::seal_sandbox_host() {
            Ok(()) => obey(rest, descriptors),
            Err(error) => format!("failed: {error}"),
        },
        "ports" => {
            let ports: Vec<u16> = rest.split(' ').map(|port| port.parse().unwrap()).collect();
            match confine::restrict_egress_ports(Some(&ports)) {
                Ok(_) => said(
                    std::net::TcpStream::connect(("127.0.0.1", ports[0]))
                        .and(std::net::TcpStream::connect(("127.0.0.1", ports[0] + 1)).map(drop)),
                ),
                Err(error) => format!("failed: {error}"),
            }
        }
        "program" => crate::programs::obey(rest),
        other => format!("no such order: {other}"),
    }
}

/// Fills the stack.
#[allow(unconditional_recursion, reason = "that is the point")]
fn overflow(depth: u64) -> u64 {
    let frame = std::hint::black_box([depth; 512]);
    overflow(frame[0] + 1) + frame[511]
}
