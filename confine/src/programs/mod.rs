//! What the runner needs to start programs: the Landlock layer they all live under, and the start of one program.
//!
//! The programs' seccomp filter is the runner's own ([`crate::enter`] with [`crate::Role::Runner`] loads it), so a program
//! inherits it; [`start`] adds the few rules that take the runner's extras away. Order in the runner, single-threaded:
//! [`crate::enter`] → `Ready` → `Configure` → [`restrict`] (classes `scoped` and `sealed`; it holds for the runner itself from then on)
//! → any number of [`start`].

pub mod closure;
mod elf;
mod grants;
mod start;

pub use grants::{Dropped, Granted, Grants, restrict};
pub use start::{Limits, Start, StartError, start};
