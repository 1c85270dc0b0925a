//! The independent witnesses: `sha256sum` and `wc` as the host has them.

use std::path::Path;
use std::process::{Command, Stdio};

/// What `wc` counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Line feeds.
    pub lines: u64,
    /// Words.
    pub words: u64,
    /// Bytes.
    pub bytes: u64,
}

fn output(program: &str, arguments: &[&str], file: &Path) -> String {
    let input = std::fs::File::open(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let output = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::from(input))
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program}: {}", output.status);
    String::from_utf8(output.stdout).expect("text")
}

/// 64 hexadecimal digits.
///
/// # Panics
/// If `sha256sum` cannot be run.
#[must_use]
pub fn sha256sum(file: &Path) -> String {
    output("sha256sum", &[], file).split_whitespace().next().expect("a sum").to_owned()
}

/// [`sha256sum`] of bytes at hand.
///
/// # Panics
/// If `sha256sum` cannot be run.
#[must_use]
pub fn sha256sum_of(bytes: &[u8]) -> String {
    let folder = crate::temporary::Temporary::new();
    let file = folder.path().join("bytes");
    std::fs::write(&file, bytes).expect("a temporary file");
    sha256sum(&file)
}

/// Lines, words and bytes.
///
/// # Panics
/// If `wc` cannot be run.
#[must_use]
pub fn wc(file: &Path) -> Counts {
    let text = output("wc", &["-l", "-w", "-c"], file);
    let numbers: Vec<u64> = text.split_whitespace().map(|number| number.parse().expect("a number")).collect();
    match numbers.as_slice() {
        [lines, words, bytes] => Counts { lines: *lines, words: *words, bytes: *bytes },
        other => panic!("wc printed {other:?}"),
    }
}
