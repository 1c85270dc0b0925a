//! The broker's orders: what arrives before the components are loaded, and what may come while the session runs.

use std::rc::Rc;
use std::sync::Arc;

use ipc::aio::{AsyncReceiver, AsyncSender, split};
use ipc::edge::control::{HostOrder, RoleControl, ToRole};
use ipc::edge::door_host::DoorToHost;
use ipc::edge::host_broker::{Agent, BrokerToHost, HostToBroker};
use ipc::edge::host_egress::HostToEgress;
use ipc::edge::host_runner::{HostToRunner, RunnerToHost};
use ipc::{Channel, ChannelError, Message, Never, Received};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_local};

use crate::door;
use crate::fault::Fault;
use crate::http::EgressLink;
use crate::session::Session;

/// The door's channel as sandbox-host holds it.
pub(crate) type DoorChannel = Channel<Never, DoorToHost>;
/// Egress's channel as sandbox-host holds it.
pub(crate) type EgressChannel = Channel<HostToEgress, Never>;

/// What a session is made of, once the broker has wired it.
pub(crate) struct Wired {
    pub(crate) agent: Agent,
    pub(crate) broker: Channel<HostToBroker, BrokerToHost>,
    pub(crate) runner: Channel<HostToRunner, RunnerToHost>,
    pub(crate) door: Option<DoorChannel>,
    pub(crate) egress: Option<EgressChannel>,
}

/// Takes orders up to `Load`. `None` if the session is over before it began.
///
/// # Errors
/// [`Fault::Broker`] for an order out of turn or a document that is none.
pub(crate) fn until_load(control: &mut RoleControl<HostOrder>) -> Result<Option<Wired>, Fault> {
    let mut configured = None;
    let (mut door, mut egress) = (None, None);
    loop {
        let received = control.receive().map_err(broken)?;
        match &received.message {
            ToRole::Order(HostOrder::Configure) if configured.is_none() => {
                let (_, [broker, runner, document]) = received.exactly::<3>().map_err(broken)?;
                let agent: Agent = ipc::memory::read_document(document)
                    .map_err(|error| Fault::Broker(format!("agent document: {error}")))?;
                configured = Some((agent, channel(broker)?, channel(runner)?));
            }
            ToRole::Order(HostOrder::Door) => door = Some(channel(only(received)?)?),
            ToRole::Order(HostOrder::Egress) => egress = Some(channel(only(received)?)?),
            ToRole::Order(HostOrder::Load) => {
                let Some((agent, broker, runner)) = configured else {
                    return Err(Fault::Broker("loading was ordered before an agent".into()));
                };
                return Ok(Some(Wired { agent, broker, runner, door, egress }));
            }
            ToRole::Shutdown => return Ok(None),
            ToRole::Begin(_) | ToRole::Order(HostOrder::Configure | HostOrder::Run) => {
                return Err(Fault::Broker("an order came out of turn".into()));
            }
        }
    }
}

fn only(received: Received<ToRole<HostOrder>>) -> Result<std::os::fd::OwnedFd, Fault> {
    let (_, [descriptor]) = received.exactly::<1>().map_err(broken)?;
    Ok(descriptor)
}

fn channel<Tx: Message, Rx: Message>(descriptor: std::os::fd::OwnedFd) -> Result<Channel<Tx, Rx>, Fault> {
    Channel::from_descriptor(descriptor).map_err(broken)
}

fn broken(error: ChannelError) -> Fault {
    Fault::Broker(error.to_string())
}

/// What the rest of the process learns from orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Clients may come, tasks may start.
    Run,
    /// The session is over.
    Shutdown,
}

/// Peers that the broker may replace while the session runs.
pub(crate) struct Peers {
    pub(crate) session: Rc<Session>,
    pub(crate) egress: Arc<EgressLink>,
    pub(crate) faults: mpsc::UnboundedSender<Fault>,
    watcher: Option<JoinHandle<()>>,
}

impl Peers {
    pub(crate) fn new(
        session: Rc<Session>,
        egress: Arc<EgressLink>,
        faults: mpsc::UnboundedSender<Fault>,
    ) -> Self {
        Peers { session, egress, faults, watcher: None }
    }

    /// Serves a (new) door; requests of the one before are carried out to their end.
    ///
    /// # Errors
    /// [`Fault::Own`] if the reactor refuses the descriptor.
    pub(crate) fn door(&self, channel: DoorChannel) -> Result<(), Fault> {
        let (_, receiver) = split(channel).map_err(own)?;
        spawn_local(door::serve(Rc::clone(&self.session), receiver, self.faults.clone()));
        Ok(())
    }

    /// Sends requests to a (new) egress.
    ///
    /// # Errors
    /// [`Fault::Own`] if the reactor refuses the descriptor.
    pub(crate) fn egress(&mut self, channel: EgressChannel) -> Result<(), Fault> {
        let (sender, receiver) = split(channel).map_err(own)?;
        if let Some(watcher) = self.watcher.take() {
            watcher.abort();
        }
        self.egress.replace(Some(sender));
        let (link, faults) = (Arc::clone(&self.egress), self.faults.clone());
        self.watcher = Some(spawn_local(watch_egress(receiver, link, faults)));
        Ok(())
    }

    /// Takes orders until the end of the session.
    pub(crate) async fn follow(
        mut self,
        mut control: AsyncReceiver<ToRole<HostOrder>>,
        signals: mpsc::UnboundedSender<Signal>,
    ) -> Fault {
        loop {
            let received = match control.receive().await {
                Ok(received) => received,
                Err(error) => return broken(error),
            };
            let done = match &received.message {
                ToRole::Order(HostOrder::Door) => {
                    only(received).and_then(channel).and_then(|door| self.door(door))
                }
                ToRole::Order(HostOrder::Egress) => {
                    only(received).and_then(channel).and_then(|egress| self.egress(egress))
                }
                ToRole::Order(HostOrder::Run) => {
                    let _ = signals.send(Signal::Run);
                    Ok(())
                }
                ToRole::Shutdown => {
                    let _ = signals.send(Signal::Shutdown);
                    Ok(())
                }
                ToRole::Begin(_) | ToRole::Order(HostOrder::Configure | HostOrder::Load) => {
                    Err(Fault::Broker("an order came out of turn".into()))
                }
            };
            if let Err(fault) = done {
                return fault;
            }
        }
    }
}

/// Egress never sends on its channel: what arrives is its end, or a violation.
async fn watch_egress(
    mut receiver: AsyncReceiver<Never>,
    link: Arc<EgressLink>,
    faults: mpsc::UnboundedSender<Fault>,
) {
    match receiver.receive().await {
        Ok(received) => match received.message {},
        Err(ChannelError::Closed) => link.replace(None::<AsyncSender<HostToEgress>>),
        Err(error) => {
            let _ = faults.send(Fault::Egress(error.to_string()));
        }
    }
}

fn own(error: ChannelError) -> Fault {
    Fault::Own(error.to_string())
}
