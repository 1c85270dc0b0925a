//! A whole sandbox-host in this process, unconfined, with a broker, a runner, a door and an egress made of threads.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ipc::edge::control::{BrokerControl, FromRole, HostOrder, ToRole};
use ipc::edge::door_host::{DoorToHost, ResponseHead};
use ipc::edge::host_broker::{
    Agent, Artifact, BrokerToHost, Event, FetchOutcome, HostToBroker, LoopEnded, Minted, ProcessEvent, Role,
};
use ipc::edge::host_egress::{AnswerHead, HostToEgress, HttpRequest};
use ipc::edge::host_runner::{HostToRunner, RunnerToHost};
use ipc::types::{PlaneCode, RequestId};
use ipc::{Channel, Never, pair};
use serde_json::Value;

use crate::fault::Fault;
use crate::testing::{Folder, agent};
use crate::{load, orders, serve};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the broker saw, in order.
#[derive(Debug)]
pub(super) enum Seen {
    Event(Box<Event>),
    TaskEnded,
    LoopEnded(LoopEnded),
    /// A request to mint: path, audience, lifetime.
    Mint(String, String, Option<u64>),
}

/// The most bytes of an event that comes in parts, as with the real broker.
const MAX_EVENT: usize = 4 * 1024 * 1024;
/// Path of a mint that the broker here never answers.
pub(super) const NEVER_MINTED: &str = "never.md";
/// Host that never answers.
pub(super) const SILENT: &str = "silent.example";
/// Host that never ends its answer.
pub(super) const STALLS: &str = "stalls.example";
/// The handle that is minted here.
pub(super) const HANDLE: &str = "mh1.eyJ2IjoxLCJpc3MiOiJzZXNfMDFhMDMzZWMyYzFmN2ViMmE1OTIyZjg0ZTAxMmU4OWQiLCJwIjoicmVwb3J0Lm1k\
                                 IiwiZXhwIjoxNzU1OTUwMzAwMDAwLCJuIjoiN2YzYzBhNTUxMmU4NGI2ZDlhMDFjMmQzZTRmNTA2MTcifQ.\
                                 ECkYCjRA7Yx4LxWc_e4m2HGEvVzj5X_REXzd5Tqzs4U";

pub(super) struct Rig {
    control: BrokerControl<HostOrder>,
    door: Channel<DoorToHost, Never>,
    next_request: u64,
    pub(super) workdir: Folder,
    pub(super) session: Folder,
    seen: Receiver<Seen>,
    /// One permission per acknowledgement of an ended task; closed means all are given.
    permits: Option<Sender<()>>,
    host: Option<JoinHandle<Result<(), Fault>>>,
    _cache: Folder,
}

impl Rig {
    /// Starts a session with `driver` (a component of this repository) and any change to the agent.
    pub(super) fn start(driver: &str, change: impl FnOnce(&mut Agent)) -> Self {
        Self::with(driver, change, false, |_, _| (AnswerHead::Denied, Vec::new()))
    }

    /// The same; if `hold`, tasks that ended are acknowledged one by one with [`Rig::acknowledge`].
    pub(super) fn with(
        driver: &str,
        change: impl FnOnce(&mut Agent),
        hold: bool,
        answer: impl Fn(&HttpRequest, Vec<u8>) -> (AnswerHead, Vec<u8>) + Send + 'static,
    ) -> Self {
        let (workdir, session, cache) = (Folder::new(), Folder::new(), Folder::new());
        let mut document = agent();
        document.artifacts[0].cache_entry = "driver".into();
        std::fs::copy(compiled(driver), cache.path().join("driver")).unwrap();
        change(&mut document);
        for artifact in document.artifacts.iter().skip(1) {
            std::fs::copy(compiled(&artifact.cache_entry), cache.path().join(&artifact.name)).unwrap();
        }
        for artifact in document.artifacts.iter_mut().skip(1) {
            artifact.cache_entry = artifact.name.clone();
        }

        let (mut control, mut host_control) = pair::<ToRole<HostOrder>, FromRole>().unwrap();
        let (broker, host_broker) = pair::<BrokerToHost, HostToBroker>().unwrap();
        let (runner, host_runner) = pair::<RunnerToHost, HostToRunner>().unwrap();
        let (door, host_door) = pair::<DoorToHost, Never>().unwrap();
        let (egress, host_egress) = pair::<Never, HostToEgress>().unwrap();
        let paths = [cache.path(), workdir.path(), session.path()].map(Path::to_owned);
        // The name tells this thread from its peers in a trace of system calls.
        let host = std::thread::Builder::new().name("sandbox-host".into()).spawn(move || {
            let Some(wired) = orders::until_load(&mut host_control)? else { return Ok(()) };
            let [cache, workdir, session] = paths;
            let prepared =
                serve::prepare(load::engine().map_err(Fault::Own)?, wired, &cache, &workdir, &session)
                    .map_err(Fault::Own)?;
            serve::serve(host_control, prepared)
        });
        let host = host.unwrap();
        let order = |order, descriptors: &[std::os::fd::OwnedFd]| {
            let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            control.send_with(&ToRole::Order(order), &descriptors).unwrap();
        };
        let file = ipc::memory::sealed_document("agent", &document).unwrap();
        order(
            HostOrder::Configure,
            &[host_broker.into_descriptor().unwrap(), host_runner.into_descriptor().unwrap(), file],
        );
        order(HostOrder::Door, &[host_door.into_descriptor().unwrap()]);
        order(HostOrder::Egress, &[host_egress.into_descriptor().unwrap()]);
        order(HostOrder::Load, &[]);
        let sealed = control.receive_until(Instant::now() + PATIENCE);
        assert!(matches!(sealed.as_ref().map(|r| &r.message), Ok(FromRole::Sealed)), "{sealed:?}");

        let (permits, permitted) = channel();
        let (see, seen) = channel();
        std::thread::spawn(move || be_broker(broker, see, permitted));
        let directory = workdir.path().to_owned();
        std::thread::spawn(move || be_runner(runner, &directory));
        std::thread::spawn(move || be_egress(egress, answer));
        let order = ToRole::Order(HostOrder::Run);
        control.send(&order).unwrap();
        Rig {
            control,
            door,
            next_request: 1,
            workdir,
            session,
            seen,
            permits: hold.then_some(permits),
            host: Some(host),
            _cache: cache,
        }
    }

    /// The next thing the broker sees.
    pub(super) fn next(&self) -> Seen {
        self.seen.recv_timeout(PATIENCE).expect("the broker sees something")
    }

    /// The arrival of a task: its id and the message's.
    pub(super) fn received(&self) -> (String, String) {
        match self.next() {
            Seen::Event(event) => match *event {
                Event::A2aTaskReceived { task_id, message_id, .. } => (task_id, message_id),
                other => panic!("{other:?} instead of an arrival"),
            },
            other => panic!("{other:?} instead of an arrival"),
        }
    }

    /// Skips what the broker sees up to the next inference.
    pub(super) fn until_inference(&self) {
        while !matches!(self.next(), Seen::Event(event) if matches!(*event, Event::Inference { .. })) {}
    }

    /// What the broker sees up to the end of the running task, as short words in order.
    pub(super) fn until_task_ended(&self) -> Vec<String> {
        let mut words = Vec::new();
        loop {
            match self.next() {
                Seen::Event(event) => words.push(word(&event)),
                Seen::TaskEnded => return words,
                Seen::LoopEnded(totals) => panic!("{words:?}, then {totals:?}"),
                Seen::Mint(path, ..) => words.push(format!("mint {path}")),
            }
        }
    }

    /// The end of the loop; skips what comes before.
    pub(super) fn loop_ended(&self) -> LoopEnded {
        loop {
            if let Seen::LoopEnded(totals) = self.next() {
                return totals;
            }
        }
    }

    /// Acknowledges one ended task.
    pub(super) fn acknowledge(&self) {
        self.permits.as_ref().unwrap().send(()).unwrap();
    }

    /// Orders the end and returns how the process would exit.
    pub(super) fn shut_down(mut self) -> Result<(), Fault> {
        self.control.send(&ToRole::Shutdown).unwrap();
        self.host.take().unwrap().join().unwrap()
    }

    /// The same, with the words of the events up to the end of the loop.
    pub(super) fn shut_down_seeing(mut self, words: &mut Vec<String>) -> Result<(), Fault> {
        self.control.send(&ToRole::Shutdown).unwrap();
        loop {
            match self.next() {
                Seen::Event(event) => words.push(word(&event)),
                Seen::LoopEnded(_) => return self.host.take().unwrap().join().unwrap(),
                Seen::TaskEnded | Seen::Mint(..) => {}
            }
        }
    }

    /// How the process ends by itself, once its broker's control channel is closed.
    pub(super) fn abandon(self) -> Result<(), Fault> {
        let Rig { control, host, .. } = self;
        drop(control);
        host.unwrap().join().unwrap()
    }

    /// Sends a body over the door; the answer comes where is returned.
    fn ask(&mut self, body: &str) -> File {
        let stream = ipc::stream::stream().unwrap();
        let message = DoorToHost::Request {
            id: RequestId(self.next_request),
            content_length: body.len() as u64,
            a2a_version: vec!["1.0".into()],
            a2a_extensions: vec![],
            last_event_id: None,
            traceparent: None,
            task_origin: None,
            task_trust: None,
        };
        self.next_request += 1;
        self.door.send_with(&message, &[stream.far.input.as_fd(), stream.far.output.as_fd()]).unwrap();
        drop(stream.far);
        File::from(stream.near.output).write_all(body.as_bytes()).unwrap();
        File::from(stream.near.input)
    }

    /// Sends a body over the door; the answer comes on the returned thread.
    pub(super) fn post(&mut self, body: &str) -> JoinHandle<(u16, Value)> {
        let mut input = self.ask(body);
        std::thread::spawn(move || {
            let head: ResponseHead = ipc::stream::read_head(&mut input).unwrap();
            let mut body = Vec::new();
            input.read_to_end(&mut body).unwrap();
            assert_eq!(head.content_length, Some(body.len() as u64));
            (head.status, serde_json::from_slice(&body).unwrap())
        })
    }

    /// Calls a method; its result, or its error code.
    pub(super) fn call(&mut self, method: &str, params: Value) -> JoinHandle<Result<Value, i64>> {
        let body = serde_json::json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
        let answer = self.post(&body.to_string());
        std::thread::spawn(move || {
            let (status, mut document) = answer.join().unwrap();
            assert_eq!((status, &document["id"]), (200, &Value::from(7)));
            match document["error"]["code"].as_i64() {
                Some(code) => Err(code),
                None => Ok(document["result"].take()),
            }
        })
    }

    /// Sends a message of one text.
    pub(super) fn send(&mut self, text: &str) -> JoinHandle<Result<Value, i64>> {
        self.call("SendMessage", message(text))
    }

    /// Sends a message of one text and goes away before the answer.
    pub(super) fn send_and_leave(&mut self, text: &str) {
        let body =
            serde_json::json!({"jsonrpc": "2.0", "id": 7, "method": "SendMessage", "params": message(text)});
        drop(self.ask(&body.to_string()));
    }
}

fn message(text: &str) -> Value {
    serde_json::json!({"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}})
}

/// A tool artifact made of a component of this repository.
pub(super) fn tool(component: &str, scope: &[&str]) -> Artifact {
    let mut artifact = agent().artifacts.remove(0);
    artifact.name = "file-tool".into();
    artifact.role = Role::Tool;
    artifact.cache_entry = component.into();
    artifact.scope = scope.iter().map(|s| (*s).to_owned()).collect();
    artifact
}

pub(super) fn word(event: &Event) -> String {
    match event {
        Event::A2aTaskReceived { .. } => "received".into(),
        Event::TaskStart { .. } => "start".into(),
        Event::TaskEnd { exit_status, .. } => format!("end {}", exit_status.as_str()),
        Event::TaskFailed { cause, .. } => format!("failed {cause:?}"),
        Event::TaskCanceled { phase, .. } => format!("canceled {phase:?}"),
        Event::TaskRejected { .. } => "rejected".into(),
        Event::Inference { decision, .. } => format!("inference {decision:?}"),
        Event::ToolCall { tool_name, ok, .. } => format!("tool {tool_name} {ok}"),
        Event::Shell { exit_code, .. } => format!("shell {exit_code}"),
        Event::Process(event) => process_word(event),
        Event::ProtectedPathDenied { path, .. } => format!("protected {path}"),
        Event::CallDenied { hook_name, .. } => format!("denied {hook_name}"),
        Event::PeerHandleMintFailed { cause, .. } => format!("no mint {cause:?}"),
        Event::PeerFileFetch { outcome: FetchOutcome::Stored { path, .. }, .. } => format!("stored {path}"),
        Event::PeerFileFetch { outcome, .. } => format!("no fetch {outcome:?}"),
    }
}

fn process_word(event: &ProcessEvent) -> String {
    match event {
        ProcessEvent::Run { exit_code, timed_out, .. } => format!("run {exit_code} {timed_out}"),
        ProcessEvent::Start { name, already_running, running, .. } => {
            format!("start {name} {already_running} {running}")
        }
        ProcessEvent::Exit { name, exit_code, cause, killed, .. } => {
            format!("exit {name} {exit_code} {cause:?} {killed}")
        }
        ProcessEvent::Denied { function, rule, .. } => format!("denied {function} {rule}"),
        ProcessEvent::Connect { port: _, bytes_in, bytes_out, .. } => {
            format!("connection {bytes_in} {bytes_out}")
        }
    }
}

fn be_broker(mut channel: Channel<BrokerToHost, HostToBroker>, see: Sender<Seen>, permitted: Receiver<()>) {
    let mut parts = Vec::new();
    let mut generation = 0;
    while let Ok(received) = channel.receive() {
        let seen = match received.message {
            HostToBroker::Event(event) => Seen::Event(event),
            HostToBroker::EventPart { last, bytes } => {
                parts.extend(bytes);
                assert!(parts.len() <= MAX_EVENT, "the broker ends a session for this");
                if !last {
                    continue;
                }
                Seen::Event(Box::new(ipc::codec::decode_document(&std::mem::take(&mut parts)).unwrap()))
            }
            HostToBroker::TaskEnded { task_id } => {
                let _ = see.send(Seen::TaskEnded);
                // An error is the closed channel of a rig that holds nothing back.
                let _ = permitted.recv();
                generation += 1;
                let _ = channel.send(&BrokerToHost::TaskEndedStored { task_id, generation });
                continue;
            }
            HostToBroker::LoopEnded(totals) => Seen::LoopEnded(totals),
            HostToBroker::Mint { id, path, audience, ttl_ms } => {
                let path = path.as_str().to_owned();
                let outcome = match path.as_str() {
                    NEVER_MINTED => None,
                    "gone.md" => Some(Err(PlaneCode::NotFound)),
                    "link.md" => Some(Err(PlaneCode::SymlinkRefused)),
                    _ => Some(Ok(Minted {
                        handle: HANDLE.to_owned(),
                        handle_id: handle::handle_id(HANDLE),
                        expires_at_ms: 1_755_950_300_000,
                    })),
                };
                let _ = see.send(Seen::Mint(path, audience, ttl_ms));
                if let Some(outcome) = outcome {
                    let _ = channel.send(&BrokerToHost::Minted { id, outcome });
                }
                continue;
            }
        };
        let _ = see.send(seen);
    }
}

/// Starts each program in its own group and kills the group on demand, as the real one does with a control group. It connects to
/// any listener: whose it is, the real one finds out.
fn be_runner(mut channel: Channel<RunnerToHost, HostToRunner>, workdir: &Path) {
    let groups: Arc<Mutex<HashMap<RequestId, rustix::process::Pid>>> = Arc::default();
    let signal = |id: &RequestId, signal| {
        if let Some(group) = groups.lock().unwrap().get(id) {
            let _ = rustix::process::kill_process_group(*group, signal);
        }
    };
    while let Ok(received) = channel.receive() {
        let mut descriptors = received.descriptors.into_iter();
        let (id, program, stdin, timeout) = match received.message {
            HostToRunner::Run(run) => {
                let timeout = Duration::from_millis(run.timeout_ms);
                (run.id, run.program, run.stdin.then(|| descriptors.next().unwrap()), Some(timeout))
            }
            HostToRunner::Start(start) => (start.id, start.program, descriptors.next(), None),
            HostToRunner::Kill { id } => {
                signal(&id, rustix::process::Signal::KILL);
                continue;
            }
            HostToRunner::Stop { id } => {
                signal(&id, rustix::process::Signal::TERM);
                continue;
            }
            HostToRunner::Connect { id, port, .. } => {
                match std::net::TcpStream::connect(("127.0.0.1", port)) {
                    Ok(stream) => {
                        stream.set_nonblocking(true).unwrap();
                        channel.send_with(&RunnerToHost::Connected { id }, &[stream.as_fd()]).unwrap();
                    }
                    Err(_) => channel.send(&RunnerToHost::NotListening { id }).unwrap(),
                }
                continue;
            }
        };
        let [stdout, stderr] = <[_; 2]>::try_from(descriptors.collect::<Vec<_>>()).unwrap();
        let dropped = program.env.iter().any(|(name, _)| name == "PATH").then(|| "PATH".to_owned());
        let env_dropped: Vec<String> = dropped.into_iter().collect();
        let child = Command::new(&program.name)
            .args(&program.args)
            .envs(program.env.iter().filter(|(name, _)| name != "PATH").cloned())
            .current_dir(workdir)
            .stdin(stdin.map_or_else(Stdio::null, Stdio::from))
            .stdout(stdout)
            .stderr(stderr)
            .process_group(0)
            .spawn();
        let sender = channel.sender();
        let mut child = match child {
            Ok(child) => child,
            Err(error) => {
                let _ = sender.send(&RunnerToHost::Failed { id, reason: error.to_string() });
                continue;
            }
        };
        let group = rustix::process::Pid::from_child(&child);
        groups.lock().unwrap().insert(id, group);
        if timeout.is_none() {
            let env_dropped = env_dropped.clone();
            sender.send(&RunnerToHost::Started { id, env_dropped }).unwrap();
        }
        std::thread::spawn(move || {
            use std::os::unix::process::ExitStatusExt;
            let (over, watch) = std::sync::mpsc::channel::<()>();
            let late = timeout.map(|timeout| {
                std::thread::spawn(move || {
                    let late = watch.recv_timeout(timeout) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
                    if late {
                        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
                    }
                    late
                })
            });
            let status = child.wait().unwrap();
            drop(over);
            let timed_out = late.is_some_and(|late| late.join().unwrap());
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            let exit_code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
            let killed = status.signal() == Some(9);
            let _ = sender.send(&match timeout {
                Some(_) => {
                    RunnerToHost::Finished { id, exit_code, timed_out, env_dropped, resource_limit: None }
                }
                None => RunnerToHost::Ended { id, exit_code, killed, resource_limit: None },
            });
        });
    }
}

fn be_egress(
    mut channel: Channel<Never, HostToEgress>,
    answer: impl Fn(&HttpRequest, Vec<u8>) -> (AnswerHead, Vec<u8>),
) {
    let mut open = Vec::new();
    while let Ok(received) = channel.receive() {
        let HostToEgress::HttpRequest(request) = received.message;
        let [input, output] = <[_; 2]>::try_from(received.descriptors).unwrap();
        let mut body = Vec::new();
        File::from(input).read_to_end(&mut body).unwrap();
        let mut output = File::from(output);
        if request.host == SILENT {
            open.push(output);
            continue;
        }
        let (head, body) = answer(&request, body);
        ipc::stream::write_head(&output, &head).unwrap();
        // Whoever has heard enough stops reading.
        let _ = output.write_all(&body);
        if request.host == STALLS {
            open.push(output);
        }
    }
}

/// Native code of a component of this repository, made by the compiler's own program: this package links no compiler.
fn compiled(component: &str) -> PathBuf {
    static COMPILER: OnceLock<(PathBuf, Folder)> = OnceLock::new();
    static DONE: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let (compiler, folder) = COMPILER.get_or_init(|| (compile_program(), Folder::new()));
    let mut done = DONE.lock().unwrap();
    let number = done.len();
    done.entry(component.to_owned())
        .or_insert_with(|| {
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(component);
            let output = folder.path().join(number.to_string());
            let status = Command::new(compiler).arg(&source).arg(&output).status().unwrap();
            assert!(status.success(), "{component} was compiled");
            output
        })
        .clone()
}

fn compile_program() -> PathBuf {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["build", "--quiet", "-p", "compiler", "--example", "compile", "--message-format=json"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(output.status.success(), "the compiler's example was built");
    let lines = String::from_utf8(output.stdout).unwrap();
    lines
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == "compile")
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .expect("the example has an executable")
}
