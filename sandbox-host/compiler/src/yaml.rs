//! From a bundled manifest's YAML to a plain tree. Small on purpose: whatever could make a short text large or deep
//! (aliases, nesting, a second document) is refused, and tags other than `!!str` are none of a manifest's business.

use saphyr_parser::{Event, Parser, ScalarStyle, Tag};
use serde_json::{Map, Number, Value};

/// Deepest nesting.
const MAX_DEPTH: usize = 64;

/// A collection still open.
enum Open {
    List(Vec<Value>),
    Map(Map<String, Value>, Option<String>),
}

/// Parses one document; an empty one is null. Keys are what is written.
///
/// # Errors
/// What is wrong, with the line where there is one.
pub(crate) fn parse(text: &str) -> Result<Value, String> {
    let mut open: Vec<Open> = Vec::new();
    let mut root = None;
    let mut documents = 0;
    for event in Parser::new_from_str(text.strip_prefix('\u{feff}').unwrap_or(text)) {
        let (event, span) =
            event.map_err(|error| format!("{} at line {}", error.info(), error.marker().line()))?;
        let line = span.start.line();
        let at = |reason: &str| format!("{reason} at line {line}");
        let (value, written) = match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => continue,
            Event::DocumentStart(_) => {
                documents += 1;
                if documents > 1 {
                    return Err(at("a second document begins"));
                }
                continue;
            }
            Event::Alias(_) => return Err(at("aliases are not supported")),
            Event::Scalar(text, style, _, tag) => {
                let is_text = is_text(tag.as_deref()).ok_or_else(|| at("tags are not supported"))?;
                let quoted = style != ScalarStyle::Plain || is_text;
                let value = if quoted { Value::from(&*text) } else { plain(&text) };
                (value, Some(text.into_owned()))
            }
            Event::SequenceStart(_, tag) | Event::MappingStart(_, tag) if tag.is_some() => {
                return Err(at("tags are not supported"));
            }
            Event::SequenceStart(..) | Event::MappingStart(..) if open.len() >= MAX_DEPTH => {
                return Err(at("nested too deeply"));
            }
            Event::SequenceStart(..) => {
                open.push(Open::List(Vec::new()));
                continue;
            }
            Event::MappingStart(..) => {
                open.push(Open::Map(Map::new(), None));
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                Some(Open::List(items)) => (Value::Array(items), None),
                Some(Open::Map(members, _)) => (Value::Object(members), None),
                None => return Err(at("a collection ends that never began")),
            },
        };
        match open.last_mut() {
            None => root = Some(value),
            Some(Open::List(items)) => items.push(value),
            Some(Open::Map(members, key)) => match key.take() {
                Some(key) => {
                    if members.insert(key, value).is_some() {
                        return Err(at("a key appears twice before the value"));
                    }
                }
                None => *key = Some(written.ok_or_else(|| at("a key must be a plain word"))?),
            },
        }
    }
    Ok(root.unwrap_or_default())
}

/// Whether a tag makes its scalar a string; `None` for a tag that is not supported.
fn is_text(tag: Option<&Tag>) -> Option<bool> {
    match tag {
        None => Some(false),
        Some(tag) if tag.is_yaml_core_schema() && tag.suffix == "str" => Some(true),
        Some(_) => None,
    }
}

/// The YAML 1.2 core schema for a scalar without quotes, as far as JSON has a value for it.
fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        if let Ok(number) = text.parse::<i64>() {
            return number.into();
        }
        if let Ok(number) = text.parse::<u64>() {
            return number.into();
        }
    }
    let numeric = text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'+' | b'-' | b'.' | b'e' | b'E'));
    match text.parse().ok().filter(|_| numeric).and_then(Number::from_f64) {
        Some(number) => number.into(),
        None => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn documents_become_trees() {
        for (text, tree) in [
            ("", json!(null)),
            ("a: 1\nb: [x, \"1\", -2, 1.5, true, ~]", json!({"a": 1, "b": ["x", "1", -2, 1.5, true, null]})),
            ("a: !!str 1", json!({"a": "1"})),
            ("1: a", json!({"1": "a"})),
            ("a: >-\n  two\n  lines", json!({"a": "two lines"})),
            ("a: 1.2.3", json!({"a": "1.2.3"})),
            ("a: 18446744073709551615", json!({"a": u64::MAX})),
            ("a: -.inf", json!({"a": "-.inf"})),
        ] {
            assert_eq!(parse(text).unwrap(), tree, "{text:?}");
        }
    }

    #[test]
    fn what_could_grow_is_refused() {
        let deep = "[".repeat(100);
        for text in
            ["a: [", "a: 1\na: 2", "a: &x 1\nb: *x", "--- 1\n--- 2", "a: !!binary x", "? [a]\n: b", &deep]
        {
            assert!(parse(text).is_err(), "{text:.20}");
        }
    }
}
