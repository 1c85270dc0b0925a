//! `make bench-planes`: both file planes of a real session beside nginx and beside a plain one-process server.
//!
//!     bench-planes [--seconds N] [--only ROW]...
//!
//! Root, the release binaries, `wrk` and `nginx`. The sides of a row take turns, five times; medians are printed, and first
//! of all as ratios: those of one run on one machine can be compared, requests per second of two machines cannot. What
//! cannot be measured here is `NOT RUN` with the reason; an answer that is not the file, or an error that wrk counted, is
//! `FAILED` and the exit status 1. `docs/performance.md` says what each row is.

#![allow(clippy::panic, reason = "a benchmark ends the row when something is not as it should be")]

mod connections;
mod listing;
mod memory;
mod refusals;
mod sides;
mod throughput;
mod wrk;

use std::process::ExitCode;

use system_tests::bench::ROUNDS;
use system_tests::bench::report::{self, Aim, Fault, Measured};

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// One line of the table.
struct Row {
    id: &'static str,
    measure: &'static str,
    aim: Aim,
    /// Takes the seconds that one run of wrk lasts.
    run: fn(u64) -> Result<Measured, Fault>,
}

const fn row(
    id: &'static str,
    measure: &'static str,
    aim: Aim,
    run: fn(u64) -> Result<Measured, Fault>,
) -> Row {
    Row { id, measure, aim, run }
}

/// The rows in order; aims from `docs/performance.md`.
const ROWS: [Row; 12] = [
    row("get-4k-8", "GET 4 KiB, 8 connections", Aim::AtLeast(0.80, "× nginx"), |s| {
        throughput::get(4 * KIB, 8, s)
    }),
    row("get-4k-32", "GET 4 KiB, 32 connections", Aim::AtLeast(0.80, "× nginx"), |s| {
        throughput::get(4 * KIB, 32, s)
    }),
    row("get-4k-1", "GET 4 KiB, 1 connection", Aim::AtLeast(0.70, "× nginx"), |s| {
        throughput::get(4 * KIB, 1, s)
    }),
    row("get-64k-8", "GET 64 KiB, 8 connections", Aim::AtLeast(0.55, "× nginx"), |s| {
        throughput::get(64 * KIB, 8, s)
    }),
    row("get-1m-8", "GET 1 MiB, 8 connections", Aim::AtLeast(0.50, "× nginx"), |s| {
        throughput::get(MIB, 8, s)
    }),
    row("cpu-4k-8", "CPU per GET of 4 KiB, all processes, 8 connections", Aim::AtMost(48.0, "µs"), |s| {
        throughput::cpu(4 * KIB, 8, s)
    }),
    row("redeem-4k-8", "redeem 4 KiB, 8 connections", Aim::AtLeast(0.85, "× own operator read"), |s| {
        throughput::redeem(4 * KIB, 8, s)
    }),
    row("redeem-refusals", "redeems refused with handle_not_valid, one after another", refusals::AIM, |_| {
        refusals::run()
    }),
    row("list-1000", "listing 1,000 files of 4 KiB", Aim::AtMost(0.70, "× one-thread floor"), |_| {
        listing::run(1000)
    }),
    row("list-10000", "listing 10,000 files of 4 KiB", Aim::AtMost(0.70, "× one-thread floor"), |_| {
        listing::run(10_000)
    }),
    row(
        "memory-32x10m",
        "peak memory, all processes, 32 × 10 MiB at once",
        Aim::AtMost(110.0, "MB"),
        |_| memory::run(32, 10 * MIB),
    ),
    row("half-open-900", "900 half-open connections", connections::AIM, |_| connections::run(900)),
];

struct Options {
    seconds: u64,
    only: Vec<String>,
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options { seconds: 3, only: Vec::new() };
    while let Some(argument) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{argument}: no value"))?;
        match argument.as_str() {
            "--seconds" => match value.parse() {
                Ok(seconds) if seconds > 0 => options.seconds = seconds,
                _ => return Err(format!("--seconds {value}: a number of seconds, at least 1")),
            },
            "--only" if ROWS.iter().any(|row| row.id == value) => options.only.push(value),
            "--only" => return Err(format!("--only {value}: no such row")),
            _ => return Err(format!("{argument}: no such option")),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    let options = match options(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            let rows = ROWS.map(|row| row.id).join(" ");
            eprintln!("{error}\nusage: bench-planes [--seconds N] [--only ROW]...\nrows: {rows}");
            return ExitCode::from(2);
        }
    };
    if !system_tests::host::is_root() {
        println!(
            "NOT RUN: bench-planes: needs root: the broker makes namespaces, mounts and users of its own"
        );
        return ExitCode::SUCCESS;
    }
    connections::raise_descriptor_limit();
    // The row says what went wrong; where is enough here.
    std::panic::set_hook(Box::new(|panic| {
        if let Some(place) = panic.location() {
            eprintln!("  panic at {place}");
        }
    }));
    report::machine(&format!("{ROUNDS} rounds of {} s", options.seconds));
    let mut lines = Vec::new();
    for row in ROWS.iter().filter(|row| options.only.is_empty() || options.only.iter().any(|id| id == row.id))
    {
        eprintln!("{}: {}", row.id, row.measure);
        let outcome = report::caught(|| (row.run)(options.seconds));
        lines.push(report::Line::new(row.id, row.measure, &row.aim, outcome));
    }
    report::table(&lines);
    if lines.iter().any(report::Line::failed) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
