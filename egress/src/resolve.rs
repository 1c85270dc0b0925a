//! From a host to addresses: literals and the hosts file.
//!
//! Names that are in neither have no address here yet: a DNS client comes with TLS, without which no public upstream is worth
//! reaching. The look-up is a trait, so that it is one place that changes and one that tests replace.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Resolves hosts.
pub(crate) trait Resolve: Send + Sync + 'static {
    /// Every address of a host, in the order they should be tried; empty if it has none.
    fn resolve(&self, host: &str) -> impl Future<Output = Vec<IpAddr>> + Send;
}

/// The hosts file, read once.
#[derive(Debug)]
pub(crate) struct Hosts(Vec<(IpAddr, Vec<String>)>);

/// The largest hosts file that is read, in bytes.
const LARGEST_FILE: u64 = 1024 * 1024;

impl Hosts {
    /// Reads `/etc/hosts` of this process's own root; a file that is not there holds no names.
    ///
    /// # Errors
    /// The error of the read.
    pub(crate) fn read() -> std::io::Result<Self> {
        use std::io::Read;
        match std::fs::File::open("/etc/hosts") {
            Ok(file) => {
                let mut bytes = Vec::new();
                file.take(LARGEST_FILE).read_to_end(&mut bytes)?;
                Ok(Hosts::parse(&String::from_utf8_lossy(&bytes)))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Hosts(Vec::new())),
            Err(error) => Err(error),
        }
    }

    fn parse(text: &str) -> Self {
        let line = |line: &str| {
            let mut words = line.split('#').next().unwrap_or_default().split_ascii_whitespace();
            let address = words.next()?.parse().ok()?;
            Some((address, words.map(str::to_ascii_lowercase).collect()))
        };
        Hosts(text.lines().filter_map(line).collect())
    }
}

impl Resolve for Hosts {
    async fn resolve(&self, host: &str) -> Vec<IpAddr> {
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

    #[tokio::test(flavor = "current_thread")]
    async fn literals_and_names_of_the_file_have_addresses_and_nothing_else_has() {
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
            assert_eq!(hosts.resolve(host).await, expected, "{host}");
        }
        let loopback: Vec<IpAddr> = vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        assert_eq!(Hosts::parse("").resolve("localhost").await, loopback, "a host without the file");
    }
}
