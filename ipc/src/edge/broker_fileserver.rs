//! broker ↔ fileserver: what was served, sent before the door gets its answer; and reads that only the broker can ask for.

use serde::{Deserialize, Serialize};

use crate::channel::Message;
use crate::types::{PlaneCode, RelPath, RequestId};

/// Broker to fileserver.
#[derive(Debug, Serialize, Deserialize)]
pub enum BrokerToFileserver {
    /// A handle has verified: read this file below the peer root and answer the door
    /// ([`super::door_fileserver::FileserverToDoor::Redeemed`]).
    VerifiedRead {
        /// The door's request.
        id: RequestId,
        /// From the payload that was authenticated; not to be decoded again.
        path: RelPath,
    },
    /// A handle is to be minted: where does this path lead below the peer root? Answered by
    /// [`FileserverToBroker::Canonical`].
    Canonicalise {
        /// The request, of the broker's own numbering.
        id: RequestId,
        /// As the agent named it.
        path: RelPath,
    },
}

impl Message for BrokerToFileserver {
    const MAX_DESCRIPTORS: usize = 0;

    fn descriptors(&self) -> usize {
        0
    }
}

/// Fileserver to broker: one per request.
#[derive(Debug, Serialize, Deserialize)]
pub enum FileserverToBroker {
    /// A listing (`resource_list`).
    List {
        /// Generation sampled when the request was taken.
        generation: u64,
        /// Files listed, 0 on a refusal.
        entry_count: u64,
        /// Sum of the listed sizes, 0 on a refusal.
        total_bytes: u64,
        /// The refusal, if any.
        refused: Option<PlaneCode>,
    },
    /// A read of the operator plane (`resource_read`).
    Read {
        /// The path as requested, at most 4096 bytes.
        path: String,
        /// Generation sampled when the request was taken.
        generation: u64,
        /// Length and SHA-256 of the body, or the refusal.
        outcome: Result<(u64, [u8; 32]), PlaneCode>,
    },
    /// A verified read (`peer_handle_redeem`).
    Redeemed {
        /// The door's request.
        id: RequestId,
        /// Generation sampled when the request was taken.
        generation: u64,
        /// Length and SHA-256 of the body, or the refusal.
        outcome: Result<(u64, [u8; 32]), PlaneCode>,
    },
    /// Where a path leads.
    Canonical {
        /// The broker's request.
        id: RequestId,
        /// The path of the regular file it ends at, below the peer root and free of links, or the refusal.
        outcome: Result<RelPath, PlaneCode>,
    },
}

impl Message for FileserverToBroker {
    const MAX_DESCRIPTORS: usize = 0;

    fn descriptors(&self) -> usize {
        0
    }
}
