//! The manifest as a JSON Schema (draft 2020-12), for editors: made of the table of keys, so that neither knows a key the other
//! does not. What it accepts may still be refused at launch, where values are looked at together and against the host.

use serde_json::{Map, Value, json};

use super::schema::{Block, Inside, Key, Neutral, Status, TOP};

/// The form of a value that the table of keys has no block for.
#[derive(Debug, Clone, Copy)]
enum Form {
    Text,
    Texts,
    Flag,
    Words(&'static [&'static str]),
    /// A number of at least one.
    Positive,
    /// Bytes: a number, or digits with `Ki`, `Mi` or `Gi`.
    Size,
    /// Seconds: a number, or digits with `s`, `m`, `h` or `d`.
    Duration,
    /// A mapping of the author's.
    Settings,
}

use Form::{Duration, Flag, Positive, Settings, Size, Text, Texts, Words};

/// What is read, by its path; `[]` stands for an entry of a list.
const FORMS: &[(&str, Form, &str)] = &[
    ("name", Text, "The capsule's name, in its card and as the audience of handles."),
    ("version", Text, "The capsule's version; quote it, a number is refused."),
    (
        "artifacts[].name",
        Text,
        "name or scope/name; the part after the scope is what the model calls a tool.",
    ),
    ("artifacts[].version", Text, "The installed version, where there is no source."),
    ("artifacts[].runtime", Words(&["tool", "driver", "hook"]), "What the artifact is for."),
    ("artifacts[].source", Text, "Its directory or .mur.zip, relative to the manifest."),
    ("artifacts[].local_source", Flag, "Required beside source."),
    ("artifacts[].config", Settings, "Settings, delivered as MURMUR_ARTIFACT_CONFIG."),
    ("artifacts[].on_overflow", Words(&["drop", "block"]), "Of a hook's queue."),
    ("artifacts[].gateway.endpoint", Text, "The upstream: https, or http to this host."),
    ("artifacts[].gateway.keyless", Flag, "The upstream needs no key."),
    (
        "artifacts[].capabilities.network.allow",
        Texts,
        "Destinations of this artifact, a part of the capsule's.",
    ),
    (
        "artifacts[].capabilities.filesystem.scope",
        Text,
        "The directory it gets as `.`, relative to the workdir.",
    ),
    ("capabilities.network.allow", Texts, "host, host:port or http(s)://host[:port], compared exactly."),
    ("capabilities.network.unix_sockets", Flag, "Programs may make Unix sockets; sealed only."),
    ("capabilities.peer_fetch.allow", Texts, "Peers whose handles may be redeemed."),
    ("capabilities.filesystem.scope", Text, "The directory components get as `.`, relative to the workdir."),
    ("capabilities.filesystem.read_only", Texts, "Existing paths of the workdir that nobody may change."),
    (
        "capabilities.filesystem.workdir_exec",
        Flag,
        "What programs write may be executed; the class is advisory.",
    ),
    ("capabilities.shell.allow", Texts, "Programs by their bare names."),
    ("capabilities.shell.strip_env", Texts, "Variables no program gets; * at either end."),
    ("capabilities.shell.baseline_env", Texts, "Further variables of the host that programs get."),
    ("capabilities.shell.interpreter_runtime[].binary", Text, "The interpreter it is for."),
    ("capabilities.shell.interpreter_runtime[].dirs[].path", Text, "A directory of the host, absolute."),
    ("capabilities.shell.interpreter_runtime[].dirs[].list_dir", Flag, "It may be listed."),
    ("capabilities.shell.staged_runtime[].binary", Text, "The program it is for."),
    ("capabilities.shell.staged_runtime[].source_path", Text, "A tree of the host, absolute."),
    ("capabilities.shell.staged_runtime[].pin", Text, "For people."),
    ("capabilities.env.allow", Texts, "Variables of the host that components may see."),
    ("capabilities.limits.memory_bytes", Size, "Memory of a component's call."),
    ("capabilities.limits.table_elements", Positive, "Elements of a component's tables."),
    ("capabilities.limits.instances", Positive, "Instances in a component's call."),
    ("capabilities.limits.deadline_seconds", Positive, "Seconds a component's call may take."),
    ("capabilities.resources.max_processes", Positive, "Processes of a program's user."),
    ("capabilities.resources.max_open_files", Positive, "Descriptors of a program."),
    ("capabilities.resources.max_file_size_bytes", Size, "Bytes of a file a program writes."),
    ("capabilities.resources.cpu_seconds", Positive, "Processor seconds of a program."),
    ("capabilities.resources.memory_bytes", Size, "Address space of a program."),
    ("capabilities.resources.cgroup_memory_bytes", Size, "Memory of all programs together."),
    ("capabilities.resources.cgroup_pids_max", Positive, "Processes of all programs together."),
    (
        "capabilities.resources.cgroup_cpu_percent",
        Positive,
        "Percent of one processor, of all programs together.",
    ),
    ("capabilities.resources.cgroup_io_bytes_per_sec", Size, "Reads, and writes, of all programs together."),
    ("capabilities.resources.workdir_max_bytes", Size, "What workdir, home and temporary files may hold."),
    ("capabilities.resources.max_workdir_bytes", Size, "The same as workdir_max_bytes."),
    (
        "capabilities.containment",
        Words(&["advisory", "scoped", "sealed"]),
        "The least that confines programs.",
    ),
    ("inference.transport", Words(&["http"]), "How the model is reached."),
    ("inference.model", Text, "The model's name, for the driver."),
    ("inference.driver.artifact", Text, "The name of the driver among the artifacts."),
    ("inference.driver.config", Settings, "Settings of the driver."),
    ("inference.provider.artifact", Text, "The older name of driver.artifact."),
    ("inference.max_turns", Positive, "Inference calls of a task."),
    ("inference.max_tokens", Positive, "Output tokens of an inference call."),
    ("inference.system_prompt", Text, "The system prompt."),
    ("inference.system_prompt_file", Text, "Its file, relative to the manifest."),
    ("trace.capture", Words(&["none", "meta", "content"]), "How much of what was said is recorded."),
    ("trace.include_tool_output", Flag, "The older name of capture: content."),
    (
        "lifecycle.task_acceptance",
        Words(&["none", "single", "queue"]),
        "Which tasks are taken over the network.",
    ),
    ("lifecycle.after_task", Words(&["exit", "sleep"]), "What happens when a task has ended."),
    ("lifecycle.queue_depth", Positive, "Tasks that may wait."),
    ("exports.files.root", Text, "The directory that is served, relative to the workdir."),
    ("exports.files.mode", Words(&["read-only"]), "How it is served."),
    ("exports.files.max_bytes", Size, "The largest file that is served."),
    ("exports.peer_files.root", Text, "The directory of files that may be handed to peers."),
    ("exports.peer_files.max_ttl", Duration, "How long a handle lives at most."),
    ("exports.peer_files.max_bytes", Size, "The largest file that is handed over."),
];

/// Whatever value is null counts as absent.
fn or_null(mut schema: Map<String, Value>) -> Value {
    match schema.get_mut("type") {
        Some(kind @ Value::String(_)) => *kind = json!([kind.take(), "null"]),
        Some(Value::Array(kinds)) => kinds.push("null".into()),
        _ => {}
    }
    if let Some(Value::Array(words)) = schema.get_mut("enum") {
        words.push(Value::Null);
    }
    Value::Object(schema)
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn form(form: Form) -> Value {
    match form {
        Text => json!({"type": "string"}),
        Texts => json!({"type": "array", "items": {"type": "string"}}),
        Flag => json!({"type": "boolean"}),
        Words(words) => json!({"enum": words}),
        Positive => json!({"type": "integer", "minimum": 1}),
        Size => json!({"type": ["integer", "string"], "minimum": 1, "pattern": "^[0-9]+(Ki|Mi|Gi)?$"}),
        Duration => json!({"type": ["integer", "string"], "minimum": 1, "pattern": "^[0-9]+(s|m|h|d)?$"}),
        Settings => json!({"type": "object"}),
    }
}

/// Of a key that is not built: what asks for nothing.
fn neutral(neutral: Neutral) -> Value {
    match neutral {
        Neutral::Never => json!({"type": "null"}),
        Neutral::False => json!({"enum": [false, null]}),
        Neutral::Empty => json!({"type": ["array", "object", "null"], "maxItems": 0, "maxProperties": 0}),
        Neutral::Int(number) => json!({"enum": [i64::try_from(number).unwrap_or_default(), null]}),
        Neutral::Word(word) => json!({"enum": [word, null]}),
        Neutral::EmptyAllow => json!({
            "type": ["object", "null"],
            "properties": {"allow": {"type": ["array", "null"], "maxItems": 0}},
        }),
    }
}

fn described(mut schema: Value, text: &str) -> Value {
    if let Value::Object(map) = &mut schema
        && !text.is_empty()
    {
        map.insert("description".into(), text.into());
    }
    schema
}

fn key(key: &Key, path: &str) -> Value {
    match key.status {
        Status::Supported => match key.inside {
            Inside::One(inside) => or_null(object(block(inside, path))),
            Inside::Many(inside) => {
                or_null(object(json!({"type": "array", "items": block(inside, &format!("{path}[]"))})))
            }
            Inside::Free => match FORMS.iter().find(|(known, ..)| *known == path) {
                Some((_, known, text)) => described(or_null(object(form(*known))), text),
                // What has no effect where it stands.
                None => described(json!({}), "Has no effect here."),
            },
        },
        Status::Inert => described(json!({}), "Has no effect here: it is the capsule's alone."),
        Status::Comfort(_) | Status::Silent => described(json!({}), "Has no effect in this version."),
        Status::NotYet(value) => described(neutral(value), "Not supported yet."),
        Status::Enforcing(value) => {
            described(neutral(value), "Not supported: it grants, denies or bounds something.")
        }
        Status::Removed(remedy) => {
            described(json!({"type": "null"}), &format!("Not accepted here: {remedy}."))
        }
    }
}

fn block(block: &Block, path: &str) -> Value {
    let properties: Map<String, Value> = block
        .keys
        .iter()
        .map(|one| {
            let below = if path.is_empty() { one.name.to_owned() } else { format!("{path}.{}", one.name) };
            (one.name.to_owned(), key(one, &below))
        })
        .collect();
    json!({"type": "object", "additionalProperties": false, "properties": properties})
}

/// The whole schema.
pub(crate) fn json_schema() -> Value {
    let mut schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "murmur.yaml, as capsule-broker reads it",
        "required": ["name", "version"],
    });
    if let (Value::Object(schema), Value::Object(top)) = (&mut schema, block(&TOP, "")) {
        schema.extend(top);
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    use crate::manifest::{ParseOptions, json, parse, tree};

    fn checkout() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
    }

    fn validator() -> jsonschema::Validator {
        jsonschema::draft202012::new(&json_schema()).unwrap()
    }

    fn document(text: &str) -> Value {
        serde_json::from_str(&json::compact(&tree::parse(text).unwrap()).unwrap()).unwrap()
    }

    /// Paths of what is read and has no block.
    fn read(block: &'static Block, path: &str, found: &mut BTreeSet<String>) {
        for one in block.keys.iter().filter(|one| one.status == Status::Supported) {
            let below = if path.is_empty() { one.name.to_owned() } else { format!("{path}.{}", one.name) };
            match one.inside {
                Inside::Free => drop(found.insert(below)),
                Inside::One(inside) => read(inside, &below, found),
                Inside::Many(inside) => read(inside, &format!("{below}[]"), found),
            }
        }
    }

    #[test]
    fn every_key_that_is_read_has_a_form_and_no_form_is_of_another() {
        let mut found = BTreeSet::new();
        read(&TOP, "", &mut found);
        let forms: BTreeSet<String> = FORMS.iter().map(|(path, ..)| (*path).to_owned()).collect();
        assert_eq!(forms.len(), FORMS.len(), "each once");
        assert_eq!(forms.difference(&found).collect::<Vec<_>>(), Vec::<&String>::new(), "no such key");
        // Read in order to be refused, or of a hook alone, or without effect.
        let formless: Vec<&str> = found.difference(&forms).map(String::as_str).collect();
        assert_eq!(
            formless,
            [
                "artifacts[].capabilities.conversation.read",
                "artifacts[].capabilities.filesystem.records",
                "artifacts[].capabilities.task_io.read",
                "artifacts[].gateway.api_key",
                "capabilities.conversation.read",
                "capabilities.state.store",
            ]
        );
    }

    /// `docs/murmur.schema.json` is what this makes. BLESS=1 writes it.
    #[test]
    fn the_shipped_schema_is_the_tables() {
        let path = checkout().join("docs/murmur.schema.json");
        let made = format!("{:#}\n", json_schema());
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, &made).unwrap();
        }
        let there = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(there == made, "BLESS=1 cargo test -p broker json_schema writes docs/murmur.schema.json");
    }

    #[test]
    fn every_example_is_valid() {
        let validator = validator();
        let mut folders = vec![checkout().join("examples")];
        let mut examples = 0;
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                // An artifact's own manifest is another document.
                let is_manifest = path.extension().is_some_and(|extension| extension == "yaml")
                    && !path.components().any(|part| part.as_os_str() == "artifacts");
                if is_manifest {
                    let text = std::fs::read_to_string(&path).unwrap();
                    parse(&text, ParseOptions::default()).unwrap();
                    let errors: Vec<String> =
                        validator.iter_errors(&document(&text)).map(|error| error.to_string()).collect();
                    assert_eq!(errors, Vec::<String>::new(), "{}", path.display());
                    examples += 1;
                }
            }
        }
        assert!(examples >= 3, "{examples}");
    }

    #[test]
    fn what_is_misspelt_mistyped_or_not_built_is_marked() {
        let validator = validator();
        for (bad, more) in [
            ("missing version", "name: x"),
            ("a number", "name: x\nversion: 0.1"),
            ("unknown key", "name: x\nversion: '1'\ncapabilites: {}"),
            ("unknown key below", "name: x\nversion: '1'\ncapabilities: {filesystem: {readonly: [a]}}"),
            ("a word", "name: x\nversion: '1'\ncapabilities: {containment: airtight}"),
            (
                "a size",
                "name: x\nversion: '1'\nexports: {files: {root: out/, mode: read-only, max_bytes: 1KB}}",
            ),
            ("a duration", "name: x\nversion: '1'\nexports: {peer_files: {root: out/, max_ttl: 15m1s}}"),
            ("zero", "name: x\nversion: '1'\ncapabilities: {limits: {instances: 0}}"),
            ("not built", "name: x\nversion: '1'\nnetwork: {authentication: {}}"),
            ("removed", "name: x\nversion: '1'\nregistry: here"),
            ("no list", "name: x\nversion: '1'\ncapabilities: {shell: {allow: bash}}"),
        ] {
            assert!(!validator.is_valid(&document(more)), "{bad}: {more}");
            assert!(parse(more, ParseOptions::default()).is_err(), "{bad}: the broker refuses it as well");
        }
        for good in [
            "name: x\nversion: '1'",
            "name: x\nversion: '1'\ncapabilities: null",
            "name: x\nversion: '1'\ncapabilities: {spawn: {allow: []}, shell: {allow: [bash]}}",
            "name: x\nversion: '1'\nexports: {files: {root: out/, mode: read-only, max_bytes: 10Mi}}",
        ] {
            let errors: Vec<String> =
                validator.iter_errors(&document(good)).map(|error| error.to_string()).collect();
            assert_eq!(errors, Vec::<String>::new(), "{good}");
            assert!(parse(good, ParseOptions::default()).is_ok(), "{good}");
        }
    }
}
