//! Reads: links by class, the root, kinds of files.

use std::os::unix::net::UnixListener;

use ipc::types::{Class, PlaneCode};
use rustix::fs::{FileType, Mode};

use super::{Tree, not_run};

const CLASSES: [Class; 3] = [Class::Advisory, Class::Scoped, Class::Sealed];

#[test]
fn links_are_decided_by_the_class_and_by_where_the_whole_path_ends() {
    let tree = Tree::new();
    tree.link("report.md", "out/alias");
    tree.link("../secret.txt", "out/esc");
    tree.link("..", "out/d");
    tree.link("nothing", "out/dang");
    tree.link("/nonexistent", "out/dangout");
    tree.link("l2", "out/l1");
    tree.link("l1", "out/l2");
    tree.link("self", "out/self");
    for (name, length) in [("forty", 40), ("toomany", 41), ("three", 3)] {
        for index in 1..=length {
            let target = if index == length { "report.md".into() } else { format!("{name}{}", index + 1) };
            tree.link(target, &format!("out/{name}{index}"));
        }
    }
    tree.link("../out/report.md", "out/hop");
    tree.link("../../wd/out/report.md", "out/hophost");
    tree.link("../share/doc", "out/sib");
    tree.link("sub", "out/dirlink");
    tree.link("../other/../out/report.md", "out/oracle");
    tree.link("../share/../out/report.md", "out/oracle2");
    tree.link("../..", "out/twoup");
    tree.link("../../..", "out/threeup");
    tree.link("../../../../../../../../../../../..", "out/top");
    tree.link("../out", "out/around");
    tree.link(tree.path("out/report.md"), "out/abs");
    tree.link(tree.path("out").join(".././out//report.md"), "out/absround");
    tree.link(tree.path("out"), "out/absroot");
    tree.link(tree.path("secret.txt"), "out/absesc");
    tree.link(tree.path("out-private/k"), "out/absprefix");
    tree.link(tree.path("share/../out/report.md"), "out/absdetour");
    tree.link("/", "out/slash");
    tree.link("/etc/passwd", "out/passwd");
    tree.link("report.md/", "out/slashed");
    tree.link("report.md/.", "out/dotted");
    tree.link("sub/../report.md", "out/inner");
    tree.link("./sub/./report.md", "out/dots");
    tree.link("sub/", "out/subslash");
    tree.link("../report.md", "out/sub/up");
    tree.link("../../secret.txt", "out/sub/upup");
    tree.mkdir("out-private");
    tree.write("out-private/k", b"CANARY");
    tree.link("../out-private/k", "out/near");
    std::fs::hard_link(tree.path("secret.txt"), tree.path("out/hard")).unwrap();

    let host = tree.path("out");
    let host_below_top = host.to_str().unwrap().trim_start_matches('/').to_owned();

    // Path, answer when links are followed; `scoped` answers `symlink_refused` to all of these.
    let linked = [
        ("alias", "200 hello"),
        ("esc", "outside_root"),
        ("d/x", "outside_root"),
        ("d", "outside_root"),
        ("d/secret.txt", "outside_root"),
        ("d/out/report.md", "200 hello"),
        ("dang", "not_found"),
        ("dangout", "outside_root"),
        ("l1", "not_found"),
        ("self", "not_found"),
        ("forty1", "200 hello"),
        ("toomany1", "not_found"),
        ("three1", "200 hello"),
        ("hop", "200 hello"),
        ("hophost", "200 hello"),
        ("sib", "outside_root"),
        ("dirlink", "not_a_regular_file"),
        ("dirlink/report.md", "200 inner"),
        ("dirlink/missing", "not_found"),
        ("oracle", "outside_root"),
        ("oracle2", "outside_root"),
        ("twoup/outer.txt", "outside_root"),
        ("twoup/wd/out/report.md", "200 hello"),
        ("threeup", "outside_root"),
        ("top", "outside_root"),
        ("around/report.md", "200 hello"),
        ("around/missing", "not_found"),
        ("around", "not_a_regular_file"),
        ("abs", "200 hello"),
        ("absround", "200 hello"),
        ("absroot/sub/report.md", "200 inner"),
        ("absesc", "outside_root"),
        ("absprefix", "outside_root"),
        ("absdetour", "outside_root"),
        ("slash/etc/passwd", "outside_root"),
        ("passwd", "outside_root"),
        ("slashed", "not_found"),
        ("dotted", "not_found"),
        ("inner", "200 hello"),
        ("dots", "200 inner"),
        ("subslash/report.md", "200 inner"),
        ("subslash", "not_a_regular_file"),
        ("sub/up", "200 hello"),
        ("sub/upup", "outside_root"),
        ("near", "outside_root"),
    ];
    // The same at every class.
    let plain = [
        ("report.md", "200 hello"),
        ("sub/report.md", "200 inner"),
        ("missing", "not_found"),
        ("missing/link", "not_found"),
        ("report.md/x", "not_found"),
        ("hard", "200 CANARY"),
        ("sub", "not_a_regular_file"),
    ];
    for class in CLASSES {
        let plane = tree.plane(class);
        for (path, answer) in linked {
            let answer = if class == Class::Scoped { "symlink_refused" } else { answer };
            assert_eq!(plane.word(path), answer, "{class:?} {path}");
        }
        for (path, answer) in plain {
            assert_eq!(plane.word(path), answer, "{class:?} {path}");
        }
        let through_top = format!("top/{host_below_top}/report.md");
        let answer = if class == Class::Scoped { "symlink_refused" } else { "200 hello" };
        assert_eq!(plane.word(&through_top), answer, "{class:?} all the way up and down again");
    }
}

#[test]
fn an_absolute_link_is_outside_where_the_roots_host_path_is_not_known() {
    let tree = Tree::new();
    tree.link(tree.path("out/report.md"), "out/abs");
    tree.link("../../wd/out/report.md", "out/hophost");
    tree.link("../out/report.md", "out/hop");
    let mut plane = tree.plane(Class::Sealed);
    plane.export.host_path = None;
    assert_eq!(plane.word("abs"), "outside_root");
    assert_eq!(plane.word("hophost"), "outside_root");
    assert_eq!(plane.word("hop"), "200 hello");
}

#[test]
fn a_root_whose_path_has_links_is_walked_and_left_and_entered_again_by_either_name() {
    let tree = Tree::new();
    std::fs::rename(tree.path("out"), tree.path("real")).unwrap();
    tree.link("./real", "out");
    tree.link("../out/report.md", "real/declared");
    tree.link("../real/report.md", "real/resolved");
    tree.link("../real2/report.md", "real/other");
    tree.link(tree.path("real/report.md"), "real/abs");
    for class in CLASSES {
        let plane = tree.plane(class);
        assert_eq!(
            plane.word("report.md"),
            "200 hello",
            "{class:?}: the root's own links are always followed"
        );
        let followed = if class == Class::Scoped { "symlink_refused" } else { "200 hello" };
        for path in ["declared", "resolved", "abs"] {
            assert_eq!(plane.word(path), followed, "{class:?} {path}");
        }
    }
    assert_eq!(tree.plane(Class::Sealed).word("other"), "outside_root");
    tree.mkdir("a/b/c");
    tree.write("a/b/c/f", b"deep");
    tree.link("../../b/c/f", "a/b/c/hop");
    tree.link("../../../a/b/c/f", "a/b/c/hop3");
    tree.link("../../x/c/f", "a/b/c/hopx");
    let plane = tree.plane_at(Class::Sealed, "./a/b/c/", 1024);
    let table = [("f", "200 deep"), ("hop", "200 deep"), ("hop3", "200 deep"), ("hopx", "outside_root")];
    for (path, answer) in table {
        assert_eq!(plane.word(path), answer, "{path}");
    }
}

#[test]
fn the_root_is_found_anew_at_every_request() {
    let tree = Tree::new();
    let plane = tree.plane(Class::Sealed);
    let expect = |read: &str, list: Option<&[&str]>, when: &str| {
        assert_eq!(plane.word("report.md"), read, "read: {when}");
        match list {
            Some(paths) => assert_eq!(plane.paths(), paths, "list: {when}"),
            None => assert!(matches!(plane.list(), Err(PlaneCode::IoError)), "list: {when}"),
        }
    };
    let files = ["report.md", "sub/report.md"];
    expect("200 hello", Some(&files), "at launch");
    std::fs::rename(tree.path("out"), tree.path("away")).unwrap();
    expect("not_found", Some(&[]), "missing");
    tree.write("out", b"a file");
    expect("not_found", Some(&[]), "a regular file");
    std::fs::remove_file(tree.path("out")).unwrap();
    tree.fifo("out", 0o600);
    expect("not_found", Some(&[]), "a fifo");
    std::fs::remove_file(tree.path("out")).unwrap();
    for target in ["/", "..", "../", "/tmp", "../wd2", "nothing", "out"] {
        tree.link(target, "out");
        let read = if matches!(target, "nothing" | "out") { "not_found" } else { "outside_root" };
        expect(read, Some(&[]), &format!("a link to {target}"));
        std::fs::remove_file(tree.path("out")).unwrap();
    }
    tree.link("away", "out");
    expect("200 hello", Some(&files), "a link that stays in the workdir");
    std::fs::remove_file(tree.path("out")).unwrap();
    tree.mkdir("out");
    tree.write("out/report.md", b"again");
    expect("200 again", Some(&["report.md"]), "made again");
    std::fs::rename(tree.place.join("wd"), tree.place.join("moved")).unwrap();
    std::os::unix::fs::symlink("/etc", tree.place.join("wd")).unwrap();
    expect("200 again", Some(&["report.md"]), "the workdir itself replaced by a link");
}

#[test]
fn a_root_of_several_components_cannot_leave_through_any_of_them() {
    let tree = Tree::new();
    tree.mkdir("a/b");
    tree.write("a/b/f", b"ok");
    let plane = tree.plane_at(Class::Sealed, "a/b/", 1024);
    assert_eq!(plane.word("f"), "200 ok");
    std::fs::rename(tree.path("a"), tree.path("c")).unwrap();
    tree.link("/tmp", "a");
    assert_eq!(plane.word("f"), "outside_root");
    assert!(plane.paths().is_empty());
    let whole = tree.plane_at(Class::Sealed, ".", 1024);
    assert_eq!(whole.word("c/b/f"), "200 ok");
    tree.link("../wd/secret.txt", "again");
    tree.link("../outer.txt", "leave");
    assert_eq!(whole.word("again"), "200 CANARY", "the workdir is the root here");
    assert_eq!(whole.word("leave"), "outside_root");
}

#[test]
fn only_regular_files_are_served_and_nothing_else_is_opened() {
    let tree = Tree::new();
    tree.fifo("out/p", 0o644);
    tree.fifo("out/closed", 0o000);
    tree.link("p", "out/top");
    let _socket = UnixListener::bind(tree.path("out/s")).unwrap();
    let plane = tree.plane(Class::Sealed);
    let begin = std::time::Instant::now();
    for path in ["p", "closed", "s", "sub", "top"] {
        assert_eq!(plane.word(path), "not_a_regular_file", "{path}");
    }
    assert_eq!(plane.word("p/x"), "not_found");
    assert_eq!(plane.paths(), ["report.md", "sub/report.md"]);
    assert!(begin.elapsed() < std::time::Duration::from_millis(500), "a fifo was waited for");
    let nodes = [
        ("zero", FileType::CharacterDevice, rustix::fs::makedev(1, 5)),
        ("nodriver", FileType::CharacterDevice, rustix::fs::makedev(4000, 77)),
        ("block", FileType::BlockDevice, rustix::fs::makedev(4000, 78)),
    ];
    for (name, kind, device) in nodes {
        let path = tree.path("out").join(name);
        match rustix::fs::mknodat(rustix::fs::CWD, path, kind, Mode::from_raw_mode(0o666), device) {
            Ok(()) => {
                assert_eq!(plane.word(name), "not_a_regular_file", "{name}");
                assert_eq!(plane.paths(), ["report.md", "sub/report.md"], "{name}");
            }
            Err(_) => not_run(&format!("{name}: needs root to make a device node")),
        }
    }
}

#[test]
fn what_permissions_forbid_is_io_error_and_is_not_listed() {
    let tree = Tree::new();
    if !tree.ordinary_user("files and directories without permission") {
        return;
    }
    tree.write("out/u", b"no");
    tree.mode("out/u", 0o000);
    tree.mkdir("out/d");
    tree.write("out/d/x", b"no");
    tree.mode("out/d", 0o600);
    tree.mkdir("out/e");
    tree.write("out/e/x", b"no");
    tree.mode("out/e", 0o000);
    let plane = tree.plane(Class::Sealed);
    for path in ["u", "d/x", "e/x", "d/missing"] {
        assert_eq!(plane.word(path), "io_error", "{path}");
    }
    assert_eq!(plane.paths(), ["report.md", "sub/report.md"]);
    tree.mode("out", 0o000);
    assert_eq!(plane.word("report.md"), "io_error");
    assert!(matches!(plane.list(), Err(PlaneCode::IoError)));
    for below in ["out", "out/d", "out/e"] {
        tree.mode(below, 0o700);
    }
}

#[test]
fn names_no_lookup_takes_are_not_found() {
    let tree = Tree::new();
    let plane = tree.plane(Class::Sealed);
    let table = [
        "x".repeat(256),
        vec!["abcd"; 1000].join("/"),
        vec!["a"; 5000].join("/"),
        "report.md\u{301}".into(),
        "REPORT.MD".into(),
        "out/report.md".into(),
        "%2e%2e/secret.txt".into(),
        "..\\secret.txt".into(),
        "~root".into(),
    ];
    for path in table {
        assert_eq!(plane.word(&path), "not_found", "{path:.20}");
    }
    for name in ["...", "..a", "a..", ".hidden", "a+b", "%41", "a%25b", "100%", "a\nb", "a b", "ｚ"] {
        tree.write(&format!("out/{name}"), b"odd");
        assert_eq!(plane.word(name), "200 odd", "{name:?}");
    }
}

#[test]
fn a_deep_path_needs_a_bounded_number_of_descriptors() {
    let tree = Tree::new();
    let root = std::fs::File::open(tree.path("out")).unwrap();
    let mut directory: std::os::fd::OwnedFd = root.into();
    let depth = 2000;
    for _ in 0..depth {
        rustix::fs::mkdirat(&directory, "d", Mode::from_raw_mode(0o755)).unwrap();
        directory = rustix::fs::openat(
            &directory,
            "d",
            rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY,
            Mode::empty(),
        )
        .unwrap();
    }
    let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
    let file = rustix::fs::openat(&directory, "f", flags, Mode::from_raw_mode(0o644)).unwrap();
    rustix::io::write(&file, b"deep").unwrap();
    let climb = |levels: usize, end: &str| format!("{}{end}", "../".repeat(levels));
    rustix::fs::symlinkat(climb(200, "up200"), &directory, "climb").unwrap();
    rustix::fs::symlinkat(climb(depth, "report.md"), &directory, "home").unwrap_err();
    rustix::fs::symlinkat(climb(1300, "../x"), &directory, "chain").unwrap();
    let plane = tree.plane(Class::Sealed);
    let below = "d/".repeat(depth);
    assert_eq!(plane.word(&format!("{below}f")), "200 deep");
    assert_eq!(plane.word(&format!("{below}climb")), "not_found");
    // Two hundred levels up, beyond the kept descriptors, there is a file now.
    let above = "d/".repeat(depth - 200);
    let short = plane.workdir.as_ref();
    let mut at = rustix::io::dup(short).unwrap();
    for name in std::iter::once("out").chain(above.split_terminator('/')) {
        at = rustix::fs::openat(&at, name, rustix::fs::OFlags::PATH, Mode::empty()).unwrap();
    }
    let up = rustix::fs::openat(&at, "up200", flags, Mode::from_raw_mode(0o644)).unwrap();
    rustix::io::write(&up, b"found").unwrap();
    let before = open_descriptors();
    assert_eq!(plane.word(&format!("{below}climb")), "200 found");
    assert_eq!(plane.list().unwrap().len(), 5, "report.md, sub/report.md, f, up200 and the link to it");
    // Others run beside this test, so only a leak of the walk's own size would show.
    assert!(open_descriptors() < before + 500);
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
