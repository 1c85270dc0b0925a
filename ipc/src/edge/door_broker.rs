//! door ↔ broker: the refusals the door decided itself, and handles to be verified.

use serde::{Deserialize, Serialize};

use crate::channel::Message;
use crate::types::{PlaneCode, RequestId};

/// Door to broker.
#[derive(Debug, Serialize, Deserialize)]
pub enum DoorToBroker {
    /// A listing was refused (`resource_list`): undeclared plane or a method other than GET.
    ListRefused {
        /// Why.
        code: PlaneCode,
    },
    /// A read, or any other target below `/resources/`, was refused (`resource_read`).
    ReadRefused {
        /// The requested relative path after one percent-decode, before validation, at most 4096 bytes.
        path: String,
        /// Why.
        code: PlaneCode,
    },
    /// A peer-plane request was refused (`peer_handle_redeem`).
    RedeemRefused {
        /// First 16 hex digits of the SHA-256 of the token as presented.
        handle_id: String,
        /// All audience headers joined by `, `, at most 4096 bytes.
        audience: Option<String>,
        /// Why.
        code: PlaneCode,
    },
    /// A handle of good shape: verify it and have the file served. Answered by the fileserver
    /// ([`super::door_fileserver::FileserverToDoor::Redeemed`]) or by [`BrokerToDoor::Refused`]; either way the broker writes
    /// the record.
    Redeem {
        /// The request; never used again, not even by the next door ([`super::control::DoorConfigure::requests_from`]).
        id: RequestId,
        /// The payload's segment as presented: canonical base64url.
        payload: String,
        /// The MAC's segment as presented: canonical base64url.
        mac: String,
        /// All audience headers joined by `, `, at most 4096 bytes: longer than any audience that was minted for.
        audience: String,
    },
    /// Nobody waits for this redeem any more: record it now as `io_error`; no answer is wanted.
    RedeemAbandoned {
        /// The request.
        id: RequestId,
    },
}

impl Message for DoorToBroker {
    const MAX_DESCRIPTORS: usize = 0;

    fn descriptors(&self) -> usize {
        0
    }
}

/// Broker to door.
#[derive(Debug, Serialize, Deserialize)]
pub enum BrokerToDoor {
    /// A redeem is refused; on record already.
    Refused {
        /// The request.
        id: RequestId,
        /// Why.
        code: PlaneCode,
    },
}

impl Message for BrokerToDoor {
    const MAX_DESCRIPTORS: usize = 0;

    fn descriptors(&self) -> usize {
        0
    }
}
