//! Not built yet.

/// Name of a system call.
#[must_use]
pub fn call_name(_number: i64) -> Option<&'static str> {
    None
}
