//! Which variables a program gets: the session's, then what a request adds and may add.

use std::collections::BTreeSet;
use std::ffi::OsString;

/// Names that no request sets: they belong to the runtime, or make a program run other code than its own
/// (`docs/decisions.md`, `env` of a process request).
const RESERVED: [&str; 8] = ["HOME", "USERPROFILE", "TMPDIR", "TMP", "TEMP", "PATH", "BASH_ENV", "ENV"];

/// Beginnings of names that no request sets, for the same reasons.
const RESERVED_PREFIXES: [&str; 2] = ["LD_", "MURMUR_"];

/// Names that look like credentials and reach no program (the credential backstop).
const CREDENTIALS: [&str; 10] = [
    "ANTHROPIC_API_KEY",
    "OPENAI_API_KEY",
    "GOOGLE_API_KEY",
    "HUGGING_FACE_HUB_TOKEN",
    "GITHUB_TOKEN",
    "GH_TOKEN",
    "KUBECONFIG",
    "NPM_TOKEN",
    "PYPI_TOKEN",
    "CARGO_REGISTRY_TOKEN",
];

/// Whether a name has the shape of a pattern: exact, `X*`, `*X` or `*X*`.
fn matches(pattern: &str, name: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(_), Some(_)) => name.contains(pattern.trim_matches('*')),
        (Some(end), None) => name.ends_with(end),
        (None, Some(start)) => name.starts_with(start),
        (None, None) => name == pattern,
    }
}

/// Whether a request may set this variable; `strip` is the operator's list.
pub(crate) fn may_be_set(name: &str, strip: &[String]) -> bool {
    let reserved = RESERVED.contains(&name) || RESERVED_PREFIXES.iter().any(|start| name.starts_with(start));
    let credential = CREDENTIALS.contains(&name)
        || name.starts_with("AWS_")
        || name.starts_with("DOCKER_")
        || name.ends_with("_API_KEY");
    !reserved && !credential && !strip.iter().any(|pattern| matches(pattern, name))
}

/// The names a request gives and no request may set, sorted: the program runs without them.
pub(crate) fn dropped(request: &[(String, String)], strip: &[String]) -> Vec<String> {
    let names = request.iter().map(|(name, _)| name).filter(|name| !may_be_set(name, strip));
    names.cloned().collect::<BTreeSet<String>>().into_iter().collect()
}

/// The whole environment of one program: the session's variables, with those of the request
/// added or put in their place; of several pairs with one name the last counts.
///
/// # Errors
/// Words for a name that is empty or holds `=` or a NUL byte, and for a value that holds a NUL byte.
pub(crate) fn compose(
    session: &[(String, String)],
    request: &[(String, String)],
    strip: &[String],
) -> Result<Vec<(OsString, OsString)>, &'static str> {
    let mut pairs: Vec<(&str, &str)> = Vec::with_capacity(session.len() + request.len());
    let allowed = request.iter().filter(|(name, _)| may_be_set(name, strip));
    for (name, value) in session.iter().chain(allowed) {
        if name.is_empty() || name.contains('=') {
            return Err("the name of an environment variable is empty or holds `=`");
        }
        if name.contains('\0') || value.contains('\0') {
            return Err("an environment variable holds a NUL byte");
        }
        pairs.retain(|(earlier, _)| earlier != name);
        pairs.push((name, value));
    }
    Ok(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn texts(environment: Vec<(OsString, OsString)>) -> Vec<String> {
        let text = |(name, value): (OsString, OsString)| format!("{}={}", name.display(), value.display());
        environment.into_iter().map(text).collect()
    }

    #[test]
    fn names_of_the_runtime_the_loader_and_credentials_cannot_be_set() {
        for name in [
            "HOME",
            "USERPROFILE",
            "TMPDIR",
            "TMP",
            "TEMP",
            "PATH",
            "LD_PRELOAD",
            "LD_AUDIT",
            "LD_LIBRARY_PATH",
            "LD_",
            "BASH_ENV",
            "ENV",
            "MURMUR_RECORDS_DIR",
            "MURMUR_X",
            "ANTHROPIC_API_KEY",
            "MY_API_KEY",
            "_API_KEY",
            "AWS_SECRET_ACCESS_KEY",
            "DOCKER_HOST",
            "KUBECONFIG",
            "GH_TOKEN",
            "GITHUB_TOKEN",
            "NPM_TOKEN",
        ] {
            assert!(!may_be_set(name, &[]), "{name}");
        }
        for name in ["LANG", "HOMEX", "MY_HOME", "path", "LDX", "TOKEN", "API_KEY_FILE", "AWS", "MURMUR", "X"]
        {
            assert!(may_be_set(name, &[]), "{name}");
        }
        let strip = ["EXACT", "START*", "*END", "*PART*"].map(str::to_owned);
        for name in ["EXACT", "START", "STARTS", "END", "THE_END", "PART", "A_PART_OF"] {
            assert!(!may_be_set(name, &strip), "{name}");
        }
        for name in ["EXACTLY", "INEXACT", "A_START", "ENDS", "PAR"] {
            assert!(may_be_set(name, &strip), "{name}");
        }
    }

    #[test]
    fn a_request_adds_and_replaces_and_the_last_of_one_name_counts() {
        let session = pairs(&[("PATH", "/usr/bin"), ("LANG", "C"), ("TERM", "dumb")]);
        let request = pairs(&[("LANG", "de"), ("PATH", "."), ("A", "1"), ("A", "2=3")]);
        let composed = texts(compose(&session, &request, &[]).unwrap());
        assert_eq!(composed, ["PATH=/usr/bin", "TERM=dumb", "LANG=de", "A=2=3"]);
        assert_eq!(dropped(&request, &[]), ["PATH"]);
    }

    #[test]
    fn odd_names_and_values_are_refused_with_words() {
        for (name, value) in [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "x\0y")] {
            assert!(compose(&[], &pairs(&[(name, value)]), &[]).is_err(), "{name:?}={value:?}");
        }
    }
}
