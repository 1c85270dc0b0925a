//! What the broker refuses itself. A filter is inherited and never taken back, so the main thread's list holds only what no
//! role and no program needs, and answers EPERM as the programs' filter does.

use libc::*;

use super::{Group, allow};

/// The main thread, and with it every process we start.
pub(crate) const REFUSED: Group = &[
    allow(SYS_ptrace, "nobody traces anybody"),
    allow(SYS_process_vm_readv, "nobody reads another's memory"),
    allow(SYS_process_vm_writev, "nobody writes another's memory"),
    allow(SYS_kcmp, "nobody compares processes' objects"),
    allow(SYS_bpf, "no program is loaded into the kernel"),
    allow(SYS_init_module, "no kernel module is loaded"),
    allow(SYS_finit_module, "no kernel module is loaded"),
    allow(SYS_delete_module, "no kernel module is removed"),
    allow(SYS_kexec_load, "no other kernel is started"),
    allow(SYS_kexec_file_load, "no other kernel is started"),
    allow(SYS_reboot, "nobody restarts the machine"),
    allow(SYS_swapon, "nobody changes swap"),
    allow(SYS_swapoff, "nobody changes swap"),
    allow(SYS_acct, "nobody turns accounting on"),
    allow(SYS_keyctl, "no kernel keyrings: they are not namespaced"),
    allow(SYS_add_key, "no kernel keyrings: they are not namespaced"),
    allow(SYS_request_key, "no kernel keyrings: they are not namespaced"),
    allow(SYS_io_uring_setup, "its operations pass by every filter"),
    allow(SYS_io_uring_enter, "its operations pass by every filter"),
    allow(SYS_io_uring_register, "its operations pass by every filter"),
    allow(SYS_perf_event_open, "a large surface that nothing here needs"),
    allow(SYS_userfaultfd, "lets a process stop the kernel in the middle of a copy"),
    allow(SYS_open_by_handle_at, "opens files outside every mount"),
    allow(SYS_fanotify_init, "watches files of others"),
    allow(SYS_lookup_dcookie, "a relic of profilers"),
    allow(SYS_clock_settime, "nobody sets the clock"),
    allow(SYS_settimeofday, "nobody sets the clock"),
    allow(SYS_adjtimex, "nobody sets the clock"),
    allow(SYS_clock_adjtime, "nobody sets the clock"),
    allow(SYS_syslog, "nobody reads the kernel's log"),
    allow(SYS_personality, "no other execution domain"),
    allow(SYS_nfsservctl, "a relic without users"),
    allow(SYS_quotactl, "nobody changes quotas"),
    #[cfg(target_arch = "x86_64")]
    allow(SYS_iopl, "nobody touches ports of devices"),
    #[cfg(target_arch = "x86_64")]
    allow(SYS_ioperm, "nobody touches ports of devices"),
    #[cfg(target_arch = "x86_64")]
    allow(SYS_modify_ldt, "a surface that only old emulators need"),
];

/// The threads that read channels or write the trace, on top.
pub(crate) const THREAD_REFUSED: Group = &[
    allow(SYS_socket, "invariant 1: the broker makes no socket after its listeners"),
    allow(SYS_connect, "invariant 1"),
    allow(SYS_bind, "invariant 1"),
    allow(SYS_listen, "invariant 1"),
    allow(SYS_accept, "invariant 1"),
    allow(SYS_accept4, "invariant 1"),
    allow(SYS_execve, "only the main thread starts programs"),
    allow(SYS_execveat, "only the main thread starts programs"),
    allow(SYS_clone3, "only the main thread starts programs"),
    allow(SYS_unshare, "only the main thread changes namespaces"),
    allow(SYS_setns, "only the main thread changes namespaces"),
];
