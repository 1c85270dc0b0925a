//! The file system a role lives in: a private, read-only root with nothing but the trees it was given, or (runner) the
//! host's root with the trees over it and a procfs of its own.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags,
};

use crate::sys;

/// The trees, and where they go.
pub(crate) type Trees = Vec<(PathBuf, OwnedFd)>;

/// Host files that egress gets a copy of.
const EGRESS_FILES: [&str; 3] = ["/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt"];
/// The most bytes of one of them.
const COPY_LIMIT: u64 = 4 * 1024 * 1024;

/// Nothing mounted from here on is seen outside, and nothing mounted outside is seen here.
pub(crate) fn detach_propagation() -> io::Result<()> {
    Ok(rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?)
}

fn file_system(kind: &str, options: &[(&str, &str)], attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        rustix::mount::fsconfig_set_string(context.as_fd(), *key, *value)?;
    }
    rustix::mount::fsconfig_create(context.as_fd())?;
    Ok(rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

fn attach(mount: BorrowedFd<'_>, target: BorrowedFd<'_>) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(rustix::mount::move_mount(mount, c"", target, c"", flags)?)
}

/// Makes the directories of an absolute path below a descriptor and returns the last one.
fn directories(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut current = rustix::fs::openat(root, c".", flags, Mode::empty())?;
    for component in path.components() {
        match component {
            Component::RootDir => {}
            Component::Normal(name) => {
                match rustix::fs::mkdirat(&current, name, Mode::from_raw_mode(0o755)) {
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

/// Builds the private root, moves the trees in, and makes it the only thing there is.
pub(crate) fn enter_private(trees: Trees, host_files: bool) -> io::Result<()> {
    let plain = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let options = [("mode", "0755"), ("size", "16m"), ("nr_inodes", "64")];
    let root = file_system("tmpfs", &options, plain)?;
    // What is made in it is for the role to read: the mask that a role starts with would keep it out.
    let mask = rustix::process::umask(Mode::from_raw_mode(0o022));
    // Attached over the old root, where a descriptor still reaches it: the trees can only go into what is attached.
    let old = rustix::fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    attach(root.as_fd(), old.as_fd())?;
    if host_files {
        for file in EGRESS_FILES {
            copy(root.as_fd(), Path::new(file))?;
        }
    }
    for (path, tree) in trees {
        let target = directories(root.as_fd(), &path)?;
        attach(tree.as_fd(), target.as_fd())?;
    }
    rustix::process::umask(mask);
    rustix::process::fchdir(root.as_fd())?;
    rustix::process::pivot_root(c".", c".")?;
    // The old root now lies over the new one, where the current directory still is.
    rustix::mount::unmount(c".", UnmountFlags::DETACH)?;
    sys::mount_setattr(root.as_fd(), libc::MOUNT_ATTR_RDONLY, None, false)?;
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
    let directory = directories(root, parent)?;
    let copy = rustix::fs::openat(&directory, name, flags, Mode::from_raw_mode(0o644))?;
    std::io::Write::write_all(&mut fs::File::from(copy), &bytes)
}

/// The runner's root is the host's: the trees go over the host's own paths, and `/proc` shows this PID namespace only.
/// Returns whether memory files are not executable here unless they ask to be.
pub(crate) fn enter_over_host(trees: Trees) -> io::Result<bool> {
    let memory_files = forbid_executable_memory_files()?;
    let procfs = file_system(
        "proc",
        &[("hidepid", "invisible"), ("subset", "pid")],
        MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC,
    )?;
    attach(procfs.as_fd(), existing(Path::new("/proc"))?.as_fd())?;
    let masks = mask_closed_directories(&trees)?;
    let umask = rustix::process::umask(Mode::from_raw_mode(0o022));
    for (path, tree) in trees {
        let mask = masks.iter().find_map(|(closed, root)| Some((root, path.strip_prefix(closed).ok()?)));
        let target = match mask {
            Some((root, below)) => directories(root.as_fd(), below)?,
            None => existing(&path)?,
        };
        attach(tree.as_fd(), target.as_fd())?;
    }
    rustix::process::umask(umask);
    for (_, root) in &masks {
        sys::mount_setattr(root.as_fd(), libc::MOUNT_ATTR_RDONLY, None, false)?;
    }
    rustix::process::chdir(c"/")?;
    Ok(memory_files)
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
    let plain = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let mut masks = Trees::new();
    for directory in closed {
        let root = file_system("tmpfs", &[("mode", "0755"), ("size", "1m"), ("nr_inodes", "64")], plain)?;
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
fn forbid_executable_memory_files() -> io::Result<bool> {
    match fs::write(MEMFD_NOEXEC, "1") {
        Ok(()) => {}
        // Linux before 6.3, or a read-only /proc/sys: unless it holds already, memfd_create is answered ENOSYS.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EROFS)) => {}
        Err(error) => return Err(error),
    }
    Ok(fs::read_to_string(MEMFD_NOEXEC).is_ok_and(|value| matches!(value.trim(), "1" | "2")))
}
