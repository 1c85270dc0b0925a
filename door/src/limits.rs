//! Every bound the door works with, in one place, so that tests can shorten a deadline without changing what it means.

use std::time::Duration;

/// Bounds and deadlines. The defaults are the product's values (`docs/decisions.md`, Buffers and clients).
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of a request line, without its line end; a longer one is 414.
    pub request_line: usize,
    /// Bytes of a whole head; a longer one is 431.
    pub head: usize,
    /// Time from accept to a complete head.
    pub head_time: Duration,
    /// Connections served at one time.
    pub connections: usize,
    /// Connections without a complete head; the oldest makes room.
    pub headless: usize,
    /// Connections that talk to the agent; the rest stays free for files, card and health.
    pub agent: usize,
    /// Pause after `accept` failed for lack of descriptors or memory.
    pub accept_pause: Duration,
    /// A request that waits longer than this for the fileserver is watched: its client may leave, its time may end.
    pub tick: Duration,
    /// Wait for the fileserver's answer to a read.
    pub read_wait: Duration,
    /// Wait for a listing: it hashes the whole subtree, one at a time.
    pub list_wait: Duration,
    /// Wait for the next fileserver when there is none, before a request is refused.
    pub replace_wait: Duration,
    /// Requests open at the fileserver, abandoned ones included.
    pub open_requests: usize,
    /// How long a client that ended its sending side may still get an answer before the request is cancelled.
    pub half_closed: Duration,
    /// Pace of a response: bytes that must move in every `pace_time` while the client holds it up.
    pub pace_bytes: usize,
    /// See `pace_bytes`.
    pub pace_time: Duration,
    /// Pace of a request body: `pace_bytes` in every such time.
    pub body_time: Duration,
    /// Unread request bytes that are thrown away after an early answer, so that closing does not reset it.
    pub linger_bytes: usize,
    /// How long such a connection is kept.
    pub linger_time: Duration,
    /// Wait for the broker to take the record of a refusal; without it nothing is answered.
    pub record_wait: Duration,
    /// Wait for sandbox-host to take a request.
    pub host_wait: Duration,
    /// What is in flight gets this long after `Shutdown`.
    pub shutdown: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            request_line: 16 * 1024,
            head: 64 * 1024,
            head_time: Duration::from_secs(10),
            connections: 256,
            headless: 64,
            agent: 192,
            accept_pause: Duration::from_millis(50),
            tick: Duration::from_millis(50),
            read_wait: Duration::from_secs(60),
            list_wait: Duration::from_secs(600),
            replace_wait: Duration::from_secs(5),
            open_requests: 1024,
            half_closed: Duration::from_secs(1),
            pace_bytes: 64 * 1024,
            pace_time: Duration::from_secs(5),
            body_time: Duration::from_secs(30),
            linger_bytes: 64 * 1024,
            linger_time: Duration::from_millis(500),
            record_wait: Duration::from_secs(2),
            host_wait: Duration::from_secs(10),
            shutdown: Duration::from_millis(500),
        }
    }
}
