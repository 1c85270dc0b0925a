//! A hostile program: run as an allowed program of a session, it tries one way out and says what it saw. For the conformance
//! cases only; never installed.
//!
//! `capsule-probe CASE [ARGUMENT…]` prints one line, `seen: WORD DETAIL`. WORD is `absent` (there is no such thing),
//! `refused` (somebody said no, DETAIL is the errno) or `done` (it worked, DETAIL is what came of it). Which of them is right
//! is the caller's to say.

mod files;
mod processes;
mod programs;
mod raw;
mod sockets;

use std::io;

/// What a case saw.
pub(crate) type Seen = io::Result<String>;

/// A way out: a name, and what tries it.
pub(crate) type Case = (&'static str, fn(&[String]) -> Seen);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // Started by a case of its own, from where nothing may be executed.
    if std::env::args().next().as_deref() == Some(programs::PLANTED)
        || arguments.first().map(String::as_str) == Some(programs::PLANTED)
    {
        println!("{}", programs::PLANTED);
        return;
    }
    let Some((name, rest)) = arguments.split_first() else {
        eprintln!("capsule-probe CASE [ARGUMENT...]");
        std::process::exit(2);
    };
    let cases = [files::CASES, processes::CASES, programs::CASES, sockets::CASES].concat();
    let Some((_, case)) = cases.iter().find(|(known, _)| known == name) else {
        eprintln!("no case {name}");
        std::process::exit(2);
    };
    println!("seen: {}", word(case(rest)));
}

fn word(seen: Seen) -> String {
    match seen {
        Ok(what) => format!("done {}", what.replace('\n', " ")),
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOENT | libc::ESRCH | libc::ENOTDIR) => format!("absent {error}"),
            Some(number) => format!("refused {number} {error}"),
            None => format!("refused {error}"),
        },
    }
}
