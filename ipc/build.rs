//! Computes the build identifier that the version handshake compares: a digest of this crate's sources and of the
//! lock file, so that two binaries which could read one packet differently never talk to each other. The engine's
//! configuration counts as well: the broker names compiled components by this identifier.

use std::path::{Path, PathBuf};

fn main() {
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let mut files = Vec::new();
    collect(&root.join("src"), &mut files);
    files.push(root.join("../Cargo.lock"));
    files.push(root.join("../sandbox-host/engine.rs"));
    files.sort();
    let mut digest = Fnv(0xcbf2_9ce4_8422_2325);
    digest.add(std::env::var("CARGO_PKG_VERSION").unwrap_or_default().as_bytes());
    for file in &files {
        println!("cargo:rerun-if-changed={}", file.display());
        digest.add(&std::fs::read(file).unwrap_or_default());
    }
    println!("cargo:rustc-env=IPC_BUILD_ID={:016x}", digest.0);
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    println!("cargo:rerun-if-changed={}", dir.display());
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else {
            files.push(path);
        }
    }
}

/// FNV-1a: the identifier only has to differ between builds, nobody is kept out by it.
struct Fnv(u64);

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}
