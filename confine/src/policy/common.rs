//! Rows that several processes need for the same reason.

use libc::*;

use super::{Arg, Group, allow, is, null, when, without};

/// Wants an executable memory file.
pub(crate) const MFD_EXEC: i32 = 0x10;
/// `MSG_FASTOPEN` connects a socket that was shut down, past Landlock and without `connect`.
pub(crate) const FASTOPEN: i32 = MSG_FASTOPEN;
/// Everything a writing or creating open has: access mode, O_CREAT, O_TRUNC, O_APPEND and the bit of O_TMPFILE proper.
pub(crate) const WRITING: i32 = O_ACCMODE | O_CREAT | O_TRUNC | O_APPEND | (O_TMPFILE & !O_DIRECTORY);
/// An `openat` that only reads.
pub(crate) const READ_ONLY: &[Arg] = &[without(2, WRITING)];
/// What the C library passes to `clone` for a thread, and nothing else.
const THREAD: i32 = CLONE_VM
    | CLONE_FS
    | CLONE_FILES
    | CLONE_SIGHAND
    | CLONE_THREAD
    | CLONE_SYSVSEM
    | CLONE_SETTLS
    | CLONE_PARENT_SETTID
    | CLONE_CHILD_CLEARTID;

/// Every process of ours: memory, locks, time, the honest exits.
pub(crate) const CORE: Group = &[
    allow(SYS_write, "ipc streams and pipes; confine::handler writes its last line"),
    allow(SYS_exit_group, "std::process::exit and confine::handler"),
    allow(SYS_exit, "the C library ends a thread"),
    allow(SYS_rt_sigreturn, "the kernel's return from any handler"),
    allow(SYS_rt_sigprocmask, "the C library in abort(), thread start and thread end"),
    allow(SYS_restart_syscall, "the kernel goes on with a wait after SIGSTOP and SIGCONT"),
    allow(SYS_sigaltstack, "std frees and makes the stack of the overflow handler per thread"),
    allow(SYS_getpid, "the C library in abort()"),
    allow(SYS_gettid, "the C library in abort(); std's re-entrant locks"),
    when(
        SYS_tgkill,
        &[is(2, SIGABRT)],
        "the C library's abort() raises SIGABRT; confine::handler answers it",
    ),
    allow(SYS_futex, "std and C library locks, channels, thread join"),
    allow(SYS_sched_yield, "std and the C library when a lock is contended"),
    allow(SYS_brk, "the C library's allocator"),
    when(SYS_mmap, &[without(2, PROT_EXEC)], "the C library's allocator, thread stacks, ipc::memory"),
    allow(SYS_munmap, "the C library's allocator, thread stacks, ipc::memory"),
    allow(SYS_mremap, "the C library's allocator in realloc"),
    allow(SYS_madvise, "the C library gives memory and ended stacks back"),
    when(SYS_mprotect, &[without(2, PROT_EXEC)], "the C library's arenas and guard pages of thread stacks"),
    allow(SYS_getrandom, "std's hash keys, uuid, the C library's allocator"),
    allow(SYS_clock_gettime, "std::time where the vDSO has no clock"),
    allow(SYS_clock_nanosleep, "std::thread::sleep"),
    allow(SYS_read, "ipc streams and pipes, event descriptors"),
    allow(SYS_close, "dropping descriptors"),
];

/// Channels of `ipc`: packets with descriptors, shared and sealed memory.
pub(crate) const CHANNELS: Group = &[
    when(SYS_sendmsg, &[without(2, FASTOPEN)], "ipc::sys::send_packet"),
    allow(SYS_recvmsg, "ipc::sys::receive_packet"),
    #[cfg(target_arch = "x86_64")]
    allow(SYS_poll, "ipc::channel::wait, on architectures that have it"),
    allow(SYS_ppoll, "ipc::channel::wait"),
    when(
        SYS_getsockopt,
        &[is(1, SOL_SOCKET), is(2, SO_TYPE)],
        "ipc::sys::is_packet_socket on a received channel",
    ),
    allow(SYS_fstat, "ipc::memory judges the size of a received memory file"),
    when(SYS_fcntl, &[is(1, F_GET_SEALS)], "ipc::memory judges the seals of a received memory file"),
    when(SYS_fcntl, &[is(1, F_GETFL)], "std and tokio before they make a descriptor non-blocking"),
    when(SYS_fcntl, &[is(1, F_SETFL)], "std and tokio make a descriptor non-blocking"),
    when(SYS_fcntl, &[is(1, F_DUPFD_CLOEXEC)], "OwnedFd::try_clone"),
    when(SYS_fcntl, &[is(1, F_GETFD)], "std asserts that a descriptor is open before it closes it"),
    allow(SYS_pread64, "ipc::memory reads sealed documents"),
    allow(SYS_lseek, "ipc::memory and std::io::Read::read_to_end find the length of a file"),
    allow(SYS_statx, "std::io::Read::read_to_end finds the length of a file"),
];

/// The signal by which the C library changes the identity of all threads at once.
const SIGSETXID: i32 = 33;

/// Threads that start after lockdown.
pub(crate) const THREADS: Group = &[
    when(
        SYS_rt_sigaction,
        &[is(0, SIGSETXID)],
        "the C library arms its own signal when it starts the first thread",
    ),
    when(SYS_clone, &[is(0, THREAD)], "the C library starts a thread, once clone3 is answered ENOSYS"),
    allow(SYS_set_robust_list, "the C library in a new thread"),
    allow(SYS_rseq, "the C library in a new thread"),
    allow(
        SYS_sched_getaffinity,
        "std asks for a new thread's stack; the C library counts processors for its arenas",
    ),
    when(SYS_prctl, &[is(0, PR_SET_NAME)], "std names a new thread"),
];

/// What answers ENOSYS wherever threads are started: the arguments of `clone3` cannot be judged.
pub(crate) const NO_CLONE3: Group =
    &[allow(SYS_clone3, "the C library asks for it first and then takes clone")];

/// A tokio runtime on one thread.
pub(crate) const TOKIO: Group = &[
    allow(SYS_epoll_create1, "mio makes its selector"),
    allow(SYS_epoll_ctl, "mio registers descriptors"),
    #[cfg(target_arch = "x86_64")]
    allow(SYS_epoll_wait, "mio waits"),
    allow(SYS_epoll_pwait, "mio waits, on architectures without epoll_wait"),
    allow(SYS_eventfd2, "mio's waker"),
    when(SYS_ioctl, &[is(1, FIONBIO_REQUEST)], "std makes a socket non-blocking"),
];

const FIONBIO_REQUEST: i32 = 0x5421;

/// Reading and writing sockets that were handed over: they cannot be re-aimed.
pub(crate) const RECEIVED_SOCKETS: Group = &[
    allow(SYS_readv, "tokio reads into several buffers"),
    allow(SYS_writev, "door writes head and slot in one call; hyper writes head and body"),
    when(SYS_recvfrom, &[null(4)], "std reads a socket"),
    when(SYS_sendto, &[null(4), without(3, FASTOPEN)], "std writes a socket"),
    allow(SYS_shutdown, "ending the sending direction of a connection"),
    when(
        SYS_setsockopt,
        &[is(1, IPPROTO_TCP), is(2, TCP_NODELAY)],
        "a response is not held back for a further one",
    ),
    when(SYS_getsockopt, &[is(1, SOL_SOCKET), is(2, SO_ERROR)], "mio and tokio ask why a socket failed"),
];

/// A memory file that can never be executed.
pub(crate) const MEMORY_FILES: Group = &[
    when(
        SYS_memfd_create,
        &[without(1, MFD_EXEC)],
        "ipc::memory makes a document, marked not executable where the kernel can",
    ),
    allow(SYS_ftruncate, "ipc::memory sizes it"),
    when(SYS_fcntl, &[is(1, F_ADD_SEALS)], "ipc::memory seals it"),
    allow(SYS_pwrite64, "ipc::memory fills it"),
];
