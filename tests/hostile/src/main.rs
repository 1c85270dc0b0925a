//! A sibling that has been taken over: it becomes the role whose name it is started under, as every process of a session
//! does, and then makes one call that no policy of that role lists. For the system tests only; never installed.
//!
//! Or it says that it is ready without having become anything (`unconfined`).
//!
//! Or, as sandbox-host, it asks for handles without end ([`minter`]). Which of them, it reads from a file `probe` beside its binary, while there still is a file system to read it from.

mod minter;

use std::process::ExitCode;
use std::time::Instant;

use confine::Role;
use ipc::edge::control::{Birth, DoorOrder, FromRole, HostOrder, Report};

fn main() -> ExitCode {
    let name = std::env::args().next().unwrap_or_default();
    let probe = std::env::current_exe()
        .and_then(|binary| std::fs::read_to_string(binary.with_file_name("probe")))
        .unwrap_or_default();
    let Some(role) = Role::ALL.into_iter().find(|role| role.name() == name) else {
        return ExitCode::from(2);
    };
    if probe.trim() == "unconfined" {
        return unconfined();
    }
    if let Some(handles) = probe.trim().strip_prefix("mint ").and_then(|number| number.parse().ok())
        && role == Role::SandboxHost
    {
        let Ok((control, _)) = role::start::<HostOrder>(role) else { return ExitCode::FAILURE };
        return match minter::run(control, handles) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("minter: {error}");
                ExitCode::FAILURE
            }
        };
    }
    // `Begin` is the same message whatever orders follow it.
    let Ok((control, _)) = role::start::<DoorOrder>(role) else { return ExitCode::FAILURE };
    let answer = call(probe.trim());
    eprintln!("{probe} answered {answer:?}");
    drop(control);
    ExitCode::from(99)
}

/// Says `Ready` at once, and waits to be given something.
fn unconfined() -> ExitCode {
    let control = ipc::sys::inherited(ipc::CONTROL_DESCRIPTOR);
    let Ok((mut control, ..)) =
        Birth::<DoorOrder>::begin(control, Instant::now() + std::time::Duration::from_secs(10))
    else {
        return ExitCode::FAILURE;
    };
    let _ = control.send(&FromRole::Ready(Report { landlock_abi: 6 }));
    match control.receive() {
        Ok(received) => eprintln!("unconfined, and was given {:?}", received.message),
        Err(error) => eprintln!("unconfined, and was given nothing: {error}"),
    }
    ExitCode::from(99)
}

/// Makes the call; it comes back only where the filter answers with an error, or not at all as it should.
fn call(probe: &str) -> Result<(), std::io::Error> {
    match probe {
        "socket" => std::net::UdpSocket::bind("127.0.0.1:0").map(drop),
        "openat" => std::fs::File::create("/hostile").map(drop),
        "execve" => Err(nix::unistd::execve::<&std::ffi::CStr, &std::ffi::CStr>(c"/bin/sh", &[], &[])
            .map_or_else(std::io::Error::from, |never| match never {})),
        "unshare" => Ok(nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUSER)?),
        "mount" => {
            let flags = rustix::mount::MountFlags::empty();
            Ok(rustix::mount::mount("none", "/", "tmpfs", flags, None)?)
        }
        "ptrace" => Ok(nix::sys::ptrace::attach(nix::unistd::Pid::from_raw(1))?),
        "kill" => {
            Ok(nix::sys::signal::kill(nix::unistd::Pid::from_raw(1), nix::sys::signal::Signal::SIGKILL)?)
        }
        other => Err(std::io::Error::other(format!("no such probe: {other}"))),
    }
}
