//! Peer handles as a test gets, takes apart, tampers with and redeems them.

use crate::broker::Session;
use crate::{a2a, http};

/// A handle that a running capsule minted.
#[derive(Debug, Clone)]
pub struct Handle {
    /// `mh1.<payload>.<mac>`
    pub token: String,
    /// Whom it is for.
    pub audience: String,
}

impl Handle {
    /// Has a capsule driven by the stand-in mint one.
    ///
    /// # Panics
    /// If it answers anything else.
    #[must_use]
    pub fn mint(session: &Session, path: &str, peer: &str) -> Self {
        let task = a2a::complete(session.url(), &unique("mint"), &format!("Hand {path} to {peer}"));
        let answer = a2a::answer(&task);
        let parts = answer.strip_prefix("For ").and_then(|rest| rest.split_once(": "));
        let (audience, token) = parts.unwrap_or_else(|| panic!("no handle: {answer}"));
        Self { token: token.to_owned(), audience: audience.to_owned() }
    }

    /// Has a capsule mint one for itself, so that the test can redeem it.
    ///
    /// # Panics
    /// If it answers anything else.
    #[must_use]
    pub fn mint_for_itself(session: &Session, path: &str) -> Self {
        Self::mint(session, path, http::authority(session.url()))
    }

    /// Payload and MAC as they stand.
    ///
    /// # Panics
    /// If it is no handle.
    #[must_use]
    pub fn segments(&self) -> (&str, &str) {
        self.token.strip_prefix("mh1.").and_then(|rest| rest.split_once('.')).expect("a handle")
    }

    /// The payload as text.
    ///
    /// # Panics
    /// If it is none.
    #[must_use]
    pub fn payload(&self) -> String {
        String::from_utf8(decode(self.segments().0)).expect("text")
    }

    /// The same MAC behind another payload.
    #[must_use]
    pub fn with_payload(&self, payload: &str) -> String {
        format!("mh1.{}.{}", encode(payload.as_bytes()), self.segments().1)
    }
}

/// A name no other call of this process returned.
#[must_use]
pub fn unique(what: &str) -> String {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    format!("{what}-{}", NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
}

/// The bytes of a redeem request. `headers` are whole lines without their ends.
#[must_use]
pub fn redeem_request(method: &str, target: &str, headers: &[&str]) -> Vec<u8> {
    let mut request = format!("{method} /resources/peer{target} HTTP/1.1\r\nHost: x\r\n");
    for line in headers {
        request.push_str(line);
        request.push_str("\r\n");
    }
    request.push_str("\r\n");
    request.into_bytes()
}

/// Redeems a token for an audience.
///
/// # Panics
/// If there is no answer.
#[must_use]
pub fn redeem(url: &str, token: &str, audience: &str) -> http::Response {
    let header = format!("x-murmur-audience: {audience}");
    let request = redeem_request("GET", &format!("/{token}"), &[&header]);
    let answer = http::exchange(url, &request, http::PATIENCE).expect("an answer");
    http::parse(&answer).expect("an answer of HTTP")
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// base64url without padding, written here so that the product's own is not its judge.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let number =
            group.iter().fold(0_u32, |all, byte| all << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for index in 0..=group.len() {
            text.push(char::from(ALPHABET[(number >> (18 - 6 * index) & 63) as usize]));
        }
    }
    text
}

/// The bytes of base64url.
///
/// # Panics
/// If it is none.
#[must_use]
pub fn decode(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0_u32, 0);
    for byte in text.bytes() {
        let value = ALPHABET.iter().position(|known| *known == byte).expect("a character of base64url");
        bits = bits << 6 | u32::try_from(value).expect("below 64");
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 0xff) as u8);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64url_is_what_it_is_elsewhere() {
        for (bytes, text) in
            [("", ""), ("f", "Zg"), ("fo", "Zm8"), ("foo", "Zm9v"), ("{}~", "e31-"), ("???", "Pz8_")]
        {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text), bytes.as_bytes());
        }
    }
}
