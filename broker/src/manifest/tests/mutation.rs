//! Thousands of damaged manifests: every one is refused or accepted, none panics.

use super::*;

/// Small, repeatable, good enough to choose bytes.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound.max(1) as u64).unwrap()
    }
}

const PIECES: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ":",
    ": ",
    "- ",
    "? ",
    "&a ",
    "*a",
    "!!str ",
    "!",
    "|",
    ">",
    "'",
    "\"",
    "\\",
    "\n",
    "  ",
    "\t",
    "#",
    "%",
    "---",
    "...",
    "\u{feff}",
    "\u{85}",
    "\0",
    "é",
    ",",
    "null",
    "true",
    "-1",
    "0",
    "99999999999999999999",
    "1e400",
    ".nan",
    "~",
    "<<: ",
    "allow",
    "root",
    "/",
    "..",
    "@",
    "http://",
    "[::1]",
    "${A}",
    "runtime: hook",
];

fn boundary(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

fn mutate(random: &mut Random, text: &mut String) {
    let at = boundary(text, random.below(text.len() + 1));
    match random.below(6) {
        0 if at < text.len() => drop(text.remove(at)),
        1 => {
            let end = boundary(text, (at + random.below(20)).min(text.len()));
            text.replace_range(at..end, "");
        }
        2 => {
            // Copy a piece of the document to another place: swaps blocks, repeats keys.
            let end = boundary(text, (at + random.below(60)).min(text.len()));
            let piece = text[at..end].to_owned();
            let to = boundary(text, random.below(text.len() + 1));
            text.insert_str(to, &piece);
        }
        3 => {
            // Replace one value by an odd one.
            if let Some(colon) = text[at..].find(": ").map(|offset| at + offset + 2) {
                let end =
                    text[colon..].find(['\n', ',', '}', ']']).map_or(text.len(), |offset| colon + offset);
                text.replace_range(colon..end, PIECES[random.below(PIECES.len())]);
            }
        }
        _ => text.insert_str(at, PIECES[random.below(PIECES.len())]),
    }
}

#[test]
fn damaged_manifests_never_panic_and_every_refusal_is_well_formed() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut accepted, mut refused) = (0, std::collections::BTreeMap::<&str, u32>::new());
    for round in 0..6_000 {
        let mut text = if round % 2 == 0 { REPORTER.to_owned() } else { PEERS.to_owned() };
        for _ in 0..=random.below(4) {
            mutate(&mut random, &mut text);
        }
        let options = ParseOptions { allow_unknown_keys: random.below(2) == 0, ..ParseOptions::default() };
        match parse(&text, options) {
            Ok((manifest, warnings)) => {
                accepted += 1;
                // What is accepted keeps the promises other parts rely on.
                assert!(!manifest.name.trim().is_empty() && !manifest.name.chars().any(char::is_control));
                if let Some(inference) = &manifest.inference {
                    let driver = &manifest.artifacts[inference.driver];
                    assert!(driver.role == Role::Driver && driver.gateway.is_some(), "{text}");
                }
                if let Some(files) = &manifest.export_files {
                    assert!(files.max_bytes.bytes() > 0);
                    let bad =
                        |part: &String| part.is_empty() || part == "." || part == ".." || part.contains('/');
                    assert!(!files.root.components().iter().any(bad), "{text}");
                    assert!(!files.root.verbatim().chars().any(char::is_control), "{text}");
                }
                let lines = warnings.iter().map(ToString::to_string);
                assert!(lines.into_iter().all(|line| !line.contains(char::is_control)), "{text}");
            }
            Err(error) => {
                *refused.entry(error.code).or_default() += 1;
                assert!(error.code.starts_with("E-") && !error.what.is_empty() && !error.reason.is_empty());
                let rendered = error.to_string();
                let lines: Vec<&str> = rendered.split('\n').collect();
                assert!(lines.len() <= 2 && rendered.len() < 4000, "{rendered}");
                assert!(!lines.concat().contains(char::is_control), "{rendered:?}");
            }
        }
    }
    assert!(accepted > 200 && refused.len() > 4, "the damage reaches both sides: {accepted} {refused:?}");
}
