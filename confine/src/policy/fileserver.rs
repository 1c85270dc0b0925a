//! The fileserver: opens for reading below its one directory; Landlock and a read-only mount bound what `openat2` can ask
//! for, whose flags a filter cannot see.

use libc::*;

use super::common::{CHANNELS, CORE, MEMORY_FILES, NO_CLONE3, READ_ONLY, THREADS};
use super::{Group, Table, allow, when};

const OWN: Group = &[
    #[cfg(target_arch = "x86_64")]
    when(
        SYS_open,
        super::common::READ_ONLY_PATH,
        "rustix opens a path with it: the fileserver opens its workdir; read-only",
    ),
    when(SYS_openat, READ_ONLY, "the fileserver opens its workdir and reopens for listing; read-only"),
    allow(SYS_openat2, "the fileserver walks one component at a time below its descriptor"),
    allow(SYS_newfstatat, "the fileserver looks at an entry without following it"),
    allow(SYS_getdents64, "the fileserver lists a directory"),
    allow(SYS_readlinkat, "the fileserver resolves a link itself"),
    allow(SYS_preadv, "the fileserver reads a file into a slot"),
    allow(SYS_fadvise64, "the fileserver announces a sequential read"),
];

pub(crate) const TABLE: Table =
    Table { groups: &[CORE, CHANNELS, MEMORY_FILES, THREADS, OWN], absent: NO_CLONE3 };
