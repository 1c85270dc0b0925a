//! The broker's own confinement: what it keeps, what it refuses, and that its children inherit nothing they need.

use std::os::fd::AsFd;

use confine::Role;
use confine::inspect::{Expected, check};
use confine::spawn::Exit;

use crate::Case;
use crate::driver::{Scratch, ready, receive, send, start};
use crate::raw;

/// The name under which this binary plays the broker.
pub(crate) const NAME: &str = "broker-under-test";

pub(crate) const CASES: &[Case] =
    &[("a confined broker keeps its list and starts confined roles", confined_broker)];

fn confined_broker() {
    let ended = start(NAME).probe("go", &[]);
    assert_eq!(ended.answer.as_deref(), Some("good"), "{ended:?}");
    assert_eq!(ended.exit, Exit::Status(71), "its last act is a call its threads refuse: {ended:?}");
    assert_eq!(confine::handler::refused_call(&ended.log), Some(libc::SYS_socket));
}

/// Plays the broker in a process of its own: confines itself, starts every role, looks at them.
pub(crate) fn child() -> ! {
    // Failures of this process are seen as a panic: 70 and a line.
    confine::handler::arm();
    let control = raw::inherited(3);
    send(control.as_fd(), "hello", &[]);
    receive(control.as_fd());
    // Its procfs must show its own PID namespace, as the host's shows the real broker's.
    nix_mounts();
    confine::enter_broker(confine::Rights::Root).unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    // CHOWN DAC_OVERRIDE FOWNER KILL SETGID SETUID SETPCAP SYS_PTRACE SYS_ADMIN.
    let kept: u64 = [0, 1, 3, 5, 6, 7, 8, 19, 21].iter().fold(0, |bits, number| bits | 1 << number);
    for (set, bits) in [("CapInh", 0), ("CapPrm", kept), ("CapEff", kept), ("CapBnd", kept), ("CapAmb", 0)] {
        assert!(status.contains(&format!("{set}:\t{bits:016x}")), "{set} in {status}");
    }
    for line in ["NoNewPrivs:\t1", "Seccomp:\t2", "Seccomp_filters:\t1"] {
        assert!(status.contains(line), "{line} in {status}");
    }
    for (call, arguments) in [
        (libc::SYS_ptrace, [16, 1, 0, 0, 0, 0]),
        (libc::SYS_bpf, [0; 6]),
        (libc::SYS_keyctl, [0; 6]),
        (libc::SYS_io_uring_setup, [8, 0, 0, 0, 0, 0]),
        (libc::SYS_open_by_handle_at, [0; 6]),
    ] {
        assert_eq!(raw::call(call, arguments).unwrap_err().raw_os_error(), Some(libc::EPERM), "{call}");
    }
    for role in Role::ALL {
        let scratch = Scratch::new("broker");
        let started = ready(role, &scratch);
        let expected = crate::process::expected(role);
        check(started.child.pid, &expected).unwrap();
        assert_eq!(started.end(None).exit, Exit::Status(0), "{role:?}");
    }
    // A child that has not loaded its own filter shows the inherited one, and is not believed for it.
    let unconfined = start(Role::Door.name());
    assert!(
        check(unconfined.child.pid, &Expected { uid: 0, gid: 0, ..crate::process::expected(Role::Door) })
            .is_err()
    );
    unconfined.child.kill().unwrap();
    assert_eq!(unconfined.end(None).exit, Exit::Signal(libc::SIGKILL));

    send(control.as_fd(), "good", &[]);
    let thread = std::thread::spawn(|| {
        confine::enter_broker_thread().unwrap();
        raw::call(libc::SYS_socket, [2, 1, 0, 0, 0, 0])
    });
    let _ = thread.join();
    std::process::exit(9)
}

fn nix_mounts() {
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
    mount("proc", "/proc", "proc", MountFlags::empty(), None::<&std::ffi::CStr>).unwrap();
}
