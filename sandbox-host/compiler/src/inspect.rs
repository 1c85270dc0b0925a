//! What a component asks for and offers, judged by name before anything is compiled.

use wasmtime::wasmparser::{ComponentExternalKind, Encoding, Parser, Payload};

use ipc::edge::host_broker::Role;

use crate::Refusal;

/// The export that a tool and a driver must have (`docs/decisions.md`: served versions).
const RUN: &str = "murmur:tool/run@0.1.0";
/// The export that a hook must have.
const LIFECYCLE: &str = "murmur:hook/lifecycle@0.9.0";
/// The most imports a component may have.
const MAX_IMPORTS: usize = 256;
/// The longest name that is read, in bytes.
const MAX_NAME: usize = 128;

/// The `murmur:` interfaces sandbox-host serves a tool or a driver now. `tool/run` is there for its types.
const SERVED: [&str; 3] = ["murmur:stream/events@0.1.0", PROCESS, RUN];
/// The same for a hook, which takes its own types from there.
const SERVED_TO_HOOKS: [&str; 2] = [PROCESS, LIFECYCLE];
/// Answers a tool call; links everywhere.
const PROCESS: &str = "murmur:process/process@0.1.0";
/// `murmur:` interfaces that are known, and not served yet.
const LATER: [&str; 5] = [
    "murmur:task/task@0.1.0",
    "murmur:runtime/inference@0.4.0",
    "murmur:runtime/tokens@0.4.0",
    "murmur:task-io/read@0.1.0",
    "murmur:conversation/read@0.2.0",
];

/// The WASI interfaces sandbox-host serves, at every 0.2.x.
const WASI: [&str; 29] = [
    "cli/environment",
    "cli/exit",
    "cli/stderr",
    "cli/stdin",
    "cli/stdout",
    "cli/terminal-input",
    "cli/terminal-output",
    "cli/terminal-stderr",
    "cli/terminal-stdin",
    "cli/terminal-stdout",
    "clocks/monotonic-clock",
    "clocks/wall-clock",
    "filesystem/preopens",
    "filesystem/types",
    "http/outgoing-handler",
    "http/types",
    "io/error",
    "io/poll",
    "io/streams",
    "random/insecure",
    "random/insecure-seed",
    "random/random",
    "sockets/instance-network",
    "sockets/ip-name-lookup",
    "sockets/network",
    "sockets/tcp",
    "sockets/tcp-create-socket",
    "sockets/udp",
    "sockets/udp-create-socket",
];

/// The names a component imports, in order, once everything it needs is served and it exports what it must.
///
/// # Errors
/// `E-IO-003` for bytes that are no component, `E-RUN-001` for a missing export, `E-RUN-029` for another version of it,
/// `E-RUN-002` for an import that is not served, by name.
pub(crate) fn component(bytes: &[u8], role: Role) -> Result<Vec<String>, Refusal> {
    let (imports, exports) = names(bytes)?;
    let (served, required): (&[&str], &str) = match role {
        Role::Tool | Role::Driver => (&SERVED, RUN),
        Role::Hook => (&SERVED_TO_HOOKS, LIFECYCLE),
    };
    for import in &imports {
        if !is_served(served, import) {
            let later = if LATER.contains(&import.as_str()) { " yet" } else { "" };
            let reason = format!("imports `{import}`, which is not served{later}");
            return Err(Refusal::new("E-RUN-002", &reason));
        }
    }
    if exports.iter().any(|export| export == required) {
        return Ok(imports);
    }
    let interface = required.split_inclusive('@').next().unwrap_or(required);
    match exports.iter().find(|export| export.starts_with(interface)) {
        Some(other) => {
            Err(Refusal::new("E-RUN-029", &format!("exports `{other}`; the version served is `{required}`")))
        }
        None => Err(Refusal::new("E-RUN-001", &format!("does not export `{required}`"))),
    }
}

/// Imported names and names of exported instances, of the outermost component.
fn names(bytes: &[u8]) -> Result<(Vec<String>, Vec<String>), Refusal> {
    let damaged = || Refusal::new("E-IO-003", "the component is damaged");
    let mut imports = Vec::new();
    let mut exports = Vec::new();
    let mut depth = 0_u32;
    let mut is_component = false;
    for payload in Parser::new(0).parse_all(bytes) {
        match payload.map_err(|_| damaged())? {
            Payload::Version { encoding, .. } => {
                if depth == 0 && encoding == Encoding::Module {
                    return Err(Refusal::new("E-IO-003", "is a core module and no component"));
                }
                is_component = true;
            }
            // Sections of nested modules and components lie between these and their `End`.
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentImportSection(section) if depth == 0 => {
                for import in section {
                    imports.push(name(import.map_err(|_| damaged())?.name.name)?);
                }
            }
            Payload::ComponentExportSection(section) if depth == 0 => {
                for export in section {
                    let export = export.map_err(|_| damaged())?;
                    if export.kind == ComponentExternalKind::Instance {
                        exports.push(name(export.name.name)?);
                    }
                }
            }
            _ => {}
        }
        if imports.len() > MAX_IMPORTS || exports.len() > MAX_IMPORTS {
            return Err(Refusal::new("E-RUN-002", "has more than 256 imports or exports"));
        }
    }
    if is_component { Ok((imports, exports)) } else { Err(damaged()) }
}

fn name(text: &str) -> Result<String, Refusal> {
    if text.len() > MAX_NAME {
        return Err(Refusal::new("E-RUN-002", "has an import or export whose name is longer than 128 bytes"));
    }
    Ok(text.to_owned())
}

fn is_served(served: &[&str], import: &str) -> bool {
    if served.contains(&import) {
        return true;
    }
    let Some((interface, version)) = import.strip_prefix("wasi:").and_then(|rest| rest.split_once('@'))
    else {
        return false;
    };
    let patch = version.strip_prefix("0.2.").unwrap_or_default();
    WASI.contains(&interface) && !patch.is_empty() && patch.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn served_imports_are_exactly_these() {
        for import in [
            "murmur:stream/events@0.1.0",
            "murmur:process/process@0.1.0",
            "wasi:cli/environment@0.2.0",
            "wasi:io/streams@0.2.12",
            "wasi:http/outgoing-handler@0.2.4",
        ] {
            assert!(is_served(&SERVED, import), "{import}");
        }
        for import in [
            "murmur:stream/events@0.2.0",
            "murmur:stream/events",
            "murmur:process/process@0.2.0",
            "murmur:process/process",
            "murmur:task/task@0.1.0",
            "murmur:shell/execute@0.1.0",
            "wasi:cli/environment@0.3.0",
            "wasi:cli/environment@0.2.",
            "wasi:cli/environment@0.2.0-rc",
            "wasi:cli/run@0.2.0",
            "wasi:http/incoming-handler@0.2.0",
            "wasi:nn/tensor@0.2.0",
            "plain",
            "",
        ] {
            assert!(!is_served(&SERVED, import), "{import}");
        }
    }

    #[test]
    fn what_is_no_component_is_refused() {
        for bytes in
            [b"".as_slice(), b"\0asm", b"\0asm\x01\0\0\0", b"\0asm\x0d\0\x01\0\xff", b"not wasm at all"]
        {
            assert_eq!(component(bytes, Role::Tool).unwrap_err().code, "E-IO-003", "{bytes:?}");
        }
        for (role, missing) in [(Role::Tool, RUN), (Role::Driver, RUN), (Role::Hook, LIFECYCLE)] {
            let refusal = component(b"\0asm\x0d\0\x01\0", role).unwrap_err();
            assert_eq!(refusal.code, "E-RUN-001");
            assert!(refusal.reason.contains(missing), "{refusal}");
        }
    }
}
