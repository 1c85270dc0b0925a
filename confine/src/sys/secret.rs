//! Memory that leaves this process by no way: not by fork, not in a core, not to swap.

use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// One page for a secret: locked, left out of core dumps, empty in every child, overwritten when dropped.
#[derive(Debug)]
pub struct SecretPage {
    start: NonNull<u8>,
}

// SAFETY: plain memory that belongs to this value alone.
unsafe impl Send for SecretPage {}
// SAFETY: shared access is reading only.
unsafe impl Sync for SecretPage {}

impl SecretPage {
    /// Bytes of the page.
    pub const LENGTH: usize = 4096;

    /// A page of zeros.
    ///
    /// # Errors
    /// The error of `mmap`, `mlock` or `madvise`: a page that lacks one of these properties is not handed out.
    pub fn new() -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh private mapping at an address of the kernel's choice.
        let start = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), Self::LENGTH, protection, MapFlags::PRIVATE)?
        };
        let page = SecretPage { start: NonNull::new(start.cast()).ok_or(Errno::FAULT)? };
        // SAFETY: exactly the mapping just made.
        unsafe {
            rustix::mm::mlock(start, Self::LENGTH)?;
            rustix::mm::madvise(start, Self::LENGTH, Advice::LinuxDontDump)?;
            rustix::mm::madvise(start, Self::LENGTH, Advice::LinuxWipeOnFork)?;
        }
        Ok(page)
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8; Self::LENGTH] {
        // SAFETY: mapped, readable and initialised for as long as `self`; written only through `&mut self`.
        unsafe { self.start.cast().as_ref() }
    }

    /// The bytes, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8; Self::LENGTH] {
        // SAFETY: as above, exclusive through `&mut self`.
        unsafe { self.start.cast().as_mut() }
    }

    /// Overwrites the bytes, in a way that no optimiser leaves out.
    pub fn wipe(&mut self) {
        for byte in self.bytes_mut() {
            // SAFETY: a valid, aligned, exclusive byte.
            unsafe { std::ptr::write_volatile(byte, 0) };
        }
        std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
    }
}

impl Drop for SecretPage {
    fn drop(&mut self) {
        self.wipe();
        // SAFETY: exactly the mapping `new` made, unmapped once.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), Self::LENGTH) };
    }
}

/// Gives the stack of the calling thread two of the properties of a [`SecretPage`]: what is computed from a secret on it is in
/// no core dump and in no child. For threads with a stack of their own, never for the main thread, which forks.
///
/// # Errors
/// The error of `pthread_getattr_np` or `madvise`.
pub fn shield_stack() -> Result<(), Errno> {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut start = std::ptr::null_mut();
    let mut length = 0;
    // SAFETY: the attributes are initialised by the first call, read by the second and destroyed by the third.
    unsafe {
        let error = libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr());
        if error != 0 {
            return Err(Errno::from_raw_os_error(error));
        }
        let error = libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut start, &raw mut length);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        if error != 0 {
            return Err(Errno::from_raw_os_error(error));
        }
    }
    // SAFETY: this thread's own stack mapping; the advice changes nothing in this process.
    unsafe {
        rustix::mm::madvise(start, length, Advice::LinuxDontDump)?;
        rustix::mm::madvise(start, length, Advice::LinuxWipeOnFork)
    }
}

/// Overwrites what a computation left on the stack below the caller's frame.
#[inline(never)]
pub fn scrub_stack() {
    let mut room = [0_u8; 4096];
    for byte in &mut room {
        // SAFETY: a valid, aligned, exclusive byte.
        unsafe { std::ptr::write_volatile(byte, 0) };
    }
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The flags of the mapping that holds an address, as the kernel tells them.
    fn flags(address: usize) -> Vec<String> {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            if let Some((from, to)) = range
                && let (Ok(from), Ok(to)) = (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16))
            {
                inside = (from..to).contains(&address);
            } else if inside && let Some(flags) = line.strip_prefix("VmFlags:") {
                return flags.split_whitespace().map(str::to_owned).collect();
            }
        }
        panic!("no mapping holds {address:x}");
    }

    fn has(address: usize, wanted: &[&str]) {
        let flags = flags(address);
        for flag in wanted {
            assert!(flags.iter().any(|found| found == flag), "{flag} in {flags:?}");
        }
    }

    #[test]
    fn a_secret_page_is_locked_left_out_of_cores_and_empty_in_children() {
        let mut page = SecretPage::new().unwrap();
        page.bytes_mut()[..4].copy_from_slice(b"key!");
        has(page.bytes().as_ptr().addr(), &["lo", "dd", "wf"]);
        assert_eq!(&page.bytes()[..5], b"key!\0");
        page.wipe();
        assert!(page.bytes().iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_shielded_stack_is_left_out_of_cores_and_empty_in_children() {
        let thread = std::thread::Builder::new().stack_size(256 * 1024).spawn(|| {
            shield_stack().unwrap();
            let local = 0u8;
            has((&raw const local).addr(), &["dd", "wf"]);
        });
        thread.unwrap().join().unwrap();
    }
}
