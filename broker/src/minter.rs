//! Who holds the minting key? This module, in one page of memory; nothing but [`Minter`] can make or verify a handle.
//!
//! The key is 32 random bytes, made only where `exports.peer_files` is declared, and only after the other processes were
//! started. It is on no disk, in no environment, in no child and in no core, and it is overwritten when the session ends, which
//! revokes every handle at once (`seed: The minting key`). What is computed from it lives on the stacks of threads that called
//! [`confine::shield_stack`].

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use confine::SecretPage;
use hmac::{Hmac, KeyInit, Mac};
use ipc::edge::host_broker::Minted;
use ipc::types::{PlaneCode, RelPath, hex};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

/// Bytes of the key.
const KEY: usize = 32;

/// What the MAC covers before payload and audience; 0x1f between the three.
const DOMAIN: &[u8] = b"murmur-peer-handle-v1";

/// Mints and verifies the handles of one session.
#[derive(Debug)]
pub(crate) struct Minter {
    key: SecretPage,
    session_id: String,
    max_ttl: Duration,
}

/// The payload, in the seed's order.
#[derive(Debug, Serialize, Deserialize)]
struct Payload {
    v: u8,
    iss: String,
    p: String,
    exp: u64,
    n: String,
}

impl Minter {
    /// A minter with a fresh key.
    ///
    /// # Errors
    /// If no locked page or no random bytes are to be had.
    pub(crate) fn new(session_id: &str, max_ttl: Duration) -> io::Result<Self> {
        let mut key = SecretPage::new()?;
        let room = key.bytes_mut().get_mut(..KEY).unwrap_or_default();
        getrandom::fill(room).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Minter { key, session_id: session_id.to_owned(), max_ttl })
    }

    /// Hands the state of a MAC over payload and audience to `finish`, then overwrites what was on the stack.
    fn with_mac<T>(
        &self,
        payload: &str,
        audience: &str,
        finish: impl FnOnce(Hmac<Sha256>) -> Option<T>,
    ) -> Option<T> {
        let result = self.compute(payload, audience, finish);
        confine::scrub_stack();
        result
    }

    #[inline(never)]
    fn compute<T>(
        &self,
        payload: &str,
        audience: &str,
        finish: impl FnOnce(Hmac<Sha256>) -> Option<T>,
    ) -> Option<T> {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.key.bytes().get(..KEY)?).ok()?;
        for part in [DOMAIN, b"\x1f", payload.as_bytes(), b"\x1f", audience.as_bytes()] {
            mac.update(part);
        }
        finish(mac)
    }

    /// The MAC of payload and audience.
    fn sign(&self, payload: &str, audience: &str) -> Option<[u8; 32]> {
        self.with_mac(payload, audience, |mac| Some(mac.finalize().into_bytes().into()))
    }

    /// Mints a handle for a path that was canonicalised and an audience in lower case. A lifetime above the maximum is the
    /// maximum.
    ///
    /// # Errors
    /// `io_error` without random bytes.
    pub(crate) fn mint(
        &self,
        path: &RelPath,
        audience: &str,
        ttl: Option<Duration>,
    ) -> Result<Minted, PlaneCode> {
        let ttl = ttl.unwrap_or(self.max_ttl).min(self.max_ttl);
        let lifetime = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let expires_at_ms = now_ms().saturating_add(lifetime);
        let mut nonce = [0; 16];
        getrandom::fill(&mut nonce).map_err(|_| PlaneCode::IoError)?;
        let payload = Payload {
            v: 1,
            iss: self.session_id.clone(),
            p: path.as_str().to_owned(),
            exp: expires_at_ms,
            n: hex(&nonce),
        };
        let payload = serde_json::to_vec(&payload).map_err(|_| PlaneCode::IoError)?;
        let payload = handle::encode_segment(&payload);
        let mac = self.sign(&payload, audience).ok_or(PlaneCode::IoError)?;
        let token = format!("{}{payload}.{}", handle::TAG, handle::encode_segment(&mac));
        Ok(Minted { handle_id: handle::handle_id(&token), handle: token, expires_at_ms })
    }

    /// Verifies, in constant time, that this session minted a payload for an audience, and returns the path it authorises.
    /// Nothing of the payload is looked at before.
    ///
    /// # Errors
    /// `handle_not_valid` for whatever is not right before the MAC has verified; afterwards `handle_expired` with the path.
    pub(crate) fn verify(
        &self,
        payload: &str,
        mac: &str,
        audience: &str,
    ) -> Result<RelPath, (PlaneCode, Option<String>)> {
        self.verify_at(payload, mac, audience, now_ms)
    }

    fn verify_at(
        &self,
        payload: &str,
        mac: &str,
        audience: &str,
        now: impl FnOnce() -> u64,
    ) -> Result<RelPath, (PlaneCode, Option<String>)> {
        const NOT_VALID: (PlaneCode, Option<String>) = (PlaneCode::HandleNotValid, None);
        let presented = handle::decode_segment(mac).ok_or(NOT_VALID)?;
        self.with_mac(payload, audience, |mac| mac.verify_slice(&presented).ok()).ok_or(NOT_VALID)?;
        // From here on it is our own text.
        let broken = || (PlaneCode::IoError, None);
        let bytes = handle::decode_segment(payload).ok_or_else(broken)?;
        let payload: Payload = serde_json::from_slice(&bytes).map_err(|_| broken())?;
        if payload.exp <= now() {
            return Err((PlaneCode::HandleExpired, Some(payload.p)));
        }
        RelPath::new(payload.p).map_err(|_| broken())
    }
}

/// Unix milliseconds.
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AUDIENCE: &str = "reporter@localhost:41234";

    fn minter() -> Minter {
        Minter::new("ses_1", Duration::from_secs(3600)).unwrap()
    }

    fn segments(token: &str) -> (String, String) {
        let (payload, mac) = token.strip_prefix("mh1.").unwrap().split_once('.').unwrap();
        (payload.to_owned(), mac.to_owned())
    }

    fn path(text: &str) -> RelPath {
        RelPath::new(text).unwrap()
    }

    #[test]
    fn a_known_key_makes_the_known_mac() {
        let mut minter = minter();
        for (index, byte) in minter.key.bytes_mut().iter_mut().take(KEY).enumerate() {
            *byte = u8::try_from(index).unwrap();
        }
        let text = "{\"v\":1,\"iss\":\"ses_01a033ec2c1f7eb2a5922f84e012e89d\",\"p\":\"report.md\",\"exp\":1755950300000,\
                    \"n\":\"7f3c0a5512e84b6d9a01c2d3e4f50617\"}";
        let payload = handle::encode_segment(text.as_bytes());
        let mac = minter.sign(&payload, AUDIENCE).unwrap();
        assert_eq!(handle::encode_segment(&mac), "ECkYCjRA7Yx4LxWc_e4m2HGEvVzj5X_REXzd5Tqzs4U");
        // It verifies, and has long expired.
        let refused = minter.verify(&payload, "ECkYCjRA7Yx4LxWc_e4m2HGEvVzj5X_REXzd5Tqzs4U", AUDIENCE);
        assert_eq!(refused, Err((PlaneCode::HandleExpired, Some("report.md".into()))));
    }

    #[test]
    fn what_was_minted_verifies_for_its_audience_alone_and_is_never_the_same_twice() {
        let minter = minter();
        let minted = minter.mint(&path("a/%41 é"), AUDIENCE, None).unwrap();
        let again = minter.mint(&path("a/%41 é"), AUDIENCE, None).unwrap();
        assert_ne!(minted.handle_id, again.handle_id);
        let (token, payload) = handle::Token::parse(&minted.handle).unwrap();
        assert_eq!(payload.path.as_deref(), Some("a/%41 é"));
        assert_eq!(minted.handle_id, handle::handle_id(token.text()));
        assert_eq!(minter.verify(token.payload(), token.mac(), AUDIENCE), Ok(path("a/%41 é")));
        let not_valid = Err((PlaneCode::HandleNotValid, None));
        for other in ["", "reporter@localhost:41235", "Reporter@localhost:41234", "reporter@localhost:41234 "]
        {
            assert_eq!(minter.verify(token.payload(), token.mac(), other), not_valid, "{other}");
        }
    }

    #[test]
    fn another_session_tampering_and_lengths_are_one_refusal() {
        let ours = minter();
        let not_valid = Err((PlaneCode::HandleNotValid, None));
        let minted = ours.mint(&path("report.md"), AUDIENCE, None).unwrap();
        let (payload, mac) = segments(&minted.handle);
        assert_eq!(minter().verify(&payload, &mac, AUDIENCE), not_valid, "another key");
        let forged = handle::encode_segment(b"{\"v\":1,\"p\":\"secret\"}");
        assert_eq!(ours.verify(&forged, &mac, AUDIENCE), not_valid);
        for junk in ["", "AA", &"A".repeat(42), &"A".repeat(44), &format!("{mac}AA")] {
            assert_eq!(ours.verify(&payload, junk, AUDIENCE), not_valid, "{junk}");
        }
        // The separator keeps what is signed unambiguous.
        assert_eq!(ours.verify(&format!("{payload}\u{1f}x"), &mac, AUDIENCE), not_valid);
    }

    /// `exp` is a moment of the wall clock: whoever sets that clock moves it.
    #[test]
    fn a_handle_lives_until_the_wall_clock_says_its_expiry_whichever_way_it_is_set() {
        let minter = minter();
        let minted = minter.mint(&path("x"), AUDIENCE, None).unwrap();
        let (payload, mac) = segments(&minted.handle);
        let expires = minted.expires_at_ms;
        let expired = Err((PlaneCode::HandleExpired, Some("x".to_owned())));
        for (now, outcome) in [
            (expires - 1, Ok(path("x"))),
            (expires, expired.clone()),
            (expires + 1, expired.clone()),
            (u64::MAX, expired),
            (expires - 1, Ok(path("x"))),
            (0, Ok(path("x"))),
        ] {
            assert_eq!(minter.verify_at(&payload, &mac, AUDIENCE, || now), outcome, "{now}");
        }
    }

    #[test]
    fn a_lifetime_only_narrows_and_expiry_comes_after_the_mac() {
        let minter = minter();
        let hour = 3_600_000;
        for (ttl, least, most) in [
            (None, hour, hour + 60_000),
            (Some(Duration::from_secs(7200)), hour, hour + 60_000),
            (Some(Duration::from_secs(60)), 60_000, 120_000),
        ] {
            let before = now_ms();
            let minted = minter.mint(&path("x"), AUDIENCE, ttl).unwrap();
            let lifetime = minted.expires_at_ms - before;
            assert!((least..=most).contains(&lifetime), "{ttl:?}: {lifetime}");
        }
        let dead = minter.mint(&path("x"), AUDIENCE, Some(Duration::ZERO)).unwrap();
        let (payload, mac) = segments(&dead.handle);
        assert_eq!(
            minter.verify(&payload, &mac, AUDIENCE),
            Err((PlaneCode::HandleExpired, Some("x".into()))),
            "expired at the very millisecond"
        );
        assert_eq!(minter.verify(&payload, &mac, "x@y:1"), Err((PlaneCode::HandleNotValid, None)));
    }
}
