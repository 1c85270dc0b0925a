//! `clone3` and what the child does before exec: raw system calls only, for it shares nothing but a copy of the memory.

use std::ffi::{CStr, c_char, c_int, c_long};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::{null, null_mut};

use super::signal::Line;

/// Status of a child that could not exec: the line on its log names the step.
const NOT_STARTED: c_int = 126;

const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// `struct clone_args` of the kernel, as of Linux 5.7.
#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// What a child needs, all of it made before the clone.
pub(crate) struct Birth<'a> {
    pub(crate) file: BorrowedFd<'a>,
    pub(crate) name: &'a CStr,
    pub(crate) null: BorrowedFd<'a>,
    pub(crate) log: BorrowedFd<'a>,
    pub(crate) control: BorrowedFd<'a>,
}

/// Blocks every signal of the calling thread until dropped: no handler of the parent may run in a child.
pub(super) struct Quiet {
    before: libc::sigset_t,
}

impl Quiet {
    pub(super) fn new() -> Self {
        // SAFETY: signal sets are plain data; both pointers are to sets of ours.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Quiet { before }
        }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // SAFETY: restores the set that `new` read.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, null_mut()) };
    }
}

fn clone3(args: &CloneArgs) -> c_long {
    // SAFETY: the pointer and size describe `args`. Without CLONE_VM and without a stack this is a fork: the child goes on
    // with a copy of this stack, and every caller lets it make raw system calls only.
    unsafe { libc::syscall(libc::SYS_clone3, std::ptr::from_ref(args), size_of::<CloneArgs>()) }
}

/// Starts the child in namespaces of its own; returns pid and pidfd.
pub(crate) fn start(birth: &Birth<'_>, cgroup: Option<BorrowedFd<'_>>) -> io::Result<(i32, OwnedFd)> {
    let namespaces = libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    let mut pidfd: c_int = -1;
    let mut args = CloneArgs {
        flags: u64::from((namespaces | libc::CLONE_PIDFD).cast_unsigned()),
        pidfd: (&raw mut pidfd) as u64,
        exit_signal: u64::from(libc::SIGCHLD.cast_unsigned()),
        ..CloneArgs::default()
    };
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = u64::try_from(cgroup.as_raw_fd()).unwrap_or(u64::MAX);
    }
    let quiet = Quiet::new();
    let pid = clone3(&args);
    if pid == 0 {
        become_program(birth);
    }
    let pid = super::check(pid);
    drop(quiet);
    let pid = pid?;
    // SAFETY: the kernel has just written this number for us (CLONE_PIDFD).
    let pidfd = unsafe { super::own(pidfd) };
    Ok((i32::try_from(pid).unwrap_or(-1), pidfd))
}

/// A child that holds a fresh user namespace open and does nothing else; killed and reaped on drop.
pub(crate) struct Holder {
    pid: i32,
    pidfd: OwnedFd,
}

impl Holder {
    /// Starts it.
    pub(crate) fn new() -> io::Result<Self> {
        let mut pidfd: c_int = -1;
        // No exit signal: whoever counts the caller's children does not see this one.
        let args = CloneArgs {
            flags: u64::from((libc::CLONE_NEWUSER | libc::CLONE_PIDFD).cast_unsigned()),
            pidfd: (&raw mut pidfd) as u64,
            ..CloneArgs::default()
        };
        let quiet = Quiet::new();
        let pid = clone3(&args);
        if pid == 0 {
            loop {
                // SAFETY: waits for the SIGKILL; all other signals are blocked. If the caller dies first it follows.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
                    libc::syscall(libc::SYS_ppoll, null::<u8>(), 0, null::<u8>(), null::<u8>(), 8);
                }
            }
        }
        let pid = super::check(pid);
        drop(quiet);
        let pid = i32::try_from(pid?).unwrap_or(-1);
        // SAFETY: the kernel has just written this number for us (CLONE_PIDFD).
        Ok(Holder { pid, pidfd: unsafe { super::own(pidfd) } })
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let fd = self.pidfd.as_raw_fd();
        // SAFETY: signals and reaps our own child through its pidfd; null pointers where nothing is asked for. `__WALL`
        // because it has no exit signal.
        unsafe {
            libc::syscall(libc::SYS_pidfd_send_signal, fd, libc::SIGKILL, null::<u8>(), 0);
            libc::syscall(
                libc::SYS_waitid,
                libc::P_PIDFD,
                fd,
                null::<u8>(),
                libc::WEXITED | libc::__WALL,
                null::<u8>(),
            );
        }
    }
}

/// Says which step failed, on the log, and ends the child.
fn give_up(log: RawFd, step: &[u8]) -> ! {
    // SAFETY: reads this thread's errno.
    let errno = unsafe { *libc::__errno_location() };
    let line =
        Line::new().text(b"not started: ").text(step).text(b": errno ").number(errno.into()).text(b"\n");
    // SAFETY: the pointer and length describe the line; the process ends either way.
    unsafe {
        libc::write(log, line.bytes().as_ptr().cast(), line.bytes().len());
        loop {
            libc::syscall(libc::SYS_exit_group, NOT_STARTED);
        }
    }
}

/// Default dispositions and an empty mask: exec keeps ignored signals ignored and blocked ones blocked.
pub(super) fn reset_signals() {
    /// The kernel's `struct sigaction`, larger than on any architecture: zeros are the default disposition.
    const DEFAULT: [u64; 8] = [0; 8];
    /// Bytes of the kernel's signal set.
    const SET: usize = 8;
    for signal in 1..=64 {
        // SAFETY: the kernel reads within `DEFAULT`. Past the C library, which hides two signals of its own that a caller
        // of ours may have left ignored; the kernel refuses SIGKILL and SIGSTOP, which cannot be ignored.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, DEFAULT.as_ptr(), null::<u8>(), SET) };
    }
    // SAFETY: as above; an all-zero set is empty.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, DEFAULT.as_ptr(), null::<u8>(), SET);
    }
}

/// SIGCHLD as it is by default: a caller that left it ignored would have the kernel reap what is to be waited for.
pub(crate) fn expect_children() {
    const DEFAULT: [u64; 8] = [0; 8];
    // SAFETY: as in `reset_signals`.
    unsafe {
        libc::syscall(libc::SYS_rt_sigaction, libc::SIGCHLD, DEFAULT.as_ptr(), null::<u8>(), 8_usize);
    }
}

fn become_program(birth: &Birth<'_>) -> ! {
    let mut log = birth.log.as_raw_fd();
    let argv: [*const c_char; 2] = [birth.name.as_ptr(), null()];
    let envp: [*const c_char; 1] = [null()];
    // SAFETY: system calls on numbers and on memory of this function or of `birth`, both alive until exec.
    unsafe {
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) != 0 {
            give_up(log, b"death signal");
        }
        // Away from the caller's terminal: its Ctrl-C is for the caller alone.
        libc::setsid();
        libc::umask(0o022);
        if libc::chdir(c"/".as_ptr()) != 0 {
            give_up(log, b"directory");
        }
        // First out of the way of 0 to 4, whatever numbers they have, then into place.
        let away = |fd: RawFd| libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 10);
        let high_log = away(log);
        if high_log < 0 {
            give_up(log, b"descriptors");
        }
        log = high_log;
        let (null_fd, control, file) =
            (away(birth.null.as_raw_fd()), away(birth.control.as_raw_fd()), away(birth.file.as_raw_fd()));
        if null_fd < 0 || control < 0 || file < 0 {
            give_up(log, b"descriptors");
        }
        let placed = libc::dup2(null_fd, 0) == 0
            && libc::dup2(null_fd, 1) == 1
            && libc::dup2(log, 2) == 2
            && libc::dup2(control, 3) == 3
            && libc::dup3(file, 4, libc::O_CLOEXEC) == 4;
        if !placed {
            give_up(log, b"descriptors");
        }
        if libc::syscall(libc::SYS_close_range, 5_u32, u32::MAX, 0_u32) != 0 {
            give_up(2, b"close descriptors");
        }
        // A parent that died before the death signal was armed left its end of the control channel closed.
        let mut poll = libc::pollfd { fd: 3, events: 0, revents: 0 };
        if libc::poll(&raw mut poll, 1, 0) > 0 && poll.revents & libc::POLLHUP != 0 {
            give_up(2, b"the parent is gone");
        }
        reset_signals();
        libc::syscall(libc::SYS_execveat, 4, c"".as_ptr(), argv.as_ptr(), envp.as_ptr(), libc::AT_EMPTY_PATH);
        give_up(2, b"exec")
    }
}
