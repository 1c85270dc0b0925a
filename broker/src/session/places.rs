//! The directories of one session, made together and taken back together.

use std::cell::Cell;
use std::fs::File;
use std::path::Path;
use std::rc::Rc;

use rustix::fs::OFlags;

use crate::cli::Cli;
use crate::host::cgroup;
use crate::host::dirs::Dir;
use crate::host::sweep;
use crate::refusal::Refusal;

/// The base directories of this installation.
#[derive(Debug)]
pub(crate) struct Bases {
    /// Records of all sessions.
    pub(crate) records: Dir,
    /// Session directories.
    pub(crate) sessions: Dir,
    /// Compiled components.
    pub(crate) cache: Dir,
    /// Run directories of living sessions.
    pub(crate) run: Dir,
    /// Locks of id blocks.
    pub(crate) ids: Dir,
    /// Bases the workdir must not overlap.
    pub(crate) roots: [std::path::PathBuf; 3],
}

impl Bases {
    /// Opens them, making what is missing.
    ///
    /// # Errors
    /// `E-IO-*` naming the directory.
    pub(crate) fn open(cli: &Cli) -> Result<Bases, Refusal> {
        let base = |path: &Path| Dir::base(path).map_err(|error| Refusal::io(path.display(), &error));
        let below = |dir: &Dir, name: &str, mode| {
            dir.make(name, mode).map_err(|error| Refusal::io(dir.path().join(name).display(), &error))
        };
        let state = base(&cli.state_dir)?;
        let cache = base(&cli.cache_dir)?;
        let run = base(&cli.run_dir)?;
        Ok(Bases {
            records: below(&state, "records", 0o700)?,
            sessions: below(&state, "sessions", 0o700)?,
            // Read by sandbox-host under its own id, through a mount of exactly this directory; the base above keeps
            // everybody else out.
            cache: below(&cache, "components", 0o755)?,
            ids: below(&run, "ids", 0o700)?,
            roots: [state.path().to_owned(), cache.path().to_owned(), run.path().to_owned()],
            run: below(&run, "sessions", 0o700)?,
        })
    }

    /// Removes what dead sessions left.
    ///
    /// # Errors
    /// `E-IO-*`.
    pub(crate) fn sweep(&self, host: &cgroup::Host) -> Result<Vec<sweep::Swept>, Refusal> {
        sweep::sweep(&self.run, &self.sessions, host)
            .map_err(|error| Refusal::io(self.run.path().display(), &error))
    }
}

/// The directories of one session. Dropped without [`Places::keep`], everything is removed again, records included.
#[derive(Debug)]
pub(crate) struct Places {
    bases: Rc<Bases>,
    name: String,
    /// Kept after the session.
    pub(crate) records: Dir,
    /// `home/`, `tmp/`, `out/`, `logs/`.
    pub(crate) session: Dir,
    /// Read-only for guests and programs.
    pub(crate) runtime: Dir,
    _lock: File,
    keep: Cell<bool>,
}

impl Places {
    /// Makes them; the session directory belongs to the workdir's owner.
    ///
    /// # Errors
    /// `E-IO-*` naming the directory.
    pub(crate) fn make(bases: &Rc<Bases>, name: &str, owner: (u32, u32)) -> Result<Places, Refusal> {
        let undo = Undo { bases, name };
        let attempt = || -> std::io::Result<Places> {
            let (run, lock) = sweep::claim(&bases.run, name)?;
            let runtime = run.make("runtime", 0o755)?;
            let session = bases.sessions.make_new(name, 0o700)?;
            for part in ["home", "tmp", "out", "logs"] {
                session.make(part, 0o700)?.give(owner)?;
            }
            session.give(owner)?;
            let records = bases.records.make_new(name, 0o700)?;
            let name = name.to_owned();
            Ok(Places {
                bases: Rc::clone(bases),
                name,
                records,
                session,
                runtime,
                _lock: lock,
                keep: Cell::new(false),
            })
        };
        attempt().map_err(|error| {
            undo.run(false, false);
            Refusal::io(format!("directories of {name}"), &error)
        })
    }

    /// The trace file, new and private.
    ///
    /// # Errors
    /// `E-IO-*`.
    pub(crate) fn trace_file(&self) -> Result<File, Refusal> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL;
        self.records
            .file("trace.jsonl", flags, 0o600)
            .map_err(|error| Refusal::io(self.records.path().join("trace.jsonl").display(), &error))
    }

    /// The session is on record: records stay from now on, whatever happens.
    pub(crate) fn keep(&self) {
        self.keep.set(true);
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        let mut lost = false;
        for part in ["out", "logs"].into_iter().filter(|_| self.keep.get()) {
            match self.session.rename(part, &self.records, part) {
                Ok(()) => {}
                // The capsule removed it; there is nothing to keep then.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => {
                    lost = true;
                    let (from, to) = (self.session.path().join(part), self.records.path());
                    say!(
                        "warning: {}: it stays, for it cannot be moved to {}: {error}",
                        from.display(),
                        to.display()
                    );
                }
            }
        }
        Undo { bases: &self.bases, name: &self.name }.run(self.keep.get(), lost);
    }
}

struct Undo<'a> {
    bases: &'a Bases,
    name: &'a str,
}

impl Undo<'_> {
    fn run(&self, keep_records: bool, keep_session: bool) {
        let removed = |dir: &Dir| match dir.remove(self.name) {
            Ok(()) => true,
            Err(error) => {
                say!("warning: {}: cannot be removed: {error}", dir.path().join(self.name).display());
                false
            }
        };
        if !keep_records {
            removed(&self.bases.records);
        }
        // The run directory last, by which a dead session is found: what could not be removed now, the next launch tries.
        if keep_session || removed(&self.bases.sessions) {
            removed(&self.bases.run);
        }
    }
}
