//! Bytes of a message: the only file that names the serialisation library.
//!
//! A message is encoded with fixed-width integers, little-endian. Decoding is complete or an error: a limit on the
//! size, no trailing bytes, unknown variants refused. Exchanging the library is a change to this file alone
//! (`docs/decisions.md`, Serialisation).

use serde::{Serialize, de::DeserializeOwned};

/// The largest packet on any channel, in bytes.
pub const MAX_PACKET: usize = 64 * 1024;

/// Why bytes are not a message, or a message has no bytes.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone, Copy)]
pub enum CodecError {
    /// The encoded message is larger than the limit.
    #[error("the message does not fit into {limit} bytes")]
    TooLarge {
        /// The limit that applied, in bytes.
        limit: usize,
    },
    /// The bytes are not a message of this edge.
    #[error("the bytes are not a message of this channel")]
    Malformed,
    /// A message was decoded and bytes were left.
    #[error("the message is followed by {0} unexpected bytes")]
    Trailing(usize),
}

fn config() -> impl bincode::config::Config {
    bincode::config::standard().with_fixed_int_encoding().with_limit::<MAX_PACKET>()
}

fn large_config() -> impl bincode::config::Config {
    bincode::config::standard().with_fixed_int_encoding().with_limit::<MAX_DOCUMENT>()
}

/// The largest document that travels in a sealed memory file, in bytes.
pub const MAX_DOCUMENT: usize = 32 * 1024 * 1024;

/// Encodes one message.
///
/// # Errors
/// [`CodecError::TooLarge`] if it needs more than [`MAX_PACKET`] bytes.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, CodecError> {
    encode_up_to(message, MAX_PACKET)
}

/// Decodes one message from exactly these bytes.
///
/// # Errors
/// [`CodecError`] unless the bytes are one whole message and nothing else.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    if bytes.len() > MAX_PACKET {
        return Err(CodecError::TooLarge { limit: MAX_PACKET });
    }
    complete(bytes, bincode::serde::decode_from_slice(bytes, config()))
}

/// Encodes a document for a sealed memory file or a reassembled event.
///
/// # Errors
/// [`CodecError::TooLarge`] above [`MAX_DOCUMENT`] bytes.
pub fn encode_document<T: Serialize>(document: &T) -> Result<Vec<u8>, CodecError> {
    encode_up_to(document, MAX_DOCUMENT)
}

/// Decodes a document from exactly these bytes.
///
/// # Errors
/// [`CodecError`] unless the bytes are one whole document and nothing else.
pub fn decode_document<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    if bytes.len() > MAX_DOCUMENT {
        return Err(CodecError::TooLarge { limit: MAX_DOCUMENT });
    }
    complete(bytes, bincode::serde::decode_from_slice(bytes, large_config()))
}

fn encode_up_to<T: Serialize>(value: &T, limit: usize) -> Result<Vec<u8>, CodecError> {
    let mut bytes = Bytes(Vec::with_capacity(USUAL));
    bincode::serde::encode_into_writer(value, &mut bytes, large_config())
        .map_err(|_| CodecError::TooLarge { limit })?;
    if bytes.0.len() > limit { Err(CodecError::TooLarge { limit }) } else { Ok(bytes.0) }
}

/// Most messages are shorter, and need no buffer that grows several times.
const USUAL: usize = 256;

struct Bytes(Vec<u8>);

impl bincode::enc::write::Writer for &mut Bytes {
    fn write(&mut self, bytes: &[u8]) -> Result<(), bincode::error::EncodeError> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

fn complete<T>(
    bytes: &[u8],
    decoded: Result<(T, usize), bincode::error::DecodeError>,
) -> Result<T, CodecError> {
    let (value, used) = decoded.map_err(|_| CodecError::Malformed)?;
    match bytes.len() - used.min(bytes.len()) {
        0 => Ok(value),
        left => Err(CodecError::Trailing(left)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Serialize, serde::Deserialize, Debug, PartialEq)]
    enum Sample {
        Unit,
        Data { id: u64, text: String },
    }

    #[test]
    fn encoding_has_golden_bytes() {
        let bytes = encode(&Sample::Data { id: 7, text: "hé".into() }).unwrap();
        assert_eq!(bytes, [1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, b'h', 0xc3, 0xa9]);
        assert_eq!(encode(&Sample::Unit).unwrap(), [0, 0, 0, 0]);
    }

    #[test]
    fn decoding_is_complete_or_an_error() {
        let good = encode(&Sample::Data { id: 7, text: "hé".into() }).unwrap();
        for end in 0..good.len() {
            assert_eq!(decode::<Sample>(&good[..end]), Err(CodecError::Malformed), "cut at {end}");
        }
        let mut long = good.clone();
        long.push(0);
        assert_eq!(decode::<Sample>(&long), Err(CodecError::Trailing(1)));
        assert_eq!(decode::<Sample>(&[9, 0, 0, 0]), Err(CodecError::Malformed), "unknown variant");
        let mut lying = good;
        lying[12..20].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(decode::<Sample>(&lying), Err(CodecError::Malformed), "length larger than the packet");
        assert_eq!(
            decode::<Sample>(&vec![0; MAX_PACKET + 1]),
            Err(CodecError::TooLarge { limit: MAX_PACKET })
        );
    }

    #[test]
    fn a_message_above_the_limit_is_not_encoded() {
        let huge = Sample::Data { id: 1, text: "x".repeat(MAX_PACKET) };
        assert_eq!(encode(&huge), Err(CodecError::TooLarge { limit: MAX_PACKET }));
        assert!(encode_document(&huge).is_ok());
    }
}
