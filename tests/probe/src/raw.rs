//! System calls as a hostile program makes them: by number, past every library.

use std::ffi::CStr;
use std::io;

/// Makes a call with numbers.
pub(crate) fn call(number: i64, arguments: [i64; 6]) -> io::Result<i64> {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: no caller passes an address of anything but memory of its own that outlives the call. What the call then does
    // to this process is its own affair: it is here to be refused.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A pair of Unix sockets of a type, connected with each other.
pub(crate) fn pair(kind: i64) -> io::Result<[i64; 2]> {
    let mut pair = [0_i32; 2];
    // SAFETY: the kernel writes two numbers into the array.
    let result = unsafe {
        libc::syscall(libc::SYS_socketpair, i64::from(libc::AF_UNIX), kind, 0_i64, pair.as_mut_ptr())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(pair.map(i64::from)) }
}

/// The address of a text, for [`call`].
pub(crate) fn text(text: &CStr) -> i64 {
    text.as_ptr() as i64
}

/// The address of something else, for [`call`].
pub(crate) fn address<T>(of: &T) -> i64 {
    std::ptr::from_ref(of) as i64
}
