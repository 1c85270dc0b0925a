//! Having artifacts compiled: a confined process each, which gets the bytes and a file for the code, and answers with facts.

use std::io::IsTerminal;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use ipc::edge::compiler::{CompilerToBroker, Facts as ArtifactFacts, Job};
use ipc::edge::control::CompilerOrder;

use super::places::Places;
use super::process::{Kind, Process};
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
) -> Result<Vec<artifacts::Compiled>, Refusal> {
    let mut stores = cli.artifact_dir.clone();
    stores.push(cli.state_dir.join("artifacts"));
    let terminal = std::io::stderr().is_terminal() && !cli.quiet;
    manifest
        .artifacts
        .iter()
        .map(|artifact| {
            let payload = artifacts::read(artifact, manifest_dir, &stores)?;
            payload.compiled(artifact, &starter.cache, |job, input, output| {
                if terminal {
                    eprint!("compiling {} … ", artifact.name);
                }
                let facts = run_compiler(starter, places, job, input, output);
                if terminal {
                    eprintln!("{}", if facts.is_ok() { "done" } else { "refused" });
                }
                facts
            })
        })
        .collect()
}

fn run_compiler(
    starter: &Starter,
    places: &Places,
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
    match answers.receive_until(Instant::now() + COMPILE_PATIENCE) {
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
