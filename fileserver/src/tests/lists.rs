//! Listings.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ipc::types::{Class, PlaneCode, hex};
use sha2::{Digest, Sha256};

use super::Tree;
use crate::listing;
use crate::resolve::Links;

fn empty() -> Tree {
    let tree = Tree::new();
    std::fs::remove_dir_all(tree.path("out")).unwrap();
    tree.mkdir("out");
    tree
}

#[test]
fn entries_are_sorted_by_the_bytes_of_the_whole_path() {
    let tables: [&[&str]; 4] = [
        &["a-b", "a.txt", "a/b", "a0"],
        &["10", "9", "B", "a"],
        &["\u{ff5a}", "\u{1f600}"],
        &["e\u{301}", "\u{e9}"],
    ];
    for paths in tables {
        let tree = empty();
        for path in paths.iter().rev() {
            if let Some((directory, _)) = path.rsplit_once('/') {
                tree.mkdir(&format!("out/{directory}"));
            }
            tree.write(&format!("out/{path}"), b"x");
        }
        assert_eq!(tree.plane(Class::Sealed).paths(), paths);
    }
}

#[test]
fn links_are_listed_only_where_a_read_would_follow_them() {
    let tree = Tree::new();
    tree.link("report.md", "out/alias");
    tree.link("alias", "out/alias2");
    tree.link("../out/report.md", "out/sub/../hop");
    tree.link("sub", "out/dirlink");
    tree.link("../secret.txt", "out/esc");
    tree.link("..", "out/up");
    tree.link("nothing", "out/dang");
    tree.link("self", "out/self");
    tree.link("/etc/passwd", "out/passwd");
    std::fs::hard_link(tree.path("out/report.md"), tree.path("out/twin")).unwrap();
    let followed = ["alias", "alias2", "hop", "report.md", "sub/report.md", "twin"];
    for (class, paths) in [
        (Class::Sealed, &followed[..]),
        (Class::Advisory, &followed[..]),
        (Class::Scoped, &["report.md", "sub/report.md", "twin"][..]),
    ] {
        let plane = tree.plane(class);
        assert_eq!(plane.paths(), paths, "{class:?}");
        for entry in plane.list().unwrap() {
            let bytes = plane.read(&entry.path).unwrap();
            assert_eq!(entry.size_bytes, bytes.len() as u64, "{}", entry.path);
            assert_eq!(hex(&entry.sha256), hex(&Sha256::digest(&bytes)), "{}", entry.path);
        }
    }
}

#[test]
fn the_document_is_compact_and_in_the_seeds_key_order() {
    let tree = empty();
    tree.write("out/report.md", b"hello\n");
    tree.write("out/a\"\\\n\u{2028}%41", b"");
    let stamp = std::time::UNIX_EPOCH + Duration::from_micros(1_787_577_327_015_999);
    for name in ["report.md", "a\"\\\n\u{2028}%41"] {
        let file = std::fs::File::options().write(true).open(tree.path("out").join(name)).unwrap();
        file.set_modified(stamp).unwrap();
    }
    let plane = tree.plane(Class::Sealed);
    let text = listing::document(&plane.export, plane.class, 3, &plane.list().unwrap()).unwrap();
    assert_eq!(
        String::from_utf8(text).unwrap(),
        concat!(
            r#"{"root":"out/","mode":"read-only","max_bytes":1024,"generation":3,"containment_achieved":"sealed","#,
            r#""entries":[{"path":"a\"\\\n"#,
            "\u{2028}",
            r#"%41","size_bytes":0,"mtime_ms":1787577327015,"#,
            r#""sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},"#,
            r#"{"path":"report.md","size_bytes":6,"mtime_ms":1787577327015,"#,
            r#""sha256":"5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"}]}"#,
        )
    );
    std::fs::remove_dir_all(tree.path("out")).unwrap();
    let text = listing::document(&plane.export, plane.class, 0, &plane.list().unwrap()).unwrap();
    let empty = r#"{"root":"out/","mode":"read-only","max_bytes":1024,"generation":0,"containment_achieved":"sealed","entries":[]}"#;
    assert_eq!(String::from_utf8(text).unwrap(), empty);
}

#[test]
fn names_that_are_no_text_are_left_out_and_everything_else_is_in() {
    let tree = empty();
    for name in [&b"a\xff.txt"[..], b"caf\xe9"] {
        std::fs::write(tree.path("out").join(OsStr::from_bytes(name)), b"x").unwrap();
    }
    std::fs::create_dir(tree.path("out").join(OsStr::from_bytes(b"d\xff"))).unwrap();
    std::fs::write(tree.path("out").join(OsStr::from_bytes(b"d\xff/x")), b"x").unwrap();
    for name in [".hidden", "x.tmp", "%41"] {
        tree.write(&format!("out/{name}"), b"x");
    }
    tree.mkdir("out/none/none");
    assert_eq!(tree.plane(Class::Sealed).paths(), ["%41", ".hidden", "x.tmp"]);
}

#[test]
fn a_file_above_the_limit_is_listed_whole() {
    let tree = empty();
    let bytes: Vec<u8> = (0..3_000_000u32).map(|index| index as u8).collect();
    tree.write("out/big", &bytes);
    let entries = tree.plane(Class::Sealed).list().unwrap();
    assert_eq!(entries[0].size_bytes, bytes.len() as u64);
    assert_eq!(hex(&entries[0].sha256), hex(&Sha256::digest(&bytes)));
}

#[test]
fn a_file_that_grows_for_ever_ends_at_the_size_it_had() {
    let tree = empty();
    tree.write("out/log", &[b'x'; 4096]);
    let stop = Arc::new(AtomicBool::new(false));
    let writer = std::thread::spawn({
        let (stop, path) = (Arc::clone(&stop), tree.path("out/log"));
        move || {
            use std::io::Write;
            let mut file = std::fs::File::options().append(true).open(path).unwrap();
            while !stop.load(Ordering::Relaxed) && file.metadata().unwrap().len() < 50_000_000 {
                file.write_all(&[b'x'; 65536]).unwrap();
            }
        }
    });
    let plane = tree.plane(Class::Sealed);
    for _ in 0..20 {
        let entries = plane.list().unwrap();
        let size = entries[0].size_bytes;
        let expected = Sha256::digest(vec![b'x'; usize::try_from(size).unwrap()]);
        assert_eq!(hex(&entries[0].sha256), hex(&expected));
    }
    stop.store(true, Ordering::Relaxed);
    writer.join().unwrap();
}

#[test]
fn a_listing_of_a_huge_file_stops_when_it_is_canceled() {
    let tree = empty();
    std::fs::File::create(tree.path("out/sparse")).unwrap().set_len(1 << 40).unwrap();
    let plane = tree.plane(Class::Sealed);
    assert_eq!(plane.export.max_bytes, 1024);
    let cancel = Arc::new(AtomicBool::new(false));
    let lister = std::thread::spawn({
        let cancel = Arc::clone(&cancel);
        let (workdir, export) = (Arc::clone(&plane.workdir), plane.export.clone());
        move || listing::list(&workdir, &export, Links::Follow, &cancel)
    });
    // Whether it has begun or not makes no difference.
    cancel.store(true, Ordering::Relaxed);
    let begin = Instant::now();
    assert!(matches!(lister.join().unwrap(), Err(PlaneCode::IoError)));
    assert!(begin.elapsed() < Duration::from_secs(5));
}

#[test]
fn ten_thousand_files_are_all_listed_in_order() {
    let tree = empty();
    for directory in 0..10 {
        tree.mkdir(&format!("out/{directory}"));
        for file in 0..1000 {
            tree.write(&format!("out/{directory}/{file}"), b"");
        }
    }
    let paths = tree.plane(Class::Sealed).paths();
    assert_eq!(paths.len(), 10_000);
    assert!(paths.is_sorted());
}

#[test]
fn paths_too_long_to_be_read_are_left_out_of_a_tree_deeper_than_any_stack() {
    let tree = empty();
    let mut directory: std::os::fd::OwnedFd = std::fs::File::open(tree.path("out")).unwrap().into();
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
    for _ in 0..4000 {
        rustix::fs::mkdirat(&directory, "d", rustix::fs::Mode::from_raw_mode(0o755)).unwrap();
        directory = rustix::fs::openat(&directory, "d", flags, rustix::fs::Mode::empty()).unwrap();
    }
    tree.write("out/z", b"last");
    let create = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
    rustix::fs::openat(&directory, "f", create, rustix::fs::Mode::from_raw_mode(0o644)).unwrap();
    assert_eq!(tree.plane(Class::Sealed).paths(), ["z"]);
}

#[test]
fn every_file_of_a_large_tree_is_listed_once_with_its_own_hash() {
    let tree = Tree::new();
    let mut expected = vec!["report.md".to_owned(), "sub/report.md".to_owned()];
    for directory in 0..40 {
        // From none to more than are handed on at a time.
        for file in 0..directory * 5 {
            let name = format!("d{}/e{directory}/f{file}", directory % 7);
            tree.mkdir(&format!("out/d{}/e{directory}", directory % 7));
            tree.write(&format!("out/{name}"), name.as_bytes());
            expected.push(name);
        }
    }
    tree.link("d1/e8/f3", "out/link");
    expected.push("link".to_owned());
    expected.sort_unstable();
    let entries = tree.plane(Class::Sealed).list().unwrap();
    assert_eq!(entries.iter().map(|entry| entry.path.as_str()).collect::<Vec<_>>(), expected);
    for entry in &entries {
        let bytes = std::fs::read(tree.path("out").join(&entry.path)).unwrap();
        assert_eq!(entry.sha256, <[u8; 32]>::from(Sha256::digest(&bytes)), "{}", entry.path);
        assert_eq!(entry.size_bytes, bytes.len() as u64, "{}", entry.path);
    }
}

#[test]
fn a_canceled_listing_ends_whichever_thread_is_at_an_endless_file() {
    for files in [0, 60, 300, 2000] {
        let tree = Tree::new();
        for index in 0..files {
            tree.write(&format!("out/f{index}"), b"x");
        }
        std::fs::File::create(tree.path("out/sparse")).unwrap().set_len(1 << 42).unwrap();
        let plane = tree.plane(Class::Sealed);
        let cancel = Arc::new(AtomicBool::new(false));
        let listing = std::thread::spawn({
            let cancel = Arc::clone(&cancel);
            move || listing::list(&plane.workdir, &plane.export, Links::Follow, &cancel)
        });
        let sparse = tree.path("out/sparse").canonicalize().unwrap();
        let opened = || {
            let mut open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
            open.any(|fd| std::fs::read_link(fd.path()).is_ok_and(|path| path == sparse))
        };
        while !opened() {
            assert!(!listing.is_finished());
            std::thread::yield_now();
        }
        cancel.store(true, Ordering::Relaxed);
        assert_eq!(listing.join().unwrap().map(|_| ()), Err(PlaneCode::IoError), "{files}");
    }
}
