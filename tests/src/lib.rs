//! Tools for testing the shipped binaries from outside: start a broker, talk to it, look at what it leaves.
//!
//! Nothing here links a process crate. A test starts the real `broker` from the release directory, speaks to it with bytes
//! it wrote itself (an HTTP library tidies request paths and then tests nothing), reads the trace as lines of JSON, checks
//! hashes and counts against `sha256sum` and `wc`, and looks for remains in `/proc` and the mount table.
//!
//! Each session has its own temporary folder, port and directories, so that tests run side by side. A case that this host
//! cannot run says so with [`not_run!`]; it never passes silently. Processes are ended by their id only.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test tool ends the test when something is not as it should be"
)]

pub mod a2a;
pub mod bench;
pub mod binaries;
pub mod broker;
pub mod capsule;
pub mod conformance;
pub mod hammer;
pub mod handle;
pub mod host;
pub mod http;
pub mod memory;
pub mod network;
pub mod ordinary;
pub mod plane;
pub mod process;
pub mod programs;
pub mod remains;
pub mod temporary;
pub mod tls;
pub mod trace;
pub mod upstream;

/// Says that a case cannot run here and why, then leaves the test.
///
/// The line goes past the capture of the test runner, so that it is seen without any flag.
#[macro_export]
macro_rules! not_run {
    ($($why:tt)+) => {{
        $crate::host::say_not_run(::core::module_path!(), &::std::format!($($why)+));
        return;
    }};
}

/// Leaves the test with [`not_run!`] unless it runs as root: the broker makes namespaces, mounts and users.
#[macro_export]
macro_rules! needs_root {
    () => {
        if !$crate::host::is_root() {
            $crate::not_run!("needs root: the broker makes namespaces, mounts and users of its own");
        }
    };
}
