//! The broker's side of a session: trace lines in order, and the acknowledgement a finished task waits for.

use std::cell::RefCell;
use std::collections::HashMap;

use ipc::ChannelError;
use ipc::aio::{AsyncReceiver, AsyncSender};
use ipc::codec::{MAX_PACKET, encode_document};
use ipc::edge::host_broker::{BrokerToHost, Event, HostToBroker, LoopEnded};
use tokio::sync::{Mutex, oneshot};

use crate::fault::Fault;

/// Bytes of an event that travel in one part; the rest of the packet is its frame.
const PART: usize = MAX_PACKET - 64;

/// The way to the broker. Lines leave in the order in which [`BrokerLink::event`] was called.
pub(crate) struct BrokerLink {
    // Held over a whole event, so that no other line comes between its parts.
    sender: Mutex<AsyncSender<HostToBroker>>,
    stored: RefCell<HashMap<String, oneshot::Sender<u64>>>,
}

impl BrokerLink {
    pub(crate) fn new(sender: AsyncSender<HostToBroker>) -> Self {
        BrokerLink { sender: Mutex::new(sender), stored: RefCell::default() }
    }

    /// Reports a trace line, in parts if it does not fit one packet.
    ///
    /// # Errors
    /// [`Fault::Broker`].
    pub(crate) async fn event(&self, event: Event) -> Result<(), Fault> {
        let bytes = encode_document(&event).map_err(|_| Fault::Broker("an event is too large".into()))?;
        let sender = self.sender.lock().await;
        if bytes.len() <= PART {
            return sender.send(&HostToBroker::Event(Box::new(event))).await.map_err(broker);
        }
        let mut parts = bytes.chunks(PART).peekable();
        while let Some(part) = parts.next() {
            let last = parts.peek().is_none();
            sender.send(&HostToBroker::EventPart { last, bytes: part.to_vec() }).await.map_err(broker)?;
        }
        Ok(())
    }

    /// Reports that an activated task is over and waits until the generation that says so is stored.
    ///
    /// # Errors
    /// [`Fault::Broker`].
    pub(crate) async fn task_ended(&self, task_id: &str) -> Result<u64, Fault> {
        let (acknowledge, acknowledged) = oneshot::channel();
        self.stored.borrow_mut().insert(task_id.to_owned(), acknowledge);
        let message = HostToBroker::TaskEnded { task_id: task_id.to_owned() };
        self.sender.lock().await.send(&message).await.map_err(broker)?;
        acknowledged.await.map_err(|_| Fault::Broker("the broker went away".into()))
    }

    /// Reports that no further task will run.
    ///
    /// # Errors
    /// [`Fault::Broker`].
    pub(crate) async fn loop_ended(&self, totals: LoopEnded) -> Result<(), Fault> {
        self.sender.lock().await.send(&HostToBroker::LoopEnded(totals)).await.map_err(broker)
    }

    /// Takes acknowledgements until the broker goes away or breaks the rules.
    pub(crate) async fn receive(&self, mut receiver: AsyncReceiver<BrokerToHost>) -> Fault {
        loop {
            match receiver.receive().await {
                Ok(received) => {
                    let BrokerToHost::TaskEndedStored { task_id, generation } = received.message;
                    match self.stored.borrow_mut().remove(&task_id) {
                        // A waiter that gave up at the end of the session is no error of the broker's.
                        Some(waiter) => drop(waiter.send(generation)),
                        None => return Fault::Broker("the broker stored a task that had not ended".into()),
                    }
                }
                Err(error) => return broker(error),
            }
        }
    }
}

fn broker(error: ChannelError) -> Fault {
    Fault::Broker(error.to_string())
}
