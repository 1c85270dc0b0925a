//! What the operator reads when a launch is refused: a code, the thing, the reason, the remedy.

use std::fmt;

/// A refused launch or a failed session.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// `E-…`
    pub(crate) code: &'static str,
    /// The thing: a flag, a key, a path, a process.
    pub(crate) what: String,
    /// The reason, one line.
    pub(crate) reason: String,
    /// The remedy, if there is one.
    pub(crate) hint: Option<String>,
    /// Exit status (`docs/operations.md`, Exit status).
    pub(crate) status: u8,
}

impl Refusal {
    /// A refusal with exit status 1.
    pub(crate) fn new(code: &'static str, what: impl Into<String>, reason: impl Into<String>) -> Self {
        Refusal { code, what: what.into(), reason: reason.into(), hint: None, status: 1 }
    }

    /// The same with a remedy.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// A process of ours died or broke the protocol: exit status 3.
    pub(crate) fn broken(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Refusal { status: 3, ..Refusal::new("E-RUN-007", what, reason) }
    }

    /// A signal ended the launch before it served: exit status 143.
    pub(crate) fn ended() -> Self {
        Refusal { status: 143, ..Refusal::new("E-RUN-007", "launch", "a signal ended it before it served") }
    }

    /// An input or output error at a path.
    pub(crate) fn io(what: impl fmt::Display, error: &std::io::Error) -> Self {
        use std::io::ErrorKind;
        let code = match error.kind() {
            ErrorKind::NotFound => "E-IO-001",
            ErrorKind::PermissionDenied => "E-IO-002",
            _ => "E-IO-003",
        };
        Refusal::new(code, what.to_string(), error.to_string())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error[{}]: {}: {}", self.code, self.what, self.reason)?;
        match &self.hint {
            Some(hint) => write!(f, "\n  hint: {hint}"),
            None => Ok(()),
        }
    }
}

impl From<crate::manifest::ManifestError> for Refusal {
    fn from(error: crate::manifest::ManifestError) -> Self {
        let reason = match error.line {
            Some(line) => format!("{} (line {line})", error.reason),
            None => error.reason,
        };
        Refusal { code: error.code, what: error.what, reason, hint: error.hint, status: 1 }
    }
}
