//! What a refused or doubtful manifest looks like to the operator.

use std::fmt;

/// A manifest that cannot be launched. The first violation found is the one reported.
///
/// Renders as `error[E-MAN-003]: exports.files.mode: must be "read-only" (line 12)`, followed by
/// `  hint: …` on a second line when there is a remedy. Values from the manifest appear only where they cannot
/// be secrets, and always escaped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ManifestError {
    /// The documented code, e.g. `E-MAN-003` (docs/manifest.md lists them).
    pub(crate) code: &'static str,
    /// The thing that is wrong: a dotted path such as `artifacts[0].gateway.endpoint`, or the file's name.
    pub(crate) what: String,
    /// Why it is wrong, in lower case, without a final full stop.
    pub(crate) reason: String,
    /// What the operator can do about it.
    pub(crate) hint: Option<String>,
    /// Line in the manifest, counted from 1, where the offending value stands.
    pub(crate) line: Option<usize>,
}

impl ManifestError {
    /// An error with a code, the thing and the reason; hint and line are added by the builders below.
    pub(super) fn new(code: &'static str, what: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { code, what: what.into(), reason: reason.into(), hint: None, line: None }
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(super) fn line(mut self, line: usize) -> Self {
        self.line = Some(line);
        self
    }
}

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error[{}]: {}: {}", self.code, self.what, self.reason)?;
        if let Some(line) = self.line {
            write!(f, " (line {line})")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\n  hint: {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ManifestError {}

/// Something the operator should know although the launch goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Warning {
    /// The documented code, e.g. `W-SEC-019`; a few documented warnings have none.
    pub(crate) code: Option<&'static str>,
    /// One line: the thing and what happens with it.
    pub(crate) text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            Some(code) => write!(f, "warning[{code}]: {}", self.text),
            None => write!(f, "warning: {}", self.text),
        }
    }
}

/// A value or key from the file, made safe for a terminal: escaped, quoted and cut at 80 characters.
pub(crate) fn shown(text: &str) -> String {
    let mut out = String::from("\"");
    for (count, c) in text.chars().enumerate() {
        if count == 80 {
            out.push('…');
            break;
        }
        out.extend(c.escape_debug());
    }
    out.push('"');
    out
}

/// A key of the file as part of a dotted path: as written when it is an ordinary name, else escaped.
pub(super) fn shown_key(key: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '<');
    if !key.is_empty() && key.len() <= 80 && key.chars().all(plain) { key.to_owned() } else { shown(key) }
}
