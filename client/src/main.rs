//! What people ask about sessions. `broker` runs it under its own name, so that what agents wrote is read by a process that
//! shares nothing with the one that is privileged.
//!
//! Everything it prints of a record is escaped: a capsule chooses file names, commands and error texts.

mod lines;
mod phrase;
mod show;
mod timeline;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Looks at sessions.
#[derive(Debug, Parser)]
#[command(name = "broker", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the record of a session as a timeline
    Trace {
        /// trace.jsonl, or the records directory it is in
        file: PathBuf,
        /// Go on with what is recorded from now on, to the session's end
        #[arg(long, short)]
        follow: bool,
        /// Print the lines themselves, whole and well-formed ones alone
        #[arg(long)]
        json: bool,
    },
}

/// Why something could not be answered: a code, the thing, the reason, the remedy.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: &'static str,
    pub(crate) what: String,
    pub(crate) reason: String,
    pub(crate) hint: Option<&'static str>,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "error[{}]: {}: {}", self.code, self.what, self.reason)?;
        match self.hint {
            Some(hint) => write!(f, "\n  hint: {hint}"),
            None => Ok(()),
        }
    }
}

fn main() -> ExitCode {
    let Command::Trace { file, follow, json } = Cli::parse().command;
    match timeline::print(&file, follow, json) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            use std::io::Write;
            let _ = writeln!(std::io::stderr(), "{failure}");
            ExitCode::from(1)
        }
    }
}
