//! Tables of requests to the operator plane: what is sent, what must come back, and what the trace must say.
//!
//! Requests are bytes on a socket of their own. What comes back is compared as a whole: status, the set of headers with
//! their values, the body, and the line in the trace. A table is run to its end and then says every row that failed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::broker::Session;
use crate::http::{self, Response};
use crate::programs;
use crate::trace::{Tail, Trace};

/// How long a line of the trace may take after its answer.
const LINE_PATIENCE: Duration = Duration::from_secs(10);

/// Status of each code (`seed: Errors`).
pub const CODES: [(&str, u16); 9] = [
    ("no_resource_plane", 404),
    ("no_peer_plane", 404),
    ("not_found", 404),
    ("outside_root", 403),
    ("symlink_refused", 403),
    ("not_a_regular_file", 403),
    ("too_large", 413),
    ("method_not_allowed", 405),
    ("io_error", 500),
];

/// What a request must lead to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expect {
    /// The bytes of the file at this decoded path, as it lies on the disk.
    File(String),
    /// A listing of exactly these paths.
    Listing(Vec<String>),
    /// A refusal with this code; the decoded path as the trace shows it.
    Refused(String, String),
    /// A refusal of the listing.
    ListRefused(String),
    /// The listener's own answer, which is no part of the plane: no body, no line in the trace.
    Plain(u16),
}

/// One row.
#[derive(Debug, Clone)]
pub struct Row {
    /// Which rule or case it stands for.
    pub id: &'static str,
    /// What is sent.
    pub request: Vec<u8>,
    /// What must come of it.
    pub expect: Expect,
}

/// A row.
#[must_use]
pub fn row(id: &'static str, request: Vec<u8>, expect: Expect) -> Row {
    Row { id, request, expect }
}

/// A request with the headers that every request has. `f/` at the beginning of a target is `/resources/files/`.
#[must_use]
pub fn request(method: &str, target: &str) -> Vec<u8> {
    with_headers(method, target, "")
}

/// [`request`] with more header lines, each with its line end.
#[must_use]
pub fn with_headers(method: &str, target: &str, headers: &str) -> Vec<u8> {
    let target = match target.strip_prefix("f/") {
        Some(path) => format!("/resources/files/{path}"),
        None => target.to_owned(),
    };
    format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n{headers}Connection: close\r\n\r\n")
        .into_bytes()
}

/// GET.
#[must_use]
pub fn get(target: &str) -> Vec<u8> {
    request("GET", target)
}

/// Must serve the file at this decoded path.
#[must_use]
pub fn file(path: &str) -> Expect {
    Expect::File(path.to_owned())
}

/// Must be refused with this code, and be recorded with this path.
#[must_use]
pub fn refused(code: &str, path: &str) -> Expect {
    Expect::Refused(code.to_owned(), path.to_owned())
}

/// Must list exactly these paths, in this order.
#[must_use]
pub fn listing(paths: &[&str]) -> Expect {
    Expect::Listing(paths.iter().map(|path| (*path).to_owned()).collect())
}

/// A running table: the session it asks, and what failed so far.
#[derive(Debug)]
pub struct Table<'s> {
    session: &'s Session,
    tail: Tail,
    /// `exports.files.root` as declared; empty if nothing is.
    root: String,
    /// `exports.files.max_bytes`.
    max_bytes: u64,
    /// The generation that answers must carry.
    pub generation: u64,
    /// The one sentence of every code that came up.
    messages: BTreeMap<String, String>,
    rows: usize,
    failures: Vec<String>,
    reported: bool,
}

/// A table that nobody asked for its failures has none that could fail a test.
impl Drop for Table<'_> {
    fn drop(&mut self) {
        assert!(self.reported || self.rows == 0 || std::thread::panicking(), "a table was not finished");
    }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what} is {found:?}, not {expected:?}")) }
}

impl<'s> Table<'s> {
    /// A table for a session that declares this root and limit.
    #[must_use]
    pub fn new(session: &'s Session, root: &str, max_bytes: u64) -> Self {
        Table {
            session,
            tail: Tail::of(&session.records()),
            root: root.to_owned(),
            max_bytes,
            generation: 0,
            messages: BTreeMap::new(),
            rows: 0,
            failures: Vec::new(),
            reported: false,
        }
    }

    fn directory(&self) -> PathBuf {
        self.session.workdir().join(&self.root)
    }

    /// Sends one request and compares everything that comes of it.
    pub fn check(&mut self, row: &Row) {
        self.rows += 1;
        if let Err(reason) = self.try_check(row) {
            let mut request = String::from_utf8_lossy(&row.request).into_owned();
            if let Some((cut, _)) = request.char_indices().nth(300) {
                request.truncate(cut);
            }
            self.failures.push(format!("{}: {reason}\n    sent {request:?}", row.id));
        }
    }

    /// [`Table::check`] of many.
    pub fn check_all(&mut self, rows: &[Row]) {
        rows.iter().for_each(|row| self.check(row));
    }

    fn try_check(&mut self, row: &Row) -> Result<(), String> {
        let bytes = http::exchange_early(self.session.url(), &row.request, http::PATIENCE)
            .map_err(|error| error.to_string())?;
        let response = http::parse(&bytes).map_err(|error| error.to_string())?;
        let is_head = row.request.starts_with(b"HEAD ");
        let answered = self.compare_answer(&row.expect, &response, is_head);
        let recorded = match row.expect {
            Expect::Plain(_) => match self.tail.next_there() {
                None => Ok(()),
                Some(line) => Err(format!("recorded, and is no part of the plane: {line}")),
            },
            _ => match self.tail.next_within(LINE_PATIENCE) {
                None => Err("nothing in the trace".to_owned()),
                Some(line) => self.compare_line(&row.expect, &line, &response),
            },
        };
        let shown = String::from_utf8_lossy(bytes.get(..bytes.len().min(600)).unwrap_or_default());
        answered.and(recorded).map_err(|reason| format!("{reason}\n    came {shown:?}"))
    }

    fn compare_answer(&mut self, expect: &Expect, response: &Response, is_head: bool) -> Result<(), String> {
        let generation = self.generation.to_string();
        let length = response.body.len().to_string();
        let mut expected = vec![
            ("connection", "close".to_owned()),
            ("content-length", length),
            ("x-murmur-generation", generation),
        ];
        let status = match expect {
            Expect::File(path) => {
                let path = self.directory().join(path);
                let bytes = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
                same("the body", response.body.as_slice(), bytes.as_slice())?;
                expected.push(("content-type", "application/octet-stream".to_owned()));
                expected.push(("etag", format!("\"sha256:{}\"", programs::sha256(&bytes))));
                expected.push(("x-murmur-mtime-ms", mtime_ms(&path)?.to_string()));
                200
            }
            Expect::Listing(paths) => {
                expected.push(("content-type", "application/json".to_owned()));
                self.compare_listing(response, paths)?;
                200
            }
            Expect::Refused(code, _) | Expect::ListRefused(code) => {
                expected.push(("content-type", "application/json".to_owned()));
                if code == "method_not_allowed" {
                    expected.push(("allow", "GET".to_owned()));
                }
                if is_head {
                    same("the body of a HEAD", response.body.len(), 0)?;
                    expected[1].1 = response.header("content-length").unwrap_or_default().to_owned();
                } else {
                    let error = response.error();
                    same("error", error.as_str(), code.as_str())?;
                    let message = response.json()["message"].as_str().unwrap_or_default().to_owned();
                    let known = self.messages.entry(error).or_insert_with(|| message.clone());
                    same("the one message of the code", &message, known)?;
                }
                CODES.iter().find(|(known, _)| known == code).map_or(0, |(_, status)| *status)
            }
            Expect::Plain(status) => {
                same("the body", response.body.len(), 0)?;
                expected.pop();
                *status
            }
        };
        if status == 200 {
            expected.push(("x-murmur-containment", self.session.containment().to_owned()));
            expected.push(("x-murmur-export-root", self.root.clone()));
        } else if !matches!(expect, Expect::Plain(_)) && response.header("x-murmur-generation").is_none() {
            // A refusal may carry it or not.
            expected.remove(2);
        }
        same("the status", response.status, status)?;
        let mut found: Vec<(&str, String)> = response
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.clone()))
            .filter(|(name, _)| *name != "date")
            .collect();
        found.sort();
        expected.sort();
        same("the headers", found, expected)
    }

    fn compare_listing(&self, response: &Response, paths: &[String]) -> Result<(), String> {
        let text = std::str::from_utf8(&response.body).map_err(|error| error.to_string())?;
        let document: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let start = format!(
            "{{\"root\":{},\"mode\":\"read-only\",\"max_bytes\":{},\"generation\":{},\"containment_achieved\":{},\
             \"entries\":[",
            Value::from(self.root.as_str()),
            self.max_bytes,
            self.generation,
            Value::from(self.session.containment()),
        );
        same("the document's beginning", text.get(..start.len()), Some(start.as_str()))?;
        let entries = document["entries"].as_array().ok_or("no entries")?;
        let found: Vec<&str> =
            entries.iter().map(|entry| entry["path"].as_str().unwrap_or_default()).collect();
        same("the paths", found, paths.iter().map(String::as_str).collect())?;
        for entry in entries {
            let path = self.directory().join(entry["path"].as_str().unwrap_or_default());
            let size = fs::metadata(&path).map_err(|error| error.to_string())?.len();
            let expected = serde_json::json!({
                "path": entry["path"], "size_bytes": size, "mtime_ms": mtime_ms(&path)?,
                "sha256": programs::sha256sum(&path),
            });
            same("an entry", entry, &expected)?;
        }
        Ok(())
    }

    fn compare_line(&self, expect: &Expect, line: &Value, response: &Response) -> Result<(), String> {
        let null = Value::Null;
        let reason = |response: &Response| {
            serde_json::from_slice::<Value>(&response.body).map(|body| body["message"].clone()).ok()
        };
        let class = Value::from(self.session.containment());
        let mut expected =
            BTreeMap::from([("generation", Value::from(self.generation)), ("containment_achieved", class)]);
        let kind = match expect {
            Expect::File(path) => {
                expected.insert("path", path.as_str().into());
                expected.insert("outcome", "ok".into());
                expected.insert("bytes", response.body.len().into());
                expected.insert("sha256", programs::sha256(&response.body).into());
                expected.insert("reason", null);
                "resource_read"
            }
            Expect::Refused(code, path) => {
                expected.insert("path", path.as_str().into());
                expected.insert("outcome", code.as_str().into());
                expected.insert("bytes", null.clone());
                expected.insert("sha256", null);
                expected.insert("reason", reason(response).unwrap_or_else(|| line["reason"].clone()));
                "resource_read"
            }
            Expect::Listing(paths) => {
                let document = response.json();
                let entries = document["entries"].as_array().ok_or("no entries")?;
                let total: u64 = entries.iter().filter_map(|entry| entry["size_bytes"].as_u64()).sum();
                expected.insert("root", self.root.as_str().into());
                expected.insert("entry_count", paths.len().into());
                expected.insert("total_bytes", total.into());
                expected.insert("outcome", "ok".into());
                expected.insert("reason", null);
                "resource_list"
            }
            Expect::ListRefused(code) => {
                // Undeclared, or refused before the export was looked at.
                let consulted = !matches!(code.as_str(), "method_not_allowed" | "no_resource_plane");
                expected.insert("root", if consulted { self.root.as_str() } else { "" }.into());
                expected.insert("entry_count", 0.into());
                expected.insert("total_bytes", 0.into());
                expected.insert("outcome", code.as_str().into());
                expected.insert("reason", reason(response).unwrap_or_else(|| line["reason"].clone()));
                "resource_list"
            }
            Expect::Plain(_) => return Ok(()),
        };
        same("event_type", line["event_type"].as_str(), Some(kind))?;
        let refused = line["outcome"] != "ok";
        same("whether there is a reason", line["reason"].is_string(), refused)?;
        let common = ["event_type", "event_id", "parent_id", "session_id", "timestamp", "process"];
        let found: BTreeMap<&str, Value> = line
            .as_object()
            .ok_or("no object")?
            .iter()
            .filter(|(key, _)| !common.contains(&key.as_str()))
            .map(|(key, value)| (key.as_str(), value.clone()))
            .collect();
        same("the line", found, expected)
    }

    /// Sees that nothing else was recorded and that the trace as a whole is sound; every row that failed, if any did.
    ///
    /// # Panics
    /// If the trace is not sound.
    #[must_use]
    pub fn report(mut self) -> Option<String> {
        self.reported = true;
        while let Some(line) = self.tail.next_there() {
            self.failures.push(format!("recorded beside every row: {line}"));
        }
        let _ = Trace::read(&self.session.records());
        let (class, failed) = (self.session.containment(), self.failures.len());
        (failed > 0).then(|| {
            format!("class {class}: {failed} of {} rows failed:\n{}", self.rows, self.failures.join("\n"))
        })
    }

    /// [`Table::report`] that must have nothing to say.
    ///
    /// # Panics
    /// If it has.
    pub fn finish(self) {
        if let Some(failures) = self.report() {
            panic!("{failures}");
        }
    }
}

/// Modification time in whole milliseconds since 1970, never negative.
///
/// # Errors
/// If the file cannot be looked at.
pub fn mtime_ms(path: &std::path::Path) -> Result<u64, String> {
    let metadata = fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let milliseconds = i128::from(metadata.mtime()) * 1000 + i128::from(metadata.mtime_nsec() / 1_000_000);
    Ok(u64::try_from(milliseconds).unwrap_or(0))
}
