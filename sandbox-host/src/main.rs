//! sandbox-host: runs the capsule's components under Wasmtime, the agent loop that calls them, and A2A.
//!
//! It holds three directories (workdir, session, runtime), the compiled components, which it maps before it seals itself,
//! and its channels: to the broker (trace lines, ends of tasks, handles to mint), from the door (requests), to the runner (programs), to
//! egress (HTTP). It has no network, starts no program, and has neither the minting key nor any API key; no compiler is
//! linked into it. It believes the broker. It believes nothing a component, a client or an upstream says: their text is
//! fenced before a model sees it, their time and memory are bounded. A door or an egress that dies is replaced; a peer that
//! breaks the rules, or a broker or runner that goes away, ends it with one line that says who.

mod a2a;
mod agent_loop;
mod budget;
mod capture;
mod card;
mod door;
mod driver;
mod ending;
mod events;
mod fault;
mod fence;
mod fetch_peer_file;
mod gate;
mod http;
mod ids;
mod load;
mod orders;
mod peer_in;
mod policy;
mod process;
mod prompt;
mod queue;
mod read_only;
mod response;
mod results;
mod runner;
mod serve;
mod session;
mod share_file;
mod shell;
mod stdio;
mod store;
mod tasks;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod text;
mod tools;
mod wasi;

use std::path::Path;
use std::process::ExitCode;

use ipc::edge::control::{CACHE, FromRole, HostOrder, RoleControl, SESSION, WORKDIR};
use wasmtime::Engine;

use crate::fault::Fault;

fn main() -> ExitCode {
    match live() {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("sandbox-host: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn live() -> Result<(), String> {
    // Before the engine, whose own handlers for faults in components come on top of these.
    confine::handler::arm();
    confine::handler::arm_for_faults();
    let engine = load::engine()?;
    let (control, _class) =
        role::start::<HostOrder>(confine::Role::SandboxHost).map_err(|error| error.to_string())?;
    run(engine, control).map_err(|fault| fault.to_string())
}

/// Everything after lockdown. Until the process is sealed it has one thread.
fn run(engine: Engine, mut control: RoleControl<HostOrder>) -> Result<(), Fault> {
    let Some(wired) = orders::until_load(&mut control)? else { return Ok(()) };
    let [cache, workdir, session] = [CACHE, WORKDIR, SESSION].map(Path::new);
    let prepared = match serve::prepare(engine, wired, cache, workdir, session) {
        Ok(prepared) => prepared,
        Err(reason) => return Err(give_up(&control, reason)),
    };
    if let Err(error) = confine::seal_sandbox_host() {
        return Err(give_up(&control, error.to_string()));
    }
    serve::serve(control, prepared)
}

/// Tells the broker why this process cannot go on.
fn give_up(control: &RoleControl<HostOrder>, reason: String) -> Fault {
    // The exit status says the same if the broker is gone.
    let _ = control.send(&FromRole::Failed(reason.clone()));
    Fault::Own(reason)
}
