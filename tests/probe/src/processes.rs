//! Other processes, ours above all, and what a process might have been left with.

use std::fs::File;
use std::io;

use crate::{Case, Seen, raw};

pub(crate) const CASES: &[Case] = &[
    ("kill", |arguments| {
        each(arguments, |pid| raw::call(libc::SYS_kill, [pid, libc::SIGKILL.into(), 0, 0, 0, 0]))
    }),
    ("kill-runner", kill_runner),
    ("limit-runner", |_| {
        let nothing = [0_u64; 2];
        let cpu = libc::RLIMIT_CPU.into();
        raw::call(libc::SYS_prlimit64, [1, cpu, raw::address(&nothing), 0, 0, 0]).map(|_| "limited".into())
    }),
    ("ptrace", |arguments| {
        each(arguments, |pid| raw::call(libc::SYS_ptrace, [libc::PTRACE_SEIZE.into(), pid, 0, 0, 0, 0]))
    }),
    ("memory", |arguments| each(arguments, |pid| File::open(format!("/proc/{pid}/mem")).map(|_| 0))),
    ("environment", |arguments| each(arguments, |pid| File::open(format!("/proc/{pid}/environ")).map(|_| 0))),
    ("their-root", |arguments| {
        each(arguments, |pid| std::fs::read_dir(format!("/proc/{pid}/root")).map(|_| 0))
    }),
    ("descriptors", descriptors),
    ("directory", |_| {
        let here = std::env::current_dir()?;
        let link = std::fs::read_link("/proc/self/cwd")?;
        if here == link {
            Err(io::Error::from_raw_os_error(libc::ENOENT))
        } else {
            Ok(link.display().to_string())
        }
    }),
    ("user-namespace", user_namespace),
    ("mount", |_| {
        raw::call(libc::SYS_mount, [raw::text(c"none"), raw::text(c"."), raw::text(c"tmpfs"), 0, 0, 0])?;
        Ok("mounted".into())
    }),
    ("terminal", |_| {
        raw::call(libc::SYS_ioctl, [0, 0x5412, raw::text(c"x"), 0, 0, 0])?;
        Ok("typed".into())
    }),
    ("surface", surface),
];

/// Tries every process that is named, and the runner; what works on any of them counts.
fn each(arguments: &[String], attempt: impl Fn(i64) -> io::Result<i64>) -> Seen {
    let pids = arguments.iter().filter_map(|argument| argument.parse().ok());
    let mut refusal = io::Error::other("no process was named");
    for pid in pids {
        match attempt(pid) {
            Ok(_) => return Ok(format!("worked on {pid}")),
            Err(error) => refusal = error,
        }
    }
    Err(refusal)
}

/// The runner shares the programs' id. A signal may be sent; what counts is that it lives on, and starts the next program.
fn kill_runner(_: &[String]) -> Seen {
    for signal in 1..=64 {
        let _ = raw::call(libc::SYS_kill, [1, signal, 0, 0, 0, 0]);
    }
    Err(io::Error::from_raw_os_error(libc::EPERM))
}

/// Descriptors beside the standard ones, asked of the kernel and not of `/proc`.
fn descriptors(_: &[String]) -> Seen {
    let open = |number: &i64| raw::call(libc::SYS_fcntl, [*number, libc::F_GETFD.into(), 0, 0, 0, 0]).is_ok();
    let found: Vec<String> = (3..4096).filter(open).map(|number| number.to_string()).collect();
    if found.is_empty() { Err(io::Error::from_raw_os_error(libc::ENOENT)) } else { Ok(found.join(" ")) }
}

fn user_namespace(_: &[String]) -> Seen {
    let user = i64::from(libc::CLONE_NEWUSER);
    if raw::call(libc::SYS_unshare, [user, 0, 0, 0, 0, 0]).is_ok() {
        return Ok("unshare".into());
    }
    // `struct clone_args` with the flag, a stack of nobody's, SIGCHLD.
    let arguments: [u64; 11] = [user.cast_unsigned(), 0, 0, 0, 17, 0, 0, 0, 0, 0, 0];
    let size = i64::try_from(size_of_val(&arguments)).unwrap_or(0);
    match raw::call(libc::SYS_clone3, [raw::address(&arguments), size, 0, 0, 0, 0]) {
        Ok(0) => std::process::exit(0),
        Ok(_) => return Ok("clone3".into()),
        Err(_) => {}
    }
    match raw::call(libc::SYS_clone, [user | 17, 0, 0, 0, 0, 0])? {
        0 => std::process::exit(0),
        _ => Ok("clone".into()),
    }
}

/// Parts of the kernel that no program needs.
fn surface(_: &[String]) -> Seen {
    let zeros = [0_u64; 16];
    let at = raw::address(&zeros);
    let calls = [
        ("io_uring_setup", libc::SYS_io_uring_setup, [1, at, 0, 0, 0, 0]),
        ("userfaultfd", libc::SYS_userfaultfd, [0; 6]),
        ("bpf", libc::SYS_bpf, [0, at, 64, 0, 0, 0]),
        ("perf_event_open", libc::SYS_perf_event_open, [at, 0, -1, -1, 0, 0]),
        ("keyctl", libc::SYS_keyctl, [0, -3, 1, 0, 0, 0]),
        ("add_key", libc::SYS_add_key, [raw::text(c"user"), raw::text(c"x"), at, 1, -3, 0]),
        ("fanotify_init", libc::SYS_fanotify_init, [0, 0, 0, 0, 0, 0]),
        ("seccomp", libc::SYS_seccomp, [0, 0, 0, 0, 0, 0]),
    ];
    let mut refusal = io::Error::other("nothing was tried");
    for (name, number, arguments) in calls {
        match raw::call(number, arguments) {
            Ok(_) => return Ok(name.into()),
            // The call was let through, and did not like its arguments.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EFAULT | libc::EINVAL | libc::E2BIG)) => {
                return Ok(format!("{name}: {error}"));
            }
            Err(error) => refusal = error,
        }
    }
    Err(refusal)
}
