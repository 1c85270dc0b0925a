//! From a host to addresses: literals, the hosts file, then the name servers of resolv.conf.
//!
//! Both files are those of this process's own root and are read once. Names are taken as they are: no search list, no
//! other sources. Requests of components and look-ups of programs come here alike.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use crate::lookup::{self, Kind};
use crate::rules::DNS;

/// Which addresses are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    /// All, those of IPv4 first.
    Any,
    /// Those of IPv4.
    V4,
}

impl Family {
    fn wants(self, address: IpAddr) -> bool {
        self == Family::Any || address.is_ipv4()
    }
}

/// Why a host has no address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoAddress {
    /// There is no such name, or it has none of the wanted kind and is known to.
    NotFound,
    /// No name server gave an answer.
    NoAnswer,
}

impl NoAddress {
    /// In words.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            NoAddress::NotFound => "the name has no address",
            NoAddress::NoAnswer => "no name server answers for the name",
        }
    }
}

/// Resolves hosts.
pub(crate) trait Resolve: Send + Sync + 'static {
    /// Every address of a host, in the order they should be tried. A name that exists and has none of the wanted kind gives
    /// none.
    fn resolve(
        &self,
        host: &str,
        family: Family,
    ) -> impl Future<Output = Result<Vec<IpAddr>, NoAddress>> + Send;
}

impl<R: Resolve> Resolve for Arc<R> {
    fn resolve(
        &self,
        host: &str,
        family: Family,
    ) -> impl Future<Output = Result<Vec<IpAddr>, NoAddress>> + Send {
        R::resolve(self, host, family)
    }
}

/// The host's own sources of names.
#[derive(Debug)]
pub(crate) struct Names {
    hosts: Hosts,
    servers: Vec<SocketAddr>,
}

impl Names {
    /// Reads `/etc/hosts` and `/etc/resolv.conf`; a file that is not there says nothing.
    ///
    /// # Errors
    /// The error of a read.
    pub(crate) fn read() -> std::io::Result<Self> {
        Ok(Names { hosts: Hosts::parse(&text("/etc/hosts")?), servers: servers(&text("/etc/resolv.conf")?) })
    }

    async fn ask(&self, host: &str, family: Family) -> Result<Vec<IpAddr>, NoAddress> {
        let first = lookup::lookup(&self.servers, host, Kind::A);
        if family == Family::V4 {
            return first.await;
        }
        match tokio::join!(first, lookup::lookup(&self.servers, host, Kind::Aaaa)) {
            (Ok(mut found), Ok(more)) => {
                found.extend(more);
                Ok(found)
            }
            (Ok(found), Err(_)) | (Err(_), Ok(found)) if !found.is_empty() => Ok(found),
            (Ok(_), Err(why)) | (Err(why), Ok(_)) => Err(why),
            (Err(NoAddress::NoAnswer), Err(NoAddress::NoAnswer)) => Err(NoAddress::NoAnswer),
            (Err(_), Err(_)) => Err(NoAddress::NotFound),
        }
    }
}

impl Resolve for Names {
    async fn resolve(&self, host: &str, family: Family) -> Result<Vec<IpAddr>, NoAddress> {
        let known = self.hosts.addresses(host);
        let wanted: Vec<IpAddr> = known.into_iter().filter(|address| family.wants(*address)).collect();
        if !wanted.is_empty() || host.parse::<IpAddr>().is_ok() {
            return Ok(wanted);
        }
        self.ask(host, family).await
    }
}

/// The most bytes of a file that are read.
const LARGEST_FILE: u64 = 1024 * 1024;

fn text(path: &str) -> std::io::Result<String> {
    use std::io::Read;
    match std::fs::File::open(path) {
        Ok(file) => {
            let mut bytes = Vec::new();
            file.take(LARGEST_FILE).read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error),
    }
}

/// The most name servers that are asked, as in the C library.
const MOST_SERVERS: usize = 3;

/// The name servers of a resolv.conf; without any, the one on this host (resolv.conf(5)). Those that are written with an
/// interface are left out: they are not reached by address alone.
fn servers(text: &str) -> Vec<SocketAddr> {
    let server = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let address: IpAddr = (words.next()? == "nameserver").then(|| words.next()?.parse().ok())??;
        Some(SocketAddr::new(address, DNS))
    };
    let servers: Vec<SocketAddr> = text.lines().filter_map(server).take(MOST_SERVERS).collect();
    if servers.is_empty() { vec![SocketAddr::new(Ipv4Addr::LOCALHOST.into(), DNS)] } else { servers }
}

/// The names of the hosts file.
#[derive(Debug)]
struct Hosts(Vec<(IpAddr, Vec<String>)>);

impl Hosts {
    fn parse(text: &str) -> Self {
        let line = |line: &str| {
            let mut words = line.split('#').next().unwrap_or_default().split_ascii_whitespace();
            let address = words.next()?.parse().ok()?;
            Some((address, words.map(str::to_ascii_lowercase).collect()))
        };
        Hosts(text.lines().filter_map(line).collect())
    }

    /// Of a literal, of a name in the file, or of `localhost`.
    fn addresses(&self, host: &str) -> Vec<IpAddr> {
        if let Ok(literal) = host.parse() {
            return vec![literal];
        }
        let host = host.to_ascii_lowercase();
        let names_it = |(_, names): &&(IpAddr, Vec<String>)| names.contains(&host);
        let found: Vec<IpAddr> = self.0.iter().filter(names_it).map(|(address, _)| *address).collect();
        // The one name that means this machine whatever a hosts file says or lacks (RFC 6761).
        if found.is_empty() && host == "localhost" {
            return vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lookup::tests::server;

    #[test]
    fn literals_and_names_of_the_file_have_addresses_and_nothing_else_has() {
        let hosts = Hosts::parse(
            "# comment\n127.0.0.1 localhost\n::1\tlocalhost ip6-localhost # x\n10.0.0.9 Up.Example alias\nbad line\n\n1.2.3.4\n",
        );
        for (host, addresses) in [
            ("localhost", &["127.0.0.1", "::1"][..]),
            ("UP.example", &["10.0.0.9"]),
            ("alias", &["10.0.0.9"]),
            ("192.0.2.1", &["192.0.2.1"]),
            ("::1", &["::1"]),
            ("comment", &[]),
            ("x", &[]),
            ("line", &[]),
            ("example.com", &[]),
            ("127.1", &[]),
            ("2130706433", &[]),
            ("0x7f000001", &[]),
            ("", &[]),
        ] {
            let expected: Vec<IpAddr> = addresses.iter().map(|text| text.parse().unwrap()).collect();
            assert_eq!(hosts.addresses(host), expected, "{host}");
        }
        let loopback: Vec<IpAddr> = vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        assert_eq!(Hosts::parse("").addresses("localhost"), loopback, "a host without the file");
    }

    #[test]
    fn the_first_three_name_servers_are_asked_or_the_one_on_this_host() {
        for (text, expected) in [
            ("", &["127.0.0.1:53"][..]),
            ("search example.com\noptions ndots:5\n# nameserver 1.1.1.1\n", &["127.0.0.1:53"]),
            ("nameserver 10.0.0.53\nnameserver\t::1 # x\n", &["10.0.0.53:53", "[::1]:53"]),
            ("nameserver fe80::1%eth0\nnameserver nonsense\nnameserver\nnameserver 1.1.1.1", &["1.1.1.1:53"]),
            (
                "nameserver 1.0.0.1\nnameserver 1.0.0.2\nnameserver 1.0.0.3\nnameserver 1.0.0.4",
                &["1.0.0.1:53", "1.0.0.2:53", "1.0.0.3:53"],
            ),
        ] {
            let expected: Vec<SocketAddr> = expected.iter().map(|text| text.parse().unwrap()).collect();
            assert_eq!(servers(text), expected, "{text:?}");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_hosts_file_comes_first_and_a_family_it_lacks_is_asked_for() {
        let zone =
            [("both.example", "192.0.2.1"), ("both.example", "2001:db8::1"), ("file.example", "192.0.2.9")];
        let (address, _) = server(&zone).await;
        let hosts = Hosts::parse("10.0.0.9 file.example\n::7 six.example\n");
        let names = Names { hosts, servers: vec![address] };
        for (host, family, expected) in [
            ("both.example", Family::Any, Ok(&["192.0.2.1", "2001:db8::1"][..])),
            ("both.example", Family::V4, Ok(&["192.0.2.1"])),
            ("file.example", Family::Any, Ok(&["10.0.0.9"])),
            ("six.example", Family::Any, Ok(&["::7"])),
            ("six.example", Family::V4, Err(NoAddress::NotFound)),
            ("::1", Family::V4, Ok(&[])),
            ("nowhere.example", Family::Any, Err(NoAddress::NotFound)),
        ] {
            let found = names.resolve(host, family).await;
            let expected: Result<Vec<IpAddr>, _> =
                expected.map(|texts| texts.iter().map(|text| text.parse().unwrap()).collect());
            assert_eq!(found, expected, "{host} {family:?}");
        }
    }
}
