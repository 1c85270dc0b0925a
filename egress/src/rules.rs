//! Where a request may go: the lists of the operator's manifest, per artifact, and nothing else.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipc::edge::control::{EgressConfigure, Gateway, NetworkRule, Scheme};
use ipc::edge::host_egress::{HttpRequest, Purpose};

/// The longest destination that is reported, in bytes.
const LONGEST_REPORT: usize = 512;

/// What every artifact may reach.
#[derive(Debug)]
pub(crate) struct Rules {
    gateways: BTreeMap<String, Gateway>,
    allow: BTreeMap<String, Vec<NetworkRule>>,
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Denied {
    /// On whose authority it was asked for.
    pub(crate) artifact: String,
    /// `host:port` as asked, cut to 512 bytes.
    pub(crate) destination: String,
}

impl Rules {
    pub(crate) fn new(configure: EgressConfigure) -> Self {
        let gateways =
            configure.gateways.into_iter().map(|gateway| (gateway.artifact.clone(), gateway)).collect();
        Rules { gateways, allow: configure.allow.into_iter().collect() }
    }

    /// Where a request goes: for a gateway the operator's endpoint whatever was asked, for a component what it asked if one
    /// entry of its list matches. An artifact without a list reaches nothing.
    ///
    /// # Errors
    /// [`Denied`].
    pub(crate) fn decide(&self, request: &HttpRequest) -> Result<Destination, Denied> {
        match &request.purpose {
            Purpose::Gateway { artifact } => match self.gateways.get(artifact) {
                Some(gateway) => {
                    Ok(Destination { tls: gateway.tls, host: gateway.host.clone(), port: gateway.port })
                }
                None => Err(Denied::of(request)),
            },
            Purpose::Component { artifact } => {
                let list = self.allow.get(artifact).map_or(&[][..], Vec::as_slice);
                match list.iter().find(|rule| matches(rule, request)) {
                    Some(rule) => Ok(Destination {
                        tls: request.scheme == Scheme::Https,
                        host: rule.host.clone(),
                        port: request.port,
                    }),
                    None => Err(Denied::of(request)),
                }
            }
        }
    }

    /// Every port that may be dialled, or `None` if an entry names no port and so allows all.
    pub(crate) fn ports(&self) -> Option<Vec<u16>> {
        let gateways = self.gateways.values().map(|gateway| Some(gateway.port));
        let rules = self.allow.values().flatten().map(pinned_port);
        let mut ports: Vec<u16> = gateways.chain(rules).collect::<Option<_>>()?;
        ports.sort_unstable();
        ports.dedup();
        Some(ports)
    }
}

/// A rule that names a scheme pins its default port.
fn pinned_port(rule: &NetworkRule) -> Option<u16> {
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
    pub(crate) fn of(request: &HttpRequest) -> Self {
        let (Purpose::Component { artifact } | Purpose::Gateway { artifact }) = &request.purpose;
        let host = cut(&request.host, LONGEST_REPORT - ":65535".len());
        let destination = format!("{host}:{}", request.port);
        Denied { artifact: cut(artifact, LONGEST_REPORT).to_owned(), destination }
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
        Rules::new(EgressConfigure {
            gateways: vec![endpoint],
            allow: vec![("tool".into(), list), ("empty".into(), vec![])],
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
    fn a_refusal_names_the_destination_in_bounded_words() {
        let denied =
            rules().decide(&ask(component("x"), Scheme::Http, &"é".repeat(40_000), 65535)).unwrap_err();
        assert!(denied.destination.len() <= LONGEST_REPORT && denied.destination.ends_with(":65535"));
        let denied = rules().decide(&ask(component("x"), Scheme::Http, "h", 1)).unwrap_err();
        assert_eq!(denied, Denied { artifact: "x".into(), destination: "h:1".into() });
    }

    #[test]
    fn ports_are_bounded_unless_an_entry_names_none() {
        assert_eq!(rules().ports(), None);
        let mut bounded = rules();
        bounded.allow.get_mut("tool").unwrap().retain(|rule| rule.host != "bare.example");
        assert_eq!(bounded.ports(), Some(vec![9, 80, 8080, 8443]));
        assert_eq!(Rules::new(EgressConfigure { gateways: vec![], allow: vec![] }).ports(), Some(vec![]));
    }
}
