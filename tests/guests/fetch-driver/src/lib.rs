//! A driver that makes one HTTP request and ends the turn with what came back.
//!
//! | task | request |
//! | --- | --- |
//! | `GET` or anything else | `GET` of `$MURMUR_INFERENCE_ENDPOINT/v1/echo` |
//! | `POST TEXT` | `POST` of TEXT there |
//! | `GET URL` | `GET` of any URL, to be refused or not |
//!
//! The answer is `status N`, a line feed and the body; or `denied CODE` if the `handle` call itself refused
//! the request, `failed CODE` if the refusal or a failure came in place of the response (a host may refuse
//! in either place), `error WHY` if the request could not be put together.

wit_bindgen::generate!({
    path: "../../../wit",
    world: "murmur:runtime-guest/driver",
    generate_all,
});

use exports::murmur::tool::run::{Guest, Status, ToolInput, ToolResult};
use guest_kit::{Request, end_turn, word};
use wasip2::http::outgoing_handler;
use wasip2::http::types::{Fields, IncomingBody, Method, OutgoingBody, OutgoingRequest, Scheme};
use wasip2::io::streams::StreamError;

const ENDPOINT: &str = "MURMUR_INFERENCE_ENDPOINT";

struct FetchDriver;

impl Guest for FetchDriver {
    fn run(input: ToolInput) -> ToolResult {
        let request = Request::read(&input.data.unwrap_or_default());
        let answer = fetch(&request.task).unwrap_or_else(|why| why);
        let data = Some(end_turn(&answer));
        ToolResult {
            status: Status::Passed,
            summary: None,
            data,
            data_path: None,
            truncated: false,
            metadata: Vec::new(),
        }
    }
}

fn fetch(task: &str) -> Result<String, String> {
    let error = |why: &str| format!("error {why}");
    let (verb, rest) = word(task);
    let (url, method, body) = match verb {
        "POST" => (echo()?, Method::Post, rest),
        "GET" if rest.contains("://") => (rest.to_owned(), Method::Get, ""),
        _ => (echo()?, Method::Get, ""),
    };
    let (scheme, rest) = url.split_once("://").ok_or_else(|| error("the URL has no scheme"))?;
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let scheme = match scheme {
        "http" => Scheme::Http,
        "https" => Scheme::Https,
        other => Scheme::Other(other.to_owned()),
    };

    let headers = Fields::new();
    if matches!(method, Method::Post) {
        let length = body.len().to_string().into_bytes();
        headers.append("content-length", &length).map_err(|e| error(&format!("{e:?}")))?;
    }
    let request = OutgoingRequest::new(headers);
    let parts = [
        request.set_method(&method),
        request.set_scheme(Some(&scheme)),
        request.set_authority(Some(authority)),
        request.set_path_with_query(Some(if path.is_empty() { "/" } else { path })),
    ];
    if parts.iter().any(Result::is_err) {
        return Err(error("a part of the request was not accepted"));
    }
    let outgoing = request.body().map_err(|()| error("the request has no body"))?;
    let pending = outgoing_handler::handle(request, None).map_err(|code| format!("denied {code:?}"))?;
    send(outgoing, body.as_bytes())?;

    pending.subscribe().block();
    let response = match pending.get() {
        Some(Ok(Ok(response))) => response,
        Some(Ok(Err(code))) => return Err(format!("failed {code:?}")),
        _ => return Err(error("the response is not there")),
    };
    let status = response.status();
    let incoming = response.consume().map_err(|()| error("the response has no body"))?;
    Ok(format!("status {status}\n{}", String::from_utf8_lossy(&receive(&incoming)?)))
}

fn echo() -> Result<String, String> {
    let environment = wasip2::cli::environment::get_environment();
    let endpoint = environment.into_iter().find(|(name, _)| name == ENDPOINT);
    endpoint
        .map(|(_, value)| format!("{value}/v1/echo"))
        .ok_or_else(|| format!("error {ENDPOINT} is not set"))
}

fn send(body: OutgoingBody, bytes: &[u8]) -> Result<(), String> {
    let stream = body.write().map_err(|()| "error the body cannot be written".to_owned())?;
    for chunk in bytes.chunks(4096) {
        stream.blocking_write_and_flush(chunk).map_err(|e| format!("failed {e:?}"))?;
    }
    drop(stream);
    OutgoingBody::finish(body, None).map_err(|code| format!("failed {code:?}"))
}

fn receive(body: &IncomingBody) -> Result<Vec<u8>, String> {
    let stream = body.stream().map_err(|()| "error the body cannot be read".to_owned())?;
    let mut bytes = Vec::new();
    loop {
        match stream.blocking_read(64 * 1024) {
            Ok(chunk) => bytes.extend(chunk),
            Err(StreamError::Closed) => return Ok(bytes),
            Err(error) => return Err(format!("failed {error:?}")),
        }
    }
}

export!(FetchDriver);
