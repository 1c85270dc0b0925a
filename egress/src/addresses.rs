//! Which addresses a name may lead to: those of the public internet, and what a rule names itself.
//!
//! A name is resolved once, every address it gave is judged here, and only a judged address is dialled, so that a name under
//! somebody else's control cannot point a component or a program at this host or its network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Judges addresses for one session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Addresses {
    /// Where the session's own door listens.
    door: Option<SocketAddr>,
}

impl Addresses {
    pub(crate) fn new(door: Option<SocketAddr>) -> Self {
        Addresses { door }
    }

    /// The addresses of a destination that may be dialled.
    ///
    /// `host` is the host of the rule or gateway that allows the destination. An address literal names itself, and
    /// `localhost` names loopback; any other name leads to public addresses only. None but a literal leads to the door.
    pub(crate) fn allowed(&self, host: &str, port: u16, resolved: &[IpAddr]) -> Vec<IpAddr> {
        let literal: Option<IpAddr> = host.parse().ok();
        let named = |address: &IpAddr| match literal {
            Some(literal) => *address == literal,
            None => {
                let public = is_public(*address) || (host == "localhost" && address.is_loopback());
                public && !self.is_door(*address, port)
            }
        };
        resolved.iter().copied().filter(named).collect()
    }

    fn is_door(&self, address: IpAddr, port: u16) -> bool {
        self.door.is_some_and(|door| {
            let (own, asked) = (door.ip().to_canonical(), address.to_canonical());
            door.port() == port && (own == asked || (own.is_unspecified() && is_here(asked)))
        })
    }
}

/// Whether an address is this host's own: the kernel answers from such an address with itself. Nothing is sent.
fn is_here(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((address, 9))?;
        socket.local_addr()
    };
    source().is_ok_and(|source| source.ip() == address)
}

/// Whether an address belongs to the public internet (the special-purpose registries of IANA list the others).
pub(crate) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    !matches!(
        (a, b, c),
        (0 | 10 | 127 | 224..=255, _, _)
            | (100, 64..=127, _)
            | (169, 254, _)
            | (172, 16..=31, _)
            | (192, 168, _)
            | (192, 0, 0 | 2)
            | (192, 88, 99)
            | (198, 18..=19, _)
            | (198, 51, 100)
            | (203, 0, 113)
    )
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [a, b, c, d, e, f, g, h] = address.segments();
    let embedded = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match (a, b) {
        // Addresses that stand for an IPv4 one: the translator's well-known prefix, and IPv4-mapped.
        (0x0064, 0xff9b) if [c, d, e, f] == [0; 4] => embedded(g, h),
        (0, 0) if [c, d, e] == [0; 3] && f == 0xffff => embedded(g, h),
        // Within global unicast: protocol assignments and tunnels, documentation, 6to4.
        (0x2001, 0..=0x01ff | 0x0db8) | (0x2002, _) => false,
        (0x3fff, 0..=0x0fff) => false,
        (0x2000..=0x3fff, _) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn special_addresses_are_not_public() {
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "127.0.0.1",
            "127.255.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.1",
            "192.0.2.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.0.1",
            "198.51.100.7",
            "203.0.113.7",
            "224.0.0.1",
            "239.1.1.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "64:ff9b::127.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "3fff::1",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "4000::1",
        ] {
            assert!(!is_public(address(text)), "{text}");
        }
        for text in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.1",
            "100.63.0.1",
            "100.128.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "198.17.0.1",
            "198.20.0.1",
            "223.255.255.255",
            "2606:4700::1111",
            "2001:4860::8888",
            "::ffff:1.1.1.1",
            "64:ff9b::101:101",
        ] {
            assert!(is_public(address(text)), "{text}");
        }
    }

    #[test]
    fn a_name_leads_to_public_addresses_and_a_literal_to_itself() {
        let resolved = ["1.1.1.1", "127.0.0.1", "::1", "10.0.0.1", "169.254.169.254"].map(address);
        for (host, dialled) in [
            ("example.com", &["1.1.1.1"][..]),
            ("localhost", &["1.1.1.1", "127.0.0.1", "::1"]),
            ("10.0.0.1", &["10.0.0.1"]),
            ("localhost.example.com", &["1.1.1.1"]),
            ("10.0.0.2", &[]),
        ] {
            let expected: Vec<_> = dialled.iter().copied().map(address).collect();
            assert_eq!(Addresses::new(None).allowed(host, 80, &resolved), expected, "{host}");
        }
    }

    #[test]
    fn no_name_leads_to_the_door_and_a_literal_does() {
        for (door, host, port, resolved, dialled) in [
            ("1.1.1.1:80", "a.example", 80, "1.1.1.1", false),
            ("1.1.1.1:80", "a.example", 81, "1.1.1.1", true),
            ("1.1.1.1:80", "a.example", 80, "1.1.1.2", true),
            ("1.1.1.1:80", "1.1.1.1", 80, "1.1.1.1", true),
            ("127.0.0.1:80", "localhost", 80, "127.0.0.1", false),
            ("127.0.0.1:80", "localhost", 81, "127.0.0.1", true),
            ("0.0.0.0:80", "localhost", 80, "127.0.0.1", false),
            ("0.0.0.0:80", "localhost", 81, "127.0.0.1", true),
            ("[::]:80", "localhost", 80, "127.0.0.1", false),
            ("[::1]:80", "localhost", 80, "::1", false),
            // Nobody here has this one.
            ("0.0.0.0:80", "a.example", 80, "1.1.1.1", true),
        ] {
            let addresses = Addresses::new(Some(door.parse().unwrap()));
            let allowed = addresses.allowed(host, port, &[address(resolved)]);
            assert_eq!(
                allowed,
                if dialled { vec![address(resolved)] } else { vec![] },
                "{door} {host}:{port}"
            );
        }
    }
}
