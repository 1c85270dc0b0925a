//! egress → broker: refused destinations.

use serde::{Deserialize, Serialize};

use crate::channel::Message;

/// Egress to broker.
#[derive(Debug, Serialize, Deserialize)]
pub enum EgressToBroker {
    /// A destination was asked for that no list names (`network_denied`).
    NetworkDenied {
        /// Whose request it was.
        asker: Asker,
        /// `host:port` as asked, or the name that was looked up, at most 512 bytes.
        destination: String,
        /// Why.
        reason: Reason,
        /// So many refusals of the same kind: programs' are counted together for a second.
        count: u64,
    },
}

/// Whose request was refused.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Asker {
    /// A component of this artifact, under its own list.
    Artifact(String),
    /// `share-file`, for a card, under `capabilities.network.allow`.
    Card,
    /// `fetch-peer-file`, under `capabilities.peer_fetch.allow`.
    Redeem,
    /// A program's connection, under `capabilities.network.allow`.
    Program,
    /// A program's look-up of a name, under `capabilities.network.allow`.
    Lookup,
}

/// Why a destination was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Reason {
    /// No entry of the list names it.
    NotListed,
    /// An entry names it, and it leads to an address that names may not lead to.
    Address,
    /// Not one destination but all that were refused beyond those that are told one by one in the same second.
    Others,
}

impl Reason {
    /// In words.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Reason::NotListed => "no entry of the list names it",
            Reason::Address => "a name does not lead to an address of this host or of a private network",
            Reason::Others => "further destinations were refused in the same second",
        }
    }
}

impl Message for EgressToBroker {
    const MAX_DESCRIPTORS: usize = 0;

    fn descriptors(&self) -> usize {
        0
    }
}
