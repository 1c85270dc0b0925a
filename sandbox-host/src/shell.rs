//! The tool of one allowed program: how its command becomes arguments, and what the model gets to see of its output.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::task::{JoinHandle, spawn_local};

use crate::fault::Fault;
use crate::ids::millis;
use crate::results::SessionDirectory;
use crate::runner::{Ended, RunnerLink};

/// Programs that take a whole script.
const INTERPRETERS: [&str; 6] = ["bash", "sh", "zsh", "fish", "dash", "ksh"];
/// Bytes of each stream the model sees.
pub(crate) const SHOWN: usize = 16 * 1024;
/// Bytes of each stream that are kept; what comes after is read, counted and dropped.
const KEPT: usize = 16 * 1024 * 1024;
/// How long a pipe may stay open after its program and all it started are dead.
const DRAIN: Duration = Duration::from_secs(1);

/// Whether a program's tool takes a whole script.
pub(crate) fn takes_script(program: &str) -> bool {
    INTERPRETERS.contains(&program)
}

/// What became of a command.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It ran; a non-zero exit code is data.
    Ran(Ran),
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
}

/// Runs a command of a program's tool.
///
/// # Errors
/// [`Fault::Runner`] if the runner is gone.
pub(crate) async fn run(
    runner: &RunnerLink,
    directory: &SessionDirectory,
    program: &str,
    command: &str,
    timeout: Duration,
) -> Result<Outcome, Fault> {
    let args = match arguments(program, command) {
        Ok(args) => args,
        Err(reason) => return Ok(Outcome::DidNot(reason)),
    };
    let started = Instant::now();
    let (stdout, stdout_writer) = Capture::start()?;
    let (stderr, stderr_writer) = Capture::start()?;
    let ended = runner.run(program, args, timeout, stdout_writer, stderr_writer).await?;
    let (exit_code, timed_out) = match ended {
        Ended::Finished { exit_code, timed_out } => (exit_code, timed_out),
        Ended::NotAllowed => {
            return Ok(Outcome::DidNot(format!("'{program}' is not in capabilities.shell.allow")));
        }
        Ended::Failed(reason) => {
            return Ok(Outcome::DidNot(format!("'{program}' could not be started: {reason}")));
        }
    };
    let (stdout, stderr) = (stdout.finish().await, stderr.finish().await);
    let line = if takes_script(program) { command.to_owned() } else { format!("{program} {command}") };
    let mut text = format!("$ {line}\nExit code: {exit_code}\n");
    if timed_out {
        text.push_str(&format!("Killed: the command ran longer than {} seconds\n", timeout.as_secs()));
    }
    let log = if stdout.total.max(stderr.total) > SHOWN as u64 {
        Some(write_log(directory, &line, exit_code, &stdout, &stderr))
    } else {
        None
    };
    for (name, stream) in [("Stdout", &stdout), ("Stderr", &stderr)] {
        text.push_str(&format!("{name}:\n{}", stream.shown()));
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

/// What was read of one stream.
#[derive(Debug, Default, Clone)]
struct Captured {
    bytes: Vec<u8>,
    total: u64,
}

impl Captured {
    /// The beginning, ended by a line feed unless empty. Bytes that are no UTF-8 become U+FFFD.
    fn shown(&self) -> String {
        let mut text = String::from_utf8_lossy(self.bytes.get(..SHOWN).unwrap_or(&self.bytes)).into_owned();
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text
    }
}

/// A pipe being read to its end.
struct Capture {
    captured: Rc<RefCell<Captured>>,
    reader: JoinHandle<()>,
}

impl Capture {
    /// Makes the pipe and starts reading: the writing end is for the program.
    fn start() -> Result<(Self, OwnedFd), Fault> {
        let own = |error: std::io::Error| Fault::Own(format!("a pipe could not be made: {error}"));
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(|errno| own(errno.into()))?;
        let reader = pipe::Receiver::from_owned_fd(reader).map_err(own)?;
        let captured = Rc::new(RefCell::new(Captured::default()));
        let reader = spawn_local(drain(reader, Rc::clone(&captured)));
        Ok((Capture { captured, reader }, writer))
    }

    /// What was read once the pipe has ended, or after [`DRAIN`] if something outside the runner's reach holds it.
    async fn finish(mut self) -> Captured {
        if tokio::time::timeout(DRAIN, &mut self.reader).await.is_err() {
            self.reader.abort();
        }
        self.captured.take()
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

async fn drain(mut reader: pipe::Receiver, captured: Rc<RefCell<Captured>>) {
    let mut chunk = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = reader.read(&mut chunk).await {
        let mut captured = captured.borrow_mut();
        captured.total += count as u64;
        let keep = count.min(KEPT.saturating_sub(captured.bytes.len()));
        captured.bytes.extend_from_slice(chunk.get(..keep).unwrap_or_default());
    }
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
