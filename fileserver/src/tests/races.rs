//! An agent that changes the tree while it is read. The assertion is about bytes, not about answers: the canary outside the
//! root is never served.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ipc::types::Class;
use rustix::fs::RenameFlags;
use sha2::{Digest, Sha256};

use super::Tree;

/// Runs `flip` for ever beside `work`.
fn beside<T>(flip: impl Fn() + Send + 'static, work: impl FnOnce() -> T) -> T {
    let stop = Arc::new(AtomicBool::new(false));
    let flipper = std::thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            while !stop.load(Ordering::Relaxed) {
                flip();
            }
        }
    });
    let result = work();
    stop.store(true, Ordering::Relaxed);
    flipper.join().unwrap();
    result
}

/// Exchanges two names in one step.
fn exchange(tree: &Tree, one: &str, other: &str) -> impl Fn() + Send + use<> {
    let (one, other) = (tree.path(one), tree.path(other));
    move || {
        let cwd = rustix::fs::CWD;
        rustix::fs::renameat_with(cwd, &one, cwd, &other, RenameFlags::EXCHANGE).unwrap();
    }
}

#[test]
fn no_outside_byte_is_served_while_names_are_swapped_for_escaping_links() {
    // What is swapped for a link to where, and what is read.
    let table = [
        ("out/d", "../share", "d/doc"),
        ("out/d", "..", "d/secret.txt"),
        ("out/d/e", "../../share", "d/e/doc"),
        ("out/file", "../secret.txt", "file"),
        ("out", "share", "doc"),
        ("out", "..", "outer.txt"),
    ];
    let canary: [u8; 32] = Sha256::digest(b"CANARY").into();
    for class in [Class::Sealed, Class::Scoped] {
        for (name, target, read) in table {
            let tree = Tree::new();
            tree.mkdir("out/d/e");
            for below in
                ["out/file", "out/doc", "out/outer.txt", "out/d/doc", "out/d/secret.txt", "out/d/e/doc"]
            {
                tree.write(below, b"inside");
            }
            let plane = tree.plane(class);
            // A root that is a link inside the workdir is the root: `share` is served then, and that is right.
            let root_moves_inside = (name, target) == ("out", "share");
            tree.link(target, "swap");
            let mut served = 0;
            beside(exchange(&tree, name, "swap"), || {
                for round in 0..500_000 {
                    if round > 1_700 && served > 0 {
                        break;
                    }
                    if let Ok(bytes) = plane.read(read) {
                        served += 1;
                        let inside = bytes == b"inside" || root_moves_inside;
                        assert!(inside, "{class:?} {name} -> {target}, round {round}");
                    }
                    if round % 300 == 0 && !root_moves_inside {
                        let lists = plane.list().unwrap();
                        let shown = lists.iter().any(|entry| entry.sha256 == canary);
                        assert!(!shown, "{class:?} {name} -> {target}, listing in round {round}");
                    }
                }
            });
            assert!(served > 0, "{class:?} {name}: the race never let a good read through");
        }
    }
}

#[test]
fn a_file_swapped_for_a_fifo_or_a_directory_is_never_waited_for() {
    for other in ["fifo", "directory"] {
        let tree = Tree::new();
        tree.fifo("fifo", 0o644);
        tree.mkdir("directory");
        let plane = tree.plane(Class::Sealed);
        let answers = beside(exchange(&tree, "out/report.md", other), || {
            let mut answers = BTreeSet::new();
            // At least so often, and until both sides of the swap were seen.
            for round in 0..500_000 {
                answers.insert(plane.word("report.md"));
                if round > 3_000 && answers.len() > 1 {
                    break;
                }
            }
            answers
        });
        let allowed = ["200 hello", "not_a_regular_file", "io_error"];
        assert!(answers.iter().all(|answer| allowed.contains(&answer.as_str())), "{answers:?}");
        assert!(answers.contains("200 hello") && answers.contains("not_a_regular_file"), "{answers:?}");
    }
}

#[test]
fn a_file_renamed_into_place_is_always_one_whole_version() {
    let tree = Tree::new();
    let versions: Vec<Vec<u8>> = (b'a'..b'k').map(|letter| vec![letter; 700]).collect();
    tree.write("out/report.md", &versions[0]);
    let plane = tree.plane(Class::Sealed);
    let (temporary, target) = (tree.path("out/.tmp"), tree.path("out/report.md"));
    let writer = {
        let versions = versions.clone();
        let turn = std::sync::atomic::AtomicUsize::new(0);
        move || {
            let version = &versions[turn.fetch_add(1, Ordering::Relaxed) % versions.len()];
            std::fs::write(&temporary, version).unwrap();
            std::fs::rename(&temporary, &target).unwrap();
        }
    };
    beside(writer, || {
        for round in 0..5_000 {
            let body = plane.read("report.md").unwrap_or_else(|code| panic!("round {round}: {code:?}"));
            assert!(versions.contains(&body), "round {round}: torn");
        }
    });
}

#[test]
fn renames_elsewhere_disturb_no_read_through_an_inner_link() {
    let tree = Tree::new();
    tree.mkdir("out/real");
    tree.write("out/real/f", b"real");
    tree.mkdir("out/dir");
    tree.link("../real", "out/dir/up");
    tree.mkdir("out/storm");
    tree.mkdir("out/storm2");
    let plane = tree.plane(Class::Sealed);
    beside(exchange(&tree, "out/storm", "out/storm2"), || {
        for round in 0..5_000 {
            assert_eq!(plane.word("dir/up/f"), "200 real", "round {round}");
        }
    });
}
