//! The threads that read what other processes report. Each confines itself first; none makes or opens anything.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver as Queue, Sender as QueueSender, channel};

use ipc::edge::broker_fileserver::Served;
use ipc::edge::door_broker::DoorToBroker;
use ipc::edge::egress_broker::EgressToBroker;
use ipc::edge::host_broker::{BrokerToHost, Event, HostToBroker, LoopEnded};
use ipc::edge::runner_broker::RunnerToBroker;
use ipc::memory::CounterWriter;
use ipc::{Channel, ChannelError, Message, Never};
use rustix::event::EventfdFlags;

use super::process::Kind;
use crate::trace::{Entry, Trace};

/// Stack of a reading thread: small frames only.
const STACK: usize = 256 * 1024;

/// The most bytes of one event that comes in parts.
const MAX_EVENT: usize = 4 * 1024 * 1024;

/// Starts a thread that confines itself before it does anything; without its confinement the broker ends.
pub(crate) fn thread(
    name: String,
    work: impl FnOnce() + Send + 'static,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new().name(name).stack_size(STACK).spawn(move || {
        if let Err(error) = confine::enter_broker_thread() {
            eprintln!("error[E-RUN-007]: broker: a thread cannot be confined: {error}");
            std::process::exit(3);
        }
        work();
    })
}

/// What the supervising thread is told.
#[derive(Debug)]
pub(crate) enum News {
    /// The agent's loop is over.
    LoopEnded(LoopEnded),
    /// A process broke the rules of its channel.
    Violation(Kind, String),
    /// A process closed its channel, and all it had said was read.
    Closed(Kind),
}

/// Wakes the supervising thread.
#[derive(Debug, Clone)]
pub(crate) struct Bell {
    news: QueueSender<News>,
    eventfd: Arc<OwnedFd>,
}

/// The supervising thread's side.
#[derive(Debug)]
pub(crate) struct Inbox {
    news: Queue<News>,
    eventfd: Arc<OwnedFd>,
}

/// Makes a bell and its inbox.
pub(crate) fn bell() -> std::io::Result<(Bell, Inbox)> {
    let eventfd = Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (sender, receiver) = channel();
    Ok((Bell { news: sender, eventfd: Arc::clone(&eventfd) }, Inbox { news: receiver, eventfd }))
}

impl Bell {
    fn ring(&self, news: News) {
        let _ = self.news.send(news);
        let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
    }
}

impl Inbox {
    /// Takes the next piece of news.
    pub(crate) fn take(&self) -> Option<News> {
        self.news.try_recv().ok()
    }

    /// Forgets that the bell rang.
    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.eventfd, &mut [0; 8]);
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}

/// Reads a channel until it closes. A violation is reported; the supervising thread ends the process.
fn read<Tx, Rx>(
    kind: Kind,
    mut channel: Channel<Tx, Rx>,
    bell: Bell,
    mut take: impl FnMut(&Channel<Tx, Rx>, Rx) -> Result<(), String> + Send + 'static,
) -> std::io::Result<()>
where
    Tx: Message + 'static,
    Rx: Message + 'static,
{
    thread(format!("from-{}", kind.name()), move || {
        let end = loop {
            match channel.receive() {
                Ok(received) => {
                    if let Err(reason) = take(&channel, received.message) {
                        break Some(reason);
                    }
                }
                // The process is gone: its pidfd tells the rest.
                Err(ChannelError::Closed) => break None,
                Err(error) => break Some(error.to_string()),
            }
        };
        bell.ring(match end {
            Some(reason) => News::Violation(kind, reason),
            None => News::Closed(kind),
        });
    })?;
    Ok(())
}

/// What the fileserver served.
pub(crate) fn fileserver(channel: Channel<Never, Served>, trace: Trace, bell: Bell) -> std::io::Result<()> {
    read(Kind::Fileserver, channel, bell, move |_, served| {
        let process = "fileserver";
        trace.record(match served {
            Served::List { generation, entry_count, total_bytes, refused } => {
                Entry::List { generation, entry_count, total_bytes, refused, consulted: true, process }
            }
            Served::Read { path, generation, outcome } => {
                Entry::Read { path: cap(path), generation, outcome, process }
            }
        });
        Ok(())
    })
}

/// What the door refused.
pub(crate) fn door(
    channel: Channel<Never, DoorToBroker>,
    trace: Trace,
    generation: Arc<CounterWriter>,
    bell: Bell,
) -> std::io::Result<()> {
    read(Kind::Door, channel, bell, move |_, refused| {
        let process = "door";
        let generation = generation.get();
        trace.record(match refused {
            DoorToBroker::ListRefused { code } => Entry::List {
                generation,
                entry_count: 0,
                total_bytes: 0,
                refused: Some(code),
                consulted: false,
                process,
            },
            DoorToBroker::ReadRefused { path, code } => {
                Entry::Read { path: cap(path), generation, outcome: Err(code), process }
            }
            DoorToBroker::RedeemRefused { handle_id, audience, code } => Entry::RedeemRefused {
                handle_id: cap(handle_id),
                audience: audience.map(cap),
                generation,
                code,
            },
        });
        Ok(())
    })
}

/// The agent's lines, and the end of tasks: the generation is stored before the answer goes back, and sandbox-host releases
/// a terminal status only then.
pub(crate) fn sandbox_host(
    channel: Channel<BrokerToHost, HostToBroker>,
    trace: Trace,
    generation: Arc<CounterWriter>,
    bell: Bell,
) -> std::io::Result<()> {
    let mut parts = Vec::new();
    let news = bell.clone();
    read(Kind::SandboxHost, channel, bell, move |channel, message| {
        match message {
            HostToBroker::Event(event) if parts.is_empty() => trace.record(Entry::Agent(event)),
            HostToBroker::EventPart { last, bytes } => {
                if parts.len() + bytes.len() > MAX_EVENT {
                    return Err(format!("an event of more than {MAX_EVENT} bytes"));
                }
                parts.extend_from_slice(&bytes);
                if last {
                    let whole = std::mem::take(&mut parts);
                    let event: Event =
                        ipc::codec::decode_document(&whole).map_err(|error| error.to_string())?;
                    trace.record(Entry::Agent(Box::new(event)));
                }
            }
            HostToBroker::TaskEnded { task_id } if parts.is_empty() => {
                let generation = generation.advance();
                channel
                    .send(&BrokerToHost::TaskEndedStored { task_id, generation })
                    .map_err(|error| error.to_string())?;
            }
            HostToBroker::LoopEnded(ended) if parts.is_empty() => news.ring(News::LoopEnded(ended)),
            HostToBroker::Event(_) | HostToBroker::TaskEnded { .. } | HostToBroker::LoopEnded(_) => {
                return Err("an event was left unfinished".into());
            }
        }
        Ok(())
    })
}

/// Limits that programs hit.
pub(crate) fn runner(channel: Channel<Never, RunnerToBroker>, bell: Bell) -> std::io::Result<()> {
    read(Kind::Runner, channel, bell, move |_, message| {
        match message {
            RunnerToBroker::LeafStuck { leaf } => {
                eprintln!(
                    "warning: programs/{leaf}: a process survived the kill of its group for two seconds"
                );
            }
        }
        Ok(())
    })
}

/// Refused destinations.
pub(crate) fn egress(
    channel: Channel<Never, EgressToBroker>,
    trace: Trace,
    bell: Bell,
) -> std::io::Result<()> {
    read(Kind::Egress, channel, bell, move |_, message| {
        match message {
            EgressToBroker::NetworkDenied { artifact, destination } => {
                trace.record(Entry::NetworkDenied { artifact: cap(artifact), destination: cap(destination) });
            }
        }
        Ok(())
    })
}

/// Cuts text that came from a request to 4096 bytes, on a character boundary.
fn cap(mut text: String) -> String {
    const LIMIT: usize = 4096;
    if text.len() > LIMIT {
        let end = (0..=LIMIT).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
    }
    text
}
