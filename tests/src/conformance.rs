//! The ways out of a session that a program may try, and what it must see of each in every class. Run from inside, by
//! `capsule-probe` as an allowed program of a real session.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::a2a;
use crate::binaries;
use crate::broker::{Launch, Session};
use crate::capsule::Capsule;

/// What a case must see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// There is no such thing.
    Absent,
    /// Somebody says no.
    Refused,
    /// One of the two: which of them is not promised.
    Kept,
    /// It works, and that is not an escape.
    Works,
    /// Whatever it sees: the session may have a place of its own there. Whether the host has changed is looked at from outside.
    Outside,
}

use Expected::{Absent, Kept, Outside, Refused, Works};

impl Expected {
    /// Whether `seen`, a line's first word, is that.
    #[must_use]
    pub fn is_met(self, seen: &str) -> bool {
        match self {
            Absent => seen == "absent",
            Refused => seen == "refused",
            Kept => seen == "absent" || seen == "refused",
            Works => seen == "done",
            Outside => ["absent", "refused", "done"].contains(&seen),
        }
    }
}

/// One way out.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// What an operator calls it.
    pub name: &'static str,
    /// The case of `capsule-probe` and its arguments; `{…}` is filled in from the session, see [`Stage`].
    pub command: &'static str,
    /// What `scoped` must show.
    pub scoped: Expected,
    /// What `sealed` must show.
    pub sealed: Expected,
}

const fn case(name: &'static str, command: &'static str, scoped: Expected, sealed: Expected) -> Case {
    Case { name, command, scoped, sealed }
}

/// Every case.
pub const CASES: &[Case] = &[
    case("read a secret of the host", "read /etc/shadow", Refused, Absent),
    case("read the host's accounts", "read /etc/passwd", Refused, Works),
    case("see that a file of the host exists", "stat /etc/hostname", Works, Absent),
    case("list the root", "list /", Refused, Refused),
    case("list the home directories", "list /home", Refused, Absent),
    case("list what lies above the workdir", "parent", Refused, Refused),
    case("write beside the workdir", "make {beside}", Refused, Kept),
    case("write to the host's /tmp", "make /tmp/capsule-escape", Outside, Outside),
    case("read through a symbolic link of one's own", "link-out {secret}", Refused, Absent),
    case("hard link to a file of the host", "hard-link {secret}", Refused, Absent),
    case("rename out of the workdir", "rename-out {beside}", Refused, Kept),
    case("records of the session", "stat {records}", Absent, Absent),
    case("a device of the host", "read /dev/kmsg", Refused, Absent),
    case("make a device", "device-node", Refused, Refused),
    case("write below a read-only tree", "write {installed}", Refused, Refused),
    case("write on a file system mounted below a read-only tree", "write {submount}", Refused, Refused),
    case("set times there, which is the mount's to refuse", "times {submount}", Refused, Refused),
    case("set-uid by chmod", "set-id-chmod", Refused, Refused),
    case("set-uid at creation", "set-id-open", Refused, Refused),
    case("set-gid by fchmodat2", "set-id-fchmodat2", Refused, Refused),
    case("overwrite one's own program", "own-file", Refused, Refused),
    case("overwrite the runner", "runners-file", Kept, Kept),
    case("one's own control group", "own-cgroup", Refused, Absent),
    case("a file by handle", "handle", Refused, Refused),
    case("execute a planted program", "planted", Refused, Refused),
    case("execute a planted program in /tmp", "planted-in-tmp", Refused, Refused),
    case("execute a planted program at home", "planted-at-home", Refused, Refused),
    case("execute it through the ELF loader", "loader", Refused, Refused),
    case("map it as code", "mapped", Refused, Refused),
    case("execute a memory file", "memory-file", Refused, Refused),
    case("execute a memory file made for it", "memory-file-executable", Refused, Refused),
    case("execute by descriptor", "by-descriptor", Refused, Refused),
    case("execute a program that is not allowed", "not-allowed /usr/bin/id", Refused, Refused),
    case("signal our processes", "kill {pids}", Absent, Absent),
    case("signal the runner", "kill-runner", Refused, Refused),
    case("take the runner's processor time away", "limit-runner", Refused, Refused),
    case("trace our processes", "ptrace {pids} 1", Refused, Refused),
    case("memory of our processes", "memory {pids} 1", Kept, Kept),
    case("environment of our processes", "environment {pids} 1", Kept, Kept),
    case("root of our processes", "their-root {pids} 1", Kept, Kept),
    case("descriptors that were left open", "descriptors", Absent, Absent),
    case("a working directory that was left", "directory", Absent, Absent),
    case("a user namespace", "user-namespace", Refused, Refused),
    case("a mount", "mount", Refused, Refused),
    case("type for the terminal", "terminal", Refused, Refused),
    case("the kernel's surface", "surface", Refused, Refused),
    case("a Unix socket", "unix-socket", Refused, Refused),
    case("a pair of Unix sockets aimed at a path", "unix-path {socket}", Kept, Kept),
    case("a pair of Unix sockets aimed at a listener", "unix-path {listening}", Kept, Kept),
    case("a pair of Unix sockets aimed at an abstract name", "unix-abstract {abstract}", Refused, Refused),
    case("netlink", "netlink", Refused, Refused),
    case("packets", "packets", Refused, Refused),
    case("raw internet sockets", "raw-internet", Refused, Refused),
    case("a listener on the host's loopback", "tcp {listener}", Refused, Refused),
    case("the metadata address", "tcp 169.254.169.254:80", Refused, Refused),
];

/// One row of the table.
#[derive(Debug)]
pub struct Row {
    /// The case.
    pub case: Case,
    /// The class it was tried in.
    pub class: &'static str,
    /// What it had to see.
    pub expected: Expected,
    /// What it saw: a word and its detail.
    pub seen: String,
}

impl Row {
    /// Whether it saw what it had to.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.expected.is_met(self.seen.split(' ').next().unwrap_or_default())
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let verdict = if self.is_met() { "ok  " } else { "FAIL" };
        let expected = format!("{:?}", self.expected).to_lowercase();
        write!(f, "{verdict} {:6} {:58} {expected:8} {}", self.class, self.case.name, self.seen)
    }
}

/// A session of one class, and what it must not reach.
#[derive(Debug)]
pub struct Stage {
    session: Session,
    capsule: Capsule,
    class: &'static str,
    listener: TcpListener,
    socket: PathBuf,
    abstract_name: String,
    listening: PathBuf,
    _sockets: ([UnixDatagram; 2], UnixListener),
}

/// Where the probe is put, in a mount namespace of the session's own broker.
const INSTALLED: &str = "/usr/local/sbin";

impl Stage {
    /// Launches a session whose one allowed program is `capsule-probe`; if a group is named, as an ordinary user to whom it is
    /// delegated.
    ///
    /// # Panics
    /// If it cannot be launched.
    #[must_use]
    pub fn new(class: &'static str, group: Option<&Path>) -> Self {
        let capabilities = format!("containment: {class}, shell: {{allow: [capsule-probe]}}");
        let capsule = Capsule::driven_by("spin-driver", "http://127.0.0.1:9", &[], &capabilities);
        fs::write(capsule.folder().join("secret"), "of the host").expect("a file");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        answer_everybody(listener.try_clone().expect("a listener"));
        let socket = capsule.folder().join("socket");
        let abstract_name = format!("capsule-conformance-{}-{class}-{}", std::process::id(), group.is_some());
        let sockets = [UnixDatagram::bind(&socket).expect("a socket"), bind_abstract(&abstract_name)];
        let listening = capsule.folder().join("listening");
        let sockets = (sockets, UnixListener::bind(&listening).expect("a socket"));
        for open in [&socket, &listening] {
            fs::set_permissions(open, fs::Permissions::from_mode(0o777)).expect("its mode");
        }
        let probe = binaries::directory().join("capsule-probe");
        let mut launch = Launch::of(&capsule).installing(&probe, Path::new(INSTALLED));
        if group.is_some() {
            launch = launch.as_user(group, &[]);
        }
        let session = launch.start();
        assert_eq!(session.containment(), class, "a host that cannot give a class is not graded");
        Stage { session, capsule, class, listener, socket, listening, abstract_name, _sockets: sockets }
    }

    /// Tries one case.
    ///
    /// # Panics
    /// If the session does not answer.
    #[must_use]
    pub fn try_case(&self, number: usize, case: Case) -> Row {
        let command = self.fill(case.command);
        let task = format!("tool capsule-probe {}", serde_json::json!({ "command": command }));
        let done = a2a::complete(self.session.url(), &format!("case-{number}"), &task);
        let answer = a2a::answer(&done);
        let seen = answer.lines().find_map(|line| line.trim().strip_prefix("seen: "));
        let seen = seen.map_or_else(|| format!("nothing: {}", answer.replace('\n', " | ")), str::to_owned);
        let expected = if self.class == "sealed" { case.sealed } else { case.scoped };
        Row { case, class: self.class, expected, seen }
    }

    fn fill(&self, command: &str) -> String {
        let folder = self.capsule.folder();
        let pids: Vec<String> = self.session.roles().iter().map(|role| role.pid.to_string()).collect();
        let pids = format!("{} {}", pids.join(" "), self.session.pid());
        command
            .replace("{pids}", &pids)
            .replace("{beside}", &folder.join("beside").display().to_string())
            .replace("{secret}", &folder.join("secret").display().to_string())
            .replace("{records}", &self.session.records().display().to_string())
            .replace("{installed}", "/usr/bin/env")
            .replace("{submount}", &format!("{INSTALLED}/everybodys"))
            .replace("{socket}", &self.socket.display().to_string())
            .replace("{listening}", &self.listening.display().to_string())
            .replace("{abstract}", &self.abstract_name)
            .replace("{listener}", &self.listener.local_addr().expect("an address").to_string())
    }

    /// Ends the session; every process of ours must still be there.
    ///
    /// # Panics
    /// If one is not, or the end is not an ordinary one.
    pub fn end(mut self) {
        let names: Vec<String> = self.session.roles().into_iter().map(|role| role.name).collect();
        assert_eq!(names.len(), 5, "{names:?}");
        for made in ["beside", "linked"] {
            assert!(!self.capsule.folder().join(made).exists(), "{made} was made outside the workdir");
        }
        assert!(!Path::new("/tmp/capsule-escape").exists(), "a file was made in the host's /tmp");
        self.session.stop();
    }
}

/// Sends a byte to whoever connects.
fn answer_everybody(listener: TcpListener) {
    use std::io::Write;
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.and_then(|mut stream| stream.write_all(b"x"));
        }
    });
}

fn bind_abstract(name: &str) -> UnixDatagram {
    use std::os::linux::net::SocketAddrExt;
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name).expect("a name");
    UnixDatagram::bind_addr(&address).expect("a socket")
}

/// The same, unless this host cannot give the class: that is said, and nothing is graded.
#[must_use]
pub fn graded(class: &'static str) -> Option<Vec<Row>> {
    let capsule = Capsule::reporter();
    let check =
        Launch::of(&capsule).arguments(&["--check", "--containment", class]).run(Duration::from_secs(20));
    if check.code() == Some(0) {
        return Some(run(class, None));
    }
    eprintln!("not graded: {}", check.stderr);
    None
}

/// Every case in one class, from launch to end; see [`Stage::new`].
#[must_use]
pub fn run(class: &'static str, group: Option<&Path>) -> Vec<Row> {
    let stage = Stage::new(class, group);
    let rows = CASES.iter().enumerate().map(|(number, case)| stage.try_case(number, *case)).collect();
    stage.end();
    rows
}
