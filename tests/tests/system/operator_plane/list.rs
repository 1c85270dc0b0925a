//! L: the listing.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use rustix::fs::{FileType, Gid, Mode, OFlags, Uid, makedev, mkdirat, openat};
use system_tests::hammer::Flipper;
use system_tests::plane::{file, get, listing, row, with_headers};
use system_tests::temporary::OWNER;
use system_tests::{http, needs_root, programs};

use super::{Shelf, classes, in_every_class, serve, shelf};

/// Every file that is listed in every class, in the order of the bytes of the whole path.
const LISTED: [&str; 31] = [
    " leading",
    "\"q\"",
    "%41",
    ".hidden",
    "10",
    "9",
    "A",
    "B",
    "a",
    "a b",
    "a-b",
    "a.txt",
    "a/b",
    "a/c/d",
    "a0",
    "back\\slash",
    "e\u{301}",
    "hard",
    "large",
    "line\nfeed",
    "long",
    "report.md",
    "sub/real",
    "unlistable-no/x",
    "x.tmp",
    "\u{7f}",
    "\u{e9}",
    "\u{2028}",
    "\u{e000}",
    "\u{ff5a}",
    "\u{1f600}",
];

fn prepare(shelf: &Shelf) {
    for path in LISTED {
        match path {
            // `a` is a file in one place only.
            "a" | "hard" => {}
            "large" => shelf.file(path, &[b'x'; 1025]),
            "long" => shelf.file(path, &[b'y'; 300_000]),
            _ => shelf.file(path, path.as_bytes()),
        }
    }
    fs::hard_link(shelf.at("report.md"), shelf.at("hard")).unwrap();
    // L5, L13, L14, L15
    shelf.directory("empty/inside");
    shelf.socket("socket");
    shelf.node("fifo", FileType::Fifo, 0).unwrap();
    if let Err(error) = shelf.node("zero", FileType::CharacterDevice, makedev(1, 5)) {
        system_tests::host::say_not_run("L5", &format!("no device node can be made here: {error}"));
    }
    fs::write(shelf.at("").join(OsStr::from_bytes(b"caf\xe9")), b"latin 1").unwrap();
    fs::create_dir(shelf.at("").join(OsStr::from_bytes(b"dir\xff"))).unwrap();
    fs::write(shelf.at("").join(OsStr::from_bytes(b"dir\xff/x")), b"below").unwrap();
    shelf.file("unreadable", b"closed");
    shelf.file("unlistable/x", b"closed");
    shelf.file("unsearchable/x", b"closed");
    // L7 to L10
    for (name, target) in [
        ("alias", "report.md"),
        ("alias-large", "large"),
        ("hop", "../out/a/b"),
        ("into", "sub/real"),
        ("sub/up", "../9"),
        ("esc", "../secret.txt"),
        ("dangling", "nothing"),
        ("loop", "loop"),
        ("to-sub", "sub"),
        ("to-root", "."),
        ("to-fifo", "fifo"),
        ("to-closed", "unreadable"),
    ] {
        shelf.link(name, target);
    }
    shelf.mode("unreadable", 0);
    shelf.mode("unlistable", 0o300);
    shelf.mode("unsearchable", 0o600);
}

#[test]
fn the_listing_names_every_servable_file_in_byte_order() {
    needs_root!();
    in_every_class(prepare, |shelf, table| {
        let mut paths: Vec<&str> = LISTED.into_iter().filter(|path| *path != "a").collect();
        if shelf.class != "scoped" {
            paths.extend(["alias", "alias-large", "hop", "into", "sub/up"]);
        }
        paths.sort_unstable();
        table.check(&row("L1 to L17, L24, L26", get("/resources/files"), listing(&paths)));
        table.check(&row("L16", get("f/line%0Afeed"), file("line\nfeed")));
        table.check(&row("L16", get("f/%22q%22"), file("\"q\"")));
        table.check(&row("L16", get("f/%E2%80%A8"), file("\u{2028}")));
        table.check(&row("L17", get("f/%2541"), file("%41")));
        table.check(&row(
            "L26",
            with_headers("GET", "/resources/files", "Range: bytes=0-1\r\n"),
            listing(&paths),
        ));
    });
}

/// The entries of a listing: path, size, hash.
fn entries(url: &str) -> Vec<(String, u64, String)> {
    let response = http::get(url, "/resources/files");
    assert_eq!(response.status, 200, "{}", response.text());
    let document = response.json();
    let entries = document["entries"].as_array().unwrap().iter();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    entries
        .map(|entry| (text(&entry["path"]), entry["size_bytes"].as_u64().unwrap(), text(&entry["sha256"])))
        .collect()
}

#[test]
fn a_tree_of_4000_levels_is_listed_as_far_as_it_can_be_read() {
    needs_root!();
    for class in classes() {
        let capsule = shelf(class);
        let mut folder: OwnedFd = File::open(capsule.work().join("out")).unwrap().into();
        let give = |folder: &OwnedFd, name: &str| {
            let (owner, group) = (Some(Uid::from_raw(OWNER)), Some(Gid::from_raw(OWNER)));
            rustix::fs::chownat(folder, name, owner, group, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
        };
        // With a file at 2047 levels the path is 4095 bytes, at 2048 it would be 4097.
        for level in 1..=4000 {
            mkdirat(&folder, "d", Mode::from_raw_mode(0o755)).unwrap();
            give(&folder, "d");
            folder = openat(&folder, "d", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
            if [10, 2046, 2047, 2048, 3000, 4000].contains(&level) {
                let flags = OFlags::WRONLY | OFlags::CREATE;
                let file = openat(&folder, "f", flags, Mode::from_raw_mode(0o644)).unwrap();
                File::from(file).write_all(level.to_string().as_bytes()).unwrap();
                give(&folder, "f");
            }
        }
        drop(folder);
        let mut session = serve(&capsule);
        let mut expected: Vec<(String, u64, String)> = [10, 2046, 2047]
            .map(|level| {
                let content = level.to_string();
                (
                    format!("{}f", "d/".repeat(level)),
                    content.len() as u64,
                    programs::sha256(content.as_bytes()),
                )
            })
            .into();
        expected.push(("report.md".into(), 6, programs::sha256(b"hello\n")));
        expected.sort();
        let found = entries(session.url());
        assert_eq!(found.len(), expected.len(), "L19");
        assert!(found == expected, "L19: another entry than those that can be read");
        for (level, status) in [(10, 200), (2046, 200), (2047, 200), (2048, 404), (4000, 404)] {
            let read = http::get(session.url(), &format!("/resources/files/{}f", "d/".repeat(level)));
            assert_eq!(read.status, status, "L19, D37: a file {level} levels deep");
        }
        session.stop();
        // Deeper than what removes temporary folders can go on every host.
        let removed = Command::new("rm").arg("-rf").arg(capsule.work().join("out")).status().unwrap();
        assert!(removed.success());
    }
}

#[test]
fn a_file_that_grows_for_ever_is_listed_with_what_was_hashed() {
    needs_root!();
    for class in classes() {
        let capsule = shelf(class);
        capsule.write("out/growing", b"");
        let mut session = serve(&capsule);
        let mut growing = File::options().append(true).open(capsule.work().join("out/growing")).unwrap();
        let flipper = Flipper::start(move |number| {
            growing.write_all(format!("{number}\n").repeat(100).as_bytes()).unwrap();
        });
        let mut sizes = Vec::new();
        for _ in 0..50 {
            let found = entries(session.url());
            let [growing, report] = found.as_slice() else { panic!("L22: {found:?}") };
            assert_eq!((growing.0.as_str(), report.0.as_str()), ("growing", "report.md"));
            sizes.push((growing.1, growing.2.clone()));
        }
        assert!(flipper.finish() > 0);
        let whole = fs::read(capsule.work().join("out/growing")).unwrap();
        for (size, hash) in &sizes {
            let size = usize::try_from(*size).unwrap();
            assert_eq!(
                *hash,
                programs::sha256(&whole[..size]),
                "L22: the hash is of the {size} bytes listed"
            );
        }
        assert!(sizes.windows(2).any(|two| two[0].0 < two[1].0), "it did not grow");
        session.stop();
    }
}

/// R15, L20: what goes while the walk is under way is not listed or is listed whole; what stays is always listed.
#[test]
fn a_tree_that_changes_during_the_walk_is_still_listed_in_order() {
    needs_root!();
    for class in classes() {
        let capsule = shelf(class);
        let stage = capsule.folder().join("stage");
        for number in 0..200 {
            capsule.write(&format!("out/coming-and-going/{number}"), b"content");
        }
        capsule.write("out/zz", b"last\n");
        let mut session = serve(&capsule);
        let (tree, other) = (capsule.work().join("out/coming-and-going"), stage.clone());
        let single = capsule.work().join("out/single");
        let flipper = Flipper::start(move |number| match number % 4 {
            0 => fs::rename(&tree, &other).unwrap(),
            1 => fs::write(&single, b"content").unwrap(),
            2 => fs::rename(&other, &tree).unwrap(),
            _ => fs::remove_file(&single).unwrap(),
        });
        let content = programs::sha256(b"content");
        let mut counts = std::collections::BTreeSet::new();
        for _ in 0..300 {
            let found = entries(session.url());
            assert!(found.windows(2).all(|two| two[0].0 < two[1].0), "in order, none twice: {found:?}");
            for kept in ["report.md", "zz"] {
                assert!(found.iter().any(|(path, ..)| path == kept), "{kept} stays: {found:?}");
            }
            for (path, size, hash) in &found {
                if path.starts_with("coming") {
                    assert_eq!((*size, hash), (7, &content), "{path}");
                }
            }
            counts.insert(found.len());
        }
        assert!(counts.len() > 1, "nothing changed meanwhile");
        assert!(flipper.finish() > 0);
        session.stop();
    }
}
