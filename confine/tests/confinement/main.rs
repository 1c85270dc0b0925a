//! The confinement tried on real processes: this binary starts itself through `confine::spawn` under a role's name, the copy
//! confines itself with `confine::enter`, makes the calls it is told to make, and the driver looks at how it ended.
//!
//! Needs root. Without it every case is printed as `NOT RUN`, and the binary ends well.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test with a main of its own is no test to the linter"
)]

mod broker;
mod child;
mod composed;
mod driver;
mod kept;
mod network;
mod process;
mod programs;
mod raw;
mod refusals;
mod sockets;
mod trees;

use std::panic::{AssertUnwindSafe, catch_unwind};

type Case = (&'static str, fn());

fn cases() -> Vec<Case> {
    [
        process::CASES,
        trees::CASES,
        refusals::CASES,
        sockets::CASES,
        broker::CASES,
        programs::CASES,
        composed::CASES,
        kept::CASES,
        network::CASES,
    ]
    .concat()
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    // A child is started with its role's name alone, and with no environment.
    if let [name] = arguments.as_slice()
        && let Some(role) = confine::Role::ALL.into_iter().find(|role| role.name() == name)
    {
        child::main(role);
    }
    if let [name] = arguments.as_slice()
        && name == broker::NAME
    {
        broker::child();
    }
    if let [name, order] = arguments.as_slice()
        && name == programs::NAME
    {
        programs::child(order);
    }
    let filter = arguments.iter().skip(1).find(|argument| !argument.starts_with('-'));
    let root = rustix::process::geteuid().is_root();
    if root {
        programs::install();
    }
    let mut failed = 0;
    for (name, case) in cases() {
        if filter.is_some_and(|filter| !name.contains(filter.as_str())) {
            continue;
        }
        if !root {
            println!("NOT RUN: {name}: needs root");
            continue;
        }
        match catch_unwind(AssertUnwindSafe(case)) {
            Ok(()) => println!("ok: {name}"),
            Err(_) => {
                failed += 1;
                println!("FAILED: {name}");
            }
        }
    }
    std::process::exit(i32::from(failed > 0));
}
