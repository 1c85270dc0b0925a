//! The runner: pid 1 of the PID namespace in which the session's programs live, and their parent.
//!
//! It holds the allow-list of programs with the absolute path of each, the environment they begin with, and a fixed set of
//! cgroup leaves as open descriptors; one leaf holds everything that one call starts. It takes calls from sandbox-host, checks
//! every one against its own list, and answers only when nothing of the call lives any more; processes that go on between calls
//! are ended with the session. It lives in the session's network namespace and connects to its loopback for sandbox-host.
//!
//! It trusts the broker, which wrote the list. It trusts neither sandbox-host, whose requests are bounded and checked, nor the
//! programs, which share its identity and its confinement: their filter and their Landlock layer are its own. It holds no key
//! and no credential, reads no byte that a program writes, looks no program up in a path, opens nothing but `/dev/null` and
//! its own `/proc` once it takes calls, and waits in one `poll` and for nothing else but an `execve` to begin.

mod calls;
mod child;
mod command;
mod connections;
mod environment;
mod leaf;
mod leaves;
mod limits;
mod listeners;
mod outbox;
mod processes;
mod serve;
mod setup;

use std::io::Write;
use std::process::ExitCode;

use ipc::edge::control::RunnerOrder;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let (control, programs) = role::start::<RunnerOrder>(confine::Role::Runner)?;
    match setup::prepare(control, programs.ok_or("the broker did not say what programs see")?)? {
        Some(session) => Ok(serve::Loop::new(session).serve()?),
        None => Ok(()),
    }
}

/// A line for the log; a log that is gone is no reason to fail.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "runner: {line}");
}
