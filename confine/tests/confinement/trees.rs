//! Directories shown to a role: whose they are inside, whose they stay on disk, and what cannot be done there.

use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use confine::Role;
use confine::mount::{Attributes, id_map};
use confine::spawn::Exit;

use crate::Case;
use crate::driver::{Gifts, Scratch, UID, ready, start};

pub(crate) const CASES: &[Case] = &[
    ("an id-mapped tree shows its owner as the role and keeps the owner on disk", id_mapped_trees),
    ("a read-only tree takes no writes and a file of nobody's cannot be read", read_only_trees),
    ("a role sees nothing of the host but its trees", nothing_of_the_host),
    ("a tree goes to a plain absolute path only", plain_paths_only),
];

/// An owner on disk that is neither root nor the role.
const OWNER: u32 = 54_321;

/// A directory with one private file, owned by [`OWNER`].
fn owned(scratch: &Scratch) {
    let file = scratch.0.join("private");
    std::fs::write(&file, "secret").unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    for path in [&scratch.0, &file] {
        std::os::unix::fs::chown(path, Some(OWNER), Some(OWNER)).unwrap();
    }
}

fn mapped(directory: &Path, read_only: bool) -> std::io::Result<std::os::fd::OwnedFd> {
    let directory = std::fs::File::open(directory)?;
    let map = id_map((OWNER, OWNER), (UID, UID))?;
    confine::mount::tree(directory.as_fd(), Some(&map), Attributes { read_only })
}

fn host(scratch: &Scratch) -> Option<crate::driver::Started> {
    let started = start(Role::SandboxHost.name());
    let trees: Vec<_> = ["/workdir", "/session", "/runtime", "/cache"]
        .into_iter()
        .map(|path| Some((path, mapped(&scratch.0, path == "/runtime").ok()?)))
        .collect::<Option<_>>()?;
    assert_eq!(started.begin(&Gifts { trees, ..Gifts::default() }), "ready");
    Some(started)
}

fn id_mapped_trees() {
    // ext4 or whatever /tmp lies on, and tmpfs.
    let disk = Scratch::new("id-map-disk");
    let memory = Scratch(Path::new("/dev/shm").join(format!("confine-{}", std::process::id())));
    std::fs::create_dir_all(&memory.0).unwrap();
    for scratch in [&disk, &memory] {
        owned(scratch);
        if host(scratch).is_none() {
            println!("NOT RUN: id-mapped tree of {}: the file system refuses it", scratch.0.display());
            continue;
        }
        for (order, expected) in [
            ("owner /workdir/private", format!("ok ({UID}, {UID})")),
            ("read /workdir/private", "ok \"secret\"".to_owned()),
            ("write /session/new", "ok ()".to_owned()),
            // Nothing on the tree can be executed, so nothing of it can be mapped as code either.
            ("write /runtime/private", format!("errno {}", libc::EROFS)),
        ] {
            let ended = host(scratch).unwrap().probe(order, &[]);
            assert_eq!(ended.answer, Some(expected), "{order} {ended:?}");
        }
        let new = std::fs::metadata(scratch.0.join("new")).unwrap();
        assert_eq!((new.uid(), new.gid()), (OWNER, OWNER), "on disk it is the owner's");
        assert_eq!(new.mode() & 0o7777, 0o644);
    }
}

fn read_only_trees() {
    let scratch = Scratch::new("read-only");
    owned(&scratch);
    std::fs::write(scratch.0.join("roots"), "of root").unwrap();
    std::fs::set_permissions(scratch.0.join("roots"), PermissionsExt::from_mode(0o600)).unwrap();
    let Ok(probe) = mapped(&scratch.0, true) else {
        println!("NOT RUN: read-only trees: the file system refuses id-mapping");
        return;
    };
    drop(probe);
    for (order, expected) in [
        ("list /workdir", "ok [\"private\", \"roots\"]".to_owned()),
        ("read /workdir/private", "ok \"secret\"".to_owned()),
        ("read /workdir/roots", format!("errno {}", libc::EACCES)),
    ] {
        let started = start(Role::Fileserver.name());
        let trees = vec![("/workdir", mapped(&scratch.0, true).unwrap())];
        assert_eq!(started.begin(&Gifts { trees, ..Gifts::default() }), "ready");
        let ended = started.probe(order, &[]);
        assert_eq!(ended.answer, Some(expected), "{order} {ended:?}");
    }
}

fn nothing_of_the_host() {
    let scratch = Scratch::new("nothing");
    for (role, order, expected) in [
        (Role::Fileserver, "list /", "errno 13"),
        (Role::Fileserver, "read /etc/passwd", "errno 2"),
        (Role::Fileserver, "list /proc", "errno 2"),
        (Role::SandboxHost, "read /etc/passwd", "errno 2"),
        (Role::SandboxHost, "write /new", "errno 30"),
        (Role::SandboxHost, "list /dev", "errno 2"),
        (Role::Egress, "read /etc/passwd", "errno 2"),
        (Role::Egress, "list /proc", "errno 2"),
    ] {
        let ended = ready(role, &scratch).probe(order, &[]);
        assert_eq!(ended.answer.as_deref(), Some(expected), "{role:?} {order} {ended:?}");
    }
    let copy = ready(Role::Egress, &scratch).probe("read /etc/hosts", &[]).answer.unwrap();
    match std::fs::read_to_string("/etc/hosts") {
        Ok(hosts) => assert_eq!(copy, format!("ok {hosts:?}")),
        Err(_) => assert_eq!(copy, "errno 2"),
    }
}

fn plain_paths_only() {
    let scratch = Scratch::new("paths");
    for path in ["/a/../b", "../b"] {
        let started = start(Role::Fileserver.name());
        let trees = vec![(path, crate::driver::tree(&scratch.0, true))];
        let answer = started.begin(&Gifts { trees, ..Gifts::default() });
        assert!(answer.starts_with("failed: private root"), "{path} {answer}");
        assert_eq!(started.end(None).exit, Exit::Status(1));
    }
}
