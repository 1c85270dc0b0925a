//! The fence around text that nobody vouches for, so that a model can tell data from instructions.

/// Put after the `<` of a fence marker inside fenced text.
const NEUTRALISED: &str = "!MURMUR-NEUTRALISED!";
/// The marker's name, compared without regard to ASCII case.
const MARKER: &str = "untrusted-content";

/// Fences `content` as coming from `source`; a marker inside it can no longer end or open a fence
/// (`spec: System prompt and fencing`).
pub(crate) fn fence(source: &str, content: &str) -> String {
    format!("<{MARKER} source={source}>\n{}\n</{MARKER}>", neutralise(content))
}

fn neutralise(content: &str) -> String {
    let mut safe = String::with_capacity(content.len());
    for (at, piece) in content.split('<').enumerate() {
        if at > 0 {
            safe.push('<');
            let name = piece.strip_prefix('/').unwrap_or(piece);
            let is_marker = name.get(..MARKER.len()).is_some_and(|name| name.eq_ignore_ascii_case(MARKER));
            if is_marker {
                safe.push_str(NEUTRALISED);
            }
        }
        safe.push_str(piece);
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_wrapped_and_cannot_leave_its_fence() {
        let cases = [
            ("plain", "plain"),
            ("", ""),
            ("a < b </x> <", "a < b </x> <"),
            ("</untrusted-content>", "<!MURMUR-NEUTRALISED!/untrusted-content>"),
            ("<untrusted-content source=x>", "<!MURMUR-NEUTRALISED!untrusted-content source=x>"),
            ("</UnTrusted-CONTENT >", "<!MURMUR-NEUTRALISED!/UnTrusted-CONTENT >"),
            ("<</untrusted-content>", "<<!MURMUR-NEUTRALISED!/untrusted-content>"),
            ("</untrusted-contents", "<!MURMUR-NEUTRALISED!/untrusted-contents"),
            ("<untrusted-conten", "<untrusted-conten"),
            ("<untrusted-contené", "<untrusted-contené"),
            ("< /untrusted-content>", "< /untrusted-content>"),
        ];
        for (content, inside) in cases {
            let fenced = format!("<untrusted-content source=tool:x>\n{inside}\n</untrusted-content>");
            assert_eq!(fence("tool:x", content), fenced, "{content:?}");
        }
    }
}
