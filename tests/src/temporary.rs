//! Temporary folders that go when the test does.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The owner of work folders made for tests: not root, because overlayfs refuses id-mapped mounts and the broker's
/// processes then run as the owner. Nobody needs to have this number.
pub const OWNER: u32 = 61234;

/// A folder with a name of its own, removed at the end. `CAPSULE_KEEP` in the environment keeps it.
#[derive(Debug)]
pub struct Temporary(PathBuf);

impl Temporary {
    /// Makes the folder, open to every user for passing through.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("capsule-test-{}-{number}", std::process::id()));
        fs::create_dir(&path).expect("a new temporary folder");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
        Self(path)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Default for Temporary {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if std::env::var_os("CAPSULE_KEEP").is_none() {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

/// Copies a folder of regular files and directories; an existing target gets the files added.
///
/// # Panics
/// If anything cannot be copied.
pub fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a target folder");
    for entry in fs::read_dir(from).unwrap_or_else(|error| panic!("{}: {error}", from.display())) {
        let entry = entry.expect("a directory entry");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("its type").is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).expect("a copy");
        }
    }
}

/// Gives a folder and all below it to `owner`, following no link. Does nothing unless the tests run as root.
///
/// # Panics
/// If an entry cannot be read or given away.
pub fn give(path: &Path, owner: u32) {
    if !crate::host::is_root() {
        return;
    }
    let kind = fs::symlink_metadata(path).expect("the entry").file_type();
    if kind.is_dir() {
        for entry in fs::read_dir(path).expect("the folder") {
            give(&entry.expect("a directory entry").path(), owner);
        }
    }
    std::os::unix::fs::lchown(path, Some(owner), Some(owner)).expect("a change of owner");
}

/// Writes a file below a folder, with its directories, and gives it to the folder's owner.
///
/// # Panics
/// If it cannot be written.
pub fn write(folder: &Path, name: &str, content: &[u8]) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().expect("a file has a folder")).expect("its folder");
    fs::write(&path, content).expect("the file");
    if crate::host::is_root() {
        chown(&path, Some(OWNER), Some(OWNER)).expect("its owner");
    }
}
