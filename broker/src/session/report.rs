//! What a launch tells: the ready line for programs, the banner for people, `session_start` for the record.

use std::io::{IsTerminal, Write};

use serde_json::{Value, json};

use super::agent::Facts;
use super::process::Kind;
use crate::manifest::{Class, Manifest, Role, SystemPrompt};
use crate::trace::SessionStart;

/// A process for the banner.
#[derive(Debug)]
pub(crate) struct Line {
    /// Which.
    pub(crate) kind: Kind,
    /// Its pid in the broker's namespace.
    pub(crate) pid: i32,
    /// Its uid.
    pub(crate) uid: u32,
}

/// What is shown and recorded of a session that serves.
#[derive(Debug)]
pub(crate) struct Shown<'a> {
    /// Facts of the session.
    pub(crate) facts: Facts<'a>,
    /// The URL clients use.
    pub(crate) url: &'a str,
    /// Where the records are.
    pub(crate) records: &'a std::path::Path,
    /// What backs the class.
    pub(crate) mechanism: String,
    /// Whether roles that see the workdir run under its owner's id.
    pub(crate) shared_owner: bool,
    /// The Landlock version enforced.
    pub(crate) landlock_abi: u32,
    /// What the host lacks, one line each.
    pub(crate) lacks: Vec<String>,
    /// The processes.
    pub(crate) processes: Vec<Line>,
}

/// Prints the ready line on stdout. A closed stdout is no reason to stop serving.
pub(crate) fn ready_line(shown: &Shown<'_>) {
    let word = |text: &str| Value::from(text).to_string();
    let line = format!(
        "{{\"session_id\":{},\"url\":{},\"pid\":{},\"workdir\":{},\"records_dir\":{},\"containment\":{}}}\n",
        word(shown.facts.session_id),
        word(shown.url),
        std::process::id(),
        word(&shown.facts.workdir.display().to_string()),
        word(&shown.records.display().to_string()),
        word(shown.facts.class.as_str()),
    );
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush());
}

/// Whether a banner is wanted: on a terminal, and not silenced.
pub(crate) fn wants_banner(json: bool, quiet: bool) -> bool {
    !json && !quiet && std::io::stderr().is_terminal()
}

/// The banner.
pub(crate) fn banner(shown: &Shown<'_>, manifest: &Manifest) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    let mut row = |key: &str, value: &str| {
        let _ = writeln!(text, "  {key:<10} {value}");
    };
    row("session", shown.facts.session_id);
    row("address", shown.url);
    row("class", &format!("{}: {}", shown.facts.class.as_str(), shown.mechanism));
    let identity = if shown.shared_owner {
        "shown under its owner's id to three processes: the file system refuses id-mapped mounts"
    } else {
        "id-mapped"
    };
    row("workdir", &format!("{} ({identity})", shown.facts.workdir.display()));
    row("records", &shown.records.display().to_string());
    row("process", &format!("broker        pid {:<8} uid 0", std::process::id()));
    for line in &shown.processes {
        row("", &format!("{:<13} pid {:<8} uid {}", line.kind.name(), line.pid, line.uid));
    }
    for lack in &shown.lacks {
        row("lacks", lack);
    }
    format!("capsule-broker {}: {} {}\n{text}", env!("CARGO_PKG_VERSION"), manifest.name, manifest.version)
}

/// The payload of `session_start`.
pub(crate) fn session_start(shown: &Shown<'_>, manifest: &Manifest) -> SessionStart {
    let capabilities = &manifest.capabilities;
    let declared = match capabilities.containment {
        None | Some(Class::Advisory) => "advisory",
        Some(Class::Scoped) => "scoped",
        Some(Class::Sealed) => "sealed",
    };
    let network: Vec<String> = capabilities.network_allow.iter().map(ToString::to_string).collect();
    let mut granted = vec!["filesystem"];
    if !network.is_empty() {
        granted.push("network");
    }
    if !capabilities.shell_allow.is_empty() {
        granted.push("shell");
    }
    let mut tools: Vec<&str> = manifest
        .artifacts
        .iter()
        .filter(|artifact| artifact.role == Role::Tool)
        .map(|artifact| artifact.tool_name.as_str())
        .chain(capabilities.shell_allow.iter().map(String::as_str))
        .collect();
    tools.sort_unstable();
    tools.dedup();
    let gateways: Vec<Value> = manifest
        .artifacts
        .iter()
        .filter_map(|artifact| {
            let gateway = artifact.gateway.as_ref()?;
            Some(json!({
                "artifact": artifact.tool_name,
                "host": gateway.host.to_string(),
                "credential_source": "keyless",
                "metered": true,
            }))
        })
        .collect();
    let inference = manifest.inference.as_ref();
    let prompt = inference.and_then(|inference| inference.system_prompt.as_ref());
    let prompt_sha = match prompt {
        Some(SystemPrompt::Text(text)) => {
            use sha2::Digest;
            Value::from(ipc::types::hex(&sha2::Sha256::digest(text.as_bytes())))
        }
        Some(SystemPrompt::File(_)) | None => Value::Null,
    };
    let grants = json!({
        "declared": declared,
        "achieved": shown.facts.class.as_str(),
        "floor_met": true,
        "mechanism": shown.mechanism,
        "landlock_abi": shown.landlock_abi,
        "missing": shown.lacks,
        "shared_owner": shown.shared_owner,
        "network_allow": network,
        "shell_allow": capabilities.shell_allow,
        "env_allow": capabilities.env_allow,
        "exports_files": manifest.export_files.as_ref().map(|files| json!({
            "root": files.root.verbatim(),
            "mode": "read-only",
            "max_bytes": files.max_bytes.bytes(),
        })),
        "peer_files": null,
        "peer_fetch_allow": [],
    });
    SessionStart {
        fields: vec![
            ("capsule_name", manifest.name.as_str().into()),
            ("capsule_version", manifest.version.as_str().into()),
            ("model", inference.map_or("", |inference| inference.model.as_str()).into()),
            ("max_turns", inference.map(|inference| inference.max_turns).into()),
            ("max_session_tokens", Value::Null),
            ("machine_tokens_per_day", Value::Null),
            ("capabilities", granted.into()),
            ("tools_declared", tools.into()),
            ("containment_declared", declared.into()),
            ("containment_achieved", shown.facts.class.as_str().into()),
            ("userns_grant", Value::Null),
            ("workdir_exec", false.into()),
            ("resumed_from", Value::Null),
            ("context_id", Value::Null),
            ("system_prompt_source", if prompt.is_some() { "manifest" } else { "none" }.into()),
            ("system_prompt_sha256", prompt_sha),
            ("credential_source", if gateways.is_empty() { "none" } else { "keyless" }.into()),
            ("gateways", gateways.into()),
            ("tool_refresh", Value::Null),
            ("runtime_artifacts", Value::Array(Vec::new())),
            ("effective_grants", grants),
        ],
    }
}
