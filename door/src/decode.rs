//! What is put on record of text that was requested? Decoded once, never validated, never long.

use ipc::types::percent_decode;

/// The most bytes of requested text that go into a record.
pub const MAX_RECORDED: usize = 4096;

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
    fn a_record_is_lossy_text_cut_on_a_character_boundary() {
        assert_eq!(recorded_path("a%ff/..%2f"), "a\u{fffd}/../");
        let long = recorded_path(&"é".repeat(3000));
        assert_eq!(long.len(), MAX_RECORDED);
        assert_eq!(recorded_path(&format!("a{}", "é".repeat(3000))).len(), MAX_RECORDED - 1);
    }
}
