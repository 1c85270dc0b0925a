//! Egress: the only process of ours that makes sockets and connects; Landlock bounds the ports. It takes connections from
//! listeners of the session's network, which it was given, and can make none of its own.

use libc::*;

use super::common::{CHANNELS, CORE, FURTHER_LAYER, NO_CLONE3, READ_ONLY, RECEIVED_SOCKETS, THREADS, TOKIO};
use super::{Group, Table, allow, is, masked, when};

/// The bits of a socket's type, without SOCK_NONBLOCK and SOCK_CLOEXEC.
const TYPE: i32 = 0xf;
/// AF_INET and AF_INET6 differ in this bit.
const VERSION: i32 = AF_INET ^ AF_INET6;

const OWN: Group = &[
    // The protocol is the type's own: Landlock bounds the ports of TCP, but of neither MPTCP nor SCTP.
    when(
        SYS_socket,
        &[masked(0, !VERSION, AF_INET & AF_INET6), masked(1, TYPE, SOCK_STREAM), is(2, 0)],
        "egress connects over IPv4 and IPv6",
    ),
    when(
        SYS_socket,
        &[masked(0, !VERSION, AF_INET & AF_INET6), masked(1, TYPE, SOCK_DGRAM), is(2, 0)],
        "egress asks a name server over IPv4 and IPv6",
    ),
    allow(SYS_connect, "egress connects to an address it has checked"),
    allow(SYS_bind, "std binds a datagram socket before it asks a name server"),
    when(
        SYS_accept4,
        &[is(3, SOCK_CLOEXEC | SOCK_NONBLOCK)],
        "mio takes a program's connection from a listener of the session's network",
    ),
    allow(
        SYS_getsockname,
        "egress asks where a program's connection was meant for; std and tokio name local ends",
    ),
    allow(SYS_getpeername, "egress checks which address it reached"),
    #[cfg(target_arch = "x86_64")]
    when(
        SYS_open,
        super::common::READ_ONLY_PATH,
        "rustix opens a path with it: egress opens a file of its root; read-only",
    ),
    when(SYS_openat, READ_ONLY, "egress reads resolv.conf and hosts of its root; read-only"),
];

pub(crate) const TABLE: Table = Table {
    groups: &[CORE, CHANNELS, TOKIO, RECEIVED_SOCKETS, THREADS, FURTHER_LAYER, OWN],
    absent: NO_CLONE3,
};
