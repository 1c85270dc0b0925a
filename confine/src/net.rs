//! Network namespaces, made on threads that end at once so that no thread of the broker stays in one.

use std::io;
use std::os::fd::OwnedFd;

/// A namespace with nothing in it, not even an interface that is up.
///
/// # Errors
/// The error of the failing step.
pub fn empty_namespace() -> io::Result<OwnedFd> {
    Err(io::ErrorKind::Unsupported.into())
}

/// A namespace whose loopback interface is up (127.0.0.1 and ::1): the session's network.
///
/// # Errors
/// The error of the failing step.
pub fn session_namespace() -> io::Result<OwnedFd> {
    Err(io::ErrorKind::Unsupported.into())
}
