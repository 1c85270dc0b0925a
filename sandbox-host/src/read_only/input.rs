//! Which paths the input of a component tool says it writes to: by the names of its keys, and by what the tool's schema declares.

use serde_json::{Map, Value};

use super::Write;
use crate::text::clip;

/// Keys that name where something goes, lower-case, with `_`.
const DESTINATIONS: [&str; 9] = [
    "dest",
    "dest_path",
    "destination",
    "destination_path",
    "target_path",
    "output_path",
    "out_path",
    "new_path",
    "to",
];
/// Keys that name a file…
const PATHS: [&str; 5] = ["path", "file_path", "filepath", "filename", "file"];
/// … which is written if one of these stands beside it.
const CONTENTS: [&str; 10] =
    ["content", "contents", "text", "data", "body", "new_str", "new_string", "replacement", "patch", "diff"];
/// Bytes of the name of a place in an input.
const NAMED: usize = 200;
/// Levels of objects that are looked into; the broker bounds the input's size and depth.
const DEPTH: usize = 64;

/// The writes of an input.
pub(super) fn writes(schema: Option<&Value>, input: &Value) -> Vec<Write> {
    let mut found = Vec::new();
    if let Some(declared) = schema.and_then(declared) {
        for location in &declared {
            for path in location.paths(input) {
                let signal = format!("its input `{}`", location.text);
                found.push(Write { path, signal });
            }
        }
    }
    walk(schema, input, "", false, DEPTH, &mut found);
    found
}

fn normal(key: &str) -> String {
    key.to_ascii_lowercase().replace('-', "_")
}

fn format(schema: Option<&Value>) -> Option<&str> {
    schema?.get("format")?.as_str()
}

/// Looks for keys, and for strings the schema calls destinations. Below an opaque place only the latter count.
fn walk(schema: Option<&Value>, value: &Value, at: &str, opaque: bool, depth: usize, found: &mut Vec<Write>) {
    let Some(depth) = depth.checked_sub(1) else { return };
    let structured = value.is_object() || value.is_array();
    let opaque = opaque || (structured && format(schema) == Some("murmur-opaque"));
    match value {
        Value::String(path) if format(schema) == Some("murmur-destination") => {
            found.push(Write { path: path.clone(), signal: format!("its input `{at}`") });
        }
        Value::Array(items) => {
            let schema = schema.and_then(|schema| schema.get("items"));
            for item in items {
                walk(schema, item, at, opaque, depth, found);
            }
        }
        Value::Object(object) => {
            if !opaque {
                keys(object, at, found);
            }
            let properties = schema.and_then(|schema| schema.get("properties"));
            for (key, value) in object {
                let schema = properties.and_then(|properties| properties.get(key));
                walk(schema, value, &below(at, key), opaque, depth, found);
            }
        }
        _ => {}
    }
}

fn below(at: &str, key: &str) -> String {
    let key = clip(key, NAMED);
    if at.is_empty() { key } else { clip(&format!("{at}.{key}"), NAMED) }
}

fn keys(object: &Map<String, Value>, at: &str, found: &mut Vec<Write>) {
    let has_content = object.keys().any(|key| CONTENTS.contains(&normal(key).as_str()));
    for (key, value) in object {
        let name = normal(key);
        let written =
            DESTINATIONS.contains(&name.as_str()) || (has_content && PATHS.contains(&name.as_str()));
        if !written {
            continue;
        }
        let several = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        for path in several.iter().filter_map(Value::as_str) {
            found.push(Write { path: path.to_owned(), signal: format!("its input `{}`", below(at, key)) });
        }
    }
}

/// One entry of `murmur-destinations`.
#[derive(Debug)]
struct Location {
    text: String,
    /// Keys, or `None` for every item of a list.
    steps: Vec<Option<String>>,
    suffix: String,
}

/// The declared locations; one that is none voids the list (`spec: Schema annotations`).
fn declared(schema: &Value) -> Option<Vec<Location>> {
    schema
        .get("murmur-destinations")?
        .as_array()?
        .iter()
        .map(|entry| Location::parse(entry.as_str()?))
        .collect()
}

impl Location {
    /// `{a.b[].c}` or `{a}/suffix`.
    fn parse(text: &str) -> Option<Location> {
        let (location, suffix) = text.strip_prefix('{')?.split_once('}')?;
        if !suffix.is_empty() {
            let plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\\');
            if !suffix.strip_prefix('/')?.split('/').all(plain) {
                return None;
            }
        }
        let mut steps = Vec::new();
        for part in location.split('.') {
            let (key, lists) = match part.find("[]") {
                Some(end) => part.split_at(end),
                None => (part, ""),
            };
            if key.is_empty() || lists.len() % 2 != 0 || !lists.replace("[]", "").is_empty() {
                return None;
            }
            steps.push(Some(key.to_owned()));
            steps.extend(std::iter::repeat_n(None, lists.len() / 2));
        }
        Some(Location { text: text.to_owned(), steps, suffix: suffix.to_owned() })
    }

    fn paths(&self, input: &Value) -> Vec<String> {
        let mut here = vec![input];
        for step in &self.steps {
            here = match step {
                Some(key) => here.into_iter().filter_map(|value| value.get(key)).collect(),
                None => here.into_iter().filter_map(Value::as_array).flatten().collect(),
            };
        }
        here.into_iter().filter_map(Value::as_str).map(|path| format!("{path}{}", self.suffix)).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn seen(schema: Option<Value>, input: &Value) -> Vec<String> {
        let mut paths: Vec<String> =
            writes(schema.as_ref(), input).into_iter().map(|write| write.path).collect();
        paths.sort();
        paths.dedup();
        paths
    }

    #[test]
    fn keys_that_name_a_destination_are_writes() {
        for (input, expected) in [
            (json!({"dest": "a"}), vec!["a"]),
            (json!({"Dest-Path": "a"}), vec!["a"]),
            (json!({"OUT_PATH": "a", "x": 1}), vec!["a"]),
            (json!({"to": ["a", "b", 3]}), vec!["a", "b"]),
            (json!({"deep": [{"output_path": "a"}]}), vec!["a"]),
            (json!({"path": "a"}), vec![]),
            (json!({"path": "a", "content": "x"}), vec!["a"]),
            (json!({"file": "a", "new-string": "x"}), vec!["a"]),
            (json!({"path": "a", "inner": {"content": "x"}}), vec![]),
            (json!({"destinations": "a"}), vec![]),
            (json!({"dest": 7}), vec![]),
        ] {
            assert_eq!(seen(None, &input), expected, "{input}");
        }
    }

    #[test]
    fn a_schema_adds_destinations_and_hides_opaque_subtrees() {
        let schema = json!({"properties": {
            "where": {"type": "string", "format": "murmur-destination"},
            "blob": {"type": "object", "format": "murmur-opaque",
                     "properties": {"at": {"format": "murmur-destination"}}},
            "dest": {"type": "string", "format": "murmur-opaque"},
        }});
        let input = json!({"where": "a", "blob": {"dest": "b", "at": "c"}, "dest": "d"});
        assert_eq!(seen(Some(schema), &input), ["a", "c", "d"]);
        let root = json!({"format": "murmur-opaque"});
        assert!(seen(Some(root), &json!({"dest": "a"})).is_empty());
    }

    #[test]
    fn declared_locations_are_followed_and_one_bad_entry_voids_the_list() {
        let input = json!({"name": "n", "jobs": [{"out": "a"}, {"out": "b"}]});
        for (locations, expected) in [
            (json!(["{name}"]), vec!["n"]),
            (json!(["{name}/x.txt"]), vec!["n/x.txt"]),
            (json!(["{jobs[].out}"]), vec!["a", "b"]),
            (json!(["{name}", "{jobs[].out}/y"]), vec!["a/y", "b/y", "n"]),
            (json!([]), vec![]),
            (json!(["{name}", "{name}/../x"]), vec![]),
            (json!(["{name}", "name"]), vec![]),
            (json!(["{name}x"]), vec![]),
            (json!(["{name}//x"]), vec![]),
            (json!(["{name[0]}"]), vec![]),
            (json!(["{}"]), vec![]),
            (json!([7]), vec![]),
        ] {
            let schema = json!({"murmur-destinations": locations});
            assert_eq!(seen(Some(schema), &input), expected, "{locations}");
        }
    }
}
