//! Egress: the only process of a session that connects to the outside.
//!
//! It holds the operator's lists (what each artifact and the programs may reach, where gateways are, where cards and handles
//! of other capsules may be asked for), the certificates TLS trusts, the host's network namespace, and sockets the broker made
//! in the session's; later also the upstream keys. It takes HTTP requests from sandbox-host and carries them out, takes
//! programs' connections and passes their bytes on, and is the programs' name server; each as far as a list allows. A name is
//! resolved once and only an address that was judged is dialled.
//!
//! It trusts the broker, which wrote the lists. It trusts neither sandbox-host, whose requests it judges and rebuilds, nor
//! programs, nor any upstream or name server: what they send is bounded in size and time, redirects are not followed, an
//! `https` destination is never spoken to in clear. It opens no file of the session, runs nothing and makes no listener.

mod addresses;
mod bindings;
mod body;
mod denials;
mod exchange;
#[cfg(test)]
mod harness;
mod lookup;
mod peer;
#[cfg(test)]
mod peer_tests;
mod programs;
mod question;
mod relay;
mod request;
mod resolve;
mod resolver;
mod rules;
mod serve;
mod setup;
mod tls;
#[cfg(test)]
mod tls_tests;

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
                let setup::Session { control, _control, requests, broker, upstream, ways } = session;
                let reports = serve::serve_programs(ways);
                serve::serve(control, requests, broker, upstream).await?;
                reports.tell_now().await;
                Ok(())
            }
            None => Ok(()),
        }
    })
}

/// A line for the log; a log that is gone is no reason to fail.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "egress: {line}");
}
