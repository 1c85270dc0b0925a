//! What is asked for, and which thread does it? Whoever receives a request serves it: the kernel wakes one of the threads that
//! wait on a channel, and no request is handed from one thread to another.
//!
//! A read that never returns holds one worker, and the others go on. Messages are taken up in any order, so nothing here relies
//! on one being done before the next; what must be in order says so.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ipc::edge::broker_fileserver::BrokerToFileserver;
use ipc::edge::door_fileserver::DoorToFileserver;
use ipc::types::{Moment, PlaneCode, RequestId};
use ipc::{ChannelError, Receiver};

use crate::desk::{Ended, IN_FLIGHT, Job, Link, Task, Untaken};
use crate::serve::{Fault, Server};

impl Server {
    /// Serves one door after the other, until the process ends.
    pub(crate) fn door_loop(&self) -> Result<(), Fault> {
        let mut buffer = Vec::new();
        while let Some(link) = self.desk.next_door() {
            let mut receiver = link.receiver();
            loop {
                self.serve_ready(&mut buffer)?;
                match receiver.receive() {
                    // It was left in the queue of a door that was replaced.
                    Ok(_) if link.is_gone() => {}
                    Ok(received) => self.hear_door(&link, received.message, &mut buffer)?,
                    Err(ChannelError::Closed) => {
                        self.refuse_all(self.desk.end_door(&link))?;
                        break;
                    }
                    Err(_) if link.is_gone() => break,
                    Err(error) => return Err(Fault::Door(error)),
                }
            }
        }
        Ok(())
    }

    /// Serves the broker, until the process ends.
    pub(crate) fn broker_loop(&self, mut receiver: Receiver<BrokerToFileserver>) -> Result<(), Fault> {
        let mut buffer = Vec::new();
        loop {
            self.serve_ready(&mut buffer)?;
            match receiver.receive().map_err(Fault::Broker)?.message {
                BrokerToFileserver::VerifiedRead { id, path } => {
                    // It is asked for the door of which the broker told before.
                    self.orders.carried_out();
                    let link = self.desk.door();
                    // Without a door nobody gets the bytes, and the record must not say otherwise.
                    let cancel = match &link {
                        Some(link) => link.gone(),
                        None => Arc::new(AtomicBool::new(true)),
                    };
                    let place = self.redeems.take(IN_FLIGHT);
                    let full = place.is_none();
                    let job = Job { _place: place, ..job(link, id, Task::Redeem(path), cancel) };
                    if full {
                        self.refuse(job, PlaneCode::IoError)?;
                    } else {
                        self.read(job, &mut buffer)?;
                    }
                }
                BrokerToFileserver::Canonicalise { id, path } => {
                    self.read(job(None, id, Task::Canonicalise(path), Arc::default()), &mut buffer)?;
                }
            }
        }
    }

    /// Makes listings, one at a time, until the process ends.
    pub(crate) fn listing_loop(&self) -> Result<(), Fault> {
        let mut buffer = Vec::new();
        while let Some(job) = self.desk.next_listing() {
            self.list(job)?;
            self.serve_ready(&mut buffer)?;
        }
        Ok(())
    }

    /// Refuses what has waited for space too long, until the process ends. It touches no file, so nothing can hold it up.
    pub(crate) fn patience_loop(&self) -> Result<(), Fault> {
        while let Some(job) = self.desk.next_late() {
            self.refuse(job, PlaneCode::IoError)?;
        }
        Ok(())
    }

    fn hear_door(
        &self,
        link: &Arc<Link>,
        message: DoorToFileserver,
        buffer: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let release = |slots: &[u32]| self.desk.release(link, slots).map_err(Fault::UnknownSlot);
        match message {
            DoorToFileserver::List { id, freed, until } => {
                release(freed.as_slice())?;
                if let Some(job) = self.begin(link, id, Task::List, until)? {
                    self.desk.add_listing(job);
                }
                Ok(())
            }
            DoorToFileserver::Read { id, path, freed, until } => {
                release(freed.as_slice())?;
                match self.begin(link, id, Task::Read(path), until)? {
                    Some(job) => self.read(job, buffer),
                    None => Ok(()),
                }
            }
            DoorToFileserver::Cancel { id } => self.refuse_all(self.desk.cancel(link, id, Ended::Canceled)),
            DoorToFileserver::Abandon { id } => self.refuse_all(self.desk.cancel(link, id, Ended::Abandoned)),
            DoorToFileserver::SlotFree { slot } => release(&[slot]),
        }
    }

    /// Notes a request of a door, or refuses it if too many are unanswered.
    fn begin(
        &self,
        link: &Arc<Link>,
        id: RequestId,
        task: Task,
        until: Moment,
    ) -> Result<Option<Job>, Fault> {
        let link_of_job = Some(Arc::clone(link));
        match link.begin(id) {
            Ok(cancel) => {
                let job = job(link_of_job, id, task, cancel);
                Ok(Some(Job { until: Some(until), ..job }))
            }
            Err(Untaken::Full) => {
                self.refuse(job(link_of_job, id, task, Arc::default()), PlaneCode::IoError)?;
                Ok(None)
            }
            Err(Untaken::Reused) => Err(Fault::ReusedRequest),
        }
    }

    /// Serves what waited for space that has come free. The window changed by this thread's doing or by that of one that is
    /// busy with the first of them.
    fn serve_ready(&self, buffer: &mut Vec<u8>) -> Result<(), Fault> {
        while let Some(job) = self.desk.next_ready() {
            self.read(job, buffer)?;
        }
        Ok(())
    }

    /// Records and refuses requests for whose answers nobody waits.
    pub(crate) fn refuse_all(&self, jobs: impl IntoIterator<Item = Job>) -> Result<(), Fault> {
        jobs.into_iter().try_for_each(|job| self.refuse(job, PlaneCode::IoError))
    }
}

fn job(link: Option<Arc<Link>>, id: RequestId, task: Task, cancel: Arc<AtomicBool>) -> Job {
    Job { link, id, task, cancel, until: None, _place: None, generation: None, patience: None }
}
