//! The fileserver: opens for reading, one component at a time, below its one directory; no `openat2`, whose flags a filter
//! cannot see.

use libc::{
    AT_SYMLINK_NOFOLLOW, SHUT_RDWR, SYS_getdents64, SYS_newfstatat, SYS_openat, SYS_preadv, SYS_readlinkat,
    SYS_shutdown,
};

use super::common::{CHANNELS, CORE, MEMORY_FILES, NO_CLONE3, READ_ONLY, THREADS};
use super::{Group, Table, allow, is, when};

const OWN: Group = &[
    when(
        SYS_openat,
        READ_ONLY,
        "fileserver::resolve looks names up, fileserver::open and ::listing read; read-only",
    ),
    when(
        SYS_newfstatat,
        &[is(3, AT_SYMLINK_NOFOLLOW)],
        "fileserver::resolve looks at a name before it is opened; no link is followed",
    ),
    allow(
        SYS_preadv,
        "fileserver::open reads into a slot and one byte beyond, which tells that the file ended",
    ),
    when(
        SYS_shutdown,
        &[is(1, SHUT_RDWR)],
        "fileserver::desk ends the channel of a replaced door, on which its workers wait",
    ),
    allow(SYS_getdents64, "fileserver::listing reads a directory"),
    allow(SYS_readlinkat, "fileserver::resolve reads a link and follows it itself"),
];

pub(crate) const TABLE: Table =
    Table { groups: &[CORE, CHANNELS, MEMORY_FILES, THREADS, OWN], absent: NO_CLONE3 };
