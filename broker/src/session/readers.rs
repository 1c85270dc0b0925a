//! The threads that read what other processes report. Each confines itself first; none makes or opens anything.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver as Queue, Sender as QueueSender, channel};

use ipc::edge::broker_fileserver::{BrokerToFileserver, FileserverToBroker};
use ipc::edge::door_broker::{BrokerToDoor, DoorToBroker};
use ipc::edge::egress_broker::{Asker, EgressToBroker};
use ipc::edge::host_broker::{BrokerToHost, Event, HostToBroker, LoopEnded};
use ipc::edge::runner_broker::RunnerToBroker;
use ipc::memory::CounterWriter;
use ipc::{Channel, ChannelError, Message, Never};
use rustix::event::EventfdFlags;

use super::peer::Peer;
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
        // What is computed from the minting key on this stack stays in this process.
        let shielded = confine::shield_stack().map_err(|errno| errno.to_string());
        let confined = confine::enter_broker_thread().map_err(|error| error.to_string());
        if let Err(error) = shielded.and(confined) {
            say!("error[E-RUN-007]: broker: a thread cannot be confined: {error}");
            std::process::exit(3);
        }
        work();
    })
}

/// Which of the processes of a kind, told by its pid: there may be a new one when its news are read. `None` is the one there is.
pub(crate) type Instance = Option<i32>;

/// What the supervising thread is told.
#[derive(Debug)]
pub(crate) enum News {
    /// The agent's loop is over.
    LoopEnded(LoopEnded),
    /// A process broke the rules of its channel.
    Violation(Kind, Instance, String),
    /// A process closed its channel, and all it had said was read.
    Closed(Kind, Instance),
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
    (kind, instance): (Kind, Instance),
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
            Some(reason) => News::Violation(kind, instance, reason),
            None => News::Closed(kind, instance),
        });
    })?;
    Ok(())
}

/// What the fileserver served, and where paths lead for which a handle is to be minted.
pub(crate) fn fileserver(
    instance: Instance,
    channel: Channel<BrokerToFileserver, FileserverToBroker>,
    trace: Trace,
    peer: Arc<Peer>,
    bell: Bell,
) -> std::io::Result<()> {
    let number = peer.fileserver_came(channel.sender());
    let news = bell.clone();
    let gone = Gone { peer: Arc::clone(&peer), number };
    let mut begun = false;
    read((Kind::Fileserver, instance), channel, bell, move |_, served| {
        let _moved_in = &gone;
        if !begun {
            begun = true;
            // Records wait in the channel while a core is busy serving, and are written several at a time. A kernel that
            // refuses costs speed and nothing else.
            let _ = confine::give_way();
        }
        let process = "fileserver";
        trace.record(match served {
            FileserverToBroker::List { generation, entry_count, total_bytes, refused } => {
                Entry::List { generation, entry_count, total_bytes, refused, consulted: true, process }
            }
            FileserverToBroker::Read { path, generation, outcome } => {
                Entry::Read { path: cap(path), generation, outcome, process }
            }
            FileserverToBroker::Redeemed { id, generation, outcome } => {
                peer.redeemed(id, generation, outcome);
                return Ok(());
            }
            FileserverToBroker::Canonical { id, outcome } => {
                if let Err(reason) = peer.canonical(id, outcome) {
                    news.ring(News::Violation(Kind::SandboxHost, None, reason));
                }
                return Ok(());
            }
        });
        Ok(())
    })
}

/// Ends what a fileserver left unanswered once nothing more of it will be heard.
struct Gone {
    peer: Arc<Peer>,
    number: u64,
}

impl Drop for Gone {
    fn drop(&mut self) {
        self.peer.fileserver_gone(self.number);
    }
}

/// What the door refused, and the handles it was shown.
pub(crate) fn door(
    instance: Instance,
    channel: Channel<BrokerToDoor, DoorToBroker>,
    trace: Trace,
    generation: Arc<CounterWriter>,
    peer: Arc<Peer>,
    bell: Bell,
) -> std::io::Result<()> {
    let door = channel.sender();
    read((Kind::Door, instance), channel, bell, move |_, message| {
        let process = "door";
        let generation = generation.get();
        trace.record(match message {
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
            DoorToBroker::RedeemRefused { handle_id, audience, code } => Entry::Redeem {
                handle_id: cap(handle_id),
                path: None,
                generation,
                audience: audience.map(cap),
                outcome: Err(code),
                process,
            },
            DoorToBroker::Redeem { id, payload, mac, audience } => {
                return peer.redeem(id, &payload, &mac, cap(audience), &door);
            }
            DoorToBroker::RedeemAbandoned { id } => {
                peer.abandon(id);
                return Ok(());
            }
        });
        Ok(())
    })
}

/// The agent's lines, and the end of tasks: the generation is stored before the answer goes back, and sandbox-host releases
/// a terminal status only then.
pub(crate) fn sandbox_host(
    instance: Instance,
    channel: Channel<BrokerToHost, HostToBroker>,
    trace: Trace,
    generation: Arc<CounterWriter>,
    peer: Arc<Peer>,
    bell: Bell,
) -> std::io::Result<()> {
    let (mut parts, mut over) = (Vec::new(), false);
    let news = bell.clone();
    let host = channel.sender();
    read((Kind::SandboxHost, instance), channel, bell, move |channel, message| {
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
            HostToBroker::Mint { id, path, audience, ttl_ms } if parts.is_empty() => {
                return peer.mint(id, path, audience, ttl_ms, &host);
            }
            HostToBroker::LoopEnded(ended) if parts.is_empty() && !over => {
                over = true;
                news.ring(News::LoopEnded(ended));
            }
            HostToBroker::LoopEnded(_) if over => return Err("its loop ended twice".into()),
            HostToBroker::Event(_)
            | HostToBroker::TaskEnded { .. }
            | HostToBroker::Mint { .. }
            | HostToBroker::LoopEnded(_) => {
                return Err("an event was left unfinished".into());
            }
        }
        Ok(())
    })
}

/// Limits that programs hit.
pub(crate) fn runner(
    instance: Instance,
    channel: Channel<Never, RunnerToBroker>,
    bell: Bell,
) -> std::io::Result<()> {
    read((Kind::Runner, instance), channel, bell, move |_, message| {
        match message {
            RunnerToBroker::LeafStuck { leaf } => {
                say!("warning: programs/{leaf}: a process survived the kill of its group for two seconds");
            }
        }
        Ok(())
    })
}

/// Refused destinations.
pub(crate) fn egress(
    instance: Instance,
    channel: Channel<Never, EgressToBroker>,
    trace: Trace,
    bell: Bell,
) -> std::io::Result<()> {
    read((Kind::Egress, instance), channel, bell, move |_, message| {
        match message {
            EgressToBroker::NetworkDenied { asker, destination, reason, count } => {
                let asker = match asker {
                    Asker::Artifact(name) => Asker::Artifact(cap(name)),
                    other => other,
                };
                trace.record(Entry::NetworkDenied { asker, destination: cap(destination), reason, count });
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
