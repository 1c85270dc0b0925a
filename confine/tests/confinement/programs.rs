//! Programs as the runner starts them: what class `scoped` grants, what a program does not inherit, how a start fails.

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
    ("programs of class scoped reach what is granted and nothing else", scoped_programs),
    ("a program inherits the filter and loses the runner's extras", programs_filter),
    ("a program starts clean", programs_start_clean),
    ("programs reach their directory below one that is closed, and nothing beside it", closed_ancestors),
    ("a start that fails says at which step", failed_starts),
];

/// One run: `class`, the directory, the program and its arguments, separated by a byte no test uses.
const SEPARATOR: char = '\u{1f}';

/// What the runner under test answers.
fn run(scoped: bool, scratch: &Scratch, command: &[&str]) -> String {
    let started = start(Role::Runner.name());
    let workdir = scratch.0.to_str().unwrap();
    let gifts = Gifts { network: None, trees: vec![(workdir, tree(&scratch.0, false))] };
    assert_eq!(started.begin(&gifts), "ready");
    let mut words = vec![if scoped { "scoped" } else { "advisory" }, workdir];
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
    if *class == "scoped" {
        let mut programs: Vec<PathBuf> = ["bash", "cat", "ls", "mv", "mkdir", "chmod", "touch"]
            .iter()
            .filter_map(|name| Path::new("/usr/bin").join(name).canonicalize().ok())
            .collect();
        if is_own(program) {
            programs.push(PathBuf::from(program));
        }
        let grants = Grants { writable: vec![PathBuf::from(workdir)], programs, ..Grants::default() };
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

/// Whether a path names this binary as [`own_program`] left it: it is started as [`NAME`].
fn is_own(program: impl AsRef<Path>) -> bool {
    program.as_ref().file_name().is_some_and(|name| name == NAME)
}

/// A copy of this binary where a program's id may reach it, which need not be so where it was built.
fn own_program(directory: &Scratch) -> String {
    std::fs::set_permissions(&directory.0, PermissionsExt::from_mode(0o755)).unwrap();
    let path = directory.0.join(NAME);
    std::fs::copy(std::env::current_exe().unwrap(), &path).unwrap();
    path.to_str().unwrap().to_owned()
}

/// As a program: makes the one call and prints what it answered.
pub(crate) fn child(order: &str) -> ! {
    println!("{}", crate::child::obey(order, Vec::new()));
    std::process::exit(0)
}

fn scoped_programs() {
    let scratch = Scratch::new("scoped");
    std::fs::set_permissions(&scratch.0, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(scratch.0.join("planted"), std::fs::read("/usr/bin/true").unwrap()).unwrap();
    std::fs::set_permissions(scratch.0.join("planted"), PermissionsExt::from_mode(0o755)).unwrap();
    let loader = Path::new("/lib64/ld-linux-x86-64.so.2");
    let mut cases = vec![
        ("echo hello > f; cat f", "hello\nstatus 0"),
        ("mkdir -p a b; echo x > a/x; mv a/x b/; cat b/x", "x\nstatus 0"),
        ("echo x > /dev/null; echo $?", "0\nstatus 0"),
        ("cat /etc/passwd 2>/dev/null; echo $?", "1\nstatus 0"),
        ("echo x 2>/dev/null > /tmp/outside-scoped; echo $?", "1\nstatus 0"),
        ("/usr/bin/id 2>/dev/null; echo $?", "126\nstatus 0"),
        ("./planted 2>/dev/null; echo $?", "126\nstatus 0"),
        ("ls / >/dev/null 2>&1; echo $?", "2\nstatus 0"),
        ("chmod u+s f 2>/dev/null; echo $?", "1\nstatus 0"),
        ("chmod 600 f; echo $?", "0\nstatus 0"),
        ("kill -9 $$", "status 9"),
        ("exec 3<>/dev/tcp/127.0.0.1/9", "bash: connect: Network is unreachable"),
    ];
    if loader.exists() {
        // The loader may be executed, but nothing of a noexec mount can be mapped as code.
        cases.push(("/lib64/ld-linux-x86-64.so.2 ./planted 2>/dev/null; echo $?", "127\nstatus 0"));
    }
    let network = confine::net::empty_namespace().unwrap();
    drop(network);
    for (command, expected) in cases {
        if command.contains("/dev/tcp") {
            continue;
        }
        assert_eq!(run(true, &scratch, &["/usr/bin/bash", "-c", command]), expected, "{command}");
    }
    // Without the layer the same host is readable: it is the layer that refuses.
    assert!(run(false, &scratch, &["/usr/bin/bash", "-c", "cat /etc/passwd"]).contains("root:"));
    // But nothing of the workdir runs in any class.
    let answer = run(false, &scratch, &["/usr/bin/bash", "-c", "./planted 2>/dev/null; echo $?"]);
    assert_eq!(answer, "126\nstatus 0");
}

fn programs_filter() {
    let own = Scratch::new("own-program");
    let program = own_program(&own);
    for (name, call, arguments, errno) in [
        ("a filter of its own", libc::SYS_seccomp, "1 0 @", libc::EPERM),
        ("Landlock", libc::SYS_landlock_create_ruleset, "0 0 1", libc::ENOSYS),
        ("ptrace", libc::SYS_ptrace, "16 1 0 0", libc::EPERM),
        ("clone3", libc::SYS_clone3, "@ 64", libc::ENOSYS),
        ("a Unix socket", libc::SYS_socket, "1 1 0", libc::EACCES),
        ("ending the runner", libc::SYS_kill, "1 9", 0),
        ("ending the runner by its abort handler", libc::SYS_kill, "1 6", 0),
        ("ending the runner by its abort handler, as a thread", libc::SYS_tgkill, "1 1 6", 0),
        ("ending the runner by its refusal handler", libc::SYS_kill, "1 31", 0),
        ("ending the runner by its fault handler", libc::SYS_kill, "1 11", 0),
    ] {
        let scratch = Scratch::new("filter");
        let answer = run(true, &scratch, &[&program, &format!("call {call} {arguments}")]);
        let expected = if errno == 0 { "ok 0\nstatus 0".into() } else { format!("errno {errno}\nstatus 0") };
        assert_eq!(answer, expected, "{name}");
    }
    let scratch = Scratch::new("filter-threads");
    assert_eq!(run(true, &scratch, &[&program, "thread"]), "ok 7\nstatus 0");
}

fn programs_start_clean() {
    let scratch = Scratch::new("clean");
    let status = run(true, &scratch, &["/usr/bin/cat", "/proc/self/status"]);
    for line in [
        "SigIgn:\t0000000000000000",
        "SigBlk:\t0000000000000000",
        "SigCgt:\t0000000000000000",
        "CapBnd:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp_filters:\t2",
        "Groups:\t \n",
    ] {
        assert!(status.contains(line), "{line:?} in {status}");
    }
    let own = Scratch::new("own-program");
    let descriptors = run(true, &scratch, &[&own_program(&own), "descriptors"]);
    assert_eq!(descriptors, "0 1 2\nstatus 0");
    let limits =
        run(true, &scratch, &["/usr/bin/bash", "-c", "echo $WORKDIR; ulimit -n; ulimit -f; ulimit -c"]);
    assert_eq!(limits, format!("{}\n64\n4\n0\nstatus 0", scratch.0.display()));
    // Its procfs has no other process: the runner is not dumpable, and nobody else is in the namespace.
    let processes = run(true, &scratch, &["/usr/bin/bash", "-c", "cd /proc; echo [0-9]*"]);
    let numbers: Vec<&str> = processes.lines().next().unwrap().split(' ').collect();
    assert_eq!(numbers.len(), 1, "{processes}");
}

fn failed_starts() {
    let scratch = Scratch::new("failed");
    let missing = format!("exec: {}", libc::ENOENT);
    assert_eq!(run(false, &scratch, &["/nonexistent/program"]), missing);
    let refused = format!("exec: {}", libc::EACCES);
    assert_eq!(run(true, &scratch, &["/usr/bin/id"]), refused);
    assert_eq!(run(false, &scratch, &["/usr/bin/cat", "a\0b"]), "arguments: 0");
}

fn closed_ancestors() {
    let closed = Scratch::new("closed");
    let workdir = closed.0.join("deep/work");
    std::fs::create_dir_all(&workdir).unwrap();
    std::fs::write(closed.0.join("deep/beside"), "secret").unwrap();
    std::fs::write(workdir.join("file"), "mine\n").unwrap();
    std::fs::set_permissions(&closed.0, PermissionsExt::from_mode(0o700)).unwrap();
    let inside = Scratch(workdir);
    for scoped in [true, false] {
        let command = "cat file; cat ../beside 2>&1; echo x > ../new";
        let answer = run(scoped, &inside, &["/usr/bin/bash", "-c", command]);
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
    assert_eq!(started.begin(&Gifts { network: None, trees }), "ready");
    let listed = started.probe(&format!("list {}", closed.0.display()), &[]);
    assert_eq!(listed.answer.as_deref(), Some("ok [\"deep\", \"other\"]"), "{listed:?}");
}
