//! Free-form settings as compact JSON, in the order of the file, with integers exact.

use super::tree::{Node, Value};

/// Largest settings document in bytes. It travels in an environment variable, which the kernel bounds.
pub(super) const MAX_JSON: usize = 65_536;

/// Renders a mapping as compact JSON. The error says what cannot be delivered, without the value.
pub(super) fn compact(node: &Node) -> Result<String, String> {
    if !matches!(node.value, Value::Map(_)) {
        return Err(format!("must be a mapping, not {}", node.value.kind()));
    }
    let mut out = String::new();
    write(&node.value, &mut out)?;
    if out.len() > MAX_JSON {
        return Err(format!("is {} bytes as JSON; at most {MAX_JSON} can be delivered", out.len()));
    }
    Ok(out)
}

fn write(value: &Value, out: &mut String) -> Result<(), String> {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(flag) => out.push_str(if *flag { "true" } else { "false" }),
        Value::Int(number) => out.push_str(&number.to_string()),
        Value::Float(number) => {
            let number = serde_json::Number::from_f64(*number).ok_or("holds a number JSON cannot express")?;
            out.push_str(&number.to_string());
        }
        Value::Text(text) => write_text(text, out),
        Value::List(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write(&item.value, out)?;
            }
            out.push(']');
        }
        Value::Map(entries) => {
            out.push('{');
            for (index, entry) in entries.iter().enumerate() {
                if !entry.key_is_text {
                    return Err("has a key that is not a string; put it in quotes".to_owned());
                }
                if index > 0 {
                    out.push(',');
                }
                write_text(&entry.key, out);
                out.push(':');
                write(&entry.value.value, out)?;
            }
            out.push('}');
        }
    }
    Ok(())
}

fn write_text(text: &str, out: &mut String) {
    out.push_str(&serde_json::Value::from(text).to_string());
}
