//! Text cut to a bound.

/// Bytes of what a component or a model wrote that a line of the trace repeats.
pub(crate) const RECORDED: usize = 4096;

/// At most `limit` bytes of `text`, cut on a character boundary; a cut one says so within the limit.
pub(crate) fn clip(text: &str, limit: usize) -> String {
    const MARK: &str = " [cut]";
    if text.len() <= limit {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(limit.saturating_sub(MARK.len()));
    format!("{}{MARK}", text.get(..end).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clipped_text_stays_within_its_limit() {
        assert_eq!(clip("short", 5), "short");
        assert_eq!(clip("0123456789", 9), "012 [cut]");
        let clipped = clip(&"é".repeat(100), 21);
        assert!(clipped.len() <= 21 && clipped.ends_with("é [cut]"), "{clipped}");
    }
}
