//! The door: accepts and answers connections, opens nothing, makes no socket.

use libc::{O_CLOEXEC, SYS_accept4, SYS_pipe2};

use super::common::{CHANNELS, CORE, NO_CLONE3, RECEIVED_SOCKETS, THREADS, TOKIO};
use super::{Group, Table, allow, is, when};

const OWN: Group = &[
    allow(SYS_accept4, "door takes a connection from the listener it was given"),
    when(SYS_pipe2, &[is(1, O_CLOEXEC)], "ipc::stream makes the two pipes of a request to the agent"),
];

pub(crate) const TABLE: Table =
    Table { groups: &[CORE, CHANNELS, TOKIO, RECEIVED_SOCKETS, THREADS, OWN], absent: NO_CLONE3 };
