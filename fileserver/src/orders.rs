//! What does the broker want, and what does the door ask? The one thread that receives, on all channels at once.
//!
//! It never reads a file and never waits for a worker, so that an order, a cancellation or a freed slot is always heard.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ipc::edge::broker_fileserver::Served;
use ipc::edge::control::{FileserverConfigure, FileserverOrder, RoleControl, ToRole};
use ipc::edge::door_fileserver::{DoorToFileserver, FileserverToDoor};
use ipc::memory::{CounterReader, map_window};
use ipc::types::{PlaneCode, RelPath, RequestId};
use ipc::{Channel, ChannelError, Never, Received, Receiver};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::desk::{Desk, Job, Link, SPACE_PATIENCE, Untaken};
use crate::serve::{Fault, Server};
use crate::window::Window;

/// Threads that read files. More would only wait for each other's hashing on small hosts.
const READERS: usize = 3;

/// Stack of a thread; nothing here recurses.
const STACK: usize = 256 * 1024;

/// Messages taken from the door before the other channels are looked at again.
const BURST: usize = 64;

/// The wiring once it was configured.
struct Serving {
    server: Arc<Server>,
    broker: Receiver<Never>,
    door: Option<(Arc<Link>, Receiver<DoorToFileserver>)>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.server.desk.close();
    }
}

/// Serves until the broker says `Shutdown`. A fault in a worker goes to `end`.
///
/// # Errors
/// [`Fault`]: the broker is gone, or somebody broke the rules; the process must end.
pub(crate) fn run(
    control: RoleControl<FileserverOrder>,
    workdir: OwnedFd,
    end: Arc<dyn Fn(Fault) + Send + Sync>,
) -> Result<(), Fault> {
    let (_reports, mut control) = control.split();
    let workdir = Arc::new(workdir);
    let mut serving: Option<Serving> = None;
    loop {
        let ready = wait(&control, serving.as_ref())?;
        if ready.control
            && let Some(Received { message, descriptors }) = control.try_receive().map_err(Fault::Control)?
        {
            match message {
                ToRole::Shutdown => return Ok(()),
                ToRole::Begin(_) => return Err(Fault::Order("the process has begun already")),
                ToRole::Order(FileserverOrder::Configure(configure)) => {
                    if serving.is_some() {
                        return Err(Fault::Order("the process is configured already"));
                    }
                    serving = Some(start(&workdir, configure, descriptors, Arc::clone(&end))?);
                }
                ToRole::Order(FileserverOrder::Door) => {
                    let serving =
                        serving.as_mut().ok_or(Fault::Order("a door came before the configuration"))?;
                    serving.replace_door(descriptors)?;
                }
            }
            // What was found ready on the other channels may belong to a door that was just replaced.
            continue;
        }
        let Some(serving) = serving.as_mut() else { continue };
        if ready.broker
            && let Some(Received { message, .. }) = serving.broker.try_receive().map_err(Fault::Broker)?
        {
            match message {}
        }
        if ready.door {
            serving.hear_door()?;
        }
    }
}

/// Which channels have something to say.
struct Ready {
    control: bool,
    broker: bool,
    door: bool,
}

fn wait(control: &Receiver<ToRole<FileserverOrder>>, serving: Option<&Serving>) -> Result<Ready, Fault> {
    let mut fds = Vec::with_capacity(3);
    fds.push(PollFd::new(control, PollFlags::IN));
    if let Some(serving) = serving {
        fds.push(PollFd::new(&serving.broker, PollFlags::IN));
        if let Some((_, door)) = &serving.door {
            fds.push(PollFd::new(door, PollFlags::IN));
        }
    }
    loop {
        match rustix::event::poll(&mut fds, None) {
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Fault::System("waiting for messages", errno.into())),
        }
    }
    let ready = |index: usize| fds.get(index).is_some_and(|fd| !fd.revents().is_empty());
    Ok(Ready { control: ready(0), broker: ready(1), door: ready(2) })
}

fn start(
    workdir: &Arc<OwnedFd>,
    configure: FileserverConfigure,
    descriptors: Vec<OwnedFd>,
    end: Arc<dyn Fn(Fault) + Send + Sync>,
) -> Result<Serving, Fault> {
    let [broker, window, counter] = <[OwnedFd; 3]>::try_from(descriptors)
        .map_err(|_| Fault::Order("the configuration came without its descriptors"))?;
    let (sender, broker) = Channel::<Served, Never>::from_descriptor(broker).map_err(Fault::Broker)?.split();
    let window = Window::new(map_window(&window, true)?).ok_or(ipc::memory::MemoryError::NotSealed)?;
    let server = Arc::new(Server {
        workdir: Arc::clone(workdir),
        configure,
        counter: CounterReader::new(&counter)?,
        broker: sender,
        desk: Arc::new(Desk::new(window, SPACE_PATIENCE)),
        end,
    });
    let serving = Serving { server: Arc::clone(&server), broker, door: None };
    let spawn = |work: fn(&Server)| {
        let server = Arc::clone(&server);
        std::thread::Builder::new()
            .stack_size(STACK)
            .spawn(move || work(&server))
            .map_err(|error| Fault::System("starting a thread", error))
    };
    for _ in 0..READERS {
        spawn(Server::read_loop)?;
    }
    spawn(Server::listing_loop)?;
    Ok(serving)
}

impl Serving {
    fn replace_door(&mut self, descriptors: Vec<OwnedFd>) -> Result<(), Fault> {
        let [door] = <[OwnedFd; 1]>::try_from(descriptors)
            .map_err(|_| Fault::Order("a door came without its descriptor"))?;
        let channel =
            Channel::<FileserverToDoor, DoorToFileserver>::from_descriptor(door).map_err(Fault::Door)?;
        let (sender, receiver) = channel.split();
        let link = Arc::new(Link::new(sender));
        self.server.desk.replace_door(Some(Arc::clone(&link)));
        self.door = Some((link, receiver));
        Ok(())
    }

    /// Takes what the door has sent, up to a bound.
    fn hear_door(&mut self) -> Result<(), Fault> {
        for _ in 0..BURST {
            let Some((link, receiver)) = &mut self.door else { return Ok(()) };
            let message = match receiver.try_receive() {
                Ok(Some(received)) => received.message,
                Ok(None) => return Ok(()),
                Err(ChannelError::Closed) => {
                    self.server.desk.replace_door(None);
                    self.door = None;
                    return Ok(());
                }
                Err(error) => return Err(Fault::Door(error)),
            };
            let link = Arc::clone(link);
            match message {
                DoorToFileserver::List { id } => self.take(link, id, None)?,
                DoorToFileserver::Read { id, path } => self.take(link, id, Some(path))?,
                DoorToFileserver::Cancel { id } => self.server.desk.cancel(&link, id),
                DoorToFileserver::SlotFree { slot } => {
                    if !self.server.desk.release(slot) {
                        return Err(Fault::UnknownSlot(slot));
                    }
                }
            }
        }
        Ok(())
    }

    fn take(&self, link: Arc<Link>, id: RequestId, path: Option<RelPath>) -> Result<(), Fault> {
        let (cancel, full) = match link.begin(id) {
            Ok(cancel) => (cancel, false),
            Err(Untaken::Full) => (Arc::default(), true),
            Err(Untaken::Reused) => return Err(Fault::ReusedRequest),
        };
        let job = Job { link, id, path, cancel, generation: None, patience: None };
        if full {
            return self.server.refuse(job, PlaneCode::IoError);
        }
        self.server.desk.add(job);
        Ok(())
    }
}
