//! What are the requests to other capsules, which the runtime's own tools make?
//!
//! Their method, path and fields are fixed here, so that whoever speaks for the asker can fill in a handle and an audience and
//! nothing else (`seed: The tools`).

use std::borrow::Cow;

use ipc::edge::host_egress::{HttpRequest, Purpose};

/// Where a capsule shows its agent card.
const CARD: &str = "/.well-known/agent-card.json";

/// What handles are below.
const HANDLES: &str = "/resources/peer/";

/// The longest handle, in bytes.
const LONGEST_HANDLE: usize = 16 * 1024;

/// The longest audience, in bytes.
const LONGEST_AUDIENCE: usize = 1024;

/// Whether what the asker filled in can stand in a request line and a field, as one segment and one value.
pub(crate) fn may_be_sent(handle: &str, audience: &str) -> bool {
    is_handle(handle)
        && (1..=LONGEST_AUDIENCE).contains(&audience.len())
        && audience.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

/// Whether a text has the characters of a handle, `mh1.<base64url>.<base64url>` (`seed: The handle`). What it means is for
/// the peer to say.
fn is_handle(text: &str) -> bool {
    let segment = |text: &str| {
        !text.is_empty()
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    let parts = text.strip_prefix("mh1.").and_then(|rest| rest.split_once('.'));
    text.len() <= LONGEST_HANDLE && parts.is_some_and(|(payload, mac)| segment(payload) && segment(mac))
}

/// The request as it is sent: one of a fixed shape has its own method, path and fields, and no body.
pub(crate) fn shaped(request: &HttpRequest) -> Cow<'_, HttpRequest> {
    let (path, name, value) = match &request.purpose {
        Purpose::Component { .. } | Purpose::Gateway { .. } => return Cow::Borrowed(request),
        Purpose::Card => (CARD.to_owned(), "accept", "application/json"),
        Purpose::Redeem { handle, audience } => {
            (format!("{HANDLES}{handle}"), "x-murmur-audience", audience.as_str())
        }
    };
    let field = |name: &str, value: &str| (name.to_owned(), value.as_bytes().to_vec());
    Cow::Owned(HttpRequest {
        method: "GET".into(),
        path,
        headers: vec![field(name, value), field("content-length", "0")],
        ..request.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_characters_of_a_handle_are_a_handle() {
        let longest = format!("mh1.{}.A", "a".repeat(LONGEST_HANDLE - 6));
        for good in ["mh1.a.b", "mh1.eyJ2IjoxfQ.ECkY-_09", &longest] {
            assert!(may_be_sent(good, "a@h:1"), "{good}");
        }
        let too_long = format!("{longest}A");
        for bad in [
            "",
            ".",
            "..",
            "mh1",
            "mh1..",
            "mh1.a",
            "mh1.a.",
            "mh1..b",
            "mh1.a.b.c",
            "mh2.a.b",
            "MH1.a.b",
            "mh1.a.b ",
            " mh1.a.b",
            "mh1.a b.c",
            "mh1.a.b\r\nx: y",
            "mh1.a\n.b",
            "mh1.a.b\0",
            "mh1.a.b/",
            "mh1.a.b/../../files",
            "mh1.a/b.c",
            "mh1.a.b?x",
            "mh1.a.b#x",
            "mh1.%61.b",
            "mh1.a+.b",
            "mh1.a=.b",
            "mh1.é.b",
            &too_long,
        ] {
            assert!(!may_be_sent(bad, "a@h:1"), "{bad}");
        }
    }

    #[test]
    fn an_audience_is_printable_and_bounded() {
        for good in ["a", "my agent@h.example:80", &"a".repeat(LONGEST_AUDIENCE)] {
            assert!(may_be_sent("mh1.a.b", good), "{good}");
        }
        for bad in ["", "a\r\nx: y", "a\nb", "a\tb", "a\0", "a\u{7f}", "é", &"a".repeat(LONGEST_AUDIENCE + 1)]
        {
            assert!(!may_be_sent("mh1.a.b", bad), "{bad:?}");
        }
    }
}
