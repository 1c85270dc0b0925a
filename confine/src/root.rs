//! The file system a role lives in: a private, read-only root with nothing but the trees it was given, or (runner, below
//! class `sealed`) the host's root with the trees over it and a procfs of its own. `composed` is the third.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags,
};

use crate::{protect, sys};

/// The trees, and where they go.
pub(crate) type Trees = Vec<(PathBuf, OwnedFd)>;

/// Host files that egress gets a copy of.
const EGRESS_FILES: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];
/// The most bytes of one of them.
const COPY_LIMIT: u64 = 4 * 1024 * 1024;

/// Nothing mounted from here on is seen outside, and nothing mounted outside is seen here.
pub(crate) fn detach_propagation() -> io::Result<()> {
    Ok(rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?)
}

/// What no mount of ours has but where a line says so: set-id programs, devices, programs.
pub(crate) const PLAIN: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID
    .union(MountAttrFlags::MOUNT_ATTR_NODEV)
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

pub(crate) fn file_system(
    kind: &str,
    options: &[(&str, &str)],
    attributes: MountAttrFlags,
) -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        rustix::mount::fsconfig_set_string(context.as_fd(), *key, *value)?;
    }
    rustix::mount::fsconfig_create(context.as_fd())?;
    Ok(rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// A procfs of the caller's PID namespace that shows the reader its own processes and nothing of the machine.
pub(crate) fn procfs() -> io::Result<OwnedFd> {
    file_system("proc", &[("hidepid", "invisible"), ("subset", "pid")], PLAIN)
}

pub(crate) fn attach(mount: BorrowedFd<'_>, target: BorrowedFd<'_>) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(rustix::mount::move_mount(mount, c"", target, c"", flags)?)
}

/// Makes the directories of an absolute path below a descriptor and returns the last one.
pub(crate) fn directories(root: BorrowedFd<'_>, path: &Path, mode: u32) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut current = rustix::fs::openat(root, c".", flags, Mode::empty())?;
    for component in path.components() {
        match component {
            Component::RootDir => {}
            Component::Normal(name) => {
                match rustix::fs::mkdirat(&current, name, Mode::from_raw_mode(mode)) {
                    Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                    Err(errno) => return Err(errno.into()),
                }
                current = rustix::fs::openat(&current, name, flags, Mode::empty())?;
            }
            Component::Prefix(_) | Component::CurDir | Component::ParentDir => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a plain absolute path"));
            }
        }
    }
    Ok(current)
}

/// Directories on the way to a tree, which the role may list.
const OPEN: u32 = 0o755;

/// Builds the private root, moves the trees in, and makes it the only thing there is.
pub(crate) fn enter_private(trees: &Trees, read_only: &[PathBuf], host_files: bool) -> io::Result<()> {
    let options = [("mode", "0755"), ("size", "16m"), ("nr_inodes", "64")];
    let root = file_system("tmpfs", &options, PLAIN)?;
    // What is made in it is for the role to read: the mask that a role starts with would keep it out.
    let mask = rustix::process::umask(Mode::from_raw_mode(0o022));
    // Attached over the old root, where a descriptor still reaches it: the trees can only go into what is attached.
    let old = rustix::fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    attach(root.as_fd(), old.as_fd())?;
    if host_files {
        // There even where the host has neither: it is the place that the role may read.
        directories(root.as_fd(), Path::new("/etc"), OPEN)?;
        for file in EGRESS_FILES {
            copy(root.as_fd(), Path::new(file))?;
        }
    }
    for (path, tree) in trees {
        let target = directories(root.as_fd(), path, OPEN)?;
        attach(tree.as_fd(), target.as_fd())?;
    }
    protect::protect(trees, read_only)?;
    rustix::process::umask(mask);
    pivot(root.as_fd())
}

/// Makes a mounted, attached root the only thing there is, and read-only.
pub(crate) fn pivot(root: BorrowedFd<'_>) -> io::Result<()> {
    rustix::process::fchdir(root)?;
    rustix::process::pivot_root(c".", c".")?;
    // The old root now lies over the new one, where the current directory still is.
    rustix::mount::unmount(c".", UnmountFlags::DETACH)?;
    sys::mount_setattr(root, libc::MOUNT_ATTR_RDONLY, None, false)?;
    Ok(rustix::process::chdir(c"/")?)
}

/// Copies a host file to the same path below the new root; one that the host lacks is left out.
fn copy(root: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    use std::io::Read;
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(COPY_LIMIT).read_to_end(&mut bytes)?;
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    // Not through an O_PATH descriptor's own flags: the open below makes a fresh one.
    let directory = directories(root, parent, OPEN)?;
    let copy = rustix::fs::openat(&directory, name, flags, Mode::from_raw_mode(0o644))?;
    std::io::Write::write_all(&mut fs::File::from(copy), &bytes)
}

/// The runner's root is the host's: the trees go over the host's own paths, and `/proc` shows this PID namespace only.
/// `fixed` makes the host's own files read-only: there are changes that Landlock has no right for (modes, times, attributes),
/// and nothing else keeps an id from what it owns.
pub(crate) fn enter_over_host(trees: &Trees, read_only: &[PathBuf], fixed: bool) -> io::Result<()> {
    if fixed {
        sys::mount_setattr(existing(Path::new("/"))?.as_fd(), libc::MOUNT_ATTR_RDONLY, None, true)?;
    }
    attach(procfs()?.as_fd(), existing(Path::new("/proc"))?.as_fd())?;
    let masks = mask_closed_directories(trees)?;
    let umask = rustix::process::umask(Mode::from_raw_mode(0o022));
    for (path, tree) in trees {
        let mask = masks.iter().find_map(|(closed, root)| Some((root, path.strip_prefix(closed).ok()?)));
        let target = match mask {
            Some((root, below)) => directories(root.as_fd(), below, OPEN)?,
            None => existing(path)?,
        };
        attach(tree.as_fd(), target.as_fd())?;
    }
    protect::protect(trees, read_only)?;
    rustix::process::umask(umask);
    for (_, root) in &masks {
        sys::mount_setattr(root.as_fd(), libc::MOUNT_ATTR_RDONLY, None, false)?;
    }
    Ok(rustix::process::chdir(c"/")?)
}

/// Covers every directory that lies above a tree and is closed to others (`/root`, the state directory) with an empty one:
/// programs reach their trees by the host's own paths, and see nothing else of it. Returns each with the empty mount.
fn mask_closed_directories(trees: &Trees) -> io::Result<Trees> {
    let mut closed: Vec<PathBuf> = Vec::new();
    for (path, _) in trees {
        // From the root down: what lies in a closed directory is covered with it.
        let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
        above.reverse();
        for directory in above {
            let mode = rustix::fs::fstat(existing(directory)?)?.st_mode;
            if mode & 0o001 == 0 {
                closed.push(directory.to_path_buf());
                break;
            }
        }
    }
    closed.sort();
    closed.dedup();
    let mut masks = Trees::new();
    for directory in closed {
        let root = file_system("tmpfs", &[("mode", "0755"), ("size", "1m"), ("nr_inodes", "64")], PLAIN)?;
        attach(root.as_fd(), existing(&directory)?.as_fd())?;
        masks.push((directory, root));
    }
    Ok(masks)
}

/// A path of the host, without a link in it.
fn existing(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    Ok(rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?)
}

/// `vm.memfd_noexec` of the current PID namespace.
const MEMFD_NOEXEC: &str = "/proc/sys/vm/memfd_noexec";

/// Memory files of this PID namespace are not executable unless they ask to be, which the filter refuses. The setting
/// belongs to the caller's PID namespace whichever procfs it is written through. Returns whether it holds.
pub(crate) fn forbid_executable_memory_files() -> io::Result<bool> {
    match fs::write(MEMFD_NOEXEC, "1") {
        Ok(()) => {}
        // Linux before 6.3, a read-only /proc/sys, or an ordinary user: unless it holds already, memfd_create is answered
        // ENOSYS.
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::ENOENT | libc::EROFS | libc::EACCES | libc::EPERM)
            ) => {}
        Err(error) => return Err(error),
    }
    Ok(fs::read_to_string(MEMFD_NOEXEC).is_ok_and(|value| matches!(value.trim(), "1" | "2")))
}
