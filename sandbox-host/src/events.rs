//! The broker's side of a session: trace lines in order, the acknowledgement a finished task waits for, and handles.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use ipc::ChannelError;
use ipc::aio::{AsyncReceiver, AsyncSender};
use ipc::codec::{MAX_PACKET, encode_document};
use ipc::edge::host_broker::{BrokerToHost, Event, HostToBroker, LoopEnded, Minted};
use ipc::types::{PlaneCode, RelPath, RequestId};
use tokio::sync::{Mutex, oneshot};
use tokio::task::spawn_local;

use crate::fault::Fault;

/// Bytes of an event that travel in one part; the rest of the packet is its frame.
const PART: usize = MAX_PACKET - 64;

/// The way to the broker. Lines leave in the order in which [`BrokerLink::event`] was called.
pub(crate) struct BrokerLink {
    // Held over a whole event, so that no other line comes between its parts.
    sender: Rc<Mutex<AsyncSender<HostToBroker>>>,
    stored: RefCell<HashMap<String, oneshot::Sender<u64>>>,
    minting: RefCell<HashMap<RequestId, oneshot::Sender<Result<Minted, PlaneCode>>>>,
    next: Cell<u64>,
}

impl BrokerLink {
    pub(crate) fn new(sender: AsyncSender<HostToBroker>) -> Self {
        BrokerLink {
            sender: Rc::new(Mutex::new(sender)),
            stored: RefCell::default(),
            minting: RefCell::default(),
            next: Cell::new(1),
        }
    }

    /// Reports a trace line, in parts if it does not fit one packet. A caller that gives up waiting takes nothing back: what
    /// was done has its line even if its task is cancelled meanwhile, and no event is left half sent.
    ///
    /// # Errors
    /// [`Fault::Broker`].
    pub(crate) async fn event(&self, event: Event) -> Result<(), Fault> {
        self.events(vec![event]).await
    }

    /// Reports trace lines that belong together.
    ///
    /// # Errors
    /// [`Fault::Broker`].
    pub(crate) async fn events(&self, events: Vec<Event>) -> Result<(), Fault> {
        let sender = Rc::clone(&self.sender);
        let sent = spawn_local(async move {
            let sender = sender.lock().await;
            for event in events {
                send(&sender, event).await?;
            }
            Ok(())
        });
        sent.await.unwrap_or_else(|_| Err(Fault::Own("an event was not sent".into())))
    }

    /// Has a handle minted. The broker writes the record, whatever it answers; `None` if it does not answer in time.
    ///
    /// # Errors
    /// [`Fault::Broker`].
    pub(crate) async fn mint(
        &self,
        path: RelPath,
        audience: String,
        ttl_ms: Option<u64>,
        patience: Duration,
    ) -> Result<Option<Result<Minted, PlaneCode>>, Fault> {
        let id = RequestId(self.next.replace(self.next.get() + 1));
        let (answer, answered) = oneshot::channel();
        self.minting.borrow_mut().insert(id, answer);
        let message = HostToBroker::Mint { id, path, audience, ttl_ms };
        let exchange = async {
            self.sender.lock().await.send(&message).await.map_err(broker)?;
            answered.await.map_err(|_| Fault::Broker("the broker went away".into()))
        };
        tokio::time::timeout(patience, exchange).await.ok().transpose()
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
                Ok(received) => match received.message {
                    BrokerToHost::TaskEndedStored { task_id, generation } => {
                        match self.stored.borrow_mut().remove(&task_id) {
                            // A waiter that gave up at the end of the session is no error of the broker's.
                            Some(waiter) => drop(waiter.send(generation)),
                            None => {
                                return Fault::Broker("the broker stored a task that had not ended".into());
                            }
                        }
                    }
                    BrokerToHost::Minted { id, outcome } => match self.minting.borrow_mut().remove(&id) {
                        // The waiter is gone when its task was cancelled.
                        Some(waiter) => drop(waiter.send(outcome)),
                        None => return Fault::Broker("the broker minted a handle nobody asked for".into()),
                    },
                },
                Err(error) => return broker(error),
            }
        }
    }
}

async fn send(sender: &AsyncSender<HostToBroker>, event: Event) -> Result<(), Fault> {
    let bytes = encode_document(&event).map_err(|_| Fault::Broker("an event is too large".into()))?;
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

fn broker(error: ChannelError) -> Fault {
    Fault::Broker(error.to_string())
}
