//! Network namespaces, made on threads that end at once so that no thread of the broker stays in one.
//!
//! The session's namespace has one interface, its loopback, and one route beside the kernel's own: every IPv4 address is this
//! host. A connection to anywhere arrives at a listener made here, with the address it was meant for as its local one, and at
//! nobody else; IPv6 has no route but `::1`. Sockets keep the namespace they were made in, whoever holds them.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::sys;

/// The port of name servers.
const DNS: u16 = 53;

/// Connections the kernel holds per listener while egress is busy or being replaced.
pub const BACKLOG: i32 = 128;

/// The session's network and the ways out of it.
#[derive(Debug)]
pub struct SessionNetwork {
    /// The namespace programs live in.
    pub namespace: OwnedFd,
    /// A datagram socket on port 53 of every address that tells with each question whom it was meant for.
    pub resolver: OwnedFd,
    /// Listening sockets on every address, one per port asked for, in that order.
    pub listeners: Vec<OwnedFd>,
}

/// A namespace with nothing in it, not even an interface that is up.
///
/// # Errors
/// The error of the failing step.
pub fn empty_namespace() -> io::Result<OwnedFd> {
    Ok(made_on_a_thread(|| Ok(()))?.0)
}

/// A namespace whose loopback interface is up (127.0.0.1 and ::1) and takes every other IPv4 address for its own: the
/// session's network. Needs CAP_NET_ADMIN, which [`crate::enter_broker`] gives up.
///
/// # Errors
/// The error of the failing step.
pub fn session_namespace() -> io::Result<OwnedFd> {
    Ok(made_on_a_thread(everything_is_here)?.0)
}

/// The same with a listener for each of these ports and one socket for questions to any name server.
///
/// # Errors
/// The error of the failing step.
pub fn session_network(ports: &[u16]) -> io::Result<SessionNetwork> {
    let (namespace, (resolver, listeners)) = made_on_a_thread(|| {
        everything_is_here()?;
        let listeners = ports.iter().map(|port| listener(*port)).collect::<io::Result<_>>()?;
        Ok((resolver()?, listeners))
    })?;
    Ok(SessionNetwork { namespace, resolver, listeners })
}

fn made_on_a_thread<T: Send>(inside: impl FnOnce() -> io::Result<T> + Send) -> io::Result<(OwnedFd, T)> {
    let make = || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)?;
        let made = inside()?;
        Ok((std::fs::File::open("/proc/thread-self/ns/net")?.into(), made))
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("namespace".into()).spawn_scoped(scope, make)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that makes a namespace panicked")))
    })
}

/// Brings the loopback interface up and routes every IPv4 address to it.
fn everything_is_here() -> io::Result<()> {
    // Any socket reaches the interfaces of its namespace; one of a family that needs no address.
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    sys::interface_up(socket.as_fd(), c"lo")?;
    // The protocol of number 0 is the one of routes.
    let routes =
        rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    rustix::net::send(&routes, &local_default(), SendFlags::empty())?;
    let mut answer = [0; 128];
    let (_, length) = rustix::net::recv(&routes, &mut answer, RecvFlags::empty())?;
    acknowledged(answer.get(..length).unwrap_or_default())
}

/// The request for `local default dev lo`, as rtnetlink(7) has it.
fn local_default() -> Vec<u8> {
    const FLAGS: libc::c_int = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    /// The index of the loopback interface in every namespace.
    const LOOPBACK: u32 = 1;
    let family = libc::AF_INET as u8;
    let mut message = Vec::with_capacity(36);
    // The header: length, type, flags, sequence, port.
    message.extend(36_u32.to_ne_bytes());
    message.extend(libc::RTM_NEWROUTE.to_ne_bytes());
    message.extend((FLAGS as u16).to_ne_bytes());
    message.extend([0; 8]);
    // Family, lengths of destination and source, type of service, table, protocol, scope, type.
    message.extend([
        family,
        0,
        0,
        0,
        libc::RT_TABLE_LOCAL,
        libc::RTPROT_STATIC,
        libc::RT_SCOPE_HOST,
        libc::RTN_LOCAL,
    ]);
    message.extend([0; 4]);
    // One attribute: the interface.
    message.extend(8_u16.to_ne_bytes());
    message.extend(libc::RTA_OIF.to_ne_bytes());
    message.extend(LOOPBACK.to_ne_bytes());
    message
}

/// Reads the kernel's answer: a header of 16 bytes and an error number, 0 for none.
fn acknowledged(answer: &[u8]) -> io::Result<()> {
    let word = |at: usize| answer.get(at..at + 4).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
    let kind = answer.get(4..6).and_then(|bytes| <[u8; 2]>::try_from(bytes).ok()).map(u16::from_ne_bytes);
    match (kind, word(16).map(i32::from_ne_bytes)) {
        (Some(kind), Some(0)) if i32::from(kind) == libc::NLMSG_ERROR => Ok(()),
        (Some(kind), Some(error)) if i32::from(kind) == libc::NLMSG_ERROR && error < 0 => {
            Err(io::Error::from_raw_os_error(error.saturating_neg()))
        }
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel gave no answer about a route")),
    }
}

fn socket(kind: SocketType, port: u16) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::INET, kind, flags, None)?;
    // Without SO_REUSEADDR, which std would set: no program takes the port beside it, not even while it does not listen.
    rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port))?;
    Ok(socket)
}

fn listener(port: u16) -> io::Result<OwnedFd> {
    let listener = socket(SocketType::STREAM, port)?;
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener)
}

fn resolver() -> io::Result<OwnedFd> {
    let resolver = socket(SocketType::DGRAM, DNS)?;
    sys::tell_destinations(resolver.as_fd())?;
    Ok(resolver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_taken_only_for_what_it_says() {
        let answer = |kind: u16, error: i32| {
            let mut bytes = vec![36, 0, 0, 0];
            bytes.extend(kind.to_ne_bytes());
            bytes.extend([0; 10]);
            bytes.extend(error.to_ne_bytes());
            bytes
        };
        assert!(acknowledged(&answer(2, 0)).is_ok());
        let refused = acknowledged(&answer(2, -libc::EPERM)).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        assert!(acknowledged(&answer(2, i32::MIN)).is_err());
        assert!(acknowledged(&answer(3, 0)).is_err());
        assert!(acknowledged(&answer(2, 0)[..19]).is_err());
        assert!(acknowledged(&[]).is_err());
    }
}
