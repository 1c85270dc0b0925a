//! Reading a session's trace and checking what every trace must keep.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

/// The lines of a `trace.jsonl`, checked one by one when read.
#[derive(Debug)]
pub struct Trace {
    text: String,
    /// Each line, parsed.
    pub events: Vec<Value>,
}

/// How long a line may be only half there.
const WHOLE: Duration = Duration::from_secs(5);

impl Trace {
    /// Reads the trace in a records directory and checks it: whole lines of JSON, the five leading keys in order, ids that
    /// are well formed and unique, one session, parents that came earlier, `session_start` first and once, no handle in
    /// the clear, and the origin last.
    ///
    /// # Panics
    /// If the trace is not so.
    #[must_use]
    pub fn read(records: &Path) -> Self {
        let path = records.join("trace.jsonl");
        let read = || fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        // Of a session that goes on, a reader can see the beginning of a line that is just being written.
        let whole = crate::process::until("a trace of whole lines", WHOLE, || {
            Some(read()).filter(|text| text.ends_with('\n'))
        });
        Self::parse(whole)
    }

    /// As [`Trace::read`], of a text.
    ///
    /// # Panics
    /// If the trace is not as it must be.
    #[must_use]
    pub fn parse(text: String) -> Self {
        assert!(text.ends_with('\n'), "the last line has no end");
        let events: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
            .collect();
        assert!(!text.contains("mh1."), "a handle in the trace");
        let mut seen = BTreeSet::new();
        let session = events.first().map(|event| event["session_id"].clone()).unwrap_or_default();
        for (number, (line, event)) in text.lines().zip(&events).enumerate() {
            assert_leading_keys(line, event);
            assert_eq!(event["session_id"], session, "{line}");
            let is_start = event["event_type"] == "session_start";
            assert_eq!(is_start, number == 0, "session_start comes first and once: {line}");
            match event["parent_id"].as_str() {
                Some(parent) => assert!(seen.contains(parent), "a parent that did not come before: {line}"),
                None => assert!(is_start, "no parent: {line}"),
            }
            let id = event["event_id"].as_str().unwrap_or_default();
            let digits = id.strip_prefix("evt_").unwrap_or_default();
            let is_id =
                digits.len() == 32 && digits.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'a'..=b'f'));
            assert!(is_id && seen.insert(id.to_owned()), "event_id: {line}");
            let origin = event["process"].as_str().unwrap_or_else(|| panic!("no origin: {line}"));
            assert!(
                line.ends_with(&format!("\"process\":{}}}", Value::from(origin))),
                "the origin is not last: {line}"
            );
            assert_nulls(line, event);
        }
        Self { text, events }
    }

    /// The events of one type, in order.
    #[must_use]
    pub fn of(&self, kind: &str) -> Vec<&Value> {
        self.events.iter().filter(|event| event["event_type"] == kind).collect()
    }

    /// How many events of each of these types there are.
    #[must_use]
    pub fn counts<const N: usize>(&self, kinds: [&str; N]) -> [usize; N] {
        kinds.map(|kind| self.of(kind).len())
    }

    /// The text, for messages.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Reads a trace while it is being written, line by line.
#[derive(Debug)]
pub struct Tail {
    file: fs::File,
    pending: Vec<u8>,
    lines: VecDeque<Value>,
}

impl Tail {
    /// Starts at the beginning of the trace in a records directory.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn of(records: &Path) -> Self {
        let path = records.join("trace.jsonl");
        let file = fs::File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { file, pending: Vec::new(), lines: VecDeque::new() }
    }

    /// The next line of a plane that is on file already.
    ///
    /// # Panics
    /// If the trace cannot be read, or a line is no JSON.
    pub fn next_there(&mut self) -> Option<Value> {
        if self.lines.is_empty() {
            self.file.read_to_end(&mut self.pending).expect("the trace");
            while let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                let event: Value = serde_json::from_slice(&line).expect("a line of JSON");
                if event["event_type"].as_str().is_some_and(|kind| PLANE_EVENTS.contains(&kind)) {
                    self.lines.push_back(event);
                }
            }
        }
        self.lines.pop_front()
    }

    /// The next line of a plane, waited for: it is on its way when its answer is.
    pub fn next_within(&mut self, patience: Duration) -> Option<Value> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(event) = self.next_there() {
                return Some(event);
            }
            if Instant::now() >= deadline {
                return None;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// What requests below `/resources/` are recorded as.
const PLANE_EVENTS: [&str; 3] = ["resource_list", "resource_read", "peer_handle_redeem"];

/// The first five keys, in this order. A JSON parser forgets the order, so they are looked for in the text.
fn assert_leading_keys(line: &str, event: &Value) {
    let mut expected = String::from("{");
    for key in ["event_type", "event_id", "parent_id", "session_id", "timestamp"] {
        expected.push_str(&format!("{}:{},", Value::from(key), event[key]));
    }
    let expected = expected.trim_end_matches(',');
    assert!(line.starts_with(expected), "leading keys, expected {expected}: {line}");
    assert!(event["timestamp"].is_u64(), "timestamp: {line}");
}

/// A refused read has no size and no hash; a served one has both.
fn assert_nulls(line: &str, event: &Value) {
    if event["event_type"] != "resource_read" {
        return;
    }
    let served = event["outcome"] == "ok";
    assert_eq!(event["reason"].is_null(), served, "reason: {line}");
    for key in ["bytes", "sha256"] {
        assert!(event.get(key).is_some_and(|value| value.is_null() != served), "{key}: {line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: &str = r#"{"event_type":"session_start","event_id":"evt_01a1b2c3d4e57000800000000000a000","parent_id":null,"session_id":"ses_1","timestamp":1,"process":"broker"}"#;

    fn line(changes: &[(&str, &str)]) -> String {
        let mut line = r#"{"event_type":"resource_read","event_id":"evt_01a1b2c3d4e57000800000000000a001","parent_id":"evt_01a1b2c3d4e57000800000000000a000","session_id":"ses_1","timestamp":2,"path":"a","outcome":"ok","bytes":1,"sha256":"00","generation":0,"containment_achieved":"sealed","reason":null,"process":"fileserver"}"#.to_owned();
        for (from, to) in changes {
            assert!(line.contains(from), "{from}");
            line = line.replace(from, to);
        }
        line
    }

    #[test]
    fn a_sound_trace_is_read() {
        let trace = Trace::parse(format!("{START}\n{}\n", line(&[])));
        assert_eq!(trace.counts(["session_start", "resource_read", "task_start"]), [1, 1, 0]);
    }

    #[test]
    fn every_kind_of_damage_is_found() {
        for (what, text) in [
            ("no line end", START.to_owned()),
            ("torn line", format!("{START}\n{}\n", &line(&[])[..40])),
            ("no start", format!("{}\n", line(&[]))),
            ("two starts", format!("{START}\n{}\n", START.replace("a000\"", "a001\""))),
            ("an unknown parent", format!("{START}\n{}\n", line(&[("0a000\"", "0b000\"")]))),
            ("an id twice", format!("{START}\n{}\n", line(&[("0a001\"", "0a000\"")]))),
            (
                "an id of another form",
                format!("{START}\n{}\n", line(&[("evt_01a1b2c3d4e57000800000000000a001", "evt_1")])),
            ),
            ("another session", format!("{START}\n{}\n", line(&[("ses_1", "ses_2")]))),
            (
                "keys in another order",
                format!(
                    "{START}\n{}\n",
                    line(&[
                        (",\"timestamp\":2", ""),
                        ("\"path\"", "\"timestamp\":2,\"path\""),
                        ("\"session_id\":\"ses_1\",", ""),
                        ("\"path\"", "\"session_id\":\"ses_1\",\"path\"")
                    ])
                ),
            ),
            ("no origin", format!("{START}\n{}\n", line(&[(",\"process\":\"fileserver\"", "")]))),
            (
                "a refusal with a size",
                format!(
                    "{START}\n{}\n",
                    line(&[("\"ok\"", "\"not_found\""), ("\"reason\":null", "\"reason\":\"x\"")])
                ),
            ),
            ("a handle", format!("{START}\n{}\n", line(&[("\"path\":\"a\"", "\"path\":\"mh1.a.b\"")]))),
        ] {
            let read = std::panic::catch_unwind(|| Trace::parse(text.clone()));
            assert!(read.is_err(), "{what} was not found");
        }
    }
}
