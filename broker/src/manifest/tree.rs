//! From YAML text to a plain tree, with bounds.
//!
//! The parser behind this is event based and pure Rust; everything that can make a small file large or deep
//! (aliases, nesting, repeated keys, a second document) is decided here and bounded before any typed reader
//! runs. A manifest is data: tags other than `!!str` are refused, and `<<` is an ordinary (unknown) key.

use std::collections::{HashMap, HashSet};

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Tag};

use super::error::{ManifestError, shown};

/// Largest manifest that is read: 1 MiB. Real ones are a few KiB.
pub(crate) const MAX_BYTES: usize = 1 << 20;
/// Deepest nesting; the deepest documented key is 7 levels down, free-form `config` may go deeper.
const MAX_DEPTH: usize = 64;
/// Nodes after aliases are expanded, so that nine lines cannot become a billion values.
const MAX_NODES: usize = 100_000;
/// Bytes of text after aliases are expanded.
const MAX_TEXT: usize = 4 * MAX_BYTES;

/// One value and the place (counted from 1) where it begins.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub(super) value: Value,
    pub(super) line: usize,
}

/// A YAML value after the core schema has been applied.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// One pair of a mapping, in the order of the file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub(super) key: String,
    /// False for keys that YAML reads as a number, boolean or null.
    pub(super) key_is_text: bool,
    pub(super) line: usize,
    pub(super) value: Node,
}

impl Value {
    /// What this value is called in an error.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Value::Null => "nothing",
            Value::Bool(_) => "a boolean",
            Value::Int(_) => "an integer",
            Value::Float(_) => "a number",
            Value::Text(_) => "a string",
            Value::List(_) => "a list",
            Value::Map(_) => "a mapping",
        }
    }
}

/// Parses one YAML document.
///
/// Errors are `E-MAN-002`, with line and column where there is one.
pub(super) fn parse(text: &str) -> Result<Node, ManifestError> {
    if text.len() > MAX_BYTES {
        return Err(syntax(None, format!("larger than {MAX_BYTES} bytes")));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut builder = Builder::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|e| syntax(Some(*e.marker()), shown_info(e.info())))?;
        builder.event(event, span.start)?;
    }
    builder.root.ok_or_else(|| syntax(None, "the file is empty"))
}

/// The parser's own words may quote the file; keep them to one printable line.
fn shown_info(info: &str) -> String {
    info.chars().filter(|c| !c.is_control()).take(200).collect()
}

fn syntax(at: Option<Marker>, reason: impl Into<String>) -> ManifestError {
    let reason = reason.into();
    let reason = match at {
        Some(mark) => format!("{reason} at line {}, column {}", mark.line(), mark.col() + 1),
        None => reason,
    };
    ManifestError::new("E-MAN-002", "manifest", reason)
}

/// A collection still open, with what is needed to close it.
struct Open {
    node: Node,
    anchor: usize,
    cost: Cost,
    /// In a mapping: the key that waits for its value.
    key: Option<(String, bool, usize)>,
    /// In a mapping: every key so far.
    keys: HashSet<String>,
}

/// What a subtree adds when it is repeated through an alias.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    nodes: usize,
    text: usize,
    depth: usize,
}

#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    root: Option<Node>,
    anchors: HashMap<usize, (Node, Cost)>,
    nodes: usize,
    text: usize,
    documents: usize,
}

impl Builder {
    fn event(&mut self, event: Event<'_>, at: Marker) -> Result<(), ManifestError> {
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err(syntax(Some(at), "a second document begins"));
                }
                Ok(())
            }
            Event::Scalar(text, style, anchor, tag) => {
                let forced = is_text_tag(tag.as_deref(), at)?;
                let cost = Cost { nodes: 1, text: text.len(), depth: 1 };
                let value = if style == ScalarStyle::Plain && !forced {
                    plain(&text)
                } else {
                    Value::Text(text.clone().into_owned())
                };
                self.add(Node { value, line: at.line() }, Some(&text), anchor, cost, at)
            }
            Event::SequenceStart(anchor, tag) => {
                self.start(Value::List(Vec::new()), anchor, tag.as_deref(), at)
            }
            Event::MappingStart(anchor, tag) => {
                self.start(Value::Map(Vec::new()), anchor, tag.as_deref(), at)
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(done) => self.add(done.node, None, done.anchor, done.cost, at),
                None => Err(syntax(Some(at), "a collection ends that never began")),
            },
            Event::Alias(id) => {
                let cyclic = || syntax(Some(at), "an alias refers to a value that contains it");
                // Charged before the copy is made: the copy is what the bound is for.
                let cost = self.anchors.get(&id).map(|(_, cost)| *cost).ok_or_else(cyclic)?;
                self.charge(cost, at)?;
                let node = self.anchors.get(&id).map(|(node, _)| node.clone()).ok_or_else(cyclic)?;
                let written = match &node.value {
                    Value::Text(text) => Some(text.clone()),
                    _ => None,
                };
                self.attach(node, written.as_deref(), cost, at)
            }
        }
    }

    fn start(
        &mut self,
        value: Value,
        anchor: usize,
        tag: Option<&Tag>,
        at: Marker,
    ) -> Result<(), ManifestError> {
        if is_text_tag(tag, at)? {
            return Err(syntax(Some(at), "a collection is tagged as a string"));
        }
        if self.open.len() >= MAX_DEPTH {
            return Err(syntax(Some(at), format!("nested deeper than {MAX_DEPTH} levels")));
        }
        let node = Node { value, line: at.line() };
        let cost = Cost { nodes: 1, text: 0, depth: 1 };
        self.open.push(Open { node, anchor, cost, key: None, keys: HashSet::new() });
        Ok(())
    }

    /// Adds a finished value that stood in the text itself.
    fn add(
        &mut self,
        node: Node,
        written: Option<&str>,
        anchor: usize,
        cost: Cost,
        at: Marker,
    ) -> Result<(), ManifestError> {
        // Its children were charged when they were added.
        self.charge(Cost { nodes: 1, text: written.map_or(0, str::len), depth: cost.depth }, at)?;
        if anchor != 0 {
            // The table holds a copy of its own, which counts as well.
            self.charge(cost, at)?;
            self.anchors.insert(anchor, (node.clone(), cost));
        }
        self.attach(node, written, cost, at)
    }

    fn charge(&mut self, cost: Cost, at: Marker) -> Result<(), ManifestError> {
        self.nodes = self.nodes.saturating_add(cost.nodes);
        self.text = self.text.saturating_add(cost.text);
        if self.nodes > MAX_NODES || self.text > MAX_TEXT || self.open.len() + cost.depth > MAX_DEPTH + 1 {
            return Err(syntax(Some(at), "too many, too long or too deeply nested values"));
        }
        Ok(())
    }

    fn attach(
        &mut self,
        node: Node,
        written: Option<&str>,
        cost: Cost,
        at: Marker,
    ) -> Result<(), ManifestError> {
        let Some(parent) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        parent.cost.nodes = parent.cost.nodes.saturating_add(cost.nodes);
        parent.cost.text = parent.cost.text.saturating_add(cost.text);
        parent.cost.depth = parent.cost.depth.max(cost.depth + 1);
        match &mut parent.node.value {
            Value::List(items) => items.push(node),
            Value::Map(entries) => match parent.key.take() {
                None => {
                    let key_is_text = matches!(node.value, Value::Text(_));
                    let Some(key) = written else {
                        return Err(syntax(Some(at), "a key must be a plain word"));
                    };
                    if !parent.keys.insert(key.to_owned()) {
                        return Err(syntax(Some(at), format!("the key {} appears twice", shown(key))));
                    }
                    parent.key = Some((key.to_owned(), key_is_text, node.line));
                }
                Some((key, key_is_text, line)) => entries.push(Entry { key, key_is_text, line, value: node }),
            },
            Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Text(_) => {
                return Err(syntax(Some(at), "a value inside a scalar"));
            }
        }
        Ok(())
    }
}

/// `!!str` and the non-specific `!` make any scalar a string; other tags ask for types a manifest has not.
fn is_text_tag(tag: Option<&Tag>, at: Marker) -> Result<bool, ManifestError> {
    match tag {
        None => Ok(false),
        Some(tag) if tag.is_yaml_core_schema() && tag.suffix == "str" => Ok(true),
        Some(tag) if tag.handle.is_empty() && tag.suffix == "!" => Ok(true),
        Some(_) => Err(syntax(Some(at), "tags are not supported")),
    }
}

/// The YAML 1.2 core schema for a scalar written without quotes.
fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => return Value::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => return Value::Float(f64::NEG_INFINITY),
        ".nan" | ".NaN" | ".NAN" => return Value::Float(f64::NAN),
        _ => {}
    }
    let radix = |digits: &str, radix| {
        let all = !digits.is_empty() && digits.chars().all(|c| c.is_digit(radix));
        all.then(|| i128::from_str_radix(digits, radix).ok()).flatten()
    };
    if let Some(value) = text.strip_prefix("0x").and_then(|d| radix(d, 16)) {
        return Value::Int(value);
    }
    if let Some(value) = text.strip_prefix("0o").and_then(|d| radix(d, 8)) {
        return Value::Int(value);
    }
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if !digits.is_empty()
        && digits.bytes().all(|b| b.is_ascii_digit())
        && let Ok(value) = text.parse()
    {
        return Value::Int(value);
    }
    // Rust also reads "inf" and "nan" as floats; the core schema does not.
    let numeric = text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'+' | b'-' | b'.' | b'e' | b'E'));
    match text.parse::<f64>() {
        Ok(value) if numeric && text.bytes().any(|b| b.is_ascii_digit()) => Value::Float(value),
        _ => Value::Text(text.to_owned()),
    }
}
