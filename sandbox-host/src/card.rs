//! Whom is a handle for? The audience that an agent card stands for.

use handle::{Address, audience};
use serde_json::Value;

/// The most bytes of a card.
pub(crate) const MAX_CARD: usize = 64 * 1024;

/// `<name>@<host:port>` of a card; `None` if it has no name and address that can be one. The address is the card's
/// own `url`, else that of the first JSON-RPC interface (`docs/decisions.md`, Which address of a card counts).
pub(crate) fn audience_of(card: &[u8]) -> Option<String> {
    let card: Value = serde_json::from_slice(card).ok()?;
    let text = |value: &Value, member: &str| value.get(member).and_then(Value::as_str).map(str::to_owned);
    let interfaces = card.get("supportedInterfaces").and_then(Value::as_array);
    let interface = interfaces
        .into_iter()
        .flatten()
        .find(|interface| interface.get("protocolBinding").and_then(Value::as_str) == Some("JSONRPC"));
    let url = text(&card, "url").or_else(|| interface.and_then(|interface| text(interface, "url")))?;
    audience(&text(&card, "name")?, &Address::of_url(&url).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_gives_one_audience_or_none() {
        let long = format!(r#"{{"name":"{}","url":"http://h:1"}}"#, "a".repeat(256));
        let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
        let cases = [
            (r#"{"name":"reporter","url":"http://localhost:41234/"}"#, Some("reporter@localhost:41234")),
            (r#"{"name":"Reporter","url":"HTTPS://LocalHost"}"#, Some("reporter@localhost:443")),
            (r#"{"name":"r","url":"http://[::1]/a?b"}"#, Some("r@[::1]:80")),
            (
                r#"{"name":"r","url":"http://top:1","supportedInterfaces":[
                    {"protocolBinding":"GRPC","url":"http://grpc:2"},
                    {"protocolBinding":"JSONRPC","url":"http://rpc:3/"},
                    {"protocolBinding":"JSONRPC","url":"http://later:4/"}]}"#,
                Some("r@top:1"),
            ),
            (
                r#"{"name":"r","supportedInterfaces":[{"protocolBinding":"JSONRPC","url":"http://rpc:3"}]}"#,
                Some("r@rpc:3"),
            ),
            (
                r#"{"name":"r","url":"http://top:1","supportedInterfaces":[{"protocolBinding":"GRPC","url":"http://g:2"}]}"#,
                Some("r@top:1"),
            ),
            (
                r#"{"name":"r","url":"http://top:1","supportedInterfaces":[{"protocolBinding":"JSONRPC","url":7}]}"#,
                Some("r@top:1"),
            ),
            (
                r#"{"name":"r","url":"http://top:1","supportedInterfaces":[7,{"protocolBinding":"JSONRPC","url":"nowhere"}]}"#,
                Some("r@top:1"),
            ),
            (r#"{"name":"r","url":"http://top:1","supportedInterfaces":{"a":1}}"#, Some("r@top:1")),
            (r#"{"url":"http://h:1"}"#, None),
            (r#"{"name":7,"url":"http://h:1"}"#, None),
            (r#"{"name":"r"}"#, None),
            (r#"{"name":"r","url":""}"#, None),
            (r#"{"name":"","url":"http://h:1"}"#, None),
            (r#"{"name":"é","url":"http://h:1"}"#, None),
            (r#"{"name":"a\nb","url":"http://h:1"}"#, None),
            (r#"{"name":"a@b","url":"http://h:1"}"#, None),
            (r#"{"name":"r","url":"http://user:secret@h:1"}"#, None),
            (r#"{"name":"r","url":"ftp://h:1"}"#, None),
            ("<html></html>", None),
            ("[]", None),
            ("", None),
            (&long, None),
            (&deep, None),
        ];
        for (card, expected) in cases {
            assert_eq!(audience_of(card.as_bytes()).as_deref(), expected, "{card:.200}");
        }
        assert_eq!(audience_of(b"\xff"), None);
    }
}
