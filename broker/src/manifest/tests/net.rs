//! Hosts, rules and endpoints, each form accepted or refused.

use super::*;

#[test]
fn allow_entries_are_read_exactly() {
    let cases = [
        ("example.com", "example.com"),
        (" Example.COM ", "example.com"),
        ("localhost:41234", "localhost:41234"),
        ("host:80", "host:80"),
        ("http://h", "http://h:80"),
        ("https://h", "https://h:443"),
        ("HTTPS://H:8443/", "https://h:8443"),
        ("127.0.0.1", "127.0.0.1"),
        ("[::1]", "[::1]"),
        ("[::1]:8080", "[::1]:8080"),
        ("https://[2001:DB8::1]", "https://[2001:db8::1]:443"),
        ("my_service-1.internal", "my_service-1.internal"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
    ];
    for (entry, expected) in cases {
        assert_eq!(NetRule::parse(entry).unwrap().to_string(), expected, "{entry}");
    }
}

#[test]
fn doubtful_allow_entries_are_refused() {
    let cases = "https://h/p|http://h?q|http://h#f|h/|h/p|h?q|h#f|ftp://h|://h|http://|https:///|*|*.h|h*|10.0.0.0/8|\
                 user@h|https://user:pw@h|h:|h:0|h:65536|h:+1|h:1x|h:1:2|::1|[::1|[::1]x|[]|[fe80::1%eth0]|1.2.3|\
                 0x7f.1|0x7f000001|2130706433|127.1|0177.0.0.1|256.1.1.1|h.|.h|a..b|-h|h-|büro.example|a b|a\\b|${H}";
    for entry in cases.split('|').map(str::trim) {
        assert!(NetRule::parse(entry).is_err(), "{entry}: {:?}", NetRule::parse(entry));
    }
    for entry in ["", "  ", "h\ni", "a\tb", "a\0", &"x".repeat(64), &"x.".repeat(130)] {
        assert!(NetRule::parse(entry).is_err(), "{entry:?}");
    }
}

#[test]
fn a_password_is_called_one_and_not_repeated() {
    let reason = NetRule::parse("https://u:secret@h").unwrap_err();
    assert!(reason.contains("password") && !reason.contains("secret"));
}

#[test]
fn a_rule_covers_what_it_admits_and_nothing_else() {
    let cases = [
        ("h", "https://h", true),
        ("h", "h:80", true),
        ("h:80", "http://h", true),
        ("h:80", "h", false),
        ("h:80", "https://h", false),
        ("https://h", "h", false),
        ("https://h", "h:443", false),
        ("https://h", "http://h", false),
        ("https://h", "https://h:443/", true),
        ("https://h", "https://h:8443", false),
        ("h", "sub.h", false),
        ("localhost", "127.0.0.1", false),
        ("[::1]", "[0:0:0:0:0:0:0:1]:5", true),
    ];
    for (ceiling, narrower, expected) in cases {
        let (ceiling, narrower) = (NetRule::parse(ceiling).unwrap(), NetRule::parse(narrower).unwrap());
        assert_eq!(ceiling.covers(&narrower), expected, "{ceiling} covers {narrower}");
    }
}

#[test]
fn endpoints_are_https_or_this_machine() {
    let accepted = [
        ("https://api.example.com", "https://api.example.com:443"),
        ("https://api.example.com/v1/", "https://api.example.com:443/v1"),
        ("https://h:8443/a/b", "https://h:8443/a/b"),
        ("http://localhost", "http://localhost:80"),
        ("http://LocalHost:8089/v1", "http://localhost:8089/v1"),
        ("http://127.0.0.1:8089", "http://127.0.0.1:8089"),
        ("http://127.9.9.9", "http://127.9.9.9:80"),
        ("http://[::1]:1", "http://[::1]:1"),
    ];
    for (url, expected) in accepted {
        assert_eq!(Endpoint::parse(url).unwrap().to_string(), expected, "{url}");
    }
    let refused = "http://example.com|http://0.0.0.0|http://10.0.0.1|http://192.168.1.1|http://[::]|\
                   http://[::ffff:127.0.0.1]|http://localhost.example.com|http://127.0.0.1.example.com|http://127.1|\
                   http://2130706433|https://u@h|https://u:p@h|https://h?q|https://h/#f|https://h/${X}|https://${H}|\
                   https://|https:///p|h|h:443|ftp://h|file:///etc|https://h/a b|https://h/../x|https://h/./x|\
                   https://h\\@e|https://h:0|https://h:99999|https:/h|";
    for url in refused.split('|').map(str::trim) {
        assert!(Endpoint::parse(url).is_err(), "{url}: {:?}", Endpoint::parse(url));
    }
}
