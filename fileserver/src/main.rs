//! Resolves paths below the export root, opens, reads, hashes and answers; tells the broker of everything it served.
//!
//! Holds one descriptor of the accessible workdir, on a read-only mount that is the whole of its file system, the body window
//! (writable), the generation page (read-only) and three channels: control, broker, door. It trusts the broker. It does not
//! trust the door, which parses hostile bytes: a door that breaks the rules of its channel ends this process. It does not
//! trust the files either, whose names, links and bytes belong to an agent that may change them at any moment.
//!
//! It never writes a file, never opens a device, a fifo or anything outside the workdir, makes no socket, runs nothing, and
//! never answers before the broker has the record.

mod asked;
mod desk;
mod listing;
mod open;
mod orders;
mod resolve;
mod serve;
mod window;

#[cfg(test)]
mod tests;

use std::process::ExitCode;
use std::sync::Arc;

use ipc::edge::control::{FileserverOrder, WORKDIR};
use rustix::fs::{Mode, OFlags};

use crate::serve::Fault;

/// Exit status when the process could not become what it was told to become.
const NOT_STARTED: u8 = 1;
/// Exit status after a broken channel or a broken rule.
const BROKEN: u8 = 3;

fn main() -> ExitCode {
    let control = match role::start::<FileserverOrder>(confine::Role::Fileserver) {
        Ok((control, _)) => control,
        Err(error) => {
            eprintln!("fileserver: {error}");
            return ExitCode::from(NOT_STARTED);
        }
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // `openat`, since `open` is another call, which the filter refuses.
    let served = rustix::fs::openat(rustix::fs::CWD, WORKDIR, flags, Mode::empty())
        .map_err(|errno| Fault::System("opening the workdir", errno.into()))
        .and_then(|workdir| {
            let end = |fault: Fault| {
                eprintln!("fileserver: {fault}");
                std::process::exit(i32::from(BROKEN))
            };
            orders::run(control, workdir, Arc::new(end))
        });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("fileserver: {fault}");
            ExitCode::from(BROKEN)
        }
    }
}
