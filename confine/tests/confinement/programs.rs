//! Programs as the runner starts them, in every class: what they may touch, what a program does not inherit, how a start fails.

use std::ffi::OsString;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use confine::Role;
use confine::programs::{Grants, Limits, Start, restrict};
use confine::spawn::Exit;

use crate::Case;
use crate::driver::{Gifts, Scratch, start, tree};

/// The name under which this binary plays a program that makes one call.
pub(crate) const NAME: &str = "program-under-test";

pub(crate) const CASES: &[Case] = &[
    ("programs reach what their class grants and nothing else", programs_of_each_class),
    ("a program inherits the filter and loses the runner's extras", programs_filter),
    ("a program starts clean", programs_start_clean),
    ("programs reach their directory below one that is closed, and nothing beside it", closed_ancestors),
    ("a start that fails says at which step", failed_starts),
];

/// One run: `class`, the directory, the program and its arguments, separated by a byte no test uses.
const SEPARATOR: char = '\u{1f}';

/// A class of containment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Advisory,
    Scoped,
    Sealed,
}

use Class::{Advisory, Scoped, Sealed};

/// What the runner under test answers.
pub(crate) fn run(class: Class, scratch: &Scratch, command: &[&str]) -> String {
    run_keeping(class, scratch, &[], command)
}

/// The same with paths that programs may not change.
pub(crate) fn run_keeping(class: Class, scratch: &Scratch, kept: &[&str], command: &[&str]) -> String {
    let started = start(Role::Runner.name());
    let workdir = scratch.0.to_str().unwrap();
    let gifts = Gifts {
        network: None,
        trees: vec![(workdir, tree(&scratch.0, false))],
        composed: class == Sealed,
        read_only: kept.to_vec(),
    };
    assert_eq!(started.begin(&gifts), "ready");
    let word = match class {
        Advisory => "advisory",
        Scoped => "scoped",
        Sealed => "sealed",
    };
    let mut words = vec![word, workdir];
    words.extend_from_slice(command);
    let ended = started.probe(&format!("program {}", words.join(&SEPARATOR.to_string())), &[]);
    assert_eq!(ended.exit, Exit::Status(0), "{command:?} {ended:?}");
    ended.answer.unwrap()
}

/// In the runner: restricts itself, starts the program, answers with its output and status.
pub(crate) fn obey(order: &str) -> String {
    let words: Vec<&str> = order.split(SEPARATOR).collect();
    let [class, workdir, program, arguments @ ..] = words.as_slice() else { return "no order".into() };
    let own = std::env::var_os("unset").unwrap_or_default();
    assert!(own.is_empty());
    if *class != "advisory" {
        let mut programs: Vec<PathBuf> =
            PROGRAMS.iter().filter_map(|name| Path::new("/usr/bin").join(name).canonicalize().ok()).collect();
        if is_own(program) {
            programs.push(PathBuf::from(program));
        }
        let composed = *class == "sealed";
        let grants =
            Grants { writable: vec![PathBuf::from(workdir)], programs, composed, ..Grants::default() };
        if let Err(error) = restrict(&grants) {
            return format!("restrict: {error}");
        }
    }
    let (mut read, write) = std::io::pipe().unwrap();
    let arguments: Vec<OsString> = std::iter::once(program).chain(arguments).map(OsString::from).collect();
    let arguments = match arguments.as_slice() {
        [program, rest @ ..] if is_own(program) => [&[OsString::from(NAME)], rest].concat(),
        other => other.to_vec(),
    };
    let started = confine::programs::start(&Start {
        program: Path::new(program),
        arguments: &arguments,
        environment: &[("PATH".into(), "/usr/bin".into()), ("WORKDIR".into(), workdir.into())],
        directory: Path::new(workdir),
        stdin: None,
        stdout: write.as_fd(),
        stderr: write.as_fd(),
        leaf: None,
        limits: Limits { open_files: Some(64), file_size: Some(4096), ..Limits::default() },
    });
    drop(write);
    let pid = match started {
        Ok(pid) => rustix::process::Pid::from_raw(pid),
        Err(error) => return format!("{}: {}", error.step, error.cause.raw_os_error().unwrap_or(0)),
    };
    let mut output = String::new();
    read.read_to_string(&mut output).unwrap();
    let (_, status) = rustix::process::waitpid(pid, rustix::process::WaitOptions::empty()).unwrap().unwrap();
    format!("{output}status {:?}", status.exit_status().or(status.terminating_signal()).unwrap())
}

/// Whether a path names this binary as [`install`] left it: it is started as [`NAME`].
fn is_own(program: impl AsRef<Path>) -> bool {
    program.as_ref().file_name().is_some_and(|name| name == NAME)
}

/// Programs that are allowed beside this one.
const PROGRAMS: [&str; 12] =
    ["bash", "cat", "ls", "mv", "mkdir", "chmod", "touch", "rm", "rmdir", "ln", "readlink", "stat"];

/// Where this binary stands as a program: in the system's trees, which every class sees.
pub(crate) fn own_program() -> String {
    installed().join(NAME).to_str().unwrap().to_owned()
}

/// A directory below `/usr`, without a link in its path.
pub(crate) fn installed() -> PathBuf {
    Path::new("/usr/local/sbin").canonicalize().unwrap()
}

/// Puts a copy of this binary there: on a file system of its own, in a mount namespace of this process's own, which every
/// id may write. The host sees nothing of it. To be called with one thread.
pub(crate) fn install() {
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
    mount("none", installed(), "tmpfs", MountFlags::empty(), None).unwrap();
    std::fs::set_permissions(installed(), PermissionsExt::from_mode(0o777)).unwrap();
    let path = installed().join(NAME);
    std::fs::copy(std::env::current_exe().unwrap(), &path).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
}

/// As a program: makes the one call and prints what it answered.
pub(crate) fn child(order: &str) -> ! {
    println!("{}", crate::child::obey(order, Vec::new()));
    std::process::exit(0)
}

/// Commands of bash with what they print, under `scoped` and `sealed`.
const COMMANDS: &[(&str, &str, &str)] = &[
    ("echo hello > f; cat f", "hello\nstatus 0", "hello\nstatus 0"),
    ("mkdir -p a b; echo x > a/x; mv a/x b/; cat b/x", "x\nstatus 0", "x\nstatus 0"),
    ("echo x > /dev/null; echo $?", "0\nstatus 0", "0\nstatus 0"),
    ("cat /etc/hostname 2>/dev/null; echo $?", "1\nstatus 0", "1\nstatus 0"),
    ("echo x 2>/dev/null > /tmp/outside; echo $?", "1\nstatus 0", "1\nstatus 0"),
    ("/usr/bin/id 2>/dev/null; echo $?", "126\nstatus 0", "126\nstatus 0"),
    ("./planted 2>/dev/null; echo $?", "126\nstatus 0", "126\nstatus 0"),
    ("ls / >/dev/null 2>&1; echo $?", "2\nstatus 0", "2\nstatus 0"),
    ("chmod u+s f 2>/dev/null; echo $?", "1\nstatus 0", "1\nstatus 0"),
    ("chmod 600 f; echo $?", "0\nstatus 0", "0\nstatus 0"),
    ("kill -9 $$", "status 9", "status 9"),
    // The loader may be executed, but nothing of a noexec mount can be mapped as code.
    ("/lib64/ld-linux-x86-64.so.2 ./planted 2>/dev/null; echo $?", "127\nstatus 0", "127\nstatus 0"),
    // Denied, or not there at all.
    ("[ -e /etc/hostname ]; echo $?", "0\nstatus 0", "1\nstatus 0"),
    ("[ -e /var/log ] || [ -e /sys ] || [ -e /root ]; echo $?", "0\nstatus 0", "1\nstatus 0"),
    (
        "cat /usr/include/*.h /usr/share/doc/*/copyright 2>/dev/null | read; echo $?",
        "1\nstatus 0",
        "0\nstatus 0",
    ),
];

fn programs_of_each_class() {
    let scratch = Scratch::new("classes");
    std::fs::set_permissions(&scratch.0, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(scratch.0.join("planted"), std::fs::read("/usr/bin/true").unwrap()).unwrap();
    std::fs::set_permissions(scratch.0.join("planted"), PermissionsExt::from_mode(0o755)).unwrap();
    for (command, scoped, sealed) in COMMANDS {
        for (class, expected) in [(Scoped, scoped), (Sealed, sealed)] {
            if command.contains("ld-linux") && !Path::new("/lib64/ld-linux-x86-64.so.2").exists() {
                println!("NOT RUN: {command}: this system has no such loader");
                continue;
            }
            let answer = run(class, &scratch, &["/usr/bin/bash", "-c", command]);
            assert_eq!(answer, *expected, "{class:?}: {command}");
        }
    }
    // Without the layer the same host is readable: it is the layer that refuses.
    assert!(run(Advisory, &scratch, &["/usr/bin/bash", "-c", "cat /etc/passwd"]).contains("root:"));
    // But nothing of the workdir runs in any class.
    let answer = run(Advisory, &scratch, &["/usr/bin/bash", "-c", "./planted 2>/dev/null; echo $?"]);
    assert_eq!(answer, "126\nstatus 0");
}

fn programs_filter() {
    let program = own_program();
    for (name, call, arguments, errno) in [
        ("a filter of its own", libc::SYS_seccomp, "1 0 @", libc::EPERM),
        ("Landlock", libc::SYS_landlock_create_ruleset, "0 0 1", libc::ENOSYS),
        ("ptrace", libc::SYS_ptrace, "16 1 0 0", libc::EPERM),
        ("clone3", libc::SYS_clone3, "@ 64", libc::ENOSYS),
        ("a Unix socket", libc::SYS_socket, "1 1 0", libc::EACCES),
        ("a pair of datagram sockets, which could be re-aimed", libc::SYS_socketpair, "1 2 0 @", libc::EPERM),
        ("limits of the runner", libc::SYS_prlimit64, "1 7 @ 0", libc::EPERM),
        ("reading the limits of the runner", libc::SYS_prlimit64, "1 7 0 @", 0),
        ("limits of one's own", libc::SYS_prlimit64, "0 4 @ 0", 0),
        ("a pair of another family (internet)", libc::SYS_socketpair, "2 1 0 @", libc::EPERM),
        ("a pair of another family (vsock)", libc::SYS_socketpair, "40 1 0 @", libc::EPERM),
        ("a pair of another family (tipc)", libc::SYS_socketpair, "30 5 0 @", libc::EPERM),
        ("a pair of stream sockets", libc::SYS_socketpair, "1 1 0 @", 0),
        ("a pair of packet sockets", libc::SYS_socketpair, "1 524293 0 @", 0),
        ("ending the runner", libc::SYS_kill, "1 9", 0),
        ("ending the runner by its abort handler", libc::SYS_kill, "1 6", 0),
        ("ending the runner by its abort handler, as a thread", libc::SYS_tgkill, "1 1 6", 0),
        ("ending the runner by its refusal handler", libc::SYS_kill, "1 31", 0),
        ("ending the runner by its fault handler", libc::SYS_kill, "1 11", 0),
    ] {
        for class in [Advisory, Scoped, Sealed] {
            let scratch = Scratch::new("filter");
            let answer = run(class, &scratch, &[&program, &format!("call {call} {arguments}")]);
            let expected =
                if errno == 0 { "ok 0\nstatus 0".into() } else { format!("errno {errno}\nstatus 0") };
            assert_eq!(answer, expected, "{class:?}: {name}");
        }
    }
    let scratch = Scratch::new("filter-threads");
    assert_eq!(run(Sealed, &scratch, &[&program, "thread"]), "ok 7\nstatus 0");
}

fn programs_start_clean() {
    for class in [Advisory, Scoped, Sealed] {
        let scratch = Scratch::new("clean");
        let status = run(class, &scratch, &["/usr/bin/cat", "/proc/self/status"]);
        for line in [
            "SigIgn:\t0000000000000000",
            "SigBlk:\t0000000000000000",
            "SigCgt:\t0000000000000000",
            "CapBnd:\t0000000000000000",
            "NoNewPrivs:\t1",
            "Seccomp_filters:\t2",
            "Groups:\t \n",
        ] {
            assert!(status.contains(line), "{class:?}: {line:?} in {status}");
        }
        let descriptors = run(class, &scratch, &[&own_program(), "descriptors"]);
        assert_eq!(descriptors, "0 1 2\nstatus 0");
        let limits =
            run(class, &scratch, &["/usr/bin/bash", "-c", "echo $WORKDIR; ulimit -n; ulimit -f; ulimit -c"]);
        assert_eq!(limits, format!("{}\n64\n4\n0\nstatus 0", scratch.0.display()));
        // Its procfs has no other process: the runner is not dumpable, and nobody else is in the namespace.
        let processes = run(class, &scratch, &["/usr/bin/bash", "-c", "cd /proc; echo [0-9]*"]);
        let numbers: Vec<&str> = processes.lines().next().unwrap().split(' ').collect();
        assert_eq!(numbers.len(), 1, "{class:?}: {processes}");
    }
}

fn failed_starts() {
    let scratch = Scratch::new("failed");
    let missing = format!("exec: {}", libc::ENOENT);
    assert_eq!(run(Advisory, &scratch, &["/nonexistent/program"]), missing);
    let refused = format!("exec: {}", libc::EACCES);
    for class in [Scoped, Sealed] {
        assert_eq!(run(class, &scratch, &["/usr/bin/id"]), refused);
    }
    assert_eq!(run(Advisory, &scratch, &["/usr/bin/cat", "a\0b"]), "arguments: 0");
}

fn closed_ancestors() {
    let closed = Scratch::new("closed");
    let workdir = closed.0.join("deep/work");
    std::fs::create_dir_all(&workdir).unwrap();
    std::fs::write(closed.0.join("deep/beside"), "secret").unwrap();
    std::fs::write(workdir.join("file"), "mine\n").unwrap();
    std::fs::set_permissions(&closed.0, PermissionsExt::from_mode(0o700)).unwrap();
    let inside = Scratch(workdir);
    for class in [Advisory, Scoped, Sealed] {
        let command = "cat file; cat ../beside 2>&1; echo x > ../new";
        let answer = run(class, &inside, &["/usr/bin/bash", "-c", command]);
        assert!(answer.starts_with("mine\n") && !answer.contains("secret"), "{answer}");
        assert!(answer.ends_with("status 1"), "{answer}");
    }
    // Two trees below one closed directory.
    let other = closed.0.join("other");
    std::fs::create_dir(&other).unwrap();
    let started = start(Role::Runner.name());
    let trees = vec![
        (inside.0.to_str().unwrap(), tree(&inside.0, false)),
        (other.to_str().unwrap(), tree(&other, false)),
    ];
    assert_eq!(started.begin(&Gifts { trees, ..Gifts::default() }), "ready");
    let listed = started.probe(&format!("list {}", closed.0.display()), &[]);
    assert_eq!(listed.answer.as_deref(), Some("ok [\"deep\", \"other\"]"), "{listed:?}");
}
