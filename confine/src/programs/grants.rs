//! The Landlock layer of the classes `scoped` and `sealed`: what programs may touch, everything else is refused.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use landlock::{ABI, Access, AccessFs, BitFlags};
use rustix::fs::{CWD, FileType, Mode, OFlags};

use super::closure::Closure;
use crate::landlocked::{self, Network};
use crate::{ConfineError, composed};

/// Data that programs of every distribution read and that says nothing about the host's people or services.
const BASE: [&str; 12] = [
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/terminfo",
    "/lib/terminfo",
    "/usr/lib/locale",
    "/usr/lib/gconv",
    "/usr/lib64/gconv",
    "/usr/lib/x86_64-linux-gnu/gconv",
    "/usr/lib/aarch64-linux-gnu/gconv",
    "/usr/share/locale",
    "/usr/share/terminfo",
    "/usr/share/zoneinfo",
];

/// What programs may touch. Paths are absolute, canonical host paths chosen by the broker; a symbolic link in one is
/// refused. `docs/decisions.md`, containment classes.
#[derive(Debug, Clone, Default)]
pub struct Grants {
    /// Directories a program may read and write without executing anything: workdir, session home, `/tmp`. A missing one
    /// is an error.
    pub writable: Vec<PathBuf>,
    /// Whether what lies in the writable directories may be executed (`capabilities.filesystem.workdir_exec`).
    pub writable_executes: bool,
    /// Whether Unix sockets may be made in the writable directories, and connected to there
    /// (`capabilities.network.unix_sockets`).
    pub sockets: bool,
    /// Directories a program may read: the runtime directory. A missing one is dropped.
    pub readable: Vec<PathBuf>,
    /// Directories of files that a program may read by name and not list. A missing one is dropped.
    pub unlisted: Vec<PathBuf>,
    /// The root is a composed one ([`crate::View::Composed`]), whose system trees may be read and listed whole.
    pub composed: bool,
    /// Allowed programs. [`restrict`] finds what each needs to start (ELF interpreter, `#!` interpreter, libraries).
    pub programs: Vec<PathBuf>,
}

/// A derived or optional grant that could not be opened: programs get less, never more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped(pub PathBuf);

/// What [`restrict`] did.
#[derive(Debug, Clone)]
pub struct Granted {
    /// The Landlock version that was enforced.
    pub landlock_abi: u32,
    /// Files that may be executed: the programs and their interpreters.
    pub executable: Vec<PathBuf>,
    /// Grants that were dropped because nothing is there.
    pub dropped: Vec<Dropped>,
}

/// Restricts the calling thread and everything it starts to the grants, the reader's own `/proc`, and either a fixed base of
/// read-only data files, `/dev/null` (read and write), `/dev/zero` and `/dev/urandom` (read), or what a composed root holds.
/// Nothing but the programs, their interpreters and, if so granted, the writable directories may be executed. Call it
/// single-threaded, once.
///
/// Cgroup files, pipes and sockets that are open already stay usable: Landlock judges the opening.
///
/// # Errors
/// [`ConfineError`] if a writable directory or a program is missing or the kernel refuses; the runner must exit.
pub fn restrict(grants: &Grants) -> Result<Granted, ConfineError> {
    let (abi, landlock_abi) = landlocked::abi()?;
    let mut rules = Rules { abi, opened: Vec::new(), dropped: Vec::new() };
    let execute = AccessFs::ReadFile | AccessFs::Execute;
    let mut writable = landlocked::read_write(abi);
    if grants.writable_executes {
        writable |= AccessFs::Execute;
    }
    if grants.sockets {
        writable |= (AccessFs::MakeSock | AccessFs::ResolveUnix) & AccessFs::from_all(abi);
    }
    for directory in &grants.writable {
        rules.required(directory, writable)?;
    }
    let mut closure = Closure::default();
    for program in &grants.programs {
        rules.required(program, execute)?;
        closure.add(program);
    }
    for path in &closure.executable {
        rules.optional(path, execute);
    }
    for path in &grants.readable {
        rules.optional(path, landlocked::read());
    }
    for path in &grants.unlisted {
        rules.optional(path, AccessFs::ReadFile.into());
    }
    // The system's trees are granted whole in a composed root.
    if !grants.composed {
        for path in &closure.readable {
            rules.optional(path, AccessFs::ReadFile.into());
        }
    }
    // A host need not have all of these; what it lacks is nothing an operator has to hear of.
    let asked = rules.dropped.len();
    if grants.composed {
        rules.composed_root();
    } else {
        rules.base();
    }
    rules.dropped.truncate(asked);
    rules.required(Path::new("/proc"), landlocked::read())?;

    let opened = rules.opened.iter().map(|(fd, rights)| (fd.as_fd(), *rights));
    landlocked::enforce(abi, Network::Free, opened)?;
    let executable: BTreeSet<PathBuf> =
        closure.executable.into_iter().chain(grants.programs.iter().cloned()).collect();
    Ok(Granted { landlock_abi, executable: executable.into_iter().collect(), dropped: rules.dropped })
}

/// Opens an absolute path component by component, for the runner's filter has no `openat2`; a symbolic link in it is refused.
fn open_plainly(path: &Path) -> io::Result<(OwnedFd, FileType)> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut current = rustix::fs::openat(CWD, c"/", flags, Mode::empty())?;
    for component in path.components() {
        match component {
            Component::RootDir => {}
            Component::Normal(name) => current = rustix::fs::openat(&current, name, flags, Mode::empty())?,
            Component::Prefix(_) | Component::CurDir | Component::ParentDir => {
                return Err(io::ErrorKind::InvalidInput.into());
            }
        }
        // A link opened this way is a descriptor of the link itself.
        if FileType::from_raw_mode(rustix::fs::fstat(&current)?.st_mode) == FileType::Symlink {
            return Err(io::Error::from_raw_os_error(libc::ELOOP));
        }
    }
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&current)?.st_mode);
    Ok((current, kind))
}

struct Rules {
    abi: ABI,
    opened: Vec<(OwnedFd, BitFlags<AccessFs>)>,
    dropped: Vec<Dropped>,
}

impl Rules {
    /// Opens a place without following a link; the rule then holds for what is there now.
    fn open(&mut self, path: &Path, rights: BitFlags<AccessFs>) -> io::Result<()> {
        let (fd, kind) = open_plainly(path)?;
        let directory = kind == FileType::Directory;
        // The kernel refuses rights of directories on a file.
        let rights = if directory { rights } else { rights & AccessFs::from_file(self.abi) };
        self.opened.push((fd, rights));
        Ok(())
    }

    /// What every program of class `scoped` may read, and three devices.
    fn base(&mut self) {
        for path in BASE {
            if let Ok(path) = Path::new(path).canonicalize() {
                self.optional(&path, landlocked::read());
            }
        }
        self.optional(Path::new("/dev/null"), self.device());
        self.optional(Path::new("/dev/zero"), AccessFs::ReadFile.into());
        self.optional(Path::new("/dev/urandom"), AccessFs::ReadFile.into());
    }

    /// What a composed root holds beside the session's own trees. A link is none of them: it leads to what is granted.
    fn composed_root(&mut self) {
        for path in composed::SYSTEM.iter().chain(&composed::ETC).chain(&composed::MADE) {
            self.optional(Path::new(path), landlocked::read());
        }
        for (path, _, written) in composed::DEVICES {
            let rights = if written { self.device() } else { AccessFs::ReadFile.into() };
            self.optional(Path::new(path), rights);
        }
    }

    /// Rights on a device that is written, too.
    fn device(&self) -> BitFlags<AccessFs> {
        (AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev) & AccessFs::from_all(self.abi)
    }

    fn required(&mut self, path: &Path, rights: BitFlags<AccessFs>) -> Result<(), ConfineError> {
        self.open(path, rights).map_err(|cause| ConfineError {
            step: "grant to programs",
            cause: io::Error::new(cause.kind(), format!("{}: {cause}", path.display())),
        })
    }

    fn optional(&mut self, path: &Path, rights: BitFlags<AccessFs>) {
        if self.open(path, rights).is_err() {
            self.dropped.push(Dropped(path.to_owned()));
        }
    }
}
