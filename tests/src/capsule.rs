//! The capsule under test: a private copy of `examples/reporter` whose manifest a test may edit.

use std::fs;
use std::path::{Path, PathBuf};

use crate::binaries::checkout;
use crate::programs::{self, Counts};
use crate::temporary::{self, OWNER, Temporary};

/// A capsule with a work folder, in a temporary folder of its own.
#[derive(Debug)]
pub struct Capsule {
    folder: Temporary,
}

impl Capsule {
    /// The reporter example as it is, its work folder owned by somebody who is not root.
    ///
    /// # Panics
    /// If the example cannot be copied.
    #[must_use]
    pub fn reporter() -> Self {
        let folder = Temporary::new();
        let example = checkout().join("examples/reporter");
        fs::copy(example.join("murmur.yaml"), folder.path().join("murmur.yaml"))
            .expect("the example's manifest");
        temporary::copy_tree(&example.join("artifacts"), &folder.path().join("artifacts"));
        temporary::copy_tree(&example.join("work"), &folder.path().join("work"));
        temporary::give(&folder.path().join("work"), OWNER);
        Self { folder }
    }

    /// One side of `examples/handoff`, with the reporter's work folder.
    ///
    /// # Panics
    /// If the example cannot be copied.
    #[must_use]
    pub fn handoff(side: &str) -> Self {
        let folder = Temporary::new();
        let examples = checkout().join("examples");
        let manifest = fs::read_to_string(examples.join("handoff").join(format!("{side}.yaml")));
        // The copy has its artifacts beside it.
        let manifest =
            manifest.expect("the example's manifest").replace("../reporter/artifacts", "./artifacts");
        fs::write(folder.path().join("murmur.yaml"), manifest).expect("the manifest");
        temporary::copy_tree(&examples.join("reporter/artifacts"), &folder.path().join("artifacts"));
        temporary::copy_tree(&examples.join("reporter/work"), &folder.path().join("work"));
        temporary::give(&folder.path().join("work"), OWNER);
        Self { folder }
    }

    /// A capsule driven by one of `tests/guests`, which does what its tasks say; `out/` is exported and any number of tasks
    /// is taken. `gateway` is the driver's endpoint, `tools` are more of the guests, hooks included (`GUEST=NAME` takes one under another name), `capabilities` is the inside of a YAML
    /// flow mapping.
    ///
    /// # Panics
    /// If it cannot be put together.
    #[must_use]
    pub fn driven_by(driver: &str, gateway: &str, tools: &[&str], capabilities: &str) -> Self {
        let folder = Temporary::new();
        let mut artifacts = String::new();
        for name in tools.iter().chain([&driver]) {
            let (guest, name) = name.split_once('=').unwrap_or((name, name));
            let artifact = checkout().join("tests/guests").join(guest).join("artifact");
            let copy = folder.path().join("artifacts").join(name);
            temporary::copy_tree(&artifact, &copy);
            let role = if name == driver {
                // A tool that can drive is one by the capsule's manifest and its own.
                let own = fs::read_to_string(copy.join("murmur.yaml")).expect("the artifact's manifest");
                fs::write(copy.join("murmur.yaml"), own.replace("runtime: tool", "runtime: driver"))
                    .expect("its copy");
                format!("driver\n    gateway: {{endpoint: \"{gateway}\", keyless: true}}")
            } else {
                let own = fs::read_to_string(artifact.join("murmur.yaml")).expect("the artifact's manifest");
                if own.contains("runtime: hook") { "hook" } else { "tool" }.to_owned()
            };
            artifacts.push_str(&format!(
                "  - name: {name}\n    source: ./artifacts/{name}\n    local_source: true\n    runtime: {role}\n"
            ));
        }
        let manifest = format!(
            "name: guest\nversion: \"0.1.0\"\nartifacts:\n{artifacts}capabilities: {{{capabilities}}}\n\
             inference: {{model: none, driver: {{artifact: {driver}}}, max_turns: 4}}\n\
             lifecycle: {{task_acceptance: queue, after_task: sleep, queue_depth: 4}}\n\
             exports: {{files: {{root: out/, mode: read-only}}}}\n"
        );
        fs::write(folder.path().join("murmur.yaml"), manifest).expect("the manifest");
        fs::create_dir_all(folder.path().join("work/out")).expect("the work folder");
        temporary::give(&folder.path().join("work"), OWNER);
        Self { folder }
    }

    /// Replaces a piece of the manifest that occurs exactly once.
    ///
    /// # Panics
    /// If it does not.
    #[must_use]
    pub fn with(self, piece: &str, replacement: &str) -> Self {
        let manifest = fs::read_to_string(self.manifest()).expect("the manifest");
        assert_eq!(manifest.matches(piece).count(), 1, "{piece:?} in the example's manifest");
        fs::write(self.manifest(), manifest.replace(piece, replacement)).expect("the manifest");
        self
    }

    /// Adds lines to the end of the manifest, where the `files` export stands.
    ///
    /// # Panics
    /// If they cannot be written.
    #[must_use]
    pub fn and(self, lines: &str) -> Self {
        let manifest = fs::read_to_string(self.manifest()).expect("the manifest");
        fs::write(self.manifest(), format!("{}\n{lines}\n", manifest.trim_end())).expect("the manifest");
        self
    }

    /// Its temporary folder, which also takes the broker's directories.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Its manifest.
    #[must_use]
    pub fn manifest(&self) -> PathBuf {
        self.folder.path().join("murmur.yaml")
    }

    /// Its work folder.
    #[must_use]
    pub fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    /// Writes a file into the work folder.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn write(&self, name: &str, content: &[u8]) {
        temporary::write(&self.work(), name, content);
        temporary::give(&self.work(), OWNER);
    }

    /// Every path in the work folder, relative to it, in byte order.
    ///
    /// # Panics
    /// If it cannot be read.
    #[must_use]
    pub fn paths(&self) -> Vec<String> {
        fn walk(folder: &Path, root: &Path, found: &mut Vec<String>) {
            for entry in fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                found.push(path.strip_prefix(root).expect("below").to_string_lossy().into_owned());
                if path.symlink_metadata().expect("the entry").is_dir() {
                    walk(&path, root, found);
                }
            }
        }
        let mut found = Vec::new();
        walk(&self.work(), &self.work(), &mut found);
        found.sort();
        found
    }
}

/// One line of a report.
#[derive(Debug, PartialEq, Eq)]
pub struct Row {
    /// The file's name, or `**Total**`.
    pub name: String,
    /// What `wc` counted.
    pub counts: Counts,
    /// What `sha256sum` says; empty in the total.
    pub sha256: String,
}

/// The table of a report.
///
/// # Panics
/// If the text holds no such table.
#[must_use]
pub fn rows(report: &str) -> Vec<Row> {
    let table = report.lines().skip_while(|line| !line.starts_with("| ---")).skip(1);
    table
        .map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("{text:?} in {line:?}"));
            match cells.as_slice() {
                ["", name, lines, words, bytes, sha256, ""] => Row {
                    name: (*name).to_owned(),
                    counts: Counts { lines: number(lines), words: number(words), bytes: number(bytes) },
                    sha256: (*sha256).to_owned(),
                },
                _ => panic!("not a row: {line:?}"),
            }
        })
        .collect()
}

/// The table that a report on `folder` must have, from `wc` and `sha256sum` as this host has them.
///
/// # Panics
/// If the folder or a program fails.
#[must_use]
pub fn expected_rows(folder: &Path) -> Vec<Row> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder).expect("the folder").map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|file| file.is_file());
    files.sort();
    let mut total = Counts { lines: 0, words: 0, bytes: 0 };
    let mut rows = Vec::new();
    for file in files {
        let counts = programs::wc(&file);
        total.lines += counts.lines;
        total.words += counts.words;
        total.bytes += counts.bytes;
        let name = file.file_name().expect("a name").to_string_lossy().into_owned();
        rows.push(Row { name, counts, sha256: programs::sha256sum(&file) });
    }
    rows.push(Row { name: "**Total**".to_owned(), counts: total, sha256: String::new() });
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_row_by_row() {
        let report = "# Report\n\n| File | Lines |\n| --- | ---: |\n| a b | 1 | 2 | 3 | 00 |\n| **Total** | 1 | 2 | 3 |  |\n";
        let counts = Counts { lines: 1, words: 2, bytes: 3 };
        let total = Row { name: "**Total**".into(), counts, sha256: String::new() };
        assert_eq!(rows(report), [Row { name: "a b".into(), counts, sha256: "00".into() }, total]);
    }

    #[test]
    fn the_expected_rows_are_what_the_programs_say_of_known_bytes() {
        let folder = Temporary::new();
        fs::write(folder.path().join("abc"), "abc").unwrap();
        fs::write(folder.path().join("two lines"), "a b\nc\n").unwrap();
        let rows = expected_rows(folder.path());
        assert_eq!(rows[0].sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(rows[1].counts, Counts { lines: 2, words: 3, bytes: 6 });
        assert_eq!(rows[2].counts, Counts { lines: 2, words: 4, bytes: 9 });
    }
}
