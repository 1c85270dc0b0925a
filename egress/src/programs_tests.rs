//! Decisions about programs, against names that are a table.

use std::time::Duration;

use ipc::edge::control::Scheme;
use ipc::edge::egress_broker::EgressToBroker;

use super::*;

/// Names with their addresses.
#[derive(Debug, Default)]
pub(crate) struct Table(Vec<(&'static str, &'static [&'static str])>);

impl Resolve for Table {
    async fn resolve(&self, host: &str, _: Family) -> Result<Vec<IpAddr>, NoAddress> {
        match self.0.iter().find(|(name, _)| *name == host) {
            Some((_, addresses)) => Ok(addresses.iter().map(|text| text.parse().unwrap()).collect()),
            None if host.starts_with("silent") => Err(NoAddress::NoAnswer),
            None => Err(NoAddress::NotFound),
        }
    }
}

fn rule(scheme: Option<Scheme>, host: &str, port: Option<u16>) -> NetworkRule {
    NetworkRule { scheme, host: host.into(), port }
}

/// Programs under a list with an entry of every kind, and what keeps their reports alive.
pub(crate) fn programs() -> (Programs<Table>, ipc::aio::AsyncReceiver<EgressToBroker>) {
    let rules = [
        rule(Some(Scheme::Https), "tls.example", None),
        rule(Some(Scheme::Http), "web.example", Some(8080)),
        rule(None, "bare.example", None),
        rule(None, "port.example", Some(5432)),
        rule(None, "shared.example", Some(81)),
        rule(None, "inside.example", Some(80)),
        rule(None, "mixed.example", Some(80)),
        rule(None, "door.example", Some(7)),
        rule(None, "gone.example", Some(80)),
        rule(None, "silent.example", Some(80)),
        rule(None, "six.example", Some(80)),
        rule(None, "10.0.0.5", Some(9)),
        rule(None, "1.1.1.9", None),
        rule(None, "localhost", Some(4000)),
        rule(None, "2606:4700::1", Some(80)),
    ];
    let table = Table(vec![
        ("tls.example", &["1.1.1.1"]),
        ("web.example", &["1.1.1.2"]),
        ("bare.example", &["1.1.1.3", "1.1.1.4"]),
        ("port.example", &["1.1.1.5"]),
        ("shared.example", &["1.1.1.1"]),
        ("inside.example", &["127.0.0.1", "10.0.0.1", "169.254.169.254"]),
        ("mixed.example", &["192.168.0.1", "1.1.1.6"]),
        ("door.example", &["1.1.1.7"]),
        ("six.example", &[]),
        ("localhost", &["127.0.0.1"]),
        ("unlisted.example", &["1.1.1.8"]),
    ]);
    let (broker, far) = ipc::pair::<EgressToBroker, ipc::Never>().unwrap();
    let (_, told) = ipc::aio::split(far).unwrap();
    let (sender, _) = ipc::aio::split(broker).unwrap();
    let addresses = Addresses::new(Some("1.1.1.7:7".parse().unwrap()));
    (Programs::new(&rules, table, addresses, Reports::new(sender)), told)
}

fn to(text: &str) -> SocketAddrV4 {
    text.parse().unwrap()
}

#[tokio::test(flavor = "current_thread")]
async fn without_a_look_up_an_address_is_allowed_where_the_list_led_and_at_that_port() {
    use Reason::{Address, NotListed};
    let (programs, _told) = programs();
    for (destination, decision) in [
        ("1.1.1.1:443", Ok(())),
        ("1.1.1.1:81", Ok(())),
        ("1.1.1.1:80", Err(NotListed)),
        ("1.1.1.1:5432", Err(NotListed)),
        ("1.1.1.2:8080", Ok(())),
        ("1.1.1.2:80", Err(NotListed)),
        ("1.1.1.3:80", Ok(())),
        ("1.1.1.4:443", Ok(())),
        ("1.1.1.4:8080", Err(NotListed)),
        ("1.1.1.5:5432", Ok(())),
        ("1.1.1.5:443", Err(NotListed)),
        ("1.1.1.8:80", Err(NotListed)),
        ("10.0.0.5:9", Ok(())),
        ("10.0.0.5:80", Err(NotListed)),
        ("1.1.1.9:80", Ok(())),
        ("1.1.1.9:443", Ok(())),
        ("1.1.1.9:9", Err(NotListed)),
        ("127.0.0.1:80", Err(Address)),
        ("10.0.0.1:80", Err(Address)),
        ("169.254.169.254:80", Err(Address)),
        ("192.168.0.1:80", Err(Address)),
        ("169.254.169.254:443", Err(NotListed)),
        ("1.1.1.6:80", Ok(())),
        ("1.1.1.7:7", Err(Address)),
        ("127.0.0.1:4000", Ok(())),
        ("0.0.0.0:80", Err(NotListed)),
    ] {
        assert_eq!(programs.decide(to(destination)).await, decision, "{destination}");
    }
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn an_address_that_was_given_out_is_judged_by_its_names_until_they_expire() {
    let (programs, _told) = programs();
    let one = || vec![Ipv4Addr::new(1, 1, 1, 1)];
    assert_eq!(programs.look_up("tls.example").await, Found::Addresses(one()));
    assert_eq!(programs.decide(to("1.1.1.1:443")).await, Ok(()));
    // The list led there too, for another name: no falling through.
    assert_eq!(programs.decide(to("1.1.1.1:81")).await, Err(Reason::NotListed));
    assert_eq!(programs.look_up("shared.example").await, Found::Addresses(one()));
    assert_eq!(programs.decide(to("1.1.1.1:81")).await, Ok(()));
    assert_eq!(programs.decide(to("1.1.1.1:443")).await, Ok(()));
    assert_eq!(programs.decide(to("1.1.1.1:80")).await, Err(Reason::NotListed));
    tokio::time::advance(Duration::from_secs(299)).await;
    assert_eq!(programs.look_up("tls.example").await, Found::Addresses(one()));
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(programs.decide(to("1.1.1.1:81")).await, Err(Reason::NotListed));
    tokio::time::advance(Duration::from_secs(300)).await;
    assert_eq!(programs.decide(to("1.1.1.1:81")).await, Ok(()), "nothing is bound: where the list led");
}

#[tokio::test(flavor = "current_thread")]
async fn a_look_up_gives_out_what_the_name_may_lead_to() {
    let (programs, _told) = programs();
    let addresses =
        |texts: &[&str]| Found::Addresses(texts.iter().map(|text| text.parse().unwrap()).collect());
    for (name, found) in [
        ("bare.example", addresses(&["1.1.1.3", "1.1.1.4"])),
        ("mixed.example", addresses(&["1.1.1.6"])),
        ("inside.example", Found::Refused),
        ("door.example", Found::Refused),
        ("localhost", addresses(&["127.0.0.1"])),
        ("six.example", addresses(&[])),
        ("gone.example", Found::NoAddress(NoAddress::NotFound)),
        ("silent.example", Found::NoAddress(NoAddress::NoAnswer)),
    ] {
        assert!(programs.names(name), "{name}");
        assert_eq!(programs.look_up(name).await, found, "{name}");
    }
    for name in ["unlisted.example", "a.web.example", "example", "10.0.0.5", "1.1.1.9", "2606:4700::1", ""] {
        assert!(!programs.names(name), "{name}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn the_ports_are_those_of_the_entries_and_of_name_servers() {
    let (programs, _told) = programs();
    let mut ports = programs.ports();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports, [7, 9, 53, 80, 81, 443, 4000, 5432, 8080]);
}
