//! sandbox-host → egress: outbound HTTP of components. The answer comes on the request's stream.

use serde::{Deserialize, Serialize};

use crate::channel::Message;
use crate::types::RequestId;

/// Sandbox-host to egress. Descriptors: the stream's far ends, input (request body) then output (answer).
#[derive(Debug, Serialize, Deserialize)]
pub enum HostToEgress {
    /// One request.
    HttpRequest(HttpRequest),
}

/// An outbound request.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HttpRequest {
    /// The request, for logs.
    pub id: RequestId,
    /// On whose authority it goes out; egress holds the list for each.
    pub purpose: Purpose,
    /// Method.
    pub method: String,
    /// `http` or `https`, host, port as the component asked; ignored for a gateway.
    pub scheme: super::control::Scheme,
    /// Host as the component asked, without brackets; ignored for a gateway.
    pub host: String,
    /// Port as the component asked or the scheme's default; ignored for a gateway.
    pub port: u16,
    /// Path and query.
    pub path: String,
    /// Headers in order, without `host` and hop-by-hop names.
    pub headers: Vec<(String, Vec<u8>)>,
    /// Milliseconds until the whole exchange is given up.
    pub timeout_ms: u64,
}

/// The authority of an outbound request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// The artifact's own allow-list.
    Component {
        /// The artifact.
        artifact: String,
    },
    /// The artifact's gateway: scheme, host and port are the operator's.
    Gateway {
        /// The artifact.
        artifact: String,
    },
    /// The agent card of a peer, before minting: GET of the agent-card path; the request's own method, path and headers are
    /// not looked at, and the body is empty.
    Card,
    /// A handle at a peer: GET of `/resources/peer/<handle>` with the audience header; the request's own method, path and
    /// headers are not looked at, and the body is empty.
    Redeem {
        /// The handle; egress checks that it has only a handle's characters.
        handle: String,
        /// What `x-murmur-audience` says.
        audience: String,
    },
}

impl Message for HostToEgress {
    const MAX_DESCRIPTORS: usize = 2;

    fn descriptors(&self) -> usize {
        2
    }
}

/// The head egress writes first on the stream's output ([`crate::stream`]); a response's body follows until the end.
#[derive(Debug, Serialize, Deserialize)]
pub enum AnswerHead {
    /// The upstream answered.
    Response {
        /// HTTP status.
        status: u16,
        /// Headers in order, without hop-by-hop names.
        headers: Vec<(String, Vec<u8>)>,
    },
    /// No list allows the destination; nothing was connected.
    Denied,
    /// The exchange failed.
    Failed(FailureKind),
}

/// Why an exchange failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureKind {
    /// The name has no address.
    Name,
    /// No connection.
    Connect,
    /// TLS failed.
    Tls,
    /// The upstream broke the protocol or the connection.
    Protocol,
    /// The time ran out.
    TimedOut,
}
