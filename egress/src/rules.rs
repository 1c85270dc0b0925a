//! Where a request may go: the lists of the operator's manifest, per artifact and per tool, and nothing else.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipc::edge::control::{EgressConfigure, Gateway, NetworkRule, Scheme};
use ipc::edge::egress_broker::{Asker, EgressToBroker, Reason};
use ipc::edge::host_egress::{HttpRequest, Purpose};

use crate::peer;

/// The longest destination that is reported, in bytes.
const LONGEST_REPORT: usize = 512;

/// The port of name servers.
pub(crate) const DNS: u16 = 53;

/// What every artifact and every tool may reach.
#[derive(Debug)]
pub(crate) struct Rules {
    gateways: BTreeMap<String, Gateway>,
    allow: BTreeMap<String, Vec<NetworkRule>>,
    /// Of agent cards; empty if they may not be fetched.
    card: Vec<NetworkRule>,
    /// Of handles; empty if they may not be redeemed.
    redeem: Vec<NetworkRule>,
}

/// A destination that a list allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Destination {
    /// Whether the connection is TLS.
    pub(crate) tls: bool,
    /// Host as the operator named it: lower-case, IPv6 without brackets.
    pub(crate) host: String,
    /// Port.
    pub(crate) port: u16,
}

/// A destination that no list allows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Denied {
    /// On whose authority it was asked for.
    pub(crate) asker: Asker,
    /// `host:port` as asked, or the name that was looked up, cut to 512 bytes.
    pub(crate) destination: String,
    /// Why.
    pub(crate) reason: Reason,
}

impl Rules {
    pub(crate) fn new(configure: &EgressConfigure) -> Self {
        let named = |gateway: &Gateway| (gateway.artifact.clone(), gateway.clone());
        Rules {
            gateways: configure.gateways.iter().map(named).collect(),
            allow: configure.allow.iter().cloned().collect(),
            card: configure.card.clone().unwrap_or_default(),
            redeem: configure.redeem.clone().unwrap_or_default(),
        }
    }

    /// Where a request goes: for a gateway the operator's endpoint whatever was asked, for anything else what it asked if one
    /// entry of its list matches. An artifact without a list reaches nothing, and neither does a handle that is none.
    ///
    /// # Errors
    /// [`Denied`].
    pub(crate) fn decide(&self, request: &HttpRequest) -> Result<Destination, Denied> {
        let list = match &request.purpose {
            Purpose::Gateway { artifact } => {
                let Gateway { tls, host, port, .. } =
                    self.gateways.get(artifact).ok_or_else(|| Denied::of(request, Reason::NotListed))?;
                return Ok(Destination { tls: *tls, host: host.clone(), port: *port });
            }
            Purpose::Component { artifact } => self.allow.get(artifact).map_or(&[][..], Vec::as_slice),
            Purpose::Card => &self.card,
            Purpose::Redeem { handle, audience } if peer::may_be_sent(handle, audience) => &self.redeem,
            Purpose::Redeem { .. } => &[],
        };
        let rule = list
            .iter()
            .find(|rule| matches(rule, request))
            .ok_or_else(|| Denied::of(request, Reason::NotListed))?;
        let tls = request.scheme == Scheme::Https;
        Ok(Destination { tls, host: rule.host.clone(), port: request.port })
    }

    /// Every port that may be dialled, or `None` if an entry names no port and so allows all. Programs have ports of their
    /// own; where a name is to be looked up, that of name servers is one.
    pub(crate) fn ports(&self, programs: impl IntoIterator<Item = u16>) -> Option<Vec<u16>> {
        let rules = || self.allow.values().flatten().chain(&self.card).chain(&self.redeem);
        let gateways = self.gateways.values();
        let ports = gateways.clone().map(|gateway| Some(gateway.port)).chain(rules().map(pinned_port));
        let mut ports: Vec<u16> = ports.collect::<Option<_>>()?;
        ports.extend(programs);
        let hosts = gateways.map(|gateway| &gateway.host).chain(rules().map(|rule| &rule.host));
        if hosts.into_iter().any(|host| is_name(host)) {
            ports.push(DNS);
        }
        ports.sort_unstable();
        ports.dedup();
        Some(ports)
    }
}

/// Whether a host has to be looked up.
pub(crate) fn is_name(host: &str) -> bool {
    host.parse::<IpAddr>().is_err()
}

/// A rule that names a scheme pins its default port.
pub(crate) fn pinned_port(rule: &NetworkRule) -> Option<u16> {
    rule.port.or(match rule.scheme {
        Some(Scheme::Http) => Some(80),
        Some(Scheme::Https) => Some(443),
        None => None,
    })
}

fn matches(rule: &NetworkRule, request: &HttpRequest) -> bool {
    same_host(&rule.host, &request.host)
        && rule.scheme.is_none_or(|scheme| scheme == request.scheme)
        && pinned_port(rule).is_none_or(|port| port == request.port)
}

/// Exact after lower-casing and dropping one trailing dot; addresses are compared as addresses. A name and its address are
/// different hosts.
fn same_host(rule: &str, asked: &str) -> bool {
    let asked = asked.strip_suffix('.').unwrap_or(asked);
    match (rule.parse::<IpAddr>(), asked.parse::<IpAddr>()) {
        (Ok(rule), Ok(asked)) => rule == asked,
        _ => !asked.is_empty() && rule.eq_ignore_ascii_case(asked),
    }
}

impl Denied {
    /// The refusal of this request, in bounded words.
    pub(crate) fn of(request: &HttpRequest, reason: Reason) -> Self {
        let asker = match &request.purpose {
            Purpose::Component { artifact } | Purpose::Gateway { artifact } => {
                Asker::Artifact(cut(artifact, LONGEST_REPORT).to_owned())
            }
            Purpose::Card => Asker::Card,
            Purpose::Redeem { .. } => Asker::Redeem,
        };
        let host = cut(&request.host, LONGEST_REPORT - ":65535".len());
        let destination = format!("{host}:{}", request.port);
        Denied { asker, destination, reason }
    }

    /// The refusal of a program's connection or look-up, in bounded words.
    pub(crate) fn to_program(asker: Asker, destination: &str, reason: Reason) -> Self {
        Denied { asker, destination: cut(destination, LONGEST_REPORT).to_owned(), reason }
    }

    /// The message about so many of these.
    pub(crate) fn event(&self, count: u64) -> EgressToBroker {
        EgressToBroker::NetworkDenied {
            asker: self.asker.clone(),
            destination: self.destination.clone(),
            reason: self.reason,
            count,
        }
    }
}

fn cut(text: &str, limit: usize) -> &str {
    text.get(..text.floor_char_boundary(limit)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipc::types::RequestId;

    fn rule(scheme: Option<Scheme>, host: &str, port: Option<u16>) -> NetworkRule {
        NetworkRule { scheme, host: host.into(), port }
    }

    fn ask(purpose: Purpose, scheme: Scheme, host: &str, port: u16) -> HttpRequest {
        HttpRequest {
            id: RequestId(1),
            purpose,
            method: "GET".into(),
            scheme,
            host: host.into(),
            port,
            path: "/".into(),
            headers: vec![],
            timeout_ms: 1000,
        }
    }

    fn component(name: &str) -> Purpose {
        Purpose::Component { artifact: name.into() }
    }

    fn gateway(name: &str) -> Purpose {
        Purpose::Gateway { artifact: name.into() }
    }

    fn rules() -> Rules {
        let endpoint =
            Gateway { artifact: "driver".into(), tls: false, host: "127.0.0.1".into(), port: 8080 };
        let list = vec![
            rule(Some(Scheme::Http), "web.example", None),
            rule(Some(Scheme::Https), "tls.example", Some(8443)),
            rule(None, "bare.example", None),
            rule(None, "port.example", Some(80)),
            rule(None, "::1", Some(9)),
        ];
        Rules::new(&EgressConfigure {
            gateways: vec![endpoint],
            allow: vec![("tool".into(), list), ("empty".into(), vec![])],
            card: Some(vec![
                rule(Some(Scheme::Https), "card.example", None),
                rule(None, "both.example", Some(1)),
            ]),
            redeem: Some(vec![
                rule(Some(Scheme::Http), "redeem.example", Some(41234)),
                rule(None, "both.example", Some(2)),
            ]),
            programs: vec![],
            door: None,
            certificates: 0,
        })
    }

    #[test]
    fn a_component_reaches_what_one_entry_of_its_own_list_names() {
        use Scheme::{Http, Https};
        for (artifact, scheme, host, port, allowed) in [
            ("tool", Http, "web.example", 80, true),
            ("tool", Http, "WEB.Example", 80, true),
            ("tool", Http, "web.example.", 80, true),
            ("tool", Http, "web.example..", 80, false),
            ("tool", Http, "web.example", 8080, false),
            ("tool", Https, "web.example", 443, false),
            ("tool", Https, "web.example", 80, false),
            ("tool", Http, "a.web.example", 80, false),
            ("tool", Http, "xweb.example", 80, false),
            ("tool", Http, "web.example.evil", 80, false),
            ("tool", Http, "web.example\0", 80, false),
            ("tool", Http, "web.example:80", 80, false),
            ("tool", Http, "user@web.example", 80, false),
            ("tool", Http, "", 80, false),
            ("tool", Http, ".", 80, false),
            ("tool", Https, "tls.example", 8443, true),
            ("tool", Https, "tls.example", 443, false),
            ("tool", Http, "tls.example", 8443, false),
            ("tool", Http, "bare.example", 1, true),
            ("tool", Https, "bare.example", 443, true),
            ("tool", Http, "port.example", 80, true),
            ("tool", Https, "port.example", 80, true),
            ("tool", Http, "port.example", 81, false),
            ("tool", Http, "0:0::1", 9, true),
            ("tool", Http, "::ffff:127.0.0.1", 9, false),
            ("tool", Http, "127.0.0.1", 8080, false),
            ("empty", Http, "web.example", 80, false),
            ("absent", Http, "web.example", 80, false),
            ("driver", Http, "127.0.0.1", 8080, false),
        ] {
            let decision = rules().decide(&ask(component(artifact), scheme, host, port));
            assert_eq!(decision.is_ok(), allowed, "{artifact} {scheme:?} {host}:{port}");
        }
    }

    #[test]
    fn a_gateway_is_the_operators_endpoint_whatever_was_asked() {
        let endpoint = Destination { tls: false, host: "127.0.0.1".into(), port: 8080 };
        for (scheme, host, port) in [(Scheme::Http, "127.0.0.1", 9), (Scheme::Https, "evil.example", 443)] {
            assert_eq!(rules().decide(&ask(gateway("driver"), scheme, host, port)), Ok(endpoint.clone()));
            assert!(rules().decide(&ask(gateway("tool"), scheme, host, port)).is_err());
        }
    }

    #[test]
    fn cards_and_handles_have_lists_of_their_own() {
        use Scheme::{Http, Https};
        let redeem = || Purpose::Redeem { handle: "mh1.a.b".into(), audience: "a@h:1".into() };
        for (purpose, scheme, host, port, allowed) in [
            (Purpose::Card, Https, "card.example", 443, true),
            (Purpose::Card, Http, "card.example", 443, false),
            (Purpose::Card, Http, "card.example", 80, false),
            (Purpose::Card, Https, "CARD.example.", 443, true),
            (Purpose::Card, Https, "card.example", 8443, false),
            (Purpose::Card, Http, "both.example", 1, true),
            (Purpose::Card, Http, "both.example", 2, false),
            (Purpose::Card, Http, "redeem.example", 41234, false),
            (Purpose::Card, Http, "bare.example", 1, false),
            (redeem(), Http, "redeem.example", 41234, true),
            (redeem(), Https, "redeem.example", 41234, false),
            (redeem(), Http, "redeem.example", 80, false),
            (redeem(), Https, "both.example", 2, true),
            (redeem(), Https, "both.example", 1, false),
            (redeem(), Https, "card.example", 443, false),
            (component("tool"), Http, "redeem.example", 41234, false),
        ] {
            let asked = ask(purpose, scheme, host, port);
            let decision = rules().decide(&asked);
            let told = format!("{:?} {scheme:?} {host}:{port}", asked.purpose);
            assert_eq!(decision.is_ok(), allowed, "{told}");
            assert!(decision.is_err() || decision.unwrap().tls == (scheme == Https), "{told}");
        }
    }

    #[test]
    fn without_a_list_no_card_is_fetched_and_no_handle_redeemed() {
        let mut rules = rules();
        (rules.card, rules.redeem) = (vec![], vec![]);
        let redeem = Purpose::Redeem { handle: "mh1.a.b".into(), audience: "a@h:1".into() };
        for (purpose, asker) in [(Purpose::Card, Asker::Card), (redeem, Asker::Redeem)] {
            let denied = rules.decide(&ask(purpose, Scheme::Http, "both.example", 1)).unwrap_err();
            assert_eq!(
                denied,
                Denied { asker, destination: "both.example:1".into(), reason: Reason::NotListed }
            );
        }
    }

    #[test]
    fn a_refusal_names_the_destination_in_bounded_words() {
        let denied =
            rules().decide(&ask(component("x"), Scheme::Http, &"é".repeat(40_000), 65535)).unwrap_err();
        assert!(denied.destination.len() <= LONGEST_REPORT && denied.destination.ends_with(":65535"));
        let denied = rules().decide(&ask(component("x"), Scheme::Http, "h", 1)).unwrap_err();
        let (asker, reason) = (Asker::Artifact("x".into()), Reason::NotListed);
        assert_eq!(denied, Denied { asker, destination: "h:1".into(), reason });
    }

    #[test]
    fn ports_are_bounded_unless_an_entry_names_none() {
        assert_eq!(rules().ports([]), None);
        let mut bounded = rules();
        bounded.allow.get_mut("tool").unwrap().retain(|rule| rule.host != "bare.example");
        assert_eq!(bounded.ports([]), Some(vec![1, 2, 9, 53, 80, 443, 8080, 8443, 41234]));
        assert_eq!(bounded.ports([7, 80]), Some(vec![1, 2, 7, 9, 53, 80, 443, 8080, 8443, 41234]));
        bounded.redeem.push(rule(None, "any.example", None));
        assert_eq!(bounded.ports([]), None);
        let mut literal = EgressConfigure {
            gateways: vec![],
            allow: vec![],
            card: None,
            redeem: None,
            programs: vec![],
            door: None,
            certificates: 0,
        };
        assert_eq!(Rules::new(&literal).ports([]), Some(vec![]));
        literal.allow = vec![("tool".into(), vec![rule(None, "127.0.0.1", Some(9))])];
        assert_eq!(Rules::new(&literal).ports([]), Some(vec![9]), "no name, no name server");
    }
}
