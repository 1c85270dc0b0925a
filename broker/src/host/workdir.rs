//! The accessible workdir: where it is, who owns it, and how each role gets to see it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use confine::mount::{Attributes, IdMap};

use super::dirs::Dir;
use super::uids::{Id, Ids};
use crate::refusal::Refusal;

/// The accessible workdir, held by descriptor.
#[derive(Debug)]
pub(crate) struct Workdir {
    /// The directory.
    pub(crate) dir: Dir,
    /// Owner on disk.
    pub(crate) owner: (u32, u32),
    /// Made by this launch: removed again if the launch fails.
    made: Option<(Dir, String)>,
}

/// How roles that see the workdir are identified.
#[derive(Debug)]
pub(crate) enum Sharing {
    /// Each under its own id, through id-mapped mounts.
    Mapped {
        /// For sandbox-host.
        sandbox_host: IdMap,
        /// For programs.
        programs: IdMap,
        /// For the fileserver.
        fileserver: IdMap,
    },
    /// All as the owner, since the file system refuses id-mapping.
    Owner,
    /// All as the user who started the broker, who is the owner.
    User,
}

/// Whose a workdir is that the broker makes, and whose an existing one must be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Owner {
    /// Made: its parent's owner or, if that is root, this id. An existing one keeps its own.
    ParentsOr(u32),
    /// Always this one.
    User(Id),
}

impl Workdir {
    /// Opens `--workdir`, or makes `<manifest dir>/workdir/<session>`.
    ///
    /// # Errors
    /// `E-IO-*`.
    pub(crate) fn open(
        given: Option<&Path>,
        manifest_dir: &Path,
        session: &str,
        whose: Owner,
    ) -> Result<Workdir, Refusal> {
        match given {
            Some(path) if path.symlink_metadata().is_ok() || path.parent().is_none() => {
                let dir = Dir::open(path).map_err(|error| Refusal::io(path.display(), &error))?;
                let owner = dir.owner().map_err(|error| Refusal::io(path.display(), &error))?;
                if let Owner::User((uid, _)) = whose
                    && owner.0 != uid
                {
                    return Err(Refusal::new("E-IO-002", path.display().to_string(), "it is not yours")
                        .hint("every process of an ordinary user's session has that user's id: choose a directory of your own"));
                }
                Ok(Workdir { dir, owner, made: None })
            }
            Some(path) => Workdir::make(path, whose),
            None => Workdir::make(&manifest_dir.join("workdir").join(session), whose),
        }
    }

    /// A made workdir gets its parent's owner or, if that is root, the first id of the range (`docs/decisions.md`, Workdir).
    fn make(path: &Path, whose: Owner) -> Result<Workdir, Refusal> {
        let attempt = || -> io::Result<Workdir> {
            let path = std::path::absolute(path)?;
            let name = path.file_name().and_then(|name| name.to_str()).ok_or(io::ErrorKind::InvalidInput)?;
            let parent_path = path.parent().unwrap_or(Path::new("/"));
            std::fs::create_dir_all(parent_path)?;
            let parent = Dir::open(parent_path)?;
            let owner = match (whose, parent.owner()?) {
                (Owner::User(user), _) => user,
                (Owner::ParentsOr(id), (0, _)) => (id, id),
                (Owner::ParentsOr(_), owner) => owner,
            };
            let dir = parent.make_new(name, 0o750)?;
            dir.give(owner)?;
            Ok(Workdir { dir, owner, made: Some((parent, name.to_owned())) })
        };
        attempt().map_err(|error| Refusal::io(path.display(), &error))
    }

    /// Refuses a workdir that contains one of our own directories or lies in one: what the capsule may write would then be
    /// what we rely on.
    ///
    /// # Errors
    /// `E-IO-002` naming both.
    pub(crate) fn refuse_overlap(&self, ours: &[&Path]) -> Result<(), Refusal> {
        let workdir = self.dir.path();
        for other in ours {
            let other: PathBuf = other.canonicalize().unwrap_or_else(|_| other.to_path_buf());
            if workdir.starts_with(&other) || other.starts_with(workdir) {
                let reason = format!("it overlaps {}, which the runtime relies on", other.display());
                return Err(Refusal::new("E-IO-002", workdir.display().to_string(), reason)
                    .hint("choose a directory of its own for --workdir, or move --state-dir, --cache-dir and --run-dir"));
            }
        }
        Ok(())
    }

    /// Finds out whether the file system takes id-mapped mounts.
    ///
    /// # Errors
    /// `E-IO-002` if it does not and the owner is root: then no role could own the files without being root.
    pub(crate) fn sharing(&self, ids: &Ids) -> Result<Sharing, Refusal> {
        let map = |id: Id| confine::mount::id_map(self.owner, id);
        let attempt = || -> io::Result<Sharing> {
            let sharing = Sharing::Mapped {
                sandbox_host: map(ids.sandbox_host)?,
                programs: map(ids.programs)?,
                fileserver: map(ids.fileserver)?,
            };
            if let Sharing::Mapped { fileserver, .. } = &sharing {
                drop(tree(&self.dir, Some(fileserver), true)?);
            }
            Ok(sharing)
        };
        match attempt() {
            Ok(sharing) => Ok(sharing),
            Err(error) if error.raw_os_error() == Some(EINVAL) && self.owner.0 != 0 && self.owner.1 != 0 => {
                Ok(Sharing::Owner)
            }
            Err(error) => {
                let path = self.dir.path().display().to_string();
                let refusal =
                    Refusal::new("E-IO-002", path, format!("it cannot be shown under other ids: {error}"));
                Err(if self.owner.0 == 0 || self.owner.1 == 0 {
                    refusal.hint("the directory belongs to root: give it to another user and group (chown), or use ext4, xfs or tmpfs")
                } else {
                    refusal
                })
            }
        }
    }

    /// The session serves: a made workdir stays.
    pub(crate) fn keep(&mut self) {
        self.made = None;
    }

    /// Takes a made workdir back after a failed launch.
    pub(crate) fn undo(&self) {
        if let Some((parent, name)) = &self.made {
            let _ = parent.remove(name);
        }
    }
}

/// `EINVAL`: what `mount_setattr` says where a file system refuses id-mapping.
const EINVAL: i32 = 22;

/// A detached mount of a directory for one role.
pub(crate) fn tree(dir: &Dir, map: Option<&IdMap>, read_only: bool) -> io::Result<OwnedFd> {
    confine::mount::tree(dir.as_fd(), map, Attributes { read_only })
}

impl Sharing {
    /// The map for sandbox-host.
    pub(crate) fn sandbox_host(&self) -> Option<&IdMap> {
        match self {
            Sharing::Mapped { sandbox_host, .. } => Some(sandbox_host),
            Sharing::Owner | Sharing::User => None,
        }
    }

    /// The map for programs.
    pub(crate) fn programs(&self) -> Option<&IdMap> {
        match self {
            Sharing::Mapped { programs, .. } => Some(programs),
            Sharing::Owner | Sharing::User => None,
        }
    }

    /// The map for the fileserver.
    pub(crate) fn fileserver(&self) -> Option<&IdMap> {
        match self {
            Sharing::Mapped { fileserver, .. } => Some(fileserver),
            Sharing::Owner | Sharing::User => None,
        }
    }
}
