//! A sibling that has been taken over: it becomes the role whose name it is started under, as every process of a session
//! does, and then makes one call that no policy of that role lists. For the system tests only; never installed.
//!
//! Which call, it reads from a file `probe` beside its binary, while there still is a file system to read it from.

use std::process::ExitCode;

use confine::Role;
use ipc::edge::control::DoorOrder;

fn main() -> ExitCode {
    let name = std::env::args().next().unwrap_or_default();
    let probe = std::env::current_exe()
        .and_then(|binary| std::fs::read_to_string(binary.with_file_name("probe")))
        .unwrap_or_default();
    let Some(role) = Role::ALL.into_iter().find(|role| role.name() == name) else {
        return ExitCode::from(2);
    };
    // `Begin` is the same message whatever orders follow it.
    let Ok((control, _)) = role::start::<DoorOrder>(role) else { return ExitCode::FAILURE };
    let answer = call(probe.trim());
    eprintln!("{probe} answered {answer:?}");
    drop(control);
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
