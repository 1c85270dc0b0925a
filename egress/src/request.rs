//! From a message to an HTTP request: what of it may be sent upstream, and with which framing.
//!
//! The framing is decided here and by the HTTP library, never by a header the component wrote: hop-by-hop names are dropped, one
//! plain `content-length` becomes the length of the body, and anything ambiguous is refused.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, Uri};
use ipc::edge::host_egress::HttpRequest;

use crate::rules::Destination;

/// Names that belong to one connection (RFC 9110, 7.6.1) or that this process writes itself.
const DROPPED: [&str; 12] = [
    "connection",
    "proxy-connection",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "proxy-authenticate",
    "proxy-authorization",
    "expect",
    "host",
    "content-length",
];

/// The head of a request as it goes upstream.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    /// The exact number of bytes of the body, where the component said it.
    pub(crate) length: Option<u64>,
}

/// The request cannot be expressed in HTTP/1.1 without ambiguity.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the {0} of the request cannot be sent")]
pub(crate) struct Unsendable(&'static str);

/// Builds the head for a destination.
///
/// # Errors
/// [`Unsendable`] for a method that is none or that makes a tunnel or an echo, a path that is not one, a header that is none
/// (CR, LF and NUL included), and any but one plain `content-length`.
pub(crate) fn head(request: &HttpRequest, destination: &Destination) -> Result<Head, Unsendable> {
    let method = Method::from_bytes(request.method.as_bytes()).map_err(|_| Unsendable("method"))?;
    if method == Method::CONNECT || method == Method::TRACE {
        return Err(Unsendable("method"));
    }
    if !request.path.starts_with('/') {
        return Err(Unsendable("path"));
    }
    let path = PathAndQuery::try_from(request.path.as_str()).map_err(|_| Unsendable("path"))?;
    let (mut headers, length) = sendable(&request.headers)?;
    let host = HeaderValue::try_from(host(destination)).map_err(|_| Unsendable("host"))?;
    headers.insert(header::HOST, host);
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    Ok(Head { method, uri: Uri::from(path), headers, length })
}

fn sendable(fields: &[(String, Vec<u8>)]) -> Result<(HeaderMap, Option<u64>), Unsendable> {
    let mut headers = HeaderMap::new();
    let mut length = None;
    let mut connection = Vec::new();
    for (name, value) in fields {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| Unsendable("header"))?;
        let value = HeaderValue::from_bytes(value).map_err(|_| Unsendable("header"))?;
        if name == header::CONNECTION {
            connection.extend(listed(&value));
        }
        if name == header::CONTENT_LENGTH && length.replace(plain_number(&value)?).is_some() {
            return Err(Unsendable("content length"));
        }
        if !DROPPED.contains(&name.as_str()) {
            headers.try_append(name, value).map_err(|_| Unsendable("header"))?;
        }
    }
    for name in connection {
        headers.remove(name);
    }
    Ok((headers, length))
}

/// The fields of a response without those that belong to the connection.
pub(crate) fn end_to_end(headers: &HeaderMap) -> Vec<(String, Vec<u8>)> {
    let connection: Vec<String> = headers.get_all(header::CONNECTION).iter().flat_map(listed).collect();
    let hop = |name: &str| {
        (DROPPED.contains(&name) && name != "content-length") || connection.iter().any(|other| other == name)
    };
    let kept = headers.iter().filter(|(name, _)| !hop(name.as_str()));
    kept.map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec())).collect()
}

fn listed(value: &HeaderValue) -> Vec<String> {
    let text = value.to_str().unwrap_or_default();
    text.split(',').map(|name| name.trim().to_ascii_lowercase()).filter(|name| !name.is_empty()).collect()
}

fn plain_number(value: &HeaderValue) -> Result<u64, Unsendable> {
    let digits = value.as_bytes().iter().all(u8::is_ascii_digit);
    let number = value.to_str().ok().filter(|_| digits).and_then(|text| text.parse().ok());
    number.ok_or(Unsendable("content length"))
}

fn host(destination: &Destination) -> String {
    let Destination { tls, host, port } = destination;
    let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    let default = if *tls { 443 } else { 80 };
    if *port == default { host } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipc::edge::control::Scheme;
    use ipc::edge::host_egress::Purpose;
    use ipc::types::RequestId;

    fn request(method: &str, path: &str, headers: &[(&str, &str)]) -> HttpRequest {
        HttpRequest {
            id: RequestId(1),
            purpose: Purpose::Component { artifact: "a".into() },
            method: method.into(),
            scheme: Scheme::Http,
            host: "up.example".into(),
            port: 80,
            path: path.into(),
            headers: headers.iter().map(|(n, v)| ((*n).to_owned(), v.as_bytes().to_vec())).collect(),
            timeout_ms: 1000,
        }
    }

    fn destination(host: &str, port: u16) -> Destination {
        Destination { tls: false, host: host.into(), port }
    }

    fn built(request: &HttpRequest) -> Result<Head, Unsendable> {
        head(request, &destination("up.example", 80))
    }

    #[test]
    fn what_could_smuggle_a_second_request_is_refused() {
        for (method, path, headers) in [
            ("GET\r\nX: y", "/", &[][..]),
            ("GET ", "/", &[]),
            ("", "/", &[]),
            ("CONNECT", "/", &[]),
            ("TRACE", "/", &[]),
            ("GET", "", &[]),
            ("GET", "x", &[]),
            ("GET", "*", &[]),
            ("GET", "http://evil.example/", &[]),
            ("GET", "/ HTTP/1.1\r\nHost: evil", &[]),
            ("GET", "/a b", &[]),
            ("GET", "/\0", &[]),
            ("GET", "/", &[("a\r\nb", "x")]),
            ("GET", "/", &[("a", "x\r\nhost: evil")]),
            ("GET", "/", &[("a", "x\nb: c")]),
            ("GET", "/", &[("a", "x\0")]),
            ("GET", "/", &[("a b", "x")]),
            ("GET", "/", &[("", "x")]),
            ("GET", "/", &[("a:", "x")]),
            ("POST", "/", &[("content-length", "4"), ("Content-Length", "4")]),
            ("POST", "/", &[("content-length", "4, 4")]),
            ("POST", "/", &[("content-length", "+4")]),
            ("POST", "/", &[("content-length", " 4")]),
            ("POST", "/", &[("content-length", "")]),
            ("POST", "/", &[("content-length", "99999999999999999999")]),
        ] {
            assert!(built(&request(method, path, headers)).is_err(), "{method:?} {path:?} {headers:?}");
        }
    }

    #[test]
    fn hop_by_hop_names_are_dropped_and_the_host_is_the_destinations() {
        let sent = built(&request(
            "POST",
            "/p?q=1",
            &[
                ("Host", "evil.example"),
                ("Connection", "X-Private, keep-alive"),
                ("x-private", "1"),
                ("Transfer-Encoding", "chunked"),
                ("TE", "trailers"),
                ("Upgrade", "h2c"),
                ("Expect", "100-continue"),
                ("Proxy-Authorization", "x"),
                ("content-length", "12"),
                ("Accept", "a"),
                ("accept", "b"),
            ],
        ))
        .unwrap();
        let fields: Vec<_> = sent.headers.iter().map(|(n, v)| (n.as_str(), v.to_str().unwrap())).collect();
        assert_eq!(
            fields,
            [("accept", "a"), ("accept", "b"), ("host", "up.example"), ("connection", "close")]
        );
        assert_eq!((sent.uri.to_string().as_str(), sent.length), ("/p?q=1", Some(12)));
    }

    #[test]
    fn the_host_field_carries_a_port_unless_it_is_the_default_one() {
        for (name, port, text) in
            [("a", 80, "a"), ("a", 8080, "a:8080"), ("::1", 80, "[::1]"), ("::1", 8080, "[::1]:8080")]
        {
            assert_eq!(host(&destination(name, port)), text);
        }
        assert_eq!(host(&Destination { tls: true, host: "a".into(), port: 443 }), "a");
        assert_eq!(host(&Destination { tls: true, host: "a".into(), port: 80 }), "a:80");
    }

    #[test]
    fn a_response_keeps_its_end_to_end_fields_in_order() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("set-cookie", "a"),
            ("connection", "x-hop"),
            ("x-hop", "1"),
            ("transfer-encoding", "chunked"),
            ("content-length", "3"),
            ("set-cookie", "b"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let kept: Vec<_> = end_to_end(&headers);
        let names: Vec<_> = kept.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect();
        assert_eq!(names, [("set-cookie", &b"a"[..]), ("set-cookie", b"b"), ("content-length", b"3")]);
    }
}
