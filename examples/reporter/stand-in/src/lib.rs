//! A stand-in for a model: an inference driver that answers without any model behind it.
//!
//! It plays the part a model plays in the agent loop. It reads the conversation it is given, and
//! from that alone decides what to say or which tool to ask for; it keeps nothing between turns,
//! knows no clock and no randomness, and sends nothing anywhere. What it reports about files it has
//! from the output of the `bash` tool, never from files: it is given none.
//!
//! "Report on DIRECTORY/" becomes `out/report.md`, a table of what `wc` and `sha256sum` say about the
//! files there. "Hand FILE to PEER" and "Fetch HANDLE from PEER" are the two sides of a handoff.
//! `turn` decides, the other modules read and write the texts it needs.

mod conversation;
mod handoff;
mod listing;
mod measure;
mod report;
mod shell;
pub mod turn;

#[cfg(target_arch = "wasm32")]
mod component;
