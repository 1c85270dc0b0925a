//! How do the refusals that the door decides get on record, and handles to whoever can verify them? Sent to the broker
//! before a byte of the answer leaves.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use handle::handle_id;
use ipc::aio::AsyncSender;
use ipc::edge::door_broker::DoorToBroker;
use ipc::types::PlaneCode;

use crate::decode::{recorded, recorded_path};
use crate::head::Head;
use crate::route::Resource;

/// The broker could not be told; the connection ends without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unrecorded;

/// The channel to the broker.
#[derive(Debug)]
pub struct Broker {
    sender: AsyncSender<DoorToBroker>,
    wait: Duration,
    complained: AtomicBool,
}

impl Broker {
    /// A broker that gets `wait` to take each message.
    #[must_use]
    pub fn new(sender: AsyncSender<DoorToBroker>, wait: Duration) -> Self {
        Broker { sender, wait, complained: AtomicBool::new(false) }
    }

    /// Says once that the broker takes nothing.
    pub fn complain(&self) {
        if !self.complained.swap(true, Ordering::Relaxed) {
            eprintln!(
                "door: the broker takes neither records of refusals nor handles; such requests are not answered"
            );
        }
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`Unrecorded`] when the broker does not take it in time.
    pub async fn send(&self, message: &DoorToBroker) -> Result<(), Unrecorded> {
        match tokio::time::timeout(self.wait, self.sender.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Unrecorded),
        }
    }
}

/// The record of a refusal. A handle never appears in it, only its identifier (`seed: The handle`).
#[must_use]
pub fn refused(resource: Resource<'_>, code: PlaneCode, head: &Head<'_>) -> DoorToBroker {
    match resource {
        Resource::Listing => DoorToBroker::ListRefused { code },
        Resource::File(path) | Resource::Unknown(path) => {
            DoorToBroker::ReadRefused { path: recorded_path(path), code }
        }
        Resource::Peer(handle) => {
            DoorToBroker::RedeemRefused { handle_id: handle_id(handle), audience: audience(head), code }
        }
    }
}

/// All audience headers joined by `, `, as asserted (`docs/decisions.md`, Several audience headers); `None` without any.
#[must_use]
pub fn audience(head: &Head<'_>) -> Option<String> {
    let values: Vec<&[u8]> = head.all("x-murmur-audience").collect();
    if values.is_empty() { None } else { Some(recorded(&values.join(&b", "[..]))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(handle: &str, headers: &str) -> (String, Option<String>) {
        let text = format!("GET / HTTP/1.1\r\n{headers}\r\n");
        let head = Head::parse(text.as_bytes()).unwrap();
        match refused(Resource::Peer(handle), PlaneCode::NoPeerPlane, &head) {
            DoorToBroker::RedeemRefused { handle_id, audience, .. } => (handle_id, audience),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_handle_is_recorded_by_its_identifier_whatever_it_looks_like() {
        assert_eq!(peer("", "").0, "e3b0c44298fc1c14");
        let vector = "mh1.eyJ2IjoxLCJpc3MiOiJzZXNfMDFhMDMzZWMyYzFmN2ViMmE1OTIyZjg0ZTAxMmU4OWQiLCJwIjoicmVwb3J0Lm1k\
                      IiwiZXhwIjoxNzU1OTUwMzAwMDAwLCJuIjoiN2YzYzBhNTUxMmU4NGI2ZDlhMDFjMmQzZTRmNTA2MTcifQ.\
                      ECkYCjRA7Yx4LxWc_e4m2HGEvVzj5X_REXzd5Tqzs4U";
        assert_eq!(peer(vector, "").0, "cb3b91815ed11b2d");
    }

    #[test]
    fn every_audience_is_recorded_as_asserted() {
        assert_eq!(peer("t", "").1, None);
        assert_eq!(peer("t", "X-Murmur-Audience: A@b:1\r\n").1.as_deref(), Some("A@b:1"));
        let two = "x-murmur-audience: a@b:1\r\nx-murmur-audience:\r\n";
        assert_eq!(peer("t", two).1.as_deref(), Some("a@b:1, "));
        let long = format!("x-murmur-audience: {}\r\n", "a".repeat(5000));
        assert_eq!(peer("t", &long).1.unwrap().len(), 4096);
    }
}
