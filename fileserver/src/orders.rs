//! What does the broker order? The thread of the control channel: it starts the others and brings doors.
//!
//! It never reads a file, so that an order is always heard.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use ipc::edge::broker_fileserver::{BrokerToFileserver, FileserverToBroker};
use ipc::edge::control::{FileserverConfigure, FileserverOrder, RoleControl, ToRole};
use ipc::edge::door_fileserver::{DoorToFileserver, FileserverToDoor};
use ipc::memory::{CounterReader, map_window};
use ipc::{Channel, Received, Receiver};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::desk::{Desk, Link, Places, SPACE_PATIENCE, locked};
use crate::serve::{Fault, Server};
use crate::window::Window;

/// Threads that serve the door. More would only wait for each other's hashing on small hosts.
const DOOR_WORKERS: usize = 3;

/// Threads that serve the broker: one that is held up by a file must not hold up the next handle.
const BROKER_WORKERS: usize = 2;

/// Stack of a thread; nothing here recurses.
pub(crate) const STACK: usize = 256 * 1024;

type Control = Receiver<ToRole<FileserverOrder>>;

/// The control channel, for those who must know that it has nothing to say.
#[derive(Debug)]
pub(crate) struct Orders {
    control: Arc<Control>,
    turn: Arc<Turn>,
}

/// Held while an order is taken from the channel and carried out: what is not in the channel then is done.
#[derive(Debug, Default)]
struct Turn {
    over: Mutex<bool>,
    carried_out: Condvar,
}

impl Orders {
    /// Returns when every order is carried out that the broker sent before this call.
    pub(crate) fn carried_out(&self) {
        let mut over = locked(&self.turn.over);
        while !*over && readable(&self.control, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap_or(false) {
            over = self.turn.carried_out.wait(over).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The process once it was configured.
struct Serving(Arc<Server>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.desk.close();
    }
}

/// Serves until the broker says `Shutdown`. A fault in another thread goes to `end`.
///
/// # Errors
/// [`Fault`]: the broker is gone, or it broke the rules; the process must end.
pub(crate) fn run(
    control: RoleControl<FileserverOrder>,
    workdir: OwnedFd,
    end: Arc<dyn Fn(Fault) + Send + Sync>,
) -> Result<(), Fault> {
    let (_reports, mut control) = control.split();
    let watched = Arc::new(control.clone());
    let turn = Arc::new(Turn::default());
    let mut start = Some(Start {
        workdir: Arc::new(workdir),
        end,
        control: Arc::clone(&watched),
        turn: Arc::clone(&turn),
    });
    let mut serving: Option<Serving> = None;
    loop {
        readable(&watched, None).map_err(|errno| Fault::System("waiting for orders", errno.into()))?;
        let mut over = locked(&turn.over);
        let done = obey(&mut control, &mut start, &mut serving);
        *over = !matches!(done, Ok(Next::Order));
        drop(over);
        turn.carried_out.notify_all();
        match done? {
            Next::Order => {}
            Next::Shutdown => return Ok(()),
        }
    }
}

enum Next {
    Order,
    Shutdown,
}

/// Carries one order out.
fn obey(
    control: &mut Control,
    start: &mut Option<Start>,
    serving: &mut Option<Serving>,
) -> Result<Next, Fault> {
    let Some(Received { message, descriptors }) = control.try_receive().map_err(Fault::Control)? else {
        return Ok(Next::Order);
    };
    match message {
        ToRole::Shutdown => return Ok(Next::Shutdown),
        ToRole::Begin(_) => return Err(Fault::Order("the process has begun already")),
        ToRole::Order(FileserverOrder::Configure(configure)) => {
            let start = start.take().ok_or(Fault::Order("the process is configured already"))?;
            *serving = Some(start.with(configure, descriptors)?);
        }
        ToRole::Order(FileserverOrder::Door) => {
            let serving = serving.as_ref().ok_or(Fault::Order("a door came before the configuration"))?;
            serving.replace_door(descriptors)?;
        }
    }
    Ok(Next::Order)
}

/// Whether the channel has something to say, the end included, before the time is over.
fn readable(control: &Control, time: Option<&Timespec>) -> Result<bool, Errno> {
    loop {
        match rustix::event::poll(&mut [PollFd::new(control, PollFlags::IN)], time) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// What the process has before it is configured.
struct Start {
    workdir: Arc<OwnedFd>,
    end: Arc<dyn Fn(Fault) + Send + Sync>,
    control: Arc<Control>,
    turn: Arc<Turn>,
}

impl Start {
    fn with(self, configure: FileserverConfigure, descriptors: Vec<OwnedFd>) -> Result<Serving, Fault> {
        let [broker, window, counter] = <[OwnedFd; 3]>::try_from(descriptors)
            .map_err(|_| Fault::Order("the configuration came without its descriptors"))?;
        let (sender, broker) = Channel::<FileserverToBroker, BrokerToFileserver>::from_descriptor(broker)
            .map_err(Fault::Broker)?
            .split();
        let window = Window::new(map_window(&window, true)?).ok_or(ipc::memory::MemoryError::NotSealed)?;
        let serving = Serving(Arc::new(Server {
            workdir: self.workdir,
            configure,
            counter: CounterReader::new(&counter)?,
            broker: sender,
            desk: Arc::new(Desk::new(window, SPACE_PATIENCE)),
            orders: Orders { control: self.control, turn: self.turn },
            redeems: Places::default(),
            end: self.end,
        }));
        for _ in 0..DOOR_WORKERS {
            serving.spawn(Server::door_loop)?;
        }
        for _ in 0..BROKER_WORKERS {
            let broker = broker.clone();
            serving.spawn(move |server| server.broker_loop(broker))?;
        }
        serving.spawn(Server::listing_loop)?;
        serving.spawn(Server::patience_loop)?;
        Ok(serving)
    }
}

impl Serving {
    fn spawn(&self, work: impl FnOnce(&Server) -> Result<(), Fault> + Send + 'static) -> Result<(), Fault> {
        let server = Arc::clone(&self.0);
        let work = move || {
            if let Err(fault) = work(&server) {
                (server.end)(fault);
            }
        };
        match std::thread::Builder::new().stack_size(STACK).spawn(work) {
            Ok(_) => Ok(()),
            Err(error) => Err(Fault::System("starting a thread", error)),
        }
    }

    fn replace_door(&self, descriptors: Vec<OwnedFd>) -> Result<(), Fault> {
        let [door] = <[OwnedFd; 1]>::try_from(descriptors)
            .map_err(|_| Fault::Order("a door came without its descriptor"))?;
        let channel =
            Channel::<FileserverToDoor, DoorToFileserver>::from_descriptor(door).map_err(Fault::Door)?;
        self.0.refuse_all(self.0.desk.replace_door(Arc::new(Link::new(channel))))
    }
}
