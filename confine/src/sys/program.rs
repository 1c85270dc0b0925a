//! The fork of a program and what its child does before exec: raw system calls only.

use std::ffi::{CStr, c_char, c_int};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use seccompiler::sock_filter;

use super::birth::{Quiet, reset_signals};

/// Status of a child whose start failed; the caller learns the step over a pipe.
const NOT_STARTED: c_int = 127;

/// The steps a start can fail at, as they travel over the pipe.
pub(crate) const STEPS: [&str; 6] = ["group", "leaf", "descriptors", "directory", "filter", "limits"];
/// The step after all of them.
pub(crate) const EXEC: usize = STEPS.len();

/// What a child needs, all of it made before the fork. The pointer lists end with null.
pub(crate) struct Program<'a> {
    pub(crate) path: &'a CStr,
    pub(crate) arguments: &'a [*const c_char],
    pub(crate) environment: &'a [*const c_char],
    pub(crate) directory: &'a CStr,
    pub(crate) standard: [BorrowedFd<'a>; 3],
    pub(crate) leaf: Option<BorrowedFd<'a>>,
    pub(crate) filter: &'a [sock_filter],
    pub(crate) limits: &'a [(u32, u64, u64)],
    pub(crate) failure: BorrowedFd<'a>,
}

/// Forks; the child becomes the program or reports on `failure`.
pub(crate) fn start(program: &Program<'_>) -> io::Result<i32> {
    let quiet = Quiet::new();
    // SAFETY: the caller has one thread, and the child makes raw system calls only until it execs or exits.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        become_program(program);
    }
    let pid = super::check(pid.into());
    drop(quiet);
    Ok(i32::try_from(pid?).unwrap_or(-1))
}

fn give_up(failure: RawFd, step: usize) -> ! {
    // SAFETY: reads this thread's errno.
    let errno = unsafe { *libc::__errno_location() };
    let [a, b, c, d] = errno.to_le_bytes();
    let message = [u8::try_from(step).unwrap_or(u8::MAX), a, b, c, d];
    // SAFETY: the pointer and length describe the message; the process ends either way.
    unsafe {
        libc::write(failure, message.as_ptr().cast(), message.len());
        loop {
            libc::syscall(libc::SYS_exit_group, NOT_STARTED);
        }
    }
}

/// `struct sock_fprog`.
#[repr(C)]
struct FilterProgram {
    length: u16,
    filter: *const sock_filter,
}

fn become_program(program: &Program<'_>) -> ! {
    let failure = program.failure.as_raw_fd();
    let require = |good: bool, failure: RawFd, step: usize| {
        if !good {
            give_up(failure, step);
        }
    };
    // SAFETY: system calls on numbers and on memory of this function or of `program`, both alive until exec.
    unsafe {
        // A session of its own, not only a group: no program of another session can join the group.
        require(libc::setsid() >= 0, failure, 0);
        if let Some(leaf) = program.leaf {
            require(libc::write(leaf.as_raw_fd(), c"0".as_ptr().cast(), 1) == 1, failure, 1);
        }
        let away = |fd: RawFd| libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 10);
        let failure = {
            let high = away(failure);
            require(high >= 0, failure, 2);
            high
        };
        let [input, output, error] = program.standard;
        let (input, output, error) =
            (away(input.as_raw_fd()), away(output.as_raw_fd()), away(error.as_raw_fd()));
        require(input >= 0 && output >= 0 && error >= 0, failure, 2);
        let placed = libc::dup2(input, 0) == 0
            && libc::dup2(output, 1) == 1
            && libc::dup2(error, 2) == 2
            && libc::dup3(failure, 3, libc::O_CLOEXEC) == 3;
        require(placed, failure, 2);
        let failure = 3;
        require(libc::syscall(libc::SYS_close_range, 4_u32, u32::MAX, 0_u32) == 0, failure, 2);
        require(libc::chdir(program.directory.as_ptr()) == 0, failure, 3);
        reset_signals();
        let filter = FilterProgram {
            length: u16::try_from(program.filter.len()).unwrap_or(0),
            filter: program.filter.as_ptr(),
        };
        let loaded = libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const filter);
        require(loaded == 0, failure, 4);
        for (resource, soft, hard) in program.limits {
            let limit = libc::rlimit { rlim_cur: *soft, rlim_max: *hard };
            let set = libc::syscall(
                libc::SYS_prlimit64,
                0,
                *resource,
                &raw const limit,
                std::ptr::null_mut::<libc::rlimit>(),
            );
            require(set == 0, failure, 5);
        }
        libc::execve(program.path.as_ptr(), program.arguments.as_ptr(), program.environment.as_ptr());
        give_up(failure, EXEC)
    }
}
