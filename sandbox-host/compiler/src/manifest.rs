//! What an artifact's own manifest says: role, description, input schema. Unknown keys are ignored.

use ipc::edge::host_broker::{HookEvent, Role};
use serde_json::Value;

use crate::{Refusal, one_line, yaml};

/// The most bytes a bundled manifest may have.
const MAX_MANIFEST: usize = 1024 * 1024;
/// The longest description that is passed on, in bytes.
const MAX_DESCRIPTION: usize = 1000;
/// The longest input schema, as compact JSON.
const MAX_SCHEMA: usize = 16 * 1024;

/// The facts of a bundled manifest.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Bundled {
    pub(crate) description: Option<String>,
    pub(crate) input_schema: Option<String>,
    /// What a hook decides on.
    pub(crate) hook: Option<HookEvent>,
}

/// Reads a bundled manifest and compares its role with the one the operator gave.
///
/// # Errors
/// `E-MAN-001` for a missing field, `E-MAN-002` for bytes that are no YAML, `E-MAN-003` for a wrong type or another role.
pub(crate) fn read(bytes: &[u8], role: Role) -> Result<Bundled, Refusal> {
    let text = std::str::from_utf8(bytes).ok().filter(|_| bytes.len() <= MAX_MANIFEST).ok_or_else(|| {
        Refusal::new("E-MAN-002", "the bundled murmur.yaml is not UTF-8 text of at most 1 MiB")
    })?;
    let document = yaml::parse(text)
        .map_err(|error| Refusal::new("E-MAN-002", &format!("the bundled murmur.yaml: {error}")))?;
    if !document.is_object() {
        return Err(Refusal::new("E-MAN-001", "the bundled murmur.yaml is not a mapping"));
    }
    string(&document, "name")?.ok_or_else(|| missing("name"))?;
    string(&document, "version")?.ok_or_else(|| missing("version"))?;
    let runtime = string(&document, "runtime")?.ok_or_else(|| missing("runtime"))?;
    let expected = match role {
        Role::Tool => "tool",
        Role::Driver => "driver",
        Role::Hook => "hook",
    };
    if runtime != expected {
        let reason =
            format!("the artifact is a {runtime} by its own murmur.yaml and a {expected} by the capsule's");
        return Err(Refusal::new("E-MAN-003", &reason));
    }
    if string(&document, "implementation")?.is_some_and(|word| word == "native") {
        return Err(Refusal::new("E-MAN-003", "`implementation: native` is not supported yet"));
    }
    let description = string(&document, "description")?
        .map(|text| one_line(text, MAX_DESCRIPTION))
        .filter(|text| !text.is_empty());
    let input_schema = document.get("input_schema").or_else(|| document.get("input")).and_then(schema);
    if input_schema.as_ref().is_some_and(|schema| schema.len() > MAX_SCHEMA) {
        return Err(Refusal::new("E-MAN-003", "`input_schema` has more than 16 KiB as compact JSON"));
    }
    let hook = match role {
        Role::Hook => Some(contract(&document)?),
        Role::Tool | Role::Driver => None,
    };
    Ok(Bundled { description, input_schema, hook })
}

/// The words a hook's contract may hold, and the policies each binding takes besides `none` (`spec: Hook contract`).
const BINDINGS: [(&str, &[&str]); 9] = [
    ("on-stage", &["write-manifests"]),
    ("on-session-start", &[]),
    ("on-task-start", &["seed-context"]),
    ("on-inference", &[]),
    ("on-tool-call", &["deny"]),
    ("on-shell", &["deny"]),
    ("on-compaction", &["replace-context"]),
    ("on-task-end", &["reopen-task"]),
    ("on-session-end", &[]),
];
const POLICIES: [&str; 6] =
    ["none", "write-manifests", "replace-context", "reopen-task", "seed-context", "deny"];

/// A hook's contract: it must be one there is, and one that is served. Only decisions are; a hook that would be loaded and
/// never asked is refused.
fn contract(document: &Value) -> Result<HookEvent, Refusal> {
    let refuse = |reason: String| Refusal::new("E-MAN-003", &format!("hook contract: {reason}"));
    let binding = string(document, "binding")?;
    let mode = string(document, "execution_mode")?.unwrap_or("blocking");
    let policy = string(document, "commit_policy")?.unwrap_or("none");
    if !matches!(mode, "blocking" | "async") {
        return Err(refuse(format!("`execution_mode: {mode}` is neither blocking nor async")));
    }
    if !POLICIES.contains(&policy) {
        return Err(refuse(format!("`commit_policy: {policy}` is none of {}", POLICIES.join(", "))));
    }
    let fits: &[&str] = match binding {
        Some(binding) => BINDINGS
            .iter()
            .find_map(|(name, policies)| (*name == binding).then_some(*policies))
            .ok_or_else(|| refuse(format!("`binding: {binding}` is no event")))?,
        None if policy == "deny" => return Err(refuse("`commit_policy: deny` needs a `binding`".into())),
        None => &POLICIES,
    };
    let named = binding.unwrap_or("(every event)");
    if policy != "none" && !fits.contains(&policy) {
        return Err(refuse(format!("`binding: {named}` does not take `commit_policy: {policy}`")));
    }
    if mode == "async" && (policy != "none" || binding == Some("on-stage")) {
        return Err(refuse(format!(
            "`execution_mode: async` does not go with `binding: {named}` and `commit_policy: {policy}`"
        )));
    }
    match (binding, policy) {
        (Some("on-shell"), "deny") => Ok(HookEvent::OnShell),
        (Some("on-tool-call"), "deny") => Ok(HookEvent::OnToolCall),
        _ => Err(refuse(format!("`binding: {named}` with `commit_policy: {policy}` is not supported yet"))),
    }
}

fn missing(key: &str) -> Refusal {
    Refusal::new("E-MAN-001", &format!("the bundled murmur.yaml lacks `{key}`"))
}

fn string<'a>(document: &'a Value, key: &str) -> Result<Option<&'a str>, Refusal> {
    match document.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => {
            Err(Refusal::new("E-MAN-003", &format!("`{key}` of the bundled murmur.yaml is not a string")))
        }
    }
}

/// A schema as compact JSON: written as a mapping or as JSON text in a string. A malformed one is as good as none, the
/// call is then unchecked (`spec: input_schema`, W-RUN-004).
fn schema(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => {
            serde_json::from_str::<Value>(text).ok().filter(Value::is_object).map(|schema| schema.to_string())
        }
        Value::Object(_) => Some(value.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "name: x\nversion: \"1\"\nruntime: tool\n";

    #[test]
    fn facts_are_taken_and_made_fit() {
        let cases: [(&str, Option<&str>, Option<&str>); 8] = [
            ("", None, None),
            ("description: \"a\\nb\\u001b[0m\"", Some("a b [0m"), None),
            ("description: ' '", None, None),
            (
                "input_schema: {type: object, required: [a]}",
                None,
                Some(r#"{"type":"object","required":["a"]}"#),
            ),
            (r#"input_schema: '{ "type" : "object" }'"#, None, Some(r#"{"type":"object"}"#)),
            ("input: {type: object}", None, Some(r#"{"type":"object"}"#)),
            ("input_schema: '{'", None, None),
            ("unknown: [1]\ntags: 7", None, None),
        ];
        for (more, description, schema) in cases {
            let bundled = read(format!("{HEAD}{more}").as_bytes(), Role::Tool).unwrap();
            assert_eq!(
                (bundled.description.as_deref(), bundled.input_schema.as_deref()),
                (description, schema),
                "{more}"
            );
        }
    }

    #[test]
    fn a_hooks_contract_is_one_there_is_and_one_that_is_served() {
        let hook = |more: &str| {
            let text = format!("name: x\nversion: \"1\"\nruntime: hook\n{more}");
            read(text.as_bytes(), Role::Hook).map(|bundled| bundled.hook)
        };
        let deny = |event: &str| hook(&format!("binding: {event}\ncommit_policy: deny"));
        assert_eq!(deny("on-shell").unwrap(), Some(HookEvent::OnShell));
        assert_eq!(deny("on-tool-call").unwrap(), Some(HookEvent::OnToolCall));
        assert_eq!(
            hook("binding: on-shell\ncommit_policy: deny\nexecution_mode: blocking").unwrap(),
            Some(HookEvent::OnShell)
        );
        for (more, words) in [
            ("", "not supported yet"),
            ("binding: on-shell", "not supported yet"),
            ("binding: on-inference", "not supported yet"),
            ("binding: on-task-end\ncommit_policy: reopen-task", "not supported yet"),
            ("binding: on-compaction\ncommit_policy: replace-context", "not supported yet"),
            ("binding: on-inference\nexecution_mode: async", "not supported yet"),
            ("commit_policy: deny", "needs a `binding`"),
            ("binding: on-inference\ncommit_policy: deny", "does not take"),
            ("binding: on-shell\ncommit_policy: reopen-task", "does not take"),
            ("binding: on-shell\ncommit_policy: deny\nexecution_mode: async", "does not go with"),
            ("binding: on-stage\nexecution_mode: async", "does not go with"),
            ("binding: on-everything", "is no event"),
            ("binding: on-shell\ncommit_policy: allow", "is none of"),
            ("binding: on-shell\nexecution_mode: lazy", "neither"),
            ("binding: [on-shell]", "is not a string"),
        ] {
            let refusal = hook(more).unwrap_err();
            assert_eq!(refusal.code, "E-MAN-003", "{more}");
            assert!(refusal.reason.contains(words), "{more}: {refusal}");
        }
    }

    #[test]
    fn what_is_no_manifest_of_this_role_is_refused_by_code() {
        let long = format!("{HEAD}input_schema: {{a: \"{}\"}}", "x".repeat(MAX_SCHEMA));
        let cases = [
            ("", "E-MAN-001"),
            ("[1]", "E-MAN-001"),
            ("name: x\nversion: \"1\"", "E-MAN-001"),
            ("a: [", "E-MAN-002"),
            ("a: &a [*a]", "E-MAN-002"),
            ("name: 1\nversion: \"1\"\nruntime: tool", "E-MAN-003"),
            ("name: x\nversion: \"1\"\nruntime: driver", "E-MAN-003"),
            ("name: x\nversion: \"1\"\nruntime: tool\nimplementation: native", "E-MAN-003"),
            (&long, "E-MAN-003"),
        ];
        for (text, code) in cases {
            assert_eq!(read(text.as_bytes(), Role::Tool).unwrap_err().code, code, "{:.60}", text);
        }
        assert_eq!(read(&[0xff], Role::Tool).unwrap_err().code, "E-MAN-002");
    }
}
