//! The loop: takes requests while fewer than the most allowed are in flight, and waits for the end.

use std::sync::Arc;
use std::time::Duration;

use ipc::aio::{AsyncReceiver, AsyncSender};
use ipc::edge::control::{EgressOrder, ToRole};
use ipc::edge::egress_broker::EgressToBroker;
use ipc::edge::host_egress::HostToEgress;
use ipc::{ChannelError, Received};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::denials::Reports;
use crate::exchange::{Outcome, Upstream};
use crate::relay::{self, MOST_RELAYS};
use crate::resolve::Resolve;
use crate::resolver;
use crate::rules::Denied;
use crate::setup::Ways;

/// The most requests in flight; further ones wait in the channel.
const MOST_EXCHANGES: usize = 64;

/// How long the broker may take to read that a destination was refused.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why the process ends with an error.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    /// A peer broke the rules of its channel.
    #[error("{peer}: {cause}")]
    Peer {
        /// Who.
        peer: &'static str,
        /// How.
        #[source]
        cause: ChannelError,
    },
    /// The broker sent an order out of turn.
    #[error("the broker sent an order out of turn")]
    OutOfTurn,
}

/// Serves the session's programs beside that: their connections, their look-ups, and what they are refused, of which the rest is
/// to be told at the end.
pub(crate) fn serve_programs<R: Resolve>(ways: Ways<R>) -> Reports {
    let Ways { programs, resolver, listeners } = ways;
    let reports = programs.reports.clone();
    let room = Arc::new(Semaphore::new(MOST_RELAYS));
    for listener in listeners {
        tokio::spawn(relay::serve(listener, Arc::clone(&programs), Arc::clone(&room)));
    }
    if let Some(socket) = resolver {
        tokio::spawn(resolver::serve(socket, Arc::clone(&programs)));
    }
    tokio::spawn(async move {
        // Where the names of the list lead now, so that the first connection does not wait for it.
        tokio::join!(programs.reports.tell(), programs.launch());
    });
    reports
}

/// Serves until the broker says `Shutdown` or one of the channels closes.
///
/// # Errors
/// [`ServeError`].
pub(crate) async fn serve<R: Resolve>(
    mut control: AsyncReceiver<ToRole<EgressOrder>>,
    mut requests: AsyncReceiver<HostToEgress>,
    broker: AsyncSender<EgressToBroker>,
    upstream: Arc<Upstream<R>>,
) -> Result<(), ServeError> {
    let room = Arc::new(Semaphore::new(MOST_EXCHANGES));
    loop {
        tokio::select! {
            order = control.receive() => return ended(order),
            next = next(&room, &mut requests) => match next {
                Ok(Some((received, permit))) => start(&upstream, &broker, received, permit)?,
                Ok(None) => return Ok(()),
                Err(cause) => return Err(ServeError::Peer { peer: "sandbox-host", cause }),
            },
        }
    }
}

fn ended(order: Result<Received<ToRole<EgressOrder>>, ChannelError>) -> Result<(), ServeError> {
    match order {
        Ok(received) => match received.message {
            ToRole::Shutdown => Ok(()),
            ToRole::Begin(_) | ToRole::Order(_) => Err(ServeError::OutOfTurn),
        },
        Err(ChannelError::Closed) => Ok(()),
        Err(cause) => Err(ServeError::Peer { peer: "broker", cause }),
    }
}

/// The next request once there is room for it; `None` when the host is gone.
async fn next(
    room: &Arc<Semaphore>,
    requests: &mut AsyncReceiver<HostToEgress>,
) -> Result<Option<(Received<HostToEgress>, OwnedSemaphorePermit)>, ChannelError> {
    let Ok(permit) = Arc::clone(room).acquire_owned().await else { return Ok(None) };
    match requests.receive().await {
        Ok(received) => Ok(Some((received, permit))),
        Err(ChannelError::Closed) => Ok(None),
        Err(error) => Err(error),
    }
}

fn start<R: Resolve>(
    upstream: &Arc<Upstream<R>>,
    broker: &AsyncSender<EgressToBroker>,
    received: Received<HostToEgress>,
    permit: OwnedSemaphorePermit,
) -> Result<(), ServeError> {
    let (HostToEgress::HttpRequest(request), ends) =
        received.exactly::<2>().map_err(|cause| ServeError::Peer { peer: "sandbox-host", cause })?;
    let (upstream, broker) = (Arc::clone(upstream), broker.clone());
    tokio::spawn(async move {
        let id = request.id.0;
        let report = async |denied: &Denied| report(&broker, denied).await;
        match upstream.exchange(request, ends, report).await {
            Outcome::Done | Outcome::Denied(_) => {}
            Outcome::Failed(_, why) | Outcome::Cut(why) => crate::say(&format!("request {id}: {why}")),
        }
        drop(permit);
    });
    Ok(())
}

async fn report(broker: &AsyncSender<EgressToBroker>, denied: &Denied) {
    let event = denied.event(1);
    match tokio::time::timeout(PATIENCE, broker.send(&event)).await {
        Ok(Ok(())) => {}
        // A broker that is gone ends this process through the control channel.
        Ok(Err(_)) | Err(_) => crate::say("a refused destination could not be reported"),
    }
}
