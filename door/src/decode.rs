//! What does an encoded relative path say? Percent-decoding, once, and the shape every served path must have.

use ipc::types::RelPath;

/// The most bytes of requested text that go into a record.
pub const MAX_RECORDED: usize = 4096;

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

/// The path a request names; `None` is `outside_root` (`seed: Path resolution 2`). Bytes that are not UTF-8 name nothing
/// that could be listed or recorded and are refused alike (`docs/decisions.md`, Lexical path refusals).
#[must_use]
pub fn relative_path(encoded: &str) -> Option<RelPath> {
    RelPath::new(String::from_utf8(percent_decode(encoded)).ok()?).ok()
}

/// The path as it is recorded: decoded once, not validated, cut at [`MAX_RECORDED`] bytes.
#[must_use]
pub fn recorded_path(encoded: &str) -> String {
    recorded(&percent_decode(encoded))
}

/// Requested bytes as text for a record: U+FFFD for what is not UTF-8, at most [`MAX_RECORDED`] bytes.
#[must_use]
pub fn recorded(bytes: &[u8]) -> String {
    let mut text = String::from_utf8_lossy(bytes).into_owned();
    text.truncate(text.floor_char_boundary(MAX_RECORDED));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(relative_path(bad), None, "{bad}");
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
            assert_eq!(relative_path(encoded).unwrap().as_str(), path, "{encoded}");
        }
    }

    #[test]
    fn a_record_is_lossy_text_cut_on_a_character_boundary() {
        assert_eq!(recorded_path("a%ff/..%2f"), "a\u{fffd}/../");
        let long = recorded_path(&"é".repeat(3000));
        assert_eq!(long.len(), MAX_RECORDED);
        assert_eq!(recorded_path(&format!("a{}", "é".repeat(3000))).len(), MAX_RECORDED - 1);
    }
}
