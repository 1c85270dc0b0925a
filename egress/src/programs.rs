//! Where a program may connect: which of the operator's entries, if any, allows an address and a port.
//!
//! An entry that is an address allows that address. An entry that is a name allows an address that the session's resolver gave
//! out for that name, at the entry's port; and an address that nothing was given out for, if the name led to it when the list
//! was resolved. An address that was given out for names is judged by those names alone.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use ipc::edge::control::NetworkRule;
use ipc::edge::egress_broker::Reason;
use tokio::sync::OnceCell;

use crate::addresses::Addresses;
use crate::bindings::Bindings;
use crate::denials::Reports;
use crate::lookup::MOST_ADDRESSES;
use crate::resolve::{Family, NoAddress, Resolve};
use crate::rules::{is_name, pinned_port};

/// The ports of an entry that names none.
const WEB: [u16; 2] = [80, 443];

/// Everything that the session's programs share.
#[derive(Debug)]
pub(crate) struct Programs<R> {
    entries: Vec<Entry>,
    bindings: Bindings,
    /// Where the names of the list led at first.
    launch: OnceCell<BTreeMap<String, Vec<Ipv4Addr>>>,
    resolver: R,
    addresses: Addresses,
    /// Where refusals are told.
    pub(crate) reports: Reports,
}

/// One entry of the list.
#[derive(Debug)]
struct Entry {
    host: String,
    /// What the host is, if it is no name. Nothing of IPv6 is reached from a session.
    literal: Option<IpAddr>,
    ports: Vec<u16>,
}

impl Entry {
    fn of(rule: &NetworkRule) -> Self {
        let ports = pinned_port(rule).map_or(WEB.to_vec(), |port| vec![port]);
        Entry { host: rule.host.clone(), literal: rule.host.parse().ok(), ports }
    }

    fn is_named(&self, name: &str) -> bool {
        self.literal.is_none() && self.host == name
    }
}

/// What becomes of a look-up of a name that no entry forbids.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// These addresses, which are bound to the name now; none if the name has none.
    Addresses(Vec<Ipv4Addr>),
    /// It leads only where names may not lead.
    Refused,
    /// There is none.
    NoAddress(NoAddress),
}

impl<R: Resolve> Programs<R> {
    pub(crate) fn new(rules: &[NetworkRule], resolver: R, addresses: Addresses, reports: Reports) -> Self {
        Programs {
            entries: rules.iter().map(Entry::of).collect(),
            bindings: Bindings::default(),
            launch: OnceCell::new(),
            resolver,
            addresses,
            reports,
        }
    }

    /// The ports at which a program may reach anything, and that of name servers if there are names.
    pub(crate) fn ports(&self) -> Vec<u16> {
        let mut ports: Vec<u16> = self.entries.iter().flat_map(|entry| entry.ports.iter().copied()).collect();
        if self.entries.iter().any(|entry| entry.literal.is_none()) {
            ports.push(crate::rules::DNS);
        }
        ports
    }

    /// Whether an entry is this name.
    pub(crate) fn names(&self, name: &str) -> bool {
        is_name(name) && self.entries.iter().any(|entry| entry.is_named(name))
    }

    /// Looks a name up that [`Self::names`], and binds the addresses that are given out.
    pub(crate) async fn look_up(&self, name: &str) -> Found {
        let resolved = match self.resolver.resolve(name, Family::V4).await {
            Ok(resolved) => resolved,
            Err(why) => return Found::NoAddress(why),
        };
        let ports = self.entries.iter().filter(|entry| entry.is_named(name)).flat_map(|entry| &entry.ports);
        let mut allowed: Vec<Ipv4Addr> = Vec::new();
        for port in ports {
            allowed.extend(self.allowed(name, *port, &resolved));
        }
        let mut given: Vec<Ipv4Addr> = resolved.iter().filter_map(v4).collect();
        given.retain(|address| allowed.contains(address));
        given.truncate(MOST_ADDRESSES);
        if given.is_empty() && !resolved.is_empty() {
            return Found::Refused;
        }
        Found::Addresses(self.bindings.bind(name, &given))
    }

    fn allowed(&self, host: &str, port: u16, resolved: &[IpAddr]) -> Vec<Ipv4Addr> {
        self.addresses.allowed(host, port, resolved).iter().filter_map(v4).collect()
    }

    /// Whether a program may connect there.
    ///
    /// # Errors
    /// The reason why it may not.
    pub(crate) async fn decide(&self, to: SocketAddrV4) -> Result<(), Reason> {
        let (address, port) = (IpAddr::V4(*to.ip()), to.port());
        let at_port = || self.entries.iter().filter(|entry| entry.ports.contains(&port));
        if at_port().any(|entry| entry.literal == Some(address)) {
            return Ok(());
        }
        let bound = self.bindings.names(*to.ip());
        let host = if bound.is_empty() {
            let launch = self.launch().await;
            let led = |host: &str| launch.get(host).is_some_and(|addresses| addresses.contains(to.ip()));
            at_port().find(|entry| entry.literal.is_none() && led(&entry.host))
        } else {
            at_port().find(|entry| bound.iter().any(|name| entry.is_named(name)))
        };
        let host = &host.ok_or(Reason::NotListed)?.host;
        if self.allowed(host, port, &[address]).is_empty() { Err(Reason::Address) } else { Ok(()) }
    }

    /// Where the names of the list lead, looked up once; whoever comes meanwhile waits for it.
    pub(crate) async fn launch(&self) -> &BTreeMap<String, Vec<Ipv4Addr>> {
        self.launch
            .get_or_init(async || {
                let mut led = BTreeMap::new();
                let mut pending = Vec::new();
                for entry in &self.entries {
                    if entry.literal.is_none() && led.insert(entry.host.clone(), Vec::new()).is_none() {
                        let host = entry.host.clone();
                        pending.push(async move { (self.resolver.resolve(&host, Family::V4).await, host) });
                    }
                }
                for (resolved, host) in all(pending).await {
                    match resolved {
                        Ok(found) => drop(led.insert(host, found.iter().filter_map(v4).collect())),
                        Err(why) => crate::say(&format!(
                            "{host}: {}: programs reach it only by name, once it has one",
                            why.as_str()
                        )),
                    }
                }
                led
            })
            .await
    }
}

fn v4(address: &IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(address) => Some(*address),
        IpAddr::V6(_) => None,
    }
}

/// Waits for all of them at once.
async fn all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut waiting: Vec<_> = futures.into_iter().map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        let mut ready = true;
        for (future, output) in &mut waiting {
            if output.is_none() {
                match future.as_mut().poll(context) {
                    std::task::Poll::Ready(value) => *output = Some(value),
                    std::task::Poll::Pending => ready = false,
                }
            }
        }
        if ready { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    waiting.into_iter().filter_map(|(_, output)| output).collect()
}

#[cfg(test)]
#[path = "programs_tests.rs"]
pub(crate) mod tests;
