//! One request from its decision to the end of its answer.
//!
//! Both bodies move at the same time: an upstream may answer before it has read the request, or only after all of it, or never.
//! One deadline covers resolving, connecting, TLS and both bodies. A redirect is an answer like any other.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use ipc::edge::egress_broker::Reason;
use ipc::edge::host_egress::{AnswerHead, FailureKind, HttpRequest};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio::net::unix::pipe;
use tokio::time::{Instant, timeout, timeout_at};

use crate::addresses::Addresses;
use crate::body::Outgoing;
use crate::peer;
use crate::request::{Head, end_to_end, head};
use crate::resolve::{Family, NoAddress, Resolve};
use crate::rules::{Denied, Destination, Rules};
use crate::tls::Tls;

/// The longest an exchange may take; a request that asks for more gets this.
const LONGEST: Duration = Duration::from_secs(3600);

/// How long one address may take to accept a connection.
const CONNECT_PATIENCE: Duration = Duration::from_secs(15);

/// The most bytes of a response head.
const LARGEST_HEAD: usize = 64 * 1024;

/// The most header fields of a response.
const MOST_FIELDS: usize = 128;

/// What an exchange came to, for the log and the broker.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The whole answer was passed on.
    Done,
    /// No list or address rule allows it; nothing was connected.
    Denied(Denied),
    /// It failed before there was an answer.
    Failed(FailureKind, &'static str),
    /// It broke off within the answer, or the asker went away.
    Cut(&'static str),
}

/// Everything exchanges share.
#[derive(Debug)]
pub(crate) struct Upstream<R> {
    /// Where requests may go.
    pub(crate) rules: Rules,
    /// From names to addresses.
    pub(crate) resolver: R,
    /// Which addresses may be dialled.
    pub(crate) addresses: Addresses,
    /// From connections to TLS connections.
    pub(crate) tls: Tls,
}

impl<R: Resolve> Upstream<R> {
    /// Carries out one request; `ends` are the input and output the asker attached.
    ///
    /// `report` is awaited between a refusal and its answer, so that the refusal is on record when the asker learns of it.
    pub(crate) async fn exchange(
        self: Arc<Self>,
        request: HttpRequest,
        ends: [OwnedFd; 2],
        report: impl AsyncFnOnce(&Denied),
    ) -> Outcome {
        let [input, output] = ends;
        let (Ok(input), Ok(mut output)) =
            (pipe::Receiver::from_owned_fd(input), pipe::Sender::from_owned_fd(output))
        else {
            return Outcome::Cut("the stream of a request is not two pipes");
        };
        let deadline = Instant::now() + Duration::from_millis(request.timeout_ms).min(LONGEST);
        let answer = tokio::select! {
            answer = timeout_at(deadline, self.answer(&request, input)) => answer,
            _ = output.ready(Interest::ERROR) => return Outcome::Cut("the asker went away"),
        };
        let late = Failure::Other(FailureKind::TimedOut, "the time ran out");
        match answer.unwrap_or(Err(late)) {
            Ok((response, connection)) => {
                let passed = timeout_at(deadline, pass_on(response, &mut output)).await;
                drop(connection);
                passed.unwrap_or(Outcome::Cut("the time ran out"))
            }
            Err(Failure::Denied(denied)) => {
                report(&denied).await;
                refuse(&mut output, &AnswerHead::Denied).await;
                Outcome::Denied(denied)
            }
            Err(Failure::Other(kind, why)) => {
                refuse(&mut output, &AnswerHead::Failed(kind)).await;
                Outcome::Failed(kind, why)
            }
        }
    }

    /// From the decision to the head of the response.
    async fn answer(
        &self,
        request: &HttpRequest,
        input: pipe::Receiver,
    ) -> Result<(Response<Incoming>, Connection), Failure> {
        let destination = self.rules.decide(request).map_err(Failure::Denied)?;
        let head = head(&peer::shaped(request), &destination)
            .map_err(|_| Failure::Other(FailureKind::Protocol, "the request cannot be sent as HTTP"))?;
        let addresses = self.addresses(request, &destination).await?;
        let body = Outgoing::new(input, head.length, usually_without_body(&head.method)).await;
        let body =
            body.map_err(|_| Failure::Other(FailureKind::Protocol, "the request body cannot be read"))?;
        let stream = connect(&addresses, destination.port).await?;
        if destination.tls {
            let handshake = self.tls.handshake(&destination.host, stream).await;
            let stream = handshake.map_err(|why| Failure::Other(FailureKind::Tls, why))?;
            send(stream, head, body).await
        } else {
            send(stream, head, body).await
        }
    }

    /// Resolves once; only what is returned is ever dialled.
    async fn addresses(
        &self,
        request: &HttpRequest,
        destination: &Destination,
    ) -> Result<Vec<IpAddr>, Failure> {
        let resolved = self.resolver.resolve(&destination.host, Family::Any).await;
        let resolved =
            resolved.and_then(|found| if found.is_empty() { Err(NoAddress::NotFound) } else { Ok(found) });
        let resolved = resolved.map_err(|why| Failure::Other(FailureKind::Name, why.as_str()))?;
        let allowed = self.addresses.allowed(&destination.host, destination.port, &resolved);
        if allowed.is_empty() {
            Err(Failure::Denied(Denied::of(request, Reason::Address)))
        } else {
            Ok(allowed)
        }
    }
}

/// Why there is no response.
#[derive(Debug)]
enum Failure {
    Denied(Denied),
    Other(FailureKind, &'static str),
}

/// The task that drives a connection; it ends with its exchange.
#[derive(Debug)]
struct Connection(tokio::task::JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn connect(addresses: &[IpAddr], port: u16) -> Result<TcpStream, Failure> {
    for address in addresses {
        let attempt = TcpStream::connect(SocketAddr::new(*address, port));
        if let Ok(Ok(stream)) = timeout(CONNECT_PATIENCE, attempt).await {
            return Ok(stream);
        }
    }
    Err(Failure::Other(FailureKind::Connect, "no address accepts a connection"))
}

async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    head: Head,
    body: Outgoing,
) -> Result<(Response<Incoming>, Connection), Failure> {
    let broken =
        |_| Failure::Other(FailureKind::Protocol, "the upstream broke the protocol or the connection");
    let mut builder = hyper::client::conn::http1::Builder::new();
    builder.max_buf_size(LARGEST_HEAD).max_headers(MOST_FIELDS);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let connection = Connection(tokio::spawn(async move {
        // Its end, good or bad, shows in the response.
        let _ = connection.await;
    }));
    let mut request = Request::new(body);
    *request.method_mut() = head.method;
    *request.uri_mut() = head.uri;
    *request.headers_mut() = head.headers;
    let response = sender.send_request(request).await.map_err(broken)?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Err(Failure::Other(FailureKind::Protocol, "the upstream switched protocols unasked"));
    }
    Ok((response, connection))
}

/// Writes the answer's head, then its body as it comes.
async fn pass_on(response: Response<Incoming>, output: &mut pipe::Sender) -> Outcome {
    let gone = Outcome::Cut("the asker went away");
    let (parts, mut body) = response.into_parts();
    let head = AnswerHead::Response { status: parts.status.as_u16(), headers: end_to_end(&parts.headers) };
    let Ok(bytes) = ipc::stream::frame_head(&head) else {
        refuse(output, &AnswerHead::Failed(FailureKind::Protocol)).await;
        return Outcome::Failed(FailureKind::Protocol, "the head of the response is too large");
    };
    if output.write_all(&bytes).await.is_err() {
        return gone;
    }
    loop {
        let frame = tokio::select! {
            frame = body.frame() => frame,
            _ = output.ready(Interest::ERROR) => return gone,
        };
        match frame {
            None => return Outcome::Done,
            Some(Err(_)) => return Outcome::Cut("the upstream broke off its answer"),
            Some(Ok(frame)) => {
                let data = frame.into_data().unwrap_or_else(|_| Bytes::new());
                if output.write_all(&data).await.is_err() {
                    return gone;
                }
            }
        }
    }
}

/// Writes a head without a body; an asker that is gone needs none.
async fn refuse(output: &mut pipe::Sender, head: &AnswerHead) {
    if let Ok(bytes) = ipc::stream::frame_head(head) {
        // Small enough for an empty pipe, so it cannot wait for a reader.
        let _ = output.write_all(&bytes).await;
    }
}

/// Whether requests of this method usually have no body.
fn usually_without_body(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::DELETE, Method::OPTIONS].contains(method)
}

#[cfg(test)]
#[path = "exchange_tests.rs"]
mod tests;
