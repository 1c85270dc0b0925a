//! The token: three segments, strict base64url, a JSON payload of version 1.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// What every handle begins with.
pub const TAG: &str = "mh1.";

/// The text is not `mh1.<b64>.<b64>`, its payload is not one JSON object, or its `v` is not the integer 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the handle is malformed")]
pub struct Malformed;

/// A text of a handle's shape. Nothing is known of its MAC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token<'t> {
    text: &'t str,
    payload: &'t str,
    mac: &'t str,
}

impl<'t> Token<'t> {
    /// Checks the shape (`seed: GET /resources/peer/<handle>`, step 1).
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(text: &'t str) -> Result<(Self, Payload), Malformed> {
        let (payload, mac) = text.strip_prefix(TAG).and_then(|rest| rest.split_once('.')).ok_or(Malformed)?;
        let bytes = decode_segment(payload).ok_or(Malformed)?;
        decode_segment(mac).ok_or(Malformed)?;
        let payload_text = std::str::from_utf8(&bytes).map_err(|_| Malformed)?;
        let parsed: Payload = serde_json::from_str(payload_text).map_err(|_| Malformed)?;
        Ok((Token { text, payload, mac }, parsed))
    }

    /// The whole text.
    #[must_use]
    pub fn text(&self) -> &'t str {
        self.text
    }

    /// The payload's segment, which the MAC covers as it stands.
    #[must_use]
    pub fn payload(&self) -> &'t str {
        self.payload
    }

    /// The MAC's segment.
    #[must_use]
    pub fn mac(&self) -> &'t str {
        self.mac
    }
}

/// The bytes of a segment: at least one character, the URL alphabet, no padding, no stray bits in the last character.
#[must_use]
pub fn decode_segment(segment: &str) -> Option<Vec<u8>> {
    if segment.is_empty() { None } else { URL_SAFE_NO_PAD.decode(segment).ok() }
}

/// A segment of these bytes.
#[must_use]
pub fn encode_segment(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// What a payload says to somebody who cannot verify it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload {
    /// `p`, if it is text.
    pub path: Option<String>,
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PayloadVisitor)
    }
}

struct PayloadVisitor;

impl<'de> Visitor<'de> for PayloadVisitor {
    type Value = Payload;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with v = 1, no key twice")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Payload, A::Error> {
        // Values are read as such, unknown ones too: that refuses what is nested deeper than the parser's own limit.
        let mut fields: BTreeMap<String, Value> = BTreeMap::new();
        while let Some((key, value)) = map.next_entry()? {
            if fields.insert(key, value).is_some() {
                return Err(A::Error::custom("a key twice"));
            }
        }
        if fields.get("v") != Some(&Value::from(1)) {
            return Err(A::Error::custom("v is not 1"));
        }
        Ok(Payload { path: fields.get("p").and_then(Value::as_str).map(str::to_owned) })
    }
}

/// First 16 lowercase hex digits of the SHA-256 of a handle as presented (`seed: The handle`).
#[must_use]
pub fn handle_id(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    ipc::types::hex(digest.get(..8).unwrap_or_default())
}

/// Replaces every handle, `mh1.<segment>.<segment>`, by `<handle:<handle_id>>`. Its characters are never escaped in JSON, so
/// serialised text can be searched, keys included (`seed: What lands in the trace`).
#[must_use]
pub fn redact(text: &str) -> Cow<'_, str> {
    if !text.contains(TAG) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(TAG) {
        let (before, candidate) = rest.split_at(start);
        out.push_str(before);
        match handle_length(candidate) {
            Some(length) => {
                let (token, after) = candidate.split_at(length);
                out.push_str("<handle:");
                out.push_str(&handle_id(token));
                out.push('>');
                rest = after;
            }
            None => {
                out.push_str(TAG);
                rest = candidate.get(TAG.len()..).unwrap_or_default();
            }
        }
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// Length of the handle that `text` begins with, if it does.
fn handle_length(text: &str) -> Option<usize> {
    let segment = |text: &str| {
        text.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')).count()
    };
    let payload = segment(text.get(TAG.len()..)?);
    let dot = TAG.len() + payload;
    let mac = if text.as_bytes().get(dot) == Some(&b'.') { segment(text.get(dot + 1..)?) } else { 0 };
    (payload > 0 && mac > 0).then_some(dot + 1 + mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Payload and MAC of a known handle; its key is the bytes 0 to 31, its audience `reporter@localhost:41234`.
    const VECTOR: &str = "mh1.eyJ2IjoxLCJpc3MiOiJzZXNfMDFhMDMzZWMyYzFmN2ViMmE1OTIyZjg0ZTAxMmU4OWQiLCJwIjoicmVwb3J0Lm1k\
                          IiwiZXhwIjoxNzU1OTUwMzAwMDAwLCJuIjoiN2YzYzBhNTUxMmU4NGI2ZDlhMDFjMmQzZTRmNTA2MTcifQ.\
                          ECkYCjRA7Yx4LxWc_e4m2HGEvVzj5X_REXzd5Tqzs4U";

    fn with(payload: &str) -> String {
        format!("mh1.{}.AAAA", encode_segment(payload.as_bytes()))
    }

    #[test]
    fn a_known_handle_has_its_parts_and_its_identifier() {
        let (token, payload) = Token::parse(VECTOR).unwrap();
        assert_eq!(payload.path.as_deref(), Some("report.md"));
        assert_eq!(decode_segment(token.mac()).unwrap().len(), 32);
        assert_eq!(format!("mh1.{}.{}", token.payload(), token.mac()), token.text());
        assert_eq!(handle_id(VECTOR), "cb3b91815ed11b2d");
        assert_eq!(handle_id(""), "e3b0c44298fc1c14");
    }

    #[test]
    fn one_spelling_of_a_token_is_the_only_one() {
        let twin = format!("{}V", &VECTOR[..VECTOR.len() - 1]);
        let bad = [
            String::new(),
            "mh1.".into(),
            "mh1..".into(),
            "mh1.e30".into(),
            "mh1.e30.".into(),
            "mh1..AAAA".into(),
            twin,
            VECTOR.replacen("mh1", "mh2", 1),
            VECTOR.replacen("mh1", "MH1", 1),
            VECTOR.replacen("mh1", "mh01", 1),
            VECTOR.replacen("mh1", "%6dh1", 1),
            format!("{VECTOR}="),
            format!("{VECTOR}.AAAA"),
            format!("{VECTOR}/"),
            format!("{VECTOR}/x"),
            format!("/{VECTOR}"),
            VECTOR.replace('_', "/"),
            VECTOR.replacen('.', ".%0A", 1),
            format!(" {VECTOR}"),
            "report.md".into(),
        ];
        for text in &bad {
            assert_eq!(Token::parse(text), Err(Malformed), "{text}");
        }
    }

    #[test]
    fn the_payload_is_one_json_object_of_version_one() {
        let deep = format!("{{\"v\":1,\"x\":{}{}}}", "[".repeat(200), "]".repeat(200));
        let bad = [
            "",
            "x",
            "[]",
            "1",
            "\"x\"",
            "null",
            "{}",
            "{\"v\":2}",
            "{\"v\":\"1\"}",
            "{\"v\":1.0}",
            "{\"v\":1e0}",
            "{\"v\":true}",
            "{\"v\":null}",
            "{\"v\":[1]}",
            "{\"v\":-1}",
            "{\"v\":1}x",
            "{\"v\":1}{\"v\":1}",
            "{\"v\":1,\"v\":1}",
            "{\"v\":1,\"p\":\"a\",\"p\":\"a\"}",
            "{\"v\":1,\"x\":1,\"x\":2}",
            "\u{feff}{\"v\":1}",
            deep.as_str(),
        ];
        for payload in bad {
            assert_eq!(Token::parse(&with(payload)), Err(Malformed), "{payload}");
        }
        let invalid = format!("mh1.{}.AAAA", encode_segment(b"{\"v\":1,\"p\":\"\xff\"}"));
        assert_eq!(Token::parse(&invalid), Err(Malformed));
        // Everything but the version is only read once the MAC has verified.
        let good = [
            ("{\"v\":1}", None),
            ("{\"v\":1,\"p\":7}", None),
            ("{\"v\":1,\"p\":{\"a\":[1,null]}}", None),
            ("{\"v\":1,\"p\":\"../x\"}", Some("../x")),
            ("{\"v\":1,\"p\":\"a\\u0000b\"}", Some("a\0b")),
            ("{\"exp\":-1,\"v\":1,\"more\":[{}]}", None),
            (" {\"v\": 1, \"p\": \"x\"} ", Some("x")),
        ];
        for (payload, path) in good {
            let text = with(payload);
            assert_eq!(
                Token::parse(&text).map(|(_, payload)| payload.path),
                Ok(path.map(str::to_owned)),
                "{payload}"
            );
        }
        let one = format!("mh1.{}.AA", encode_segment(b"{\"v\":1}"));
        assert!(Token::parse(&one).is_ok(), "the length of the MAC is no matter of shape");
    }

    #[test]
    fn handles_are_replaced_wherever_they_stand_and_nothing_else_is() {
        assert_eq!(redact(&format!("a {VECTOR}, b")), "a <handle:cb3b91815ed11b2d>, b");
        for same in ["", "mh1.", "mh1.a", "mh1.a.", "mh1..b", "mh2.a.b", "xmh1"] {
            assert_eq!(redact(same), same);
        }
        assert!(!redact("mh1.mh1.a.b").contains("mh1.a.b"));
        assert!(!redact("mh1.a.b.c").contains("mh1.a"));
    }
}
