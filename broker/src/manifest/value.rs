//! The manifest's scalar grammars: byte sizes, durations, names and relative paths.

use std::fmt;
use std::time::Duration;

use super::block::Field;
use super::error::{ManifestError, shown};
use super::tree::Value;

/// A number of bytes, greater than zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ByteSize(u64);

impl ByteSize {
    /// What an export serves per file unless it says otherwise: 10 MiB.
    pub(crate) const EXPORT_DEFAULT: Self = Self(10 * 1024 * 1024);

    /// The size in bytes.
    pub(crate) fn bytes(self) -> u64 {
        self.0
    }

    /// Reads an integer, or digits followed at once by `Ki`, `Mi` or `Gi`.
    pub(super) fn read(field: &Field<'_>) -> Result<Self, ManifestError> {
        let shape = || {
            field
                .error("must be a number of bytes, optionally in Ki, Mi or Gi")
                .hint("write for example 10Mi or 10485760; MB, fractions and spaces are not accepted")
        };
        let (digits, unit) = match &field.node.value {
            Value::Int(_) => return field.integer(1).map(Self),
            Value::Text(text) => split_unit(text.trim()).ok_or_else(shape)?,
            _ => return Err(shape()),
        };
        let factor: u64 = match unit {
            "" => 1,
            "Ki" => 1 << 10,
            "Mi" => 1 << 20,
            "Gi" => 1 << 30,
            _ => return Err(shape()),
        };
        scaled(field, digits, factor).map(Self)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Reads a duration greater than zero: whole seconds, or digits followed at once by `s`, `m`, `h` or `d`.
pub(super) fn duration(field: &Field<'_>) -> Result<Duration, ManifestError> {
    let shape = || {
        field
            .error("must be a duration: seconds, or digits followed by s, m, h or d")
            .hint("write for example 15m")
    };
    let (digits, unit) = match &field.node.value {
        Value::Int(_) => return field.integer(1).map(Duration::from_secs),
        Value::Text(text) => split_unit(text.trim()).ok_or_else(shape)?,
        _ => return Err(shape()),
    };
    let factor = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(shape()),
    };
    scaled(field, digits, factor).map(Duration::from_secs)
}

/// Splits leading ASCII digits (at least one) from the rest.
fn split_unit(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    if end == 0 { None } else { text.split_at_checked(end) }
}

fn scaled(field: &Field<'_>, digits: &str, factor: u64) -> Result<u64, ManifestError> {
    let value = digits.parse::<u64>().ok().and_then(|value| value.checked_mul(factor));
    match value {
        Some(0) => Err(field.error("must be greater than zero")),
        Some(value) => Ok(value),
        None => Err(field.error("does not fit 64 bits")),
    }
}

/// One part of an artifact's name: 1 to 100 of `a-z 0-9 -`, no `-` at either end.
pub(super) fn is_bare_name(name: &str) -> bool {
    (1..=100).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// Longest path and component the kernel can name; a longer one could never exist.
const MAX_PATH: usize = 4095;
const MAX_COMPONENT: usize = 255;

/// The components of a relative path after `.`, `..` and empty ones are resolved by name alone.
///
/// The error says what is wrong, without the value.
pub(super) fn relative(path: &str) -> Result<Vec<String>, &'static str> {
    let mut parts: Vec<String> = Vec::new();
    check_path(path)?;
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop().ok_or("climbs above the workdir")?;
            }
            name => parts.push(name.to_owned()),
        }
    }
    Ok(parts)
}

fn check_path(path: &str) -> Result<(), &'static str> {
    if path.starts_with('/') {
        Err("must be relative to the workdir")
    } else if path.chars().any(char::is_control) {
        Err("contains a control character")
    } else if path.len() > MAX_PATH || path.split('/').any(|part| part.len() > MAX_COMPONENT) {
        Err("is longer than a path can be")
    } else {
        Ok(())
    }
}

/// The root of an export: a subtree of the accessible workdir. It need not exist.
///
/// `docs/decisions.md`: control characters are refused, since the text becomes a header's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExportRoot {
    verbatim: String,
    components: Vec<String>,
}

impl ExportRoot {
    /// As the manifest has it (without surrounding blanks): what listings and `x-murmur-export-root` show.
    pub(crate) fn verbatim(&self) -> &str {
        &self.verbatim
    }

    /// The names from the workdir down, without `.` and empty ones. Empty for the workdir itself.
    pub(crate) fn components(&self) -> &[String] {
        &self.components
    }

    pub(super) fn read(field: &Field<'_>) -> Result<Self, ManifestError> {
        let verbatim = field.text()?;
        // Blanks around it are taken off; what else a header's reader would take off is refused.
        if field.verbatim()?.chars().any(char::is_control) {
            return Err(field.error(format!("{} contains a control character", shown(field.verbatim()?))));
        }
        if verbatim.is_empty() {
            return Err(field.error("must not be empty").hint("write \".\" to export the whole workdir"));
        }
        if verbatim.split('/').any(|part| part == "..") {
            return Err(field.error(format!("{} contains a \"..\" component", shown(&verbatim))));
        }
        let components =
            relative(&verbatim).map_err(|reason| field.error(format!("{} {reason}", shown(&verbatim))))?;
        Ok(Self { verbatim, components })
    }
}
