//! `make bench-programs`: what a tool waits for a program, beside `bwrap`, a bare start and plain pipes and sockets.
//!
//!     bench-programs [--only ROW]...
//!
//! Root, the release binaries, `perl`; `bwrap` for the row that names it. What the components of a session need besides is
//! taken off: each figure of ours is the difference of two tool calls that differ in nothing but their number of programs, or in
//! which program it is. `docs/performance.md` says what each row is.

#![allow(clippy::panic, reason = "a benchmark ends the row when something is not as it should be")]

mod rows;
mod session;

use std::process::ExitCode;

use system_tests::bench::report::{self, Aim, Fault, Measured};
use system_tests::bench::{ROUNDS, report::Line};

/// One line of the table.
struct Row {
    id: &'static str,
    measure: &'static str,
    aim: Aim,
    run: fn() -> Result<Measured, Fault>,
}

/// The rows in order; aims from `docs/performance.md`.
const ROWS: [Row; 4] = [
    Row {
        id: "run-true",
        measure: "`run` of `true` from a tool, sealed, call to result",
        aim: Aim::AtMost(0.4, "× bwrap, and at most 1.2 ms"),
        run: rows::run_true,
    },
    Row {
        id: "run-true-8",
        measure: "the same in eight sessions at once",
        aim: Aim::AtLeast(1200.0, "per second"),
        run: rows::run_true_at_once,
    },
    Row {
        id: "stdin-64m",
        measure: "64 MiB in on stdin through `cat`",
        aim: Aim::AtLeast(0.7, "× plain pipes"),
        run: rows::stdin,
    },
    Row {
        id: "echo",
        measure: "echo of 16 bytes over `connect`",
        aim: Aim::AtMost(3.0, "× plain loopback"),
        run: rows::echo,
    },
];

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Vec<String>, String> {
    let mut only = Vec::new();
    while let Some(argument) = arguments.next() {
        match (argument.as_str(), arguments.next()) {
            ("--only", Some(id)) if ROWS.iter().any(|row| row.id == id) => only.push(id),
            ("--only", Some(id)) => return Err(format!("--only {id}: no such row")),
            _ => return Err(format!("{argument}: no such option, or no value")),
        }
    }
    Ok(only)
}

fn main() -> ExitCode {
    let only = match options(std::env::args().skip(1)) {
        Ok(only) => only,
        Err(error) => {
            let rows = ROWS.map(|row| row.id).join(" ");
            eprintln!("{error}\nusage: bench-programs [--only ROW]...\nrows: {rows}");
            return ExitCode::from(2);
        }
    };
    if !system_tests::host::is_root() {
        println!(
            "NOT RUN: bench-programs: needs root: the broker makes namespaces, mounts and users of its own"
        );
        return ExitCode::SUCCESS;
    }
    report::machine(&format!("{ROUNDS} rounds"));
    let mut lines = Vec::new();
    for row in ROWS.iter().filter(|row| only.is_empty() || only.iter().any(|id| id == row.id)) {
        eprintln!("{}: {}", row.id, row.measure);
        lines.push(Line::new(row.id, row.measure, &row.aim, report::caught(row.run)));
    }
    report::table(&lines);
    if lines.iter().any(Line::failed) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
