//! Where the binaries under test are.

use std::path::{Path, PathBuf};

/// The processes besides the broker, by the names of their binaries.
pub const SIBLINGS: [&str; 6] = ["door", "fileserver", "sandbox-host", "runner", "egress", "compiler"];

/// The root of the checkout.
#[must_use]
pub fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace").to_owned()
}

/// The directory of the release binaries: `CAPSULE_BROKER_BIN`, else `release` beside the directory this test was built
/// into, which follows `CARGO_TARGET_DIR` and cargo's own configuration.
///
/// # Panics
/// If there is no broker: `make build` makes it.
#[must_use]
pub fn directory() -> PathBuf {
    let directory = match std::env::var_os("CAPSULE_BROKER_BIN") {
        Some(directory) => PathBuf::from(directory),
        None => {
            // target/<profile>/deps/<test>, or target/<profile>/<program>
            let own = std::env::current_exe().expect("the test knows its own path");
            let profile = own.ancestors().skip(1).find(|folder| !folder.ends_with("deps"));
            let target = profile.and_then(Path::parent).expect("the test lies in a target directory");
            target.join("release")
        }
    };
    assert!(
        directory.join("broker").is_file(),
        "{} holds no broker: run `make build` first, or set CAPSULE_BROKER_BIN",
        directory.display()
    );
    directory
}

/// Copies a binary, in a process of its own: a descriptor this process holds open for writing is inherited by whatever
/// another test starts at the same moment, and a file that is open for writing cannot be executed.
///
/// # Panics
/// If it cannot be copied.
pub fn copy(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").arg("--").args([from, to]).status();
    assert!(copied.is_ok_and(|status| status.success()), "cannot copy {}", from.display());
}
