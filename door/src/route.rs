//! Which answer does a target ask for? Decided on the bytes as sent; only what follows `/resources/files/` is ever decoded,
//! later and once: decoding before routing would give one route two spellings.

/// Where a request goes. The one route table: whatever is recorded, refused or looked up starts from this value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route<'t> {
    /// Below `/resources/`, any method.
    Resource(Resource<'t>),
    /// `GET /.well-known/agent-card.json`.
    Card,
    /// `GET /healthz`.
    Health,
    /// `POST /`.
    Agent,
    /// Anything else.
    Nothing,
}

/// A target below `/resources/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource<'t> {
    /// `/resources/files`.
    Listing,
    /// `/resources/files/<relpath>`; the relative path is still encoded.
    File(&'t str),
    /// `/resources/peer`, `/resources/peer/<handle>`: the handle is a secret, never logged and never decoded.
    Peer(&'t str),
    /// Anything else; what follows `/resources/`, still encoded.
    Unknown(&'t str),
}

/// Routes a request.
#[must_use]
pub fn route<'t>(method: &str, target: &'t str) -> Route<'t> {
    let Some(path) = path(target) else { return Route::Nothing };
    if let Some(rest) = path.strip_prefix("/resources/") {
        return Route::Resource(resource(rest));
    }
    match (method, path) {
        ("GET", "/.well-known/agent-card.json") => Route::Card,
        ("GET", "/healthz") => Route::Health,
        ("POST", "/") => Route::Agent,
        _ => Route::Nothing,
    }
}

/// The path of a target, encoded, without the query. Absolute-form is accepted and its authority ignored (RFC 9112,
/// 3.2.2); `*` and authority-form have no path here.
fn path(target: &str) -> Option<&str> {
    let target = target.split_once('?').map_or(target, |(before, _query)| before);
    if target.starts_with('/') {
        return Some(target);
    }
    let (scheme, rest) = target.split_once("://")?;
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return None;
    }
    Some(rest.find('/').and_then(|slash| rest.get(slash..)).unwrap_or("/"))
}

/// Prefixes end at a whole segment: `files../x` and `filesX` are no part of `files`.
fn resource(rest: &str) -> Resource<'_> {
    match rest.split_once('/') {
        None if rest == "files" => Resource::Listing,
        None if rest == "peer" => Resource::Peer(""),
        Some(("files", path)) => Resource::File(path),
        Some(("peer", handle)) => Resource::Peer(handle),
        _ => Resource::Unknown(rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_below_the_prefix_are_routed_on_whole_raw_segments() {
        use Resource::{File, Listing, Peer, Unknown};
        let cases = [
            ("/resources/files", Listing),
            ("/resources/files?path=report.md", Listing),
            ("/resources/files/", File("")),
            ("/resources/files/report.md", File("report.md")),
            ("/resources/files/report.md?", File("report.md")),
            ("/resources/files/report.md?a=/../..?b", File("report.md")),
            ("/resources/files/report.md%3Fx", File("report.md%3Fx")),
            ("/resources/files/report.md#top", File("report.md#top")),
            ("/resources/files//etc/passwd", File("/etc/passwd")),
            ("/resources/files/../x", File("../x")),
            ("http://any.host:1/resources/files/report.md", File("report.md")),
            ("HTTPS://h/resources/files", Listing),
            ("/resources/", Unknown("")),
            ("/resources//files", Unknown("/files")),
            ("/resources/./files", Unknown("./files")),
            ("/resources/unknown", Unknown("unknown")),
            ("/resources/FILES", Unknown("FILES")),
            ("/resources/%66iles", Unknown("%66iles")),
            ("/resources/files%2Freport.md", Unknown("files%2Freport.md")),
            ("/resources/filesX", Unknown("filesX")),
            ("/resources/files../secret", Unknown("files../secret")),
            ("/resources/peer", Peer("")),
            ("/resources/peer/", Peer("")),
            ("/resources/peer/mh1.a.b", Peer("mh1.a.b")),
            ("/resources/peer/mh1.a.b?x", Peer("mh1.a.b")),
            ("/resources/peer/x/y", Peer("x/y")),
            ("/resources/peer//T", Peer("/T")),
            ("/resources/peers", Unknown("peers")),
        ];
        for (target, expected) in cases {
            for method in ["GET", "HEAD", "PUT", "get", "CONNECT"] {
                assert_eq!(route(method, target), Route::Resource(expected), "{method} {target}");
            }
        }
    }

    #[test]
    fn nothing_else_reaches_the_plane() {
        for target in [
            "/resources",
            "/Resources/files",
            "//resources/files",
            "/x/../resources/files",
            "/%72esources/files",
            "/resources%2Ffiles",
            "http://h/../resources/files",
            "http://h//resources/files",
            "ftp://h/resources/files",
            "*",
            "h:443",
            "resources/files",
            "//evil.example/..%2f",
        ] {
            assert_eq!(route("GET", target), Route::Nothing, "{target}");
        }
    }

    #[test]
    fn the_listeners_own_routes_need_their_method() {
        assert_eq!(route("GET", "/.well-known/agent-card.json"), Route::Card);
        assert_eq!(route("GET", "http://h/.well-known/agent-card.json?x"), Route::Card);
        assert_eq!(route("GET", "/healthz"), Route::Health);
        assert_eq!(route("POST", "/"), Route::Agent);
        assert_eq!(route("POST", "http://h"), Route::Agent);
        assert_eq!(route("POST", "http://h?q=/x"), Route::Agent);
        for (method, target) in [
            ("HEAD", "/.well-known/agent-card.json"),
            ("GET", "/.well-known/agent.json"),
            ("POST", "/healthz"),
            ("GET", "/"),
            ("post", "/"),
            ("POST", "//"),
        ] {
            assert_eq!(route(method, target), Route::Nothing, "{method} {target}");
        }
    }
}
