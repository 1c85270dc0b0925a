//! The orders that come before the first request.

use std::sync::Arc;

use ipc::aio::{self, AsyncReceiver, AsyncSender};
use ipc::edge::control::{EgressOrder, FromRole, RoleControl, ToRole};
use ipc::edge::egress_broker::EgressToBroker;
use ipc::edge::host_egress::HostToEgress;
use ipc::{Channel, ChannelError, Never};

use crate::exchange::Upstream;
use crate::resolve::Hosts;
use crate::rules::Rules;

/// Why egress cannot take requests.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SetupError {
    /// A channel broke.
    #[error("channel: {0}")]
    Channel(#[from] ChannelError),
    /// The orders came in another order than Configure, Run.
    #[error("the broker sent an order out of turn")]
    OutOfTurn,
    /// The ports could not be bounded.
    #[error(transparent)]
    Confine(#[from] confine::ConfineError),
    /// The hosts file could not be read.
    #[error("read the hosts file: {0}")]
    Hosts(#[source] std::io::Error),
}

/// An egress that is ready.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) control: AsyncReceiver<ToRole<EgressOrder>>,
    /// Kept so that the broker sees an open channel.
    pub(crate) _control: AsyncSender<FromRole>,
    pub(crate) requests: AsyncReceiver<HostToEgress>,
    pub(crate) broker: AsyncSender<EgressToBroker>,
    pub(crate) upstream: Arc<Upstream<Hosts>>,
}

/// Takes the orders up to `Run`; `None` if the session ends before that.
///
/// # Errors
/// [`SetupError`].
pub(crate) fn prepare(mut control: RoleControl<EgressOrder>) -> Result<Option<Session>, SetupError> {
    let Some((order, descriptors)) = next(&mut control)? else { return Ok(None) };
    let (EgressOrder::Configure(configure), Ok([host, broker])) = (order, <[_; 2]>::try_from(descriptors))
    else {
        return Err(SetupError::OutOfTurn);
    };
    let host: Channel<Never, HostToEgress> = Channel::from_descriptor(host)?;
    let broker: Channel<EgressToBroker, Never> = Channel::from_descriptor(broker)?;
    let rules = Rules::new(configure);
    // False on a kernel that knows no such right; the broker reports that from its own look at the kernel.
    let _ = confine::restrict_egress_ports(rules.ports().as_deref())?;
    let resolver = Hosts::read().map_err(SetupError::Hosts)?;
    match next(&mut control)? {
        Some((EgressOrder::Run, _)) => {}
        Some(_) => return Err(SetupError::OutOfTurn),
        None => return Ok(None),
    }
    let (own, control) = aio::split(control)?;
    let (_, requests) = aio::split(host)?;
    let (broker, _) = aio::split(broker)?;
    let upstream = Arc::new(Upstream { rules, resolver });
    Ok(Some(Session { control, _control: own, requests, broker, upstream }))
}

fn next(
    control: &mut RoleControl<EgressOrder>,
) -> Result<Option<(EgressOrder, Vec<std::os::fd::OwnedFd>)>, SetupError> {
    match control.receive() {
        Ok(received) => match received.message {
            ToRole::Order(order) => Ok(Some((order, received.descriptors))),
            ToRole::Shutdown => Ok(None),
            ToRole::Begin(_) => Err(SetupError::OutOfTurn),
        },
        Err(ChannelError::Closed) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
