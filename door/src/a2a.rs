//! How does a request reach the agent? `POST /` goes to sandbox-host as a typed head and raw bytes, and comes back the same
//! way; hyper speaks HTTP to the client from the first byte of the head on.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response, StatusCode};
use ipc::ChannelError;
use ipc::edge::door_host::{Content, DoorToHost, MAX_BODY, ResponseHead};
use ipc::stream::{HeadError, Stream, head_length, stream as make_stream};
use ipc::types::RequestId;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::unix::pipe;
use tokio::task::JoinHandle;

use crate::client::Client;
use crate::connections::Place;
use crate::door::Door;
use crate::head::{Framing, Head, MAX_HEADERS};
use crate::replay::Replay;
use crate::wire::{self, Pace};

/// Bytes of a response that are held on their way through.
const PIECE: usize = 16 * 1024;

static NEXT: AtomicU64 = AtomicU64::new(0);

/// Judges a `POST /`.
///
/// # Errors
/// The status of an answer without a body: 404 for what is no JSON request or where no agent is, 413 above [`MAX_BODY`],
/// 503 when too many are under way.
pub fn admit(head: &Head<'_>, door: &Door, place: &mut Place) -> Result<DoorToHost, u16> {
    let length = judge(head, door.constants.agent)?;
    if !place.take_agent(&door.table) {
        return Err(503);
    }
    Ok(message(head, length))
}

/// The length of the body of a request for the agent.
fn judge(head: &Head<'_>, agent: bool) -> Result<u64, u16> {
    let json = head
        .all("content-type")
        .any(|value| String::from_utf8_lossy(value).to_ascii_lowercase().contains("application/json"));
    match head.framing {
        Framing::Length(length) if agent && json => {
            if length > MAX_BODY {
                Err(413)
            } else {
                Ok(length)
            }
        }
        Framing::Length(_) | Framing::Empty | Framing::Chunked => Err(404),
    }
}

fn message(head: &Head<'_>, content_length: u64) -> DoorToHost {
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    let all = |name: &str| head.all(name).map(text).collect();
    let once = |name: &str| head.once(name).map(text);
    DoorToHost::Request {
        id: RequestId(NEXT.fetch_add(1, Ordering::Relaxed)),
        content_length,
        a2a_version: all("a2a-version"),
        a2a_extensions: all("a2a-extensions"),
        last_event_id: once("last-event-id"),
        traceparent: once("traceparent"),
        task_origin: once("x-murmur-task-origin"),
        task_trust: once("x-murmur-task-trust"),
    }
}

/// Serves one request on a connection of which `first` was read already.
pub async fn serve(stream: TcpStream, first: Vec<u8>, request: DoorToHost, door: &Arc<Door>) {
    // Events of a stream are small and each is wanted at once.
    let _ = stream.set_nodelay(true);
    // hyper calls the service once: the connection is not kept.
    let request = Cell::new(Some(request));
    let service = hyper::service::service_fn(move |incoming: Request<Incoming>| {
        let request = request.take();
        let door = Arc::clone(door);
        Box::pin(async move {
            match request {
                Some(request) => forward(incoming, &request, &door).await,
                None => Ok(bare(500)),
            }
        })
    });
    let mut connection = hyper::server::conn::http1::Builder::new()
        .keep_alive(false)
        .header_read_timeout(None)
        .max_headers(MAX_HEADERS)
        .max_buf_size(2 * door.limits.head)
        .auto_date_header(false)
        .serve_connection(Replay::new(stream, first, &door.limits), service);
    if poll_fn(|context| connection.poll_without_shutdown(context)).await.is_ok() {
        let stream = connection.into_parts().io.stream;
        wire::linger(&mut Client::from(stream), &door.limits).await;
    }
}

/// Hands a request to sandbox-host and its answer to the client, both directions at once: a host may read the whole body
/// before it answers, or answer before it has read it.
async fn forward(
    incoming: Request<Incoming>,
    message: &DoorToHost,
    door: &Door,
) -> Result<Response<Answer>, Infallible> {
    let (output, mut input) = match hand_over(message, door).await {
        Ok(ends) => ends,
        Err(status) => return Ok(bare(status)),
    };
    let pace = Pace::new(door.limits.pace_bytes, door.limits.body_time);
    let mut upload = Upload(tokio::spawn(copy(incoming.into_body(), output, pace)));
    let head = {
        let mut head = pin!(read_head(&mut input));
        tokio::select! {
            head = &mut head => head,
            end = &mut upload.0 => match end {
                Ok(Copied::TooSlow) => return Ok(bare(408)),
                Ok(Copied::Over) | Err(_) => head.await,
            },
        }
    };
    // A host that ends its stream without a head, or writes something else, has no answer.
    Ok(head.ok().and_then(|head| response(&head, input, upload)).unwrap_or_else(|| bare(500)))
}

/// Makes the stream of a request and sends its far ends; the status to answer where that fails.
async fn hand_over(message: &DoorToHost, door: &Door) -> Result<(pipe::Sender, pipe::Receiver), u16> {
    let host = door.host().ok_or(500u16)?;
    let Stream { near, far } = make_stream().map_err(|_| 500u16)?;
    // Both are pipes of our own making; the checking constructors would cost the filter another call.
    let ready = |end: &OwnedFd| ipc::sys::set_nonblocking(end.as_fd()).map_err(|_| 500u16);
    ready(&near.output)?;
    ready(&near.input)?;
    let output = pipe::Sender::from_owned_fd_unchecked(near.output).map_err(|_| 500u16)?;
    let input = pipe::Receiver::from_owned_fd_unchecked(near.input).map_err(|_| 500u16)?;
    let far = [far.input.as_fd(), far.output.as_fd()];
    match tokio::time::timeout(door.limits.host_wait, host.send_with(message, &far)).await {
        Ok(Ok(())) => Ok((output, input)),
        // The headers that travel do not fit into one packet.
        Ok(Err(ChannelError::Codec(_))) => Err(431),
        Ok(Err(_)) | Err(_) => Err(500),
    }
}

/// The task that copies a request body; it ends with the request.
#[derive(Debug)]
struct Upload(JoinHandle<Copied>);

impl Drop for Upload {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// How copying a body ended.
#[derive(Debug, PartialEq, Eq)]
enum Copied {
    /// Everything was copied, the host wants no more, or the client broke off; whoever waits for the answer finds out.
    Over,
    /// The client is below its pace.
    TooSlow,
}

async fn copy(mut body: Incoming, output: pipe::Sender, mut pace: Pace) -> Copied {
    loop {
        let next = poll_fn(|context| Pin::new(&mut body).poll_frame(context));
        let Ok(next) = pace.wait(next).await else { return Copied::TooSlow };
        let Some(Ok(frame)) = next else { return Copied::Over };
        let Ok(bytes) = frame.into_data() else { continue };
        pace.moved(bytes.len());
        if write_pipe(&output, &bytes).await.is_err() {
            return Copied::Over;
        }
        pace.renew();
    }
}

async fn write_pipe(output: &pipe::Sender, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match output.try_write(bytes) {
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => output.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads the typed head of an answer.
async fn read_head(input: &mut pipe::Receiver) -> Result<ResponseHead, HeadError> {
    let mut prefix = [0; 4];
    read_whole(input, &mut prefix).await?;
    let mut head = vec![0; head_length(prefix)?];
    read_whole(input, &mut head).await?;
    Ok(ipc::codec::decode(&head)?)
}

async fn read_whole(input: &pipe::Receiver, mut space: &mut [u8]) -> Result<(), HeadError> {
    while !space.is_empty() {
        match input.try_read(space) {
            Ok(0) => return Err(HeadError::Ended),
            Ok(read) => space = space.get_mut(read..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                input.readable().await.map_err(HeadError::System)?;
            }
            Err(error) => return Err(HeadError::System(error)),
        }
    }
    Ok(())
}

/// The HTTP answer of a typed head; `None` if the head says what HTTP cannot.
fn response(head: &ResponseHead, input: pipe::Receiver, upload: Upload) -> Option<Response<Answer>> {
    let status = StatusCode::from_u16(head.status).ok().filter(|status| status.as_u16() >= 200)?;
    let left = match head.content {
        Content::Empty => Some(0),
        Content::Json | Content::EventStream => head.content_length,
    };
    let through = Through { input, left, piece: vec![0; PIECE], _upload: upload };
    let mut response = Response::new(Answer(Some(through)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    match head.content {
        Content::Empty => {}
        Content::Json => {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        Content::EventStream => {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        }
    }
    if let Some(used) = &head.a2a_extensions {
        headers.insert("a2a-extensions", HeaderValue::from_str(used).ok()?);
    }
    Some(response)
}

/// An answer of the door's own: no body.
fn bare(status: u16) -> Response<Answer> {
    let mut response = Response::new(Answer(None));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
}

/// The body of an answer: nothing, or what comes through the stream.
#[derive(Debug)]
struct Answer(Option<Through>);

#[derive(Debug)]
struct Through {
    input: pipe::Receiver,
    /// Bytes that may still come, where the head announced a length.
    left: Option<u64>,
    piece: Vec<u8>,
    _upload: Upload,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        let Some(through) = &mut self.0 else { return Poll::Ready(None) };
        let room = match through.left {
            Some(0) => return Poll::Ready(None),
            Some(left) => usize::try_from(left).unwrap_or(PIECE).min(PIECE),
            None => PIECE,
        };
        let mut buffer = ReadBuf::new(through.piece.get_mut(..room).unwrap_or_default());
        ready!(Pin::new(&mut through.input).poll_read(context, &mut buffer))?;
        let read = buffer.filled();
        if read.is_empty() {
            // Less than was announced: the client must not take it for the whole.
            let end = through.left.map(|_| Err(ErrorKind::UnexpectedEof.into()));
            self.0 = None;
            return Poll::Ready(end);
        }
        if let Some(left) = &mut through.left {
            *left = left.saturating_sub(read.len() as u64);
        }
        Poll::Ready(Some(Ok(Frame::data(Bytes::copy_from_slice(read)))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|through| through.left == Some(0))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            None => SizeHint::with_exact(0),
            Some(through) => through.left.map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(lines: &str, agent: bool) -> Result<u64, u16> {
        let text = format!("POST / HTTP/1.1\r\n{lines}\r\n");
        judge(&Head::parse(text.as_bytes()).unwrap(), agent)
    }

    #[test]
    fn only_a_json_body_of_a_stated_length_reaches_the_agent() {
        let json = "Content-Type: Application/JSON; charset=utf-8\r\n";
        assert_eq!(judged(&format!("{json}Content-Length: 2\r\n"), true), Ok(2));
        assert_eq!(judged(&format!("{json}Content-Length: {MAX_BODY}\r\n"), true), Ok(MAX_BODY));
        assert_eq!(judged(&format!("{json}Content-Length: {}\r\n", MAX_BODY + 1), true), Err(413));
        for (lines, agent) in [
            (format!("{json}Content-Length: 2\r\n"), false),
            (format!("{json}Content-Length: 0\r\n"), true),
            (json.into(), true),
            (format!("{json}Transfer-Encoding: chunked\r\n"), true),
            ("Content-Type: text/plain\r\nContent-Length: 2\r\n".into(), true),
            ("Content-Length: 2\r\n".into(), true),
        ] {
            assert_eq!(judged(&lines, agent), Err(404), "{lines}");
        }
    }

    #[test]
    fn what_travels_is_every_version_header_and_the_rest_only_if_sent_once() {
        let text = b"POST / HTTP/1.1\r\nA2A-Version: 1.0\r\na2a-version: 0.3\r\ntraceparent: a\r\n\
            Last-Event-ID: 1\r\nlast-event-id: 2\r\nx-murmur-task-origin: peer\r\n\r\n";
        let DoorToHost::Request {
            a2a_version,
            a2a_extensions,
            last_event_id,
            traceparent,
            task_origin,
            task_trust,
            ..
        } = message(&Head::parse(text).unwrap(), 2);
        assert_eq!(a2a_version, ["1.0", "0.3"]);
        assert!(a2a_extensions.is_empty());
        assert_eq!((last_event_id, traceparent.as_deref()), (None, Some("a")));
        assert_eq!((task_origin.as_deref(), task_trust), (Some("peer"), None));
    }
}
