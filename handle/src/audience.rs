//! Whom a handle is for: `<name>@<host:port>`, computed alike by the capsule that mints and by the one that fetches.

use std::fmt;

/// The text is neither `host:port` nor an http(s) URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is neither host:port nor an http(s) URL")]
pub struct NotAnAddress;

/// A capsule's name that cannot stand in an audience.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an audience's name is 1 to 255 printable ASCII characters without @")]
pub struct NotAnAudience;

/// Scheme, host and port of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// `https`, else `http`.
    pub tls: bool,
    /// Lower-case, IPv6 without brackets.
    pub host: String,
    /// Written out, or the scheme's own.
    pub port: u16,
}

impl Address {
    /// Reads an http(s) URL; what follows the authority is not looked at (`docs/decisions.md`, Audience of a card).
    ///
    /// # Errors
    /// [`NotAnAddress`], for user information too.
    pub fn of_url(url: &str) -> Result<Self, NotAnAddress> {
        let (scheme, rest) = url.split_once("://").ok_or(NotAnAddress)?;
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => return Err(NotAnAddress),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (host, port) = authority(rest.get(..end).unwrap_or_default())?;
        Ok(Address { tls, host, port: port.unwrap_or(if tls { 443 } else { 80 }) })
    }

    /// Reads the address of a peer as an agent names it: `host:port`, or a URL with nothing after the authority but a slash.
    ///
    /// # Errors
    /// [`NotAnAddress`].
    pub fn of_peer(text: &str) -> Result<Self, NotAnAddress> {
        if let Some((_, rest)) = text.split_once("://") {
            let rest = rest.strip_suffix('/').unwrap_or(rest);
            return if rest.contains(['/', '?', '#']) { Err(NotAnAddress) } else { Address::of_url(text) };
        }
        match authority(text)? {
            (host, Some(port)) => Ok(Address { tls: false, host, port }),
            (_, None) => Err(NotAnAddress),
        }
    }

    /// The scheme's name.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        if self.tls { "https" } else { "http" }
    }
}

impl fmt::Display for Address {
    /// `host:port`, IPv6 in brackets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

fn authority(text: &str) -> Result<(String, Option<u16>), NotAnAddress> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, after) = rest.split_once(']').ok_or(NotAnAddress)?;
            let address: std::net::Ipv6Addr = address.parse().map_err(|_| NotAnAddress)?;
            let port = match after.strip_prefix(':') {
                Some(port) => Some(port),
                None if after.is_empty() => None,
                None => return Err(NotAnAddress),
            };
            (address.to_string(), port)
        }
        None => {
            let (host, port) = match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            };
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
            if host.is_empty() || host.len() > 253 || !host.bytes().all(plain) {
                return Err(NotAnAddress);
            }
            (host.to_ascii_lowercase(), port)
        }
    };
    let port = match port {
        None => None,
        // No sign, no blank, no leading zero: one spelling.
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) && !port.starts_with('0') => {
            Some(port.parse().map_err(|_| NotAnAddress)?)
        }
        Some(_) => return Err(NotAnAddress),
    };
    Ok((host, port))
}

/// The audience of a capsule of this name at this address, lower-case (`seed: The audience`).
///
/// # Errors
/// [`NotAnAudience`] for a name that is no plain header value or could hide another audience.
pub fn audience(name: &str, address: &Address) -> Result<String, NotAnAudience> {
    let name = name.trim_matches(' ');
    let plain = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'@';
    if name.is_empty() || name.len() > 255 || !name.bytes().all(plain) {
        return Err(NotAnAudience);
    }
    Ok(format!("{name}@{address}").to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_compute_one_audience_whatever_the_card_spells() {
        let cases = [
            ("reporter", "http://localhost:41234", "reporter@localhost:41234"),
            ("Reporter", "HTTP://LOCALHOST:41234/", "reporter@localhost:41234"),
            ("my agent", "http://h.example", "my agent@h.example:80"),
            ("a", "https://h.example/path?q#f", "a@h.example:443"),
            ("a", "http://[::1]:80/x", "a@[::1]:80"),
            ("a", "http://[0:0::1]", "a@[::1]:80"),
            (" a ", "http://h:1?x", "a@h:1"),
        ];
        for (name, url, expected) in cases {
            assert_eq!(
                audience(name, &Address::of_url(url).unwrap()).as_deref(),
                Ok(expected),
                "{name} {url}"
            );
        }
    }

    #[test]
    fn names_that_are_no_header_value_or_hold_an_at_are_refused() {
        let address = Address::of_url("http://h").unwrap();
        for name in ["", " ", "a@b", "é", "a\nb", "a\u{1f}b", &"a".repeat(256)] {
            assert_eq!(audience(name, &address), Err(NotAnAudience), "{name:?}");
        }
        assert!(audience(&"a".repeat(255), &address).is_ok());
    }

    #[test]
    fn addresses_have_one_shape() {
        for bad in [
            "",
            "h",
            "http://",
            "http://:80",
            "http://u@h",
            "http://u:p@h:1",
            "ftp://h",
            "http://h:0",
            "http://h:080",
            "http://h:65536",
            "http://h:+1",
            "http://[::1",
            "http://[x]:1",
            "http://[::1]x",
            "http://h h",
            "h:1:2",
        ] {
            assert_eq!(Address::of_url(bad), Err(NotAnAddress), "{bad}");
        }
        for bad in
            ["", "h", "http://h/x", "http://h:1/x?y", "h:1/", "h:1?x", "u@h:1", "[::1]", "h:", "http://h:1#x"]
        {
            assert_eq!(Address::of_peer(bad), Err(NotAnAddress), "{bad}");
        }
        for (text, shown, tls) in [
            ("localhost:41234", "localhost:41234", false),
            ("[::1]:9", "[::1]:9", false),
            ("http://H", "h:80", false),
            ("https://h/", "h:443", true),
            ("https://h:8443", "h:8443", true),
        ] {
            let address = Address::of_peer(text).unwrap();
            assert_eq!((address.to_string().as_str(), address.tls), (shown, tls), "{text}");
        }
    }
}
