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
use crate::temporary::OWNER;
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
    descriptors: Option<u32>,
    installing: Option<(PathBuf, PathBuf)>,
    dropping: Option<String>,
    terminal: bool,
    unheard: bool,
    environment: Vec<(String, String)>,
    behind: Option<String>,
    user: Option<User>,
    named_places: bool,
}

/// Who starts a broker, if not root.
#[derive(Debug)]
struct User {
    group: Option<PathBuf>,
    groups: Vec<u32>,
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
            descriptors: None,
            installing: None,
            dropping: None,
            terminal: false,
            unheard: false,
            environment: Vec::new(),
            behind: None,
            user: None,
            named_places: true,
        }
    }

    /// Starts the broker as [`temporary::OWNER`] with these supplementary groups, in a control group if one is named. The
    /// folder that holds the broker's directories becomes that user's.
    ///
    /// # Panics
    /// If the folder or the binaries cannot be made that user's.
    #[must_use]
    pub fn as_user(mut self, group: Option<&Path>, groups: &[u32]) -> Self {
        std::os::unix::fs::chown(&self.folder, Some(OWNER), Some(OWNER)).expect("the folder's owner");
        // A checkout may lie where others have no way to.
        let readable = self.folder.join("binaries");
        if !readable.exists() {
            fs::create_dir(&readable).expect("a folder");
            for name in binaries::SIBLINGS.into_iter().chain(["broker"]) {
                binaries::copy(&self.binaries.join(name), &readable.join(name));
            }
        }
        self.binaries = readable;
        self.user = Some(User { group: group.map(Path::to_owned), groups: groups.to_vec() });
        self
    }

    /// Has a shell script, which ends in `exec … "$@"`, start the broker; root runs it.
    #[must_use]
    pub fn behind(mut self, script: &str) -> Self {
        self.behind = Some(script.to_owned());
        self
    }

    /// Names no directory of the broker's: its environment does, by the variables of the XDG specification. They are those
    /// of [`Launch::directory`].
    #[must_use]
    pub fn in_xdg_places(mut self) -> Self {
        self.named_places = false;
        self
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

    /// Allows the broker and every process of the session so many descriptors, and no more.
    #[must_use]
    pub fn descriptors(mut self, most: u32) -> Self {
        self.descriptors = Some(most);
        self
    }

    /// Puts a program into a directory of the host, on a file system that the broker and what it starts alone see; beside it
    /// is a file `everybodys` that every user may write.
    #[must_use]
    pub fn installing(mut self, program: &Path, directory: &Path) -> Self {
        self.installing = Some((program.to_owned(), directory.to_owned()));
        self
    }

    /// Starts the broker without a capability, `sys_admin` for example.
    #[must_use]
    pub fn without_capability(mut self, capability: &str) -> Self {
        self.dropping = Some(capability.to_owned());
        self
    }

    /// Gives the broker a terminal for standard output and error; [`Ended::stdout`] holds what it showed there.
    #[must_use]
    pub fn on_a_terminal(mut self) -> Self {
        self.terminal = true;
        self
    }

    /// Gives the broker variables besides `PATH`.
    #[must_use]
    pub fn environment(mut self, variables: &[(&str, &str)]) -> Self {
        let owned = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        self.environment.extend(owned);
        self
    }

    /// Gives the broker a standard error that takes nothing.
    #[must_use]
    pub fn unheard(mut self) -> Self {
        self.unheard = true;
        self
    }

    /// Where the broker keeps what the name says: `state`, `cache` or `run`.
    #[must_use]
    pub fn directory(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn command(&self) -> Command {
        let broker = self.words();
        let shell = |script: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-c", script, "sh"]);
            shell
        };
        let mut command = match (self.descriptors, &self.installing, &self.dropping) {
            (None, None, None) => {
                let (first, rest) = broker.split_first().expect("a command");
                let mut command = Command::new(first);
                command.args(rest);
                command
            }
            (Some(most), ..) => {
                let mut shell = shell(&format!("ulimit -n {most} && exec \"$@\""));
                shell.args(broker);
                shell
            }
            (None, Some((program, directory)), _) => {
                let mut unshare = Command::new("unshare");
                let script = "mount -t tmpfs -o mode=0755 none \"$2\" && cp \"$1\" \"$2\"/ && echo > \"$2\"/everybodys && \
                              chmod 666 \"$2\"/everybodys && shift 2 && exec \"$@\"";
                unshare
                    .args(["--mount", "--", "sh", "-c", script, "sh"])
                    .args([program, directory])
                    .args(broker);
                unshare
            }
            (None, None, Some(capability)) => {
                let mut setpriv = Command::new("setpriv");
                setpriv.arg(format!("--bounding-set=-{capability}")).arg("--").args(broker);
                setpriv
            }
        };
        command.args(&self.arguments);
        for name in ["state", "cache", "run"].into_iter().filter(|_| self.named_places) {
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
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if !self.named_places {
            for (name, place) in
                [("XDG_STATE_HOME", "state"), ("XDG_CACHE_HOME", "cache"), ("XDG_RUNTIME_DIR", "run")]
            {
                fs::create_dir_all(self.directory(place)).expect("a directory");
                crate::temporary::give(&self.directory(place), OWNER);
                command.env(name, self.directory(place));
            }
        }
        command.stdin(Stdio::null());
        if self.terminal { typed(&command) } else { command }
    }

    /// The broker and what comes before it.
    fn words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        if let Some(script) = &self.behind {
            words.extend(["sh", "-c", script, "sh"].map(OsString::from));
        }
        if let Some(user) = &self.user {
            if let Some(group) = &user.group {
                crate::ordinary::empty(group);
                let script = "echo $$ > \"$1\"/cgroup.procs && shift && exec \"$@\"";
                words.extend(["sh", "-c", script, "sh"].map(OsString::from));
                words.push(group.into());
            }
            let setpriv = crate::ordinary::as_owner(&user.groups);
            words.push(setpriv.get_program().to_owned());
            words.extend(setpriv.get_args().map(OsString::from));
        }
        words.push(self.binaries.join("broker").into());
        words
    }

    /// Starts the broker and waits for its ready line.
    ///
    /// # Panics
    /// If there is none in time, or it is not what decision "Ready line" of `docs/decisions.md` says.
    #[must_use]
    pub fn start(self) -> Session {
        let log = self.folder.join(format!("stderr-{}", unique()));
        let mut command = self.command();
        let stderr = if self.unheard { "/dev/full".into() } else { log.clone() };
        let stderr = File::options().write(true).create(true).truncate(true).open(stderr);
        command.stdout(Stdio::piped()).stderr(stderr.expect("a log file"));
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
        self.run_and(patience, |_| ())
    }

    /// The same, and does something with the broker, by its process id, meanwhile.
    ///
    /// # Panics
    /// If it does not end in time.
    #[must_use]
    pub fn run_and(self, patience: Duration, meanwhile: impl FnOnce(i32)) -> Ended {
        let (out, log) = (
            self.folder.join(format!("stdout-{}", unique())),
            self.folder.join(format!("stderr-{}", unique())),
        );
        let mut command = self.command();
        command.stdout(File::create(&out).expect("a file")).stderr(File::create(&log).expect("a log file"));
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        meanwhile(i32::try_from(child.id()).expect("a process id"));
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

/// The same command as typed at a terminal of its own.
fn typed(command: &Command) -> Command {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let quoted = words.map(|word| format!("'{}'", word.to_string_lossy().replace('\'', "'\\''")));
    let line = format!("exec {}", quoted.collect::<Vec<_>>().join(" "));
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    script.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    script.stdin(Stdio::null());
    script
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
