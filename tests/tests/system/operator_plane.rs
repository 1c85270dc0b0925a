//! The operator plane from outside, in tables: bytes on a socket, the whole answer, the line in the trace.
//!
//! Every table runs under each class of containment; a row names the case it stands for. M is methods and
//! targets, D decoding and path validation, S symbolic links, R the root, F kinds of files and sizes, L the listing, V
//! generation and tracing.

mod generation;
mod kinds;
mod links;
mod list;
mod paths;
mod root;
mod serve_only;
mod targets;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use system_tests::broker::{Launch, Session};
use system_tests::capsule::Capsule;
use system_tests::host;
use system_tests::plane::{Expect, Table, refused};
use system_tests::temporary::{self, OWNER};

/// The classes that this host can give, as manifests write them; the strongest first.
pub(crate) fn classes() -> Vec<&'static str> {
    if host::takes_id_maps() {
        return vec!["sealed", "scoped", "advisory"];
    }
    host::say_not_run("class advisory", "the filesystem of temporary folders takes no id-mapped mounts");
    vec!["sealed", "scoped"]
}

/// `max_bytes` of the tables.
const LIMIT: u64 = 1024;

/// A capsule of a class that exports `out/`, 1024 bytes a file, and has `out/report.md` and `secret.txt`.
fn shelf(class: &str) -> Capsule {
    let capsule = Capsule::reporter()
        .with("root: out/", &format!("root: out/\n    max_bytes: {LIMIT}"))
        .with("capabilities:\n", &format!("capabilities:\n  containment: {class}\n"));
    capsule.write("out/report.md", b"hello\n");
    capsule.write("secret.txt", b"not for the plane\n");
    capsule
}

/// Serves its files and nothing else.
pub(crate) fn serve(capsule: &Capsule) -> Session {
    Launch::of(capsule).arguments(&["--serve-only"]).start()
}

/// Runs a table in every class: `prepare` fills the shelf, `rows` asks.
fn in_every_class(prepare: impl Fn(&Shelf), rows: impl Fn(&Shelf, &mut Table<'_>)) {
    let mut failures = Vec::new();
    for class in classes() {
        let shelf = Shelf { capsule: shelf(class), class };
        prepare(&shelf);
        let mut session = serve(&shelf.capsule);
        assert_eq!(session.containment(), class);
        let mut table = Table::new(&session, "out/", LIMIT);
        rows(&shelf, &mut table);
        failures.extend(table.report());
        session.stop();
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The capsule of one table.
struct Shelf {
    capsule: Capsule,
    class: &'static str,
}

impl Shelf {
    /// Where a path below the root is on the disk.
    fn at(&self, path: &str) -> PathBuf {
        self.capsule.work().join("out").join(path)
    }

    /// Writes a file below the root.
    fn file(&self, path: &str, content: &[u8]) {
        self.capsule.write(&format!("out/{path}"), content);
    }

    /// Makes a directory below the root.
    fn directory(&self, path: &str) {
        fs::create_dir_all(self.at(path)).unwrap();
        temporary::give(&self.at(path), OWNER);
    }

    /// Makes a symbolic link below the root.
    fn link(&self, path: &str, target: impl AsRef<Path>) {
        symlink(target, self.at(path)).unwrap();
        temporary::give(&self.at(path), OWNER);
    }

    /// Makes a fifo or a device below the root.
    fn node(&self, path: &str, kind: FileType, device: u64) -> rustix::io::Result<()> {
        mknodat(CWD, self.at(path), kind, Mode::from_raw_mode(0o644), device)?;
        temporary::give(&self.at(path), OWNER);
        Ok(())
    }

    /// Makes a socket below the root.
    fn socket(&self, path: &str) {
        drop(UnixListener::bind(self.at(path)).unwrap());
        temporary::give(&self.at(path), OWNER);
    }

    /// Sets the mode of what is there.
    fn mode(&self, path: &str, mode: u32) {
        fs::set_permissions(self.at(path), Permissions::from_mode(mode)).unwrap();
    }

    /// What a path through a link leads to: `scoped` refuses every link on sight.
    fn through_a_link(&self, path: &str, elsewhere: Expect) -> Expect {
        if self.class == "scoped" { refused("symlink_refused", path) } else { elsewhere }
    }
}
