//! What an artifact's own manifest says: role, description, input schema. Unknown keys are ignored.

use ipc::edge::host_broker::Role;
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
    Ok(Bundled { description, input_schema })
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
