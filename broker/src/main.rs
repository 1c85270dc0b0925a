//! The privileged process of a session.
//!
//! It reads the operator's manifest, makes cgroups, namespaces and mounts, starts the other processes, checks each from
//! outside before it gets anything worth having, and writes the trace. It holds the trace file, pidfds, the descriptors of
//! its directories and the listening socket, which it only ever hands to a door. It trusts the operator's command line and
//! manifest, and no other process: what they report is typed, bounded and read on threads that can neither connect nor exec.
//!
//! It never parses a byte that came from a network or from an archive, never runs guest code, never opens a path another
//! process chose, and receives no descriptor.

mod artifacts;
mod card;
mod cli;
mod host;
mod manifest;
mod refusal;
mod session;
mod trace;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::Cli;
use crate::refusal::Refusal;
use crate::session::launch;
use crate::session::supervise::{Asked, End};

fn main() -> ExitCode {
    // A panic ends the session with 70 and a line; a refused call of one of our threads with 71.
    confine::handler::arm();
    let cli = Cli::parse();
    match run(&cli) {
        Ok(code) => code,
        Err(refusal) => {
            eprintln!("{refusal}");
            ExitCode::from(refusal.status)
        }
    }
}

fn run(cli: &Cli) -> Result<ExitCode, Refusal> {
    let manifest = launch::read_manifest(cli)?;
    launch::class(&manifest)?;
    if cli.check {
        return check(cli, &manifest);
    }
    if !nix::unistd::geteuid().is_root() {
        return Err(Refusal::new(
            "E-IO-002",
            "broker",
            "it needs root to make namespaces, mounts and groups",
        )
        .hint("start it as root, for example from its systemd unit"));
    }
    let launched = launch::launch(cli, &manifest)?;
    let end = launched.session.run();
    // The last reporter is gone with the last process.
    let _ = launched.trace_writer.join();
    Ok(match end {
        // A session that was told to end did well if it ended in order, whatever it was in the middle of.
        End::Orderly(_, Asked::BySignal) => ExitCode::SUCCESS,
        End::Orderly(totals, Asked::ByLoop) => match totals.map(|totals| totals.exit_status) {
            None | Some(ipc::edge::host_broker::ExitStatus::Ok) => ExitCode::SUCCESS,
            Some(status) => {
                eprintln!("error[E-RUN-040]: session: a task did not complete: {}", status.as_str());
                ExitCode::from(1)
            }
        },
        End::Hard => ExitCode::from(143),
        End::Broken(refusal) => {
            eprintln!("{refusal}");
            ExitCode::from(refusal.status)
        }
    })
}

/// `--check`: everything that can be said without starting anything.
fn check(cli: &Cli, manifest: &manifest::Manifest) -> Result<ExitCode, Refusal> {
    let directory = cli.manifest.parent().unwrap_or(std::path::Path::new("."));
    let workdir = cli.workdir.clone().unwrap_or_else(|| directory.join("workdir"));
    manifest::check_files(manifest, directory, &workdir)?;
    session::agent::programs(manifest)?;
    session::agent::egress(manifest)?;
    let host = host::cgroup::probe()?;
    if !cli.quiet {
        eprintln!("{} {}: the manifest is good", manifest.name, manifest.version);
        if !host.missing.is_empty() {
            eprintln!("lacks cgroup v2 controllers: {}", host.missing.join(", "));
        }
    }
    Ok(ExitCode::SUCCESS)
}
