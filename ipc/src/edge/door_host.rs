//! door → sandbox-host: A2A requests. No HTTP crosses: the door sends the parsed head and the raw body, and gets one typed
//! head and the body (or event-stream bytes) back on the request's stream.

use serde::{Deserialize, Serialize};

use crate::channel::Message;
use crate::types::RequestId;

/// The largest request body, in bytes; a larger one is answered 413 by the door.
pub const MAX_BODY: u64 = 16 * 1024 * 1024;

/// Door to sandbox-host. Descriptors: the stream's far ends, input then output.
#[derive(Debug, Serialize, Deserialize)]
pub enum DoorToHost {
    /// One request; only `POST /` with a JSON content type is routed here.
    Request {
        /// The request, for logs.
        id: RequestId,
        /// Length of the body in bytes; the stream's input carries exactly this much and then ends.
        content_length: u64,
        /// Every `A2A-Version` header, as sent.
        a2a_version: Vec<String>,
        /// Every `A2A-Extensions` header, as sent.
        a2a_extensions: Vec<String>,
        /// `Last-Event-ID`, if sent once.
        last_event_id: Option<String>,
        /// `traceparent`, if sent once.
        traceparent: Option<String>,
        /// `x-murmur-task-origin`, if sent once.
        task_origin: Option<String>,
        /// `x-murmur-task-trust`, if sent once.
        task_trust: Option<String>,
    },
}

impl Message for DoorToHost {
    const MAX_DESCRIPTORS: usize = 2;

    fn descriptors(&self) -> usize {
        2
    }
}

/// The head sandbox-host writes first on the stream's output ([`crate::stream`]); the body follows until the end.
#[derive(Debug, Serialize, Deserialize)]
pub struct ResponseHead {
    /// HTTP status.
    pub status: u16,
    /// Kind of the body.
    pub content: Content,
    /// Length of the body in bytes, where it is known; the door cuts a longer one.
    pub content_length: Option<u64>,
    /// `A2A-Extensions` of the answer, if any were used.
    pub a2a_extensions: Option<String>,
}

/// Kind of a response body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content {
    /// `application/json`.
    Json,
    /// `text/event-stream`.
    EventStream,
    /// No body.
    Empty,
}
