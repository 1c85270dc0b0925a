//! The privileged process of a session.
//!
//! It reads the operator's manifest, makes cgroups, namespaces and mounts, starts the other processes, checks each from
//! outside before it gets anything worth having, and writes the trace. It holds the trace file, pidfds, the descriptors of
//! its directories and the listening socket, which it only ever hands to a door. It trusts the operator's command line and
//! manifest, and no other process: what they report is typed, bounded and read on threads that can neither connect nor exec.
//!
//! It never parses a byte that came from a network or from an archive, never runs guest code, never opens a path another
//! process chose, and receives no descriptor.

#![warn(clippy::print_stderr)]

/// `eprintln!` in one write and without its panic: standard error may be full or gone, which is no reason to end a session.
macro_rules! say {
    ($($words:tt)*) => { $crate::say_line(format!($($words)*)) };
}

mod artifacts;
mod card;
mod check;
mod cli;
mod diagnostics;
mod host;
mod manifest;
mod minter;
mod refusal;
mod session;
mod trace;

use std::process::ExitCode;

use ipc::edge::host_broker::{LoopEnded, WorkdirSpent};

use crate::cli::Cli;
use crate::refusal::Refusal;
use crate::session::launch;
use crate::session::supervise::{Asked, End};

/// What [`say!`] does.
fn say_line(mut line: String) {
    line.push('\n');
    say_text(&line);
}

/// Text that brings its own line feeds, or none.
fn say_text(text: &str) {
    use std::io::Write;
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn main() -> ExitCode {
    // A panic ends the session with 70 and a line; a refused call of one of our threads with 71.
    confine::handler::arm();
    if let Err(error) = confine::close_inherited() {
        say!("error[E-RUN-007]: broker: what it inherited cannot be closed: {error}");
        return ExitCode::from(3);
    }
    let mut cli = match Cli::read() {
        cli::Asked::Launch(cli) => cli,
        cli::Asked::Question(cli::Question::Explain { code }) => {
            return diagnostics::explain(code.as_deref());
        }
        cli::Asked::Question(cli::Question::Schema) => {
            use std::io::Write;
            let _ = writeln!(std::io::stdout(), "{:#}", manifest::json_schema());
            return ExitCode::SUCCESS;
        }
        cli::Asked::Question(cli::Question::Trace { words }) => return become_client("trace", &words),
    };
    match run(&mut cli) {
        Ok(code) => code,
        Err(refusal) => {
            say!("{refusal}");
            ExitCode::from(refusal.status)
        }
    }
}

/// Lets the client answer: what agents wrote is not read here.
fn become_client(question: &str, words: &[std::ffi::OsString]) -> ExitCode {
    use std::os::unix::process::CommandExt;
    let refusal = match session::starter::installation() {
        Ok(directory) => {
            let client = directory.join("client");
            let error = std::process::Command::new(&client).arg(question).args(words).exec();
            Refusal::new("E-RUN-006", client.display().to_string(), error.to_string())
                .hint("install all binaries of one version together")
        }
        Err(refusal) => refusal,
    };
    say!("{refusal}");
    ExitCode::from(refusal.status)
}

fn run(cli: &mut Cli) -> Result<ExitCode, Refusal> {
    if cli.check {
        return check::check(cli);
    }
    let (manifest, warnings) = launch::read_manifest(cli)?;
    if !cli.quiet {
        warnings.iter().for_each(|warning| say!("{warning}"));
    }
    let user = host::ordinary::enter_unless_root(cli)?;
    let launched = launch::launch(cli, &manifest, user)?;
    let end = launched.session.run();
    // The last reporter is gone with the last process.
    launched.written.finish();
    Ok(match end {
        // A session that was told to end did well if it ended in order, whatever it was in the middle of.
        End::Orderly(_, Asked::BySignal) => ExitCode::SUCCESS,
        End::Orderly(Some(LoopEnded { spent: Some(spent), .. }), Asked::ByLoop) => {
            say!("{}", over_budget(spent, manifest.capabilities.resources.workdir_max_bytes));
            ExitCode::from(1)
        }
        End::Orderly(totals, Asked::ByLoop) => match totals.map(|totals| totals.exit_status) {
            None | Some(ipc::edge::host_broker::ExitStatus::Ok) => ExitCode::SUCCESS,
            Some(status) => {
                say!("error[E-RUN-040]: session: a task did not complete: {}", status.as_str());
                ExitCode::from(1)
            }
        },
        End::Hard => ExitCode::from(143),
        End::Broken(refusal) => {
            say!("{refusal}");
            ExitCode::from(refusal.status)
        }
    })
}

/// Why a session ended that kept too much.
fn over_budget(spent: WorkdirSpent, max: u64) -> Refusal {
    let reason = match spent {
        WorkdirSpent::Over(bytes) => format!(
            "workdir, home and temporary files hold {bytes} bytes or more; capabilities.resources.workdir_max_bytes is {max}"
        ),
        WorkdirSpent::Unmeasurable => {
            "what it holds cannot be counted: a directory in it is unreadable or too deep".to_owned()
        }
    };
    Refusal::new("E-RUN-013", "workdir", reason)
        .hint("remove what is not needed, or raise capabilities.resources.workdir_max_bytes")
}
