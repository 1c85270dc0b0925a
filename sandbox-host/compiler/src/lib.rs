//! What the compiler process does with one artifact, without the process around it: takes the bytes apart, reads the bundled
//! manifest, inspects the component, compiles it.
//!
//! The bytes are foreign and hostile. Everything here works in memory on what it was given: no path is opened, nothing is
//! asked of the network, and what comes out is a handful of bounded facts and native code for one engine configuration
//! (`sandbox-host/engine.rs`). It trusts the broker's job (name and role) and nothing else.

mod archive;
mod inspect;
mod manifest;
mod yaml;

#[path = "../../engine.rs"]
mod engine;

use ipc::edge::compiler::{Facts, Form, Job, unpack};

/// Why an artifact is refused: `E-…` and one line for the operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {reason}")]
pub struct Refusal {
    /// The diagnostic's code.
    pub code: &'static str,
    /// One line about the artifact, which the broker names; at most [`REASON_BYTES`] bytes, no control characters.
    pub reason: String,
}

/// The longest reason, in bytes.
pub const REASON_BYTES: usize = 2000;

/// The most bytes an artifact, or one entry of its archive, may have (`spec: .mur.zip reading`).
pub const MAX_ARTIFACT: u64 = 524_288_000;

impl Refusal {
    /// A refusal whose reason is made fit for one line.
    #[must_use]
    pub fn new(code: &'static str, reason: &str) -> Self {
        Refusal { code, reason: one_line(reason, REASON_BYTES) }
    }
}

/// The facts of an artifact and, if the job asks for it, its native code.
///
/// # Errors
/// [`Refusal`]: `E-IO-003` for bytes that are no artifact, `E-MAN-001` to `E-MAN-003` for the bundled manifest, `E-RUN-001`
/// for a component that does not compile or lacks its export, `E-RUN-002` for an import nothing serves, `E-RUN-029` for an
/// interface version that is not served.
pub fn process(job: &Job, bytes: &[u8]) -> Result<(Facts, Option<Vec<u8>>), Refusal> {
    let (manifest, component) = match job.form {
        Form::Pack => unpack(bytes)
            .map(|(manifest, component)| (manifest.to_vec(), component.to_vec()))
            .ok_or_else(|| Refusal::new("E-IO-003", "the pack's lengths do not add up")),
        Form::Archive => archive::read(bytes, MAX_ARTIFACT),
    }?;
    let bundled = manifest::read(&manifest, job.role)?;
    let imports = inspect::component(&component, job.role)?;
    let code = if job.code { Some(compile(&component)?) } else { None };
    let manifest::Bundled { description, input_schema, hook } = bundled;
    Ok((Facts { description, input_schema, imports, hook }, code))
}

fn compile(component: &[u8]) -> Result<Vec<u8>, Refusal> {
    let refuse = |error: wasmtime::Error| Refusal::new("E-RUN-001", &format!("does not compile: {error:#}"));
    let engine = wasmtime::Engine::new(&engine::engine_config()).map_err(refuse)?;
    engine.precompile_component(component).map_err(refuse)
}

/// Text as one line: control characters become spaces, runs of blanks one, cut at `limit` bytes on a character boundary.
pub(crate) fn one_line(text: &str, limit: usize) -> String {
    let mut line = String::new();
    for word in text.split(|c: char| c.is_whitespace() || is_unprintable(c)).filter(|word| !word.is_empty()) {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        if line.len() > limit {
            break;
        }
    }
    let end = line.floor_char_boundary(limit);
    line.truncate(end);
    line
}

/// Characters that would move a terminal's cursor or reorder the text around them.
fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use ipc::edge::compiler::pack;
    use ipc::edge::host_broker::Role;

    use super::*;

    const MANIFEST: &[u8] = b"name: x\nversion: \"1\"\nruntime: tool\ndescription: Says hi.\n";

    fn job(form: Form, role: Role, code: bool) -> Job {
        Job { name: "x".into(), role, form, code }
    }

    fn repository(path: &str) -> Vec<u8> {
        std::fs::read(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)).unwrap()
    }

    #[test]
    fn a_component_of_this_repository_becomes_facts_and_code() {
        let folder = "tests/guests/file-tool/artifact";
        let bytes = pack(
            &repository(&format!("{folder}/murmur.yaml")),
            &repository(&format!("{folder}/capsule.wasm")),
        );
        let (facts, code) = process(&job(Form::Pack, Role::Tool, true), &bytes).unwrap();
        assert!(code.unwrap().starts_with(b"\x7fELF"));
        assert!(facts.description.unwrap().starts_with("Reads or writes one file"));
        assert!(facts.input_schema.unwrap().starts_with(r#"{"type":"object","properties":{"read":"#));
        assert!(facts.imports.iter().any(|import| import.starts_with("wasi:filesystem/preopens@0.2.")));
        let (_, code) = process(&job(Form::Pack, Role::Tool, false), &bytes).unwrap();
        assert_eq!(code, None);
        let refusal = process(&job(Form::Pack, Role::Driver, true), &bytes).unwrap_err();
        assert_eq!(refusal.code, "E-MAN-003");
        assert!(refusal.reason.starts_with("the artifact is a tool"), "{refusal}");
    }

    #[test]
    fn what_cannot_be_served_is_refused_by_code_and_name() {
        let run = r#"(component (instance $i) (export "murmur:tool/run@0.1.0" (instance $i)))"#;
        for (text, code, part) in [
            (
                r#"(component (import "murmur:task/task@0.1.0" (instance)))"#,
                "E-RUN-002",
                "`murmur:task/task@0.1.0`, which is not served yet",
            ),
            (
                r#"(component (import "murmur:shell/execute@0.1.0" (instance)))"#,
                "E-RUN-002",
                "`murmur:shell/execute@0.1.0`, which is not served",
            ),
            (r#"(component (import "f" (func)))"#, "E-RUN-002", "`f`"),
            ("(component)", "E-RUN-001", "does not export `murmur:tool/run@0.1.0`"),
            (
                r#"(component (instance $i) (export "murmur:tool/run@0.2.0" (instance $i)))"#,
                "E-RUN-029",
                "exports `murmur:tool/run@0.2.0`",
            ),
            ("(module)", "E-IO-003", "core module"),
        ] {
            let bytes = pack(MANIFEST, &wat::parse_str(text).unwrap());
            let refusal = process(&job(Form::Pack, Role::Tool, true), &bytes).unwrap_err();
            assert_eq!(refusal.code, code, "{text}");
            assert!(refusal.reason.contains(part), "{refusal}");
        }
        let bytes = pack(MANIFEST, &wat::parse_str(run).unwrap());
        assert!(process(&job(Form::Pack, Role::Tool, true), &bytes).is_ok());
        assert_eq!(process(&job(Form::Pack, Role::Tool, true), &bytes[1..]).unwrap_err().code, "E-IO-003");
        assert_eq!(process(&job(Form::Archive, Role::Tool, true), &bytes).unwrap_err().code, "E-IO-003");
    }

    #[test]
    fn a_component_beyond_the_configured_features_does_not_compile() {
        for module in [
            "(module (memory i64 1))",
            "(module (memory 1 1 shared))",
            "(module (memory 1) (memory 1))",
            "(module (type (struct)))",
            "(module (func (param externref)))",
        ] {
            let text = format!(
                r#"(component (core {} (instance $i) (export "murmur:tool/run@0.1.0" (instance $i)))"#,
                &module[1..]
            );
            let bytes = pack(MANIFEST, &wat::parse_str(text).unwrap());
            let refusal = process(&job(Form::Pack, Role::Tool, true), &bytes).unwrap_err();
            assert_eq!(refusal.code, "E-RUN-001", "{module}: {refusal}");
        }
    }

    #[test]
    fn foreign_text_becomes_one_short_line() {
        for (text, limit, line) in [
            ("", 10, ""),
            (" a\n\tb \u{1b}[31mred\r", 40, "a b [31mred"),
            ("\u{202e}evil", 40, "evil"),
            ("héllo", 2, "h"),
            ("aaaa bbbb", 6, "aaaa b"),
        ] {
            assert_eq!(one_line(text, limit), line, "{text:?}");
        }
    }
}
