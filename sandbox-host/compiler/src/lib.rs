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
    /// One line that names the artifact, at most [`REASON_BYTES`] bytes, no control characters.
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
    let named = |refusal: Refusal| Refusal::new(refusal.code, &format!("{}: {}", job.name, refusal.reason));
    let (manifest, component) = match job.form {
        Form::Pack => unpack(bytes)
            .map(|(manifest, component)| (manifest.to_vec(), component.to_vec()))
            .ok_or_else(|| Refusal::new("E-IO-003", "the pack's lengths do not add up")),
        Form::Archive => archive::read(bytes, MAX_ARTIFACT),
    }
    .map_err(named)?;
    let bundled = manifest::read(&manifest, job.role).map_err(named)?;
    let imports = inspect::component(&component).map_err(named)?;
    let code = if job.code { Some(compile(&component).map_err(named)?) } else { None };
    Ok((Facts { description: bundled.description, input_schema: bundled.input_schema, imports }, code))
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
    c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

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
