//! The orders that come before the first request.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ipc::aio::{self, AsyncReceiver, AsyncSender};
use ipc::edge::control::{EgressOrder, FromRole, MAX_LISTENERS, RoleControl, ToRole};
use ipc::edge::egress_broker::EgressToBroker;
use ipc::edge::host_egress::HostToEgress;
use ipc::{Channel, ChannelError, Never};

use tokio::net::TcpListener;

use crate::addresses::Addresses;
use crate::denials::Reports;
use crate::exchange::Upstream;
use crate::programs::Programs;
use crate::relay;
use crate::resolve::Names;
use crate::resolver::Socket;
use crate::rules::Rules;
use crate::tls::{Tls, TrustError};

/// Why egress cannot take requests.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SetupError {
    /// A channel broke.
    #[error("channel: {0}")]
    Channel(#[from] ChannelError),
    /// The orders came in another order than Configure, the programs' sockets, Run.
    #[error("the broker sent an order out of turn")]
    OutOfTurn,
    /// The ports could not be bounded.
    #[error(transparent)]
    Confine(#[from] confine::ConfineError),
    /// The hosts file or resolv.conf could not be read.
    #[error("read the hosts file and resolv.conf: {0}")]
    Names(#[source] std::io::Error),
    /// A socket of the session's network could not be used.
    #[error("a socket of the session's network: {0}")]
    Socket(#[source] std::io::Error),
    /// The trusted certificates could not be taken.
    #[error(transparent)]
    Trust(#[from] TrustError),
}

/// An egress that is ready.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) control: AsyncReceiver<ToRole<EgressOrder>>,
    /// Kept so that the broker sees an open channel.
    pub(crate) _control: AsyncSender<FromRole>,
    pub(crate) requests: AsyncReceiver<HostToEgress>,
    pub(crate) broker: AsyncSender<EgressToBroker>,
    pub(crate) upstream: Arc<Upstream<Arc<Names>>>,
    pub(crate) ways: Ways<Arc<Names>>,
}

/// The ways by which programs reach this process, and what they may.
#[derive(Debug)]
pub(crate) struct Ways<R> {
    pub(crate) programs: Arc<Programs<R>>,
    pub(crate) resolver: Option<Socket>,
    pub(crate) listeners: Vec<TcpListener>,
}

/// Takes the orders up to `Run`; `None` if the session ends before that.
///
/// # Errors
/// [`SetupError`].
pub(crate) fn prepare(mut control: RoleControl<EgressOrder>) -> Result<Option<Session>, SetupError> {
    let Some((order, descriptors)) = next(&mut control)? else { return Ok(None) };
    let mut descriptors = descriptors.into_iter();
    let (EgressOrder::Configure(configure), Some(host), Some(broker)) =
        (order, descriptors.next(), descriptors.next())
    else {
        return Err(SetupError::OutOfTurn);
    };
    // As many as the order said, which the channel has checked.
    let certificates = descriptors.collect();
    let host: Channel<Never, HostToEgress> = Channel::from_descriptor(host)?;
    let broker: Channel<EgressToBroker, Never> = Channel::from_descriptor(broker)?;
    let (own_broker, _) = aio::split(broker)?;
    let rules = Rules::new(&configure);
    let addresses = Addresses::new(configure.door);
    let names = Arc::new(Names::read().map_err(SetupError::Names)?);
    let reports = Reports::new(own_broker.clone());
    let programs = Programs::new(&configure.programs, Arc::clone(&names), addresses, reports);
    // False on a kernel that knows no such right; the broker reports that from its own look at the kernel.
    let _ = confine::restrict_egress_ports(rules.ports(programs.ports()).as_deref())?;
    let tls = Tls::trusting(certificates)?;
    let mut ways = Ways { programs: Arc::new(programs), resolver: None, listeners: Vec::new() };
    loop {
        let Some((order, descriptors)) = next(&mut control)? else { return Ok(None) };
        match (order, descriptors.into_iter().next()) {
            (EgressOrder::Resolver, Some(socket)) if ways.resolver.is_none() => {
                ways.resolver = Some(Socket::new(socket).map_err(SetupError::Socket)?);
            }
            (EgressOrder::Listener, Some(listener)) if ways.listeners.len() < MAX_LISTENERS => {
                ways.listeners.push(relay::listener(listener).map_err(SetupError::Socket)?);
            }
            (EgressOrder::Run, None) => break,
            _ => return Err(SetupError::OutOfTurn),
        }
    }
    let (own, control) = aio::split(control)?;
    let (_, requests) = aio::split(host)?;
    let upstream = Arc::new(Upstream { rules, resolver: names, addresses, tls });
    Ok(Some(Session { control, _control: own, requests, broker: own_broker, upstream, ways }))
}

fn next(control: &mut RoleControl<EgressOrder>) -> Result<Option<(EgressOrder, Vec<OwnedFd>)>, SetupError> {
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
