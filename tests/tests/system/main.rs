//! The whole system from outside: real binaries, real sockets, real kernel.
//!
//! Every test starts its own broker on its own copy of the example, and ends by looking for what was left behind.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test ends when something is not as it should be"
)]

mod command_line;
mod components;
mod confinement;
mod deaths;
mod ends;
mod launches;
mod network;
mod plane;
mod tables;
mod takeover;
mod tasks;
