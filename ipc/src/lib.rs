//! The messages that the processes of a session exchange, and the channels that carry them.
//!
//! Every edge of the process picture has its own pair of message enums ([`edge`]); a message that an edge does not carry
//! cannot be written down. A [`Channel`] is one end of a `SOCK_SEQPACKET` pair the broker made: one packet is one
//! message, at most [`MAX_PACKET`] bytes, decoded completely or refused. This crate is the only place that calls
//! `sendmsg` and `recvmsg`, and it trusts no byte and no descriptor it receives: a wrong length, a wrong number of
//! descriptors, a truncated packet or trailing bytes are an error that ends the peer.
//!
//! It holds nothing, opens nothing and knows nothing of how a process is confined.

pub mod channel;
pub mod codec;
pub mod edge;
pub mod memory;
pub mod stream;
pub mod sys;
pub mod types;

#[cfg(feature = "tokio")]
pub mod aio;

pub use channel::{Channel, ChannelError, Message, Never, Received, Receiver, Sender, pair};
pub use codec::MAX_PACKET;

/// Identifies the sources this binary was built from; equal in all binaries of one build.
pub const BUILD_ID: &str = env!("IPC_BUILD_ID");

/// The descriptor on which a started process finds its control channel.
pub const CONTROL_DESCRIPTOR: i32 = 3;
