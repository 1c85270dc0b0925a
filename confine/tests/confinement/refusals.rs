//! The filters, call by call: what a role does not list ends it with 71 and a line that names the call, what the runner
//! and its programs do not list is refused with an errno, and what is listed passes.

use confine::Role;
use confine::spawn::Exit;

use crate::Case;
use crate::driver::{Scratch, ready};

pub(crate) const CASES: &[Case] = &[
    ("a call that a role does not list ends it, and its log names the call", unlisted_calls_end_a_role),
    ("the runner answers unlisted calls with an errno", the_runner_refuses_with_an_errno),
    ("listed calls pass, the same calls with other arguments do not", listed_calls_pass),
    ("a panic, an abort, a crash and a failed allocation under every filter exit with 70", honest_exits),
    ("a thread can be started under the filters that list it", threads_start),
    ("a sealed sandbox-host makes no executable page and has no cache", sealing),
];

/// A call as a hostile process makes it: name, number, arguments as the child reads them.
struct Probe {
    name: &'static str,
    call: i64,
    arguments: &'static str,
}

const fn probe(name: &'static str, call: i64, arguments: &'static str) -> Probe {
    Probe { name, call, arguments }
}

impl Probe {
    fn order(&self) -> String {
        format!("call {} {}", self.call, self.arguments)
    }
}

/// Calls that issue 2 names, and others that let a process out of where it is.
const PROBES: &[Probe] = &[
    probe("openat", libc::SYS_openat, "-100 @/workdir/new 66 420"),
    probe("openat2", libc::SYS_openat2, "-100 @/etc/passwd @ 24"),
    probe("socket", libc::SYS_socket, "2 1 0"),
    probe("connect", libc::SYS_connect, "3 @ 16"),
    probe("execve", libc::SYS_execve, "@/bin/sh 0 0"),
    probe("execveat", libc::SYS_execveat, "3 @ 0 0 4096"),
    probe("ptrace", libc::SYS_ptrace, "16 1 0 0"),
    probe("unshare", libc::SYS_unshare, "268435456"),
    probe("rename", libc::SYS_renameat2, "-100 @/a -100 @/b 0"),
    probe("mount", libc::SYS_mount, "@none @/ @tmpfs 0 0"),
    probe("bpf", libc::SYS_bpf, "0 @ 64"),
    probe("io_uring_setup", libc::SYS_io_uring_setup, "8 @"),
    probe("process_vm_readv", libc::SYS_process_vm_readv, "1 0 0 0 0 0"),
    probe("kill", libc::SYS_kill, "1 9"),
    probe("tgkill", libc::SYS_tgkill, "1 1 9"),
    probe("mprotect to executable", libc::SYS_mprotect, "0 4096 5"),
    probe("mmap to executable", libc::SYS_mmap, "0 4096 5 34 -1 0"),
    probe("fork", libc::SYS_clone, "17 0 0 0 0"),
    probe("clone of a user namespace", libc::SYS_clone, "268435473 0 0 0 0"),
    probe("setns", libc::SYS_setns, "3 0"),
    probe("memfd_create executable", libc::SYS_memfd_create, "@x 16"),
    probe("rt_sigaction", libc::SYS_rt_sigaction, "31 0 0 8"),
    probe("prctl dumpable", libc::SYS_prctl, "4 1 0 0 0"),
    probe("sendmmsg", libc::SYS_sendmmsg, "3 0 0 0"),
    probe("setsockopt", libc::SYS_setsockopt, "3 1 2 @ 4"),
    probe("fchmodat set-id", libc::SYS_fchmodat, "-100 @/workdir/new 2541"),
    probe("x32 getpid", 0x4000_0000 + libc::SYS_getpid, ""),
];

/// What each role lists among the probes: those pass, or fail for a reason of their own, and are tried elsewhere.
fn lists(role: Role, probe: &Probe) -> bool {
    let listed: &[&str] = match role {
        Role::Fileserver => &["openat2"],
        Role::SandboxHost => &["openat", "openat2", "rename", "mprotect to executable", "mmap to executable"],
        Role::Egress => &["socket", "connect"],
        Role::Door | Role::Compiler | Role::Runner => &[],
    };
    listed.contains(&probe.name)
}

fn unlisted_calls_end_a_role() {
    for role in Role::ALL.into_iter().filter(|role| *role != Role::Runner) {
        let scratch = Scratch::new("unlisted");
        for probe in PROBES.iter().filter(|probe| !lists(role, probe)) {
            let ended = ready(role, &scratch).probe(&probe.order(), &[]);
            assert_eq!(ended.exit, Exit::Status(71), "{role:?} {} {ended:?}", probe.name);
            assert_eq!(
                confine::handler::refused_call(&ended.log),
                Some(probe.call),
                "{role:?} {}",
                probe.name
            );
            assert_eq!(ended.answer, None, "{role:?} {}", probe.name);
        }
    }
}

fn the_runner_refuses_with_an_errno() {
    use libc::{EACCES, ENOSYS, EPERM};
    let cases: &[(&str, i64, &str, i32)] = &[
        ("unix socket", libc::SYS_socket, "1 1 0", EACCES),
        ("netlink socket", libc::SYS_socket, "16 3 0", EACCES),
        ("packet socket", libc::SYS_socket, "17 3 0", EACCES),
        ("vsock", libc::SYS_socket, "40 1 0", EPERM),
        ("raw socket", libc::SYS_socket, "2 3 1", EPERM),
        ("SCTP", libc::SYS_socket, "2 1 132", EPERM),
        ("ptrace", libc::SYS_ptrace, "16 1 0 0", EPERM),
        ("process_vm_readv", libc::SYS_process_vm_readv, "1 0 0 0 0 0", EPERM),
        ("unshare", libc::SYS_unshare, "268435456", EPERM),
        ("mount", libc::SYS_mount, "@none @/ @tmpfs 0 0", EPERM),
        ("bpf", libc::SYS_bpf, "0 @ 64", EPERM),
        ("keyctl", libc::SYS_keyctl, "0 0", EPERM),
        ("fork with a namespace", libc::SYS_clone, "268435473 0 0 0 0", EPERM),
        ("clone3", libc::SYS_clone3, "@ 64", ENOSYS),
        ("openat2", libc::SYS_openat2, "-100 @/etc/passwd @ 24", ENOSYS),
        // EPERM where the broker's own filter is above it, ENOSYS alone.
        ("io_uring_setup", libc::SYS_io_uring_setup, "8 @", ENOSYS),
        ("a number nobody knows", 0x3fff, "", ENOSYS),
        ("x32 getpid", 0x4000_0000 + libc::SYS_getpid, "", ENOSYS),
        ("executable memory file", libc::SYS_memfd_create, "@x 16", EPERM),
        ("execveat by descriptor", libc::SYS_execveat, "3 @ 0 0 4096", EPERM),
        ("typing for others", libc::SYS_ioctl, "0 21522 @x", EPERM),
        ("becoming dumpable", libc::SYS_prctl, "4 1 0 0 0", EPERM),
        ("chmod set-user-id", libc::SYS_fchmodat, "-100 @/tmp/none 2541", EPERM),
        ("chmod set-group-id", libc::SYS_fchmodat, "-100 @/tmp/none 1517", EPERM),
        ("fchmodat2 set-user-id", libc::SYS_fchmodat2, "-100 @/tmp/none 2541 0", EPERM),
        ("creating set-user-id", libc::SYS_openat, "-100 @/tmp/none 66 2541", EPERM),
        ("mknod set-user-id", libc::SYS_mknodat, "-100 @/tmp/none 34816 0", EPERM),
    ];
    for (name, call, arguments, errno) in cases {
        let scratch = Scratch::new("runner");
        let ended = ready(Role::Runner, &scratch).probe(&format!("call {call} {arguments}"), &[]);
        assert_eq!(ended.answer, Some(format!("errno {errno}")), "{name} {ended:?}");
        assert_eq!(ended.exit, Exit::Status(0), "{name} {ended:?}");
    }
    // `kill` is listed: in the runner's namespace there are programs only, and another role has no number there.
    let scratch = Scratch::new("runner-kill");
    let other = ready(Role::Door, &scratch);
    let order = format!("call {} {} 9", libc::SYS_kill, other.child.pid);
    let ended = ready(Role::Runner, &scratch).probe(&order, &[]);
    assert_eq!(ended.answer, Some(format!("errno {}", libc::ESRCH)), "{ended:?}");
    assert_eq!(other.child.try_wait().unwrap(), None, "the door lives");
}

fn listed_calls_pass() {
    use Role::{Compiler, Door, Egress, Fileserver, Runner, SandboxHost};
    // `Some` is what the call answers, `None` is the end with 71.
    let cases: &[(Role, &str, i64, &str, Option<&str>)] = &[
        (Door, "allocating", libc::SYS_mmap, "0 4096 3 34 -1 0", Some("ok")),
        (Door, "an event descriptor", libc::SYS_eventfd2, "0 0", Some("ok 4")),
        (Door, "aborting oneself", libc::SYS_tgkill, "1 1 0", None),
        (Fileserver, "opening to read", libc::SYS_openat, "-100 @/workdir/file 0", Some("ok 4")),
        (Fileserver, "opening outside", libc::SYS_openat, "-100 @/ 0", Some("errno 13")),
        (Fileserver, "opening to write", libc::SYS_openat, "-100 @/workdir/file 1", None),
        (Fileserver, "opening to append", libc::SYS_openat, "-100 @/workdir/file 1024", None),
        (Fileserver, "opening to truncate", libc::SYS_openat, "-100 @/workdir/file 512", None),
        (Fileserver, "a file without a name", libc::SYS_openat, "-100 @/workdir 4259840", None),
        (
            Fileserver,
            "looking at a name",
            libc::SYS_newfstatat,
            "-100 @/workdir/absent @ 256",
            Some("errno 2"),
        ),
        (Fileserver, "looking through a link", libc::SYS_newfstatat, "-100 @/workdir/absent @ 0", None),
        (Fileserver, "reading into two places", libc::SYS_preadv, "-1 0 0 0 0", Some("errno 9")),
        (Fileserver, "ending a channel", libc::SYS_shutdown, "-1 2", Some("errno 9")),
        (Fileserver, "ending half a channel", libc::SYS_shutdown, "-1 0", None),
        (Fileserver, "a memory file", libc::SYS_memfd_create, "@x 11", Some("ok 4")),
        (
            SandboxHost,
            "openat2, whose mode cannot be judged",
            libc::SYS_openat2,
            "-100 @/workdir/x @ 24",
            Some("errno 38"),
        ),
        (SandboxHost, "opening to write", libc::SYS_openat, "-100 @/workdir/new 66 420", Some("ok 4")),
        (SandboxHost, "creating set-id", libc::SYS_openat, "-100 @/workdir/new 66 2541", None),
        (
            SandboxHost,
            "writing what is read-only",
            libc::SYS_openat,
            "-100 @/runtime/file 1",
            Some("errno 30"),
        ),
        (SandboxHost, "an executable page before sealing", libc::SYS_mmap, "0 4096 5 34 -1 0", Some("ok")),
        (Egress, "a TCP socket", libc::SYS_socket, "2 524289 0", Some("ok 4")),
        (Egress, "a UDP socket", libc::SYS_socket, "10 526338 0", Some("ok 4")),
        (Egress, "MPTCP, whose ports Landlock does not bound", libc::SYS_socket, "2 1 262", None),
        (Egress, "an AppleTalk socket", libc::SYS_socket, "5 2 0", None),
        (Egress, "a raw socket", libc::SYS_socket, "2 3 1", None),
        (Egress, "a Unix socket", libc::SYS_socket, "1 1 0", None),
        (Egress, "a netlink socket", libc::SYS_socket, "16 3 0", None),
        (Compiler, "allocating", libc::SYS_mmap, "0 4096 3 34 -1 0", Some("ok")),
        (Compiler, "opening", libc::SYS_openat, "-100 @/ 0", None),
        (Runner, "a TCP socket", libc::SYS_socket, "2 524289 0", Some("ok 4")),
        (Runner, "a memory file", libc::SYS_memfd_create, "@x 1", Some("ok 4")),
        (Runner, "an executable page", libc::SYS_mmap, "0 4096 5 34 -1 0", Some("ok")),
    ];
    for (role, name, call, arguments, expected) in cases {
        let scratch = Scratch::new("listed");
        std::fs::write(scratch.0.join("file"), "x").unwrap();
        let ended = ready(*role, &scratch).probe(&format!("call {call} {arguments}"), &[]);
        match expected {
            Some(expected) => {
                let answer = ended.answer.clone().unwrap_or_default();
                assert!(answer.starts_with(expected), "{role:?} {name} {ended:?}");
                assert_eq!(ended.exit, Exit::Status(0), "{role:?} {name} {ended:?}");
            }
            None => {
                assert_eq!(ended.exit, Exit::Status(71), "{role:?} {name} {ended:?}");
                assert_eq!(confine::handler::refused_call(&ended.log), Some(*call), "{role:?} {name}");
            }
        }
    }
}

fn honest_exits() {
    for role in Role::ALL {
        let scratch = Scratch::new("exits");
        let ended = ready(role, &scratch).probe("panic", &[]);
        assert_eq!(ended.exit, Exit::Status(70), "{role:?} {ended:?}");
        let line = ended.log.strip_prefix("panicked at ").unwrap_or_default();
        assert!(line.contains("child.rs:") && !ended.log.contains("purpose"), "{role:?} {ended:?}");

        let ended = ready(role, &scratch).probe("abort", &[]);
        assert_eq!((ended.exit, ended.log.as_str()), (Exit::Status(70), "aborted\n"), "{role:?}");

        for crash in ["fault", "overflow"] {
            let ended = ready(role, &scratch).probe(crash, &[]);
            let line = format!("crashed by signal {}\n", libc::SIGSEGV);
            assert_eq!((ended.exit, ended.log), (Exit::Status(70), line), "{role:?} {crash}");
        }

        let ended = ready(role, &scratch).probe(&format!("allocate {}", isize::MAX), &[]);
        assert_eq!(ended.exit, Exit::Status(70), "{role:?} {ended:?}");
        assert!(ended.log.ends_with("aborted\n"), "{role:?} {ended:?}");
    }
}

fn threads_start() {
    for role in Role::ALL {
        let scratch = Scratch::new("threads");
        let ended = ready(role, &scratch).probe("thread", &[]);
        assert_eq!(ended.answer.as_deref(), Some("ok 7"), "{role:?} {ended:?}");
    }
}

fn sealing() {
    let cases: &[(&str, Option<&str>)] = &[
        ("call 9 0 4096 3 34 -1 0", Some("ok")),
        ("call 9 0 4096 5 34 -1 0", None),
        ("call 9 0 4096 7 34 -1 0", None),
        ("call 10 0 4096 5", None),
        ("call 329 0 4096 5 0", None),
        ("read /runtime/file", Some("ok \"x\"")),
        ("write /session/file", Some("ok ()")),
        ("read /cache/file", Some("errno 13")),
        ("seal list /", None),
        ("map /runtime/file", None),
        ("thread", Some("ok 7")),
    ];
    if cfg!(not(target_arch = "x86_64")) {
        println!("NOT RUN: the numbers of this table are x86_64's");
        return;
    }
    for (order, expected) in cases {
        let scratch = Scratch::new("sealed");
        std::fs::write(scratch.0.join("file"), "x").unwrap();
        let ended = ready(Role::SandboxHost, &scratch).probe(&format!("seal {order}"), &[]);
        match expected {
            Some(expected) => {
                assert!(ended.answer.clone().unwrap_or_default().starts_with(expected), "{order} {ended:?}");
            }
            None => assert_eq!(ended.exit, Exit::Status(71), "{order} {ended:?}"),
        }
    }
    // Before sealing the cache is there to map.
    let scratch = Scratch::new("unsealed");
    std::fs::write(scratch.0.join("file"), "x").unwrap();
    let started = ready(Role::SandboxHost, &scratch);
    assert_eq!(started.probe("read /cache/file", &[]).answer.as_deref(), Some("ok \"x\""));
    // And only the cache can be mapped as code, for it alone is mounted without noexec.
    for (path, mapped) in [("/cache/file", true), ("/workdir/file", false), ("/runtime/file", false)] {
        let ended = ready(Role::SandboxHost, &scratch).probe(&format!("map {path}"), &[]);
        assert_eq!(ended.answer.unwrap_or_default().starts_with("ok"), mapped, "{path}");
    }
}
