//! Tests against real trees and real channels. Rows are named after the cases in which the planes' rules were worked out.

mod files;
mod lists;
mod peer;
mod protocol;
mod races;

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use ipc::edge::control::ExportRoot;
use ipc::types::{Class, PlaneCode, RelPath};
use rustix::fs::{Mode, OFlags};

use crate::listing::Entry;
use crate::resolve::{self, Links};
use crate::{listing, open};

/// A directory of its own that holds a workdir, and is removed at the end.
pub(crate) struct Tree {
    place: PathBuf,
}

/// Says what was not run and why, past the capture of the test runner.
pub(crate) fn not_run(what: &str) {
    let _ = writeln!(std::io::stderr(), "NOT RUN: {what}");
}

impl Tree {
    /// A workdir with `out/report.md` and `share/doc`, and a secret beside `out` and beside the workdir.
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("fileserver-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let place = std::env::temp_dir().canonicalize().unwrap().join(name);
        let tree = Tree { place };
        std::fs::create_dir_all(tree.path("out/sub")).unwrap();
        tree.write("out/report.md", b"hello\n");
        tree.write("out/sub/report.md", b"inner\n");
        std::fs::create_dir(tree.path("share")).unwrap();
        tree.write("share/doc", b"CANARY");
        tree.write("secret.txt", b"CANARY");
        tree.write("../outer.txt", b"CANARY");
        tree
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.place.join("wd").join(below)
    }

    pub(crate) fn write(&self, below: &str, bytes: &[u8]) {
        std::fs::write(self.path(below), bytes).unwrap();
    }

    pub(crate) fn mkdir(&self, below: &str) {
        std::fs::create_dir_all(self.path(below)).unwrap();
    }

    pub(crate) fn link(&self, target: impl AsRef<Path>, below: &str) {
        symlink(target, self.path(below)).unwrap();
    }

    pub(crate) fn fifo(&self, below: &str, mode: u32) {
        let mode = Mode::from_raw_mode(mode);
        rustix::fs::mknodat(rustix::fs::CWD, self.path(below), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    }

    pub(crate) fn mode(&self, below: &str, mode: u32) {
        std::fs::set_permissions(self.path(below), std::fs::Permissions::from_mode(mode)).unwrap();
    }

    pub(crate) fn workdir(&self) -> OwnedFd {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(self.path("."), flags, Mode::empty()).unwrap()
    }

    /// Whether the tests run as somebody whom permissions bind.
    pub(crate) fn ordinary_user(&self, what: &str) -> bool {
        let ordinary = std::fs::metadata(self.path("secret.txt")).unwrap().uid() != 0;
        if !ordinary {
            not_run(&format!("{what}: permissions do not bind root"));
        }
        ordinary
    }

    /// The plane with root `out/`, with its host path recorded if it resolves now.
    pub(crate) fn plane(&self, class: Class) -> Plane {
        self.plane_at(class, "out/", 1024)
    }

    pub(crate) fn plane_at(&self, class: Class, root: &str, max_bytes: u64) -> Plane {
        let components: Vec<String> =
            root.split('/').filter(|part| !matches!(*part, "" | ".")).map(String::from).collect();
        let host_path = self.path(root).canonicalize().ok().map(|path| path.to_str().unwrap().to_owned());
        let export = ExportRoot { verbatim: root.into(), components, host_path, max_bytes };
        Plane { workdir: Arc::new(self.workdir()), export, class }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.place);
    }
}

/// What a request would get, without channels.
pub(crate) struct Plane {
    pub(crate) workdir: Arc<OwnedFd>,
    pub(crate) export: ExportRoot,
    pub(crate) class: Class,
}

impl Plane {
    pub(crate) fn read(&self, path: &str) -> Result<Vec<u8>, PlaneCode> {
        let root = resolve::root(&self.workdir, &self.export)?;
        let opened = open::open(&root, Links::from(self.class), &RelPath::new(path).unwrap())?;
        let mut space = vec![0; usize::try_from(opened.size).unwrap()];
        let (count, _) = opened.fill(&mut space, &AtomicBool::new(false)).map_err(|_| PlaneCode::IoError)?;
        space.truncate(count);
        Ok(space)
    }

    /// The answer in one word: `200 <text>` or the code.
    pub(crate) fn word(&self, path: &str) -> String {
        match self.read(path) {
            Ok(bytes) => format!("200 {}", String::from_utf8_lossy(&bytes).trim_end()),
            Err(code) => code.as_str().to_owned(),
        }
    }

    pub(crate) fn list(&self) -> Result<Vec<Entry>, PlaneCode> {
        let links = Links::from(self.class);
        listing::list(&self.workdir, &self.export, links, &AtomicBool::new(false))
    }

    pub(crate) fn paths(&self) -> Vec<String> {
        self.list().unwrap().into_iter().map(|entry| entry.path).collect()
    }
}
