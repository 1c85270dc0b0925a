//! A socket that a role is given keeps the namespace it was made in: it must not be possible to aim it elsewhere.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use confine::Role;
use confine::spawn::Exit;

use crate::Case;
use crate::driver::{Scratch, ready};

pub(crate) const CASES: &[Case] = &[
    ("a received listener or connection cannot be re-aimed", received_sockets_stay_where_they_are),
    ("a received connection is answered, shut down and not delayed", a_received_connection_is_usable),
    ("egress connects to the listed ports only", egress_ports),
];

const ROLES: [Role; 2] = [Role::Door, Role::SandboxHost];

/// Orders with the socket as descriptor `#0`; every one of them must end the role.
const AIMS: &[(&str, i64, &str)] = &[
    // 16 bytes of zeros are an AF_UNSPEC address: connecting to it would free the socket for another connect.
    ("connect AF_UNSPEC", libc::SYS_connect, "#0 @ 16"),
    ("sendto an address", libc::SYS_sendto, "#0 @x 1 0 @ 16"),
    ("sendto with MSG_FASTOPEN", libc::SYS_sendto, "#0 @x 1 536870912 0 0"),
    ("sendto an address with MSG_FASTOPEN", libc::SYS_sendto, "#0 @x 1 536870912 @ 16"),
    ("sendmsg with MSG_FASTOPEN", libc::SYS_sendmsg, "#0 @ 536870912"),
    ("sendmsg with MSG_FASTOPEN and MSG_NOSIGNAL", libc::SYS_sendmsg, "#0 @ 536887296"),
    ("sendmmsg", libc::SYS_sendmmsg, "#0 @ 1 536870912"),
    ("bind", libc::SYS_bind, "#0 @ 16"),
    ("listen", libc::SYS_listen, "#0 1"),
    ("setsockopt TCP_FASTOPEN_CONNECT", libc::SYS_setsockopt, "#0 6 30 @ 4"),
    ("setsockopt TCP_REPAIR", libc::SYS_setsockopt, "#0 6 19 @ 4"),
    ("setsockopt SO_BINDTODEVICE", libc::SYS_setsockopt, "#0 1 25 @ 4"),
    ("setsockopt SO_PASSRIGHTS", libc::SYS_setsockopt, "#0 1 83 @ 4"),
];

fn received_sockets_stay_where_they_are() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connection = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    for role in ROLES {
        for (name, call, arguments) in AIMS {
            for socket in [listener.as_fd(), connection.as_fd()] {
                let scratch = Scratch::new("aims");
                let ended = ready(role, &scratch).probe(&format!("call {call} {arguments}"), &[socket]);
                assert_eq!(ended.exit, Exit::Status(71), "{role:?} {name} {ended:?}");
                assert_eq!(confine::handler::refused_call(&ended.log), Some(*call), "{role:?} {name}");
            }
        }
    }
    // The way that was measured elsewhere: shut the listener down (allowed), then fast open with the address in the call.
    let scratch = Scratch::new("shutdown");
    let ended =
        ready(Role::Door, &scratch).probe(&format!("call {} #0 2", libc::SYS_shutdown), &[listener.as_fd()]);
    assert_eq!(ended.answer.as_deref(), Some("ok 0"), "{ended:?}");
    let order = format!("call {} #0 @x 1 536870912 @ 16", libc::SYS_sendto);
    assert_eq!(ready(Role::Door, &scratch).probe(&order, &[listener.as_fd()]).exit, Exit::Status(71));
}

fn a_received_connection_is_usable() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let cases: &[(&str, i64, &str, &str)] = &[
        ("TCP_NODELAY", libc::SYS_setsockopt, "#0 6 1 @ 4", "ok 0"),
        ("send", libc::SYS_sendto, "#0 @x 1 16384 0 0", "ok 1"),
        ("shut down", libc::SYS_shutdown, "#0 1", "ok 0"),
        ("non-blocking", libc::SYS_ioctl, "#0 21537 @", "ok 0"),
        ("why it failed", libc::SYS_getsockopt, "#0 1 4 @ @", "ok 0"),
    ];
    for role in ROLES {
        for (name, call, arguments, expected) in cases {
            let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (far, _) = listener.accept().unwrap();
            let scratch = Scratch::new("usable");
            let ended = ready(role, &scratch).probe(&format!("call {call} {arguments}"), &[far.as_fd()]);
            assert_eq!(ended.answer.as_deref(), Some(*expected), "{role:?} {name} {ended:?}");
            drop(far);
            if *name == "send" {
                let mut byte = [0; 2];
                near.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                assert_eq!((near.read(&mut byte).unwrap(), byte[0]), (1, b'x'));
            }
        }
    }
}

fn egress_ports() {
    if confine::landlock_version() < 4 {
        println!("NOT RUN: egress's ports: Landlock version 4 is needed");
        return;
    }
    // Two neighbouring ports, one of them listed.
    let (listed, other) = loop {
        let listed = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listed.local_addr().unwrap().port();
        if let Some(next) = port.checked_add(1)
            && let Ok(other) = TcpListener::bind(("127.0.0.1", next))
        {
            break (listed, other);
        }
    };
    let scratch = Scratch::new("ports");
    let port = listed.local_addr().unwrap().port();
    let ended = ready(Role::Egress, &scratch).probe(&format!("ports {port}"), &[]);
    assert_eq!(ended.answer, Some(format!("errno {}", libc::EACCES)), "{ended:?}");
    listed.set_nonblocking(true).unwrap();
    other.set_nonblocking(true).unwrap();
    assert!(listed.accept().is_ok(), "the listed port was reached");
    assert!(other.accept().is_err(), "the other was not");
}
