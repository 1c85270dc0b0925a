//! A sandbox-host that has been taken over and does nothing but ask for handles: as many as it is told, one after the other.

use std::os::fd::OwnedFd;

use ipc::edge::control::{FromRole, HostOrder, RoleControl, ToRole};
use ipc::edge::host_broker::{BrokerToHost, HostToBroker};
use ipc::types::{RelPath, RequestId};
use ipc::{Channel, Received};

/// Obeys the orders of a start, mints, says the last handle, and waits for the end.
pub(crate) fn run(mut control: RoleControl<HostOrder>, handles: u64) -> Result<(), String> {
    let mut broker: Option<OwnedFd> = None;
    // Everything else is held and left alone: a channel that closes would end its other end.
    let mut held: Vec<OwnedFd> = Vec::new();
    loop {
        let Received { message, descriptors } = control.receive().map_err(|error| error.to_string())?;
        match message {
            ToRole::Order(HostOrder::Configure) => {
                let mut descriptors = descriptors.into_iter();
                broker = descriptors.next();
                held.extend(descriptors);
            }
            ToRole::Order(HostOrder::Load) => {
                control.send(&FromRole::Sealed).map_err(|error| error.to_string())?;
            }
            ToRole::Order(HostOrder::Run) => {
                let broker = broker.take().ok_or("run before configure")?;
                let handle = mint(broker, handles)?;
                eprintln!("minted {handles}, last {handle}");
            }
            ToRole::Order(HostOrder::Door | HostOrder::Egress) => held.extend(descriptors),
            ToRole::Begin(_) => return Err("a second begin".into()),
            ToRole::Shutdown => return Ok(()),
        }
    }
}

fn mint(broker: OwnedFd, handles: u64) -> Result<String, String> {
    let channel = Channel::<HostToBroker, BrokerToHost>::from_descriptor(broker);
    let mut channel = channel.map_err(|error| error.to_string())?;
    let path = RelPath::new("report.md").map_err(|error| error.to_string())?;
    let mut last = String::new();
    for number in 0..handles {
        let id = RequestId(number);
        let message =
            HostToBroker::Mint { id, path: path.clone(), audience: "reader@h:1".into(), ttl_ms: None };
        channel.send(&message).map_err(|error| error.to_string())?;
        match channel.receive().map_err(|error| error.to_string())?.message {
            BrokerToHost::Minted { id: answered, outcome: Ok(minted) } if answered == id => {
                last = minted.handle
            }
            other => return Err(format!("{other:?}")),
        }
    }
    // The channel stays open: closing it would end the session.
    std::mem::forget(channel);
    Ok(last)
}
