//! HTTP out, answered by egress: this process has no socket of its own. `wasi:http/outgoing-handler` for components, and what
//! the runtime itself asks of a peer.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use handle::Address;
use http_body::Frame;
use http_body_util::BodyExt;
use ipc::aio::AsyncSender;
use ipc::edge::control::Scheme;
use ipc::edge::host_egress::{AnswerHead, FailureKind, HostToEgress, HttpRequest, Purpose};
use ipc::stream::{head_length, stream};
use ipc::types::RequestId;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::net::unix::pipe;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use wasmtime_wasi::runtime::AbortOnDropJoinHandle;
use wasmtime_wasi_http::{Error, RequestOptions, WasiBody, WasiHttpHooks};

use crate::wasi::GATEWAY_AUTHORITY;

/// Exchanges that may be under way at one time; each holds two pipes.
const MAX_EXCHANGES: usize = 32;
/// Bytes of a response that are read at one time.
const CHUNK: usize = 64 * 1024;
/// Headers that describe one connection and are not passed on.
const HOP_BY_HOP: [&str; 10] = [
    "host",
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// How long a request waits for the next egress when the last one is gone.
const NEXT_EGRESS: Duration = Duration::from_secs(5);

/// The way to the egress there is now; the broker replaces one that died.
pub(crate) struct EgressLink {
    sender: watch::Sender<Option<AsyncSender<HostToEgress>>>,
    next: AtomicU64,
    slots: Arc<Semaphore>,
}

impl EgressLink {
    pub(crate) fn new() -> Self {
        EgressLink {
            sender: watch::Sender::new(None),
            next: AtomicU64::new(1),
            slots: Arc::new(Semaphore::new(MAX_EXCHANGES)),
        }
    }

    /// Uses this channel from now on, or none.
    pub(crate) fn replace(&self, sender: Option<AsyncSender<HostToEgress>>) {
        self.sender.send_replace(sender);
    }

    /// The way to the egress there is, or to the next one.
    async fn sender(&self) -> Option<AsyncSender<HostToEgress>> {
        let mut there = self.sender.subscribe();
        let there = tokio::time::timeout(NEXT_EGRESS, there.wait_for(Option::is_some)).await;
        there.ok()?.ok()?.clone()
    }
}

/// The outgoing side of one call's store.
pub(crate) struct Hooks {
    link: Arc<EgressLink>,
    artifact: String,
    has_gateway: bool,
    deadline: Instant,
}

impl Hooks {
    pub(crate) fn new(link: Arc<EgressLink>, artifact: &str, has_gateway: bool) -> Self {
        Hooks { link, artifact: artifact.to_owned(), has_gateway, deadline: Instant::now() }
    }

    /// No exchange outlives this.
    pub(crate) fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }
}

/// What an exchange goes on with after its head: the request's body still on its way.
type Exchange = (http::Response<WasiBody>, Box<dyn Future<Output = Result<(), Error>> + Send>);

impl WasiHttpHooks for Hooks {
    fn send_request(
        &mut self,
        request: http::Request<WasiBody>,
        options: Option<RequestOptions>,
        _done: Box<dyn Future<Output = Result<(), Error>> + Send>,
    ) -> Box<dyn Future<Output = Result<Exchange, Error>> + Send> {
        let link = Arc::clone(&self.link);
        let left = self.deadline.saturating_duration_since(Instant::now());
        let patience = options.and_then(|options| options.first_byte_timeout).unwrap_or(left).min(left);
        let message = describe(
            &request,
            &self.artifact,
            self.has_gateway,
            link.next.fetch_add(1, Ordering::Relaxed),
            left,
        );
        Box::new(async move {
            let message = message?;
            tokio::time::timeout(patience, exchange(&link, message, request.into_body()))
                .await
                .map_err(|_elapsed| Error::HttpResponseTimeout)?
        })
    }
}

/// Asks a peer for what `purpose` says; egress makes the request of it. The answer's body is bounded by nothing yet.
///
/// # Errors
/// [`Error::HttpRequestDenied`] if no list allows the peer, else whatever went wrong; also if no head came in time.
pub(crate) async fn ask_peer(
    link: &EgressLink,
    purpose: Purpose,
    peer: &Address,
    patience: Duration,
) -> Result<http::Response<WasiBody>, Error> {
    let message = HttpRequest {
        id: RequestId(link.next.fetch_add(1, Ordering::Relaxed)),
        purpose,
        method: "GET".to_owned(),
        scheme: if peer.tls { Scheme::Https } else { Scheme::Http },
        host: peer.host.clone(),
        port: peer.port,
        path: "/".to_owned(),
        headers: Vec::new(),
        timeout_ms: crate::ids::millis(patience),
    };
    let nothing = http_body_util::Empty::new().map_err(|never| match never {}).boxed_unsync();
    let exchanged = tokio::time::timeout(patience, exchange(link, message, nothing)).await;
    exchanged.map_err(|_elapsed| Error::HttpResponseTimeout)?.map(|(response, _)| response)
}

/// The bytes of a body; `None` if it breaks off or has more than `limit`.
pub(crate) async fn read_whole(mut body: WasiBody, limit: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.ok()?.into_data() {
            if data.len() > limit.saturating_sub(bytes.len()) {
                return None;
            }
            bytes.extend_from_slice(&data);
        }
    }
    Some(bytes)
}

/// The request as egress takes it.
fn describe(
    request: &http::Request<WasiBody>,
    artifact: &str,
    has_gateway: bool,
    id: u64,
    left: Duration,
) -> Result<HttpRequest, Error> {
    let uri = request.uri();
    let authority = uri.authority().ok_or(Error::HttpRequestUriInvalid)?;
    // A name before the host is a credential the component made up; no list is matched against it.
    if authority.as_str().contains('@') {
        return Err(Error::HttpRequestUriInvalid);
    }
    let scheme = if uri.scheme_str() == Some("https") { Scheme::Https } else { Scheme::Http };
    let to_gateway = has_gateway && scheme == Scheme::Http && authority.as_str() == GATEWAY_AUTHORITY;
    let artifact = artifact.to_owned();
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    Ok(HttpRequest {
        id: RequestId(id),
        purpose: if to_gateway { Purpose::Gateway { artifact } } else { Purpose::Component { artifact } },
        method: request.method().to_string(),
        scheme,
        host: host.to_ascii_lowercase(),
        port: authority.port_u16().unwrap_or(if scheme == Scheme::Https { 443 } else { 80 }),
        path: uri.path_and_query().map_or_else(|| "/".to_owned(), |path| path.as_str().to_owned()),
        headers: request
            .headers()
            .iter()
            .filter(|(name, _)| !HOP_BY_HOP.contains(&name.as_str()))
            .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
            .collect(),
        timeout_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
    })
}

/// Sends head and body and waits for the answer's head; the bodies are driven together, so that neither a server that
/// reads everything first nor one that answers first can block the other side.
async fn exchange(link: &EgressLink, message: HttpRequest, body: WasiBody) -> Result<Exchange, Error> {
    let permit =
        Arc::clone(&link.slots).try_acquire_owned().map_err(|_full| Error::ConnectionLimitReached)?;
    let sender = link.sender().await.ok_or(Error::DestinationUnavailable)?;
    let internal = |error: std::io::Error| Error::InternalError(Some(error.to_string()));
    let pipes = stream().map_err(internal)?;
    let far = [std::os::fd::AsFd::as_fd(&pipes.far.input), std::os::fd::AsFd::as_fd(&pipes.far.output)];
    match sender.send_with(&HostToEgress::HttpRequest(message), &far).await {
        Ok(()) => {}
        Err(ipc::ChannelError::Codec(_)) => return Err(Error::HttpRequestHeaderSectionSize(None)),
        Err(_) => return Err(Error::DestinationUnavailable),
    }
    drop(pipes.far);
    let output = pipe::Sender::from_owned_fd(pipes.near.output).map_err(internal)?;
    let mut input = pipe::Receiver::from_owned_fd(pipes.near.input).map_err(internal)?;
    let pump = wasmtime_wasi::runtime::spawn(send_body(body, output));
    let (status, headers) = match read_head(&mut input).await? {
        AnswerHead::Response { status, headers } => (status, headers),
        AnswerHead::Denied => return Err(Error::HttpRequestDenied),
        AnswerHead::Failed(kind) => return Err(failure(kind)),
    };
    let mut response = http::Response::builder().status(status);
    for (name, value) in headers {
        if !HOP_BY_HOP.contains(&name.as_str()) {
            response = response.header(name, value);
        }
    }
    let body = Answer { input, pump: Some(pump), _permit: permit };
    let response = response.body(body.boxed_unsync()).map_err(|_| Error::HttpProtocolError)?;
    Ok((response, Box::new(async { Ok(()) })))
}

fn failure(kind: FailureKind) -> Error {
    match kind {
        FailureKind::Name => Error::DnsError { rcode: None, info_code: None },
        FailureKind::Connect => Error::ConnectionRefused,
        FailureKind::Tls => Error::TlsProtocolError,
        FailureKind::Protocol => Error::HttpProtocolError,
        FailureKind::TimedOut => Error::HttpResponseTimeout,
    }
}

/// Writes the request's body. Egress may stop reading once it has an answer; that is no error.
async fn send_body(mut body: WasiBody, mut output: pipe::Sender) -> Result<(), Error> {
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data()
            && output.write_all(&data).await.is_err()
        {
            break;
        }
    }
    Ok(())
}

async fn read_head(input: &mut pipe::Receiver) -> Result<AnswerHead, Error> {
    let ended = |_| Error::ConnectionTerminated;
    let mut prefix = [0; 4];
    input.read_exact(&mut prefix).await.map_err(ended)?;
    let mut head = vec![0; head_length(prefix).map_err(|_| Error::HttpProtocolError)?];
    input.read_exact(&mut head).await.map_err(ended)?;
    ipc::codec::decode(&head).map_err(|_| Error::HttpProtocolError)
}

/// The answer's body. The request's body is given up with it.
struct Answer {
    input: pipe::Receiver,
    pump: Option<AbortOnDropJoinHandle<Result<(), Error>>>,
    _permit: OwnedSemaphorePermit,
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        // A request body that broke off must not look like one that came to its end.
        if let Some(pump) = &mut self.pump
            && let Poll::Ready(result) = Pin::new(pump).poll(context)
        {
            self.pump = None;
            if let Err(error) = result {
                return Poll::Ready(Some(Err(error)));
            }
        }
        let mut space = vec![0; CHUNK];
        let mut buffer = ReadBuf::new(&mut space);
        match Pin::new(&mut self.input).poll_read(context, &mut buffer) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(_)) => Poll::Ready(Some(Err(Error::ConnectionTerminated))),
            Poll::Ready(Ok(())) if buffer.filled().is_empty() => Poll::Ready(None),
            Poll::Ready(Ok(())) => {
                Poll::Ready(Some(Ok(Frame::data(Bytes::copy_from_slice(buffer.filled())))))
            }
        }
    }
}
