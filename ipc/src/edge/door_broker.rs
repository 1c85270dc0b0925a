//! door → broker: the refusals the door decided itself.

use serde::{Deserialize, Serialize};

use crate::channel::Message;
use crate::types::PlaneCode;

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
}

impl Message for DoorToBroker {
    const MAX_DESCRIPTORS: usize = 0;

    fn descriptors(&self) -> usize {
        0
    }
}
