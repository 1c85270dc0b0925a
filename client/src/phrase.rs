//! An event in words: what happened, to what, how it ended.

use serde_json::{Map, Value};

use crate::show::{bytes, duration, safe};

/// Characters of a text of a capsule's that are shown.
const MOST: usize = 100;

/// How a line is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    /// Something was refused or failed.
    Bad,
}

/// An event in words.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Phrase {
    pub(crate) what: String,
    pub(crate) text: String,
    pub(crate) tone: Tone,
}

/// One record, read leniently: a newer version may say more, or less.
struct Event<'e>(&'e Map<String, Value>);

impl Event<'_> {
    fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.as_str()
    }

    fn shown(&self, key: &str) -> String {
        safe(self.text(key).unwrap_or("?"), MOST)
    }

    fn number(&self, key: &str) -> u64 {
        self.0.get(key).and_then(Value::as_u64).unwrap_or_default()
    }

    fn took(&self) -> String {
        duration(self.number("duration_ms"))
    }

    fn is(&self, key: &str) -> bool {
        self.0.get(key).and_then(Value::as_bool).unwrap_or_default()
    }

    /// `exit 0`, `exit 143, cpu_seconds`, `timed out`
    fn end_of_program(&self) -> (String, Tone) {
        let code = self.0.get("exit_code").and_then(Value::as_i64).unwrap_or_default();
        let mut text = if self.is("timed_out") { "timed out".to_owned() } else { format!("exit {code}") };
        if let Some(limit) = self.text("resource_limit") {
            text.push_str(&format!(", limit {}", safe(limit, MOST)));
        }
        (text, if code == 0 && !self.is("timed_out") { Tone::Plain } else { Tone::Bad })
    }

    /// What a plane answered with: a size and a hash, or a code.
    fn outcome(&self) -> (String, Tone) {
        match self.text("outcome") {
            Some("ok") => (bytes(self.number("bytes")), Tone::Plain),
            other => (safe(other.unwrap_or("?"), MOST), Tone::Bad),
        }
    }
}

/// Puts a record into words; what it is not known by stands as it is recorded.
pub(crate) fn phrase(event: &Map<String, Value>) -> Phrase {
    let event = Event(event);
    let kind = event.text("event_type").unwrap_or("?");
    let (what, text, tone) = agent(&event, kind)
        .or_else(|| program(&event, kind))
        .or_else(|| plane(&event, kind))
        .unwrap_or_else(|| (safe(kind, 40), rest(&event), tone_of(kind)));
    Phrase { what, text, tone }
}

type Words = Option<(String, String, Tone)>;

fn words(what: &str, text: String, tone: Tone) -> Words {
    Some((what.to_owned(), text, tone))
}

fn good(is_good: bool) -> Tone {
    if is_good { Tone::Plain } else { Tone::Bad }
}

fn agent(event: &Event<'_>, kind: &str) -> Words {
    match kind {
        "session_start" => {
            let (name, version) = (event.shown("capsule_name"), event.shown("capsule_version"));
            let class = event.shown("containment_achieved");
            let model = event.text("model").map(|model| format!(", model {}", safe(model, MOST)));
            let text = format!("{name} {version}, {class}{}", model.unwrap_or_default());
            words("session", text, Tone::Plain)
        }
        "session_end" => {
            let status = event.shown("exit_status");
            let text = format!(
                "{status} after {}: {} turns, {} tool calls, {} shell commands, {} + {} tokens",
                event.took(),
                event.number("total_turns"),
                event.number("total_tool_calls"),
                event.number("total_shell_calls"),
                event.number("total_input_tokens"),
                event.number("total_output_tokens"),
            );
            words("session ends", text, good(status == "ok"))
        }
        "a2a_task_received" => words("message", event.shown("task_id"), Tone::Plain),
        "task_start" => {
            let (source, trust) = (event.shown("source"), event.shown("trust"));
            let size = bytes(event.number("message_parts_bytes"));
            words("task", format!("{} from {source}, {trust}, {size}", event.shown("task_id")), Tone::Plain)
        }
        "task_end" => {
            let status = event.shown("exit_status");
            let text = format!("{status} after {}, {} turns", event.took(), event.number("turns"));
            words("task ends", text, good(status == "ok"))
        }
        "task_failed" => {
            words("failed", format!("{}: {}", event.shown("cause"), event.shown("reason")), Tone::Bad)
        }
        "task_canceled" => words("canceled", format!("in phase {}", event.shown("phase")), Tone::Bad),
        "task_rejected" => words("rejected", event.shown("reason"), Tone::Bad),
        "inference" => {
            let decision = match (event.text("error"), event.text("tool_name")) {
                (Some(error), _) => format!("error: {}", safe(error, MOST)),
                (None, Some(tool)) => format!("asks for {}", safe(tool, MOST)),
                (None, None) => event.shown("stop_reason"),
            };
            let tokens = match event.0.get("input_tokens_actual").or(event.0.get("output_tokens_actual")) {
                Some(_) => format!(
                    ", {} + {} tokens",
                    event.number("input_tokens_actual"),
                    event.number("output_tokens_actual")
                ),
                None => String::new(),
            };
            let what = format!("turn {}", event.number("turn"));
            words(&what, format!("{decision}{tokens}"), good(event.text("error").is_none()))
        }
        "tool_call" => {
            let ok = event.text("status") == Some("ok");
            let end = match event.text("error") {
                Some(error) => safe(error, MOST),
                None => format!("{} in {}", bytes(event.number("output_bytes")), event.took()),
            };
            let input = event.0.get("input").map(Value::to_string).unwrap_or_default();
            words(
                &safe(event.text("tool_name").unwrap_or("tool"), 40),
                format!("{} → {end}", safe(&input, MOST)),
                good(ok),
            )
        }
        "call_denied" | "protected_path_denied" => {
            words("refused", format!("{}: {}", event.shown("target"), event.shown("reason")), Tone::Bad)
        }
        _ => None,
    }
}

fn program(event: &Event<'_>, kind: &str) -> Words {
    match kind {
        "shell" | "process_run" => {
            let (end, tone) = event.end_of_program();
            let what = if kind == "shell" { "shell" } else { "run" };
            words(what, format!("{} → {end} in {}", event.shown("command"), event.took()), tone)
        }
        "process_start" => {
            let how = if event.is("already_running") { "runs already" } else { "starts" };
            words("start", format!("{}: {} {how}", event.shown("name"), event.shown("command")), Tone::Plain)
        }
        "process_exit" => {
            let (end, tone) = event.end_of_program();
            let text =
                format!("{}: {end} ({}) after {}", event.shown("name"), event.shown("cause"), event.took());
            let asked = matches!(event.text("cause"), Some("stopped" | "session_end"));
            words("exit", text, if asked { Tone::Plain } else { tone })
        }
        "process_denied" => {
            let text =
                format!("{} ({}): {}", event.shown("target"), event.shown("rule"), event.shown("reason"));
            words("refused", text, Tone::Bad)
        }
        "process_connect" => {
            let (sent, came) = (bytes(event.number("bytes_out")), bytes(event.number("bytes_in")));
            words("connection", format!("port {}: {sent} out, {came} in", event.number("port")), Tone::Plain)
        }
        "network_denied" => {
            let count = match event.number("count") {
                0 | 1 => String::new(),
                count => format!(" {count} times"),
            };
            let text = format!(
                "{} asked for {}{count}: {}",
                event.text("artifact").map_or_else(|| event.shown("surface"), |name| safe(name, MOST)),
                event.shown("destination"),
                event.shown("reason")
            );
            words("network", text, Tone::Bad)
        }
        _ => None,
    }
}

fn plane(event: &Event<'_>, kind: &str) -> Words {
    let (end, tone) = event.outcome();
    let generation = event.number("generation");
    match kind {
        "resource_list" => {
            let end = match tone {
                Tone::Plain => {
                    format!("{} files, {}", event.number("entry_count"), bytes(event.number("total_bytes")))
                }
                Tone::Bad => end,
            };
            words("list", format!("{end}, generation {generation}"), tone)
        }
        "resource_read" => {
            words("read", format!("{} → {end}, generation {generation}", event.shown("path")), tone)
        }
        "peer_handle_mint" => {
            let end = if tone == Tone::Plain { event.shown("handle_id") } else { end };
            words("handle", format!("{} for {} → {end}", event.shown("path"), event.shown("audience")), tone)
        }
        "peer_handle_redeem" => {
            let who = event.text("audience_asserted").map_or("nobody".into(), |who| safe(who, MOST));
            words("redeem", format!("{} by {who} → {end}", event.shown("handle_id")), tone)
        }
        "peer_file_fetch" => {
            let end =
                if tone == Tone::Plain { format!("{}, {end}", event.shown("stored_path")) } else { end };
            words("fetch", format!("{} from {} → {end}", event.shown("handle_id"), event.shown("peer")), tone)
        }
        _ => None,
    }
}

/// What a kind of event says by its name.
fn tone_of(kind: &str) -> Tone {
    good(!["denied", "failed", "error", "refused"].iter().any(|word| kind.contains(word)))
}

/// The plain values of an event that is not known.
fn rest(event: &Event<'_>) -> String {
    let common = ["event_type", "event_id", "parent_id", "session_id", "timestamp", "process"];
    let pairs = event.0.iter().filter(|(key, value)| {
        !common.contains(&key.as_str()) && !matches!(value, Value::Null | Value::Array(_) | Value::Object(_))
    });
    let said: Vec<String> = pairs
        .map(|(key, value)| {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            format!("{} {}", safe(key, 40), safe(&value, 40))
        })
        .collect();
    safe(&said.join(", "), 2 * MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &str) -> (String, String, Tone) {
        let Value::Object(event) = serde_json::from_str(line).unwrap() else { panic!("{line}") };
        let Phrase { what, text, tone } = phrase(&event);
        (what, text, tone)
    }

    #[test]
    fn events_are_told_in_words() {
        for (line, what, text, tone) in [
            (
                r#"{"event_type":"task_end","exit_status":"ok","duration_ms":1500,"turns":4}"#,
                "task ends",
                "ok after 1.5 s, 4 turns",
                Tone::Plain,
            ),
            (
                r#"{"event_type":"shell","command":"ls\n","exit_code":137,"duration_ms":3,"resource_limit":"cpu_seconds"}"#,
                "shell",
                "ls\\n → exit 137, limit cpu_seconds in 3 ms",
                Tone::Bad,
            ),
            (
                r#"{"event_type":"resource_read","path":"a\u001b[2Jb","outcome":"outside_root","bytes":null,"generation":3}"#,
                "read",
                "a\\u{1b}[2Jb → outside_root, generation 3",
                Tone::Bad,
            ),
            (
                r#"{"event_type":"resource_read","path":"report.md","outcome":"ok","bytes":2048,"generation":1}"#,
                "read",
                "report.md → 2.0 KiB, generation 1",
                Tone::Plain,
            ),
            (
                r#"{"event_type":"resource_list","outcome":"ok","entry_count":2,"total_bytes":44,"generation":1}"#,
                "list",
                "2 files, 44 B, generation 1",
                Tone::Plain,
            ),
            (
                r#"{"event_type":"inference","turn":2,"tool_name":"bash","stop_reason":"tool_call"}"#,
                "turn 2",
                "asks for bash",
                Tone::Plain,
            ),
            (
                r#"{"event_type":"network_denied","surface":"dns","destination":"x.example","reason":"not listed","count":7}"#,
                "network",
                "dns asked for x.example 7 times: not listed",
                Tone::Bad,
            ),
        ] {
            assert_eq!(said(line), (what.to_owned(), text.to_owned(), tone), "{line}");
        }
    }

    #[test]
    fn what_is_not_known_stands_as_it_is_recorded() {
        let line = r#"{"event_type":"quota_denied","event_id":"evt_1","who":"a\u0007","much":3,"more":[1],"no":null}"#;
        assert_eq!(said(line), ("quota_denied".into(), "who a\\u{7}, much 3".into(), Tone::Bad));
        assert_eq!(said("{}"), ("?".into(), String::new(), Tone::Plain));
        // Wrong types are no reason to stop.
        assert_eq!(said(r#"{"event_type":"task_end","exit_status":7,"turns":"x"}"#).0, "task ends");
    }
}
