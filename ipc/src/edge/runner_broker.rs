//! runner → broker: limits that programs hit.

use serde::{Deserialize, Serialize};

use crate::channel::Message;

/// Runner to broker.
#[derive(Debug, Serialize, Deserialize)]
pub enum RunnerToBroker {
    /// A leaf could not be emptied within two seconds of its kill.
    LeafStuck {
        /// The leaf.
        leaf: u32,
    },
}

impl Message for RunnerToBroker {
    const MAX_DESCRIPTORS: usize = 0;

    fn descriptors(&self) -> usize {
        0
    }
}
