//! What does the door hold, and how does it come to hold it? The orders of the broker, in their one permitted sequence.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipc::aio::{self, AsyncReceiver, AsyncSender};
use ipc::edge::control::{DoorConfigure, DoorOrder, RoleControl, ToRole};
use ipc::edge::door_broker::{BrokerToDoor, DoorToBroker};
use ipc::edge::door_host::DoorToHost;
use ipc::{Channel, ChannelError, Never, Received};
use tokio::sync::{Notify, mpsc};

use crate::connections::{self, Table};
use crate::fileserver::{Fileserver, FileserverError};
use crate::limits::Limits;
use crate::record::Broker;
use crate::redeem::{self, Redeems};
use crate::ticker::Ticker;

/// Why the door ends other than by `Shutdown`.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    /// The control channel, or a channel handed over on it, is unusable.
    #[error("control channel: {0}")]
    Control(#[from] ChannelError),
    /// An order out of its sequence, or one that cannot be obeyed.
    #[error("control channel: {0}")]
    Order(&'static str),
    /// The broker broke the rules of its channel.
    #[error("broker channel: {0}")]
    Broker(#[source] ChannelError),
    /// The fileserver broke the rules.
    #[error(transparent)]
    Fileserver(#[from] FileserverError),
    /// The listening socket cannot be used.
    #[error("listening socket: {0}")]
    Listener(std::io::Error),
}

/// What every connection works with.
#[derive(Debug)]
pub struct Door {
    /// Bounds and deadlines.
    pub limits: Limits,
    /// The session's constants.
    pub constants: DoorConfigure,
    /// Where refusals are recorded and handles verified.
    pub broker: Broker,
    /// Connections.
    pub table: Table,
    /// Handles that are being verified.
    pub redeems: Arc<Redeems>,
    /// The clock of requests that wait.
    pub ticker: Arc<Ticker>,
    fileserver: Mutex<Option<Arc<Fileserver>>>,
    /// Told of every new one.
    arrived: Notify,
    host: Mutex<Option<AsyncSender<DoorToHost>>>,
}

impl Door {
    fn new(
        limits: Limits,
        constants: DoorConfigure,
        sender: AsyncSender<DoorToBroker>,
    ) -> Result<Self, DoorError> {
        let root = constants.files.as_ref().map_or("", |files| files.root.as_str());
        if root.contains(|character: char| character.is_control()) {
            return Err(DoorError::Order("an export root that cannot be a header value"));
        }
        let broker = Broker::new(sender, limits.record_wait);
        let table = Table::new(&limits);
        let redeems = Arc::new(Redeems::new(constants.requests_from));
        let (fileserver, host) = (Mutex::default(), Mutex::default());
        let (ticker, arrived) = (Arc::default(), Notify::new());
        Ok(Door { limits, constants, broker, table, redeems, ticker, fileserver, arrived, host })
    }

    /// The fileserver of the moment, if any. Not to be held across an await: a replaced one ends when it is dropped.
    #[must_use]
    pub fn fileserver(&self) -> Option<Arc<Fileserver>> {
        locked(&self.fileserver).clone()
    }

    /// Waits until there is a fileserver that can be asked, or for as long as the broker may take to bring one.
    pub async fn has_fileserver(&self) {
        let there = || self.fileserver().is_some_and(|fileserver| !fileserver.is_over());
        if there() {
            return;
        }
        let arrives = async {
            loop {
                // Registered before the look, so that an arrival in between is not missed.
                let arrived = self.arrived.notified();
                if there() {
                    return;
                }
                arrived.await;
            }
        };
        let _ = tokio::time::timeout(self.limits.replace_wait, arrives).await;
    }

    /// The channel to sandbox-host, if any.
    #[must_use]
    pub fn host(&self) -> Option<AsyncSender<DoorToHost>> {
        locked(&self.host).clone()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Obeys the broker's orders until `Shutdown`. Runs on a current-thread runtime with I/O and time.
///
/// # Errors
/// [`DoorError`], also when the control channel closes: a door without its broker is over.
pub async fn run(control: RoleControl<DoorOrder>, limits: Limits) -> Result<(), DoorError> {
    let (_to_broker, mut orders) = aio::split(control)?;
    let (failed, mut failures) = mpsc::channel::<FileserverError>(1);
    let Some(received) = order(&mut orders).await? else { return Ok(()) };
    let (DoorOrder::Configure(constants), [broker]) = exactly(received)? else {
        return Err(DoorError::Order("an order before Configure"));
    };
    let (sender, refusals) = aio::split(Channel::<DoorToBroker, BrokerToDoor>::from_descriptor(broker)?)?;
    let door = Arc::new(Door::new(limits, constants, sender)?);
    let _ticking = Task(tokio::spawn(tick(Arc::clone(&door))).abort_handle());
    let mut deaf = false;
    let mut hearing = tokio::spawn(redeem::listen(refusals, Arc::clone(&door.redeems)));
    let mut serving = None;
    loop {
        let received = tokio::select! {
            received = order(&mut orders) => received?,
            Some(error) = failures.recv() => return Err(error.into()),
            ended = &mut hearing, if !deaf => match ended {
                Ok(Err(error)) => return Err(DoorError::Broker(error)),
                Ok(Ok(())) | Err(_) => {
                    deaf = true;
                    continue;
                }
            },
        };
        let Some(received) = received else { break };
        obey(&door, received, &failed, &mut serving)?;
    }
    // Dropping the task closes the listening socket; what has no complete head yet gets no time.
    drop(serving.take());
    door.table.finish(door.limits.shutdown).await;
    Ok(())
}

/// Runs the door's clock.
async fn tick(door: Arc<Door>) {
    let give_back = || {
        if let Some(fileserver) = door.fileserver() {
            fileserver.tick();
        }
    };
    door.ticker.run(door.limits.tick, give_back).await;
}

/// The next order; `None` for `Shutdown`.
async fn order(
    orders: &mut AsyncReceiver<ToRole<DoorOrder>>,
) -> Result<Option<Received<DoorOrder>>, DoorError> {
    let Received { message, descriptors } = orders.receive().await?;
    match message {
        ToRole::Order(message) => Ok(Some(Received { message, descriptors })),
        ToRole::Shutdown => Ok(None),
        ToRole::Begin(_) => Err(DoorError::Order("a second Begin")),
    }
}

fn exactly<const N: usize>(received: Received<DoorOrder>) -> Result<(DoorOrder, [OwnedFd; N]), DoorError> {
    Ok(received.exactly()?)
}

fn obey(
    door: &Arc<Door>,
    received: Received<DoorOrder>,
    failed: &mpsc::Sender<FileserverError>,
    serving: &mut Option<Task>,
) -> Result<(), DoorError> {
    match received.message {
        DoorOrder::Configure(_) => return Err(DoorError::Order("a second Configure")),
        DoorOrder::Fileserver => {
            let (_, [channel, window]) = exactly(received)?;
            let redeems = Arc::clone(&door.redeems);
            let fileserver = Fileserver::new(
                channel,
                &window,
                door.limits.open_requests,
                failed.clone(),
                redeems,
                Arc::clone(&door.ticker),
            )?;
            let old = locked(&door.fileserver).replace(Arc::new(fileserver));
            drop(old);
            door.arrived.notify_waiters();
        }
        DoorOrder::SandboxHost => {
            let (_, [channel]) = exactly(received)?;
            let (sender, _) = aio::split(Channel::<DoorToHost, Never>::from_descriptor(channel)?)?;
            *locked(&door.host) = Some(sender);
        }
        DoorOrder::Serve => {
            if serving.is_some() {
                return Err(DoorError::Order("a second Serve"));
            }
            let (_, [socket]) = exactly(received)?;
            *serving = Some(Task::serving(door, socket).map_err(DoorError::Listener)?);
        }
    }
    Ok(())
}

/// A task that ends when this is dropped; the one that accepts closes the listening socket then.
#[derive(Debug)]
struct Task(tokio::task::AbortHandle);

impl Task {
    fn serving(door: &Arc<Door>, socket: OwnedFd) -> std::io::Result<Self> {
        ipc::sys::set_nonblocking(socket.as_fd())?;
        let listener = ipc::sys::register(socket, tokio::io::Interest::READABLE)?;
        let task = tokio::spawn(connections::accept(listener, Arc::clone(door)));
        Ok(Task(task.abort_handle()))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
