//! The agent card: everything a client may know before it sends anything.

use serde_json::{Value, json};

use crate::manifest::{Manifest, Role, TaskAcceptance};

/// Base of the extension identifiers that Murmur clients look for.
const EXTENSIONS: &str = "https://docs.murmur.nexus/reference/";

/// The card as compact JSON.
pub(crate) fn card(manifest: &Manifest, url: &str, session: &str, serve_only: bool) -> String {
    let takes_tasks = !serve_only
        && manifest.inference.is_some()
        && manifest.lifecycle.task_acceptance != TaskAcceptance::None;
    let methods: &[&str] = match (serve_only, takes_tasks) {
        (true, _) => &[],
        (false, true) => &["SendMessage", "GetTask", "CancelTask"],
        (false, false) => &["GetTask", "CancelTask"],
    };
    let skills = if takes_tasks {
        json!([{
            "id": "task",
            "name": "Run a task",
            "description": format!("Give {} a task in words; the answer is text.", manifest.name),
            "tags": ["task"],
        }])
    } else {
        json!([])
    };
    let tools: Vec<&str> = manifest
        .artifacts
        .iter()
        .filter(|artifact| artifact.role == Role::Tool)
        .map(|artifact| artifact.tool_name.as_str())
        .collect();
    let declared =
        [("files", manifest.export_files.is_some()), ("peer_files", manifest.export_peer_files.is_some())];
    let planes: Vec<&str> = declared.iter().filter_map(|(plane, is)| is.then_some(*plane)).collect();
    let extension = |page: &str, description: &str, params: Value| {
        json!({
            "uri": format!("{EXTENSIONS}{page}"),
            "description": description,
            "required": false,
            "params": params,
        })
    };
    let extensions = vec![
        extension(
            "agent-card/#murmur-door-v1",
            "Methods this listener serves",
            json!({"methods": methods, "peerTasks": false}),
        ),
        extension(
            "agent-card/#murmur-capsule-v1",
            "What this capsule is and holds",
            json!({
                "sessionId": session,
                "tools": tools,
                "shell": manifest.capabilities.shell_allow,
                "network": manifest.capabilities.network_allow.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "planes": planes,
            }),
        ),
    ];
    let card = json!({
        "name": manifest.name,
        "description": format!("Murmur capsule {} {}", manifest.name, manifest.version),
        "version": manifest.version,
        // Where minters read it (seed: Audience binding); the newer card format has it in the interface.
        "url": url,
        "supportedInterfaces": [{"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
        "capabilities": {
            "streaming": false,
            "pushNotifications": false,
            "extendedAgentCard": false,
            "extensions": extensions,
        },
        "securitySchemes": {},
        "securityRequirements": [],
        "defaultInputModes": ["text/plain", "application/json"],
        "defaultOutputModes": ["text/plain", "application/json"],
        "skills": skills,
    });
    card.to_string()
}
