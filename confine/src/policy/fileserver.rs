//! The fileserver: opens for reading, one component at a time, below its one directory; no `openat2`, whose flags a filter
//! cannot see.

use libc::{SYS_getdents64, SYS_openat, SYS_readlinkat};

use super::common::{CHANNELS, CORE, MEMORY_FILES, NO_CLONE3, READ_ONLY, THREADS};
use super::{Group, Table, allow, when};

const OWN: Group = &[
    when(
        SYS_openat,
        READ_ONLY,
        "fileserver::resolve looks names up, fileserver::open and ::listing read; read-only",
    ),
    allow(SYS_getdents64, "fileserver::listing reads a directory"),
    allow(SYS_readlinkat, "fileserver::resolve reads a link and follows it itself"),
];

pub(crate) const TABLE: Table =
    Table { groups: &[CORE, CHANNELS, MEMORY_FILES, THREADS, OWN], absent: NO_CLONE3 };
