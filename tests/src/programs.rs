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

/// SHA-256 of many bytes, without a process each time. [`sha256sum`] is its witness.
#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_hash_is_what_the_program_says() {
        for bytes in [b"".as_slice(), b"hello\n", &[0xff; 100_000]] {
            assert_eq!(sha256(bytes), sha256sum_of(bytes));
        }
    }
}
