//! Values that several edges carry: paths, codes, classes, identifiers. Each checks itself when it is decoded.

use serde::{Deserialize, Serialize};

/// Identifies a request on the channel it was sent on; the asker chooses it and never reuses one in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestId(pub u64);

/// The longest relative path that is looked up, in bytes (Linux `PATH_MAX`); a longer one names nothing.
pub const MAX_RELPATH: usize = 4096;

/// A path relative to an export root, decoded once, whose components were checked.
///
/// `seed: Path resolution 2`: never empty, never absolute, no NUL byte, no component equal to `""`, `"."` or `".."`. A value
/// that breaks this cannot be built and cannot be received.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RelPath(String);

/// Why text is not a [`RelPath`]; the wire answer is `outside_root` for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the path is empty, absolute, holds a NUL byte or has an empty, `.` or `..` component")]
pub struct NotARelPath;

impl RelPath {
    /// Checks decoded text.
    ///
    /// # Errors
    /// [`NotARelPath`].
    pub fn new(text: impl Into<String>) -> Result<Self, NotARelPath> {
        let text = text.into();
        let bad = text.contains('\0') || text.split('/').any(|part| matches!(part, "" | "." | ".."));
        if bad { Err(NotARelPath) } else { Ok(RelPath(text)) }
    }

    /// The path as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The components, at least one, none of them special.
    pub fn components(&self) -> impl Iterator<Item = &str> {
        self.0.split('/')
    }
}

impl TryFrom<String> for RelPath {
    type Error = NotARelPath;

    fn try_from(text: String) -> Result<Self, NotARelPath> {
        RelPath::new(text)
    }
}

impl From<RelPath> for String {
    fn from(path: RelPath) -> String {
        path.0
    }
}

/// The containment class of a session, as headers and trace spell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// No kernel mechanism bounds what programs see.
    Advisory,
    /// Landlock and seccomp over the host's file system.
    Scoped,
    /// A composed root besides.
    Sealed,
}

impl Class {
    /// The wire word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Class::Advisory => "advisory",
            Class::Scoped => "scoped",
            Class::Sealed => "sealed",
        }
    }
}

/// A refusal of the operator plane (`seed: Errors`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlaneCode {
    /// The manifest declares no `exports.files`.
    NoResourcePlane,
    /// The manifest declares no `exports.peer_files`.
    NoPeerPlane,
    /// The path names nothing under the root, or the root does not exist.
    NotFound,
    /// The requested path, or a link's target, leaves the export root.
    OutsideRoot,
    /// A symbolic link was met and the class is `scoped`.
    SymlinkRefused,
    /// A directory, fifo, socket or device node.
    NotARegularFile,
    /// The file exceeds `max_bytes`.
    TooLarge,
    /// Any method other than GET.
    MethodNotAllowed,
    /// The open or read failed for any other reason.
    IoError,
}

impl PlaneCode {
    /// Every code, for tables and tests.
    pub const ALL: [PlaneCode; 9] = [
        PlaneCode::NoResourcePlane,
        PlaneCode::NoPeerPlane,
        PlaneCode::NotFound,
        PlaneCode::OutsideRoot,
        PlaneCode::SymlinkRefused,
        PlaneCode::NotARegularFile,
        PlaneCode::TooLarge,
        PlaneCode::MethodNotAllowed,
        PlaneCode::IoError,
    ];

    /// The wire word of the code: `error` in a body, `outcome` in the trace.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            PlaneCode::NoResourcePlane => "no_resource_plane",
            PlaneCode::NoPeerPlane => "no_peer_plane",
            PlaneCode::NotFound => "not_found",
            PlaneCode::OutsideRoot => "outside_root",
            PlaneCode::SymlinkRefused => "symlink_refused",
            PlaneCode::NotARegularFile => "not_a_regular_file",
            PlaneCode::TooLarge => "too_large",
            PlaneCode::MethodNotAllowed => "method_not_allowed",
            PlaneCode::IoError => "io_error",
        }
    }

    /// The HTTP status.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            PlaneCode::NoResourcePlane | PlaneCode::NoPeerPlane | PlaneCode::NotFound => 404,
            PlaneCode::OutsideRoot | PlaneCode::SymlinkRefused | PlaneCode::NotARegularFile => 403,
            PlaneCode::TooLarge => 413,
            PlaneCode::MethodNotAllowed => 405,
            PlaneCode::IoError => 500,
        }
    }

    /// The one sentence of this code: `message` in a body, `reason` in the trace. It never echoes a request.
    #[must_use]
    pub fn message(self) -> &'static str {
        match self {
            PlaneCode::NoResourcePlane => "this capsule exports no files",
            PlaneCode::NoPeerPlane => "this capsule exports no files to peers",
            PlaneCode::NotFound => "the path names nothing under the export root",
            PlaneCode::OutsideRoot => "the path leaves the export root",
            PlaneCode::SymlinkRefused => {
                "the path meets a symbolic link, which this containment class refuses"
            }
            PlaneCode::NotARegularFile => "the path does not name a regular file",
            PlaneCode::TooLarge => "the file exceeds the export's size limit",
            PlaneCode::MethodNotAllowed => "only GET is served here",
            PlaneCode::IoError => "the file could not be read",
        }
    }
}

/// What a served file looked like when it was opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileMeta {
    /// Bytes in the body.
    pub bytes: u64,
    /// SHA-256 of the body.
    pub sha256: [u8; 32],
    /// Modification time, Unix milliseconds, 0 before 1970.
    pub mtime_ms: u64,
    /// Generation sampled when the request was taken.
    pub generation: u64,
}

/// Lowercase hex of bytes.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS.get(usize::from(nibble)).copied().unwrap_or(b'0'));
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_are_refused_by_the_seeds_rule_and_by_nothing_else() {
        for bad in ["", "/", "/a", "a/", "a//b", ".", "..", "a/..", "./a", "a/./b", "a\0b"] {
            assert_eq!(RelPath::new(bad), Err(NotARelPath), "{bad:?}");
        }
        for good in ["a", "...", "..a", "a..", ".hidden", "a/b", "a b", "%2e%2e", "a\\..\\b", "é"] {
            assert_eq!(RelPath::new(good).unwrap().as_str(), good);
        }
    }

    #[test]
    fn a_bad_path_cannot_be_received() {
        let bytes = crate::codec::encode(&String::from("../x")).unwrap();
        assert!(crate::codec::decode::<RelPath>(&bytes).is_err());
    }

    #[test]
    fn hex_is_lowercase() {
        assert_eq!(hex(&[0, 0xab, 0x0f]), "00ab0f");
    }
}
