//! Egress: the only process of a session that connects to the outside.
//!
//! It holds the operator's lists, what each artifact may reach and where its gateway is, and the host's network namespace; later
//! also the upstream keys. It takes HTTP requests of components from sandbox-host, compares each with the list of the purpose it
//! is sent for, resolves the name once, dials only an address it judged, and passes request and answer on.
//!
//! It trusts the broker, which wrote the lists. It trusts neither sandbox-host, whose requests it judges and rebuilds, nor any
//! upstream: answers are bounded in their heads and in time, redirects are not followed, nothing of a connection but the
//! end-to-end fields passes in either direction. It opens no file of the session, runs nothing and listens on nothing.

mod addresses;
mod body;
mod exchange;
mod request;
mod resolve;
mod rules;
mod serve;
mod setup;

use std::io::Write;
use std::process::ExitCode;

use ipc::edge::control::EgressOrder;

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
    let (control, _) = role::start::<EgressOrder>(confine::Role::Egress)?;
    // After the confinement: a runtime made before it could hold a thread that is not confined.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    runtime.block_on(async {
        match setup::prepare(control)? {
            Some(session) => {
                let setup::Session { control, _control, requests, broker, upstream } = session;
                Ok(serve::serve(control, requests, broker, upstream).await?)
            }
            None => Ok(()),
        }
    })
}

/// A line for the log; a log that is gone is no reason to fail.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "egress: {line}");
}
