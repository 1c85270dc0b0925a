//! What a launch tells: the ready line for programs, the banner for people, `session_start` for the record.

use std::io::{IsTerminal, Write};

use serde_json::{Value, json};

use super::agent::Facts;
use super::process::Kind;
use crate::host::ordinary::User;
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
    /// The class whose mechanisms programs get.
    pub(crate) tier: ipc::types::Class,
    /// What the host can back.
    pub(crate) mechanism: &'static str,
    /// Whether roles that see the workdir run under its owner's id.
    pub(crate) shared_owner: bool,
    /// The user whose id every process has, if the broker is not root's.
    pub(crate) user: Option<&'a User>,
    /// The Landlock version enforced.
    pub(crate) landlock_abi: u32,
    /// What the host lacks, one line each.
    pub(crate) lacks: Vec<String>,
    /// Why reads and writes of programs are not limited, if they are not.
    pub(crate) io_unlimited: Option<String>,
    /// Whether there are programs at all.
    pub(crate) runs_programs: bool,
    /// The processes.
    pub(crate) processes: Vec<Line>,
}

/// What ids keep apart where root starts a session, and what alone keeps it apart where an ordinary user does
/// (`docs/threat-model.md`, One id).
const RESTS: [(&str, &str); 5] = [
    ("processes from each other", "PID and user namespaces, not dumpable, no capability, filters"),
    ("your other processes", "PID namespaces, Landlock scopes, filters"),
    ("your files from the processes", "private and composed roots, read-only mounts, Landlock"),
    ("what your supplementary groups may open", "the same; a user namespace takes no group away"),
    (
        "counts per user (pipes, watches, descriptors in flight)",
        "nothing: what programs use up, the others lack",
    ),
];

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
    let applied = match shown.tier {
        ipc::types::Class::Sealed => "mountns+pivot_root+landlock+seccomp",
        ipc::types::Class::Scoped => "landlock+seccomp",
        ipc::types::Class::Advisory => "seccomp alone: programs see the host's files",
    };
    row("class", &format!("{}: {applied}", shown.facts.class.as_str()));
    let identity = match (shown.user, shown.shared_owner) {
        (Some(_), _) => "under your own id",
        (None, true) => {
            "shown under its owner's id to three processes: the file system refuses id-mapped mounts"
        }
        (None, false) => "id-mapped",
    };
    row("workdir", &format!("{} ({identity})", shown.facts.workdir.display()));
    row("records", &shown.records.display().to_string());
    let broker = shown.user.map_or(0, |user| user.id.0);
    row("process", &format!("broker        pid {:<8} uid {broker}", std::process::id()));
    for line in &shown.processes {
        row("", &format!("{:<13} pid {:<8} uid {}", line.kind.name(), line.pid, line.uid));
    }
    if let Some(user) = shown.user {
        row(
            "one id",
            &format!("every process has yours, {}; namespaces and filters alone then keep", user.id.0),
        );
        for (what, by) in RESTS {
            row("", &format!("{what}: {by}"));
        }
    }
    for lack in &shown.lacks {
        row("lacks", lack);
    }
    format!("capsule-broker {}: {} {}\n{text}", env!("CARGO_PKG_VERSION"), manifest.name, manifest.version)
}

/// What became of `cgroup_io_bytes_per_sec`.
fn io_max(shown: &Shown<'_>, declared: u64) -> Value {
    match &shown.io_unlimited {
        _ if !shown.runs_programs => json!({"declared_bytes_per_sec": declared, "status": "not-required"}),
        None => json!({"declared_bytes_per_sec": declared, "status": "enforced"}),
        Some(why) => {
            json!({"declared_bytes_per_sec": declared, "status": "unavailable", "reason": why})
        }
    }
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
        .chain(manifest.export_peer_files.is_some().then_some("share-file"))
        .chain(capabilities.peer_fetch_allow.is_some().then_some("fetch-peer-file"))
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
        "enforcement_tier": match shown.tier {
            ipc::types::Class::Sealed => "sealed",
            ipc::types::Class::Scoped => "full",
            ipc::types::Class::Advisory => "seccomp-only",
        },
        "read_only_paths": capabilities.read_only,
        "mechanism": shown.mechanism,
        "landlock_abi": shown.landlock_abi,
        "missing": shown.lacks,
        "shared_owner": shown.shared_owner,
        "io_max": io_max(shown, capabilities.resources.cgroup_io_bytes_per_sec),
        "one_id": shown.user.map(|user| json!({
            "uid": user.id.0,
            "gid": user.id.1,
            "rests_on": RESTS.iter().map(|(what, by)| format!("{what}: {by}")).collect::<Vec<_>>(),
        })),
        "network_allow": network,
        "shell_allow": capabilities.shell_allow,
        "env_allow": capabilities.env_allow,
        "exports_files": manifest.export_files.as_ref().map(|files| json!({
            "root": files.root.verbatim(),
            "mode": "read-only",
            "max_bytes": files.max_bytes.bytes(),
        })),
        "peer_files": manifest.export_peer_files.as_ref().map(|files| json!({
            "root": files.root.verbatim(),
            "max_ttl_secs": files.max_ttl.as_secs(),
            "max_bytes": files.max_bytes.bytes(),
        })),
        "peer_fetch_allow": capabilities
            .peer_fetch_allow
            .iter()
            .flatten()
            .map(ToString::to_string)
            .collect::<Vec<_>>(),
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
            ("userns_grant", shown.user.map(|user| user.grant).into()),
            ("workdir_exec", capabilities.workdir_exec.into()),
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
