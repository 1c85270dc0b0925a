//! sandbox-host: Wasmtime and the agent loop, in three directories. Until it is sealed it maps compiled components, so pages
//! may become executable; [`SEALED`] takes that away.

use libc::*;

use super::common::{CHANNELS, CORE, FURTHER_LAYER, MEMORY_FILES, RECEIVED_SOCKETS, THREADS, TOKIO};
use super::{Arg, Group, Table, allow, is, when, with, without};

/// The bits that would make a file run as its owner on disk, root included, through an id-mapped mount.
pub(crate) const SET_ID: i32 = (S_ISUID | S_ISGID).cast_signed();

const NO_SET_ID_MODE_3: &[Arg] = &[without(3, SET_ID)];

const OWN: Group = &[
    when(
        SYS_seccomp,
        &[is(0, SECCOMP_SET_MODE_FILTER.cast_signed())],
        "confine::seal_sandbox_host loads its filter, which takes this call away",
    ),
    allow(SYS_mmap, "wasmtime maps a compiled component and makes its code executable, until sealed"),
    allow(SYS_mprotect, "wasmtime makes code executable, until sealed; grows memories and guards stacks"),
    allow(SYS_pipe2, "ipc::stream makes the two pipes of a request"),
    #[cfg(target_arch = "aarch64")]
    allow(SYS_membarrier, "wasmtime flushes the instruction cache of every thread after loading code"),
    when(SYS_openat, NO_SET_ID_MODE_3, "cap-std opens below a preopened directory; wasmtime maps the cache"),
    allow(SYS_newfstatat, "cap-std looks at an entry without following it"),
    allow(SYS_faccessat2, "wasmtime asks whether it may search a directory before it follows `..` out of it"),
    allow(SYS_getdents64, "a guest lists a directory"),
    allow(SYS_readlinkat, "a guest reads a link; cap-std resolves one"),
    allow(
        SYS_mkdirat,
        "a guest makes a directory; mkdir ignores set-id bits in its mode on the target kernels",
    ),
    allow(SYS_unlinkat, "a guest removes an entry"),
    allow(SYS_renameat, "a guest renames an entry; results and peer files get their name once whole"),
    allow(SYS_renameat2, "a guest renames an entry, on a C library that asks for it"),
    allow(SYS_linkat, "a guest makes a hard link inside its directory"),
    allow(SYS_symlinkat, "a guest makes a symbolic link"),
    allow(SYS_utimensat, "a guest sets times"),
    allow(SYS_fallocate, "a guest reserves space"),
    allow(SYS_fadvise64, "a guest announces how it will read"),
    allow(SYS_fsync, "a guest syncs a file"),
    allow(SYS_fdatasync, "a guest syncs a file's data"),
    allow(SYS_preadv, "a guest reads at an offset into several buffers"),
    allow(SYS_pwritev, "a guest writes at an offset from several buffers"),
    allow(SYS_fstatfs, "cap-std asks whether a descriptor is of procfs"),
    allow(SYS_clock_getres, "a guest asks for the resolution of a clock"),
];

/// What answers ENOSYS. `openat2` carries the mode of a new file behind a pointer, where a set-id bit cannot be seen; cap-std
/// walks component by component then.
const ABSENT: Group = &[
    allow(SYS_clone3, "the C library asks for it first and then takes clone"),
    allow(SYS_openat2, "cap-std asks for it first and then takes openat"),
];

/// A connected socket arrives from the runner for `connect`, and is read and written like any received socket. Wasmtime keeps
/// the first image of a memory in a memory file.
pub(crate) const TABLE: Table = Table {
    groups: &[CORE, CHANNELS, MEMORY_FILES, TOKIO, RECEIVED_SOCKETS, THREADS, FURTHER_LAYER, OWN],
    absent: ABSENT,
};

/// What sealing takes away: loaded on top, for every thread.
pub(crate) const SEALED: Group = &[
    when(SYS_mmap, CODE, "no page becomes executable after the last component is loaded"),
    when(SYS_mprotect, CODE, "no page becomes executable after the last component is loaded"),
    when(SYS_pkey_mprotect, CODE, "no page becomes executable after the last component is loaded"),
    allow(SYS_seccomp, "sealing happens once"),
];

const CODE: &[Arg] = &[with(2, PROT_EXEC)];
