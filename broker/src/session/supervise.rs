//! A session that serves: waits for signals, deaths and the end of the agent's loop; replaces the three processes that hold
//! no session state; ends the session in order.

use std::net::TcpListener;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ipc::edge::control::{
    DoorConfigure, DoorOrder, EgressConfigure, EgressOrder, FileserverConfigure, FileserverOrder, HostOrder,
    RunnerOrder,
};
use ipc::edge::host_broker::{ExitStatus, LoopEnded};
use rustix::event::{PollFd, PollFlags};

use super::places::Places;
use super::process::{Kind, Life, Process, Speech};
use super::readers::{Inbox, Instance, News};
use super::signals::Signals;
use super::starter::Starter;
use crate::refusal::Refusal;
use crate::trace::Entry;

/// Processes that can be replaced: what they know, others know, too.
const STATELESS: [Kind; 3] = [Kind::Fileserver, Kind::Door, Kind::Egress];
/// Processes that are the session.
const IRREPLACEABLE: [Kind; 2] = [Kind::SandboxHost, Kind::Runner];

/// An ordinary end may take this long (`spec: first SIGTERM`), then it is a hard one.
const END_PATIENCE: Duration = Duration::from_secs(20);

/// More deaths of one role than this within [`DEATH_WINDOW`] end the session.
const DEATHS: usize = 2;

/// See [`DEATHS`].
const DEATH_WINDOW: Duration = Duration::from_secs(60);

/// How long a process may take to exit once asked.
const EXIT_PATIENCE: Duration = Duration::from_secs(2);

/// The agent's half of a session; absent when files are served alone.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) host: Process<HostOrder>,
    pub(crate) runner: Process<RunnerOrder>,
    pub(crate) egress: Process<EgressOrder>,
    pub(crate) egress_configure: EgressConfigure,
}

/// A session that serves. Fields are dropped in order: processes first, then what they stand on.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) door: Process<DoorOrder>,
    pub(crate) fileserver: Process<FileserverOrder>,
    pub(crate) agent: Option<Agent>,
    pub(crate) door_configure: DoorConfigure,
    pub(crate) fileserver_configure: FileserverConfigure,
    pub(crate) window_reader: OwnedFd,
    pub(crate) listener: TcpListener,
    pub(crate) signals: Signals,
    pub(crate) inbox: Inbox,
    pub(crate) starter: Starter,
    pub(crate) places: Places,
    pub(crate) deaths: Vec<(Kind, Instant)>,
}

/// Why a session ended in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// A signal asked for it.
    BySignal,
    /// The agent's loop was over.
    ByLoop,
}

/// How a session ended.
#[derive(Debug)]
pub(crate) enum End {
    /// In order; the agent's totals if there was an agent that told them.
    Orderly(Option<LoopEnded>, Asked),
    /// A second signal, or the first one's patience ran out.
    Hard,
    /// A process of ours that cannot be replaced died or broke the protocol.
    Broken(Refusal),
}

/// What happened while waiting.
enum Happened {
    Signal,
    Died(Kind),
    LoopEnded(LoopEnded),
    Violation(Kind, Instance, String),
    Closed(Kind, Instance),
    TimedOut,
}

impl From<News> for Happened {
    fn from(news: News) -> Self {
        match news {
            News::LoopEnded(totals) => Happened::LoopEnded(totals),
            News::Violation(kind, instance, reason) => Happened::Violation(kind, instance, reason),
            News::Closed(kind, instance) => Happened::Closed(kind, instance),
        }
    }
}

impl Session {
    /// Supervises until the session is over, then takes it down.
    pub(crate) fn run(mut self) -> End {
        let end = self.supervise();
        let end = match end {
            End::Orderly(..) if !self.wind_down() => End::Hard,
            end => end,
        };
        self.take_down(&end);
        end
    }

    fn supervise(&mut self) -> End {
        loop {
            match self.wait(None) {
                Ok(Happened::Signal) => return self.end(None, Asked::BySignal),
                Ok(Happened::LoopEnded(totals)) => return self.end(Some(totals), Asked::ByLoop),
                Ok(Happened::Died(kind)) => {
                    if let Err(refusal) = self.replace(kind) {
                        return End::Broken(self.cause(refusal));
                    }
                }
                // Of one that is gone already: its end was dealt with.
                Ok(Happened::Violation(kind, instance, _) | Happened::Closed(kind, instance))
                    if self.is_old(kind, instance) => {}
                Ok(Happened::Violation(kind, _, reason)) => {
                    say!("warning: {}: it broke the protocol ({reason}) and is ended", kind.name());
                    match self.life(kind) {
                        Some(life) => life.kill(),
                        None => continue,
                    }
                    if matches!(kind, Kind::SandboxHost | Kind::Runner) {
                        return End::Broken(Refusal::broken(kind.name(), reason));
                    }
                    if let Err(refusal) = self.replace(kind) {
                        return End::Broken(refusal);
                    }
                }
                // About to die, which for these two is the end.
                Ok(Happened::Closed(kind @ (Kind::SandboxHost | Kind::Runner), _)) => {
                    if let Err(refusal) = self.replace(kind) {
                        return End::Broken(self.cause(refusal));
                    }
                }
                // The others must be about to die, too: without its records no process goes on.
                Ok(Happened::Closed(kind, _)) => {
                    let Some(life) = self.life(kind) else { continue };
                    if !life.wait(EXIT_PATIENCE) {
                        say!("warning: {}: it closed its channel and is ended", kind.name());
                        life.kill();
                    }
                    if let Err(refusal) = self.replace(kind) {
                        return End::Broken(self.cause(refusal));
                    }
                }
                Ok(Happened::TimedOut) => {}
                Err(refusal) => return End::Broken(refusal),
            }
        }
    }

    /// The ordinary end: the agent first, so that held requests are answered through the door; then everything else.
    fn end(&mut self, mut totals: Option<LoopEnded>, asked: Asked) -> End {
        let deadline = Instant::now() + END_PATIENCE;
        if let Some(agent) = &mut self.agent {
            agent.host.shut_down();
            // Both: it is gone, and its last word was read.
            let (mut dead, mut heard) = (false, false);
            while !(dead && heard) {
                match self.wait(Some(deadline)) {
                    Ok(Happened::Signal | Happened::TimedOut) => return End::Hard,
                    Ok(Happened::LoopEnded(ended)) => totals = Some(ended),
                    Ok(Happened::Died(kind)) => dead |= kind == Kind::SandboxHost,
                    Ok(Happened::Closed(kind, _)) => heard |= kind == Kind::SandboxHost,
                    Ok(Happened::Violation(kind, _, reason)) => {
                        return End::Broken(Refusal::broken(kind.name(), reason));
                    }
                    Err(refusal) => return End::Broken(refusal),
                }
            }
        }
        End::Orderly(totals, asked)
    }

    /// Waits for the next thing to happen.
    fn wait(&mut self, deadline: Option<Instant>) -> Result<Happened, Refusal> {
        loop {
            if let Some(news) = self.inbox.take() {
                return Ok(news.into());
            }
            self.inbox.clear();
            if let Some(news) = self.inbox.take() {
                return Ok(news.into());
            }
            let watched = self.watched();
            let mut polled =
                vec![PollFd::new(&self.signals, PollFlags::IN), PollFd::new(&self.inbox, PollFlags::IN)];
            for (_, pidfd, control) in &watched {
                polled.push(PollFd::new(pidfd, PollFlags::IN));
                polled.push(PollFd::new(control, PollFlags::IN));
            }
            let timeout = match deadline {
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(Happened::TimedOut);
                    }
                    rustix::event::Timespec::try_from(left).ok()
                }
                None => None,
            };
            match rustix::event::poll(&mut polled, timeout.as_ref()) {
                Ok(0) => return Ok(Happened::TimedOut),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(Refusal::broken("broker", errno.to_string())),
            }
            let ready = |index: usize| polled.get(index).is_some_and(|entry| !entry.revents().is_empty());
            let signaled = ready(0);
            let mut died = None;
            let mut spoke = None;
            for (index, (kind, ..)) in watched.iter().enumerate() {
                if died.is_none() && ready(2 + 2 * index) {
                    died = Some(*kind);
                } else if spoke.is_none() && ready(3 + 2 * index) {
                    spoke = Some(*kind);
                }
            }
            drop(polled);
            drop(watched);
            if signaled && self.signals.take() {
                return Ok(Happened::Signal);
            }
            if let Some(kind) = died {
                if let Some(life) = self.life(kind) {
                    life.wait(Duration::ZERO);
                }
                return Ok(Happened::Died(kind));
            }
            match spoke.map(|kind| (kind, self.spoke(kind))) {
                None | Some((_, Speech::Nothing)) => {}
                Some((kind, Speech::OutOfTurn)) => {
                    return Ok(Happened::Violation(
                        kind,
                        None,
                        "it spoke out of turn on its control channel".into(),
                    ));
                }
                Some((kind, Speech::Closed)) => {
                    // About to die, or pretending to.
                    return Ok(match self.life(kind).is_some_and(|life| life.wait(EXIT_PATIENCE)) {
                        true => Happened::Died(kind),
                        false => Happened::Violation(kind, None, "it closed its control channel".into()),
                    });
                }
            }
        }
    }

    /// Every living process with what to poll.
    fn watched(&self) -> Vec<(Kind, BorrowedFd<'_>, BorrowedFd<'_>)> {
        let mut watched = Vec::new();
        watched.extend(self.door.watched());
        watched.extend(self.fileserver.watched());
        if let Some(agent) = &self.agent {
            watched.extend(agent.host.watched());
            watched.extend(agent.runner.watched());
            watched.extend(agent.egress.watched());
        }
        watched
    }

    fn life(&self, kind: Kind) -> Option<&Life> {
        let agent = self.agent.as_ref();
        match kind {
            Kind::Door => Some(self.door.life()),
            Kind::Fileserver => Some(self.fileserver.life()),
            Kind::SandboxHost => agent.map(|agent| agent.host.life()),
            Kind::Runner => agent.map(|agent| agent.runner.life()),
            Kind::Egress => agent.map(|agent| agent.egress.life()),
            Kind::Compiler => None,
        }
    }

    fn spoke(&mut self, kind: Kind) -> Speech {
        let agent = self.agent.as_mut();
        match kind {
            Kind::Door => self.door.spoke(),
            Kind::Fileserver => self.fileserver.spoke(),
            Kind::SandboxHost => agent.map_or(Speech::Nothing, |agent| agent.host.spoke()),
            Kind::Runner => agent.map_or(Speech::Nothing, |agent| agent.runner.spoke()),
            Kind::Egress => agent.map_or(Speech::Nothing, |agent| agent.egress.spoke()),
            Kind::Compiler => Speech::Nothing,
        }
    }

    /// The process that began it: when sandbox-host or runner is gone, others that talk to it end too and may be seen first.
    fn cause(&mut self, seen: Refusal) -> Refusal {
        let mut ended = Vec::new();
        for kind in [Kind::SandboxHost, Kind::Runner] {
            if let Some(life) = self.life(kind)
                && life.wait(Duration::from_millis(100))
            {
                ended.push((life.killed(), Refusal::broken(kind.name(), life.describe())));
            }
        }
        // One that exited by itself says that it lost its peer; one that was killed, or ended by its filter, did not.
        let first = ended.iter().position(|(killed, _)| *killed).unwrap_or(0);
        if first < ended.len() { ended.swap_remove(first).1 } else { seen }
    }

    /// Replaces a process that holds no session state, and others of its kind that died meanwhile.
    ///
    /// # Errors
    /// The cause of death of one that cannot be replaced, or died too often.
    fn replace(&mut self, kind: Kind) -> Result<(), Refusal> {
        let cause = match self.life(kind) {
            Some(life) => {
                life.wait(EXIT_PATIENCE);
                life.describe()
            }
            None => return Ok(()),
        };
        if IRREPLACEABLE.contains(&kind) || IRREPLACEABLE.into_iter().any(|kind| self.is_dead(kind)) {
            return Err(Refusal::broken(kind.name(), cause));
        }
        // Those that were started here and given up are no deaths of theirs.
        let mut given_up = Vec::new();
        loop {
            let dead: Vec<Kind> = STATELESS.into_iter().filter(|kind| self.is_dead(*kind)).collect();
            for kind in dead.iter().filter(|kind| !given_up.contains(*kind)) {
                self.count_death(*kind)?;
            }
            let Err(refusal) = self.start_again(&dead) else { return Ok(()) };
            if IRREPLACEABLE.into_iter().any(|kind| self.is_dead(kind)) {
                return Err(refusal);
            }
            // One that another death met half-way through its wiring begins anew, together with the one that died.
            given_up = dead.into_iter().filter(|kind| !self.is_dead(*kind)).collect();
            if STATELESS.into_iter().all(|kind| given_up.contains(&kind) || !self.is_dead(kind)) {
                return Err(refusal);
            }
            for kind in &given_up {
                if let Some(life) = self.life(*kind) {
                    life.kill();
                }
            }
        }
    }

    /// Notes that a process died and says why.
    ///
    /// # Errors
    /// It died too often.
    fn count_death(&mut self, kind: Kind) -> Result<(), Refusal> {
        let cause = self.life(kind).map(Life::describe).unwrap_or_default();
        let now = Instant::now();
        self.deaths.retain(|(_, at)| now.duration_since(*at) < DEATH_WINDOW);
        let recent = self.deaths.iter().filter(|(dead, _)| *dead == kind).count();
        if recent >= DEATHS {
            let window = DEATH_WINDOW.as_secs();
            return Err(Refusal::broken(
                kind.name(),
                format!("{cause}; {} deaths in {window} s", recent + 1),
            ));
        }
        self.deaths.push((kind, now));
        say!("warning: {}: {cause}; it is started again", kind.name());
        Ok(())
    }

    /// Starts some of the stateless processes and wires them with those that live: all of them first, for each is wired with
    /// another that may be new, too.
    fn start_again(&mut self, dead: &[Kind]) -> Result<(), Refusal> {
        let is_new = |kind| dead.contains(&kind);
        if is_new(Kind::Fileserver) {
            self.fileserver = self.starter.start(Kind::Fileserver, &self.places)?;
            self.window_reader =
                self.starter.configure_fileserver(&self.fileserver, &self.fileserver_configure)?;
        }
        if is_new(Kind::Door) {
            self.door = self.starter.start(Kind::Door, &self.places)?;
            self.starter.configure_door(&self.door, &self.door_configure)?;
        }
        if is_new(Kind::Fileserver) || is_new(Kind::Door) {
            self.starter.connect_fileserver(&self.door, &self.fileserver, &self.window_reader)?;
        }
        if is_new(Kind::Door) {
            if let Some(agent) = &self.agent {
                self.starter.connect_door(&self.door, &agent.host)?;
            }
            self.starter.serve(&self.door, &self.listener)?;
        }
        if is_new(Kind::Egress)
            && let Some(agent) = &mut self.agent
        {
            agent.egress = self.starter.start(Kind::Egress, &self.places)?;
            self.starter.configure_egress(&agent.egress, &agent.host, &agent.egress_configure)?;
        }
        Ok(())
    }

    fn is_dead(&self, kind: Kind) -> bool {
        self.life(kind).is_some_and(|life| life.wait(Duration::ZERO))
    }

    /// Whether news is of a process that was replaced since.
    fn is_old(&self, kind: Kind, instance: Instance) -> bool {
        let living = self.life(kind).map(Life::pid);
        instance.is_some() && instance != living
    }

    /// Asks every process to finish, in an order in which each can finish what it holds. False if a signal came meanwhile:
    /// then nothing is waited for any more.
    fn wind_down(&mut self) -> bool {
        self.door.shut_down();
        if !self.await_exit(Kind::Door) {
            return false;
        }
        self.fileserver.shut_down();
        if let Some(agent) = &self.agent {
            agent.runner.shut_down();
            agent.egress.shut_down();
        }
        [Kind::Runner, Kind::Egress, Kind::Fileserver].into_iter().all(|kind| self.await_exit(kind))
    }

    /// Waits for a process to exit, at most [`EXIT_PATIENCE`]; false if a signal came first.
    fn await_exit(&mut self, kind: Kind) -> bool {
        let deadline = Instant::now() + EXIT_PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Some((_, pidfd, _)) = self.watched().into_iter().find(|(watched, ..)| *watched == kind)
            else {
                return true;
            };
            let Ok(timeout) = rustix::event::Timespec::try_from(left) else { return true };
            let mut polled = [PollFd::new(&self.signals, PollFlags::IN), PollFd::new(&pidfd, PollFlags::IN)];
            let ready = rustix::event::poll(&mut polled, Some(&timeout));
            let [signals, exited] = polled.map(|entry| !entry.revents().is_empty());
            if matches!(ready, Ok(0) | Err(_)) && ready != Err(rustix::io::Errno::INTR) {
                return true;
            }
            if signals && self.signals.take() {
                return false;
            }
            if exited && let Some(life) = self.life(kind) {
                life.wait(Duration::ZERO);
            }
        }
    }

    /// Kills what is left, removes the groups and records the end.
    fn take_down(&mut self, end: &End) {
        for kind in [Kind::Door, Kind::SandboxHost, Kind::Runner, Kind::Egress, Kind::Fileserver] {
            if let Some(life) = self.life(kind) {
                life.kill();
            }
        }
        // Nobody is left to redeem: every handle of this session dies here.
        self.starter.peer.end();
        if let Err(error) = self.starter.groups.remove() {
            say!("warning: control groups of the session cannot be removed: {error}");
        }
        let (totals, status) = match end {
            End::Orderly(totals, _) => {
                let status = totals.as_ref().map_or(ExitStatus::Ok, |totals| totals.exit_status);
                (totals.clone(), status.as_str())
            }
            End::Hard => (None, ExitStatus::Canceled.as_str()),
            End::Broken(_) => (None, ExitStatus::Failed.as_str()),
        };
        self.starter.trace.record(Entry::SessionEnd(totals, status));
    }
}
