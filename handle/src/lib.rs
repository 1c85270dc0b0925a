//! What a peer handle looks like, and whom it is for: the grammar that the door, sandbox-host and the broker share.
//!
//! A handle is `mh1.<payload>.<mac>` (`seed: The handle`). Nothing here can make or verify one: the key is the broker's alone.
//! The functions take bytes of strangers, touch nothing and allocate no more than a few times what they are given.

mod audience;
mod token;

pub use audience::{Address, NotAnAddress, NotAnAudience, audience};
pub use token::{Malformed, Payload, TAG, Token, decode_segment, encode_segment, handle_id, redact};
