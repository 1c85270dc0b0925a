//! Step one: which files are in the directory.

use crate::shell::{Outcome, quote};

/// Marks a line that names a file, and the line that ends the listing. A name cannot be taken for
/// either marker, nor for a heading of the tool's result, as it never starts a line.
const FILE: &str = "file ";
const END: &str = "end ";

/// Finds the directory a task is about: the word after "on", quoted or holding a slash.
/// Punctuation at its end belongs to the sentence.
pub(crate) fn directory(task: &str) -> Option<String> {
    let mut rest = task;
    while let Some((word, after)) = next_word(rest) {
        rest = after;
        if !word.eq_ignore_ascii_case("on") {
            continue;
        }
        let after = after.trim_start();
        if let Some(quoted) = quoted(after) {
            return Some(quoted.to_owned());
        }
        let (word, _) = next_word(after)?;
        let path = word.trim_end_matches(['.', ',', ';', ':', '!', '?', ')', '"', '\'']);
        if path.contains('/') {
            return Some(path.to_owned());
        }
    }
    None
}

fn next_word(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    let end = text.find(char::is_whitespace).unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    (!word.is_empty()).then_some((word, rest))
}

/// The text between a pair of quotation marks at the start of `text`.
fn quoted(text: &str) -> Option<&str> {
    let mark = text.chars().next().filter(|mark| matches!(mark, '"' | '\'' | '`'))?;
    let (inner, _) = text.strip_prefix(mark)?.split_once(mark)?;
    (!inner.is_empty() && !inner.chars().any(char::is_control)).then_some(inner)
}

/// The command that lists the regular files in `directory`, in byte order. It needs no program but
/// bash itself. A name with a control character would break the line format, so it ends the command.
pub(crate) fn command(directory: &str) -> String {
    format!(
        "LC_ALL=C; shopt -s nullglob; cd -- {} || exit 1; n=0; for f in *; do [ -f \"$f\" ] || continue; \
         case $f in *[[:cntrl:]]*) echo 'a file name holds a control character' >&2; exit 1;; esac; \
         printf '{FILE}%s\\n' \"$f\"; n=$((n+1)); done; printf '{END}%d\\n' \"$n\"",
        quote(&anchored(directory))
    )
}

/// A relative path that starts with a dash or is empty must not be read as an option or as HOME.
pub(crate) fn anchored(directory: &str) -> String {
    if directory.starts_with('/') { directory.to_owned() } else { format!("./{directory}") }
}

/// The names in a listing. `None` if its end is missing, so that a cut listing is not taken for a
/// short one.
pub(crate) fn files(outcome: &Outcome<'_>) -> Option<Vec<String>> {
    let mut names = Vec::new();
    for line in &outcome.lines {
        if let Some(name) = line.strip_prefix(FILE) {
            names.push(name.to_owned());
        } else if let Some(count) = line.strip_prefix(END) {
            return (count.trim().parse() == Ok(names.len())).then_some(names);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_is_the_path_after_on() {
        for (task, directory_in_it) in [
            ("Report on inputs/", Some("inputs/")),
            ("report ON notes/.", Some("notes/")),
            ("Report on inputs/, please!", Some("inputs/")),
            ("Please write a report on a/b/c?", Some("a/b/c")),
            ("Report on \"my notes\"", Some("my notes")),
            ("Report on 'it is'.", Some("it is")),
            ("Report on `x/`", Some("x/")),
            ("on time, report on\n  /etc/", Some("/etc/")),
            ("Report on the weather", None),
            ("Report on", None),
            ("inputs/", None),
            ("", None),
        ] {
            assert_eq!(directory(task).as_deref(), directory_in_it, "{task:?}");
        }
    }

    #[test]
    fn a_listing_gives_the_names_and_needs_its_end() {
        let parse = |lines: &[&'static str]| files(&Outcome { exit_code: 0, lines: lines.to_vec() });
        assert_eq!(
            parse(&["", "file a b", "file Stderr:", "end 2", "Stderr:"]),
            Some(vec!["a b".into(), "Stderr:".into()])
        );
        assert_eq!(parse(&["end 0"]), Some(vec![]));
        assert_eq!(parse(&["file a"]), None);
        assert_eq!(parse(&["file a", "end 2"]), None);
        assert_eq!(parse(&[]), None);
    }
}
