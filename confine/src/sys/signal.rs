//! What must work in a signal handler and under every filter: one `write`, one `exit_group`.

use std::ffi::{c_int, c_void};
use std::io;

/// Status after a refused system call.
pub(crate) const REFUSED: c_int = 71;
/// Status after a panic or an abort.
pub(crate) const PANICKED: c_int = 70;
/// `si_code` of a signal that seccomp sent.
const SYS_SECCOMP: c_int = 1;

/// The start of `siginfo_t`.
#[repr(C)]
struct SignalInfo {
    signal: c_int,
    error: c_int,
    code: c_int,
    fields: Fields,
}

/// What the kernel fills in, by the kind of signal.
#[repr(C)]
union Fields {
    /// Pid of the sender of a signal.
    sender: c_int,
    /// SIGSYS.
    refused: Refused,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Refused {
    address: *const c_void,
    call: c_int,
    architecture: u32,
}

/// Writes bytes to descriptor 2 and ends the process. Safe in a signal handler.
pub(crate) fn last_words(line: &[u8], status: c_int) -> ! {
    // SAFETY: the pointer and length describe `line`. The result does not matter: the process ends either way.
    unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
    loop {
        // SAFETY: does not return.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

/// A line built without the allocator.
pub(crate) struct Line {
    bytes: [u8; 256],
    length: usize,
}

impl Line {
    pub(crate) fn new() -> Self {
        Line { bytes: [0; 256], length: 0 }
    }

    /// Appends, cutting what does not fit.
    pub(crate) fn text(mut self, text: &[u8]) -> Self {
        for byte in text {
            if let Some(place) = self.bytes.get_mut(self.length) {
                *place = *byte;
                self.length += 1;
            }
        }
        self
    }

    /// Appends a decimal number.
    pub(crate) fn number(self, number: i64) -> Self {
        let mut digits = [0_u8; 20];
        let mut length = 0;
        let mut rest = number.unsigned_abs();
        for place in &mut digits {
            *place = b'0' + u8::try_from(rest % 10).unwrap_or(0);
            length += 1;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        let mut line = if number < 0 { self.text(b"-") } else { self };
        for place in digits.iter().take(length).rev() {
            line = line.text(&[*place]);
        }
        line
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or(&[])
    }
}

extern "C" fn refused(_signal: c_int, info: *const SignalInfo, _context: *mut c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t` to a SA_SIGINFO handler, which is at least as large.
    let (code, call) = unsafe { ((*info).code, (*info).fields.refused.call) };
    // Programs share the runner's identity: a SIGSYS that one sent is not ours to die of. The kernel lets nobody forge this
    // code.
    if code == SYS_SECCOMP {
        last_words(Line::new().text(b"refused-call ").number(call.into()).text(b"\n").bytes(), REFUSED)
    }
}

extern "C" fn aborted(_signal: c_int, info: *const SignalInfo, _context: *mut c_void) {
    // SAFETY: as above; for a signal that a process sent, the sender is filled in.
    let (code, sender) = unsafe { ((*info).code, (*info).fields.sender) };
    // `abort()` is a signal from oneself; what somebody else sent is ignored, as without a handler pid 1 would.
    // SAFETY: takes nothing and cannot fail.
    if code == libc::SI_TKILL && sender == unsafe { libc::getpid() } {
        last_words(b"aborted\n", PANICKED)
    }
}

extern "C" fn crashed(signal: c_int, info: *const SignalInfo, _context: *mut c_void) {
    // SAFETY: as above.
    let code = unsafe { (*info).code };
    // Only the kernel sends positive codes: what somebody else sent is ignored.
    if code > 0 {
        last_words(
            Line::new().text(b"crashed by signal ").number(signal.into()).text(b"\n").bytes(),
            PANICKED,
        )
    }
}

type Handler = extern "C" fn(c_int, *const SignalInfo, *mut c_void);

fn handle(signal: c_int, handler: Handler) -> io::Result<()> {
    // SAFETY: `sigaction` is plain data for which all zeros is a value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: both pointers are to a `sigaction` of ours; the handlers only write and exit.
    let result = unsafe {
        libc::sigfillset(&raw mut action.sa_mask);
        libc::sigaction(signal, &raw const action, std::ptr::null_mut())
    };
    super::check(result.into()).map(drop)
}

/// Installs the handlers for refused calls and for `abort()`, which as pid 1 of a namespace would end in SIGSEGV.
pub(crate) fn install() -> io::Result<()> {
    handle(libc::SIGSYS, refused)?;
    handle(libc::SIGABRT, aborted)
}

/// Installs the handler for faults of the process itself, stack overflow included.
pub(crate) fn install_for_faults() -> io::Result<()> {
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE] {
        handle(signal, crashed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_holds_numbers_of_any_sign_and_never_grows() {
        assert_eq!(Line::new().text(b"a ").number(0).text(b" ").number(-41).bytes(), b"a 0 -41");
        assert_eq!(Line::new().number(i64::MIN).bytes(), i64::MIN.to_string().as_bytes());
        assert_eq!(Line::new().text(&[b'x'; 300]).bytes().len(), 256);
    }
}
