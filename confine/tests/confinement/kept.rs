//! Paths that a role may read and not change, also not by moving what lies above them.

use std::path::Path;

use confine::Role;

use crate::Case;
use crate::driver::{Gifts, Scratch, start, tree};
use crate::programs::Class::{Advisory, Scoped, Sealed};
use crate::programs::run_keeping;

pub(crate) const CASES: &[Case] = &[
    ("programs change nothing that is kept, in no class", programs_keep),
    ("sandbox-host changes nothing that is kept", sandbox_host_keeps),
    ("what cannot be kept ends the start", what_cannot_be_kept),
];

/// `a/b/kept/` with `file`, `single`, and something to write beside them.
fn filled() -> Scratch {
    let scratch = Scratch::new("kept");
    std::fs::create_dir_all(scratch.0.join("a/b/kept/deep")).unwrap();
    std::fs::create_dir_all(scratch.0.join("free")).unwrap();
    for (name, text) in
        [("a/b/kept/file", "kept"), ("single", "single"), ("a/b/beside", "beside"), ("free/x", "free")]
    {
        std::fs::write(scratch.0.join(name), text).unwrap();
    }
    scratch
}

fn read(scratch: &Scratch, name: &str) -> String {
    std::fs::read_to_string(scratch.0.join(name)).unwrap()
}

/// Commands that would change what is kept, as they stand in the workdir.
const CHANGES: &[&str] = &[
    "echo x > a/b/kept/file",
    "echo x > a/b/kept/new",
    "rm a/b/kept/file",
    "rm -r a/b/kept",
    "rm -r a",
    "mv a/b/kept a/b/moved",
    "mv a/b moved",
    "mv a moved",
    "mv a/b/kept/file free/",
    "mv -f free/x single",
    "mv -T free a/b/kept",
    "ln a/b/kept/file free/linked",
    "ln single free/linked",
    "ln -sfT free a/b/kept",
    "ln -sfT free a",
    "chmod 777 a/b/kept",
    "chmod 777 single",
    "touch -m a/b/kept/file",
    "mkdir a/b/kept/deep/new",
    "rmdir a/b/kept/deep",
    "echo x > single",
    "rm single",
    "cd a/b/kept && echo x > file",
    "cd a/b/kept/deep && echo x > ../file",
    "echo x > /proc/self/cwd/single",
];

fn programs_keep() {
    for class in [Advisory, Scoped, Sealed] {
        let scratch = filled();
        let at = |name: &str| scratch.0.join(name).to_str().unwrap().to_owned();
        let (kept, single) = (at("a/b/kept"), at("single"));
        let run = |command: &str| {
            run_keeping(class, &scratch, &[&kept, &single], &["/usr/bin/bash", "-c", command])
        };
        for change in CHANGES {
            let answer = run(&format!("{{ {change}; }} 2>&1"));
            assert!(!answer.ends_with("status 0"), "{class:?}: {change}: {answer}");
            assert_eq!(
                (read(&scratch, "a/b/kept/file"), read(&scratch, "single")),
                ("kept".into(), "single".into())
            );
            assert!(
                scratch.0.join("a/b/kept/deep").is_dir() && !scratch.0.join("free/linked").exists(),
                "{change}"
            );
        }
        // What is beside it is free, and what is kept is read.
        let answer = run(
            "echo y > a/b/beside; echo y > a/b/new; mv a/b/new a/b/newer; cat a/b/kept/file single a/b/beside",
        );
        assert_eq!(answer, "keptsingley\nstatus 0", "{class:?}");
    }
}

fn sandbox_host_keeps() {
    let scratch = filled();
    let kept = ["/workdir/a/b/kept", "/workdir/single"];
    let rename = libc::SYS_renameat2;
    for (order, errno) in [
        ("write /workdir/a/b/kept/file".to_owned(), libc::EROFS),
        ("write /workdir/single".to_owned(), libc::EROFS),
        (format!("call {rename} -100 @/workdir/a/b/kept -100 @/workdir/a/b/moved 0"), libc::EBUSY),
        (format!("call {rename} -100 @/workdir/a -100 @/workdir/moved 0"), libc::EBUSY),
        (format!("call {rename} -100 @/workdir/free/x -100 @/workdir/single 0"), libc::EBUSY),
    ] {
        let started = start(Role::SandboxHost.name());
        let cache = Scratch::new("kept-cache");
        let trees = vec![
            ("/workdir", tree(&scratch.0, false)),
            ("/session", tree(&scratch.0, false)),
            ("/runtime", tree(&scratch.0, true)),
            ("/cache", tree(&cache.0, true)),
        ];
        assert_eq!(started.begin(&Gifts { trees, read_only: kept.to_vec(), ..Gifts::default() }), "ready");
        let ended = started.probe(&order, &[]);
        assert_eq!(ended.answer, Some(format!("errno {errno}")), "{order} {ended:?}");
        assert_eq!(
            (read(&scratch, "a/b/kept/file"), read(&scratch, "single")),
            ("kept".into(), "single".into())
        );
    }
}

fn what_cannot_be_kept() {
    let scratch = filled();
    std::os::unix::fs::symlink("a", scratch.0.join("link")).unwrap();
    std::os::unix::fs::symlink("single", scratch.0.join("last")).unwrap();
    let workdir = scratch.0.to_str().unwrap();
    let outside = Path::new(workdir).parent().unwrap().to_str().unwrap().to_owned();
    for below in ["missing", "a/missing/b", "link/b/kept", "last", "single/x", "a/../single", ""] {
        let path = format!("{workdir}/{below}");
        let started = start(Role::Runner.name());
        let trees = vec![(workdir, tree(&scratch.0, false))];
        let answer =
            started.begin(&Gifts { trees, composed: true, read_only: vec![&path], ..Gifts::default() });
        assert!(answer.starts_with("failed: composed root: "), "{below}: {answer}");
        drop(started.end(None));
    }
    let started = start(Role::Runner.name());
    let trees = vec![(workdir, tree(&scratch.0, false))];
    let answer = started.begin(&Gifts { trees, read_only: vec![&outside], ..Gifts::default() });
    assert!(answer.starts_with("failed: mounts over the host: "), "{answer}");
    drop(started.end(None));
}
