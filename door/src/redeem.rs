//! Which client waits for which handle? The table of redeems that the broker was asked to verify.
//!
//! It belongs to the door and not to a fileserver: the broker verifies, the fileserver of that moment answers, and it may be
//! another one than when the client asked.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipc::aio::AsyncReceiver;
use ipc::edge::door_broker::BrokerToDoor;
use ipc::types::{FileMeta, PlaneCode, RequestId};
use ipc::{ChannelError, Received};
use tokio::sync::oneshot;

use crate::fileserver::Content;

/// What a redeem came to; on record already.
pub type Outcome = Result<(FileMeta, Content), PlaneCode>;

/// The redeems of the moment.
#[derive(Debug)]
pub struct Redeems(Mutex<State>);

#[derive(Debug)]
struct State {
    next: u64,
    waiting: BTreeMap<u64, oneshot::Sender<Outcome>>,
}

/// A redeem somebody waits for; forgotten when it is dropped.
#[derive(Debug)]
pub struct Pending<'r> {
    redeems: &'r Redeems,
    id: RequestId,
    outcome: oneshot::Receiver<Outcome>,
}

impl Redeems {
    /// An empty table whose identifiers begin with `first`; none is ever used again.
    #[must_use]
    pub fn new(first: u64) -> Self {
        Redeems(Mutex::new(State { next: first, waiting: BTreeMap::new() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to wait.
    #[must_use]
    pub fn begin(&self) -> Pending<'_> {
        let (sender, outcome) = oneshot::channel();
        let mut state = self.state();
        let id = state.next;
        state.next = id.wrapping_add(1);
        state.waiting.insert(id, sender);
        Pending { redeems: self, id: RequestId(id), outcome }
    }

    /// The identifiers somebody waits for now.
    #[must_use]
    pub fn waiting(&self) -> Vec<RequestId> {
        self.state().waiting.keys().map(|id| RequestId(*id)).collect()
    }

    /// Hands an outcome to whoever waits. Nobody may be waiting any more, which is nobody's fault; then dropping the outcome
    /// frees its slot.
    pub fn settle(&self, id: RequestId, outcome: Outcome) {
        let waiting = self.state().waiting.remove(&id.0);
        if let Some(waiting) = waiting {
            let _ = waiting.send(outcome);
        }
    }
}

impl Pending<'_> {
    /// Its identifier.
    #[must_use]
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// The outcome; to be called until there is one.
    pub async fn outcome(&mut self) -> Outcome {
        // The sender is in the table as long as this is.
        (&mut self.outcome).await.unwrap_or(Err(PlaneCode::IoError))
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.redeems.state().waiting.remove(&self.id.0);
    }
}

/// Hears the broker's refusals until its channel closes.
///
/// # Errors
/// A channel that breaks in another way.
pub async fn listen(
    mut broker: AsyncReceiver<BrokerToDoor>,
    redeems: Arc<Redeems>,
) -> Result<(), ChannelError> {
    loop {
        match broker.receive().await {
            Ok(Received { message: BrokerToDoor::Refused { id, code }, .. }) => {
                redeems.settle(id, Err(code));
            }
            // A door whose broker is gone learns it on its control channel.
            Err(ChannelError::Closed) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_count_up_from_the_first_and_only_waiting_ones_are_kept() {
        let redeems = Redeems::new(1000);
        let (one, two) = (redeems.begin(), redeems.begin());
        assert_eq!((one.id(), two.id()), (RequestId(1000), RequestId(1001)));
        drop(one);
        redeems.settle(RequestId(1000), Err(PlaneCode::HandleNotValid));
        redeems.settle(RequestId(77), Err(PlaneCode::HandleNotValid));
        assert_eq!(redeems.state().waiting.keys().collect::<Vec<_>>(), [&1001]);
        drop(two);
        assert!(redeems.state().waiting.is_empty());
        assert_eq!(redeems.begin().id(), RequestId(1002));
    }
}
