//! door ↔ fileserver: the operator plane, and the answers to verified reads of the peer plane.

use serde::{Deserialize, Serialize};

use crate::channel::Message;
use crate::types::{FileMeta, Moment, PlaneCode, RelPath, RequestId};

/// Door to fileserver.
#[derive(Debug, Serialize, Deserialize)]
pub enum DoorToFileserver {
    /// List the operator plane.
    List {
        /// The request.
        id: RequestId,
        /// Slots that are free, as with [`DoorToFileserver::SlotFree`]: a packet less for each of them.
        freed: Slots,
        /// Neither record nor answer is wanted after this: the door refuses and records it itself a little later.
        until: Moment,
    },
    /// Read one file of the operator plane.
    Read {
        /// The request.
        id: RequestId,
        /// Relative to the export root.
        path: RelPath,
        /// As in [`DoorToFileserver::List`].
        freed: Slots,
        /// As in [`DoorToFileserver::List`].
        until: Moment,
    },
    /// The client is gone: stop working on this request. It is still recorded and answered.
    Cancel {
        /// The request. Its identifier is not used for another one: several threads receive, and a cancellation may be heard
        /// before what it cancels.
        id: RequestId,
    },
    /// The door has answered this request itself and put the refusal on record: neither record nor answer is wanted. Too late
    /// for one that was answered already.
    Abandon {
        /// The request.
        id: RequestId,
    },
    /// The bytes of this slot were written to the client, or are not wanted any more.
    SlotFree {
        /// The slot.
        slot: u32,
    },
}

/// The most slots that are given back in one message.
pub const MAX_FREED: usize = 64;

/// Numbers of slots, at most [`MAX_FREED`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<u32>", into = "Vec<u32>")]
pub struct Slots(Vec<u32>);

/// More than [`MAX_FREED`] slots in one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("more slots than one message gives back")]
pub struct TooManySlots;

impl TryFrom<Vec<u32>> for Slots {
    type Error = TooManySlots;

    fn try_from(slots: Vec<u32>) -> Result<Self, TooManySlots> {
        if slots.len() > MAX_FREED { Err(TooManySlots) } else { Ok(Slots(slots)) }
    }
}

impl From<Slots> for Vec<u32> {
    fn from(slots: Slots) -> Vec<u32> {
        slots.0
    }
}

impl Slots {
    /// The numbers.
    #[must_use]
    pub fn as_slice(&self) -> &[u32] {
        &self.0
    }
}

impl Message for DoorToFileserver {
    const MAX_DESCRIPTORS: usize = 0;

    fn descriptors(&self) -> usize {
        0
    }
}

/// Fileserver to door: exactly one per request of the door, and one per verified read of the broker.
#[derive(Debug, Serialize, Deserialize)]
pub enum FileserverToDoor {
    /// The listing, a whole JSON document.
    Listing {
        /// The request.
        id: RequestId,
        /// Generation sampled when the request was taken.
        generation: u64,
        /// The document.
        body: Body,
    },
    /// One file.
    File {
        /// The request.
        id: RequestId,
        /// What was served.
        meta: FileMeta,
        /// The bytes.
        body: Body,
    },
    /// A refusal.
    Refused {
        /// The request.
        id: RequestId,
        /// Generation sampled when the request was taken.
        generation: u64,
        /// Why.
        code: PlaneCode,
    },
    /// A verified read ([`super::broker_fileserver::BrokerToFileserver::VerifiedRead`]). The door may have given it up
    /// meanwhile; then it frees the slot and does nothing else.
    Redeemed {
        /// The door's request.
        id: RequestId,
        /// What was served, or why not.
        outcome: Result<(FileMeta, Body), PlaneCode>,
    },
}

/// Where the bytes of an answer are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// In the window, until the door gives the slot back.
    Slot {
        /// The slot's number.
        slot: u32,
        /// Byte offset in the window.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
    /// In a sealed memory file, the one descriptor of the message.
    File {
        /// Length in bytes.
        length: u64,
    },
}

impl Message for FileserverToDoor {
    const MAX_DESCRIPTORS: usize = 1;

    fn descriptors(&self) -> usize {
        match self {
            FileserverToDoor::Listing { body, .. }
            | FileserverToDoor::File { body, .. }
            | FileserverToDoor::Redeemed { outcome: Ok((_, body)), .. } => match body {
                Body::Slot { .. } => 0,
                Body::File { .. } => 1,
            },
            FileserverToDoor::Refused { .. } | FileserverToDoor::Redeemed { outcome: Err(_), .. } => 0,
        }
    }
}
