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

mod classes;
mod clients;
mod command_line;
mod components;
mod confinement;
mod conformance;
mod deaths;
mod ends;
mod grants;
mod handoff;
mod keys;
mod launches;
mod limits;
mod network;
mod operator_plane;
mod ordinary_user;
mod overload;
mod peer_launches;
mod peer_plane;
mod peer_tls;
mod policy;
mod process;
mod process_interface;
mod programs_network;
mod races;
mod tables;
mod takeover;
mod tasks;
