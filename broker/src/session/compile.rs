//! Having artifacts compiled: a confined process each, which gets the bytes and a file for the code, and answers with facts.

use std::io::IsTerminal;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use ipc::edge::compiler::{CompilerToBroker, Facts as ArtifactFacts, Job};
use ipc::edge::control::CompilerOrder;
use rustix::event::{PollFd, PollFlags};

use super::places::Places;
use super::process::{Kind, Process};
use super::signals::Signals;
use super::starter::Starter;
use crate::artifacts;
use crate::cli::Cli;
use crate::manifest::Manifest;
use crate::refusal::Refusal;

/// How long one artifact may compile.
const COMPILE_PATIENCE: Duration = Duration::from_secs(600);

/// Compiles what the cache lacks, one process per artifact.
///
/// # Errors
/// The artifact's refusal in the compiler's words, or exit status 3.
pub(crate) fn compile(
    starter: &Starter,
    cli: &Cli,
    manifest: &Manifest,
    manifest_dir: &Path,
    places: &Places,
    signals: &Signals,
) -> Result<Vec<artifacts::Compiled>, Refusal> {
    let mut stores = cli.artifact_dir.clone();
    stores.push(cli.state_dir.join("artifacts"));
    let terminal = std::io::stderr().is_terminal() && !cli.quiet;
    manifest
        .artifacts
        .iter()
        .map(|artifact| {
            signals.go_on()?;
            let payload = artifacts::read(artifact, manifest_dir, &stores)?;
            payload.compiled(artifact, &starter.cache, |job, input, output| {
                if terminal {
                    crate::say_text(&format!("compiling {} … ", artifact.name));
                }
                let facts = run_compiler(starter, places, signals, job, input, output);
                if terminal {
                    say!("{}", if facts.is_ok() { "done" } else { "refused" });
                }
                facts
            })
        })
        .collect()
}

fn run_compiler(
    starter: &Starter,
    places: &Places,
    signals: &Signals,
    job: Job,
    input: BorrowedFd<'_>,
    output: BorrowedFd<'_>,
) -> Result<ArtifactFacts, Refusal> {
    let what = format!("artifact {}", job.name);
    let compiler: Process<CompilerOrder> = starter.start(Kind::Compiler, places)?;
    let (mut answers, theirs) = ipc::pair::<ipc::Never, CompilerToBroker>()
        .map_err(|error| Refusal::broken("compiler", error.to_string()))?;
    compiler.order(CompilerOrder::Compile(job), &[theirs.as_fd(), input, output])?;
    drop(theirs);
    let deadline = Instant::now() + COMPILE_PATIENCE;
    answered(answers.as_fd(), signals, deadline)?;
    match answers.receive_until(deadline) {
        Ok(received) => match received.message {
            CompilerToBroker::Compiled(facts) => Ok(*facts),
            CompilerToBroker::Refused { code, reason } => {
                let reason: String = reason.chars().filter(|c| !c.is_control()).take(2000).collect();
                Err(Refusal::new(known_code(&code), what, reason))
            }
        },
        Err(ipc::ChannelError::Closed) => {
            compiler.life().wait(Duration::from_secs(2));
            Err(Refusal::broken("compiler", format!("{what}: {}", compiler.life().describe())))
        }
        Err(error) => Err(Refusal::broken("compiler", format!("{what}: {error}"))),
    }
}

/// Waits for an answer, for no longer than until `deadline`.
///
/// # Errors
/// Exit status 143 if a signal ends the launch meanwhile; dropping the process ends the compiler.
fn answered(answers: BorrowedFd<'_>, signals: &Signals, deadline: Instant) -> Result<(), Refusal> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok(timeout) = rustix::event::Timespec::try_from(left) else { return Ok(()) };
        let mut polled = [PollFd::new(&answers, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
        let ready = rustix::event::poll(&mut polled, Some(&timeout));
        let [answer, signal] = polled.map(|entry| !entry.revents().is_empty());
        if signal {
            signals.go_on()?;
        }
        if answer || matches!(ready, Ok(0)) {
            return Ok(());
        }
    }
}

/// A code the compiler may refuse with, as our own text.
fn known_code(code: &str) -> &'static str {
    const CODES: [&str; 10] = [
        "E-MAN-001",
        "E-MAN-002",
        "E-MAN-003",
        "E-IO-003",
        "E-RUN-001",
        "E-RUN-002",
        "E-RUN-004",
        "E-RUN-025",
        "E-RUN-029",
        "E-CAP-010",
    ];
    CODES.into_iter().find(|known| *known == code).unwrap_or("E-RUN-001")
}
