//! Honest exits: 70 after a panic, an abort or a failed allocation, 71 after a refused system call; never a signal.
//!
//! Every process of ours is pid 1 of a namespace, where `abort()` ends in SIGSEGV and says nothing. A failed allocation and a
//! corrupted heap end in `abort()`, so one handler for SIGABRT covers both. No backtrace is printed and no panic message: the
//! message may hold bytes of a peer, and unwinding opens files.

use crate::sys::signal::{Line, PANICKED, install, install_for_faults, last_words};

/// Status after a panic, an abort or a failed allocation.
pub const PANIC_STATUS: i32 = crate::sys::signal::PANICKED;
/// Status after a system call that the role's filter refuses; the log holds `refused-call <number>`.
pub const REFUSED_STATUS: i32 = crate::sys::signal::REFUSED;

/// Arms the panic hook and the handlers for refused system calls and `abort()`. Called once, before anything else and
/// before threads; the filters let nobody change a handler later.
pub fn arm() {
    std::panic::set_hook(Box::new(|info| {
        let mut line = Line::new().text(b"panicked at ");
        if let Some(place) = info.location() {
            line = line.text(place.file().as_bytes()).text(b":").number(place.line().into());
        }
        last_words(line.text(b"\n").bytes(), PANICKED)
    }));
    if install().is_err() {
        last_words(b"the signal handlers could not be installed\n", PANICKED);
    }
}

/// Arms the handler for faults: a bad access or a full stack ends the process with 70 and a line. Without it std's handler
/// answers, whose call to restore the default is refused: the exit would be 71 and name that call.
///
/// Wasmtime handles the same signals and passes on what no guest caused, so sandbox-host calls this **before** it makes its
/// engine; every other process after [`arm`].
pub fn arm_for_faults() {
    if install_for_faults().is_err() {
        last_words(b"the signal handlers could not be installed\n", PANICKED);
    }
}

/// The call number in a line of a process's log, if it is the line of a refused call.
#[must_use]
pub fn refused_call(line: &str) -> Option<i64> {
    line.trim_end().strip_prefix("refused-call ")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_handlers_line_names_a_call() {
        assert_eq!(refused_call("refused-call 41\n"), Some(41));
        assert_eq!(refused_call("refused-call 41 more"), None);
        assert_eq!(refused_call("panicked at a:1"), None);
    }
}
