//! `capabilities.filesystem.read_only`: whether a call says that it will write to a protected path.
//!
//! This is the half that explains itself. What it reads out of a command or an input it can also miss (a script may hide what it
//! writes); the other half is the kernel's, which shows every entry through a read-only mount, to programs and to components
//! alike. So nothing rests on this analysis but the words of a refusal, and it may look at a call without understanding all of it.

mod command;
mod input;
mod resolve;

use std::os::fd::OwnedFd;

use serde_json::Value;

use crate::text::{RECORDED, clip};
use resolve::Effort;

/// The protected subtrees of one capsule.
#[derive(Debug)]
pub(crate) struct ReadOnly {
    entries: Vec<Entry>,
    /// The work folder's path as programs see it.
    path: String,
}

#[derive(Debug)]
struct Entry {
    declared: String,
    components: Vec<String>,
}

/// A write that was recognised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Protected {
    /// Where it leads, relative to the work folder.
    pub(crate) path: String,
    /// The entry, as declared.
    pub(crate) rule: String,
    /// What marked it as a write.
    pub(crate) signal: String,
    /// It takes too much to tell where it leads, so that it counts as protected by every entry.
    unclear: bool,
}

impl Protected {
    /// The refusal as a tool or a model reads it.
    pub(crate) fn reason(&self) -> String {
        if self.unclear {
            return format!(
                "{} would write to paths that are too long or too many to tell whether \
                 capabilities.filesystem.read_only ({}) protects them; nothing ran.",
                self.signal, self.rule
            );
        }
        format!(
            "'{}' is protected by capabilities.filesystem.read_only ({}), and {} would write to it; nothing ran. \
             Reading it is allowed.",
            self.path, self.rule, self.signal
        )
    }
}

impl ReadOnly {
    /// `entries` are relative paths without `.` and `..`, as the broker checked them; `path` is the work folder's path in the
    /// programs' view.
    pub(crate) fn new(entries: &[String], path: String) -> Self {
        let entry = |declared: &String| Entry {
            declared: declared.clone(),
            components: declared
                .split('/')
                .filter(|part| !part.is_empty() && *part != ".")
                .map(str::to_owned)
                .collect(),
        };
        ReadOnly { entries: entries.iter().map(entry).collect(), path }
    }

    /// Looks at the argument vector of a program that is about to start; `folder` is the work folder.
    pub(crate) fn program(&self, folder: &OwnedFd, program: &str, arguments: &[String]) -> Option<Protected> {
        if self.entries.is_empty() {
            return None;
        }
        self.first_covered(folder, &command::writes(program, arguments))
    }

    /// Looks at the input of a component tool; `schema` is the tool's own, compact JSON.
    pub(crate) fn tool(&self, folder: &OwnedFd, schema: Option<&str>, input: &Value) -> Option<Protected> {
        if self.entries.is_empty() {
            return None;
        }
        let schema: Option<Value> = schema.and_then(|schema| serde_json::from_str(schema).ok());
        self.first_covered(folder, &input::writes(schema.as_ref(), input))
    }

    fn first_covered(&self, folder: &OwnedFd, writes: &[Write]) -> Option<Protected> {
        let mut effort = Effort::new();
        writes.iter().find_map(|write| self.covered(folder, write, &mut effort))
    }

    /// Whether a write leads into an entry, links resolved.
    fn covered(&self, folder: &OwnedFd, write: &Write, effort: &mut Effort) -> Option<Protected> {
        let signal = write.signal.clone();
        let Ok(resolved) = resolve::below(folder, &self.path, &write.path, effort) else {
            let all: Vec<&str> = self.entries.iter().map(|entry| entry.declared.as_str()).collect();
            let (path, rule) = (clip(&write.path, RECORDED), clip(&all.join(", "), RECORDED));
            return Some(Protected { path, rule, signal, unclear: true });
        };
        let resolved = resolved?;
        let entry = self.entries.iter().find(|entry| resolved.starts_with(&entry.components))?;
        let path = if resolved.is_empty() { ".".to_owned() } else { clip(&resolved.join("/"), RECORDED) };
        Some(Protected { path, rule: entry.declared.clone(), signal, unclear: false })
    }
}

/// A path that a call would write to, as the call names it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Write {
    path: String,
    signal: String,
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;
    use crate::testing::Folder;

    fn fixture(entries: &[&str]) -> (Folder, OwnedFd, ReadOnly) {
        let folder = Folder::new();
        fs::create_dir_all(folder.path().join("inputs/deep")).unwrap();
        fs::create_dir(folder.path().join("out")).unwrap();
        std::os::unix::fs::symlink("../inputs", folder.path().join("out/link")).unwrap();
        std::os::unix::fs::symlink("/w/inputs/deep", folder.path().join("absolute")).unwrap();
        std::os::unix::fs::symlink("loop", folder.path().join("loop")).unwrap();
        let entries: Vec<String> = entries.iter().map(|entry| (*entry).to_owned()).collect();
        let directory = fs::File::open(folder.path()).unwrap().into();
        (folder, directory, ReadOnly::new(&entries, "/w".to_owned()))
    }

    #[test]
    fn a_path_is_covered_as_it_resolves_and_by_whole_components() {
        let (_kept, folder, rules) = fixture(&["inputs", "tests/"]);
        for (path, covered) in [
            ("inputs", Some("inputs")),
            ("inputs/a", Some("inputs/a")),
            ("./inputs//a", Some("inputs/a")),
            ("/w/inputs/a", Some("inputs/a")),
            ("out/../inputs/a", Some("inputs/a")),
            ("out/link/a", Some("inputs/a")),
            ("out/link", Some("inputs")),
            ("absolute/x", Some("inputs/deep/x")),
            ("tests/x", Some("tests/x")),
            ("out/link/../out/a", None),
            ("inputs2", None),
            ("build/tests", None),
            ("out/new", None),
            ("/inputs/a", None),
            ("/w2/inputs", None),
            ("../w/inputs", None),
            ("loop/x", None),
            ("", None),
        ] {
            let write = Write { path: path.to_owned(), signal: String::new() };
            let found = rules.first_covered(&folder, &[write]).map(|found| found.path);
            assert_eq!(found.as_deref(), covered, "{path:?}");
        }
    }

    #[test]
    fn the_whole_work_folder_can_be_protected() {
        let (_kept, folder, rules) = fixture(&["."]);
        assert_eq!(rules.program(&folder, "touch", &["x".to_owned()]).unwrap().path, "x");
        assert_eq!(rules.program(&folder, "cat", &["x".to_owned()]), None);
    }

    #[test]
    fn a_refusal_names_path_rule_and_signal() {
        let (_kept, folder, rules) = fixture(&["inputs"]);
        let arguments = ["-c".to_owned(), "date > out/link/now".to_owned()];
        let protected = rules.program(&folder, "bash", &arguments).unwrap();
        assert_eq!(protected.path, "inputs/now");
        assert_eq!(protected.rule, "inputs");
        assert!(protected.reason().contains("the redirection `>`"), "{}", protected.reason());
        let protected = rules.tool(&folder, None, &json!({"path": "inputs/a", "content": "x"})).unwrap();
        assert_eq!(protected.path, "inputs/a");
    }

    #[test]
    fn of_what_is_refused_no_more_is_told_than_fits_a_line() {
        let (kept, folder, rules) = fixture(&["inputs"]);
        let key = "k".repeat(100_000);
        let protected = rules.tool(&folder, None, &json!({key: {"dest": "inputs/a"}})).unwrap();
        assert!(protected.signal.len() < 300, "{}", protected.signal.len());
        std::os::unix::fs::symlink(format!("inputs/{}", "n".repeat(250)), kept.path().join("long")).unwrap();
        let path = format!("long/{}", "n".repeat(4000));
        let protected = rules.program(&folder, "rm", &[path]).unwrap();
        assert!(protected.path.len() <= RECORDED && protected.path.starts_with("inputs/nnn"));
    }

    #[test]
    fn what_takes_too_much_to_tell_counts_as_protected() {
        let (kept, folder, rules) = fixture(&["inputs", "tests"]);
        let chain = |count: usize| vec!["d"; count].join("/");
        fs::create_dir_all(kept.path().join(chain(resolve::DEEPEST))).unwrap();
        let winding = "out/../".repeat(500);
        std::os::unix::fs::symlink(format!("{winding}out"), kept.path().join("winding")).unwrap();
        let many = |path: &str, count: usize| vec![path.to_owned(); count];
        for (paths, unclear) in [
            (many(&format!("out/{}", "n".repeat(4092)), 1), false),
            (many(&format!("out/{}", "n".repeat(4093)), 1), true),
            (many(&chain(resolve::DEEPEST), 1), false),
            (many(&chain(resolve::DEEPEST + 1), 1), true),
            (many("out/new", 8000), false),
            (many("out/new", 9000), true),
            (many("winding", 16), false),
            (many("winding", 17), true),
        ] {
            let (count, length) = (paths.len(), paths[0].len());
            let found = rules.program(&folder, "rm", &paths);
            assert_eq!(found.is_some(), unclear, "{count} of {length}");
            assert_eq!(rules.tool(&folder, None, &json!({"dest": paths})).is_some(), unclear);
            let Some(found) = found else { continue };
            assert_eq!(found.rule, "inputs, tests");
            assert!(found.reason().contains("too long or too many") && found.path.len() <= RECORDED);
        }
        let paths = "d/".repeat(1_000_000);
        let began = std::time::Instant::now();
        assert!(rules.tool(&folder, None, &json!({"dest": vec![paths; 8]})).is_some());
        assert!(began.elapsed().as_secs() < 5, "{:?}", began.elapsed());
    }

    #[test]
    fn without_an_entry_nothing_is_protected() {
        let (_kept, folder, rules) = fixture(&[]);
        assert_eq!(rules.program(&folder, "rm", &["inputs".to_owned()]), None);
        assert_eq!(rules.tool(&folder, None, &json!({"dest": "inputs"})), None);
    }
}
