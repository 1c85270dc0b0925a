//! The tool of one allowed program: how its command becomes arguments, and what the model gets to see of its output.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ipc::codec::MAX_PACKET;
use ipc::edge::host_runner::Program;
use ipc::types::ResourceLimit;

use crate::capture::{Capture, Captured, NoPipe};
use crate::fault::Fault;
use crate::gate::{self, Refusal, Wanted};
use crate::ids::millis;
use crate::results::SessionDirectory;
use crate::runner::{self, Ended, Finished};
use crate::session::Session;

/// Programs that take a whole script.
const INTERPRETERS: [&str; 6] = ["bash", "sh", "zsh", "fish", "dash", "ksh"];
/// Bytes of each stream the model sees.
pub(crate) const SHOWN: usize = 16 * 1024;
/// Bytes of each stream that are kept; what comes after is read, counted and dropped.
const KEPT: usize = 16 * 1024 * 1024;

/// Whether a program's tool takes a whole script.
pub(crate) fn takes_script(program: &str) -> bool {
    INTERPRETERS.contains(&program)
}

/// What became of a command.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It ran; a non-zero exit code is data.
    Ran(Ran),
    /// The gate did not let it start.
    Refused(Refusal),
    /// It did not run, and why.
    DidNot(String),
}

/// A command that ran.
#[derive(Debug)]
pub(crate) struct Ran {
    /// For the model.
    pub(crate) text: String,
    /// For the trace: the arguments, the script text for `-c`.
    pub(crate) command: String,
    pub(crate) exit_code: i32,
    pub(crate) timed_out: bool,
    pub(crate) stdout_bytes: u64,
    pub(crate) stderr_bytes: u64,
    pub(crate) duration_ms: u64,
    /// Names of variables that were not set.
    pub(crate) env_dropped: Vec<String>,
    /// The one limit that it is known to have hit.
    pub(crate) resource_limit: Option<ResourceLimit>,
}

/// Runs a command of a program's tool.
///
/// # Errors
/// [`Fault::Runner`] if the runner is gone.
pub(crate) async fn run(
    session: &Session,
    program: &str,
    command: &str,
    turn: u32,
    task_id: &str,
    timeout: Duration,
) -> Result<Outcome, Fault> {
    let did_not = |reason: &str| Outcome::DidNot(format!("'{program}' could not be started: {reason}"));
    if command.len() > MAX_PACKET {
        return Ok(did_not(runner::TOO_LARGE));
    }
    let args = match arguments(program, command) {
        Ok(args) => args,
        Err(reason) => return Ok(Outcome::DidNot(reason)),
    };
    let asked = Program { name: program.to_owned(), args, env: Vec::new() };
    if !runner::fits(&asked) {
        return Ok(did_not(runner::TOO_LARGE));
    }
    let wanted = Wanted { program, args: &asked.args, task_id: Some(task_id), turn };
    if let Err(refusal) = gate::pass(session, &wanted).await {
        return Ok(Outcome::Refused(refusal));
    }
    let started = Instant::now();
    let pipes = || Ok::<_, NoPipe>((Capture::start(KEPT)?, Capture::start(KEPT)?));
    let ((stdout, stdout_writer), (stderr, stderr_writer)) = match pipes() {
        Ok(pipes) => pipes,
        Err(error) => return Ok(did_not(&error.to_string())),
    };
    let ended = session.runner.run(asked, timeout, None, [stdout_writer, stderr_writer]).await?;
    let Finished { exit_code, timed_out, env_dropped, resource_limit } = match ended {
        Ended::Finished(finished) => finished,
        Ended::NotAllowed => return Ok(Outcome::Refused(gate::not_allowed(program))),
        Ended::Failed(reason) => return Ok(did_not(&reason)),
    };
    let (stdout, stderr) = (stdout.finish().await, stderr.finish().await);
    let line = if takes_script(program) { command.to_owned() } else { format!("{program} {command}") };
    let mut text = format!("$ {line}\nExit code: {exit_code}\n");
    if timed_out {
        text.push_str(&format!("Killed: the command ran longer than {} seconds\n", timeout.as_secs()));
    }
    if let Some(limit) = resource_limit {
        text.push_str(&format!("E-RUN-011: it hit capabilities.resources.{}\n", limit.as_str()));
    }
    let log = if stdout.total.max(stderr.total) > SHOWN as u64 {
        Some(write_log(&session.directory, &line, exit_code, &stdout, &stderr))
    } else {
        None
    };
    for (name, stream) in [("Stdout", &stdout), ("Stderr", &stderr)] {
        text.push_str(&format!("{name}:\n{}", shown(stream)));
        if stream.total > SHOWN as u64 {
            let whole = match &log {
                Some(Ok(path)) => format!("the full output is in {path}"),
                Some(Err(reason)) => format!("the full output could not be kept: {reason}"),
                None => String::new(),
            };
            text.push_str(&format!("[{SHOWN} of {} bytes; {whole}]\n", stream.total));
        }
    }
    // The fence brings a line feed of its own.
    text.truncate(text.trim_end_matches('\n').len());
    Ok(Outcome::Ran(Ran {
        text,
        command: command.to_owned(),
        exit_code,
        timed_out,
        stdout_bytes: stdout.total,
        stderr_bytes: stderr.total,
        duration_ms: millis(started.elapsed()),
        env_dropped,
        resource_limit,
    }))
}

/// The arguments a command stands for.
///
/// # Errors
/// A text for the model.
fn arguments(program: &str, command: &str) -> Result<Vec<String>, String> {
    if command.contains('\0') {
        return Err("the command holds a NUL character".into());
    }
    if takes_script(program) {
        return Ok(vec!["-c".to_owned(), command.to_owned()]);
    }
    split(command)
}

/// Splits at whitespace; quotes and backslash keep it together as in a POSIX shell, nothing is expanded.
fn split(command: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut characters = command.chars();
    while let Some(c) = characters.next() {
        match c {
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match characters.next() {
                        Some('\'') => break,
                        Some(c) => word.push(c),
                        None => return Err("a single quote is not closed".into()),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match characters.next() {
                        Some('"') => break,
                        Some('\\') => match characters.next() {
                            Some(c @ ('"' | '\\' | '$' | '`')) => word.push(c),
                            Some(c) => word.extend(['\\', c]),
                            None => return Err("a double quote is not closed".into()),
                        },
                        Some(c) => word.push(c),
                        None => return Err("a double quote is not closed".into()),
                    }
                }
            }
            '\\' => match characters.next() {
                Some(c) => word.get_or_insert_default().push(c),
                None => return Err("the command ends with a backslash".into()),
            },
            c if c.is_whitespace() => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

/// Keeps the full output where programs can read it; returns its name as they see it.
fn write_log(
    directory: &SessionDirectory,
    line: &str,
    exit_code: i32,
    stdout: &Captured,
    stderr: &Captured,
) -> Result<String, String> {
    let mut bytes = format!("$ {line}\nExit code: {exit_code}\nStdout:\n").into_bytes();
    bytes.extend_from_slice(&stdout.bytes);
    bytes.extend_from_slice(b"\nStderr:\n");
    bytes.extend_from_slice(&stderr.bytes);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let name = directory.write_log("shell", millis(now), &bytes).map_err(|errno| errno.to_string())?;
    Ok(format!("$MURMUR_RECORDS_DIR/logs/{name}"))
}

/// The beginning of a stream, ended by a line feed unless empty. Bytes that are no UTF-8 become U+FFFD.
fn shown(stream: &Captured) -> String {
    let mut text = String::from_utf8_lossy(stream.bytes.get(..SHOWN).unwrap_or(&stream.bytes)).into_owned();
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_split_as_a_posix_shell_quotes_and_never_expanded() {
        let cases: [(&str, Result<&[&str], &str>); 14] = [
            ("", Ok(&[])),
            ("  -l   out/report.md\t", Ok(&["-l", "out/report.md"])),
            ("'a b' c", Ok(&["a b", "c"])),
            (r#""a b"'c'd"#, Ok(&["a bcd"])),
            (r"a\ b", Ok(&["a b"])),
            ("''", Ok(&[""])),
            (r#""" x"#, Ok(&["", "x"])),
            (r#""a\"b\\c\n""#, Ok(&[r#"a"b\c\n"#])),
            (r"'a\b'", Ok(&[r"a\b"])),
            ("$HOME *.txt `ls` ~", Ok(&["$HOME", "*.txt", "`ls`", "~"])),
            ("a\nb", Ok(&["a", "b"])),
            ("'a", Err("a single quote is not closed")),
            (r#""a\"#, Err("a double quote is not closed")),
            (r"a\", Err("the command ends with a backslash")),
        ];
        for (command, expected) in cases {
            let expected = expected
                .map(|words| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
                .map_err(str::to_owned);
            assert_eq!(split(command), expected, "{command:?}");
        }
    }

    #[test]
    fn interpreters_get_the_whole_script() {
        assert_eq!(arguments("bash", "a 'b").unwrap(), ["-c", "a 'b"]);
        assert_eq!(arguments("wc", "-l x").unwrap(), ["-l", "x"]);
        assert!(arguments("bash", "a\0b").is_err());
    }
}
