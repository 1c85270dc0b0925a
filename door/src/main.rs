//! The door as a process: become confined, then serve. See the library for what it holds and never does.

use std::process::ExitCode;

use door::{Limits, run};
use ipc::edge::control::DoorOrder;

/// A neighbour broke the rules or vanished; the line on stderr says which and how.
const BROKEN: u8 = 3;

fn main() -> ExitCode {
    let control = match role::start::<DoorOrder>(confine::Role::Door) {
        Ok((control, _class)) => control,
        Err(error) => return report(&error, 1),
    };
    // After the lockdown: nothing of the runtime may exist outside it.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build() {
        Ok(runtime) => runtime,
        Err(error) => return report(&error, 1),
    };
    match runtime.block_on(run(control, Limits::default())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error, BROKEN),
    }
}

fn report(error: &dyn std::error::Error, status: u8) -> ExitCode {
    eprintln!("door: {error}");
    ExitCode::from(status)
}
