//! Network namespaces, made on threads that end at once so that no thread of the broker stays in one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::sys;

/// A namespace with nothing in it, not even an interface that is up.
///
/// # Errors
/// The error of the failing step.
pub fn empty_namespace() -> io::Result<OwnedFd> {
    made_on_a_thread(|| Ok(()))
}

/// A namespace whose loopback interface is up (127.0.0.1 and ::1): the session's network. Needs CAP_NET_ADMIN, which
/// [`crate::enter_broker`] gives up.
///
/// # Errors
/// The error of the failing step.
pub fn session_namespace() -> io::Result<OwnedFd> {
    made_on_a_thread(|| {
        use rustix::net::{AddressFamily, SocketFlags, SocketType};
        // Any socket reaches the interfaces of its namespace; one of a family that needs no address.
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        sys::interface_up(socket.as_fd(), c"lo")
    })
}

fn made_on_a_thread(inside: impl FnOnce() -> io::Result<()> + Send) -> io::Result<OwnedFd> {
    let make = || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)?;
        inside()?;
        Ok(std::fs::File::open("/proc/thread-self/ns/net")?.into())
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("namespace".into()).spawn_scoped(scope, make)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that makes a namespace panicked")))
    })
}
