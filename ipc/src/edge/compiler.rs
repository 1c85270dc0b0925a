//! compiler → broker: what an artifact is. One compiler process per artifact.

use serde::{Deserialize, Serialize};

use super::host_broker::{HookEvent, Role};
use crate::channel::Message;

/// What to compile.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    /// The name the operator gave the artifact, for error texts.
    pub name: String,
    /// The role the operator gave it.
    pub role: Role,
    /// What the bytes are.
    pub form: Form,
    /// Whether native code is wanted; false asks for the facts alone (the cache has the code).
    pub code: bool,
}

/// What an artifact's bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Form {
    /// A `.mur.zip` archive.
    Archive,
    /// A tar-like pack the broker makes of a directory's `murmur.yaml` and component: see [`pack`].
    Pack,
}

/// Compiler to broker: exactly one.
#[derive(Debug, Serialize, Deserialize)]
pub enum CompilerToBroker {
    /// The facts; native code, if asked for, is in the file.
    Compiled(Box<Facts>),
    /// The artifact is refused.
    Refused {
        /// `E-…`
        code: String,
        /// One line, at most 2000 bytes, no control characters.
        reason: String,
    },
}

/// Typed facts of an artifact.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Facts {
    /// `description` of the bundled manifest, sanitised, at most 1000 bytes.
    pub description: Option<String>,
    /// `input_schema` as compact JSON, at most 16 KiB.
    pub input_schema: Option<String>,
    /// Interfaces the component imports, `package:name/interface@version`, at most 256.
    pub imports: Vec<String>,
    /// The event a hook decides on; `None` for any other role.
    pub hook: Option<HookEvent>,
}

impl Message for CompilerToBroker {
    const MAX_DESCRIPTORS: usize = 0;

    fn descriptors(&self) -> usize {
        0
    }
}

/// Puts a bundled manifest and a component into one run of bytes: both lengths as 64-bit little-endian, then both.
#[must_use]
pub fn pack(manifest: &[u8], component: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16 + manifest.len() + component.len());
    bytes.extend_from_slice(&(manifest.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&(component.len() as u64).to_le_bytes());
    bytes.extend_from_slice(manifest);
    bytes.extend_from_slice(component);
    bytes
}

/// Takes a [`pack`] apart: manifest, component. `None` if the lengths do not add up.
#[must_use]
pub fn unpack(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = |range: std::ops::Range<usize>| {
        let field: [u8; 8] = bytes.get(range)?.try_into().ok()?;
        usize::try_from(u64::from_le_bytes(field)).ok()
    };
    let (manifest, component) = (length(0..8)?, length(8..16)?);
    let rest = bytes.get(16..)?;
    if manifest.checked_add(component)? != rest.len() {
        return None;
    }
    rest.split_at_checked(manifest)
}
