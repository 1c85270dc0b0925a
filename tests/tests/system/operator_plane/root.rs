//! R: the export root before, at and after launch.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use system_tests::broker::Launch;
use system_tests::capsule::Capsule;
use system_tests::needs_root;
use system_tests::plane::{Table, file, get, listing, refused, row};
use system_tests::remains::assert_nothing_made;
use system_tests::temporary::{self, OWNER};

use super::{LIMIT, Shelf, classes, in_every_class, serve, shelf};

fn list() -> Vec<u8> {
    get("/resources/files")
}

/// What lies where the root leads must never be served.
const ELSEWHERE: &[u8] = b"not for the plane\n";

#[test]
fn the_root_comes_goes_and_is_replaced_after_launch() {
    needs_root!();
    in_every_class(
        |shelf| {
            shelf.file("sub/x", b"below\n");
            fs::rename(shelf.at(""), shelf.capsule.work().join("kept")).unwrap();
            // Where a root that leads out would lead.
            fs::write(shelf.capsule.folder().join("report.md"), ELSEWHERE).unwrap();
            shelf.capsule.write("real/report.md", b"inside the workdir\n");
        },
        |shelf, table| {
            let (out, kept) = (shelf.capsule.work().join("out"), shelf.capsule.work().join("kept"));
            let read = || get("f/report.md");
            let absent = |table: &mut Table<'_>, id: &'static str| {
                table.check(&row(id, list(), listing(&[])));
                table.check(&row(id, read(), refused("not_found", "report.md")));
            };
            absent(table, "R1, R2");

            fs::write(&out, "a file").unwrap();
            temporary::give(&out, OWNER);
            absent(table, "R3, R4");
            fs::remove_file(&out).unwrap();

            fs::create_dir(&out).unwrap();
            temporary::give(&out, OWNER);
            table.check(&row("L25", list(), listing(&[])));
            fs::remove_dir(&out).unwrap();
            absent(table, "R14");

            fs::rename(&kept, &out).unwrap();
            table.check(&row("R16", list(), listing(&["report.md", "sub/x"])));
            table.check(&row("R16", read(), file("report.md")));

            shelf.mode("", 0);
            table.check(&row("R5", list(), system_tests::plane::Expect::ListRefused("io_error".into())));
            table.check(&row("R5", read(), refused("io_error", "report.md")));
            shelf.mode("", 0o755);
            table.check(&row("R5 again", read(), file("report.md")));

            for target in ["/", "..", "../", "/nonexistent", "../work/../", "/tmp", "../work-else"] {
                fs::rename(&out, &kept).unwrap();
                symlink(target, &out).unwrap();
                table.check(&row("R11", list(), listing(&[])));
                table.check(&row("R11", read(), refused("outside_root", "report.md")));
                table.check(&row("R11", get("f/etc/passwd"), refused("outside_root", "etc/passwd")));
                fs::remove_file(&out).unwrap();
                fs::rename(&kept, &out).unwrap();
                table.check(&row("R11 back", read(), file("report.md")));
            }

            // R9: a root that is a link inside the workdir is one in every class, at launch and after it.
            fs::rename(&out, &kept).unwrap();
            for target in ["real", "./real", "real/.", "kept/../real"] {
                symlink(target, &out).unwrap();
                table.check(&row("R9 after launch", read(), file("report.md")));
                table.check(&row("R9 after launch", list(), listing(&["report.md"])));
                fs::remove_file(&out).unwrap();
            }
            symlink("out", &out).unwrap();
            absent(table, "R9 loop");
            fs::remove_file(&out).unwrap();
            symlink("nothing", &out).unwrap();
            absent(table, "R9 dangling");
            fs::remove_file(&out).unwrap();
            fs::rename(&kept, &out).unwrap();
            table.check(&row("R16 at last", list(), listing(&["report.md", "sub/x"])));
        },
    );
}

#[test]
fn a_workdir_replaced_after_launch_is_never_the_new_place() {
    needs_root!();
    for class in classes() {
        let shelf = Shelf { capsule: shelf(class), class };
        let mut session = serve(&shelf.capsule);
        let (work, moved) = (shelf.capsule.work(), shelf.capsule.folder().join("moved"));
        let elsewhere = shelf.capsule.folder().join("elsewhere");
        fs::create_dir_all(elsewhere.join("out")).unwrap();
        fs::write(elsewhere.join("out/report.md"), ELSEWHERE).unwrap();
        fs::rename(&work, &moved).unwrap();
        symlink(&elsewhere, &work).unwrap();
        let read = system_tests::http::get(session.url(), "/resources/files/report.md");
        assert_eq!(
            (read.status, read.text()),
            (200, "hello\n"),
            "R12: from the descriptor held since the launch"
        );
        fs::remove_file(&work).unwrap();
        fs::rename(&moved, &work).unwrap();
        session.stop();
    }
}

#[test]
fn a_root_that_is_a_link_inside_the_workdir_is_a_root_in_every_class() {
    needs_root!();
    in_every_class(
        |shelf| {
            fs::rename(shelf.at(""), shelf.capsule.work().join("real")).unwrap();
            symlink("./real", shelf.capsule.work().join("out")).unwrap();
            shelf.link("alias", "report.md");
            shelf.link("esc", "../secret.txt");
        },
        |shelf, table| {
            table.check_all(&[
                row("R9", get("f/report.md"), file("report.md")),
                row("R9 S1", get("f/alias"), shelf.through_a_link("alias", file("alias"))),
                row("R9 S2", get("f/esc"), shelf.through_a_link("esc", refused("outside_root", "esc"))),
                row(
                    "R9 L7, L8",
                    list(),
                    listing(if shelf.class == "scoped" { &["report.md"] } else { &["alias", "report.md"] }),
                ),
            ]);
        },
    );
}

#[test]
fn a_dangling_root_launches_and_is_guarded_on_every_request() {
    needs_root!();
    in_every_class(
        |shelf| {
            fs::remove_dir_all(shelf.at("")).unwrap();
            symlink("/nonexistent", shelf.capsule.work().join("out")).unwrap();
        },
        |_, table| {
            table.check_all(&[
                row("R8", list(), listing(&[])),
                row("R8", get("f/report.md"), refused("outside_root", "report.md")),
            ]);
        },
    );
}

/// Serves one capsule of each class that declares `root`, with `max_bytes` 1024.
fn with_root(root: &str, prepare: impl Fn(&Capsule), rows: impl Fn(&Capsule, &mut Table<'_>)) {
    for class in classes() {
        let capsule = shelf(class).with("root: out/", &format!("root: {root}"));
        prepare(&capsule);
        let mut session = serve(&capsule);
        let mut table = Table::new(&session, root, LIMIT);
        rows(&capsule, &mut table);
        table.finish();
        session.stop();
    }
}

#[test]
fn the_whole_workdir_can_be_the_root() {
    needs_root!();
    with_root(
        ".",
        |capsule| {
            // Only what is known here.
            for folder in ["inputs", "notes"] {
                let _ = fs::remove_dir_all(capsule.work().join(folder));
            }
            symlink("..", capsule.work().join("up")).unwrap();
            symlink("out/report.md", capsule.work().join("alias")).unwrap();
        },
        |capsule, table| {
            let mut paths = capsule.paths();
            paths.retain(|path| capsule.work().join(path).symlink_metadata().unwrap().is_file());
            let scoped = fs::read_to_string(capsule.manifest()).unwrap().contains("containment: scoped");
            if !scoped {
                paths.insert(0, "alias".to_owned());
            }
            let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
            let link = if scoped { "symlink_refused" } else { "outside_root" };
            table.check_all(&[
                row("R17", list(), listing(&paths)),
                row("R17", get("f/out/report.md"), file("out/report.md")),
                row("R17", get("f/secret.txt"), file("secret.txt")),
                row("R17", get("f/../murmur.yaml"), refused("outside_root", "../murmur.yaml")),
                row("R17", get("f/up/murmur.yaml"), refused(link, "up/murmur.yaml")),
                row("R17", get("f/trace.jsonl"), refused("not_found", "trace.jsonl")),
            ]);
        },
    );
}

#[test]
fn a_root_is_repeated_as_declared() {
    needs_root!();
    for root in ["d\u{ed}a/", "out", "out/deep", "./out/", "a b"] {
        with_root(
            root,
            |capsule| capsule.write(&format!("{root}/report.md"), b"hello\n"),
            |_, table| {
                table.check_all(&[
                    row("R21", get("f/report.md"), file("report.md")),
                    row("R21", get("f/missing"), refused("not_found", "missing")),
                ]);
            },
        );
    }
}

const QUICK: Duration = Duration::from_secs(5);

#[test]
fn a_root_with_any_part_that_leads_out_refuses_the_launch() {
    needs_root!();
    for class in classes() {
        for (id, root, link, target) in [
            ("R6", "out/", "out", "/tmp"),
            ("R6", "out/", "out", ".."),
            ("R6", "out/", "out", "/"),
            ("R10", "a/b/", "a", "/tmp"),
            ("R10", "a/b/", "a", ".."),
            ("R10", "a/b/c", "a/b", "../.."),
        ] {
            let capsule = shelf(class).with("root: out/", &format!("root: {root}"));
            let _ = fs::remove_dir_all(capsule.work().join("out"));
            let link = capsule.work().join(link);
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            symlink(target, &link).unwrap();
            let ended = Launch::of(&capsule).arguments(&["--serve-only"]).run(QUICK);
            let what = format!("{id}: {root} by {target}, {class}: {}", ended.stderr);
            assert_eq!((ended.code(), ended.stdout.as_str()), (Some(1), ""), "{what}");
            assert!(ended.stderr.contains("error[E-CAP-007]: "), "{what}");
            assert_nothing_made(capsule.folder());
        }
    }
}

#[test]
fn a_root_that_is_no_relative_path_refuses_the_manifest() {
    for (id, root) in [
        ("R19", "../x"),
        ("R19", "/abs"),
        ("R19", "\"\""),
        ("R19", "a/../b"),
        ("R20", "\"o\\r\\nx: y\""),
        ("R20", "\"o\\0\""),
        ("R20", "\"o\\x7f\""),
        // A client trims it from the header's end, and what it has is not the root verbatim.
        ("R20", "\"o\\t\""),
    ] {
        let capsule = Capsule::reporter().with("root: out/", &format!("root: {root}"));
        let ended = Launch::of(&capsule).arguments(&["--serve-only"]).run(QUICK);
        assert_eq!((ended.code(), ended.stdout.as_str()), (Some(1), ""), "{id}: {root}: {}", ended.stderr);
        assert!(ended.stderr.contains("error[E-MAN-003]: "), "{id}: {root}: {}", ended.stderr);
        assert!(Path::new(capsule.folder()).is_dir());
        assert_nothing_made(capsule.folder());
    }
}
