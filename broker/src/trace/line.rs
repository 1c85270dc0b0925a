//! One line: five common keys, then the payload in the order it is given, then the process it came from.

use sha2::{Digest, Sha256};

/// A line being written.
#[derive(Debug)]
pub(super) struct Line {
    text: String,
    event_id: String,
}

impl Line {
    /// Begins a line; identifier and time are made now.
    pub(super) fn new(event_type: &str, parent: Option<&str>, session: &str) -> Line {
        let event_id = format!("evt_{}", uuid::Uuid::now_v7().simple());
        let mut line = Line { text: String::from("{"), event_id: event_id.clone() };
        line.text("event_type", event_type)
            .text("event_id", &event_id)
            .optional_text("parent_id", parent)
            .text("session_id", session)
            .number("timestamp", now_ms());
        line
    }

    /// Its identifier.
    pub(super) fn event_id(&self) -> &str {
        &self.event_id
    }

    pub(super) fn text(&mut self, key: &str, text: &str) -> &mut Line {
        self.value(key, &serde_json::Value::from(text))
    }

    pub(super) fn optional_text(&mut self, key: &str, text: Option<&str>) -> &mut Line {
        self.value(key, &text.map_or(serde_json::Value::Null, serde_json::Value::from))
    }

    pub(super) fn number(&mut self, key: &str, number: u64) -> &mut Line {
        self.value(key, &serde_json::Value::from(number))
    }

    pub(super) fn optional_number(&mut self, key: &str, number: Option<u64>) -> &mut Line {
        self.value(key, &number.map_or(serde_json::Value::Null, serde_json::Value::from))
    }

    pub(super) fn value(&mut self, key: &str, value: &serde_json::Value) -> &mut Line {
        if self.text.len() > 1 {
            self.text.push(',');
        }
        self.text.push_str(&serde_json::Value::from(key).to_string());
        self.text.push(':');
        self.text.push_str(&value.to_string());
        self
    }

    /// The whole line, without its newline. The last key names the process the facts come from.
    pub(super) fn end(&mut self, process: &str) -> String {
        self.text("process", process);
        self.text.push('}');
        redact(&self.text)
    }
}

fn now_ms() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Replaces every peer handle, `mh1.<segment>.<segment>`, by `<handle:<handle_id>>`. Its characters are never escaped in
/// JSON, so the serialised line can be searched, keys included (`seed: What lands in the trace`).
pub(super) fn redact(text: &str) -> String {
    const TAG: &str = "mh1.";
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(TAG) {
        let (before, candidate) = rest.split_at(start);
        out.push_str(before);
        match handle_length(candidate) {
            Some(length) => {
                let (token, after) = candidate.split_at(length);
                let digest = Sha256::digest(token.as_bytes());
                let id = ipc::types::hex(digest.get(..8).unwrap_or_default());
                out.push_str("<handle:");
                out.push_str(&id);
                out.push('>');
                rest = after;
            }
            None => {
                out.push_str(TAG);
                rest = candidate.get(TAG.len()..).unwrap_or_default();
            }
        }
    }
    out.push_str(rest);
    out
}

/// Length of the handle that `text` begins with, if it does.
fn handle_length(text: &str) -> Option<usize> {
    let segment = |text: &str| {
        text.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')).count()
    };
    let payload = segment(text.get(4..)?);
    let dot = 4 + payload;
    let mac = if text.as_bytes().get(dot) == Some(&b'.') { segment(text.get(dot + 1..)?) } else { 0 };
    (payload > 0 && mac > 0).then_some(dot + 1 + mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_replaced_wherever_they_stand_and_nothing_else_is() {
        let token = "mh1.eyJ2IjoxLCJpc3MiOiJzZXNfMDFhMDMzZWMyYzFmN2ViMmE1OTIyZjg0ZTAxMmU4OWQiLCJwIjoicmVwb3J0Lm1kIiwiZXhwIjoxNzU1OTUwMzAwMDAwLCJuIjoiN2YzYzBhNTUxMmU4NGI2ZDlhMDFjMmQzZTRmNTA2MTcifQ.ECkYCjRA7Yx4LxWc_e4m2HGEvVzj5X_REXzd5Tqzs4U";
        assert_eq!(redact(&format!("a {token}, b")), "a <handle:cb3b91815ed11b2d>, b");
        for same in ["", "mh1.", "mh1.a", "mh1.a.", "mh1..b", "mh2.a.b", "xmh1"] {
            assert_eq!(redact(same), same);
        }
        assert!(!redact("mh1.mh1.a.b").contains("mh1.a.b"));
        assert!(!redact("mh1.a.b.c").contains("mh1.a"));
    }
}
