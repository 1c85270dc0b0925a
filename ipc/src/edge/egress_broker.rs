//! egress → broker: refused destinations.

use serde::{Deserialize, Serialize};

use crate::channel::Message;

/// Egress to broker.
#[derive(Debug, Serialize, Deserialize)]
pub enum EgressToBroker {
    /// A component asked for a destination its list does not name (`network_denied`).
    NetworkDenied {
        /// The artifact.
        artifact: String,
        /// `host:port` as asked, at most 512 bytes.
        destination: String,
    },
}

impl Message for EgressToBroker {
    const MAX_DESCRIPTORS: usize = 0;

    fn descriptors(&self) -> usize {
        0
    }
}
