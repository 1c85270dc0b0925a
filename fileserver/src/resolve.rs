//! Where does a path lead? A walk by descriptors, component by component, in which every link is read and followed by us.
//!
//! Nothing here ever holds a descriptor of a directory that is not at or below the place the walk started from: `..` goes
//! back to a descriptor we already passed, and what lies above the start is only ever compared as text. So there is no
//! moment at which a directory that is swapped for a link could lead the walk out (`seed: Path resolution 3`).

use std::collections::VecDeque;
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use ipc::edge::control::ExportRoot;
use ipc::types::{Class, MAX_RELPATH, PlaneCode, RelPath};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// Links followed in one resolution, as many as the kernel follows.
const MAX_LINKS: usize = 40;

/// Descriptors of passed directories a walk keeps; those further up are found again by their names. Five workers hold at most
/// one walk each, a listing one and one for a link in each of its two threads: well below the limit of 256 descriptors.
const MAX_OPEN: usize = 16;

/// Looks a name up without following it and without opening what it names.
const LOOK: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// What a symbolic link below the root means (`docs/decisions.md`, Symbolic links).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    /// Follow it; only where the whole path ends decides.
    Follow,
    /// Refuse it on sight.
    Refuse,
}

impl From<Class> for Links {
    fn from(class: Class) -> Self {
        match class {
            Class::Scoped => Links::Refuse,
            Class::Advisory | Class::Sealed => Links::Follow,
        }
    }
}

/// The code for a lookup that failed inside the root.
pub(crate) fn code(errno: Errno) -> PlaneCode {
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::LOOP => PlaneCode::NotFound,
        _ => PlaneCode::IoError,
    }
}

/// An object below the root that was found, not opened for reading.
#[derive(Debug)]
pub(crate) struct Node {
    /// The directory that holds it.
    pub(crate) parent: Arc<OwnedFd>,
    /// Its name there.
    pub(crate) name: Vec<u8>,
    /// What it was when it was found.
    pub(crate) stat: Stat,
}

/// What a walk ended at.
#[derive(Debug)]
pub(crate) enum Found {
    /// The directory on top of the walk.
    Directory,
    /// A regular file.
    Regular(Node),
}

/// Looks at one name, without following or opening what it names.
pub(crate) fn glance(parent: BorrowedFd<'_>, name: &[u8]) -> Result<Stat, Errno> {
    rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
}

/// Looks up one name: a descriptor that reads nothing, and what it is.
fn look(parent: BorrowedFd<'_>, name: &[u8]) -> Result<(OwnedFd, Stat), Errno> {
    let fd = rustix::fs::openat(parent, name, LOOK, Mode::empty())?;
    let stat = rustix::fs::fstat(&fd)?;
    Ok((fd, stat))
}

/// The kind of an object.
pub(crate) fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Opens a directory by a name that must not be a link.
pub(crate) fn step(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(parent, name, LOOK | OFlags::DIRECTORY, Mode::empty())
}

/// The export root as it is now, and what its place is called.
#[derive(Debug)]
pub(crate) struct Root<'e> {
    directory: Arc<OwnedFd>,
    export: Option<&'e ExportRoot>,
    /// Names from the workdir to the root, without links.
    names: Vec<Vec<u8>>,
    /// Worked out when a path leaves the root, which few do.
    place: OnceLock<Place>,
}

impl Root<'_> {
    fn place(&self) -> &Place {
        self.place
            .get_or_init(|| self.export.map_or_else(Place::default, |export| Place::new(export, &self.names)))
    }

    /// The root directory.
    pub(crate) fn directory(&self) -> &Arc<OwnedFd> {
        &self.directory
    }
}

/// The names by which a path that left the root may come back into it. Only text: nothing outside is ever looked up.
#[derive(Debug, Default)]
struct Place {
    /// Names from the furthest known ancestor down to the root.
    chain: Vec<Vec<u8>>,
    /// Whether that ancestor is the host's `/`, whose parent is itself.
    from_top: bool,
    /// Index in `chain` at which the workdir is.
    workdir: usize,
    /// The root as declared, below the workdir; differs from the chain's end if a component is a link.
    declared: Vec<Vec<u8>>,
    /// The root's canonical host path at launch.
    host: Option<Vec<Vec<u8>>>,
}

impl Place {
    fn new(export: &ExportRoot, names: &[Vec<u8>]) -> Self {
        let host: Option<Vec<Vec<u8>>> = export.host_path.as_ref().map(|path| {
            path.as_bytes()
                .split(|byte| *byte == b'/')
                .filter(|part| !plain(part))
                .map(<[u8]>::to_vec)
                .collect()
        });
        let (chain, from_top) = match &host {
            Some(host) if host.ends_with(names) => (host.clone(), true),
            _ => (names.to_vec(), false),
        };
        let workdir = chain.len().saturating_sub(names.len());
        let declared = export.components.iter().map(|part| part.clone().into_bytes()).collect();
        Place { chain, from_top, workdir, declared, host }
    }
}

/// Finds the root anew from the workdir: it may have been created, removed or replaced since the last request.
///
/// Links among the root's own components are followed at every class (the launch accepted them) as long as they stay in the
/// workdir.
///
/// # Errors
/// The refusal of a read below it.
pub(crate) fn root<'e>(workdir: &Arc<OwnedFd>, export: &'e ExportRoot) -> Result<Root<'e>, PlaneCode> {
    let nowhere =
        Root { directory: Arc::clone(workdir), export: None, names: Vec::new(), place: OnceLock::new() };
    let mut walk = Walk::new(&nowhere, Links::Follow);
    walk.wants = Wants::Directory;
    walk.pending.extend(export.components.iter().map(|part| part.clone().into_bytes()));
    match walk.run() {
        Ok(Found::Directory) => {}
        Ok(Found::Regular(_)) | Err(PlaneCode::NotARegularFile) => return Err(PlaneCode::NotFound),
        Err(code) => return Err(code),
    }
    Ok(Root {
        directory: walk.levels.top()?,
        export: Some(export),
        names: walk.levels.names(),
        place: OnceLock::new(),
    })
}

/// Whether a component goes nowhere.
fn plain(part: &[u8]) -> bool {
    part.is_empty() || part == b"."
}

/// The directories from the start of a walk down to where it is.
#[derive(Debug)]
pub(crate) struct Levels {
    levels: Vec<Level>,
    start: Arc<OwnedFd>,
}

#[derive(Debug)]
struct Level {
    name: Vec<u8>,
    directory: Option<Arc<OwnedFd>>,
}

impl Levels {
    pub(crate) fn new(start: &Arc<OwnedFd>) -> Self {
        Levels { levels: Vec::new(), start: Arc::clone(start) }
    }

    fn names(&self) -> Vec<Vec<u8>> {
        self.levels.iter().map(|level| level.name.clone()).collect()
    }

    /// Goes down into a directory that was just opened.
    pub(crate) fn push(&mut self, name: Vec<u8>, directory: Arc<OwnedFd>) {
        self.levels.push(Level { name, directory: Some(directory) });
        let far = self.levels.len().checked_sub(MAX_OPEN + 1);
        if let Some(level) = far.and_then(|index| self.levels.get_mut(index)) {
            level.directory = None;
        }
    }

    /// Goes up one level; `false` at the start.
    pub(crate) fn pop(&mut self) -> bool {
        self.levels.pop().is_some()
    }

    /// Goes back to the start.
    fn clear(&mut self) {
        self.levels.clear();
    }

    /// The directory the walk is in. One that was passed long ago is found again from the start by the names that led to
    /// it, none of which may be a link now.
    ///
    /// # Errors
    /// The refusal if it is not there any more.
    pub(crate) fn top(&mut self) -> Result<Arc<OwnedFd>, PlaneCode> {
        match self.levels.last() {
            None => return Ok(Arc::clone(&self.start)),
            Some(Level { directory: Some(directory), .. }) => return Ok(Arc::clone(directory)),
            Some(Level { directory: None, .. }) => {}
        }
        let mut directory = Arc::clone(&self.start);
        let keep_from = self.levels.len().saturating_sub(MAX_OPEN / 2);
        for (index, level) in self.levels.iter_mut().enumerate() {
            directory = Arc::new(step(directory.as_fd(), &level.name).map_err(code)?);
            if index >= keep_from {
                level.directory = Some(Arc::clone(&directory));
            }
        }
        Ok(directory)
    }
}

/// What a walk is made for; it decides what the last name is tried as first, and no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wants {
    File,
    Directory,
}

/// One resolution in progress.
#[derive(Debug)]
pub(crate) struct Walk<'r> {
    levels: Levels,
    root: &'r Root<'r>,
    links: Links,
    wants: Wants,
    followed: usize,
    /// What is left of the path, with what was put in front of it by links.
    pending: VecDeque<Vec<u8>>,
    /// Set while the path is above the root.
    outside: Option<Outside>,
}

/// Where a path that left the root is, as text.
#[derive(Debug, Clone, Copy)]
struct Outside {
    /// So many names of the chain lead there.
    chain: Option<usize>,
    /// So many names of the declared root, from the workdir, lead there.
    declared: Option<usize>,
}

impl<'r> Walk<'r> {
    fn new(root: &'r Root<'r>, links: Links) -> Self {
        Walk {
            levels: Levels::new(&root.directory),
            root,
            links,
            wants: Wants::File,
            followed: 0,
            pending: VecDeque::new(),
            outside: None,
        }
    }

    /// A walk to a path below the root.
    ///
    /// # Errors
    /// `not_found` for a path no lookup takes.
    pub(crate) fn to(root: &'r Root<'r>, links: Links, path: &RelPath) -> Result<Self, PlaneCode> {
        if path.as_str().len() > MAX_RELPATH {
            return Err(PlaneCode::NotFound);
        }
        let mut walk = Walk::new(root, links);
        walk.pending.extend(path.components().map(|part| part.as_bytes().to_vec()));
        Ok(walk)
    }

    /// The path, free of links, of a name in the directory the walk is in; `None` if it is no text or no path that could
    /// be asked for.
    pub(crate) fn path_of(&self, name: Vec<u8>) -> Option<RelPath> {
        let mut names = self.levels.names();
        names.push(name);
        let path = String::from_utf8(names.join(&b'/')).ok()?;
        RelPath::new(path).ok().filter(|path| path.as_str().len() <= MAX_RELPATH)
    }

    /// Looks the last name up once more, after it was found to have changed.
    pub(crate) fn again(&mut self, name: Vec<u8>) {
        self.pending.push_front(name);
    }

    /// Walks to the end.
    ///
    /// # Errors
    /// The refusal.
    pub(crate) fn run(&mut self) -> Result<Found, PlaneCode> {
        while let Some(part) = self.pending.pop_front() {
            if plain(&part) {
                continue;
            }
            if let Some(outside) = self.outside {
                self.outside = self.outside_step(outside, &part)?;
                continue;
            }
            if part == b".." {
                if !self.levels.pop() {
                    let edge = Outside { chain: Some(self.root.place().chain.len()), declared: None };
                    self.outside = Some(self.outside_step_up(edge)?);
                }
                continue;
            }
            if let Some(node) = self.inside_step(part)? {
                return Ok(Found::Regular(node));
            }
        }
        if self.outside.is_some() { Err(PlaneCode::OutsideRoot) } else { Ok(Found::Directory) }
    }

    /// One name below the root: goes into a directory, puts a link's target in front of the path, or ends at a file.
    fn inside_step(&mut self, name: Vec<u8>) -> Result<Option<Node>, PlaneCode> {
        let parent = self.levels.top()?;
        let last = self.pending.is_empty();
        if !last || self.wants == Wants::Directory {
            match step(parent.as_fd(), &name) {
                Ok(directory) => {
                    self.levels.push(name, Arc::new(directory));
                    return Ok(None);
                }
                // A link or no directory: looked at below.
                Err(Errno::NOTDIR) => {}
                Err(errno) => return Err(code(errno)),
            }
        }
        if last {
            let stat = glance(parent.as_fd(), &name).map_err(code)?;
            match kind(&stat) {
                FileType::RegularFile => return Ok(Some(Node { parent, name, stat })),
                // Followed or entered by the descriptor that shows what it is.
                FileType::Symlink | FileType::Directory => {}
                _ => return Err(PlaneCode::NotARegularFile),
            }
        }
        let (fd, stat) = look(parent.as_fd(), &name).map_err(code)?;
        match kind(&stat) {
            FileType::Symlink => self.follow(&fd).map(|()| None),
            FileType::Directory => {
                self.levels.push(name, Arc::new(fd));
                Ok(None)
            }
            _ if !last => Err(PlaneCode::NotFound),
            FileType::RegularFile => Ok(Some(Node { parent, name, stat })),
            _ => Err(PlaneCode::NotARegularFile),
        }
    }

    /// Puts the target of exactly the link that was looked at in front of the rest of the path.
    fn follow(&mut self, link: &OwnedFd) -> Result<(), PlaneCode> {
        if self.links == Links::Refuse {
            return Err(PlaneCode::SymlinkRefused);
        }
        self.followed += 1;
        if self.followed > MAX_LINKS {
            return Err(PlaneCode::NotFound);
        }
        let target: CString = rustix::fs::readlinkat(link, c"", Vec::new()).map_err(code)?;
        let mut parts: VecDeque<&[u8]> = target.as_bytes().split(|byte| *byte == b'/').collect();
        if target.as_bytes().starts_with(b"/") {
            // An absolute target stays inside only by beginning with the root's own recorded path.
            for name in self.root.place().host.as_ref().ok_or(PlaneCode::OutsideRoot)? {
                while parts.front().is_some_and(|part| plain(part)) {
                    parts.pop_front();
                }
                if parts.pop_front() != Some(name) {
                    return Err(PlaneCode::OutsideRoot);
                }
            }
            self.levels.clear();
        }
        for part in parts.into_iter().rev() {
            self.pending.push_front(part.to_vec());
        }
        Ok(())
    }

    /// One step of a path that is above the root: up, or down along the root's own names; `Ok(None)` is back in the root.
    ///
    /// The answer does not depend on what exists there: leaving is the finding, and anything else would let a reader ask
    /// about files outside.
    fn outside_step(&mut self, at: Outside, part: &[u8]) -> Result<Option<Outside>, PlaneCode> {
        if part == b".." {
            return self.outside_step_up(at).map(Some);
        }
        let along = |names: &[Vec<u8>], index: Option<usize>| {
            let index = index?;
            (names.get(index).map(Vec::as_slice) == Some(part)).then_some(index + 1)
        };
        let declared_from = if at.chain == Some(self.root.place().workdir) { Some(0) } else { at.declared };
        let next = Outside {
            chain: along(&self.root.place().chain, at.chain),
            declared: along(&self.root.place().declared, declared_from),
        };
        let back = next.chain == Some(self.root.place().chain.len())
            || next.declared.is_some_and(|index| index == self.root.place().declared.len());
        if back {
            self.levels.clear();
            return Ok(None);
        }
        if next.chain.is_none() && next.declared.is_none() {
            return Err(PlaneCode::OutsideRoot);
        }
        Ok(Some(next))
    }

    /// Up from where the path is above the root, as far as it is known what lies there.
    fn outside_step_up(&self, at: Outside) -> Result<Outside, PlaneCode> {
        let index = at.chain.ok_or(PlaneCode::OutsideRoot)?;
        match index.checked_sub(1) {
            Some(index) => Ok(Outside { chain: Some(index), declared: None }),
            None if self.root.place().from_top => Ok(Outside { chain: Some(0), declared: None }),
            None => Err(PlaneCode::OutsideRoot),
        }
    }
}
