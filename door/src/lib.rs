//! The HTTP listener of a session, and the only process that reads what a client sends.
//!
//! It holds the listening socket, one channel each to the broker, the fileserver and sandbox-host, and the window with the
//! fileserver's bodies, mapped read-only. It trusts no client; the fileserver for the bytes it names, after checking that
//! they lie in the window; sandbox-host for a typed head and a body, never for HTTP; the broker for its constants and for
//! whether a handle is valid, of which the door judges no more than the shape.
//!
//! It never opens a file, connects, starts a program or sees a key. It routes on the bytes as sent, decodes a path once,
//! puts every refusal of its own on record before it answers, and serves one request per connection.
//!
//! Everything here works on channels and sockets it is handed ([`run`]); becoming the confined process is `main`.

pub mod a2a;
pub mod client;
pub mod connections;
pub mod decode;
pub mod door;
pub mod fileserver;
pub mod head;
pub mod limits;
pub mod plane;
pub mod record;
pub mod redeem;
pub mod replay;
pub mod respond;
pub mod route;
pub mod ticker;
pub mod wire;

pub use door::{DoorError, run};
pub use limits::Limits;
