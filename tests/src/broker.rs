//! Starting the real broker, reading its ready line, ending it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::Value;

use crate::capsule::Capsule;
use crate::process::{self, Process, Signal};
use crate::remains::{self, Footprint};
use crate::{binaries, host};

/// How long a launch may take: the first one of a capsule compiles its component.
pub const LAUNCH_PATIENCE: Duration = Duration::from_secs(60);

/// How long an ordinary end may take.
pub const END_PATIENCE: Duration = Duration::from_secs(20);

/// A broker about to be started, with directories of its own in the capsule's temporary folder.
#[derive(Debug)]
pub struct Launch {
    binaries: PathBuf,
    folder: PathBuf,
    arguments: Vec<OsString>,
    accept_missing: bool,
}

impl Launch {
    /// `broker --manifest … --workdir …` for a capsule.
    #[must_use]
    pub fn of(capsule: &Capsule) -> Self {
        Self::bare(capsule.folder())
            .arguments(&["--manifest"])
            .path(&capsule.manifest())
            .arguments(&["--workdir"])
            .path(&capsule.work())
    }

    /// A broker with nothing but directories below `folder`.
    #[must_use]
    pub fn bare(folder: &Path) -> Self {
        Self {
            binaries: binaries::directory(),
            folder: folder.to_owned(),
            arguments: Vec::new(),
            accept_missing: true,
        }
    }

    /// Adds arguments.
    #[must_use]
    pub fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(OsString::from));
        self
    }

    /// Adds a path as an argument.
    #[must_use]
    pub fn path(mut self, path: &Path) -> Self {
        self.arguments.push(path.into());
        self
    }

    /// Takes the binaries from elsewhere.
    #[must_use]
    pub fn binaries(mut self, directory: &Path) -> Self {
        directory.clone_into(&mut self.binaries);
        self
    }

    /// Leaves out `--accept-missing cgroup-limits`, which is else added on a host without the controllers.
    #[must_use]
    pub fn without_accepting(mut self) -> Self {
        self.accept_missing = false;
        self
    }

    /// Where the broker keeps what the name says: `state`, `cache` or `run`.
    #[must_use]
    pub fn directory(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.binaries.join("broker"));
        command.args(&self.arguments);
        for name in ["state", "cache", "run"] {
            command.arg(format!("--{name}-dir")).arg(self.directory(name));
        }
        // Blocks of ids are locked in the run directory, and every test has its own.
        let first = 1_910_000_000 + std::process::id() % 10_000 * 1_000 + unique() % 100 * 10;
        command.arg("--uid-range").arg(format!("{first}-{}", first + 6));
        if self.accept_missing && !host::missing_controllers().is_empty() {
            command.args(["--accept-missing", "cgroup-limits"]);
        }
        // Nothing of the tester's environment reaches the session; the path is what finds its programs.
        command.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command.stdin(Stdio::null());
        command
    }

    /// Starts the broker and waits for its ready line.
    ///
    /// # Panics
    /// If there is none in time, or it is not what decision "Ready line" of `docs/decisions.md` says.
    #[must_use]
    pub fn start(self) -> Session {
        let log = self.folder.join(format!("stderr-{}", unique()));
        let mut command = self.command();
        command.stdout(Stdio::piped()).stderr(File::create(&log).expect("a log file"));
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let stdout = child.stdout.take().expect("a pipe");
        let mut session =
            Session { child, ready: Value::Null, log, folder: self.folder, rest: None, ended: None };
        let (line, rest) = first_line(stdout, LAUNCH_PATIENCE)
            .unwrap_or_else(|| panic!("no ready line within {LAUNCH_PATIENCE:?}:\n{}", session.stderr()));
        session.ready = serde_json::from_str(&line)
            .unwrap_or_else(|error| panic!("ready line {line:?}: {error}\n{}", session.stderr()));
        session.rest = Some(rest);
        for key in ["session_id", "url", "workdir", "records_dir", "containment"] {
            assert!(session.ready[key].is_string(), "{key} in {line}");
        }
        assert_eq!(session.ready["pid"], u64::from(session.child.id()), "{line}");
        session
    }

    /// Starts the broker and waits for its end, within `patience`.
    ///
    /// # Panics
    /// If it does not end in time.
    #[must_use]
    pub fn run(self, patience: Duration) -> Ended {
        let (out, log) = (
            self.folder.join(format!("stdout-{}", unique())),
            self.folder.join(format!("stderr-{}", unique())),
        );
        let mut command = self.command();
        command.stdout(File::create(&out).expect("a file")).stderr(File::create(&log).expect("a log file"));
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let status = wait(&mut child, patience);
        let read = |path: &Path| fs::read_to_string(path).expect("text");
        let ended = Ended { status, stdout: read(&out), stderr: read(&log) };
        if status.is_none() {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{command:?} did not end within {patience:?}:\n{}", ended.stderr);
        }
        ended
    }
}

fn unique() -> u32 {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

/// The first line, within `patience`, and the reader for the rest.
fn first_line(stdout: ChildStdout, patience: Duration) -> Option<(String, BufReader<ChildStdout>)> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut reader = BufReader::new(stdout);
        let mut line = String::new();
        if reader.read_line(&mut line).is_ok() {
            let _ = sender.send((line, reader));
        }
    });
    receiver.recv_timeout(patience).ok()
}

fn wait(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let pid = i32::try_from(child.id()).expect("a process id");
    process::wait_end_of(pid, patience).then(|| child.wait().expect("its status"))
}

/// How a broker ended.
#[derive(Debug)]
pub struct Ended {
    status: Option<ExitStatus>,
    /// Everything on standard output.
    pub stdout: String,
    /// Everything on standard error.
    pub stderr: String,
}

impl Ended {
    /// The exit status; `None` if a signal ended it.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        self.status.and_then(|status| status.code())
    }
}

/// A serving broker. One that is still there at the end of a test is killed, by its id.
#[derive(Debug)]
pub struct Session {
    child: Child,
    ready: Value,
    log: PathBuf,
    folder: PathBuf,
    rest: Option<BufReader<ChildStdout>>,
    ended: Option<ExitStatus>,
}

impl Session {
    fn field(&self, name: &str) -> &str {
        self.ready[name].as_str().expect("checked at the start")
    }

    /// `ses_` and 32 hexadecimal digits.
    #[must_use]
    pub fn id(&self) -> &str {
        self.field("session_id")
    }

    /// Where it serves, `http://…`.
    #[must_use]
    pub fn url(&self) -> &str {
        self.field("url")
    }

    /// The class of containment it applies.
    #[must_use]
    pub fn containment(&self) -> &str {
        self.field("containment")
    }

    /// Where its records are.
    #[must_use]
    pub fn records(&self) -> PathBuf {
        PathBuf::from(self.field("records_dir"))
    }

    /// The work folder as the ready line names it.
    #[must_use]
    pub fn workdir(&self) -> PathBuf {
        PathBuf::from(self.field("workdir"))
    }

    /// The broker's process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id")
    }

    /// The folder that holds the broker's own directories.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What the broker wrote to standard error so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Every process of the session but the broker itself.
    #[must_use]
    pub fn processes(&self) -> Vec<Process> {
        process::descendants(self.pid())
    }

    /// The processes that the broker started itself: the roles.
    #[must_use]
    pub fn roles(&self) -> Vec<Process> {
        process::children(self.pid())
    }

    /// The process of a role.
    ///
    /// # Panics
    /// If there is none, or more than one.
    #[must_use]
    pub fn role(&self, name: &str) -> Process {
        let mut found = self.roles().into_iter().filter(|process| process.name == name);
        let first = found.next().unwrap_or_else(|| panic!("no {name} among {:?}", self.roles()));
        assert_eq!(found.next(), None, "more than one {name}");
        first
    }

    /// Kills a role with SIGKILL and waits until the broker has put another in its place.
    ///
    /// # Panics
    /// If no other comes in time.
    pub fn replace(&self, name: &str) -> Process {
        let old = self.role(name);
        process::signal(old.pid, Signal::KILL);
        process::until(&format!("another {name}"), END_PATIENCE, || {
            self.roles().into_iter().find(|process| process.name == name && *process != old)
        })
    }

    /// What must be gone when the session has ended.
    #[must_use]
    pub fn footprint(&self) -> Footprint {
        Footprint::of(self)
    }

    /// Sends a signal to the broker.
    pub fn signal(&self, signal: Signal) {
        process::signal(self.pid(), signal);
    }

    /// Waits for the broker's end; its exit status, `None` if a signal ended it.
    ///
    /// # Panics
    /// If it does not end in time.
    pub fn wait(&mut self, patience: Duration) -> Option<i32> {
        let status = wait(&mut self.child, patience);
        let status = status.unwrap_or_else(|| panic!("no end within {patience:?}:\n{}", self.stderr()));
        self.ended = Some(status);
        status.code()
    }

    /// SIGTERM, and the end that must follow: status 0 and nothing left.
    ///
    /// # Panics
    /// If the end is another, or something is left.
    pub fn stop(&mut self) {
        let footprint = self.footprint();
        self.signal(Signal::TERM);
        let code = self.wait(END_PATIENCE);
        assert_eq!(code, Some(0), "{}", self.stderr());
        footprint.assert_gone();
    }

    /// What came on standard output after the ready line; only after the end.
    ///
    /// # Panics
    /// If it cannot be read.
    #[must_use]
    pub fn rest_of_stdout(&mut self) -> String {
        let mut text = String::new();
        self.rest.take().expect("read once").read_to_string(&mut text).expect("text");
        text
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.ended.is_none() {
            let watched = process::watch(&self.processes());
            let _ = self.child.kill();
            let _ = self.child.wait();
            let _ = process::wait_ended(&watched, Duration::from_secs(2));
            remains::remove_groups(self.ready["session_id"].as_str());
        }
        if std::thread::panicking() {
            eprintln!("standard error of the broker:\n{}", self.stderr());
        }
    }
}
