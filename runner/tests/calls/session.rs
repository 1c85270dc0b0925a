//! A real runner, confined as in a session, with real cgroup leaves; the test plays broker and sandbox-host.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use confine::spawn::{Child, Program};
use ipc::edge::control::{
    Begin, BrokerControl, Controllers, FromRole, Limits, Programs, RunnerConfigure, RunnerOrder, ToRole,
    expect_hello,
};
use ipc::edge::host_runner::{self, HostToRunner, Run, RunnerToHost};
use ipc::edge::runner_broker::RunnerToBroker;
use ipc::types::{Class, RequestId, ResourceLimit};
use ipc::{Channel, Never};

const UID: u32 = 61_301;
const PROGRAMS: [&str; 20] = [
    "bash", "sh", "true", "false", "env", "cat", "head", "sleep", "setsid", "yes", "readlink", "grep", "seq",
    "ls", "id", "kill", "mktemp", "mv", "echo", "stat",
];

/// Says on the terminal, past the capture of test output, that a test could not run.
pub(crate) fn not_run(why: &str) {
    let name = std::thread::current().name().unwrap_or("test").to_owned();
    let _ = writeln!(std::io::stderr(), "NOT RUN: {name}: {why}");
}

/// A cgroup with leaves, removed at the end.
struct Cgroup {
    directory: PathBuf,
    leaves: usize,
    /// Stands for the first leaf's `cgroup.events`.
    events: Option<PathBuf>,
    /// Holds what stands for every leaf's `memory.events` and `pids.events`, and for the scope's `pids.events`.
    counters: Option<PathBuf>,
}

impl Cgroup {
    fn new(leaves: usize) -> Result<Self, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let mounts = std::fs::read_to_string("/proc/self/mounts").map_err(|error| error.to_string())?;
        let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let mount = fields.into_iter().find(|fields| fields.get(2) == Some(&"cgroup2"));
        let mount = mount.ok_or("no cgroup v2 is mounted")?[1].to_owned();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("capsule-broker-runner-test-{}-{number}", std::process::id());
        let directory = Path::new(&mount).join(name);
        std::fs::create_dir(&directory).map_err(|error| format!("cgroup v2 is not writable: {error}"))?;
        let cgroup = Cgroup { directory, leaves, events: None, counters: None };
        for leaf in 0..leaves {
            std::fs::create_dir(cgroup.leaf(leaf)).map_err(|error| error.to_string())?;
        }
        if !cgroup.leaf(0).join("cgroup.kill").exists() {
            return Err("this kernel has no cgroup.kill".into());
        }
        Ok(cgroup)
    }

    fn leaf(&self, leaf: usize) -> PathBuf {
        self.directory.join(format!("leaf-{leaf}"))
    }

    fn controllers(&self) -> Controllers {
        Controllers { memory: self.counters.is_some(), pids: self.counters.is_some() }
    }

    fn counter(&self, name: &str) -> Option<OwnedFd> {
        Some(File::open(self.counters.as_ref()?.join(name)).unwrap().into())
    }

    fn files(&self, leaf: usize) -> Vec<OwnedFd> {
        let write = |name| File::options().write(true).open(self.leaf(leaf).join(name)).unwrap().into();
        let own = self.leaf(leaf).join("cgroup.events");
        let events = self.events.as_ref().filter(|_| leaf == 0).unwrap_or(&own);
        let mut files = vec![write("cgroup.procs"), write("cgroup.kill"), File::open(events).unwrap().into()];
        files.extend(self.counter("memory.events"));
        files.extend(self.counter("pids.events"));
        files
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = std::fs::write(self.directory.join("cgroup.kill"), "1");
        for directory in (0..self.leaves).map(|leaf| self.leaf(leaf)).chain([self.directory.clone()]) {
            // A killed process leaves its cgroup a little later than it is reaped, on some kernels.
            let until = Instant::now() + Duration::from_secs(2);
            while let Err(error) = std::fs::remove_dir(&directory) {
                if Instant::now() > until {
                    let _ = writeln!(std::io::stderr(), "{}: {error}", directory.display());
                    break;
                }
                std::thread::yield_now();
            }
        }
    }
}

/// What a run came to.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) answer: RunnerToHost,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

impl Output {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// The limit that was hit, as far as it is known.
    pub(crate) fn limit(&self) -> Option<ResourceLimit> {
        match &self.answer {
            RunnerToHost::Finished { resource_limit, .. } => *resource_limit,
            other => panic!("{other:?} {self:?}"),
        }
    }

    /// Exit code and whether the time ran out.
    pub(crate) fn finished(&self) -> (i32, bool) {
        match &self.answer {
            RunnerToHost::Finished { exit_code, timed_out, .. } => (*exit_code, *timed_out),
            other => panic!("{other:?} {self:?}"),
        }
    }
}

/// A run that is going on.
pub(crate) struct Going {
    pub(crate) id: RequestId,
    stdin: Option<JoinHandle<()>>,
    stdout: JoinHandle<Vec<u8>>,
    stderr: JoinHandle<Vec<u8>>,
}

/// A request, with defaults.
pub(crate) struct Request<'a> {
    pub(crate) program: &'a str,
    pub(crate) args: &'a [&'a str],
    pub(crate) env: &'a [(&'a str, &'a str)],
    pub(crate) stdin: Option<Vec<u8>>,
    pub(crate) timeout: Duration,
}

fn program_of(request: &Request<'_>) -> host_runner::Program {
    host_runner::Program {
        name: request.program.into(),
        args: request.args.iter().map(|arg| (*arg).to_owned()).collect(),
        env: request.env.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
    }
}

impl Default for Request<'_> {
    fn default() -> Self {
        Request { program: "true", args: &[], env: &[], stdin: None, timeout: Duration::from_secs(60) }
    }
}

pub(crate) struct Session {
    pub(crate) child: Child,
    pub(crate) control: BrokerControl<RunnerOrder>,
    pub(crate) host: Channel<HostToRunner, RunnerToHost>,
    pub(crate) broker: Channel<Never, RunnerToBroker>,
    pub(crate) workdir: PathBuf,
    scratch: PathBuf,
    cgroup: Cgroup,
    log: JoinHandle<String>,
    next: u64,
}

fn path_of(program: &str) -> Option<(String, String)> {
    let path = std::fs::canonicalize(Path::new("/usr/bin").join(program)).ok()?;
    Some((program.to_owned(), path.to_str()?.to_owned()))
}

fn scratch_directories(cgroup: &Cgroup) -> PathBuf {
    let name = cgroup.directory.file_name().unwrap();
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    for name in ["work", "session/home", "session/tmp", "runtime"] {
        std::fs::create_dir_all(scratch.join(name)).unwrap();
    }
    std::fs::canonicalize(scratch).unwrap()
}

fn tree(directory: &Path, read_only: bool) -> std::io::Result<OwnedFd> {
    let directory = File::open(directory)?;
    let map = confine::mount::id_map((0, 0), (UID, UID))?;
    confine::mount::tree(directory.as_fd(), Some(&map), confine::mount::Attributes { read_only })
}

impl Session {
    /// A runner that takes calls, or `None` (and why, on the terminal) where that cannot be.
    pub(crate) fn new(leaves: usize) -> Option<Self> {
        Self::with(leaves, |_| {})
    }

    /// The same with a changed configuration.
    pub(crate) fn with(leaves: usize, change: impl FnOnce(&mut RunnerConfigure)) -> Option<Self> {
        Self::cgroup(leaves).map(|cgroup| Self::start(cgroup, change))
    }

    /// A runner whose first leaf says what the file says of being populated.
    pub(crate) fn with_events(leaves: usize, events: &Path) -> Option<Self> {
        let mut cgroup = Self::cgroup(leaves)?;
        cgroup.events = Some(events.to_owned());
        Some(Self::start(cgroup, |_| {}))
    }

    /// A runner whose counters of refusals are read from files of a test's.
    pub(crate) fn with_counters(leaves: usize, directory: &Path) -> Option<Self> {
        let mut cgroup = Self::cgroup(leaves)?;
        cgroup.counters = Some(directory.to_owned());
        Some(Self::start(cgroup, |_| {}))
    }

    fn cgroup(leaves: usize) -> Option<Cgroup> {
        if !rustix::process::geteuid().is_root() {
            not_run("needs root");
            return None;
        }
        Cgroup::new(leaves).inspect_err(|why| not_run(why)).ok()
    }

    fn start(cgroup: Cgroup, change: impl FnOnce(&mut RunnerConfigure)) -> Self {
        let deadline = Instant::now() + Duration::from_secs(20);
        let binary = Path::new(env!("CARGO_BIN_EXE_runner"));
        let program = Program::open(binary.parent().unwrap(), "runner").unwrap();
        let (mut control, far) = ipc::pair::<ToRole<RunnerOrder>, FromRole>().unwrap();
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let child = confine::spawn::spawn(&program, None, far.as_fd(), write.as_fd()).unwrap();
        drop((far, write));
        let log = std::thread::spawn(move || {
            let mut log = String::new();
            let _ = File::from(read).read_to_string(&mut log);
            // Shown if the test fails.
            print!("{log}");
            log
        });
        expect_hello(&control, deadline).unwrap();

        let scratch = scratch_directories(&cgroup);
        let (workdir, session, runtime) =
            (scratch.join("work"), scratch.join("session"), scratch.join("runtime"));
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let trees = [(&workdir, false), (&session, false), (&runtime, true)];
        let begin = Begin {
            uid: UID,
            gid: UID,
            user_namespace: false,
            join_network: true,
            trees: trees.iter().map(|(path, _)| text(path)).collect(),
            read_only: Vec::new(),
            programs: Some(Programs {
                tier: Class::Sealed,
                home: text(&session.join("home")),
                shown: Vec::new(),
                workdir_exec: false,
                unix_sockets: false,
            }),
        };
        let mut gifts = vec![confine::net::session_namespace().unwrap()];
        gifts.extend(trees.iter().map(|(path, read_only)| tree(path, *read_only).unwrap()));
        let gifts: Vec<BorrowedFd<'_>> = gifts.iter().map(AsFd::as_fd).collect();
        control.send_with(&ToRole::Begin(begin), &gifts).unwrap();
        let ready = control.receive_until(deadline).unwrap().message;
        assert!(matches!(ready, FromRole::Ready(_)), "{ready:?}");

        let mut configure = RunnerConfigure {
            workdir: text(&workdir),
            programs: PROGRAMS.iter().filter_map(|program| path_of(program)).collect(),
            environment: [
                ("PATH", "/usr/bin:/bin".to_owned()),
                ("HOME", text(&session.join("home"))),
                ("TMPDIR", text(&session.join("tmp"))),
                ("MURMUR_RUNTIME_DIR", text(&runtime)),
            ]
            .map(|(name, value)| (name.to_owned(), value))
            .to_vec(),
            limits: Limits {
                open_files: 256,
                file_size: 1 << 30,
                cpu_seconds: 60,
                memory: 4 << 30,
                processes: u64::MAX,
            },
            leaves: u32::try_from(cgroup.leaves).unwrap(),
            controllers: cgroup.controllers(),
            pids_max: 10,
            strip_env: Vec::new(),
        };
        change(&mut configure);
        let (host, host_far) = ipc::pair::<HostToRunner, RunnerToHost>().unwrap();
        let (broker, broker_far) = ipc::pair::<Never, RunnerToBroker>().unwrap();
        let order = |order, descriptors: &[BorrowedFd<'_>]| {
            control.send_with(&ToRole::Order(order), descriptors).unwrap();
        };
        let scope = [cgroup.counter("scope"), cgroup.counter("current")];
        let attached: Vec<BorrowedFd<'_>> = [host_far.as_fd(), broker_far.as_fd()]
            .into_iter()
            .chain(scope.iter().flatten().map(AsFd::as_fd))
            .collect();
        order(RunnerOrder::Configure(configure), &attached);
        for leaf in 0..cgroup.leaves {
            let files = cgroup.files(leaf);
            let files: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
            let (number, controllers) = (u32::try_from(leaf).unwrap(), cgroup.controllers());
            order(RunnerOrder::Leaf { number, controllers }, &files);
        }
        order(RunnerOrder::Run, &[]);
        Session { child, control, host, broker, workdir, scratch, cgroup, log, next: 0 }
    }

    /// Sends a request with its pipes; both outputs are drained from now on.
    pub(crate) fn begin(&mut self, request: Request<'_>) -> Going {
        let flags = rustix::pipe::PipeFlags::CLOEXEC;
        let (out_read, out_write) = rustix::pipe::pipe_with(flags).unwrap();
        let (err_read, err_write) = rustix::pipe::pipe_with(flags).unwrap();
        let stdin_pipe = request.stdin.as_ref().map(|_| rustix::pipe::pipe_with(flags).unwrap());
        self.next += 1;
        let id = RequestId(self.next);
        let run = Run {
            id,
            program: program_of(&request),
            stdin: stdin_pipe.is_some(),
            timeout_ms: u64::try_from(request.timeout.as_millis()).unwrap_or(u64::MAX),
        };
        let mut descriptors: Vec<BorrowedFd<'_>> = stdin_pipe.iter().map(|(read, _)| read.as_fd()).collect();
        descriptors.extend([out_write.as_fd(), err_write.as_fd()]);
        self.host.send_with(&HostToRunner::Run(run), &descriptors).unwrap();
        drop(descriptors);
        let stdin = stdin_pipe.zip(request.stdin).map(|((_, write), bytes)| {
            std::thread::spawn(move || {
                // A program need not read its input: EPIPE is no failure.
                let _ = File::from(write).write_all(&bytes);
            })
        });
        let drain = |read: OwnedFd| {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                File::from(read).read_to_end(&mut bytes).unwrap();
                bytes
            })
        };
        Going { id, stdin, stdout: drain(out_read), stderr: drain(err_read) }
    }

    /// Starts a session process and returns its number and the other ends of its pipes.
    pub(crate) fn launch(&mut self, request: Request<'_>) -> (RequestId, [File; 3]) {
        let flags = rustix::pipe::PipeFlags::CLOEXEC;
        let (in_read, in_write) = rustix::pipe::pipe_with(flags).unwrap();
        let (out_read, out_write) = rustix::pipe::pipe_with(flags).unwrap();
        let (err_read, err_write) = rustix::pipe::pipe_with(flags).unwrap();
        self.next += 1;
        let id = RequestId(self.next);
        let start = HostToRunner::Start(host_runner::Start { id, program: program_of(&request) });
        self.host.send_with(&start, &[in_read.as_fd(), out_write.as_fd(), err_write.as_fd()]).unwrap();
        (id, [in_write, out_read, err_read].map(File::from))
    }

    /// The same, once it runs.
    pub(crate) fn started(&mut self, request: Request<'_>) -> (RequestId, [File; 3]) {
        let (id, pipes) = self.launch(request);
        let answer = self.answer();
        assert!(matches!(answer, RunnerToHost::Started { id: other, .. } if other == id), "{answer:?}");
        (id, pipes)
    }

    /// Asks for a connection; the answer and its socket.
    pub(crate) fn connect(&mut self, process: RequestId, port: u16) -> (RunnerToHost, Option<OwnedFd>) {
        self.next += 1;
        let id = RequestId(self.next);
        self.host.send(&HostToRunner::Connect { id, process, port, timeout_ms: 2000 }).unwrap();
        let deadline = Instant::now() + Duration::from_secs(90);
        let mut received = self.host.receive_until(deadline).unwrap();
        assert_eq!(received.message.id(), id, "{:?}", received.message);
        (received.message, received.descriptors.pop())
    }

    /// Makes the next request carry the number after this one, whether it was used or not.
    pub(crate) fn reuse(&mut self, number: u64) {
        self.next = number;
    }

    /// The next answer, whichever run it belongs to.
    pub(crate) fn answer(&mut self) -> RunnerToHost {
        let deadline = Instant::now() + Duration::from_secs(90);
        self.host.receive_until(deadline).unwrap().message
    }

    /// The output of a run that was answered: both pipes must have ended, for nothing lives that could hold them.
    pub(crate) fn output(&self, going: Going, answer: RunnerToHost) -> Output {
        let until = Instant::now() + Duration::from_secs(5);
        let ended = |going: &Going| {
            let stdin = going.stdin.as_ref().is_none_or(JoinHandle::is_finished);
            stdin && going.stdout.is_finished() && going.stderr.is_finished()
        };
        while !ended(&going) {
            assert!(Instant::now() < until, "a pipe is still held open after {answer:?}");
            std::thread::yield_now();
        }
        let (stdout, stderr) = (going.stdout.join().unwrap(), going.stderr.join().unwrap());
        Output { answer, stdout, stderr }
    }

    /// One run from request to output.
    pub(crate) fn run(&mut self, request: Request<'_>) -> Output {
        let going = self.begin(request);
        let answer = self.answer();
        self.output(going, answer)
    }

    pub(crate) fn bash(&mut self, script: &str) -> Output {
        self.run(Request { program: "bash", args: &["-c", script], ..Request::default() })
    }

    /// Everything that lives in any leaf, zombies not counted.
    pub(crate) fn living(&self) -> String {
        let leaves = (0..self.cgroup.leaves).map(|leaf| self.cgroup.leaf(leaf).join("cgroup.procs"));
        leaves.map(|procs| std::fs::read_to_string(procs).unwrap()).collect()
    }

    /// Numbers of the processes whose parent is the runner, zombies included.
    pub(crate) fn children(&self) -> Vec<String> {
        let parent = format!("\nPPid:\t{}\n", self.child.pid);
        let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
        let is_child = |entry: &std::fs::DirEntry| {
            std::fs::read_to_string(entry.path().join("status")).is_ok_and(|status| status.contains(&parent))
        };
        entries.filter(is_child).map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    pub(crate) fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.pid)).unwrap().count()
    }

    /// Waits for the end of the session and returns how the runner exited and its log.
    pub(crate) fn end(self, how: End) -> (confine::spawn::Exit, String) {
        let Session { child, control, host, broker, scratch, cgroup, log, .. } = self;
        if how == End::Shutdown {
            // A runner that ended by itself is judged by its exit.
            let _ = control.send(&ToRole::Shutdown);
        }
        let kept = (how != End::HostCloses).then_some(host);
        let exit = child.wait().unwrap();
        drop((kept, control, broker, cgroup));
        let _ = std::fs::remove_dir_all(scratch);
        (exit, log.join().unwrap())
    }
}

/// What ends a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The broker's order.
    Shutdown,
    /// Sandbox-host is gone.
    HostCloses,
    /// The runner's own decision.
    ByItself,
}
