//! The programs' policy, which is the runner's too: it is loaded once on the runner and inherited, and [`EXTRAS`] is what a
//! started program gives up. Programs are other people's code, so the reasons name what kind of code calls.
//!
//! Order of judgement: [`FAMILIES_OF_SOCKETS`] answers EACCES, [`ALLOWED`] and [`CONDITIONAL`] pass, a conditional call
//! with other arguments and [`REFUSED`] answer EPERM, and what nobody listed answers ENOSYS, as on a kernel without it.

use libc::*;

use super::common::MFD_EXEC;
use super::host::SET_ID;
use super::{Arg, Group, allow, is, is_not, masked, null, when, without};

/// Calls that pass whatever their arguments, because one kind of code needs them all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Family {
    pub(crate) why: &'static str,
    pub(crate) calls: &'static [c_long],
}

#[allow(clippy::panic, reason = "evaluated when the tables are compiled")]
const fn family(why: &'static str, calls: &'static [c_long]) -> Family {
    assert!(why.len() > 7, "a family needs a reason");
    Family { why, calls }
}

// One call per line would hide the families.
#[rustfmt::skip]
pub(crate) const ALLOWED: &[Family] = &[
    family(
        "starting and ending programs and threads, waiting for them; Landlock decides what is executed",
        &[
            SYS_execve, SYS_exit, SYS_exit_group, SYS_wait4, SYS_waitid, SYS_getpid, SYS_getppid,
            SYS_gettid, SYS_set_tid_address, SYS_set_robust_list, SYS_get_robust_list, SYS_rseq,
            SYS_getrlimit, SYS_setrlimit, SYS_getrusage, SYS_times, SYS_getpriority,
            SYS_setpriority, SYS_membarrier, SYS_getcpu, SYS_pidfd_open, SYS_pidfd_send_signal,
        ],
    ),
    family(
        "job control of shells, daemons and build tools",
        &[SYS_setsid, SYS_getsid, SYS_setpgid, SYS_getpgid],
    ),
    family(
        "signals, inside a PID namespace that holds programs only",
        &[
            SYS_kill, SYS_tkill, SYS_tgkill, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigpending,
            SYS_rt_sigsuspend, SYS_rt_sigtimedwait, SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo,
            SYS_rt_sigreturn, SYS_sigaltstack, SYS_signalfd4, SYS_restart_syscall,
        ],
    ),
    family(
        "schedulers of language runtimes",
        &[
            SYS_sched_yield, SYS_sched_getaffinity, SYS_sched_setaffinity, SYS_sched_getparam,
            SYS_sched_setparam, SYS_sched_getscheduler, SYS_sched_setscheduler, SYS_sched_getattr,
            SYS_sched_setattr, SYS_sched_get_priority_max, SYS_sched_get_priority_min,
            SYS_sched_rr_get_interval, SYS_ioprio_get, SYS_ioprio_set,
        ],
    ),
    family(
        "memory of every program; writable code of just-in-time compilers included",
        &[
            SYS_brk, SYS_mmap, SYS_munmap, SYS_mremap, SYS_mprotect, SYS_madvise, SYS_msync, SYS_mincore,
            SYS_mlock, SYS_mlock2, SYS_munlock, SYS_mlockall, SYS_munlockall, SYS_pkey_alloc, SYS_pkey_free,
            SYS_pkey_mprotect, SYS_process_madvise,
        ],
    ),
    family(
        "shared memory, semaphores and queues of programs, inside an IPC namespace of their own",
        &[
            SYS_shmget, SYS_shmat, SYS_shmdt, SYS_shmctl, SYS_semget, SYS_semop, SYS_semctl, SYS_semtimedop,
            SYS_msgget, SYS_msgsnd, SYS_msgrcv, SYS_msgctl, SYS_mq_open, SYS_mq_unlink, SYS_mq_timedsend,
            SYS_mq_timedreceive, SYS_mq_notify, SYS_mq_getsetattr,
        ],
    ),
    family(
        "reading and writing what is open",
        &[
            SYS_read, SYS_write, SYS_readv, SYS_writev, SYS_pread64, SYS_pwrite64, SYS_preadv, SYS_pwritev,
            SYS_preadv2, SYS_pwritev2, SYS_lseek, SYS_sendfile, SYS_splice, SYS_tee, SYS_vmsplice,
            SYS_copy_file_range, SYS_readahead, SYS_fadvise64, SYS_close, SYS_close_range, SYS_dup,
            SYS_dup3, SYS_fcntl, SYS_flock, SYS_pipe2, SYS_io_setup, SYS_io_destroy, SYS_io_submit,
            SYS_io_cancel, SYS_io_getevents,
        ],
    ),
    family(
        "looking at and changing files; Landlock and the mounts decide which",
        &[
            SYS_newfstatat, SYS_fstat, SYS_statx, SYS_statfs, SYS_fstatfs, SYS_faccessat, SYS_faccessat2,
            SYS_getdents64, SYS_getcwd, SYS_chdir, SYS_fchdir, SYS_readlinkat, SYS_symlinkat, SYS_linkat,
            SYS_unlinkat, SYS_renameat, SYS_renameat2, SYS_truncate, SYS_ftruncate, SYS_fallocate,
            SYS_fsync, SYS_fdatasync, SYS_sync, SYS_syncfs, SYS_sync_file_range, SYS_utimensat, SYS_umask,
            SYS_fchown, SYS_fchownat, SYS_name_to_handle_at, SYS_getxattr, SYS_lgetxattr, SYS_fgetxattr,
            SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr, SYS_listxattr, SYS_llistxattr, SYS_flistxattr,
            SYS_removexattr, SYS_lremovexattr, SYS_fremovexattr,
        ],
    ),
    family(
        "waiting for descriptors and timers",
        &[
            SYS_ppoll, SYS_pselect6, SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait, SYS_epoll_pwait2,
            SYS_eventfd2, SYS_timerfd_create, SYS_timerfd_settime, SYS_timerfd_gettime, SYS_inotify_init1,
            SYS_inotify_add_watch, SYS_inotify_rm_watch,
        ],
    ),
    family(
        "sockets of the session's own network namespace, once made",
        &[
            SYS_bind, SYS_listen, SYS_accept, SYS_accept4, SYS_connect, SYS_getsockname,
            SYS_getpeername, SYS_getsockopt, SYS_setsockopt, SYS_shutdown, SYS_sendto, SYS_recvfrom,
            SYS_sendmsg, SYS_recvmsg, SYS_sendmmsg, SYS_recvmmsg,
        ],
    ),
    family(
        "reading clocks, sleeping, timers",
        &[
            SYS_clock_gettime, SYS_clock_getres, SYS_clock_nanosleep, SYS_gettimeofday, SYS_nanosleep,
            SYS_getitimer, SYS_setitimer, SYS_timer_create, SYS_timer_settime, SYS_timer_gettime,
            SYS_timer_getoverrun, SYS_timer_delete,
        ],
    ),
    family("locks of the C library and of language runtimes", &[SYS_futex, SYS_futex_waitv]),
    family(
        "asking who one is, and setting it to that; no program holds a capability",
        &[
            SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid, SYS_getresuid, SYS_getresgid, SYS_getgroups,
            SYS_setuid, SYS_setgid, SYS_setreuid, SYS_setregid, SYS_setresuid, SYS_setresgid, SYS_setfsuid,
            SYS_setfsgid, SYS_setgroups, SYS_capget, SYS_capset,
        ],
    ),
    family("what every C library and runtime asks at its start", &[SYS_uname, SYS_sysinfo, SYS_getrandom]),
    #[cfg(target_arch = "x86_64")]
    family(
        "older names of the calls above, which this architecture still has",
        &[
            SYS_fork, SYS_vfork, SYS_getpgrp, SYS_arch_prctl, SYS_dup2, SYS_pipe, SYS_poll, SYS_select,
            SYS_epoll_create, SYS_epoll_wait, SYS_eventfd, SYS_signalfd, SYS_inotify_init, SYS_stat,
            SYS_lstat, SYS_access, SYS_getdents, SYS_readlink, SYS_symlink, SYS_link, SYS_unlink, SYS_rmdir,
            SYS_rename, SYS_utime, SYS_utimes, SYS_futimesat, SYS_chown, SYS_lchown, SYS_time, SYS_alarm,
            SYS_pause,
        ],
    ),
];

const NEW_NAMESPACES: i32 =
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;
const CREATES: i32 = O_CREAT | (O_TMPFILE & !O_DIRECTORY);
/// The bits of a socket's type, without SOCK_NONBLOCK and SOCK_CLOEXEC.
const TYPE: i32 = 0xf;
const EVERY_BIT: i32 = -1;
const UNIX: Arg = masked(0, EVERY_BIT, AF_UNIX);
/// AF_INET or AF_INET6, which differ in one bit.
const INTERNET: Arg = masked(0, !(AF_INET ^ AF_INET6), AF_INET & AF_INET6);
const NO_SET_ID_IN_1: &[Arg] = &[without(1, SET_ID)];
const NO_SET_ID_IN_2: &[Arg] = &[without(2, SET_ID)];

pub(crate) const CONDITIONAL: Group = &[
    when(SYS_clone, &[without(0, NEW_NAMESPACES)], "threads and processes, without a namespace of their own"),
    when(SYS_execveat, &[without(4, AT_EMPTY_PATH)], "programs by directory and name, not by descriptor"),
    // The runner has the programs' id, and a limit of its own set to nothing would end it.
    when(SYS_prlimit64, &[is(0, 0)], "a process's own limits"),
    when(SYS_prlimit64, &[null(2)], "reading the limits of others"),
    when(
        SYS_ioctl,
        &[is_not(1, TIOCSTI_REQUEST), is_not(1, TIOCLINUX_REQUEST)],
        "terminals and devices, without typing for somebody else",
    ),
    when(SYS_prctl, &[is(0, PR_SET_NAME)], "runtimes name their threads"),
    when(SYS_prctl, &[is(0, PR_GET_NAME)], "runtimes read the names of their threads"),
    when(SYS_prctl, &[is(0, PR_SET_PDEATHSIG)], "a helper ends with the program that started it"),
    when(SYS_prctl, &[is(0, PR_GET_PDEATHSIG)], "a helper ends with the program that started it"),
    when(SYS_prctl, &[is(0, PR_GET_DUMPABLE)], "runtimes ask before they attach a crash handler"),
    when(SYS_prctl, &[is(0, PR_SET_NO_NEW_PRIVS)], "the runner's filter of a program; sandboxing programs"),
    when(SYS_prctl, &[is(0, PR_GET_NO_NEW_PRIVS)], "sandboxing programs"),
    when(SYS_prctl, &[is(0, PR_CAPBSET_READ)], "programs that list what they may do"),
    when(SYS_prctl, &[is(0, PR_SET_VMA)], "allocators name their memory"),
    when(SYS_prctl, &[is(0, PR_SET_THP_DISABLE)], "runtimes choose their page sizes"),
    when(SYS_prctl, &[is(0, PR_SET_TIMERSLACK)], "runtimes choose their timer precision"),
    when(SYS_socket, &[INTERNET, masked(1, TYPE, SOCK_STREAM), is(2, 0)], "TCP in the session's network"),
    when(
        SYS_socket,
        &[INTERNET, masked(1, TYPE, SOCK_STREAM), is(2, IPPROTO_TCP)],
        "TCP in the session's network",
    ),
    when(SYS_socket, &[INTERNET, masked(1, TYPE, SOCK_DGRAM), is(2, 0)], "UDP in the session's network"),
    when(
        SYS_socket,
        &[INTERNET, masked(1, TYPE, SOCK_DGRAM), is(2, IPPROTO_UDP)],
        "UDP in the session's network",
    ),
    // A datagram socket of a pair could be aimed at any socket of the host, by `connect` or by an address in `sendto`: that
    // one has no name in a network namespace. A stream stays connected to what it was born with.
    // The kernel makes two sockets of the family before it finds out whether there are pairs of it.
    when(SYS_socketpair, &[UNIX, masked(1, TYPE, SOCK_STREAM)], "connected pairs of runtimes and shells"),
    when(SYS_socketpair, &[UNIX, masked(1, TYPE, SOCK_SEQPACKET)], "connected pairs of runtimes and shells"),
    // A mode with a set-id bit becomes, through an id-mapped mount, a file that runs as its owner on disk.
    when(SYS_openat, &[without(2, CREATES)], "opening files; without O_CREAT the mode is not looked at"),
    when(SYS_openat, &[without(3, SET_ID)], "making files that are not set-id"),
    when(SYS_fchmod, NO_SET_ID_IN_1, "changing modes, without a set-id bit"),
    when(SYS_fchmodat, NO_SET_ID_IN_2, "changing modes, without a set-id bit"),
    // The C library's constants lack it elsewhere, where it answers ENOSYS, and callers take fchmodat.
    #[cfg(target_arch = "x86_64")]
    when(SYS_fchmodat2, NO_SET_ID_IN_2, "changing modes, without a set-id bit"),
    when(SYS_mkdirat, NO_SET_ID_IN_2, "making directories, without a set-id bit"),
    when(SYS_mknodat, NO_SET_ID_IN_2, "making pipes, without a set-id bit; devices need a capability"),
    #[cfg(target_arch = "x86_64")]
    when(SYS_open, &[without(1, CREATES)], "opening files; without O_CREAT the mode is not looked at"),
    #[cfg(target_arch = "x86_64")]
    when(SYS_open, NO_SET_ID_IN_2, "making files that are not set-id"),
    #[cfg(target_arch = "x86_64")]
    when(SYS_creat, NO_SET_ID_IN_1, "making files that are not set-id"),
    #[cfg(target_arch = "x86_64")]
    when(SYS_chmod, NO_SET_ID_IN_1, "changing modes, without a set-id bit"),
    #[cfg(target_arch = "x86_64")]
    when(SYS_mkdir, NO_SET_ID_IN_1, "making directories, without a set-id bit"),
    #[cfg(target_arch = "x86_64")]
    when(SYS_mknod, NO_SET_ID_IN_1, "making pipes, without a set-id bit; devices need a capability"),
];

const TIOCSTI_REQUEST: i32 = 0x5412;
const TIOCLINUX_REQUEST: i32 = 0x541c;

/// Allowed where memory files are not executable unless asked for (`vm.memfd_noexec`, Linux 6.3); elsewhere it answers ENOSYS.
pub(crate) const MEMORY_FILES: Group =
    &[when(SYS_memfd_create, &[without(1, MFD_EXEC)], "memory files of runtimes, never executable")];

/// With `capabilities.network.unix_sockets`.
pub(crate) const UNIX_SOCKETS: Group =
    &[when(SYS_socket, &[UNIX], "sockets among the session's own programs")];

/// Without it: EACCES, like [`FAMILIES_OF_SOCKETS`].
pub(crate) const NO_UNIX_SOCKETS: Group =
    &[when(SYS_socket, &[UNIX], "no sockets of the host: not even by abstract name")];

/// Families that answer EACCES, as a policy of the host would; every other unlisted family answers EPERM.
pub(crate) const FAMILIES_OF_SOCKETS: Group = &[
    when(SYS_socket, &[masked(0, EVERY_BIT, AF_NETLINK)], "no talk with the kernel's network configuration"),
    when(SYS_socket, &[masked(0, EVERY_BIT, AF_PACKET)], "no raw packets"),
];

/// What policy refuses, EPERM.
pub(crate) const REFUSED: Group = &[
    allow(SYS_ptrace, "no program traces another"),
    allow(SYS_process_vm_readv, "no program reads another's memory"),
    allow(SYS_process_vm_writev, "no program writes another's memory"),
    allow(SYS_kcmp, "no program compares others' objects"),
    allow(SYS_bpf, "no program for the kernel"),
    allow(SYS_userfaultfd, "lets a process stop the kernel in the middle of a copy"),
    allow(SYS_perf_event_open, "a large surface"),
    allow(SYS_open_by_handle_at, "opens files outside every mount"),
    allow(SYS_keyctl, "keyrings are not namespaced"),
    allow(SYS_add_key, "keyrings are not namespaced"),
    allow(SYS_request_key, "keyrings are not namespaced"),
    allow(SYS_mount, "the view of the files is fixed"),
    allow(SYS_umount2, "the view of the files is fixed"),
    allow(SYS_pivot_root, "the view of the files is fixed"),
    allow(SYS_chroot, "the view of the files is fixed"),
    allow(SYS_unshare, "namespaces are fixed"),
    allow(SYS_setns, "namespaces are fixed"),
    allow(SYS_sethostname, "namespaces are fixed"),
    allow(SYS_setdomainname, "namespaces are fixed"),
    allow(SYS_init_module, "no kernel modules"),
    allow(SYS_finit_module, "no kernel modules"),
    allow(SYS_delete_module, "no kernel modules"),
    allow(SYS_kexec_load, "no other kernel"),
    allow(SYS_kexec_file_load, "no other kernel"),
    allow(SYS_reboot, "the machine stays up"),
    allow(SYS_swapon, "the machine's memory"),
    allow(SYS_swapoff, "the machine's memory"),
    allow(SYS_acct, "the machine's records"),
    allow(SYS_quotactl, "the machine's quotas"),
    allow(SYS_syslog, "the kernel's log"),
    allow(SYS_settimeofday, "the machine's clock"),
    allow(SYS_clock_settime, "the machine's clock"),
    allow(SYS_clock_adjtime, "the machine's clock"),
    allow(SYS_adjtimex, "the machine's clock"),
    allow(SYS_personality, "no other execution domain"),
    allow(SYS_fanotify_init, "watches files of others"),
    allow(SYS_fanotify_mark, "watches files of others"),
    allow(SYS_mbind, "memory placement of the machine"),
    allow(SYS_set_mempolicy, "memory placement of the machine"),
    allow(SYS_migrate_pages, "memory placement of the machine"),
    allow(SYS_move_pages, "memory placement of the machine"),
    allow(SYS_vhangup, "terminals of others"),
    allow(SYS_pidfd_getfd, "no program takes another's descriptors"),
    #[cfg(target_arch = "x86_64")]
    allow(SYS_iopl, "ports of devices"),
    #[cfg(target_arch = "x86_64")]
    allow(SYS_ioperm, "ports of devices"),
];

/// What the runner needs and a program does not get. Taken away in the child, one small filter more.
pub(crate) const EXTRAS: Group = &[
    when(
        SYS_seccomp,
        &[is(0, SECCOMP_SET_MODE_FILTER.cast_signed())],
        "confine::programs: a program's second filter",
    ),
    allow(SYS_landlock_create_ruleset, "confine::programs::restrict, classes scoped and sealed"),
    allow(SYS_landlock_add_rule, "confine::programs::restrict, classes scoped and sealed"),
    allow(SYS_landlock_restrict_self, "confine::programs::restrict, classes scoped and sealed"),
];
