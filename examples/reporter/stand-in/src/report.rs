//! Step three: the report's text and the command that puts it in place.

use crate::measure::{Counts, Measurements};
use crate::shell::quote;

/// Where the report goes, relative to the work folder.
pub(crate) const PATH: &str = "out/report.md";

/// The report, line by line.
pub(crate) fn lines(task: &str, directory: &str, measured: &Measurements) -> Vec<String> {
    let mut lines = vec![
        format!("# Report on {}", cell(directory)),
        String::new(),
        format!("Task: {}", cell(task)),
        String::new(),
        "| File | Lines | Words | Bytes | SHA-256 |".to_owned(),
        "| --- | ---: | ---: | ---: | --- |".to_owned(),
    ];
    for file in &measured.files {
        lines.push(row(&cell(&file.name), &file.counts, &file.sha256));
    }
    lines.push(row("**Total**", &measured.total, ""));
    lines
}

fn row(name: &str, counts: &Counts, sha256: &str) -> String {
    format!("| {name} | {} | {} | {} | {sha256} |", counts.lines, counts.words, counts.bytes)
}

/// Text on one line that cannot end a table cell or be read as markup.
fn cell(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            c if c.is_control() => escaped.push(' '),
            '\\' | '|' | '`' | '*' | '<' | '[' => {
                escaped.push('\\');
                escaped.push(c);
            }
            c => escaped.push(c),
        }
    }
    escaped
}

/// The command that writes the report beside its place and then renames it there, so that a reader
/// sees the old report or the new one and never half of one.
pub(crate) fn command(lines: &[String]) -> String {
    let lines: Vec<String> = lines.iter().map(|line| quote(line)).collect();
    format!(
        "mkdir -p out && t=$(mktemp out/.report.XXXXXXXX) && printf '%s\\n' {} >\"$t\" && mv -f -- \"$t\" {PATH}",
        lines.join(" ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Measured;

    #[test]
    fn names_and_tasks_cannot_break_the_table() {
        let counts = Counts { lines: 1, words: 2, bytes: 3 };
        let measured = Measurements {
            files: vec![Measured { name: "a|b`c".into(), counts: counts.clone(), sha256: "00".into() }],
            total: counts,
        };
        let got = lines("Report on x/\n| forged | row |", "x/", &measured);
        assert_eq!(
            got,
            [
                "# Report on x/",
                "",
                r"Task: Report on x/ \| forged \| row \|",
                "",
                "| File | Lines | Words | Bytes | SHA-256 |",
                "| --- | ---: | ---: | ---: | --- |",
                r"| a\|b\`c | 1 | 2 | 3 | 00 |",
                "| **Total** | 1 | 2 | 3 |  |",
            ]
        );
        assert!(!command(&got).contains('\n'));
    }
}
