//! The root of class `sealed`, seen by a program in it.

use std::os::unix::fs::PermissionsExt;

use crate::Case;
use crate::driver::{Scratch, UID};
use crate::programs::Class::Sealed;
use crate::programs::{installed, own_program, run};

pub(crate) const CASES: &[Case] = &[
    (
        "a composed root holds the system's trees, a small /etc, six devices, /proc and the session's trees",
        what_is_there,
    ),
    ("nothing of a composed root can be changed, submounts included", nothing_changes),
    ("accounts and names in a composed root are the session's", accounts),
    ("this host can compose a root, and the rehearsal leaves nothing", rehearsal),
];

fn bash(scratch: &Scratch, command: &str) -> String {
    run(Sealed, scratch, &["/usr/bin/bash", "-c", command])
}

/// What lies in `/` can be told by trying names alone, for it cannot be listed.
fn what_is_there() {
    let scratch = Scratch::new("there");
    let names = "for n in bin boot dev etc home lib lib32 lib64 libx32 media mnt opt proc root run sbin srv sys tmp usr \
                 var .dockerenv old_root lost+found; do [ -e /$n ] && echo -n \"$n \"; done; true";
    let answer = bash(&scratch, names);
    let mut expected: Vec<&str> =
        ["bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "tmp", "usr"]
            .into_iter()
            .filter(|name| std::path::Path::new("/").join(name).exists())
            .collect();
    // On the way to the scratch directory.
    let first = scratch.0.iter().nth(1).unwrap().to_str().unwrap();
    expected.retain(|name| *name != "tmp" || first == "tmp");
    assert_eq!(answer, format!("{} status 0", expected.join(" ")));

    for (what, command, expected) in [
        ("links of the system are links", "[ -h /bin ] && readlink /bin", "usr/bin\nstatus 0"),
        (
            "devices",
            "for n in null zero full tty random urandom; do [ -c /dev/$n ] && echo -n \"$n \"; done",
            "null zero full tty random urandom status 0",
        ),
        (
            "no other device",
            "[ -e /dev/shm ] || [ -e /dev/console ] || [ -e /dev/pts ] || [ -e /dev/kmsg ]; echo $?",
            "1\nstatus 0",
        ),
        ("a device that is read only", "echo x > /dev/urandom", ""),
        ("a device that is full", "echo x 2>/dev/null > /dev/full; echo $?", "1\nstatus 0"),
        ("device links", "echo x | cat /dev/stdin /dev/fd/0", "x\nstatus 0"),
        ("no other process", "echo /proc/[0-9]* | { read -a n; echo ${#n[@]}; }", ""),
        (
            "no machine in /proc",
            "[ -e /proc/cpuinfo ] || [ -e /proc/sys ] || [ -e /proc/kcore ]; echo $?",
            "1\nstatus 0",
        ),
        ("passages are not listed", "ls / /etc /dev /tmp 2>/dev/null; echo $?", "2\nstatus 0"),
        ("the system is listed", "ls /usr/bin/bash /usr/lib > /dev/null; echo $?", "0\nstatus 0"),
        (
            "the host's secrets",
            "[ -e /etc/shadow ] || [ -e /etc/sudoers ] || [ -e /etc/ssh ]; echo $?",
            "1\nstatus 0",
        ),
    ] {
        if what == "links of the system are links" && !std::path::Path::new("/bin").is_symlink() {
            println!("NOT RUN: {what}: /bin is none here");
            continue;
        }
        let answer = bash(&scratch, command);
        match what {
            "a device that is read only" => assert!(answer.ends_with("status 1"), "{what}: {answer}"),
            "no other process" => assert!(answer.starts_with(['1', '2', '3']), "{what}: {answer}"),
            _ => assert_eq!(answer, expected, "{what}: {command}"),
        }
    }
}

fn nothing_changes() {
    let scratch = Scratch::new("unchanged");
    // Every id may write there, on the host.
    let below = installed().join("below");
    std::fs::write(&below, "as it was").unwrap();
    std::fs::set_permissions(&below, PermissionsExt::from_mode(0o666)).unwrap();
    for path in
        [below.to_str().unwrap(), "/new", "/etc/new", "/usr/new", "/etc/passwd", "/dev/new", "/tmp/new"]
    {
        let answer = run(Sealed, &scratch, &[&own_program(), &format!("write {path}")]);
        let errno: i32 = answer.strip_prefix("errno ").unwrap().split('\n').next().unwrap().parse().unwrap();
        assert!([libc::EACCES, libc::EROFS].contains(&errno), "{path}: {answer}");
    }
    // The mount refuses by itself, whatever Landlock says: a change of times needs no right of Landlock's.
    let answer = bash(&scratch, &format!("touch -c -m {} 2>&1", below.display()));
    assert!(answer.contains("Read-only file system"), "{answer}");
    assert_eq!(std::fs::read_to_string(&below).unwrap(), "as it was");
    std::fs::remove_file(&below).unwrap();
}

fn accounts() {
    let scratch = Scratch::new("accounts");
    let answer = run(
        Sealed,
        &scratch,
        &["/usr/bin/cat", "/etc/passwd", "/etc/group", "/etc/resolv.conf", "/etc/hosts"],
    );
    let expected = format!(
        "root:x:0:0:root:/:/bin/sh\ncapsule:x:{UID}:{UID}:capsule:/home:/bin/sh\nroot:x:0:\ncapsule:x:{UID}:\n\
         nameserver 127.0.0.1\n127.0.0.1 localhost capsule\n::1 localhost ip6-localhost\nstatus 0"
    );
    assert_eq!(answer, expected);
}

fn rehearsal() {
    let mounts = || std::fs::read_to_string("/proc/self/mounts").unwrap();
    let before = mounts();
    confine::probe::landlock().unwrap();
    confine::probe::sealed(confine::Rights::Root).unwrap();
    assert_eq!(mounts(), before);
    assert!(std::path::Path::new("/sys/kernel").exists());
    std::fs::write(installed().join("free"), "this thread is not restricted").unwrap();
    std::fs::remove_file(installed().join("free")).unwrap();
}
