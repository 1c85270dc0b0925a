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

    /// The path a percent-encoded text names, decoded once. Bytes that are not UTF-8 name nothing that could be listed or
    /// recorded and are refused alike (`docs/decisions.md`, Lexical path refusals).
    ///
    /// # Errors
    /// [`NotARelPath`].
    pub fn from_encoded(encoded: &str) -> Result<Self, NotARelPath> {
        RelPath::new(String::from_utf8(percent_decode(encoded)).map_err(|_| NotARelPath)?)
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

/// The bytes of a percent-encoded text. Only `%` and two hex digits are an escape; anything else stays as it is, `+`
/// included (`seed: Path resolution 1`).
#[must_use]
pub fn percent_decode(text: &str) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        match (byte, after) {
            (b'%', [high, low, after @ ..]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                decoded.push(nibble(*high) << 4 | nibble(*low));
                rest = after;
            }
            _ => {
                decoded.push(*byte);
                rest = after;
            }
        }
    }
    decoded
}

fn nibble(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit.wrapping_sub(b'A').wrapping_add(10),
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

/// A refusal of a plane (`seed: Errors`; `seed: GET /resources/peer/<handle>`).
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
    /// Not `mh1.<b64>.<b64>`, or the payload is not JSON, or `v` is not 1.
    MalformedHandle,
    /// No audience header, or an empty one.
    MissingAudience,
    /// The MAC did not verify, for any reason: one code, one status, one text.
    HandleNotValid,
    /// `exp` is not in the future.
    HandleExpired,
}

impl PlaneCode {
    /// Every code, for tables and tests.
    pub const ALL: [PlaneCode; 13] = [
        PlaneCode::NoResourcePlane,
        PlaneCode::NoPeerPlane,
        PlaneCode::NotFound,
        PlaneCode::OutsideRoot,
        PlaneCode::SymlinkRefused,
        PlaneCode::NotARegularFile,
        PlaneCode::TooLarge,
        PlaneCode::MethodNotAllowed,
        PlaneCode::IoError,
        PlaneCode::MalformedHandle,
        PlaneCode::MissingAudience,
        PlaneCode::HandleNotValid,
        PlaneCode::HandleExpired,
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
            PlaneCode::MalformedHandle => "malformed_handle",
            PlaneCode::MissingAudience => "missing_audience",
            PlaneCode::HandleNotValid => "handle_not_valid",
            PlaneCode::HandleExpired => "handle_expired",
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
            PlaneCode::MalformedHandle | PlaneCode::MissingAudience => 400,
            PlaneCode::HandleNotValid => 403,
            PlaneCode::HandleExpired => 410,
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
            PlaneCode::MalformedHandle => "the handle is malformed",
            PlaneCode::MissingAudience => "the request names no audience",
            PlaneCode::HandleNotValid => "the handle is not valid",
            PlaneCode::HandleExpired => "the handle has expired",
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

/// A moment on the clock that all processes of the machine share, in milliseconds since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Moment(u64);

impl Moment {
    /// So long from now.
    #[must_use]
    pub fn after(wait: std::time::Duration) -> Self {
        Moment(Self::now().0.saturating_add(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)))
    }

    fn now() -> Self {
        Moment(crate::sys::monotonic_ms())
    }

    /// Whether it is over.
    #[must_use]
    pub fn passed(self) -> bool {
        Self::now() >= self
    }
}

/// Lowercase hex of bytes.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from(if nibble < 10 { b'0' + nibble } else { b'a' - 10 + nibble });
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        text.push(digit(byte >> 4));
        text.push(digit(byte & 15));
    }
    text
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
    fn escapes_are_two_hex_digits_decoded_once() {
        let cases: &[(&str, &[u8])] = &[
            ("%2e%2E/%2f", b"..//"),
            ("%252e", b"%2e"),
            ("a%2525b", b"a%25b"),
            ("100%", b"100%"),
            ("%zz", b"%zz"),
            ("%4", b"%4"),
            ("a%", b"a%"),
            ("%+2e", b"%+2e"),
            ("%-1", b"%-1"),
            ("% 2", b"% 2"),
            ("%%41", b"%A"),
            ("a+b", b"a+b"),
            ("%00", b"\0"),
            ("%ff%Fe", b"\xff\xfe"),
            ("caf\u{e9}", "caf\u{e9}".as_bytes()),
        ];
        for (text, expected) in cases {
            assert_eq!(percent_decode(text), *expected, "{text}");
        }
    }

    #[test]
    fn a_path_that_could_leave_the_root_is_refused_lexically() {
        for bad in [
            "",
            "../secret.txt",
            "%2e%2e/secret.txt",
            "%2E%2E%2Fsecret.txt",
            ".%2e/x",
            "%2e./x",
            "..%2fx",
            "..%2f..%2fetc%2fpasswd",
            "sub/../report.md",
            "./a",
            "a//b",
            "a%2F%2Fb",
            "/etc/passwd",
            "%2Fetc%2Fpasswd",
            "/report.md",
            "report.md/",
            "report.md%2F",
            "a%00b",
            "%ff",
            "caf%E9",
            "%c0%ae%c0%ae%c0%afsecret.txt",
            "%ed%a0%80",
        ] {
            assert_eq!(RelPath::from_encoded(bad), Err(NotARelPath), "{bad}");
        }
    }

    #[test]
    fn everything_else_is_a_name_and_nothing_is_normalised() {
        for (encoded, path) in [
            ("%252e%252e%252fsecret.txt", "%2e%2e%2fsecret.txt"),
            ("sub%2Freport.md", "sub/report.md"),
            ("100%", "100%"),
            ("a%5C..%5Csecret.txt", "a\\..\\secret.txt"),
            ("..\\secret.txt", "..\\secret.txt"),
            ("C:%5Cx", "C:\\x"),
            ("~root", "~root"),
            ("...", "..."),
            ("..a", "..a"),
            ("a..", "a.."),
            (".hidden", ".hidden"),
            ("a+b", "a+b"),
            ("a;v=1", "a;v=1"),
            ("report.md%23top", "report.md#top"),
            ("report.md#top", "report.md#top"),
            ("report.md%3Fx", "report.md?x"),
            ("cafe%CC%81", "cafe\u{301}"),
            ("a%0D%0AX:y", "a\r\nX:y"),
        ] {
            assert_eq!(RelPath::from_encoded(encoded).unwrap().as_str(), path, "{encoded}");
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

/// A limit of `capabilities.resources` that a program is known to have hit, in the trace's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResourceLimit {
    /// `cpu_seconds`: SIGXCPU ended it.
    CpuSeconds,
    /// `max_file_size_bytes`: SIGXFSZ ended it.
    MaxFileSizeBytes,
    /// `cgroup_memory_bytes`: the kernel killed something of it for memory.
    CgroupMemoryBytes,
    /// `cgroup_pids_max`: it could not start another process or thread.
    CgroupPidsMax,
}

impl ResourceLimit {
    /// The trace's word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            ResourceLimit::CpuSeconds => "cpu_seconds",
            ResourceLimit::MaxFileSizeBytes => "max_file_size_bytes",
            ResourceLimit::CgroupMemoryBytes => "cgroup_memory_bytes",
            ResourceLimit::CgroupPidsMax => "cgroup_pids_max",
        }
    }
}
