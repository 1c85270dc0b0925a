//! Sockets that lead out of the session.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::{Case, Seen, raw};

const UNIX: i64 = libc::AF_UNIX as i64;
const STREAM: i64 = libc::SOCK_STREAM as i64;
const DATAGRAM: i64 = libc::SOCK_DGRAM as i64;

pub(crate) const CASES: &[Case] = &[
    ("unix-socket", |_| raw::call(libc::SYS_socket, [UNIX, STREAM, 0, 0, 0, 0]).map(|_| "made".into())),
    ("unix-path", |arguments| re_aimed(arguments, false)),
    ("unix-abstract", |arguments| re_aimed(arguments, true)),
    ("netlink", |_| {
        raw::call(libc::SYS_socket, [libc::AF_NETLINK.into(), libc::SOCK_RAW.into(), 0, 0, 0, 0])
            .map(|_| "made".into())
    }),
    ("packets", |_| {
        raw::call(libc::SYS_socket, [libc::AF_PACKET.into(), libc::SOCK_RAW.into(), 0, 0, 0, 0])
            .map(|_| "made".into())
    }),
    ("raw-internet", |_| {
        raw::call(libc::SYS_socket, [libc::AF_INET.into(), libc::SOCK_RAW.into(), 1, 0, 0, 0])
            .map(|_| "made".into())
    }),
    ("tcp", tcp),
];

/// A pair needs no `socket`: one half of it, aimed at a socket of the host. Datagrams first, for they have no connection
/// that would be in the way.
fn re_aimed(arguments: &[String], is_abstract: bool) -> Seen {
    let name = arguments.first().ok_or_else(|| io::Error::other("no name was given"))?;
    let mut address = [0_u8; 110];
    let start = 2 + usize::from(is_abstract);
    let end = start + name.len();
    for (place, bytes) in [(0..2, &(libc::AF_UNIX as u16).to_ne_bytes()[..]), (start..end, name.as_bytes())] {
        let place = address.get_mut(place).ok_or_else(|| io::Error::other("the name is too long"))?;
        place.copy_from_slice(bytes);
    }
    let length = i64::try_from(end + usize::from(!is_abstract)).unwrap_or(0);
    let mut refusal = io::Error::other("nothing was tried");
    for kind in [DATAGRAM, STREAM, libc::SOCK_SEQPACKET.into()] {
        let [half, other] = match raw::pair(kind) {
            Ok(pair) => pair,
            Err(error) => {
                refusal = error;
                continue;
            }
        };
        let _ = raw::call(libc::SYS_close, [other, 0, 0, 0, 0, 0]);
        match raw::call(libc::SYS_connect, [half, raw::address(&address), length, 0, 0, 0]) {
            Ok(_) => return Ok(format!("a socket of type {kind} was connected")),
            Err(error) => refusal = error,
        }
    }
    Err(refusal)
}

/// A connection that somebody answers.
fn tcp(arguments: &[String]) -> Seen {
    let address: SocketAddr = arguments
        .first()
        .and_then(|argument| argument.parse().ok())
        .ok_or_else(|| io::Error::other("no address was given"))?;
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(3))?;
    stream.set_read_timeout(Some(Duration::from_secs(3)))?;
    let mut byte = [0];
    match stream.read(&mut byte)? {
        0 => Err(io::Error::other("closed without an answer")),
        _ => Ok("answered".into()),
    }
}
