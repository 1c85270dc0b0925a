//! The budget of what a capsule keeps: everything below the accessible workdir and the session directory, in bytes
//! (`capabilities.resources.workdir_max_bytes`).
//!
//! It is counted before a program starts, if the last count is older than ten seconds, and every ten seconds while a task runs or
//! a session process does. Whoever is over it once stays so: nothing starts any more, and the session ends (`E-RUN-013`).
//!
//! The walk is made here and not by a process beside the programs, which could stop it: they share an id
//! (`docs/decisions.md`, the workdir's budget). It has a thread of its own, since components could hold all those that they share.

use std::cell::Cell;
use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipc::edge::host_broker::WorkdirSpent;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, RawDirEntry, Stat};
use rustix::io::Errno;
use tokio::sync::{Mutex, oneshot};

use crate::driver::GRACE;
use crate::fault::Fault;
use crate::gate::Refusal;
use crate::session::Session;

/// The oldest count that still speaks for a program that is about to start, and the time between two counts.
const INTERVAL: Duration = Duration::from_secs(10);
/// How long one walk may take.
const LONGEST: Duration = Duration::from_secs(60);
/// What every entry of a directory counts at least: a name and an inode are kept somewhere, too, and no number of empty files may be
/// free.
const LEAST: u64 = 256;
/// Stack of a walk: a few hundred bytes for each level.
const STACK: usize = 1024 * 1024;
/// The deepest directory that is counted; below it lies what no path of ordinary length names.
const MAX_DEPTH: usize = 256;
/// Files with several names that are remembered, so that each is counted once; of more, every name counts.
const MAX_LINKED: usize = 65_536;

/// What was counted, and when.
pub(crate) struct Budget {
    max: u64,
    roots: Arc<[OwnedFd]>,
    /// When it was counted last.
    counted: Cell<Option<Instant>>,
    spent: Cell<Option<WorkdirSpent>>,
    /// One walk at a time; whoever waits for it uses its count.
    walking: Mutex<()>,
}

impl Budget {
    pub(crate) fn new(max: u64, roots: Vec<OwnedFd>) -> Self {
        Budget {
            max,
            roots: roots.into(),
            counted: Cell::new(None),
            spent: Cell::new(None),
            walking: Mutex::new(()),
        }
    }

    /// Why nothing may start any more.
    pub(crate) fn spent(&self) -> Option<WorkdirSpent> {
        self.spent.get()
    }

    /// Counts, unless that was done within the last ten seconds; afterwards [`Budget::spent`] speaks for now.
    ///
    /// # Errors
    /// [`Fault::Own`]: there is no thread for the walk.
    pub(crate) async fn count(&self) -> Result<Option<WorkdirSpent>, Fault> {
        let _one = self.walking.lock().await;
        if self.next() > Instant::now() || self.spent.get().is_some() {
            return Ok(self.spent.get());
        }
        let (roots, max) = (Arc::clone(&self.roots), self.max);
        let (tell, told) = oneshot::channel();
        let until = Instant::now() + LONGEST;
        std::thread::Builder::new()
            .name("budget".into())
            .stack_size(STACK)
            .spawn(move || tell.send(total(&roots, max, until)))
            .map_err(|error| Fault::Own(format!("the workdir was not counted: {error}")))?;
        // A walk that hangs in the kernel does not see its own end.
        let told = tokio::time::timeout_at((until + GRACE).into(), told).await;
        let counted = told
            .map_or(Err(WorkdirSpent::Unmeasurable), |told| told.unwrap_or(Err(WorkdirSpent::Unmeasurable)));
        self.counted.set(Some(Instant::now()));
        self.spent.set(counted.err());
        Ok(self.spent.get())
    }

    /// When the last count does not speak for anything any more.
    fn next(&self) -> Instant {
        self.counted.get().map_or_else(Instant::now, |at| at + INTERVAL)
    }

    /// The refusal of a program, in the words of `murmur:process` (seed: `refusal`).
    pub(crate) fn refusal(&self, spent: WorkdirSpent) -> Refusal {
        Refusal::new("capabilities.resources.max_workdir_bytes", self.reason(spent))
    }

    /// Why the session ends.
    pub(crate) fn reason(&self, spent: WorkdirSpent) -> String {
        match spent {
            WorkdirSpent::Over(bytes) => format!(
                "workdir, home and temporary files hold {bytes} bytes or more; capabilities.resources.workdir_max_bytes is {}",
                self.max
            ),
            WorkdirSpent::Unmeasurable => format!(
                "what the workdir holds cannot be counted, because a directory in it is unreadable or more than {MAX_DEPTH} \
                 deep, or because counting takes longer than {} seconds",
                LONGEST.as_secs()
            ),
        }
    }
}

/// Counts while something runs that could write, until the budget is spent; the session's running task ends by it.
///
/// # Errors
/// [`Fault::Own`].
pub(crate) async fn watch(session: &Session) -> Fault {
    loop {
        session.when(|| session.is_active().then_some(())).await;
        match session.budget.count().await {
            Ok(None) => tokio::time::sleep_until(session.budget.next().into()).await,
            Ok(Some(_)) => {
                session.changed();
                return std::future::pending().await;
            }
            Err(fault) => return fault,
        }
    }
}

/// All bytes below some directories, links not followed: of each file its size or what it takes up, whichever is more, and of each
/// entry [`LEAST`].
///
/// # Errors
/// More than `max`, or it cannot be told.
fn total(roots: &[OwnedFd], max: u64, until: Instant) -> Result<u64, WorkdirSpent> {
    let mut walk = Walk { bytes: 0, max, until, linked: HashSet::new(), own: 0 };
    for root in roots {
        // Opened anew: a descriptor that others share has one position.
        let root = open(root, c".").map_err(|_| WorkdirSpent::Unmeasurable)?;
        walk.own = rustix::fs::fstat(&root).map_err(|_| WorkdirSpent::Unmeasurable)?.st_uid;
        walk.directory(root, 0)?;
    }
    Ok(walk.bytes)
}

struct Walk {
    bytes: u64,
    max: u64,
    until: Instant,
    linked: HashSet<(u64, u64)>,
    /// Whose the directory is: programs make what they make under this id.
    own: u32,
}

impl Walk {
    fn directory(&mut self, directory: OwnedFd, depth: usize) -> Result<(), WorkdirSpent> {
        let mut buffer = Vec::with_capacity(8192);
        let mut entries = RawDir::new(&directory, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(|_| WorkdirSpent::Unmeasurable)?;
            if entry.file_name() != c"." && entry.file_name() != c".." {
                self.entry(&directory, &entry, depth)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, parent: &OwnedFd, entry: &RawDirEntry<'_>, depth: usize) -> Result<(), WorkdirSpent> {
        if Instant::now() >= self.until {
            return Err(WorkdirSpent::Unmeasurable);
        }
        let name = entry.file_name();
        let stat = match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            // It went away meanwhile.
            Err(Errno::NOENT) => return Ok(()),
            Err(_) => return Err(WorkdirSpent::Unmeasurable),
        };
        self.add(&stat)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return Ok(());
        }
        match open(parent, name) {
            Ok(_) if depth >= MAX_DEPTH => Err(WorkdirSpent::Unmeasurable),
            Ok(directory) => self.directory(directory, depth + 1),
            // Replaced meanwhile: what is there now is counted the next time.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
            // What belongs to another user was not made by programs, and they cannot write there.
            Err(Errno::ACCESS) if stat.st_uid != self.own => Ok(()),
            Err(_) => Err(WorkdirSpent::Unmeasurable),
        }
    }

    fn add(&mut self, stat: &Stat) -> Result<(), WorkdirSpent> {
        let directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let linked = stat.st_nlink > 1 && !directory && self.linked.len() < MAX_LINKED;
        let again = linked && !self.linked.insert((stat.st_dev, stat.st_ino));
        let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
        let taken = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
        let counts = if again { LEAST } else { size.max(taken).max(LEAST) };
        self.bytes = self.bytes.saturating_add(counts);
        if self.bytes > self.max { Err(WorkdirSpent::Over(self.bytes)) } else { Ok(()) }
    }
}

fn open(parent: impl AsFd, name: &std::ffi::CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;
    use crate::testing::Folder;

    fn counted(directory: &Path, max: u64) -> Result<u64, WorkdirSpent> {
        let roots = [OwnedFd::from(std::fs::File::open(directory).unwrap())];
        total(&roots, max, Instant::now() + LONGEST)
    }

    #[test]
    fn files_of_every_level_are_counted_and_links_are_not_followed() {
        let folder = Folder::new();
        let root = folder.path();
        let empty = counted(root, u64::MAX).unwrap();
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join("a/b/file"), vec![0; 100_000]).unwrap();
        std::os::unix::fs::symlink("/usr", root.join("link")).unwrap();
        let with_file = counted(root, u64::MAX).unwrap();
        assert!((100_000..200_000).contains(&(with_file - empty)), "{empty} {with_file}");
        std::fs::hard_link(root.join("a/b/file"), root.join("again")).unwrap();
        assert_eq!(counted(root, u64::MAX).unwrap(), with_file + LEAST, "one file, two names");
        assert!(matches!(counted(root, 99_999), Err(WorkdirSpent::Over(bytes)) if bytes >= 100_000));
        let sparse = std::fs::File::create(root.join("sparse")).unwrap();
        sparse.set_len(1 << 40).unwrap();
        assert!(matches!(counted(root, 1 << 39), Err(WorkdirSpent::Over(_))), "a file's size counts");
    }

    #[test]
    fn no_number_of_empty_files_is_free() {
        let folder = Folder::new();
        let empty = counted(folder.path(), u64::MAX).unwrap();
        for number in 0..1000 {
            std::fs::write(folder.path().join(number.to_string()), "").unwrap();
        }
        assert_eq!(counted(folder.path(), u64::MAX).unwrap() - empty, 1000 * LEAST);
        assert!(matches!(counted(folder.path(), 900 * LEAST), Err(WorkdirSpent::Over(_))));
    }

    #[test]
    fn a_walk_that_takes_too_long_counts_as_too_much() {
        let folder = Folder::new();
        std::fs::write(folder.path().join("file"), "").unwrap();
        let roots = [OwnedFd::from(std::fs::File::open(folder.path()).unwrap())];
        assert_eq!(total(&roots, u64::MAX, Instant::now()), Err(WorkdirSpent::Unmeasurable));
    }

    #[test]
    fn components_that_hold_every_shared_thread_do_not_hold_up_a_count() {
        let folder = Folder::new();
        let roots = vec![OwnedFd::from(std::fs::File::open(folder.path()).unwrap())];
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        let (release, held) = std::sync::mpsc::channel::<()>();
        runtime.block_on(async {
            let holder = tokio::task::spawn_blocking(move || held.recv());
            let budget = Budget::new(u64::MAX, roots);
            let counted = tokio::time::timeout(Duration::from_secs(20), budget.count()).await;
            assert_eq!(counted, Ok(Ok(None)));
            let next = budget.next().saturating_duration_since(Instant::now());
            assert!(next > INTERVAL / 2 && next <= INTERVAL, "{next:?}");
            drop(release);
            let _ = holder.await;
        });
    }

    #[test]
    fn what_programs_hide_counts_as_too_much() {
        let folder = Folder::new();
        let root = folder.path();
        let mut deep = root.to_path_buf();
        for _ in 0..MAX_DEPTH {
            deep.push("d");
            std::fs::create_dir(&deep).unwrap();
        }
        counted(root, u64::MAX).unwrap();
        std::fs::create_dir(deep.join("d")).unwrap();
        assert_eq!(counted(root, u64::MAX), Err(WorkdirSpent::Unmeasurable));
        if rustix::process::geteuid().is_root() {
            // Root reads everything.
            return;
        }
        let hidden = Folder::new();
        let directory = hidden.path().join("d");
        std::fs::create_dir(&directory).unwrap();
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o000)).unwrap();
        assert_eq!(counted(hidden.path(), u64::MAX), Err(WorkdirSpent::Unmeasurable));
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o700)).unwrap();
    }
}
