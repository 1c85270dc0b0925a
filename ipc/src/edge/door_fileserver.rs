//! door ↔ fileserver: the operator plane.

use serde::{Deserialize, Serialize};

use crate::channel::Message;
use crate::types::{FileMeta, PlaneCode, RelPath, RequestId};

/// Door to fileserver.
#[derive(Debug, Serialize, Deserialize)]
pub enum DoorToFileserver {
    /// List the operator plane.
    List {
        /// The request.
        id: RequestId,
    },
    /// Read one file of the operator plane.
    Read {
        /// The request.
        id: RequestId,
        /// Relative to the export root.
        path: RelPath,
    },
    /// The client is gone: stop working on this request. It is still recorded and answered.
    Cancel {
        /// The request.
        id: RequestId,
    },
    /// The bytes of this slot were written to the client, or are not wanted any more.
    SlotFree {
        /// The slot.
        slot: u32,
    },
}

impl Message for DoorToFileserver {
    const MAX_DESCRIPTORS: usize = 0;

    fn descriptors(&self) -> usize {
        0
    }
}

/// Fileserver to door: exactly one per request.
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
}

/// Where the bytes of an answer are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// In the window, until the door sends `SlotFree`.
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
            FileserverToDoor::Listing { body, .. } | FileserverToDoor::File { body, .. } => match body {
                Body::Slot { .. } => 0,
                Body::File { .. } => 1,
            },
            FileserverToDoor::Refused { .. } => 0,
        }
    }
}
