//! Something tried in a child, so that whatever comes of it is gone with the child.

use std::io::{self, Read, Write};

use crate::ConfineError;

/// Steps that can fail in a trial are told by name; what is not listed is told as `trial`.
const STEPS: &[&str] = &[
    "user namespace",
    "id maps",
    "mount namespace",
    "namespaces",
    "mount propagation",
    "procfs",
    "private root",
    "nested user namespace",
    "composed root",
    "landlock",
    "threads",
];

/// Runs a trial in a child and returns what it says. The caller has one thread: the child goes on with a copy of it alone.
pub(crate) fn in_a_child(trial: impl FnOnce() -> Result<(), ConfineError>) -> Result<(), ConfineError> {
    let failed = |cause| ConfineError { step: "trial", cause };
    let (mut read, mut write) = io::pipe().map_err(failed)?;
    // SAFETY: the child is a copy with one thread; it runs the trial and ends below, without returning to the caller.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        drop(read);
        let text = match trial() {
            Ok(()) => "ok".to_owned(),
            Err(ConfineError { step, cause }) => {
                format!("{}\n{step}\n{cause}", cause.raw_os_error().unwrap_or(0))
            }
        };
        let _ = write.write_all(text.as_bytes());
        // SAFETY: ends the child; nothing of its caller runs in it.
        unsafe { libc::_exit(0) }
    }
    drop(write);
    let pid =
        rustix::process::Pid::from_raw(super::check(pid.into()).map_err(failed)?.try_into().unwrap_or(-1));
    let mut text = String::new();
    let heard = read.read_to_string(&mut text);
    // Reaped whatever it said.
    let reap = || rustix::process::waitpid(pid, rustix::process::WaitOptions::empty());
    while matches!(reap(), Err(rustix::io::Errno::INTR)) {}
    heard.map_err(failed)?;
    outcome(&text)
}

fn outcome(text: &str) -> Result<(), ConfineError> {
    let unheard = || ConfineError { step: "trial", cause: io::Error::other("it ended without an answer") };
    if text == "ok" {
        return Ok(());
    }
    let (number, rest) = text.split_once('\n').ok_or_else(unheard)?;
    let (step, cause) = rest.split_once('\n').ok_or_else(unheard)?;
    let number = number.parse().map_err(|_| unheard())?;
    let cause = match number {
        0 => io::Error::other(cause.to_owned()),
        number => io::Error::from_raw_os_error(number),
    };
    Err(ConfineError { step: STEPS.iter().find(|known| **known == step).copied().unwrap_or("trial"), cause })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_child_says_is_what_the_caller_hears() {
        assert!(in_a_child(|| Ok(())).is_ok());
        let error = in_a_child(|| {
            Err(ConfineError { step: "procfs", cause: io::Error::from_raw_os_error(libc::EPERM) })
        })
        .unwrap_err();
        assert_eq!((error.step, error.cause.raw_os_error()), ("procfs", Some(libc::EPERM)));
        let error =
            in_a_child(|| Err(ConfineError { step: "private root", cause: io::Error::other("two\nlines") }))
                .unwrap_err();
        assert_eq!(error.to_string(), "private root: two\nlines");
    }

    #[test]
    fn a_child_that_ends_without_a_word_is_a_failure() {
        for text in ["", "o", "1", "1\nprocfs", "x\nprocfs\ny"] {
            assert_eq!(outcome(text).unwrap_err().step, "trial", "{text:?}");
        }
        let inner = in_a_child(|| {
            // SAFETY: ends the child.
            unsafe { libc::_exit(1) }
        });
        assert!(inner.is_err());
    }
}
