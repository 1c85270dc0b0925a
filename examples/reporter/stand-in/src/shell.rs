//! The `bash` tool's two texts: commands written for it, and results read from it.

/// Quotes one argument so that a shell takes every character of it literally.
pub(crate) fn quote(argument: &str) -> String {
    format!("'{}'", argument.replace('\'', r"'\''"))
}

/// What the shell tool says about a command that ran.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome<'a> {
    pub(crate) exit_code: i64,
    /// Every line below `Stdout:`, the `Stderr:` part included: a command can print such a line
    /// itself, so a reader who must be sure marks its own lines and their end.
    pub(crate) lines: Vec<&'a str>,
}

impl Outcome<'_> {
    /// What the command complained of, cut for use in a sentence.
    pub(crate) fn complaint(&self) -> String {
        let after = self.lines.iter().skip_while(|line| !line.starts_with("Stderr:"));
        let words: Vec<&str> = after
            .map(|line| line.strip_prefix("Stderr:").unwrap_or(line))
            .flat_map(str::split_whitespace)
            .collect();
        words.join(" ").chars().take(300).collect()
    }
}

/// Reads `$ command`, `Exit code: N`, `Stdout:`, `Stderr:`. `None` if the text has another shape,
/// as when the command went to the background. No command written here holds a line feed, so what
/// looks like an exit code cannot come from the command's own text.
pub(crate) fn outcome(text: &str) -> Option<Outcome<'_>> {
    let mut lines = text.lines();
    if !lines.next()?.starts_with("$ ") {
        return None;
    }
    let exit_code = lines.find_map(|line| line.strip_prefix("Exit code:"))?.trim().parse().ok()?;
    let below = lines.skip_while(|line| !line.starts_with("Stdout:"));
    let lines =
        below.enumerate().map(|(n, line)| if n == 0 { line.trim_start_matches("Stdout:") } else { line });
    Some(Outcome { exit_code, lines: lines.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting_leaves_nothing_for_the_shell_to_interpret() {
        for name in
            ["plain", "two words", "it's", "'", "''", "$(date)", "`x`", "a\\b", "\"q\"", "*", "-n", "~", "é"]
        {
            let output = std::process::Command::new("bash")
                .args(["-c", &format!("printf %s {}", quote(name))])
                .output()
                .expect("bash runs");
            assert_eq!(String::from_utf8_lossy(&output.stdout), name);
        }
    }

    #[test]
    fn a_result_gives_its_exit_code_output_lines_and_complaint() {
        let got = outcome("$ ls\nExit code: 2\nStdout:\na\nb\nStderr:\nls: c:\n  no\n").expect("parsed");
        assert_eq!(got.exit_code, 2);
        assert_eq!(got.lines, ["", "a", "b", "Stderr:", "ls: c:", "  no"]);
        assert_eq!(got.complaint(), "ls: c: no");
    }

    #[test]
    fn a_text_of_another_shape_is_no_outcome() {
        for text in ["", "Exit code: 0", "$ x", "$ x\nrunning as wrk_1", "$ x\nExit code: many\nStdout:\n"] {
            assert_eq!(outcome(text), None, "{text:?}");
        }
    }
}
