//! Typed reading of one mapping at a time, and the scan that holds every key against the table.
//!
//! The scan runs first and over the whole tree, so that a misspelt key is reported as misspelt and not as the
//! missing key it was meant to be. Readers can only ask for keys the table lists.

use super::ParseOptions;
use super::error::{ManifestError, Warning, shown, shown_key};
use super::schema::{Block, Inside, Neutral, Status};
use super::suggest;
use super::tree::{Entry, Node, Value};

/// What a parse collects beside the manifest itself.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) options: ParseOptions,
    pub(super) warnings: Vec<Warning>,
    /// Dotted paths of valid things this version does not do, in the order of the file.
    unbuilt: Vec<Unbuilt>,
}

#[derive(Debug)]
struct Unbuilt {
    path: String,
    line: usize,
    waivable: bool,
}

impl Context {
    pub(super) fn new(options: ParseOptions) -> Self {
        Self { options, warnings: Vec::new(), unbuilt: Vec::new() }
    }

    pub(super) fn warn(&mut self, code: impl Into<Option<&'static str>>, text: impl Into<String>) {
        self.warnings.push(Warning { code: code.into(), text: text.into() });
    }

    /// Notes a valid value that this version cannot honour, whatever the options say.
    pub(super) fn unbuilt(&mut self, path: impl Into<String>, line: usize) {
        self.unbuilt.push(Unbuilt { path: path.into(), line, waivable: false });
    }

    /// Refuses if anything unbuilt was met. Called last, so that an invalid value is reported as invalid.
    pub(super) fn refuse_unbuilt(&self) -> Result<(), ManifestError> {
        let Some((first, rest)) = self.unbuilt.split_first() else { return Ok(()) };
        let mut hint = if first.waivable {
            "remove it, or pass --allow-unknown-keys to launch without its effect".to_owned()
        } else {
            "remove it: launching without it would not do what it declares".to_owned()
        };
        if !rest.is_empty() {
            let others: Vec<&str> = rest.iter().map(|u| u.path.as_str()).collect();
            hint.push_str(&format!("; not supported either: {}", others.join(", ")));
        }
        Err(ManifestError::new("E-MAN-003", &first.path, "not supported yet").line(first.line).hint(hint))
    }

    /// Holds every key of `node` against `block` and everything below it.
    pub(super) fn scan(
        &mut self,
        node: &Node,
        block: &'static Block,
        path: &str,
    ) -> Result<(), ManifestError> {
        self.scan_block(node, block, path, true)
    }

    /// `live` is false below a key whose effect is already accounted for: there only names are checked.
    fn scan_block(
        &mut self,
        node: &Node,
        block: &'static Block,
        path: &str,
        live: bool,
    ) -> Result<(), ManifestError> {
        // A value of another type is the typed reader's to refuse.
        let Value::Map(entries) = &node.value else { return Ok(()) };
        for entry in entries {
            let here = join(path, &shown_key(&entry.key));
            let row = if entry.key_is_text { block.key(&entry.key) } else { None };
            let Some(row) = row else {
                self.unknown(entry, block, &here)?;
                continue;
            };
            let asks = |neutral: Neutral| live && !is_neutral(&entry.value.value, neutral);
            let below = match row.status {
                Status::Supported => live,
                Status::Inert | Status::Silent => false,
                Status::Removed(remedy) => {
                    return Err(ManifestError::new("E-MAN-003", here, "is not accepted here")
                        .line(entry.line)
                        .hint(remedy));
                }
                Status::NotYet(neutral) => {
                    if asks(neutral) {
                        if self.options.allow_unknown_keys {
                            self.warn("W-SEC-019", format!("{here}: not supported yet; it has no effect"));
                        } else {
                            let (path, line) = (here.clone(), entry.line);
                            self.unbuilt.push(Unbuilt { path, line, waivable: true });
                        }
                    }
                    false
                }
                Status::Enforcing(neutral) => {
                    if asks(neutral) {
                        self.unbuilt(here.clone(), entry.line);
                    }
                    false
                }
                Status::Comfort(neutral) => {
                    if asks(neutral) {
                        self.warn("W-SEC-019", format!("{here}: has no effect in this version"));
                    }
                    false
                }
            };
            match row.inside {
                Inside::Free => {}
                Inside::One(inner) => self.scan_block(&entry.value, inner, &here, below)?,
                Inside::Many(inner) => {
                    if let Value::List(items) = &entry.value.value {
                        for (index, item) in items.iter().enumerate() {
                            self.scan_block(item, inner, &format!("{here}[{index}]"), below)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn unknown(&mut self, entry: &Entry, block: &'static Block, path: &str) -> Result<(), ManifestError> {
        let near = suggest::nearest(&entry.key, block.keys.iter().map(|key| key.name));
        let remedy = match near {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => "no key of this block is spelt like it; it may come from a newer version".to_owned(),
        };
        if self.options.allow_unknown_keys {
            self.warn("W-SEC-019", format!("{path}: unknown key, ignored; {remedy}"));
            return Ok(());
        }
        let remedy = match near {
            Some(_) => remedy,
            None => format!("{remedy} (--allow-unknown-keys ignores it)"),
        };
        Err(ManifestError::new("E-MAN-003", path, "unknown key").line(entry.line).hint(remedy))
    }
}

fn is_neutral(value: &Value, neutral: Neutral) -> bool {
    match (neutral, value) {
        (_, Value::Null) => true,
        (Neutral::False, Value::Bool(false)) => true,
        (Neutral::Empty, Value::List(items)) => items.is_empty(),
        (Neutral::Empty, Value::Map(entries)) => entries.is_empty(),
        (Neutral::Int(wanted), Value::Int(found)) => wanted == *found,
        (Neutral::Word(wanted), Value::Text(found)) => wanted == found.trim(),
        (Neutral::EmptyAllow, Value::Map(entries)) => {
            entries.iter().all(|e| matches!(&e.value.value, Value::List(items) if items.is_empty()))
        }
        _ => false,
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// A mapping being read, and the table of its keys.
#[derive(Debug, Clone)]
pub(super) struct Map<'a> {
    entries: &'a [Entry],
    block: &'static Block,
    pub(super) path: String,
    pub(super) line: usize,
}

impl<'a> Map<'a> {
    /// Views the document's root as the block `block`.
    pub(super) fn root(node: &'a Node, block: &'static Block) -> Result<Self, ManifestError> {
        match &node.value {
            Value::Map(entries) => Ok(Self { entries, block, path: String::new(), line: node.line }),
            other => Err(ManifestError::new(
                "E-MAN-002",
                "manifest",
                format!("must be a mapping of keys, not {}", other.kind()),
            )),
        }
    }

    /// The key as written, null included.
    pub(super) fn raw(&self, name: &str) -> Option<Field<'a>> {
        let row = self.block.key(name);
        debug_assert!(row.is_some(), "{} is read but not in the table", self.path(name));
        let entry = self.entries.iter().find(|entry| entry.key_is_text && entry.key == name)?;
        let inside = row.map_or(Inside::Free, |row| row.inside);
        Some(Field { node: &entry.value, path: self.path(name), inside })
    }

    /// The key, unless it is absent or null.
    pub(super) fn get(&self, name: &str) -> Option<Field<'a>> {
        self.raw(name).filter(|field| field.node.value != Value::Null)
    }

    /// The key, or `E-MAN-003` naming it.
    pub(super) fn require(&self, name: &str) -> Result<Field<'a>, ManifestError> {
        self.get(name).ok_or_else(|| self.missing(name))
    }

    pub(super) fn missing(&self, name: &str) -> ManifestError {
        ManifestError::new("E-MAN-003", self.path(name), "is required").line(self.line)
    }

    /// The mapping below the key, if there is one.
    pub(super) fn map(&self, name: &str) -> Result<Option<Map<'a>>, ManifestError> {
        self.get(name).map(|field| field.map()).transpose()
    }

    /// A string, trimmed; blank counts as absent.
    pub(super) fn text(&self, name: &str) -> Result<Option<String>, ManifestError> {
        Ok(self.get(name).map(|field| field.text()).transpose()?.filter(|text| !text.is_empty()))
    }

    /// A string that must be there and not blank.
    pub(super) fn required_text(&self, name: &str) -> Result<String, ManifestError> {
        self.text(name)?.ok_or_else(|| self.missing(name))
    }

    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>, ManifestError> {
        self.get(name).map(|field| field.flag()).transpose()
    }

    /// A positive integer, or `default` where the key is absent.
    pub(super) fn positive(&self, name: &str, default: u64) -> Result<u64, ManifestError> {
        self.get(name).map_or(Ok(default), |field| field.integer(1))
    }

    pub(super) fn path(&self, name: &str) -> String {
        join(&self.path, name)
    }
}

/// One value being read.
#[derive(Debug, Clone)]
pub(super) struct Field<'a> {
    pub(super) node: &'a Node,
    pub(super) path: String,
    inside: Inside,
}

impl<'a> Field<'a> {
    /// `E-MAN-003` about this value.
    pub(super) fn error(&self, reason: impl Into<String>) -> ManifestError {
        self.coded("E-MAN-003", reason)
    }

    pub(super) fn coded(&self, code: &'static str, reason: impl Into<String>) -> ManifestError {
        ManifestError::new(code, &self.path, reason).line(self.node.line)
    }

    fn wrong(&self, wanted: &str) -> ManifestError {
        self.error(format!("must be {wanted}, not {}", self.node.value.kind()))
    }

    pub(super) fn map(&self) -> Result<Map<'a>, ManifestError> {
        let block = match self.inside {
            Inside::One(block) | Inside::Many(block) => block,
            Inside::Free => return Err(self.wrong("a value without keys")),
        };
        match &self.node.value {
            Value::Map(entries) => Ok(Map { entries, block, path: self.path.clone(), line: self.node.line }),
            _ => Err(self.wrong("a mapping")),
        }
    }

    /// The string without surrounding whitespace.
    pub(super) fn text(&self) -> Result<String, ManifestError> {
        self.verbatim().map(|text| text.trim().to_owned())
    }

    /// The string as written.
    pub(super) fn verbatim(&self) -> Result<&'a str, ManifestError> {
        match &self.node.value {
            Value::Text(text) => Ok(text),
            Value::Bool(_) | Value::Int(_) | Value::Float(_) => {
                Err(self.wrong("a string").hint("put the value in quotes"))
            }
            Value::Null | Value::List(_) | Value::Map(_) => Err(self.wrong("a string")),
        }
    }

    pub(super) fn flag(&self) -> Result<bool, ManifestError> {
        match self.node.value {
            Value::Bool(flag) => Ok(flag),
            _ => Err(self.wrong("true or false")),
        }
    }

    /// An integer of at least `least` that fits 64 bits.
    pub(super) fn integer(&self, least: u64) -> Result<u64, ManifestError> {
        let Value::Int(value) = self.node.value else { return Err(self.wrong("an integer")) };
        match u64::try_from(value) {
            Ok(value) if value >= least => Ok(value),
            Ok(_) => Err(self.error("must be greater than zero")),
            Err(_) if value < 0 => Err(self.error("must not be negative")),
            Err(_) => Err(self.error("does not fit 64 bits")),
        }
    }

    /// An integer of at least `least` that fits 32 bits.
    pub(super) fn integer32(&self, least: u64) -> Result<u32, ManifestError> {
        u32::try_from(self.integer(least)?).map_err(|_| self.error("does not fit 32 bits"))
    }

    pub(super) fn list(&self) -> Result<Vec<Field<'a>>, ManifestError> {
        let Value::List(items) = &self.node.value else { return Err(self.wrong("a list")) };
        let item =
            |(index, node)| Field { node, path: format!("{}[{index}]", self.path), inside: self.inside };
        Ok(items.iter().enumerate().map(item).collect())
    }

    /// One of the words of an enumeration.
    pub(super) fn word<T: Copy>(&self, words: &[(&str, T)]) -> Result<T, ManifestError> {
        let text = self.text()?;
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            return Ok(*value);
        }
        let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let error = self.error(format!("{} is not one of: {}", shown(&text), known.join(", ")));
        Err(match suggest::nearest(&text, known.iter().copied()) {
            Some(near) => error.hint(format!("did you mean \"{near}\"?")),
            None => error,
        })
    }
}
