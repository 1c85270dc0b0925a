//! The bounds on what a small file may become.

use std::time::{Duration, Instant};

use super::tree::{MAX_BYTES, Value};
use super::*;

fn value(text: &str) -> Value {
    tree::parse(text).unwrap().value
}

#[track_caller]
fn syntax_error(text: &str, part: &str) {
    let begun = Instant::now();
    let error = plain(text).unwrap_err();
    assert_eq!(error.code, "E-MAN-002", "{error}");
    assert!(error.to_string().contains(part), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(20), "bounded time");
}

#[test]
fn scalars_follow_the_core_schema() {
    let cases = [
        ("~", Value::Null),
        ("null", Value::Null),
        ("true", Value::Bool(true)),
        ("yes", Value::Text("yes".into())),
        ("off", Value::Text("off".into())),
        ("12", Value::Int(12)),
        ("-0", Value::Int(0)),
        ("0x1F", Value::Int(31)),
        ("0o17", Value::Int(15)),
        ("0x", Value::Text("0x".into())),
        ("1.5", Value::Float(1.5)),
        ("1e3", Value::Float(1000.0)),
        (".inf", Value::Float(f64::INFINITY)),
        ("inf", Value::Text("inf".into())),
        ("nan", Value::Text("nan".into())),
        ("e5", Value::Text("e5".into())),
        ("0.1.0", Value::Text("0.1.0".into())),
        ("'12'", Value::Text("12".into())),
        ("!!str 12", Value::Text("12".into())),
        ("! 12", Value::Text("12".into())),
        ("|\n  12\n", Value::Text("12\n".into())),
    ];
    for (text, expected) in cases {
        assert_eq!(value(text), expected, "{text}");
    }
}

#[test]
fn syntax_errors_carry_line_and_column() {
    syntax_error("name: a\nversion: [1\n", "line");
    syntax_error("name: a\n}\n", "at line 2, column 1");
    syntax_error("", "empty");
    syntax_error("# only a comment\n", "empty");
    syntax_error("[a, b]", "must be a mapping");
    syntax_error("just text", "must be a mapping");
}

#[test]
fn one_document_with_unique_keys_and_no_foreign_tags() {
    syntax_error("name: a\n---\nname: b\n", "second document");
    syntax_error("name: a\nversion: '1'\nname: b\n", "\"name\" appears twice at line 3, column 1");
    syntax_error("a: {1: x, '1': y}", "appears twice");
    syntax_error("? [a]\n: b\n", "key must be a plain word");
    syntax_error("name: !!python/object x", "tags");
    syntax_error("name: !!binary aGk=", "tags");
    syntax_error("name: !env HOME", "tags");
    syntax_error("name: !!str {a: b}", "tagged as a string");
    plain("---\nname: a\nversion: '1'\n...\n").unwrap();
    plain("\u{feff}name: a\r\nversion: '1'\r\n").unwrap();
}

#[test]
fn aliases_work_within_bounds() {
    let text = "name: &n w\nversion: *n\ncapabilities: {network: {allow: &l [h]}}\n\
                artifacts: [{name: a, version: '1', capabilities: {network: {allow: *l}}}]";
    let (manifest, _) = plain(text).unwrap();
    assert_eq!(manifest.version, "w");
    assert_eq!(
        manifest.artifacts[0].network_allow.as_deref(),
        Some(manifest.capabilities.network_allow.as_slice())
    );
    syntax_error("a: *missing", "");
    syntax_error("a: &a [*a]", "contains it");
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..20 {
        let prev = format!("*a{}", level - 1);
        bomb.push_str(&format!("a{level}: &a{level} [{}]\n", vec![prev; 10].join(", ")));
    }
    syntax_error(&bomb, "too many");
    let text = format!("a: &a {}\nb: [{}]", "x".repeat(500_000), vec!["*a"; 40_000].join(","));
    syntax_error(&text, "too many, too long");
    let mut deep = String::from("a0: &a0 [x]\n");
    for level in 1..80 {
        deep.push_str(&format!("a{level}: &a{level} [*a{}]\n", level - 1));
    }
    syntax_error(&deep, "deeply");
}

#[test]
fn size_and_depth_are_bounded() {
    syntax_error(&"x".repeat(MAX_BYTES + 1), "larger than");
    syntax_error(&"[".repeat(500_000), "");
    syntax_error(&"- ".repeat(500_000), "nested deeper");
    syntax_error(&"? ".repeat(500_000), "nested deeper");
    let indented: String = (0..500).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
    syntax_error(&indented, "nested deeper");
    let many: String = (0..90_000).map(|n| format!("k{n}: v\n")).collect();
    syntax_error(&many, "too many");
    syntax_error(&format!("a: [{}]", "1,".repeat(400_000)), "too many");
    let config = format!("x: {}1{}", "[".repeat(50), "]".repeat(50));
    accept(&format!("artifacts: [{{name: a, version: '1', config: {{{config}}}}}]"));
}
