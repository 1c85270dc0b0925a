//! What the benchmarks have in common: medians of rounds in which the sides take turns, a table, and the machine's name.

pub mod figures;
pub mod report;

/// How often the sides of a row take their turns.
pub const ROUNDS: usize = 5;
