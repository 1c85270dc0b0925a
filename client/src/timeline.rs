//! `trace`: a session's record from its first line to its last.

use std::collections::HashMap;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use serde_json::{Map, Value};

use crate::Failure;
use crate::lines::{Found, Lines};
use crate::phrase::{Phrase, Tone, phrase};
use crate::show::Clock;

/// Events below which others hang.
const NODES: [&str; 3] = ["session_start", "task_start", "inference"];
/// Turns that are remembered as such: those of long ago have no new children.
const REMEMBERED: usize = 10_000;

/// Prints the record at `path`, a trace or the directory of one.
///
/// # Errors
/// `E-IO-*` if it cannot be read, `E-TRC-001` if it is not whole; what could be read is printed all the same.
pub(crate) fn print(path: &Path, follow: bool, json: bool) -> Result<(), Failure> {
    let path = if path.is_dir() { path.join("trace.jsonl") } else { path.to_owned() };
    let mut lines = Lines::open(&path, follow).map_err(|error| unreadable(&path, &error))?;
    let out = io::stdout().lock();
    let terminal = out.is_terminal();
    let mut printer = Printer {
        out: io::BufWriter::new(out),
        json,
        colour: terminal && std::env::var_os("NO_COLOR").is_none(),
        clock: Clock::new(terminal),
        depths: HashMap::new(),
        seen: Seen::default(),
    };
    let told = printer.all(&path, &mut lines, follow);
    let flushed = printer.out.flush();
    match told {
        // Whoever stops reading has seen enough.
        Err(Ended::Unread) => Ok(()),
        Err(Ended::Failed(failure)) => Err(failure),
        Ok(()) if flushed.is_err() => Ok(()),
        Ok(()) => printer.seen.whole(&path),
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    let code = match error.kind() {
        io::ErrorKind::NotFound => "E-IO-001",
        io::ErrorKind::PermissionDenied => "E-IO-002",
        _ => "E-IO-003",
    };
    let hint = match code {
        "E-IO-001" => Some("name the trace.jsonl or the records directory that the ready line said"),
        "E-IO-002" => Some("records belong to whoever ran the broker"),
        _ => None,
    };
    Failure { code, what: path.display().to_string(), reason: error.to_string(), hint }
}

/// What a record had of what it must have.
#[derive(Default)]
struct Seen {
    lines: u64,
    malformed: u64,
    start: bool,
    end: bool,
}

impl Seen {
    fn whole(&self, path: &Path) -> Result<(), Failure> {
        let not_whole = |reason: String, hint: Option<&'static str>| {
            Err(Failure { code: "E-TRC-001", what: path.display().to_string(), reason, hint })
        };
        match self {
            Seen { lines: 0, .. } => not_whole("it is empty: the launch was refused".into(), None),
            Seen { malformed: 1.., .. } => {
                let plural = if self.malformed == 1 { "line is" } else { "lines are" };
                not_whole(format!("{} {plural} no record", self.malformed), None)
            }
            Seen { start: false, .. } => not_whole("it has no session_start".into(), None),
            Seen { end: false, .. } => not_whole(
                "it has no session_end: the session still runs, or was killed".into(),
                Some("--follow waits for the end of one that runs"),
            ),
            Seen { .. } => Ok(()),
        }
    }
}

enum Ended {
    /// Nobody reads what is printed.
    Unread,
    Failed(Failure),
}

struct Printer<W: Write> {
    out: W,
    json: bool,
    colour: bool,
    clock: Clock,
    /// How deep what hangs below an event is set in.
    depths: HashMap<String, usize>,
    seen: Seen,
}

impl<W: Write> Printer<W> {
    fn all(&mut self, path: &Path, lines: &mut Lines, follow: bool) -> Result<(), Ended> {
        let failed = |error: io::Error| Ended::Failed(unreadable(path, &error));
        loop {
            match lines.next().map_err(failed)? {
                Found::Line(line) => self.line(&line).map_err(|_| Ended::Unread)?,
                Found::TooLong => {
                    self.seen.malformed += 1;
                    return Ok(());
                }
                Found::End(begun) => {
                    if follow && !self.seen.end {
                        self.out.flush().map_err(|_| Ended::Unread)?;
                        lines.wait().map_err(failed)?;
                        continue;
                    }
                    if begun > 0 {
                        self.seen.lines += 1;
                        self.malformed(begun).map_err(|_| Ended::Unread)?;
                    }
                    return Ok(());
                }
            }
        }
    }

    fn line(&mut self, line: &[u8]) -> io::Result<()> {
        self.seen.lines += 1;
        let Ok(Value::Object(event)) = serde_json::from_slice(line) else {
            return self.malformed(line.len());
        };
        match event.get("event_type").and_then(Value::as_str) {
            Some("session_start") => self.seen.start = true,
            Some("session_end") => self.seen.end = true,
            Some(_) => {}
            None => return self.malformed(line.len()),
        }
        if self.json {
            self.out.write_all(line)?;
            return self.out.write_all(b"\n");
        }
        self.event(&event)
    }

    fn malformed(&mut self, length: usize) -> io::Result<()> {
        self.seen.malformed += 1;
        if self.json {
            return Ok(());
        }
        writeln!(self.out, "{:12}  {length} bytes that are no record", "")
    }

    fn event(&mut self, event: &Map<String, Value>) -> io::Result<()> {
        let text = |key: &str| event.get(key).and_then(Value::as_str);
        let depth = text("parent_id").and_then(|parent| self.depths.get(parent)).copied().unwrap_or_default();
        if let (Some(id), Some(kind)) = (text("event_id"), text("event_type"))
            && NODES.contains(&kind)
        {
            if self.depths.len() >= REMEMBERED {
                // Session and tasks stay.
                self.depths.retain(|_, depth| *depth < 2);
            }
            let below = if kind == "session_start" { 0 } else { depth + 1 };
            self.depths.insert(id.to_owned(), below);
        }
        // The end of a task stands where its start does.
        let depth = if text("event_type") == Some("task_end") { depth.saturating_sub(1) } else { depth };
        let (day, time) = self.clock.tell(event.get("timestamp").and_then(Value::as_u64));
        let Phrase { what, text, tone } = phrase(event);
        let (dim, bad, end) = match self.colour {
            true => ("\u{1b}[2m", "\u{1b}[31m", "\u{1b}[0m"),
            false => ("", "", ""),
        };
        if let Some(day) = day {
            writeln!(self.out, "{dim}{day}{end}")?;
        }
        let indent = "  ".repeat(depth);
        let width = 14_usize.saturating_sub(indent.len());
        let shown = format!("{what:width$}  {text}");
        let shown = shown.trim_end();
        match tone {
            Tone::Bad => writeln!(self.out, "{dim}{time}{end}  {indent}{bad}{shown}{end}"),
            Tone::Plain => writeln!(self.out, "{dim}{time}{end}  {indent}{shown}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str, json: bool) -> (String, Result<(), Failure>) {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("client-trace-{}-{number}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let mut lines = Lines::open(&path, false).unwrap();
        let mut printer = Printer {
            out: Vec::new(),
            json,
            colour: false,
            clock: Clock::new(false),
            depths: HashMap::new(),
            seen: Seen::default(),
        };
        assert!(printer.all(&path, &mut lines, false).is_ok());
        let whole = printer.seen.whole(&path);
        std::fs::remove_file(path).unwrap();
        (String::from_utf8(printer.out).unwrap(), whole)
    }

    const START: &str = "{\"event_type\":\"session_start\",\"event_id\":\"e1\",\"parent_id\":null,\"timestamp\":0,\
                         \"capsule_name\":\"reporter\",\"capsule_version\":\"0.1.0\",\"containment_achieved\":\"sealed\"}\n";
    const END: &str = "{\"event_type\":\"session_end\",\"event_id\":\"e9\",\"parent_id\":\"e1\",\"timestamp\":5,\"exit_status\":\"ok\"}\n";

    #[test]
    fn what_belongs_to_a_task_is_set_in_below_it() {
        let text = format!(
            "{START}{}{}{}{}{END}",
            "{\"event_type\":\"task_start\",\"event_id\":\"e2\",\"parent_id\":\"e1\",\"timestamp\":1,\"task_id\":\"t\"}\n",
            "{\"event_type\":\"inference\",\"event_id\":\"e3\",\"parent_id\":\"e2\",\"timestamp\":2,\"turn\":1,\"stop_reason\":\"end_turn\"}\n",
            "{\"event_type\":\"shell\",\"event_id\":\"e4\",\"parent_id\":\"e3\",\"timestamp\":3,\"command\":\"ls\",\"exit_code\":0}\n",
            "{\"event_type\":\"task_end\",\"event_id\":\"e5\",\"parent_id\":\"e2\",\"timestamp\":4,\"exit_status\":\"ok\",\"turns\":1}\n",
        );
        let (printed, whole) = told(&text, false);
        assert!(whole.is_ok());
        let expected = "Thursday, 1970-01-01 (UTC+00:00)\n\
                        00:00:00.000  session         reporter 0.1.0, sealed\n\
                        00:00:00.001  task            t from ?, ?, 0 B\n\
                        00:00:00.002    turn 1        end_turn\n\
                        00:00:00.003      shell       ls → exit 0 in 0 ms\n\
                        00:00:00.004  task ends       ok after 0 ms, 1 turns\n\
                        00:00:00.005  session ends    ok after 0 ms: 0 turns, 0 tool calls, 0 shell commands, 0 + 0 tokens\n";
        assert_eq!(printed, expected);
        assert_eq!(told(&text, true).0, text);
    }

    #[test]
    fn a_record_that_is_not_whole_is_told_as_far_as_it_goes() {
        for (text, reason, lines) in [
            (String::new(), "it is empty", 0),
            (START.to_owned(), "no session_end", 1),
            (END.to_owned(), "no session_start", 1),
            (format!("{START}nonsense\n{END}"), "1 line is no record", 2),
            (format!("{START}{{}}\n[]\n{END}"), "2 lines are no record", 2),
            (format!("{START}{END}{{\"event_type\":\"resource_"), "1 line is no record", 2),
        ] {
            let (printed, whole) = told(&text, true);
            let failure = whole.unwrap_err();
            assert_eq!(failure.code, "E-TRC-001", "{text}");
            assert!(failure.reason.contains(reason), "{text}: {failure}");
            assert_eq!(printed.lines().count(), lines, "{text}: {printed}");
        }
    }
}
