//! A *stream*: two pipes made by the sender of a request, one for each direction. A pipe carries no descriptor. The
//! answering direction begins with one typed head, framed by its length, and goes on with raw bytes.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;

use serde::{Serialize, de::DeserializeOwned};

use crate::codec::{self, CodecError, MAX_PACKET};

/// Both pipes of a stream. The maker keeps `near` and sends `far` with the request.
#[derive(Debug)]
pub struct Stream {
    /// The maker's ends: write the outgoing body here, read head and answer there.
    pub near: Ends,
    /// The peer's ends, in the order in which they are attached to the message: input, then output.
    pub far: Ends,
}

/// Two ends of a stream as one process holds them.
#[derive(Debug)]
pub struct Ends {
    /// To read from.
    pub input: OwnedFd,
    /// To write to.
    pub output: OwnedFd,
}

/// Makes a stream, close-on-exec.
///
/// # Errors
/// The error of `pipe2`.
pub fn stream() -> std::io::Result<Stream> {
    let flags = rustix::pipe::PipeFlags::CLOEXEC;
    let (far_input, near_output) = rustix::pipe::pipe_with(flags)?;
    let (near_input, far_output) = rustix::pipe::pipe_with(flags)?;
    Ok(Stream {
        near: Ends { input: near_input, output: near_output },
        far: Ends { input: far_input, output: far_output },
    })
}

/// Why a head could not be read.
#[derive(Debug, thiserror::Error)]
pub enum HeadError {
    /// The stream ended before the head was whole.
    #[error("the stream ended before its head")]
    Ended,
    /// The head is no head of this stream.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// Reading failed.
    #[error("the stream could not be read")]
    System(#[from] std::io::Error),
}

/// The bytes of a framed head: a 32-bit little-endian length, then the head.
///
/// # Errors
/// [`CodecError::TooLarge`] above [`MAX_PACKET`] bytes.
pub fn frame_head<H: Serialize>(head: &H) -> Result<Vec<u8>, CodecError> {
    let body = codec::encode(head)?;
    let length = u32::try_from(body.len()).map_err(|_| CodecError::TooLarge { limit: MAX_PACKET })?;
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

/// Length of a head from its first four bytes.
///
/// # Errors
/// [`CodecError::TooLarge`] if no head may be that long: checked before anything is allocated.
pub fn head_length(prefix: [u8; 4]) -> Result<usize, CodecError> {
    match usize::try_from(u32::from_le_bytes(prefix)) {
        Ok(length) if length <= MAX_PACKET => Ok(length),
        _ => Err(CodecError::TooLarge { limit: MAX_PACKET }),
    }
}

/// Writes a framed head, blocking.
///
/// # Errors
/// The error of the write; an oversized head is `InvalidData`.
pub fn write_head<H: Serialize>(mut output: impl Write, head: &H) -> std::io::Result<()> {
    output.write_all(&frame_head(head).map_err(std::io::Error::other)?)
}

/// Reads a framed head, blocking.
///
/// # Errors
/// [`HeadError`].
pub fn read_head<H: DeserializeOwned>(mut input: impl Read) -> Result<H, HeadError> {
    let mut prefix = [0; 4];
    read_whole(&mut input, &mut prefix)?;
    let mut body = vec![0; head_length(prefix)?];
    read_whole(&mut input, &mut body)?;
    Ok(codec::decode(&body)?)
}

fn read_whole(input: &mut impl Read, buffer: &mut [u8]) -> Result<(), HeadError> {
    input.read_exact(buffer).map_err(|error| {
        if error.kind() == std::io::ErrorKind::UnexpectedEof {
            HeadError::Ended
        } else {
            HeadError::System(error)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_back_and_a_cut_or_huge_one_is_an_error() {
        let bytes = frame_head(&(200u16, "x")).unwrap();
        assert_eq!(read_head::<(u16, String)>(bytes.as_slice()).unwrap(), (200, "x".into()));
        for end in 0..bytes.len() {
            assert!(matches!(read_head::<(u16, String)>(&bytes[..end]), Err(HeadError::Ended)));
        }
        assert!(matches!(
            read_head::<(u16, String)>(u32::MAX.to_le_bytes().as_slice()),
            Err(HeadError::Codec(CodecError::TooLarge { .. }))
        ));
    }
}
