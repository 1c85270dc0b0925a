//! The session's network: where connections and datagrams of a program arrive.

use std::io;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use nix::sched::{CloneFlags, setns};

use crate::Case;

pub(crate) const CASES: &[Case] = &[
    ("every IPv4 address of a session arrives at its listeners with itself", everything_arrives),
    ("a session has no way to IPv6 and shares its loopback with nobody", nothing_else_arrives),
    ("the ports of a session's listeners are taken", ports_are_taken),
];

/// Does something on a thread within a network namespace.
fn within<T: Send>(namespace: BorrowedFd<'_>, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let run = || {
            setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
            work()
        };
        scope.spawn(run).join().unwrap()
    })
}

fn listener(descriptor: &std::os::fd::OwnedFd) -> TcpListener {
    let listener = TcpListener::from(descriptor.try_clone().unwrap());
    listener.set_nonblocking(false).unwrap();
    listener
}

fn everything_arrives() {
    let network = confine::net::session_network(&[80, 40_001]).unwrap();
    assert_eq!(network.listeners.len(), 2);
    for (descriptor, port) in network.listeners.iter().zip([80, 40_001]) {
        let listener = listener(descriptor);
        for address in ["11.0.0.1", "127.0.0.1", "127.9.9.9", "169.254.169.254", "10.0.0.1", "255.1.1.1"] {
            let there = within(network.namespace.as_fd(), || TcpStream::connect((address, port)).unwrap());
            let (here, _) = listener.accept().unwrap();
            assert_eq!(here.local_addr().unwrap(), format!("{address}:{port}").parse().unwrap());
            drop(there);
        }
    }
    let refused = within(network.namespace.as_fd(), || TcpStream::connect("11.0.0.1:81").unwrap_err());
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);

    let resolver = UdpSocket::from(network.resolver.try_clone().unwrap());
    resolver.set_nonblocking(false).unwrap();
    for server in ["11.0.0.53", "127.0.0.53", "10.255.255.53"] {
        let asker = within(network.namespace.as_fd(), || {
            let asker = UdpSocket::bind("0.0.0.0:0").unwrap();
            asker.connect((server, 53)).unwrap();
            asker.send(b"question").unwrap();
            asker
        });
        let mut buffer = [0; 16];
        let (length, from) = resolver.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], from), (&b"question"[..], asker.local_addr().unwrap()));
    }
    // Any other port: nobody.
    within(network.namespace.as_fd(), || {
        let asker = UdpSocket::bind("0.0.0.0:0").unwrap();
        asker.connect("11.0.0.53:54").unwrap();
        asker.send(b"question").unwrap();
        assert_eq!(asker.send(b"again").unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    });
}

fn nothing_else_arrives() {
    let one = confine::net::session_network(&[]).unwrap();
    let two = confine::net::session_network(&[]).unwrap();
    for address in ["[2606:4700::1111]:80", "[fe80::1%1]:80", "[fd00::1]:80"] {
        let Ok(address) = address.parse::<std::net::SocketAddr>() else { continue };
        let error = within(one.namespace.as_fd(), || TcpStream::connect(address).unwrap_err());
        assert_eq!(error.raw_os_error(), Some(libc::ENETUNREACH), "{address}");
    }
    let server = within(one.namespace.as_fd(), || TcpListener::bind("127.0.0.1:40001").unwrap());
    let connect = || TcpStream::connect("127.0.0.1:40001").map(drop).map_err(|error| error.kind());
    assert_eq!(within(one.namespace.as_fd(), connect), Ok(()));
    assert_eq!(within(two.namespace.as_fd(), connect), Err(io::ErrorKind::ConnectionRefused));
    drop(server);
}

fn ports_are_taken() {
    let network = confine::net::session_network(&[40_001]).unwrap();
    let bind = |address: &'static str| {
        within(network.namespace.as_fd(), || {
            TcpListener::bind(address).map(drop).map_err(|error| error.kind())
        })
    };
    let taken = Err(io::ErrorKind::AddrInUse);
    for address in ["0.0.0.0:40001", "127.0.0.1:40001", "[::]:40001"] {
        assert_eq!(bind(address), taken, "{address}");
    }
    assert_eq!(bind("127.0.0.1:40002"), Ok(()));
    // Also while nobody listens: std binds with SO_REUSEADDR.
    rustix::net::shutdown(&network.listeners[0], rustix::net::Shutdown::Both).unwrap();
    assert_eq!(bind("127.0.0.1:40001"), taken);
    rustix::net::listen(&network.listeners[0], confine::net::BACKLOG).unwrap();
}
