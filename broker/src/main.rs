//! placeholder

#[allow(dead_code, reason = "the launch sequence that uses it is not written yet")]
mod manifest;

fn main() {}
