//! The two skills of a handoff between capsules: "Hand FILE to PEER" and "Fetch HANDLE from PEER".

use serde_json::{Value, json};

use crate::shell::{Outcome, quote};

/// The tools of the two sides.
pub(crate) const SHARE: &str = "share-file";
pub(crate) const FETCH: &str = "fetch-peer-file";

/// One side of a handoff, as a task asks for it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Handoff {
    /// "Hand FILE to PEER".
    Hand { path: String, peer: String },
    /// "Fetch HANDLE from PEER".
    Fetch { handle: String, peer: String },
}

/// Finds out whether a task asks for a handoff. Punctuation at the end belongs to the sentence.
pub(crate) fn asked(task: &str) -> Option<Handoff> {
    let mut words = task.split_whitespace();
    let (verb, what, between, peer) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let what = what.trim_matches(['"', '\'', '`']).to_owned();
    let peer = peer.trim_end_matches(['.', ',', ';', '!', '?', ')', '"', '\'']).to_owned();
    if verb.eq_ignore_ascii_case("hand") && between == "to" {
        Some(Handoff::Hand { path: what, peer })
    } else if verb.eq_ignore_ascii_case("fetch") && between == "from" {
        Some(Handoff::Fetch { handle: what, peer })
    } else {
        None
    }
}

/// The first call of a side: tool, purpose, input.
pub(crate) fn first_call(handoff: &Handoff) -> (&'static str, &'static str, Value) {
    match handoff {
        Handoff::Hand { path, peer } => {
            (SHARE, "I ask for a handle that only this peer can use.", json!({"path": path, "peer": peer}))
        }
        Handoff::Fetch { handle, peer } => {
            (FETCH, "I fetch the file the handle is for.", json!({"peer": peer, "handle": handle}))
        }
    }
}

/// What is said of a handle that was minted; `None` if the result is none.
pub(crate) fn minted(result: &str) -> Option<String> {
    let result: Value = serde_json::from_str(result).ok()?;
    let text = |key: &str| result.get(key)?.as_str();
    Some(format!("For {}: {}", text("audience")?, text("handle")?))
}

/// The path of a file that was fetched, and what to say of it; `None` if the result is none.
pub(crate) fn fetched(result: &str) -> Option<(String, u64)> {
    let result: Value = serde_json::from_str(result).ok()?;
    Some((result.get("path")?.as_str()?.to_owned(), result.get("bytes")?.as_u64()?))
}

/// The command that hashes the fetched file. The runtime chose the name, of harmless characters; it is quoted all the same.
pub(crate) fn hash_command(path: &str) -> String {
    format!("sha256sum -- {}", quote(path))
}

/// The hash in the output of that command.
pub(crate) fn hash<'a>(outcome: &Outcome<'a>) -> Option<&'a str> {
    let line = outcome.lines.iter().find(|line| !line.is_empty())?;
    let hash = line.split_whitespace().next()?;
    (hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handoff_is_asked_for_in_four_words() {
        let hand = |path: &str, peer: &str| Some(Handoff::Hand { path: path.into(), peer: peer.into() });
        let fetch = |handle: &str, peer: &str| Some(Handoff::Fetch { handle: handle.into(), peer: peer.into() });
        for (task, expected) in [
            ("Hand report.md to localhost:41234", hand("report.md", "localhost:41234")),
            ("hand \"report.md\" to https://h:1.", hand("report.md", "https://h:1")),
            ("Fetch mh1.a.b from [::1]:9!", fetch("mh1.a.b", "[::1]:9")),
            ("Hand report.md over to h:1", None),
            ("Report on inputs/", None),
            ("Fetch mh1.a.b", None),
            ("", None),
        ] {
            assert_eq!(asked(task), expected, "{task}");
        }
    }

    #[test]
    fn results_are_read_or_not_understood() {
        let share = r#"{"handle":"mh1.a.b","handle_id":"x","expires_at_ms":1,"audience":"r@h:1"}"#;
        assert_eq!(minted(share).as_deref(), Some("For r@h:1: mh1.a.b"));
        let fetch = r#"{"path":"peer-in/x-report.md","bytes":812,"sha256":"00","peer":"h:1"}"#;
        assert_eq!(fetched(fetch), Some(("peer-in/x-report.md".to_owned(), 812)));
        for other in ["", "{}", "[]", "no"] {
            assert_eq!((minted(other), fetched(other)), (None, None));
        }
    }
}
