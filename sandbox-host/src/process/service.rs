//! Answers what components ask over `murmur:process`: one task per question, on the session's own thread.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipc::edge::host_broker::{Event, ProcessCall, ProcessEvent};
use ipc::edge::host_runner::Program;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::{Mutex, OwnedSemaphorePermit, mpsc, watch};
use tokio::task::spawn_local;

use super::connection::{Closed, Connection};
use super::stream::{KEPT, Stream};
use super::table::Process;
use super::{
    Ask, Output, Place, ProcessError, Reply, RunOutput, RunRequest, StartRequest, Started, State, ToolCall,
    What, ended,
};
use crate::capture::{Capture, Feed, NoPipe};
use crate::fault::Fault;
use crate::gate::{self, Refusal, Wanted};
use crate::ids::{fresh, millis};
use crate::runner::{self, Ended, Exit, Finished, NotConnected, NotStarted};
use crate::session::Session;
use crate::text::{RECORDED, clip};

/// The longest name of a process (seed: `start`).
const LONGEST_NAME: usize = 64;
/// Between the end of a process's stdin and the news of its own end.
const LAST_NEWS: Duration = Duration::from_millis(500);

/// Work that the service does for one question.
type Done<T> = Result<Result<T, ProcessError>, Fault>;

/// Answers questions until the session is over.
pub(crate) async fn serve(
    session: Rc<Session>,
    service: mpsc::UnboundedSender<Ask>,
    mut asks: mpsc::UnboundedReceiver<Ask>,
) -> Fault {
    let (faults, mut faulted) = mpsc::unbounded_channel();
    let service = Rc::new(Service { session, service, faults, starting: Mutex::default() });
    loop {
        tokio::select! {
            Some(ask) = asks.recv() => {
                let service = Rc::clone(&service);
                spawn_local(async move {
                    if let Err(fault) = service.answer(ask).await {
                        let _ = service.faults.send(fault);
                    }
                });
            }
            Some(fault) = faulted.recv() => return fault,
        }
    }
}

struct Service {
    session: Rc<Session>,
    service: mpsc::UnboundedSender<Ask>,
    faults: mpsc::UnboundedSender<Fault>,
    /// Held while a process is started. A call that was given up may still be at it when the next one asks for the same name.
    starting: Mutex<()>,
}

/// A question, for the line of its refusal.
struct Asked<'a> {
    place: &'a Place,
    function: &'static str,
    target: String,
}

impl Service {
    async fn answer(self: &Rc<Self>, ask: Ask) -> Result<(), Fault> {
        let Ask { place, deadline, what } = ask;
        let place = &place;
        let asked = |function, target: &str| Asked { place, function, target: clip(target, RECORDED) };
        match what {
            What::Run(request, reply) => {
                let asked = asked("run", &request.program);
                self.give(&asked, reply, self.run(place, deadline, request)).await
            }
            What::Start(request, reply) => {
                let asked = asked("start", &request.program);
                // Not given up when nobody waits any more: what was started must be known.
                let done = self.start(place, request, || reply.is_closed()).await?;
                let done = self.recorded(&asked, done).await?;
                let _ = reply.send(done);
                Ok(())
            }
            What::Find(name, reply) => {
                let found = match self.tool(place) {
                    Ok(tool) => self.session.processes.named(&tool.name, &name),
                    Err(refusal) => {
                        self.deny(&asked("find", &name), refusal.rule, &refusal.reason).await?;
                        None
                    }
                };
                let _ = reply.send(found.map(|process| process.handle.clone()));
                Ok(())
            }
            What::Status(handle, reply) => {
                let status =
                    async { Ok(self.process(place, &handle).map(|process| state(process.exited()))) };
                self.give(&asked("status", &handle), reply, status).await
            }
            What::Write(handle, bytes, reply) => {
                let write = self.write(place, &handle, deadline, &bytes);
                self.give(&asked("write", &handle), reply, write).await
            }
            What::Read(handle, most, reply) => {
                let read = async { Ok(self.process(place, &handle).map(|process| read(&process, most))) };
                self.give(&asked("read", &handle), reply, read).await
            }
            What::Stop(handle, reply) => {
                let stop = self.stop(place, &handle, deadline);
                self.give(&asked("stop", &handle), reply, stop).await
            }
            What::Connect(handle, port, permit, reply) => {
                let connect = self.connect(place, &handle, port, permit, deadline);
                self.give(&asked("connect", &format!("{handle}:{port}")), reply, connect).await
            }
            What::Closed(closed) => self.closed(place, closed).await,
        }
    }

    /// Does the work unless its caller is gone, and answers.
    async fn give<T>(
        &self,
        asked: &Asked<'_>,
        mut reply: Reply<T>,
        work: impl Future<Output = Done<T>>,
    ) -> Result<(), Fault> {
        let done = tokio::select! {
            biased;
            () = reply.closed() => return Ok(()),
            done = work => done?,
        };
        let done = self.recorded(asked, done).await?;
        let _ = reply.send(done);
        Ok(())
    }

    /// Records a refusal before its caller hears of it.
    async fn recorded<T>(&self, asked: &Asked<'_>, done: Result<T, ProcessError>) -> Done<T> {
        if let Err(ProcessError::Refused(refusal)) = &done {
            self.deny(asked, &refusal.rule, &refusal.reason).await?;
        }
        Ok(done)
    }

    async fn deny(&self, asked: &Asked<'_>, rule: &str, reason: &str) -> Result<(), Fault> {
        let line = ProcessEvent::Denied {
            turn: asked.place.turn,
            task_id: asked.place.task_id.clone(),
            tool_name: asked.place.tool.as_ref().map(|tool| tool.name.clone()),
            function: asked.function.to_owned(),
            target: asked.target.clone(),
            rule: rule.to_owned(),
            reason: clip(reason, RECORDED),
        };
        self.session.broker.event(Event::Process(line)).await
    }

    /// The tool call that is served.
    fn tool<'p>(&self, place: &'p Place) -> Result<&'p ToolCall, Refusal> {
        let tool = place.tool.as_ref();
        let tool =
            tool.ok_or_else(|| Refusal::new("unavailable", "programs are run only for a tool call"))?;
        if self.session.processes.is_over() { Err(ended()) } else { Ok(tool) }
    }

    /// The caller's process.
    fn process(&self, place: &Place, handle: &str) -> Result<Rc<Process>, ProcessError> {
        let tool = self.tool(place)?;
        self.session.processes.of(&tool.name, handle).ok_or(ProcessError::UnknownHandle)
    }

    /// The beginning of the line of a program.
    fn line(&self, place: &Place, tool: &ToolCall, program: &Program, dropped: Vec<String>) -> ProcessCall {
        let mut env_names: Vec<String> = program.env.iter().map(|(name, _)| name.clone()).collect();
        env_names.retain(|name| !dropped.contains(name));
        env_names.sort();
        env_names.dedup();
        ProcessCall {
            turn: place.turn.unwrap_or_default(),
            task_id: place.task_id.clone(),
            tool_name: tool.name.clone(),
            tool_call_id: tool.id.clone(),
            binary: gate::binary(&self.session, &program.name).unwrap_or(&program.name).to_owned(),
            command: program.args.join(" "),
            env_names,
            env_dropped: dropped,
        }
    }

    async fn run(&self, place: &Place, deadline: Instant, request: RunRequest) -> Done<RunOutput> {
        let RunRequest { program: name, args, env, stdin, timeout_ms } = request;
        let tool = match self.tool(place) {
            Ok(tool) => tool,
            Err(refusal) => return Ok(Err(refusal.into())),
        };
        let program = Program { name, args, env };
        if !runner::fits(&program) {
            return Ok(Err(ProcessError::Failed(runner::TOO_LARGE.to_owned())));
        }
        if let Err(refusal) = gate::pass(&self.session, &wanted(place, &program)).await {
            return Ok(Err(refusal.into()));
        }
        let started = Instant::now();
        let left = deadline.saturating_duration_since(started);
        let limit = timeout_ms.map_or(left, |limit| left.min(Duration::from_millis(limit)));
        let stdin_bytes = stdin.as_ref().map(|bytes| bytes.len() as u64);
        let pipes = || {
            let stdin = stdin.map(Feed::start).transpose()?;
            Ok::<_, NoPipe>((stdin, Capture::start(KEPT)?, Capture::start(KEPT)?))
        };
        let (stdin, (stdout, stdout_writer), (stderr, stderr_writer)) = match pipes() {
            Ok(pipes) => pipes,
            Err(error) => return Ok(Err(ProcessError::Failed(error.to_string()))),
        };
        let (feed, stdin) = stdin.unzip();
        let written = [stdout_writer, stderr_writer];
        let ended = self.session.runner.run(program.clone(), limit, stdin, written).await?;
        drop(feed);
        let Finished { exit_code, timed_out, env_dropped, resource_limit } = match ended {
            Ended::Finished(finished) => finished,
            Ended::NotAllowed => return Ok(Err(gate::not_allowed(&program.name).into())),
            Ended::Failed(reason) => return Ok(Err(ProcessError::Failed(reason))),
        };
        let (stdout, stderr) = (stdout.finish().await, stderr.finish().await);
        let (stdout_truncated, stderr_truncated) = (stdout.is_cut(), stderr.is_cut());
        let line = ProcessEvent::Run {
            call: self.line(place, tool, &program, env_dropped),
            stdin_bytes,
            exit_code,
            timed_out,
            timeout_ms: millis(limit),
            stdout_bytes: stdout.total,
            stderr_bytes: stderr.total,
            stdout_truncated,
            stderr_truncated,
            duration_ms: millis(started.elapsed()),
            resource_limit,
        };
        self.session.broker.event(Event::Process(line)).await?;
        Ok(Ok(RunOutput {
            exit_code,
            timed_out,
            stdout: stdout.bytes,
            stdout_truncated,
            stderr: stderr.bytes,
            stderr_truncated,
        }))
    }

    /// Starts a session process, unless whoever asked has `left` by the time it was judged.
    async fn start(
        self: &Rc<Self>,
        place: &Place,
        request: StartRequest,
        left: impl Fn() -> bool,
    ) -> Done<Started> {
        let _one = self.starting.lock().await;
        let StartRequest { name, program, args, env } = request;
        let program = Program { name: program, args, env };
        let processes = &self.session.processes;
        let tool = match self.tool(place) {
            Ok(tool) => tool,
            Err(refusal) => return Ok(Err(refusal.into())),
        };
        if !runner::fits(&program) {
            return Ok(Err(ProcessError::Failed(runner::TOO_LARGE.to_owned())));
        }
        let admitted = check_name(&name).and_then(|()| gate::binary(&self.session, &program.name));
        if let Err(refusal) = admitted {
            return Ok(Err(refusal.into()));
        }
        let line = |call, process_id: &str, already_running| ProcessEvent::Start {
            call,
            process_id: process_id.to_owned(),
            name: name.clone(),
            already_running,
            running: u32::try_from(processes.running()).unwrap_or(u32::MAX),
        };
        let earlier = processes.named(&tool.name, &name).filter(|process| process.exited().is_none());
        if let Some(process) = earlier {
            let call = self.line(place, tool, &program, Vec::new());
            let line = line(call, &process.handle, true);
            self.session.broker.event(Event::Process(line)).await?;
            return Ok(Ok(Started { handle: process.handle.clone(), already_running: true }));
        }
        let _reserved = match processes.reserve(&self.session) {
            Ok(reserved) => reserved,
            Err(refusal) => return Ok(Err(refusal.into())),
        };
        if let Err(refusal) = gate::pass(&self.session, &wanted(place, &program)).await {
            return Ok(Err(refusal.into()));
        }
        if left() || processes.is_over() {
            let reason = "the call is over, or the session is ending";
            return Ok(Err(Refusal::new("session-ended", reason).into()));
        }
        let pipes = || Ok::<_, NoPipe>((stdin()?, Stream::open()?, Stream::open()?));
        let ((stdin, stdin_reader), (stdout, stdout_writer), (stderr, stderr_writer)) = match pipes() {
            Ok(pipes) => pipes,
            Err(error) => return Ok(Err(ProcessError::Failed(error.to_string()))),
        };
        let started = Instant::now();
        let standard = [stdin_reader, stdout_writer, stderr_writer];
        let running = match self.session.runner.start(program.clone(), standard).await? {
            Ok(running) => running,
            Err(NotStarted::NotAllowed) => return Ok(Err(gate::not_allowed(&program.name).into())),
            Err(NotStarted::Failed(reason)) => return Ok(Err(ProcessError::Failed(reason))),
        };
        let call = self.line(place, tool, &program, running.env_dropped);
        let process = Rc::new(Process {
            handle: fresh("prc"),
            tool: tool.name.clone(),
            name: name.clone(),
            binary: call.binary.clone(),
            id: running.id,
            started,
            stdin: Mutex::new(Some(stdin)),
            written: Default::default(),
            stdout: Rc::clone(&stdout),
            stderr: Rc::clone(&stderr),
            exit: watch::Sender::new(None),
            stopping: Default::default(),
        });
        processes.add(Rc::clone(&process));
        spawn_local(stdout.pump());
        spawn_local(stderr.pump());
        let line = line(call, &process.handle, false);
        self.session.broker.event(Event::Process(line)).await?;
        self.watch(Rc::clone(&process), running.ended);
        if processes.is_over() {
            // The session ended while this one was being started.
            self.session.runner.kill(process.id).await?;
        }
        Ok(Ok(Started { handle: process.handle.clone(), already_running: false }))
    }

    /// Waits for the end of a process in a task of its own.
    fn watch(self: &Rc<Self>, process: Rc<Process>, ended: tokio::sync::oneshot::Receiver<Exit>) {
        let service = Rc::clone(self);
        spawn_local(async move {
            // Without an answer the runner is gone, and with it the session.
            let Ok(exit) = ended.await else { return };
            if let Err(fault) = service.session.processes.over(&service.session, &process, exit).await {
                let _ = service.faults.send(fault);
            }
        });
    }

    async fn write(&self, place: &Place, handle: &str, deadline: Instant, bytes: &[u8]) -> Done<()> {
        let process = match self.process(place, handle) {
            Ok(process) => process,
            Err(error) => return Ok(Err(error)),
        };
        let write = async {
            let mut stdin = process.stdin.lock().await;
            let Some(stdin) = stdin.as_mut() else { return false };
            let mut rest = bytes;
            while !rest.is_empty() {
                let Ok(count) = stdin.write(rest).await else { return false };
                process.written.set(process.written.get().saturating_add(count as u64));
                rest = rest.get(count..).unwrap_or_default();
            }
            true
        };
        let written = tokio::select! {
            biased;
            _ = process.until_exited() => return Ok(Err(ProcessError::NotRunning)),
            written = tokio::time::timeout_at(deadline.into(), write) => written,
        };
        Ok(match written {
            Err(_elapsed) => Err(ProcessError::TimedOut),
            Ok(true) => Ok(()),
            // Its input ends with the process, and the news of that may be on its way.
            Ok(false) if tokio::time::timeout(LAST_NEWS, process.until_exited()).await.is_ok() => {
                Err(ProcessError::NotRunning)
            }
            Ok(false) => Err(ProcessError::Failed("the process has closed its stdin".to_owned())),
        })
    }

    async fn stop(&self, place: &Place, handle: &str, deadline: Instant) -> Done<State> {
        let process = match self.process(place, handle) {
            Ok(process) => process,
            Err(error) => return Ok(Err(error)),
        };
        if !process.stopping.get() {
            // Of a process that is over, this ends what it left behind. Whoever is dropped here has not asked, and the next does.
            self.session.runner.stop(process.id).await?;
            process.stopping.set(true);
        }
        match tokio::time::timeout_at(deadline.into(), process.until_exited()).await {
            Ok(exit) => Ok(Ok(State::Exited(exit.code))),
            Err(_elapsed) => Ok(Err(ProcessError::TimedOut)),
        }
    }

    async fn connect(
        &self,
        place: &Arc<Place>,
        handle: &str,
        port: u16,
        permit: OwnedSemaphorePermit,
        deadline: Instant,
    ) -> Done<Connection> {
        let process = match self.process(place, handle) {
            Ok(process) => process,
            Err(error) => return Ok(Err(error)),
        };
        if process.exited().is_some() {
            return Ok(Err(ProcessError::NotRunning));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        // One that ended meanwhile has no group any more, and nobody in it listens.
        Ok(match self.session.runner.connect(process.id, port, left).await? {
            Ok(socket) => Connection::new(socket, handle, port, place, permit, self.service.clone())
                .map_err(|error| ProcessError::Failed(format!("the connection cannot be used: {error}"))),
            Err(NotConnected::NotListening) => {
                let reason = format!("no process of the handle's process group alone listens on port {port}");
                Err(Refusal::new("connect", reason).into())
            }
            Err(NotConnected::NotAccepted) => Err(ProcessError::TimedOut),
            Err(NotConnected::Failed(reason)) => Err(ProcessError::Failed(reason)),
        })
    }

    async fn closed(&self, place: &Place, closed: Closed) -> Result<(), Fault> {
        let line = ProcessEvent::Connect {
            process_id: closed.process_id,
            tool_name: place.tool.as_ref().map(|tool| tool.name.clone()).unwrap_or_default(),
            port: closed.port,
            bytes_in: closed.bytes_in,
            bytes_out: closed.bytes_out,
            duration_ms: closed.duration_ms,
        };
        self.session.broker.event(Event::Process(line)).await
    }
}

fn wanted<'a>(place: &'a Place, program: &'a Program) -> Wanted<'a> {
    Wanted {
        program: &program.name,
        args: &program.args,
        task_id: place.task_id.as_deref(),
        turn: place.turn.unwrap_or_default(),
    }
}

/// The way into a session process: the reading end is for the program.
fn stdin() -> Result<(pipe::Sender, OwnedFd), NoPipe> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(std::io::Error::from)?;
    Ok((pipe::Sender::from_owned_fd(writer)?, reader))
}

fn state(exit: Option<Exit>) -> State {
    exit.map_or(State::Running, |exit| State::Exited(exit.code))
}

fn read(process: &Process, most: u32) -> Output {
    process.stdout.catch_up();
    process.stderr.catch_up();
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let (stdout, stdout_dropped) = process.stdout.take(most);
    let (stderr, stderr_dropped) = process.stderr.take(most);
    Output { stdout, stderr, stdout_dropped, stderr_dropped }
}

/// Seed: `start-request`.
fn check_name(name: &str) -> Result<(), Refusal> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if !name.is_empty() && name.len() <= LONGEST_NAME && name.bytes().all(good) {
        return Ok(());
    }
    Err(Refusal::new("name", "a name is 1 to 64 characters of A-Z a-z 0-9 . _ -"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_to_sixty_four_plain_characters() {
        let longest = "a".repeat(64);
        for name in ["a", "A.b_c-9", "-", "..", longest.as_str()] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        let longer = "a".repeat(65);
        for name in ["", " ", "a b", "ä", "a/b", "a\0", "a\n", longer.as_str()] {
            assert_eq!(check_name(name).unwrap_err().rule, "name", "{name:?}");
        }
    }
}
