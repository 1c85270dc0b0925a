//! System calls as a hostile process makes them: by number, past every library.

use std::io;

/// Makes a call; the arguments are numbers or addresses of memory that the caller keeps.
pub(crate) fn call(number: i64, arguments: [i64; 6]) -> io::Result<i64> {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: none of the callers passes an address of anything but memory of its own or null; a call that could harm this
    // process is expected to be refused, and if it is not, the test fails with the process.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The address of some bytes, for [`call`].
pub(crate) fn address<T: ?Sized>(memory: &T) -> i64 {
    std::ptr::from_ref(memory).cast::<u8>() as i64
}

/// Takes a descriptor that was left open across exec.
pub(crate) fn inherited(number: i32) -> std::os::fd::OwnedFd {
    // SAFETY: called once per number, first thing in the child.
    unsafe { std::os::fd::FromRawFd::from_raw_fd(number) }
}

/// Reads where nothing is.
pub(crate) fn fault() -> String {
    // SAFETY: not sound, and not meant to be: the process must end here.
    unsafe { std::ptr::without_provenance::<u8>(16).read_volatile() }.to_string()
}
