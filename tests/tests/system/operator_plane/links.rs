//! S: symbolic links, by class.

use std::fs;
use std::os::unix::fs::lchown;
use std::path::{Path, PathBuf};
use std::process::Command;

use system_tests::plane::{Table, file, get, listing, refused, row};
use system_tests::temporary::OWNER;
use system_tests::{host, needs_root, not_run};

use super::{Shelf, in_every_class};

fn prepare(shelf: &Shelf) {
    shelf.file("sub/inner.txt", b"inner\n");
    shelf.capsule.write("share/doc", b"for peers\n");
    let work = shelf.capsule.work();
    for (name, target) in [
        ("alias", "report.md"),
        ("esc", "../secret.txt"),
        ("esc-dir", "../share"),
        ("up", ".."),
        ("dang", "nothing"),
        ("dang-out", "/nonexistent"),
        ("dang-up", "../nonexistent"),
        ("l1", "l2"),
        ("l2", "l1"),
        ("self", "self"),
        ("one", "two"),
        ("two", "three"),
        ("three", "report.md"),
        ("hop", "../out/report.md"),
        ("hop-dir", "../out/sub"),
        ("hop-out", "../out/../secret.txt"),
        ("passwd", "/etc/passwd"),
        ("fs-root", "/"),
        ("proc", "/proc/self/environ"),
        ("sib", "../share/doc"),
        ("dirlink", "sub"),
        ("dot", "."),
        ("empty-parts", "sub//inner.txt"),
        ("sub/back", "../report.md"),
        ("file-link", "report.md/"),
    ] {
        shelf.link(name, target);
    }
    shelf.link("abs", work.join("out/report.md"));
    shelf.link("abs-root", work.join("out"));
    shelf.link("abs-secret", work.join("secret.txt"));
    shelf.link("abs-like", format!("{}-like/report.md", work.join("out").display()));
    shelf.link("around", Path::new("../..").join(work.file_name().unwrap()).join("out/report.md"));
    for (count, name) in [(40, "k"), (41, "m")] {
        for number in 1..count {
            shelf.link(&format!("{name}{number}"), format!("{name}{}", number + 1));
        }
        shelf.link(&format!("{name}{count}"), "report.md");
    }
    // S29
    fs::hard_link(work.join("secret.txt"), shelf.at("hard")).unwrap();
    // S31
    shelf.directory("sticky");
    shelf.file("sticky/real", b"real\n");
    shelf.link("sticky/alias", "real");
    lchown(shelf.at("sticky/alias"), Some(OWNER + 1), Some(OWNER + 1)).unwrap();
    shelf.mode("sticky", 0o1777);
}

#[test]
fn links_below_the_root_by_class() {
    needs_root!();
    in_every_class(prepare, |shelf, table| {
        let served = |path: &str| shelf.through_a_link(path, file(path));
        let outside = |path: &str| shelf.through_a_link(path, refused("outside_root", path));
        let missing = |path: &str| shelf.through_a_link(path, refused("not_found", path));
        table.check_all(&[
            row("S1", get("f/alias"), served("alias")),
            row("S2", get("f/esc"), outside("esc")),
            row("S2 directory", get("f/esc-dir"), outside("esc-dir")),
            row("S2 below", get("f/esc-dir/doc"), outside("esc-dir/doc")),
            row("S6", get("f/up/x"), outside("up/x")),
            row("S6 exists", get("f/up/secret.txt"), outside("up/secret.txt")),
            row("S6 back", get("f/up/out/report.md"), served("up/out/report.md")),
            row("S6 itself", get("f/up"), outside("up")),
            row("S7", get("f/dang"), missing("dang")),
            row("S8", get("f/dang-out"), outside("dang-out")),
            row("S8", get("f/dang-up"), outside("dang-up")),
            row("S9", get("f/l1"), missing("l1")),
            row("S9", get("f/l1/x"), missing("l1/x")),
            row("S10", get("f/self"), missing("self")),
            row("S11", get("f/m1"), missing("m1")),
            row("S11 40", get("f/k1"), served("k1")),
            row("S12", get("f/one"), served("one")),
            row("S13", get("f/hop"), served("hop")),
            row("S13", get("f/hop-dir/inner.txt"), served("hop-dir/inner.txt")),
            row("S13 and out", get("f/hop-out"), outside("hop-out")),
            row("S13", get("f/sub/back"), served("sub/back")),
            row("S15", get("f/abs"), served("abs")),
            row("S15", get("f/abs-root/sub/inner.txt"), served("abs-root/sub/inner.txt")),
            row("S15", get("f/around"), served("around")),
            row("S15", get("f/abs-secret"), outside("abs-secret")),
            row("S15", get("f/abs-like"), outside("abs-like")),
            row("S15", get("f/passwd"), outside("passwd")),
            row("S15", get("f/fs-root/etc/passwd"), outside("fs-root/etc/passwd")),
            row("S15", get("f/proc"), outside("proc")),
            row("S17", get("f/sib"), outside("sib")),
            row(
                "S21",
                get("f/dirlink"),
                shelf.through_a_link("dirlink", refused("not_a_regular_file", "dirlink")),
            ),
            row("S21", get("f/dirlink/inner.txt"), served("dirlink/inner.txt")),
            row("S21", get("f/dot"), shelf.through_a_link("dot", refused("not_a_regular_file", "dot"))),
            row("S12", get("f/empty-parts"), served("empty-parts")),
            // A slash after a file names nothing, in a link as anywhere.
            row("S12 slash", get("f/file-link"), missing("file-link")),
            row("S23", get("f/missing/link"), refused("not_found", "missing/link")),
            row("S29", get("f/hard"), file("hard")),
            row("S31", get("f/sticky/alias"), served("sticky/alias")),
            row("S31 real", get("f/sticky/real"), file("sticky/real")),
        ]);
    });
}

/// What `mount` mounted, to be taken away at the end whatever happens.
struct Mounted(PathBuf);

impl Mounted {
    /// Mounts on a place, or says that it cannot.
    fn on(place: PathBuf, arguments: &[&str]) -> Option<Self> {
        let made = Command::new("mount").args(arguments).arg(&place).output().unwrap();
        if !made.status.success() {
            host::say_not_run(
                "S30, F17",
                &format!("cannot mount: {}", String::from_utf8_lossy(&made.stderr).trim()),
            );
            return None;
        }
        Some(Mounted(place))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn another_filesystem_below_the_root_is_served() {
    needs_root!();
    for class in super::classes() {
        let shelf = Shelf { capsule: super::shelf(class), class };
        shelf.directory("m");
        let mounted = Mounted::on(shelf.at("m"), &["-t", "tmpfs", "-o", "size=1m,mode=755", "none"]);
        if mounted.is_none() {
            return;
        }
        shelf.file("m/x", b"on another filesystem\n");
        let mut session = super::serve(&shelf.capsule);
        let mut table = Table::new(&session, "out/", super::LIMIT);
        table.check(&row("S30", get("f/m/x"), file("m/x")));
        table.check(&row("S30", get("/resources/files"), listing(&["m/x", "report.md"])));
        table.finish();
        drop(mounted);
        session.stop();
    }
}

/// A file of the kernel's own, whose size is said to be 0 and which gives more than the limit. `/proc` takes no id-mapped
/// mounts, without which `advisory` is refused.
#[test]
fn a_file_that_gives_more_than_its_size_is_too_large() {
    needs_root!();
    const PSEUDO: &str = "/proc/kallsyms";
    if fs::read(PSEUDO).map_or(0, |content| content.len()) <= 1024 {
        not_run!("{PSEUDO} is not there");
    }
    let shelf = Shelf { capsule: super::shelf("scoped"), class: "scoped" };
    shelf.file("pseudo", b"");
    // Nothing is written from here on: that would change owners below the mount, too.
    let mounted = Mounted::on(shelf.at("pseudo"), &["--bind", PSEUDO]);
    if mounted.is_none() {
        return;
    }
    assert_eq!(fs::metadata(shelf.at("pseudo")).unwrap().len(), 0);
    let mut session = super::serve(&shelf.capsule);
    let mut table = Table::new(&session, "out/", super::LIMIT);
    table.check(&row("F17", get("f/pseudo"), refused("too_large", "pseudo")));
    table.finish();
    drop(mounted);
    session.stop();
}
