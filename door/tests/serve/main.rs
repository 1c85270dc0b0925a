//! The door over real sockets and channels. Requests are raw bytes: a client library would tidy the very paths under test.

#[path = "../house/mod.rs"]
#[allow(dead_code, reason = "each test binary uses its part of the house")]
mod house;

mod agent;
mod connections;
mod neighbours;
mod plane;
