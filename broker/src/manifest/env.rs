//! `env.allow`: which host variables a component may see, judged by their names alone.

use super::block::{Context, Map};
use super::error::{ManifestError, shown};
use super::model::AfterTask;

/// Names never handed on, whatever a manifest allows. A `*` stands for any text at that end.
const BACKSTOP: &[&str] = &[
    "ANTHROPIC_API_KEY",
    "OPENAI_API_KEY",
    "GOOGLE_API_KEY",
    "HUGGING_FACE_HUB_TOKEN",
    "AWS_*",
    "GITHUB_TOKEN",
    "GH_TOKEN",
    "DOCKER_*",
    "KUBECONFIG",
    "NPM_TOKEN",
    "PYPI_TOKEN",
    "CARGO_REGISTRY_TOKEN",
    "*_API_KEY",
];

const CREDENTIAL_PARTS: &[&str] = &["API_KEY", "TOKEN", "SECRET", "PASSWORD"];
const CREDENTIAL_WORDS: &[&str] = &[
    "KEY",
    "KEYS",
    "PASS",
    "PASSWD",
    "PASSPHRASE",
    "CREDENTIAL",
    "CREDENTIALS",
    "CREDS",
    "DSN",
    "AUTH",
    "PAT",
    "COOKIE",
];

/// Whether `name` has the shape `pattern` (exact, `X*`, `*X` or `*X*`).
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(_), Some(_)) => name.contains(pattern.trim_matches('*')),
        (Some(end), None) => name.ends_with(end),
        (None, Some(start)) => name.starts_with(start),
        (None, None) => name == pattern,
    }
}

/// Reads a list of patterns: an exact name, `X*`, `*X` or `*X*`.
pub(super) fn patterns(block: &Map<'_>, key: &str) -> Result<Vec<String>, ManifestError> {
    let Some(list) = block.get(key) else { return Ok(Vec::new()) };
    let mut patterns = Vec::new();
    for field in list.list()? {
        let pattern = field.text()?;
        let inner = pattern.strip_prefix('*').unwrap_or(&pattern);
        let inner = inner.strip_suffix('*').unwrap_or(inner);
        let odd = |c: char| c == '*' || c == '=' || c.is_control() || c.is_whitespace();
        if inner.is_empty() || inner.chars().any(odd) {
            return Err(field
                .error(format!("{} is no pattern of variable names", shown(&pattern)))
                .hint("write a name, X*, *X or *X*"));
        }
        if !patterns.contains(&pattern) {
            patterns.push(pattern);
        }
    }
    Ok(patterns)
}

/// Whether a name looks like a credential that reaches neither component nor program.
pub(crate) fn is_stripped(name: &str, strip_env: &[String]) -> bool {
    BACKSTOP.iter().copied().chain(strip_env.iter().map(String::as_str)).any(|pattern| matches(pattern, name))
}

/// Reads `env.allow`; runtime-owned names are dropped with a warning, stripped ones refuse (`E-CAP-016`).
pub(super) fn read_allow(
    ctx: &mut Context,
    env: &Map<'_>,
    strip_env: &[String],
    after_task: AfterTask,
) -> Result<Vec<String>, ManifestError> {
    let Some(allow) = env.get("allow") else { return Ok(Vec::new()) };
    let mut names: Vec<String> = Vec::new();
    let mut offenders = Vec::new();
    for field in allow.list()? {
        let name = field.text()?;
        if name.is_empty() || name.contains('=') || name.chars().any(|c| c.is_control() || c.is_whitespace())
        {
            return Err(field.error("is not the name of an environment variable"));
        }
        let strips = BACKSTOP.iter().copied().chain(strip_env.iter().map(String::as_str));
        if let Some(pattern) = strips.into_iter().find(|pattern| matches(pattern, &name)) {
            offenders.push(format!("{} (pattern {})", shown(&name), shown(pattern)));
        } else if name.starts_with("MURMUR_") {
            ctx.warn(
                None,
                format!("{}: {} belongs to the runtime; the host's is not used", field.path, shown(&name)),
            );
        } else if !names.contains(&name) {
            names.push(name);
        }
    }
    if !offenders.is_empty() {
        let reason = format!("names a credential that never reaches a component: {}", offenders.join(", "));
        return Err(allow.coded("E-CAP-016", reason).hint("give the credential to a gateway instead"));
    }
    for name in names.iter().filter(|name| looks_like_credential(name)) {
        let long = match after_task {
            AfterTask::Exit => "",
            AfterTask::Sleep => " for as long as the capsule waits for tasks",
        };
        let text =
            format!("{}: {} looks like a credential; components can read it{long}", allow.path, shown(name));
        ctx.warn("W-SEC-024", text);
    }
    Ok(names)
}

fn looks_like_credential(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    CREDENTIAL_PARTS.iter().any(|part| name.contains(part))
        || name.split(|c: char| !c.is_alphanumeric()).any(|word| CREDENTIAL_WORDS.contains(&word))
}
