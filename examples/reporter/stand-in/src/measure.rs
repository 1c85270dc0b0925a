//! Step two: what `wc` and `sha256sum` say about each file.

use crate::shell::{Outcome, quote};

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) lines: u64,
    pub(crate) words: u64,
    pub(crate) bytes: u64,
}

/// One file's line of the report.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Measured {
    pub(crate) name: String,
    pub(crate) counts: Counts,
    pub(crate) sha256: String,
}

/// Everything the report's table holds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Measurements {
    pub(crate) files: Vec<Measured>,
    /// As `wc` gives it; it prints none for a single file, which then is the total.
    pub(crate) total: Counts,
}

/// The command that measures exactly `files` in `directory`. The names are anchored with `./`: a
/// file called `-` would else be standard input.
pub(crate) fn command(directory: &str, files: &[String]) -> String {
    let names: Vec<String> = files.iter().map(|name| quote(&format!("./{name}"))).collect();
    let names = names.join(" ");
    format!(
        "export LC_ALL=C; cd -- {} && wc -lwc -- {names} && sha256sum -- {names}",
        quote(&super::listing::anchored(directory))
    )
}

/// Reads the output. `None` unless it has one line of each program for each of `files`, in order,
/// so that a cut or mixed-up output never becomes a report.
pub(crate) fn read(outcome: &Outcome<'_>, files: &[String]) -> Option<Measurements> {
    let mut lines = outcome.lines.iter().copied().skip_while(|line| line.trim().is_empty());
    let mut counted = Vec::new();
    for name in files {
        counted.push(counts_line(lines.next()?, &format!("./{name}"))?);
    }
    let total = match counted.as_slice() {
        [] => return None,
        [only] => only.clone(),
        _ => counts_line(lines.next()?, "total")?,
    };
    let mut measured = Vec::new();
    for (name, counts) in files.iter().zip(counted) {
        let sha256 = sum_line(lines.next()?, &format!("./{name}"))?;
        measured.push(Measured { name: name.clone(), counts, sha256 });
    }
    Some(Measurements { files: measured, total })
}

/// `  12  34 567 name` with any padding; the name is everything after the third number's space.
fn counts_line(line: &str, name: &str) -> Option<Counts> {
    let (lines, rest) = number(line)?;
    let (words, rest) = number(rest)?;
    let (bytes, rest) = number(rest)?;
    (rest.strip_prefix(' ')? == name).then_some(Counts { lines, words, bytes })
}

fn number(text: &str) -> Option<(u64, &str)> {
    let text = text.trim_start_matches(' ');
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    Some((digits.parse().ok()?, rest))
}

/// `<64 hex>  name`. A line whose name holds a backslash starts with one and has it doubled.
fn sum_line(line: &str, name: &str) -> Option<String> {
    let (line, expected) = match line.strip_prefix('\\') {
        Some(line) => (line, name.replace('\\', r"\\")),
        None => (line, name.to_owned()),
    };
    let (sum, found) = line.split_once("  ")?;
    let is_sum = sum.len() == 64 && sum.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'a'..=b'f'));
    (is_sum && found == expected).then(|| sum.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUM: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn parse(lines: &[&str], files: &[&str]) -> Option<Measurements> {
        let files: Vec<String> = files.iter().map(|name| (*name).to_owned()).collect();
        read(&Outcome { exit_code: 0, lines: lines.to_vec() }, &files)
    }

    #[test]
    fn two_files_give_two_lines_and_the_total_of_wc() {
        let sums = [format!("{SUM}  ./a b"), format!("\\{SUM}  ./c\\\\d")];
        let got = parse(
            &[
                "",
                "  1   2   3 ./a b",
                " 10  20  30 ./c\\d",
                " 11  22  33 total",
                &sums[0],
                &sums[1],
                "Stderr:",
            ],
            &["a b", "c\\d"],
        )
        .expect("parsed");
        assert_eq!(got.total, Counts { lines: 11, words: 22, bytes: 33 });
        assert_eq!(got.files[1].name, "c\\d");
        assert_eq!(got.files[1].counts, Counts { lines: 10, words: 20, bytes: 30 });
        assert_eq!(got.files[1].sha256, SUM);
    }

    #[test]
    fn one_file_is_its_own_total() {
        let sum = format!("{SUM}  ./a");
        assert_eq!(parse(&["1 2 3 ./a", &sum], &["a"]).expect("parsed").total.bytes, 3);
    }

    #[test]
    fn an_output_that_is_cut_or_about_other_files_is_refused() {
        let sum = format!("{SUM}  ./a");
        let short = format!("{}  ./a", &SUM[1..]);
        let cases: [&[&str]; 8] = [
            &[],
            &["1 2 3 ./a"],
            &["1 2 3 ./b", &sum],
            &["1 2 ./a", &sum],
            &["1 2 3 ./a", &short],
            &["1 2 3 ./a", "Stderr:"],
            &["1 2 99999999999999999999 ./a", &sum],
            &["x 2 3 ./a", &sum],
        ];
        for lines in cases {
            assert_eq!(parse(lines, &["a"]), None, "{lines:?}");
        }
        assert_eq!(parse(&["1 2 3 ./a", &sum], &[]), None);
    }
}
