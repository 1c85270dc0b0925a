//! The root that programs of class `sealed` live in: the system's own trees read-only, a small `/etc`, six devices, a procfs
//! of their own, and the session's trees at the host's paths. Whatever is not there is absent, not merely denied.
//!
//! What it is made of is a table; [`SYSTEM`] and [`ETC`] are also what the programs' Landlock layer grants for reading.
//! Directories that only lead somewhere cannot be listed by the programs' id.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags};

use crate::root::{PLAIN, Trees, attach, directories, file_system, pivot, procfs};
use crate::{mount, protect, sys};

/// Trees of the system that are shown whole and read-only, submounts included. Not noexec: libraries are mapped from them,
/// and Landlock decides what is executed. A link into `/usr` stays a link.
pub const SYSTEM: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];

/// What programs find in `/etc` beside the files that are made for them; what the host lacks is left out.
pub(crate) const ETC: [&str; 12] = [
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
    "/etc/ca-certificates.conf",
    "/etc/nsswitch.conf",
    "/etc/localtime",
    "/etc/timezone",
    "/etc/terminfo",
];

/// Files of `/etc` that are made: no account, address or name of the host is in them.
pub(crate) const MADE: [&str; 4] = ["/etc/passwd", "/etc/group", "/etc/resolv.conf", "/etc/hosts"];

/// Devices: path, number, whether programs may write.
pub(crate) const DEVICES: [(&str, (u32, u32), bool); 6] = [
    ("/dev/null", (1, 3), true),
    ("/dev/zero", (1, 5), true),
    ("/dev/full", (1, 7), true),
    ("/dev/tty", (5, 0), true),
    ("/dev/random", (1, 8), false),
    ("/dev/urandom", (1, 9), false),
];

const DEVICE_LINKS: [(&str, &str); 5] = [
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
    ("/dev/ptmx", "pts/ptmx"),
];

/// What a composed root is made of beside its fixed parts.
#[derive(Debug, Clone, Default)]
pub struct Composed {
    /// Whether programs may make Unix sockets: no socket of the host can be reached from here.
    pub unix_sockets: bool,
    /// Home directory of the session's account.
    pub home: PathBuf,
    /// Further directories of the host, shown read-only at their own absolute paths. One that is missing, or lies in a
    /// tree that is shown anyway, is left out.
    pub shown: Vec<PathBuf>,
}

/// Mode of directories that only lead somewhere: passed through, not listed.
const PASSAGE: u32 = 0o711;

/// Builds the root, moves the trees in and makes it the only thing there is.
pub(crate) fn enter(
    composed: &Composed,
    (uid, gid): (u32, u32),
    trees: &Trees,
    read_only: &[PathBuf],
) -> io::Result<()> {
    let root = file_system("tmpfs", &[("mode", "0711"), ("size", "1m"), ("nr_inodes", "512")], PLAIN)?;
    let mask = rustix::process::umask(Mode::empty());
    // Attached over the old root, where a descriptor still reaches it: the trees can only go into what is attached. Paths
    // still lead to the old one.
    let old = rustix::fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    attach(root.as_fd(), old.as_fd())?;
    let root = root.as_fd();

    for path in SYSTEM {
        show(root, Path::new(path), 0)?;
    }
    for path in ETC {
        show(root, Path::new(path), libc::MOUNT_ATTR_NOEXEC)?;
    }
    make(root, "/etc/passwd", &passwd(uid, gid, &composed.home)?)?;
    make(root, "/etc/group", format!("root:x:0:\ncapsule:x:{gid}:\n").as_bytes())?;
    make(root, "/etc/resolv.conf", b"nameserver 127.0.0.1\n")?;
    make(root, "/etc/hosts", b"127.0.0.1 localhost capsule\n::1 localhost ip6-localhost\n")?;
    for (path, number, _) in DEVICES {
        device(root, Path::new(path), number)?;
    }
    for (path, target) in DEVICE_LINKS {
        link(root, Path::new(path), Path::new(target))?;
    }
    let proc = directories(root, Path::new("/proc"), PASSAGE)?;
    attach(procfs()?.as_fd(), proc.as_fd())?;
    for path in &composed.shown {
        if !in_system(path) {
            show(root, path, 0)?;
        }
    }
    for (path, tree) in trees {
        let target = directories(root, path, PASSAGE)?;
        attach(tree.as_fd(), target.as_fd())?;
    }
    protect::protect(trees, read_only)?;
    rustix::process::umask(mask);
    pivot(root)
}

/// Whether a path is, or lies in, a tree of [`SYSTEM`].
#[must_use]
pub fn in_system(path: &Path) -> bool {
    SYSTEM.iter().any(|tree| path.starts_with(tree))
}

/// Whether a tree of the session cannot stand at this path: it would lie in, or hold, what a composed root has there itself.
#[must_use]
pub fn is_taken(path: &Path) -> bool {
    let fixed = SYSTEM.iter().chain(&["/etc", "/dev", "/proc", "/sys"]);
    fixed.into_iter().any(|taken| path.starts_with(taken) || Path::new(taken).starts_with(path))
}

/// Shows a directory or file of the host at its own path, or the link into `/usr` that it is there.
fn show(root: BorrowedFd<'_>, path: &Path, attributes: u64) -> io::Result<()> {
    match rustix::fs::readlinkat(CWD, path, Vec::new()) {
        Ok(target) => {
            let target = Path::new(std::ffi::OsStr::from_bytes(target.as_bytes()));
            if leads_into_usr(path, target) {
                return link(root, path, target);
            }
        }
        Err(rustix::io::Errno::INVAL) => {}
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    }
    let place = match rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Ok(place) => place,
        // A link that leads nowhere.
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    };
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&place)?.st_mode);
    let target = match kind {
        FileType::Directory => directories(root, path, PASSAGE)?,
        FileType::RegularFile => placeholder(root, path)?,
        _ => return Ok(()),
    };
    let plain = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    bind(place.as_fd(), target.as_fd(), plain | attributes)
}

fn bind(place: BorrowedFd<'_>, target: BorrowedFd<'_>, attributes: u64) -> io::Result<()> {
    let copy = mount::copy(place)?;
    // Recursive: what is mounted below keeps flags of its own otherwise.
    sys::mount_setattr(copy.as_fd(), attributes, None, true)?;
    attach(copy.as_fd(), target)
}

/// A device is the host's node, for a mount of its own can hold none where no device may be made; one that is missing, or
/// is something else, is left out.
fn device(root: BorrowedFd<'_>, path: &Path, number: (u32, u32)) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(place) = rustix::fs::open(path, flags, Mode::empty()) else { return Ok(()) };
    let stat = rustix::fs::fstat(&place)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::CharacterDevice
        || (libc::major(stat.st_rdev), libc::minor(stat.st_rdev)) != number
    {
        return Ok(());
    }
    let target = placeholder(root, path)?;
    let plain = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC;
    bind(place.as_fd(), target.as_fd(), plain)
}

/// Whether a link at this path, as it is written, names something below `/usr`.
fn leads_into_usr(path: &Path, target: &Path) -> bool {
    let mut place = path.parent().unwrap_or(Path::new("/")).to_owned();
    for component in target.components() {
        match component {
            Component::RootDir => place = PathBuf::from("/"),
            Component::CurDir | Component::Prefix(_) => {}
            Component::ParentDir => {
                place.pop();
            }
            Component::Normal(name) => place.push(name),
        }
    }
    place.starts_with("/usr") && path != Path::new("/usr")
}

/// The directory of a path below the root, made if need be, and the path's last part.
fn parent<'a>(root: BorrowedFd<'_>, path: &'a Path) -> io::Result<(OwnedFd, &'a std::ffi::OsStr)> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    Ok((directories(root, parent, PASSAGE)?, name))
}

/// An empty file to mount another over.
fn placeholder(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    make(root, path, b"")?;
    let (directory, name) = parent(root, path)?;
    Ok(rustix::fs::openat(directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
}

fn make(root: BorrowedFd<'_>, path: impl AsRef<Path>, bytes: &[u8]) -> io::Result<()> {
    let (directory, name) = parent(root, path.as_ref())?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(0o444))?;
    io::Write::write_all(&mut std::fs::File::from(file), bytes)
}

fn link(root: BorrowedFd<'_>, path: &Path, target: &Path) -> io::Result<()> {
    let (directory, name) = parent(root, path)?;
    Ok(rustix::fs::symlinkat(target, directory, name)?)
}

/// Accounts as programs look them up: root, and the session's.
fn passwd(uid: u32, gid: u32, home: &Path) -> io::Result<Vec<u8>> {
    let home = home.as_os_str().as_bytes();
    if home.iter().any(|byte| matches!(byte, b':' | b'\n')) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no account can have this home directory"));
    }
    let mut text = format!("root:x:0:0:root:/:/bin/sh\ncapsule:x:{uid}:{gid}:capsule:").into_bytes();
    text.extend_from_slice(if home.is_empty() { b"/" } else { home });
    text.extend_from_slice(b":/bin/sh\n");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_kept_only_if_it_leads_into_usr() {
        for (path, target, kept) in [
            ("/bin", "usr/bin", true),
            ("/lib64", "/usr/lib64", true),
            ("/etc/localtime", "/usr/share/zoneinfo/UTC", true),
            ("/etc/localtime", "../usr/share/zoneinfo/UTC", true),
            ("/etc/localtime", "/etc/zone", false),
            ("/lib", "/nix/store/lib", false),
            ("/lib", "usr/../opt/lib", false),
            ("/bin", "usrlocal/bin", false),
            ("/usr", "/usr2", false),
        ] {
            assert_eq!(leads_into_usr(Path::new(path), Path::new(target)), kept, "{path} -> {target}");
        }
    }

    #[test]
    fn a_tree_of_the_session_stands_beside_what_the_root_has_itself() {
        for (path, taken) in [
            ("/", true),
            ("/usr", true),
            ("/usr/local/work", true),
            ("/etc/work", true),
            ("/proc/1", true),
            ("/srv/work", false),
            ("/usr2", false),
            ("/var/lib/work", false),
            ("/tmp", false),
        ] {
            assert_eq!(is_taken(Path::new(path)), taken, "{path}");
        }
    }

    #[test]
    fn accounts_are_root_and_the_sessions() {
        let text = passwd(1_900_000_003, 1_900_000_004, Path::new("/var/lib/x/home")).unwrap();
        let text = String::from_utf8(text).unwrap();
        let last = text.lines().last().unwrap();
        assert_eq!(last, "capsule:x:1900000003:1900000004:capsule:/var/lib/x/home:/bin/sh");
        assert_eq!(text.lines().count(), 2);
        for home in ["/a:b", "/a\nroot2:x:0:0::/:/bin/sh"] {
            assert!(passwd(1, 1, Path::new(home)).is_err(), "{home:?}");
        }
    }
}
