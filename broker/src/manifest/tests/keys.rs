//! The table of keys against what the parser does with each of them.

use super::schema::{Block, Inside, Neutral, Status};
use super::*;

/// Wraps `key: value` into the blocks of a path such as `capabilities.shell` or `artifacts[]`.
fn nest(path: &[&str], pair: &str) -> String {
    let mut text = format!("{{{pair}}}");
    for step in path.iter().rev() {
        text = match step.strip_suffix("[]") {
            Some(name) => format!("{{{name}: [{text}]}}"),
            None => format!("{{{step}: {text}}}"),
        };
    }
    text
}

/// Only the scan: valid values are the other tests' business.
fn scan(text: &str, options: ParseOptions) -> Result<Vec<Warning>, ManifestError> {
    let root = tree::parse(text)?;
    let mut ctx = Context::new(options);
    ctx.scan(&root, &schema::TOP, "")?;
    ctx.refuse_unbuilt()?;
    Ok(ctx.warnings)
}

/// Every block reachable from the top, with its path and whether its keys are live there.
fn blocks() -> Vec<(Vec<&'static str>, &'static Block, bool)> {
    let mut found: Vec<(Vec<&'static str>, &'static Block, bool)> = vec![(Vec::new(), &schema::TOP, true)];
    let mut at = 0;
    while at < found.len() {
        let (path, block, live) = found[at].clone();
        for key in block.keys {
            let (name, inner) = match key.inside {
                Inside::Free => continue,
                Inside::One(inner) => (key.name, inner),
                Inside::Many(inner) => (&*format!("{}[]", key.name).leak(), inner),
            };
            let mut path = path.clone();
            path.push(name);
            found.push((path, inner, live && key.status == Status::Supported));
        }
        at += 1;
    }
    found
}

#[test]
fn every_row_of_the_table_does_what_its_status_says() {
    let mut seen = [0; 7];
    for (path, block, live) in blocks() {
        for key in block.keys {
            let text = nest(&path, &format!("{}: [present]", key.name));
            let (strict, lax) = (scan(&text, ParseOptions::default()), scan(&text, LAX));
            let not_yet = |r: &Result<Vec<Warning>, ManifestError>| {
                r.as_ref().is_err_and(|e| e.code == "E-MAN-003" && e.reason == "not supported yet")
            };
            let dotted = path.join(".").replace("[]", "[0]");
            let whole =
                if dotted.is_empty() { key.name.to_owned() } else { format!("{dotted}.{}", key.name) };
            match key.status {
                _ if !live && !matches!(key.status, Status::Removed(_)) => {
                    // A parent whose effect is settled: the key below adds neither refusal nor warning.
                    assert_ne!(strict.as_ref().err().map(|e| e.what.as_str()), Some(whole.as_str()));
                    let texts: Vec<String> = lax.unwrap_or_default().into_iter().map(|w| w.text).collect();
                    assert!(!texts.iter().any(|text| text.starts_with(&whole)), "{whole}: {texts:?}");
                }
                Status::Supported | Status::Inert | Status::Silent => {
                    assert!(strict.as_ref().is_ok_and(|w| w.is_empty()), "{whole}: {strict:?}");
                }
                Status::NotYet(_) => {
                    assert!(not_yet(&strict), "{whole}: {strict:?}");
                    assert_eq!(strict.unwrap_err().what, whole);
                    assert_eq!(codes(&lax.unwrap()), ["W-SEC-019"], "{whole}");
                }
                Status::Enforcing(_) => assert!(not_yet(&strict) && not_yet(&lax), "{whole}: {strict:?}"),
                Status::Comfort(_) => {
                    let warnings = strict.unwrap();
                    assert_eq!(codes(&warnings), ["W-SEC-019"], "{whole}");
                    assert!(warnings[0].text.starts_with(&whole), "names the key: {warnings:?}");
                }
                Status::Removed(_) => {
                    assert!(strict.is_err_and(|e| e.hint.is_some()) && lax.is_err(), "{whole}");
                }
            }
            seen[match key.status {
                Status::Supported => 0,
                Status::Inert => 1,
                Status::NotYet(_) => 2,
                Status::Enforcing(_) => 3,
                Status::Comfort(_) => 4,
                Status::Silent => 5,
                Status::Removed(_) => 6,
            }] += 1;
        }
    }
    assert!(seen.iter().all(|count| *count > 0), "every status is exercised: {seen:?}");
}

#[test]
fn a_misspelt_key_of_every_block_is_refused_and_the_right_one_suggested() {
    for (path, block, _) in blocks() {
        for key in block.keys.iter().filter(|key| key.name.len() > 4) {
            let wrong = format!("{}x", key.name);
            if block.key(&wrong).is_some() {
                continue;
            }
            let text = nest(&path, &format!("{wrong}: 1"));
            let error = scan(&text, ParseOptions::default()).unwrap_err();
            // Where a parent is refused outright its own keys no longer matter.
            if error.reason != "unknown key" {
                continue;
            }
            assert_eq!(error.code, "E-MAN-003");
            assert_eq!(error.hint, Some(format!("did you mean \"{}\"?", key.name)), "{text}");
            let warnings = scan(&text, LAX).unwrap_or_default();
            assert!(warnings.iter().all(|w| w.code == Some("W-SEC-019")), "{text}");
        }
    }
}

#[test]
fn block_tables_list_no_key_twice() {
    for (path, block, _) in blocks() {
        for (index, key) in block.keys.iter().enumerate() {
            let first = block.keys.iter().position(|other| other.name == key.name);
            assert_eq!(first, Some(index), "{path:?} {}", key.name);
        }
    }
}

#[test]
fn a_value_that_asks_for_nothing_is_accepted_for_every_unbuilt_key() {
    for (path, block, live) in blocks().into_iter().filter(|(_, _, live)| *live) {
        for key in block.keys {
            let (Status::NotYet(neutral) | Status::Enforcing(neutral) | Status::Comfort(neutral)) =
                key.status
            else {
                continue;
            };
            let values: &[&str] = match neutral {
                Neutral::Never => &["null"],
                Neutral::False => &["false", "null"],
                Neutral::Empty => &["[]", "{}", "null"],
                Neutral::Int(10) => &["10", "null"],
                Neutral::Int(_) => &["null"],
                Neutral::Word(word) => &[word, "null"],
                Neutral::EmptyAllow => &["{allow: []}", "{}", "null"],
            };
            for value in values {
                let text = nest(&path, &format!("{}: {value}", key.name));
                let warnings = scan(&text, ParseOptions::default());
                assert!(warnings.as_ref().is_ok_and(|w| w.is_empty()), "{live} {text}: {warnings:?}");
            }
        }
    }
}

#[test]
fn the_documented_unknown_key_cases() {
    let what = "capabilities.filesystem.read-only";
    let text = "capabilities: {filesystem: {read-only: [inputs]}}";
    assert!(refuse(text, "E-MAN-003", what).contains("did you mean \"read_only\"?"));
    let (_, warnings) = parse(&format!("{HEAD}{text}"), LAX).unwrap();
    assert_eq!(codes(&warnings), ["W-SEC-019"]);
    assert!(warnings[0].text.contains(what) && warnings[0].text.contains("read_only"), "{warnings:?}");
    assert!(!warnings[0].text.contains("inputs"), "values are never printed: {warnings:?}");

    assert!(refuse("quux: 1", "E-MAN-003", "quux").contains("newer version"));
    assert!(refuse("expotrs: {}", "E-MAN-003", "expotrs").contains("\"exports\""), "a swap is one edit");
    refuse("artifacts: [{nmae: a}]", "E-MAN-003", "artifacts[0].nmae");
    refuse("<<: {a: b}", "E-MAN-003", "<<");
    refuse("1: x", "E-MAN-003", "1");
    refuse("\"a\\nb\": x", "E-MAN-003", "\"a\\nb\"");
    // A misspelt required key is reported as misspelt.
    assert_eq!(plain("nam: a\nversion: '1'").unwrap_err().what, "nam");
}

#[test]
fn unbuilt_roles_refuse_whatever_the_options_say() {
    let text = "artifacts: [{name: a, runtime: skill, source: ./a, local_source: true}]";
    let error = refuse(text, "E-MAN-003", "artifacts[0].runtime: skill");
    assert!(error.contains("not supported yet"), "{error}");
    assert!(parse(&format!("{HEAD}{text}"), LAX).is_err());
}

#[test]
fn the_reference_page_names_every_key() {
    let page = include_str!("../../../../docs/manifest.md");
    for (path, block, _) in blocks() {
        for key in block.keys {
            let found = page.split('`').skip(1).step_by(2).any(|code| {
                code.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).any(|word| word == key.name)
            });
            assert!(found, "docs/manifest.md does not name {path:?} {}", key.name);
        }
    }
}
