//! A client on raw sockets: what the test wrote is what is sent, byte for byte.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// How long one answer may take in all the tests that do not ask for more.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// One parsed answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Names in lower case, values as sent, in order.
    pub headers: Vec<(String, String)>,
    /// Everything after the head.
    pub body: Vec<u8>,
}

impl Response {
    /// The value of a header that must not appear twice.
    ///
    /// # Panics
    /// If it does.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values =
            self.headers.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str());
        let value = values.next();
        assert_eq!(values.next(), None, "two headers {name}");
        value
    }

    /// The body as text.
    ///
    /// # Panics
    /// If it is none.
    #[must_use]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a body of text")
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// If it is none.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.text()))
    }

    /// The code of a refusal, whose body must be exactly `{"error","message"}`.
    ///
    /// # Panics
    /// If the body is something else.
    #[must_use]
    pub fn error(&self) -> String {
        let body = self.json();
        let object = body.as_object().expect("an object");
        let keys: Vec<&str> = object.keys().map(String::as_str).collect();
        assert_eq!(keys, ["error", "message"], "{body}");
        assert_eq!(self.header("content-type"), Some("application/json"));
        body["error"].as_str().expect("a code").to_owned()
    }
}

/// `host:port` of an `http://` address.
///
/// # Panics
/// If the address is of another kind.
#[must_use]
pub fn authority(url: &str) -> &str {
    url.strip_prefix("http://").expect("an http address").trim_end_matches('/')
}

/// Sends bytes on a new connection and reads until the other end closes.
///
/// # Errors
/// Whatever connecting, writing or reading says; a peer that neither answers nor closes within `patience` is `WouldBlock`.
pub fn exchange(url: &str, request: &[u8], patience: Duration) -> io::Result<Vec<u8>> {
    let mut socket = TcpStream::connect(authority(url))?;
    socket.set_read_timeout(Some(patience))?;
    socket.set_write_timeout(Some(patience))?;
    socket.write_all(request)?;
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer)?;
    Ok(answer)
}

/// As [`exchange`], with a peer that may answer before it has read everything and then reset the connection: what came until
/// then counts.
///
/// # Errors
/// Whatever connecting says; `TimedOut` if the peer neither answers nor closes within `patience`.
pub fn exchange_early(url: &str, request: &[u8], patience: Duration) -> io::Result<Vec<u8>> {
    let mut socket = TcpStream::connect(authority(url))?;
    socket.set_read_timeout(Some(patience))?;
    socket.set_write_timeout(Some(patience))?;
    // A peer that has closed says so with an error here; its answer is read all the same.
    let _ = socket.write_all(request);
    let mut answer = Vec::new();
    match socket.read_to_end(&mut answer) {
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            Err(io::ErrorKind::TimedOut.into())
        }
        _ => Ok(answer),
    }
}

/// Takes an answer apart. Its `content-length`, where sent, must be true unless it answers a HEAD.
///
/// # Errors
/// `InvalidData` naming what is wrong, for instance with a connection that closed without an answer.
pub fn parse(answer: &[u8]) -> io::Result<Response> {
    let invalid = |what: &str| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{what}: {:?}", String::from_utf8_lossy(answer)))
    };
    let end = answer
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .ok_or_else(|| invalid("no end of the head"))?;
    let head = std::str::from_utf8(&answer[..end]).map_err(|_| invalid("a head that is no text"))?;
    let body = answer[end + 4..].to_vec();
    let mut lines = head.split("\r\n");
    let mut first = lines.next().unwrap_or_default().splitn(3, ' ');
    if first.next() != Some("HTTP/1.1") {
        return Err(invalid("not HTTP/1.1"));
    }
    let status = first.next().and_then(|code| code.parse().ok()).ok_or_else(|| invalid("no status"))?;
    let mut headers = Vec::new();
    for line in lines {
        let (name, value) = line.split_once(':').ok_or_else(|| invalid("a header line without colon"))?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    Ok(Response { status, headers, body })
}

/// One request line with the headers every request has, and what came back.
///
/// # Errors
/// As [`exchange`] and [`parse`]; `InvalidData` if `content-length` is not the number of bytes that came (for HEAD: if
/// any came).
pub fn try_request(url: &str, method: &str, target: &str) -> io::Result<Response> {
    let host = authority(url);
    let request = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let response = parse(&exchange(url, request.as_bytes(), PATIENCE)?)?;
    let expected = match response.header("content-length") {
        _ if method == "HEAD" => Some(0),
        Some(length) => length.parse().ok(),
        None => None,
    };
    if expected.is_some_and(|expected| expected != response.body.len()) {
        let text = format!("content-length {expected:?}, {} bytes came", response.body.len());
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(response)
}

/// [`try_request`] that must be answered.
///
/// # Panics
/// If it is not.
#[must_use]
pub fn request(url: &str, method: &str, target: &str) -> Response {
    try_request(url, method, target).unwrap_or_else(|error| panic!("{method} {target}: {error}"))
}

/// A GET that must be answered.
///
/// # Panics
/// If it is not.
#[must_use]
pub fn get(url: &str, target: &str) -> Response {
    request(url, "GET", target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_taken_apart_without_being_tidied() {
        let answer = b"HTTP/1.1 405 Method Not Allowed\r\nAllow: GET\r\nx: a:b\r\n\r\nbody\r\n\r\n";
        let response = parse(answer).unwrap();
        assert_eq!(
            (response.status, response.header("allow"), response.header("x")),
            (405, Some("GET"), Some("a:b"))
        );
        assert_eq!(response.body, b"body\r\n\r\n");
    }

    #[test]
    fn what_is_no_answer_is_an_error_and_no_panic() {
        for answer in [
            "",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1\r\n\r\n",
            "HTTP/2 200\r\n\r\n",
            "HTTP/1.1 200 OK\r\nx\r\n\r\n",
        ] {
            assert!(parse(answer.as_bytes()).is_err(), "{answer:?}");
        }
    }
}
