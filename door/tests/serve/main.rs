//! The door over real sockets and channels. Requests are raw bytes: a client library would tidy the very paths under test.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that fails panics, in its helpers too"
)]

#[path = "../house/mod.rs"]
#[allow(dead_code, reason = "each test binary uses its part of the house")]
mod house;

mod agent;
mod connections;
mod neighbours;
mod peer;
mod plane;
