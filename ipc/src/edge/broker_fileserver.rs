//! fileserver → broker: what was served, sent before the door gets its answer.

use serde::{Deserialize, Serialize};

use crate::channel::Message;
use crate::types::PlaneCode;

/// Fileserver to broker; one per request of either plane.
#[derive(Debug, Serialize, Deserialize)]
pub enum Served {
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
    /// A read (`resource_read`).
    Read {
        /// The path as requested, at most 4096 bytes.
        path: String,
        /// Generation sampled when the request was taken.
        generation: u64,
        /// Length and SHA-256 of the body, or the refusal.
        outcome: Result<(u64, [u8; 32]), PlaneCode>,
    },
}

impl Message for Served {
    const MAX_DESCRIPTORS: usize = 0;

    fn descriptors(&self) -> usize {
        0
    }
}
