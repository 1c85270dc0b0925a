//! `--check`: what this capsule would be allowed on this host, without starting anything of it.
//!
//! The report is one document; for people it is laid out in rows. Whether the capsule would be launched is the exit status.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use serde_json::{Map, Value, json};

use crate::cli::Cli;
use crate::host;
use crate::manifest::{self, AfterTask, Artifact, Manifest, NetRule, Role, TaskAcceptance};
use crate::refusal::Refusal;
use crate::session::{agent, class, launch};

/// Checks, reports, and says by its status whether the capsule would be launched.
///
/// # Errors
/// What a launch would be refused with.
pub(crate) fn check(cli: &mut Cli) -> Result<ExitCode, Refusal> {
    let found = look(cli);
    if cli.json {
        let document = match &found {
            Ok(report) => report.clone(),
            Err(refusal) => refused(refusal),
        };
        print(&format!("{document:#}\n"));
    } else if let Ok(report) = &found
        && !cli.quiet
    {
        print(&rows(report));
    }
    found.map(|_| ExitCode::SUCCESS)
}

fn print(text: &str) {
    // A closed stdout leaves the status, which says the most.
    let _ = std::io::stdout().write_all(text.as_bytes());
}

fn refused(refusal: &Refusal) -> Value {
    json!({
        "launchable": false,
        "refusal": {
            "code": refusal.code,
            "what": refusal.what,
            "reason": refusal.reason,
            "hint": refusal.hint,
        },
    })
}

/// Everything a launch looks at before it makes anything.
fn look(cli: &mut Cli) -> Result<Value, Refusal> {
    let (manifest, warnings) = launch::read_manifest(cli)?;
    if !cli.json && !cli.quiet {
        warnings.iter().for_each(|warning| say!("{warning}"));
    }
    let user = host::ordinary::enter_unless_root(cli)?;
    let directory = cli.manifest.parent().unwrap_or(Path::new("."));
    let workdir = cli.workdir.clone().unwrap_or_else(|| directory.join("workdir"));
    manifest::check_files(&manifest, directory, &workdir)?;
    let programs = match cli.serve_only {
        true => Vec::new(),
        false => {
            agent::inference(&manifest)?;
            agent::programs(&manifest)?
        }
    };
    let containment = class::decide(cli, &manifest, &programs, user.as_ref())?;
    let ports = if programs.is_empty() { Vec::new() } else { agent::program_ports(&manifest)? };
    host::certificates::load(&manifest, &cli.ca_file)?;
    // The name is what matters; the address is known only once a session listens.
    let somewhere = handle::Address { tls: false, host: "localhost".into(), port: 80 };
    agent::fetch_peer_file(&manifest, &somewhere)?;
    let controllers = host::cgroup::probe()?;
    let lacks = launch::lacks(cli, &controllers, !programs.is_empty(), user.is_some())?;
    let capabilities = &manifest.capabilities;
    Ok(json!({
        "launchable": true,
        "capsule": {"name": manifest.name, "version": manifest.version},
        "class": {
            "floor": capabilities.containment.map(class_word),
            "achieved": containment.class.as_str(),
            "host_gives": containment.mechanism,
            "why_not_more": containment.weaker,
            "workdir_exec": containment.workdir_exec,
        },
        "identity": match &user {
            None => json!("a block of six ids for the session"),
            Some(user) => json!(format!("one id for all processes, {}", user.id.0)),
        },
        "programs": {
            "allow": programs.iter().map(|(name, path)| (name.clone(), json!(path))).collect::<Map<_, _>>(),
            "tcp_ports": ports,
            "unix_sockets": containment.unix_sockets,
            "read_only": capabilities.read_only,
            "interpreter_runtime": texts(capabilities.interpreter_runtime.iter().map(|entry| &entry.path)),
            "staged_runtime": texts(capabilities.staged_runtime.iter().map(|entry| &entry.path)),
        },
        "network": {
            "allow": rules(&capabilities.network_allow),
            "peer_fetch": capabilities.peer_fetch_allow.as_deref().map(rules),
        },
        "components": components(&manifest),
        "env": capabilities.env_allow,
        "limits": limits(&manifest),
        "resources": resources(&manifest),
        "planes": {
            "files": manifest.export_files.as_ref().map(|files| json!({
                "root": files.root.verbatim(),
                "max_bytes": files.max_bytes.bytes(),
            })),
            "peer_files": manifest.export_peer_files.as_ref().map(|files| json!({
                "root": files.root.verbatim(),
                "max_ttl_seconds": files.max_ttl.as_secs(),
                "max_bytes": files.max_bytes.bytes(),
            })),
        },
        "tasks": tasks(&manifest),
        "lacks": lacks,
        "warnings": warnings.iter().map(ToString::to_string).collect::<Vec<_>>(),
    }))
}

fn class_word(class: manifest::Class) -> &'static str {
    match class {
        manifest::Class::Advisory => "advisory",
        manifest::Class::Scoped => "scoped",
        manifest::Class::Sealed => "sealed",
    }
}

fn texts<'t>(texts: impl Iterator<Item = &'t String>) -> Vec<&'t str> {
    texts.map(String::as_str).collect()
}

fn rules(rules: &[NetRule]) -> Vec<String> {
    rules.iter().map(ToString::to_string).collect()
}

fn components(manifest: &Manifest) -> Map<String, Value> {
    let one = |artifact: &Artifact| {
        let allow = artifact.network_allow.as_deref().unwrap_or(&manifest.capabilities.network_allow);
        let scope = artifact.scope.as_ref().unwrap_or(&manifest.capabilities.scope);
        json!({
            "role": match artifact.role {
                Role::Tool => "tool",
                Role::Driver => "driver",
                Role::Hook => "hook",
            },
            "directory": match artifact.role {
                Role::Hook => Value::Null,
                Role::Tool | Role::Driver if scope.is_empty() => json!("."),
                Role::Tool | Role::Driver => json!(scope.join("/")),
            },
            "network": match artifact.role {
                Role::Hook => Vec::new(),
                Role::Tool | Role::Driver => rules(allow),
            },
            "gateway": artifact.gateway.as_ref().map(ToString::to_string),
        })
    };
    manifest.artifacts.iter().map(|artifact| (artifact.name.clone(), one(artifact))).collect()
}

fn limits(manifest: &Manifest) -> Value {
    let limits = &manifest.capabilities.limits;
    json!({
        "memory_bytes": limits.memory_bytes,
        "table_elements": limits.table_elements,
        "instances": limits.instances,
        "deadline_seconds": limits.deadline_seconds,
        "hook_deadline_seconds": limits.hook_deadline_seconds,
    })
}

fn resources(manifest: &Manifest) -> Value {
    let resources = &manifest.capabilities.resources;
    json!({
        "max_processes": resources.max_processes,
        "max_open_files": resources.max_open_files,
        "max_file_size_bytes": resources.max_file_size_bytes,
        "cpu_seconds": resources.cpu_seconds,
        "memory_bytes": resources.memory_bytes,
        "cgroup_memory_bytes": resources.cgroup_memory_bytes,
        "cgroup_pids_max": resources.cgroup_pids_max,
        "cgroup_cpu_percent": resources.cgroup_cpu_percent,
        "cgroup_io_bytes_per_sec": resources.cgroup_io_bytes_per_sec,
        "workdir_max_bytes": resources.workdir_max_bytes,
    })
}

fn tasks(manifest: &Manifest) -> Value {
    let (inference, lifecycle) = (manifest.inference.as_ref(), &manifest.lifecycle);
    json!({
        "acceptance": match lifecycle.task_acceptance {
            TaskAcceptance::None => "none",
            TaskAcceptance::Single => "single",
            TaskAcceptance::Queue => "queue",
        },
        "after_task": match lifecycle.after_task {
            AfterTask::Exit => "exit",
            AfterTask::Sleep => "sleep",
        },
        "queue_depth": lifecycle.queue_depth,
        "model": inference.map(|inference| inference.model.as_str()),
        "max_turns": inference.map(|inference| inference.max_turns),
        "max_tokens": inference.map(|inference| inference.max_tokens),
    })
}

/// The document in rows: a key a row, what is in it behind it.
fn rows(report: &Value) -> String {
    let mut text = String::new();
    let Value::Object(sections) = report else { return text };
    for (name, section) in sections {
        match (name.as_str(), section) {
            // Of the warnings people read on standard error.
            ("launchable" | "warnings", _) => {}
            ("lacks", Value::Array(lacks)) if lacks.is_empty() => {}
            (_, Value::Object(entries)) => {
                text.push_str(&format!("{name}\n"));
                for (key, value) in entries {
                    text.push_str(&format!("  {key:<24} {}\n", said(value)));
                }
            }
            (_, other) => text.push_str(&format!("{name:<26} {}\n", said(other))),
        }
    }
    text.push_str("It would be launched.\n");
    text
}

/// A value in words; what the manifest chose is escaped, as in its refusals.
fn said(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.chars().flat_map(escaped).collect(),
        Value::Array(values) if values.is_empty() => "none".to_owned(),
        Value::Array(values) => values.iter().map(said).collect::<Vec<_>>().join(", "),
        Value::Object(entries) => {
            let entries = entries.iter().filter(|(_, value)| !value.is_null());
            entries.map(|(key, value)| format!("{key} {}", said(value))).collect::<Vec<_>>().join(", ")
        }
    }
}

fn escaped(c: char) -> Vec<char> {
    if c.is_control() { c.escape_default().collect() } else { vec![c] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_say_what_the_document_says() {
        let report = json!({
            "launchable": true,
            "capsule": {"name": "a\u{1b}b", "version": "1"},
            "class": {"floor": null, "achieved": "sealed", "workdir_exec": false},
            "components": {"x": {"role": "tool", "network": ["h:1", "i:2"], "gateway": null}},
            "env": [],
            "lacks": [],
        });
        let expected = "capsule\n  name                     a\\u{1b}b\n  version                  1\n\
                        class\n  floor                    -\n  achieved                 sealed\n  \
                        workdir_exec             no\n\
                        components\n  x                        role tool, network h:1, i:2\n\
                        env                        none\nIt would be launched.\n";
        assert_eq!(rows(&report), expected);
    }
}
