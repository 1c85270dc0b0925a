//! Datagrams that tell whom they were meant for, and answers that come from there: IPv4 with `IP_PKTINFO`.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// One datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram {
    /// Bytes in the buffer.
    pub length: usize,
    /// It was larger than the buffer.
    pub truncated: bool,
    /// Who sent it.
    pub from: SocketAddrV4,
    /// The address it was sent to.
    pub to: Ipv4Addr,
}

/// Room for one control message with an `in_pktinfo`, aligned as control messages are.
#[repr(C, align(8))]
struct Control([u8; 64]);

fn address(port: u16, address: Ipv4Addr) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(address).to_be() },
        sin_zero: [0; 8],
    }
}

/// A message of one buffer, with room for a peer's address and for control messages.
fn message(
    name: &mut libc::sockaddr_in,
    part: &mut libc::iovec,
    control: &mut Control,
    control_length: usize,
) -> libc::msghdr {
    // SAFETY: plain data for which all zeros is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = std::ptr::from_mut(name).cast();
    message.msg_namelen = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control_length as _;
    message
}

fn failed() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Takes one datagram without waiting.
///
/// # Errors
/// The error of `recvmsg`, `AGAIN` if none is there; `PROTO` for one that does not tell whom it was meant for.
pub fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Datagram, Errno> {
    let mut from = address(0, Ipv4Addr::UNSPECIFIED);
    let mut control = Control([0; 64]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut message = message(&mut from, &mut part, &mut control, size_of::<Control>());
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: everything the message points to is alive and of the size it says.
    let received = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, flags) };
    let length = usize::try_from(received).map_err(|_| failed())?;
    let mut to = None;
    // SAFETY: the kernel filled the control buffer and set its length.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !header.is_null() {
        // SAFETY: not null, so it lies in the control buffer, which is aligned for it.
        let found = unsafe { &*header };
        if (found.cmsg_level, found.cmsg_type) == (libc::IPPROTO_IP, libc::IP_PKTINFO) {
            // SAFETY: the data of a message of this kind is an `in_pktinfo`, not necessarily aligned.
            let info = unsafe { libc::CMSG_DATA(header).cast::<libc::in_pktinfo>().read_unaligned() };
            to = Some(Ipv4Addr::from(u32::from_be(info.ipi_addr.s_addr)));
        }
        // SAFETY: as above; null behind the last one.
        header = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
    }
    let truncated = message.msg_flags & libc::MSG_TRUNC != 0;
    let (Some(to), libc::AF_INET) = (to, i32::from(from.sin_family)) else { return Err(Errno::PROTO) };
    let sender = Ipv4Addr::from(u32::from_be(from.sin_addr.s_addr));
    Ok(Datagram { length, truncated, from: SocketAddrV4::new(sender, u16::from_be(from.sin_port)), to })
}

/// Sends one datagram without waiting, from the address `from`, which must be one of this namespace's own.
///
/// # Errors
/// The error of `sendmsg`, `AGAIN` if there is no room.
pub fn send(fd: BorrowedFd<'_>, bytes: &[u8], from: Ipv4Addr, to: SocketAddrV4) -> Result<(), Errno> {
    const INFO: libc::c_uint = size_of::<libc::in_pktinfo>() as libc::c_uint;
    let mut name = address(to.port(), *to.ip());
    let mut control = Control([0; 64]);
    // Sending changes nothing of the buffer.
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: computes a number.
    let room = unsafe { libc::CMSG_SPACE(INFO) } as usize;
    let message = message(&mut name, &mut part, &mut control, room);
    // SAFETY: the control buffer is large enough for one header.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    if header.is_null() {
        return Err(Errno::INVAL);
    }
    let info = libc::in_pktinfo {
        ipi_ifindex: 0,
        ipi_spec_dst: libc::in_addr { s_addr: u32::from(from).to_be() },
        ipi_addr: libc::in_addr { s_addr: 0 },
    };
    // SAFETY: header and data lie within the first `room` bytes of the aligned control buffer.
    unsafe {
        (*header).cmsg_level = libc::IPPROTO_IP;
        (*header).cmsg_type = libc::IP_PKTINFO;
        (*header).cmsg_len = libc::CMSG_LEN(INFO) as _;
        libc::CMSG_DATA(header).cast::<libc::in_pktinfo>().write_unaligned(info);
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: everything the message points to is alive and of the size it says.
    let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, flags) };
    if sent < 0 { Err(failed()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::*;

    fn told() -> (UdpSocket, u16) {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        let on: libc::c_int = 1;
        // SAFETY: the pointer and the length describe `on`.
        let set = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_IP,
                libc::IP_PKTINFO,
                (&raw const on).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        assert_eq!(set, 0);
        let port = socket.local_addr().unwrap().port();
        (socket, port)
    }

    #[test]
    fn an_answer_comes_from_the_address_that_was_asked() {
        let (socket, port) = told();
        let asker = UdpSocket::bind("127.0.0.9:0").unwrap();
        // Connected: an answer from another address would not arrive.
        asker.connect(("127.0.0.7", port)).unwrap();
        assert_eq!(receive(socket.as_fd(), &mut [0; 8]), Err(Errno::AGAIN));
        asker.send(b"who?").unwrap();
        let mut buffer = [0; 64];
        let datagram = receive(socket.as_fd(), &mut buffer).unwrap();
        assert_eq!(&buffer[..datagram.length], b"who?");
        assert_eq!((datagram.to, datagram.truncated), (Ipv4Addr::new(127, 0, 0, 7), false));
        assert_eq!(std::net::SocketAddr::V4(datagram.from), asker.local_addr().unwrap());
        send(socket.as_fd(), b"me", datagram.to, datagram.from).unwrap();
        assert_eq!(asker.recv(&mut buffer).unwrap(), 2);
        assert_eq!(&buffer[..2], b"me");
    }

    #[test]
    fn a_datagram_that_is_too_large_is_told_and_one_that_tells_nothing_is_refused() {
        let (socket, port) = told();
        let asker = UdpSocket::bind("127.0.0.1:0").unwrap();
        asker.send_to(&[7; 100], ("127.0.0.1", port)).unwrap();
        let datagram = receive(socket.as_fd(), &mut [0; 10]).unwrap();
        assert_eq!((datagram.length, datagram.truncated), (10, true));
        let plain = UdpSocket::bind("127.0.0.1:0").unwrap();
        asker.send_to(b"x", plain.local_addr().unwrap()).unwrap();
        assert_eq!(receive(plain.as_fd(), &mut [0; 10]), Err(Errno::PROTO));
    }
}
