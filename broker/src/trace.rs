//! `trace.jsonl`: one JSON object per line, formatted and appended by this process alone, one `write` per line.
//!
//! Other processes send typed events; identifiers, time and place in the tree are decided here. Every string passes the
//! redaction of peer handles on its way out.

use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipc::edge::egress_broker::{Asker, Reason};
use ipc::edge::host_broker::{Event, LoopEnded};
use ipc::types::{Class, PlaneCode, hex};
use serde_json::Value;

use self::line::Line;

mod events;
mod line;
mod process;

/// What the trace can be told.
#[derive(Debug)]
pub(crate) enum Entry {
    /// `session_start`, with its payload.
    SessionStart(Box<SessionStart>),
    /// A line of the agent's.
    Agent(Box<Event>),
    /// `resource_list`
    List {
        /// Sampled by whoever answered.
        generation: u64,
        /// Files listed.
        entry_count: u64,
        /// Their sizes together.
        total_bytes: u64,
        /// The refusal, if any.
        refused: Option<PlaneCode>,
        /// Whether the export was consulted (a 405 is answered before).
        consulted: bool,
        /// The process that reported it.
        process: &'static str,
    },
    /// `resource_read`
    Read {
        /// As requested.
        path: String,
        /// Sampled by whoever answered.
        generation: u64,
        /// Length and hash, or the refusal.
        outcome: Result<(u64, [u8; 32]), PlaneCode>,
        /// The process that reported it.
        process: &'static str,
    },
    /// `peer_handle_redeem`
    Redeem {
        /// First 16 hex digits of the hash of the token.
        handle_id: String,
        /// The path it authorises; `None` until the MAC has verified.
        path: Option<String>,
        /// Sampled by whoever answered.
        generation: u64,
        /// As asserted.
        audience: Option<String>,
        /// Length and hash, or the refusal.
        outcome: Result<(u64, [u8; 32]), PlaneCode>,
        /// The process that decided.
        process: &'static str,
    },
    /// `peer_handle_mint`, once the broker was asked.
    Mint {
        /// Canonical if minted, else as asked for.
        path: String,
        /// Whom it is for.
        audience: String,
        /// Identifier and expiry, or the refusal.
        outcome: Result<(String, u64), PlaneCode>,
    },
    /// `network_denied`
    NetworkDenied {
        /// Who asked.
        asker: Asker,
        /// `host:port`, or a name.
        destination: String,
        /// Why not.
        reason: Reason,
        /// So often.
        count: u64,
    },
    /// `session_end`; nothing follows but plane lines until the door is gone.
    SessionEnd(Option<LoopEnded>, &'static str),
}

/// The payload of `session_start` and the constants of later lines.
#[derive(Debug)]
pub(crate) struct SessionStart {
    /// Keys and values in order.
    pub(crate) fields: Vec<(&'static str, Value)>,
}

/// Constants that lines repeat.
#[derive(Debug, Clone)]
pub(crate) struct Constants {
    /// `ses_…`
    pub(crate) session_id: String,
    /// The class really applied.
    pub(crate) class: Class,
    /// `exports.files.root`, or empty.
    pub(crate) export_root: String,
}

/// The trace as the threads that read channels hold it; a line is formatted and appended by the thread that was told of it,
/// one at a time. While the disk is slow those who report wait, in the buffers of their channels.
#[derive(Debug, Clone)]
pub(crate) struct Trace {
    writer: Arc<Mutex<Writer>>,
    /// Dropped with the last clone: tells [`Written`] that nobody will record any more.
    _reporter: Sender<Infallible>,
}

/// The trace as the thread that ends the session holds it.
#[derive(Debug)]
pub(crate) struct Written {
    writer: Arc<Mutex<Writer>>,
    reporters: Receiver<Infallible>,
}

#[derive(Debug)]
struct Writer {
    file: File,
    constants: Constants,
    nodes: events::Nodes,
    /// The last write was cut short: begin the next line with a newline, so that the torn one swallows nothing.
    torn: bool,
    /// Whether it was said that a line cannot be written.
    reported: bool,
    started: std::time::Instant,
}

/// Makes a trace.
pub(crate) fn trace(file: File, constants: Constants) -> (Trace, Written) {
    let writer = Arc::new(Mutex::new(Writer {
        file,
        constants,
        nodes: events::Nodes::default(),
        torn: false,
        reported: false,
        started: std::time::Instant::now(),
    }));
    let (reporter, reporters) = channel();
    (Trace { writer: Arc::clone(&writer), _reporter: reporter }, Written { writer, reporters })
}

fn locked(writer: &Mutex<Writer>) -> MutexGuard<'_, Writer> {
    writer.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Trace {
    /// Appends a line. One that cannot be written is reported once on stderr and the plane goes on: whoever fills the disk
    /// must not take the planes down.
    pub(crate) fn record(&self, entry: Entry) {
        locked(&self.writer).record(entry);
    }
}

impl Written {
    /// Waits until every reporter is gone, then syncs the file.
    pub(crate) fn finish(self) {
        // Nothing is ever sent: this is the end of the last reporter.
        let _ = self.reporters.recv();
        let _ = locked(&self.writer).file.sync_data();
    }
}

impl Writer {
    fn record(&mut self, entry: Entry) {
        let end = matches!(entry, Entry::SessionEnd(..));
        if let Err(error) = self.write(entry)
            && !self.reported
        {
            self.reported = true;
            say!("warning: trace.jsonl cannot be written: {error}");
        }
        if end {
            let _ = self.file.sync_data();
        }
    }

    fn write(&mut self, entry: Entry) -> io::Result<()> {
        let line = self.line(entry);
        let mut bytes = Vec::with_capacity(line.len() + 2);
        if self.torn {
            bytes.push(b'\n');
        }
        bytes.extend_from_slice(line.as_bytes());
        bytes.push(b'\n');
        let written = self.file.write(&bytes)?;
        self.torn = written != bytes.len();
        if self.torn { Err(io::ErrorKind::WriteZero.into()) } else { Ok(()) }
    }

    fn line(&mut self, entry: Entry) -> String {
        let id = self.constants.session_id.clone();
        let class = self.constants.class.as_str();
        match entry {
            Entry::SessionStart(start) => {
                let mut line = Line::new("session_start", None, &id);
                self.nodes.session = Some(line.event_id().to_owned());
                for (key, value) in &start.fields {
                    line.value(key, value);
                }
                line.end("broker")
            }
            Entry::Agent(event) => events::line(&mut self.nodes, &id, &event),
            Entry::List { generation, entry_count, total_bytes, refused, consulted, process } => {
                let root = if consulted { self.constants.export_root.as_str() } else { "" };
                Line::new("resource_list", self.nodes.session.as_deref(), &id)
                    .text("root", root)
                    .number("entry_count", entry_count)
                    .number("total_bytes", total_bytes)
                    .number("generation", generation)
                    .text("containment_achieved", class)
                    .text("outcome", refused.map_or("ok", PlaneCode::as_str))
                    .optional_text("reason", refused.map(PlaneCode::message))
                    .end(process)
            }
            Entry::Read { path, generation, outcome, process } => {
                let served = outcome.as_ref().ok();
                let refused = outcome.as_ref().err().copied();
                let sha256 = served.map(|(_, hash)| hex(hash));
                Line::new("resource_read", self.nodes.session.as_deref(), &id)
                    .text("path", &path)
                    .text("outcome", refused.map_or("ok", PlaneCode::as_str))
                    .optional_number("bytes", served.map(|(bytes, _)| *bytes))
                    .optional_text("sha256", sha256.as_deref())
                    .number("generation", generation)
                    .text("containment_achieved", class)
                    .optional_text("reason", refused.map(PlaneCode::message))
                    .end(process)
            }
            Entry::Redeem { handle_id, path, generation, audience, outcome, process } => {
                let served = outcome.as_ref().ok();
                let refused = outcome.as_ref().err().copied();
                let sha256 = served.map(|(_, hash)| hex(hash));
                Line::new("peer_handle_redeem", self.nodes.session.as_deref(), &id)
                    .text("handle_id", &handle_id)
                    .optional_text("path", path.as_deref())
                    .number("generation", generation)
                    .optional_text("audience_asserted", audience.as_deref())
                    .optional_number("bytes", served.map(|(bytes, _)| *bytes))
                    .optional_text("sha256", sha256.as_deref())
                    .text("outcome", refused.map_or("ok", PlaneCode::as_str))
                    .optional_text("reason", refused.map(PlaneCode::message))
                    .end(process)
            }
            Entry::Mint { path, audience, outcome } => {
                let minted = outcome.as_ref().ok();
                let refused = outcome.as_ref().err().copied();
                events::mint(
                    self.nodes.session.as_deref(),
                    &id,
                    &events::Minting {
                        handle_id: minted.map(|(handle_id, _)| handle_id.as_str()),
                        path: &path,
                        audience: &audience,
                        expires_at_ms: minted.map(|(_, expires)| *expires),
                        refused: refused.map(|code| (code.as_str(), code.message())),
                        process: "broker",
                    },
                )
            }
            Entry::NetworkDenied { asker, destination, reason, count } => {
                let (surface, artifact, rule) = match &asker {
                    Asker::Artifact(name) => ("component", Some(name.as_str()), "capabilities.network.allow"),
                    Asker::Card => ("peer", None, "capabilities.network.allow"),
                    Asker::Redeem => ("peer", None, "capabilities.peer_fetch.allow"),
                    Asker::Program => ("subprocess", None, "capabilities.network.allow"),
                    Asker::Lookup => ("dns", None, "capabilities.network.allow"),
                };
                let mut line = Line::new("network_denied", self.nodes.nearest(), &id);
                line.text("surface", surface);
                if let Some(artifact) = artifact {
                    line.text("artifact", artifact);
                }
                line.text("destination", &destination)
                    .text("rule", rule)
                    .number("count", count)
                    .text("reason", reason.as_str())
                    .end("egress")
            }
            Entry::SessionEnd(totals, exit_status) => {
                let session = self.nodes.session.clone();
                let mut line = Line::new("session_end", session.as_deref(), &id);
                let (turns, input, output, tools, shells) = totals.map_or((0, 0, 0, 0, 0), |t| {
                    (t.turns, t.input_tokens, t.output_tokens, t.tool_calls, t.shell_calls)
                });
                line.number("total_turns", turns.into())
                    .number("total_input_tokens", input)
                    .number("total_output_tokens", output)
                    .number("total_tool_calls", tools.into())
                    .number("total_shell_calls", shells.into())
                    .number(
                        "duration_ms",
                        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
                    )
                    .text("exit_status", exit_status)
                    .end("broker")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_the_documented_keys_in_order_and_never_a_handle() {
        let path = std::env::temp_dir().join(format!("broker-trace-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        let constants =
            Constants { session_id: "ses_1".into(), class: Class::Scoped, export_root: "out/".into() };
        let (trace, writer) = trace(file, constants);
        trace.record(Entry::SessionStart(Box::new(SessionStart {
            fields: vec![("capsule_name", "x".into())],
        })));
        trace.record(Entry::Read {
            path: "mh1.abc.def".into(),
            generation: 2,
            outcome: Err(PlaneCode::NotFound),
            process: "fileserver",
        });
        trace.record(Entry::List {
            generation: 2,
            entry_count: 1,
            total_bytes: 5,
            refused: None,
            consulted: true,
            process: "fileserver",
        });
        drop(trace);
        writer.finish();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        let start: Value = serde_json::from_str(lines[0]).unwrap();
        assert!(lines[0].starts_with("{\"event_type\":\"session_start\",\"event_id\":\"evt_"));
        assert_eq!(start["parent_id"], Value::Null);
        assert!(!text.contains("mh1."), "{text}");
        assert!(lines[1].contains("\"path\":\"<handle:"));
        let read: Value = serde_json::from_str(lines[1]).unwrap();
        assert_eq!(read["parent_id"], start["event_id"]);
        assert_eq!(read["outcome"], "not_found");
        assert_eq!(read["bytes"], Value::Null);
        let list = lines[2];
        let order =
            ["root", "entry_count", "total_bytes", "generation", "containment_achieved", "outcome", "reason"];
        let places: Vec<usize> = order.iter().map(|key| list.find(&format!("\"{key}\":")).unwrap()).collect();
        assert!(places.is_sorted(), "{list}");
        assert!(list.ends_with("\"process\":\"fileserver\"}"));
    }
}
