//! Hosts, allow-list entries and gateway endpoints, compared exactly and never guessed.
//!
//! A strict reader of its own rather than a URL library: those repair what they are given (`0x7f.1`, backslashes,
//! tabs, upper case, default ports), and a repaired entry is no longer what the operator reads.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A scheme an outgoing request may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// Plain HTTP, port 80 by default.
    Http,
    /// HTTP over TLS, port 443 by default.
    Https,
}

impl Scheme {
    /// The port a URL of this scheme means when it names none.
    pub(crate) fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http => "http",
            Self::Https => "https",
        })
    }
}

/// A host as requests name it: a name and an address are different hosts, even when one resolves to the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Host {
    /// A DNS name in lower case, without a final dot.
    Name(String),
    /// An address literal.
    Address(IpAddr),
}

impl Host {
    /// `localhost`, an address in 127.0.0.0/8 or `::1`. An IPv4-mapped address is not loopback here.
    pub(crate) fn is_loopback(&self) -> bool {
        match self {
            Self::Name(name) => name == "localhost",
            Self::Address(IpAddr::V4(address)) => address.is_loopback(),
            Self::Address(IpAddr::V6(address)) => *address == Ipv6Addr::LOCALHOST,
        }
    }

    fn parse(text: &str) -> Result<Self, &'static str> {
        if let Some(inner) = text.strip_prefix('[') {
            let inner = inner.strip_suffix(']').ok_or("has an unclosed bracket")?;
            let address =
                inner.parse::<Ipv6Addr>().map_err(|_| "has no valid IPv6 address in its brackets")?;
            return Ok(Self::Address(IpAddr::V6(address)));
        }
        if text.is_empty() {
            return Err("names no host");
        }
        if text.contains('*') {
            return Err("has a wildcard; hosts are compared exactly");
        }
        let name = text.to_ascii_lowercase();
        let label = |label: &str| {
            (1..=63).contains(&label.len())
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        if name.len() > 253 || !name.split('.').all(label) {
            return Err("has no valid host name (names beyond ASCII are written in their xn-- form)");
        }
        // Resolvers read a name that ends in a number as an IPv4 address in some old notation.
        let last = name.rsplit('.').next().unwrap_or_default();
        let hex = last.strip_prefix("0x").is_some_and(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
        if hex || last.bytes().all(|b| b.is_ascii_digit()) {
            let address = name.parse::<Ipv4Addr>().map_err(|_| "has no valid IPv4 address")?;
            return Ok(Self::Address(IpAddr::V4(address)));
        }
        Ok(Self::Name(name))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

/// One entry of an allow-list. Admits a request when every part it names equals the request's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NetRule {
    /// Absent in a bare entry: any scheme.
    pub(crate) scheme: Option<Scheme>,
    /// Compared exactly.
    pub(crate) host: Host,
    /// Absent in a bare `host`: any port. An entry with a scheme always has one.
    pub(crate) port: Option<u16>,
}

impl NetRule {
    /// Reads `host`, `host:port` or `http(s)://host[:port]`. The error says what is wrong, without the value.
    pub(super) fn parse(entry: &str) -> Result<Self, &'static str> {
        let entry = entry.trim();
        if entry.is_empty() {
            return Err("is empty");
        }
        let (scheme, rest) = split_scheme(entry)?;
        let authority = match scheme {
            Some(_) => rest.strip_suffix('/').unwrap_or(rest),
            None => rest,
        };
        if authority.contains(['/', '?', '#', '\\']) {
            return Err("has a path, query or fragment");
        }
        let (host, port) = split_authority(authority)?;
        let port = port.or(scheme.map(Scheme::default_port));
        Ok(Self { scheme, host, port })
    }

    /// Whether everything `narrower` admits is admitted by `self` too.
    pub(crate) fn covers(&self, narrower: &Self) -> bool {
        self.host == narrower.host
            && (self.scheme.is_none() || self.scheme == narrower.scheme)
            && (self.port.is_none() || self.port == narrower.port)
    }
}

impl fmt::Display for NetRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(scheme) = self.scheme {
            write!(f, "{scheme}://")?;
        }
        write!(f, "{}", self.host)?;
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

/// Where a gateway's requests really go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// `Http` only with a loopback host.
    pub(crate) scheme: Scheme,
    /// The upstream's host.
    pub(crate) host: Host,
    /// The upstream's port, the scheme's default written out.
    pub(crate) port: u16,
    /// Empty, or begins with `/` and does not end with one.
    pub(crate) path: String,
}

impl Endpoint {
    /// Reads an absolute http(s) URL without userinfo, query or fragment; plain http only to this machine.
    /// The error says what is wrong, without the value (which may hold a password).
    pub(super) fn parse(url: &str) -> Result<Self, &'static str> {
        if url.contains("${") {
            return Err("takes no ${…} reference");
        }
        let (scheme, rest) = split_scheme(url)?;
        let scheme = scheme.ok_or("must begin with https:// (or http:// for this machine)")?;
        if rest.contains('?') {
            return Err("has a query");
        }
        if rest.contains('#') {
            return Err("has a fragment");
        }
        let cut = rest.find('/').unwrap_or(rest.len());
        let (authority, path) = rest.split_at_checked(cut).ok_or("is not a URL")?;
        let (host, port) = split_authority(authority)?;
        if scheme == Scheme::Http && !host.is_loopback() {
            return Err("is plain http to another machine; a credential must not travel there in the clear");
        }
        let visible = |b: u8| b.is_ascii_graphic() && !matches!(b, b'\\' | b'"' | b'<' | b'>' | b'^' | b'`');
        if !path.bytes().all(visible) || path.split('/').any(|part| matches!(part, "." | "..")) {
            return Err("has a path that is not plainly written");
        }
        let path = path.trim_end_matches('/').to_owned();
        Ok(Self { scheme, host, port: port.unwrap_or(scheme.default_port()), path })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}:{}{}", self.scheme, self.host, self.port, self.path)
    }
}

fn split_scheme(text: &str) -> Result<(Option<Scheme>, &str), &'static str> {
    let Some((scheme, rest)) = text.split_once("://") else { return Ok((None, text)) };
    if scheme.eq_ignore_ascii_case("http") {
        Ok((Some(Scheme::Http), rest))
    } else if scheme.eq_ignore_ascii_case("https") {
        Ok((Some(Scheme::Https), rest))
    } else {
        Err("has a scheme other than http and https")
    }
}

fn split_authority(text: &str) -> Result<(Host, Option<u16>), &'static str> {
    if text.contains('@') {
        return Err("has a user name or password");
    }
    // A colon inside brackets belongs to the address.
    let after_brackets = text.rfind(']').map_or(0, |at| at + 1);
    let colon = text.get(after_brackets..).and_then(|tail| tail.find(':')).map(|at| after_brackets + at);
    let (host, port) = match colon {
        Some(at) => (text.get(..at).unwrap_or_default(), text.get(at + 1..)),
        None => (text, None),
    };
    let port = match port {
        None => None,
        Some(digits)
            if !digits.is_empty() && digits.len() <= 5 && digits.bytes().all(|b| b.is_ascii_digit()) =>
        {
            Some(
                digits
                    .parse::<u16>()
                    .ok()
                    .filter(|port| *port != 0)
                    .ok_or("has a port outside 1 to 65535")?,
            )
        }
        Some(_) => return Err("has no valid port (IPv6 addresses are written in brackets)"),
    };
    Ok((Host::parse(host)?, port))
}
