//! One line: five common keys, then the payload in the order it is given, then the process it came from. No peer handle
//! stands in it, keys included.

use std::borrow::Cow;
use std::cell::RefCell;

/// A line being written.
#[derive(Debug)]
pub(super) struct Line {
    text: Vec<u8>,
    event_id: String,
}

impl Line {
    /// Begins a line; identifier and time are made now.
    pub(super) fn new(event_type: &str, parent: Option<&str>, session: &str) -> Line {
        let now = now_ms();
        let id = uuid::Builder::from_unix_timestamp_millis(now, &random_bytes()).into_uuid();
        let event_id = format!("evt_{}", id.simple());
        let mut text = Vec::with_capacity(512);
        text.push(b'{');
        let mut line = Line { text, event_id: event_id.clone() };
        line.text("event_type", event_type)
            .text("event_id", &event_id)
            .optional_text("parent_id", parent)
            .text("session_id", session)
            .number("timestamp", now);
        line
    }

    /// Its identifier.
    pub(super) fn event_id(&self) -> &str {
        &self.event_id
    }

    pub(super) fn text(&mut self, key: &str, text: &str) -> &mut Line {
        self.pair(key, text)
    }

    pub(super) fn optional_text(&mut self, key: &str, text: Option<&str>) -> &mut Line {
        self.pair(key, text)
    }

    pub(super) fn number(&mut self, key: &str, number: u64) -> &mut Line {
        self.pair(key, number)
    }

    pub(super) fn optional_number(&mut self, key: &str, number: Option<u64>) -> &mut Line {
        self.pair(key, number)
    }

    pub(super) fn value(&mut self, key: &str, value: &serde_json::Value) -> &mut Line {
        self.pair(key, value)
    }

    /// Keys are ours: they hold nothing that would have to be escaped.
    fn pair(&mut self, key: &str, value: impl serde::Serialize) -> &mut Line {
        self.text.extend_from_slice(if self.text.len() > 1 { b",\"" } else { b"\"" });
        self.text.extend_from_slice(key.as_bytes());
        self.text.extend_from_slice(b"\":");
        self.json(value);
        self
    }

    /// What cannot be serialised is null; texts, numbers and JSON values always can.
    fn json(&mut self, value: impl serde::Serialize) {
        let before = self.text.len();
        if serde_json::to_writer(&mut self.text, &value).is_err() {
            self.text.truncate(before);
            self.text.extend_from_slice(b"null");
        }
    }

    /// The whole line, without its newline. The last key names the process the facts come from.
    pub(super) fn end(&mut self, process: &str) -> String {
        self.text("process", process);
        self.text.push(b'}');
        let text = String::from_utf8(std::mem::take(&mut self.text));
        let text = text.unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        match handle::redact(&text) {
            Cow::Borrowed(_) => text,
            Cow::Owned(redacted) => redacted,
        }
    }
}

/// Random bytes for an identifier. They are fetched a page at a time; no two identifiers share any.
fn random_bytes() -> [u8; 10] {
    const PAGE: usize = 1000;
    thread_local! {
        static LEFT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    LEFT.with_borrow_mut(|left| {
        if left.len() < 10 {
            left.resize(PAGE, 0);
            // Without random bytes the time alone tells two lines apart, which is no reason not to write them.
            let _ = getrandom::fill(left);
        }
        let rest = left.len() - 10;
        let taken = left.split_off(rest);
        taken.try_into().unwrap_or_default()
    })
}

fn now_ms() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
