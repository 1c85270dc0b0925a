//! The system calls of this crate that no library wraps safely, and its only `unsafe` code.

pub(crate) mod birth;
pub(crate) mod program;
pub(crate) mod secret;
pub(crate) mod signal;
pub(crate) mod trial;

use std::ffi::{CStr, c_long};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Turns the C convention into a result.
pub(crate) fn check(result: c_long) -> io::Result<c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Has the C library's allocator keep to its main arena. Those of further threads ask `/proc/sys/vm/overcommit_memory`
/// when they shrink, at a moment nobody chooses and with an `openat` that most filters refuse.
pub(crate) fn one_arena() -> io::Result<()> {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes two numbers; no other thread allocates yet.
    if unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) } != 1 {
        return Err(io::Error::other("the allocator takes no limit of arenas"));
    }
    Ok(())
}

/// Closes every descriptor from 3 on.
pub(crate) fn close_all() -> io::Result<()> {
    // SAFETY: takes numbers. The caller owns no descriptor but the standard ones yet.
    check(unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32) }).map(drop)
}

/// Has the calling thread wait for its turn instead of interrupting whoever runs when something wakes it.
pub(crate) fn give_way() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: reads one structure that lives through the call.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters) }.into()).map(drop)
}

/// The Landlock version of the kernel; 0 where there is none.
pub(crate) fn landlock_version() -> u32 {
    const VERSION: libc::c_uint = 1;
    // SAFETY: with this flag the kernel reads no memory of ours; it returns a number.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0_usize, VERSION) };
    u32::try_from(version).unwrap_or(0)
}

/// Removes one capability from the bounding set. `Ok(false)` if the kernel knows no capability of that number.
pub(crate) fn drop_bounding(capability: u64) -> io::Result<bool> {
    // SAFETY: takes a number, touches no memory of ours.
    if unsafe { libc::prctl(libc::PR_CAPBSET_READ, capability, 0, 0, 0) } < 0 {
        return Ok(false);
    }
    // SAFETY: as above.
    check(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) }.into())?;
    Ok(true)
}

/// `struct mount_attr` of the kernel.
#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// Sets attributes of a mount named by descriptor, of everything below it too if `recursive`. `id_map` is a user
/// namespace and needs `MOUNT_ATTR_IDMAP` in `set`.
pub(crate) fn mount_setattr(
    mount: BorrowedFd<'_>,
    set: u64,
    id_map: Option<BorrowedFd<'_>>,
    recursive: bool,
) -> io::Result<()> {
    let attr = MountAttr {
        set,
        clear: 0,
        propagation: libc::MS_PRIVATE,
        user_namespace: id_map.map_or(0, |fd| u64::try_from(fd.as_raw_fd()).unwrap_or(0)),
    };
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a C string and the pointer and size describe `attr`; both outlive the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    };
    check(result).map(drop)
}

/// Brings an interface up, through any socket of its namespace.
pub(crate) fn interface_up(socket: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    // SAFETY: `ifreq` is plain data for which all zeros is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let limit = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name.iter_mut().zip(name.to_bytes().iter().take(limit)) {
        *to = *from as libc::c_char;
    }
    // SAFETY: the pointer is to an `ifreq` with a terminated name; the kernel writes within it.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request) }.into())?;
    // SAFETY: the call above filled this field of the union.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
    // SAFETY: as above; the kernel reads within it.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) }.into()).map(drop)
}

/// Has a datagram socket tell with each datagram the address it was sent to.
pub(crate) fn tell_destinations(socket: BorrowedFd<'_>) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the pointer and the length describe `on`, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_PKTINFO,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    check(result.into()).map(drop)
}

/// Takes ownership of a descriptor number the kernel has just returned.
///
/// # Safety
/// Nothing else owns that number.
unsafe fn own(number: i32) -> OwnedFd {
    // SAFETY: the caller's promise.
    unsafe { OwnedFd::from_raw_fd(number) }
}
