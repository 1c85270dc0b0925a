//! What a confined process looks like from outside, and that the look notices what is missing.

use std::io::Write;
use std::os::unix::fs::MetadataExt;

use confine::Role;
use confine::inspect::{Expected, check};
use confine::spawn::Exit;

use crate::Case;
use crate::driver::{Gifts, Scratch, UID, ready, start};

pub(crate) const CASES: &[Case] = &[
    ("every role becomes what it should be", every_role_becomes_what_it_should_be),
    ("a look from outside notices each thing that differs", a_look_notices_what_differs),
    ("a role joins the network namespace it is given", a_role_joins_its_network),
    ("only the standard descriptors and the control channel are open", only_four_descriptors),
    ("a program that cannot be executed ends with 126 and says why", exec_failure_is_honest),
    ("a child ends when its parent's thread ends", a_child_dies_with_its_parent),
    ("nobody becomes root", nobody_becomes_root),
    ("a child is in its cgroup from its first moment", a_child_is_in_its_cgroup),
];

pub(crate) fn expected(role: Role) -> Expected {
    Expected { role, uid: UID, gid: UID, groups: Vec::new(), rights: confine::Rights::Root, network: None }
}

fn every_role_becomes_what_it_should_be() {
    for role in Role::ALL {
        let scratch = Scratch::new("roles");
        let started = ready(role, &scratch);
        check(started.child.pid, &expected(role)).unwrap_or_else(|error| panic!("{role:?}: {error}"));
        let ended = started.probe("hostname", &[]);
        // The name is asked with `uname`, which only the runner's programs need.
        if role == Role::Runner {
            assert_eq!(ended.answer.as_deref(), Some("capsule"));
            assert_eq!(ended.exit, Exit::Status(0), "{ended:?}");
        } else {
            assert_eq!(ended.exit, Exit::Status(71), "{role:?} {ended:?}");
        }
    }
}

fn a_look_notices_what_differs() {
    // Before it has confined itself a child differs in everything; each item alone is tested where it is parsed.
    let started = start(Role::Door.name());
    assert_eq!(check(started.child.pid, &expected(Role::Door)).unwrap_err().0, "uid");
    drop(started.end(None));

    let scratch = Scratch::new("look");
    let started = ready(Role::Door, &scratch);
    let pid = started.child.pid;
    let own = expected(Role::Door);
    check(pid, &own).unwrap();
    let cases = [
        (Expected { uid: UID + 1, ..own.clone() }, "uid"),
        (Expected { gid: UID + 1, ..own.clone() }, "gid"),
        (Expected { role: Role::Fileserver, ..own.clone() }, "name"),
        (Expected { network: Some(1), ..own.clone() }, "net namespace"),
    ];
    for (expected, what) in cases {
        assert_eq!(check(pid, &expected).unwrap_err().0, what);
    }
    drop(started.end(None));
}

fn a_role_joins_its_network() {
    for (namespace, loopback) in [
        (confine::net::empty_namespace().unwrap(), false),
        (confine::net::session_namespace().unwrap(), true),
    ] {
        let inode = std::fs::File::from(namespace.try_clone().unwrap()).metadata().unwrap().ino();
        let started = start(Role::Egress.name());
        let gifts = Gifts { network: Some(std::os::fd::AsFd::as_fd(&namespace)), ..Gifts::default() };
        assert_eq!(started.begin(&gifts), "ready");
        check(started.child.pid, &Expected { network: Some(inode), ..expected(Role::Egress) }).unwrap();
        // Nobody listens there: refused where loopback is up, unreachable where nothing is.
        let ended = started.probe("ports 9 10", &[]);
        let errno = if loopback { libc::ECONNREFUSED } else { libc::ENETUNREACH };
        assert_eq!(ended.answer, Some(format!("errno {errno}")), "{ended:?}");
    }
}

fn only_four_descriptors() {
    // Descriptors that are not close-on-exec, above and below what a child is given.
    let file = std::fs::File::open("/dev/null").unwrap();
    let leak = rustix::io::fcntl_dupfd_cloexec(&file, 100).unwrap();
    rustix::io::fcntl_setfd(&leak, rustix::io::FdFlags::empty()).unwrap();
    rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
    for role in Role::ALL {
        let scratch = Scratch::new("descriptors");
        let ended = ready(role, &scratch).probe("descriptors", &[]);
        assert_eq!(ended.answer.as_deref(), Some("0 1 2 3"), "{role:?} {ended:?}");
    }
}

fn exec_failure_is_honest() {
    let scratch = Scratch::new("exec");
    let path = scratch.0.join("broken");
    let mut file = std::fs::File::create(&path).unwrap();
    file.write_all(b"\x7fELF, but no more than that").unwrap();
    drop(file);
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let program = confine::spawn::Program::open(&scratch.0, "broken").unwrap();
    let (near, far) = crate::driver::pair();
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    use std::os::fd::AsFd;
    let child = confine::spawn::spawn(&program, None, far.as_fd(), write.as_fd()).unwrap();
    assert_eq!(child.wait().unwrap(), Exit::Status(126));
    drop((near, write));
    let mut log = String::new();
    std::io::Read::read_to_string(&mut std::fs::File::from(read), &mut log).unwrap();
    assert_eq!(log, format!("not started: exec: errno {}\n", libc::ENOEXEC));

    for (mode, why) in [(0o757, "world-writable"), (0o644, "not executable")] {
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        let error = confine::spawn::Program::open(&scratch.0, "broken").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{why}");
    }
}

fn a_child_dies_with_its_parent() {
    // The death signal is tied to the thread that spawned, and must outlive the change of identity.
    for confined in [false, true] {
        let started = std::thread::spawn(move || {
            let scratch = Scratch::new("death");
            if confined { ready(Role::Door, &scratch) } else { start(Role::Door.name()) }
        })
        .join()
        .unwrap();
        assert_eq!(started.child.wait().unwrap(), Exit::Signal(libc::SIGKILL), "confined: {confined}");
    }
}

fn nobody_becomes_root() {
    let started = start(Role::Door.name());
    crate::driver::send(std::os::fd::AsFd::as_fd(&started.control), "0 0 ", &[]);
    let answer = crate::driver::receive(std::os::fd::AsFd::as_fd(&started.control)).unwrap().0;
    assert!(answer.starts_with("failed: identity"), "{answer}");
    assert_eq!(started.end(None).exit, Exit::Status(1));
}

fn a_child_is_in_its_cgroup() {
    use std::os::fd::AsFd;
    let place = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        .into_iter()
        .map(std::path::Path::new)
        .find(|path| path.join("cgroup.procs").exists());
    let Some(place) = place else {
        println!("NOT RUN: a child in its cgroup: no cgroup v2 is mounted");
        return;
    };
    let name = format!("confine-{}", std::process::id());
    let group = place.join(&name);
    std::fs::create_dir(&group).unwrap();
    let (near, far) = crate::driver::pair();
    let directory = std::fs::File::open(&group).unwrap();
    let program = crate::driver::program(Role::Door.name());
    let null = std::fs::File::options().write(true).open("/dev/null").unwrap();
    let child = confine::spawn::spawn(&program, Some(directory.as_fd()), far.as_fd(), null.as_fd()).unwrap();
    let members = std::fs::read_to_string(group.join("cgroup.procs")).unwrap();
    drop((near, far));
    let exit = child.wait();
    std::fs::remove_dir(&group).unwrap();
    assert_eq!(members.trim(), child.pid.to_string());
    // It found its control channel closed.
    assert!(matches!(exit, Ok(Exit::Status(2 | 126))), "{exit:?}");
}
