//! The door: accepts and answers connections, opens nothing, makes no socket.

use libc::SYS_accept4;

use super::common::{CHANNELS, CORE, NO_CLONE3, RECEIVED_SOCKETS, THREADS, TOKIO};
use super::{Group, Table, allow};

const OWN: Group = &[allow(SYS_accept4, "door takes a connection from the listener it was given")];

pub(crate) const TABLE: Table =
    Table { groups: &[CORE, CHANNELS, TOKIO, RECEIVED_SOCKETS, THREADS, OWN], absent: NO_CLONE3 };
