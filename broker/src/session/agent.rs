//! What sandbox-host, runner and egress are told about the capsule, made from the manifest.

use std::path::{Path, PathBuf};

use ipc::edge::control::{EgressConfigure, Gateway, Limits, NetworkRule, RunnerConfigure, Scheme};
use ipc::edge::host_broker::{Acceptance, Agent, Artifact, Capture, ComponentLimits, Role};

use crate::artifacts::Compiled;
use crate::manifest::{self, AfterTask, Host, Manifest, NetRule, SystemPrompt, TaskAcceptance};
use crate::refusal::Refusal;

/// Where programs are looked up: fixed, absolute, never the workdir.
const PROGRAM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Host variables a program gets if they are set.
const BASELINE: [&str; 7] = ["USER", "LOGNAME", "LANG", "LC_ALL", "CARGO_HOME", "RUSTUP_HOME", "TERM"];

/// Facts of the session that several documents repeat.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    /// `ses_…`
    pub(crate) session_id: &'a str,
    /// `host:port` of the listener.
    pub(crate) url: &'a str,
    /// The class programs get.
    pub(crate) class: ipc::types::Class,
    /// The accessible workdir's path.
    pub(crate) workdir: &'a Path,
    /// The session directory's path.
    pub(crate) session: &'a Path,
    /// The runtime directory's path.
    pub(crate) runtime: &'a Path,
    /// Whether the session's `tmp/` stands at `/tmp` for programs.
    pub(crate) tmp_mapped: bool,
}

/// Finds every allowed program.
///
/// # Errors
/// `E-IO-001` naming one that is not installed: a capsule that may run a program it does not find would fail later and less
/// clearly.
pub(crate) fn programs(manifest: &Manifest) -> Result<Vec<(String, String)>, Refusal> {
    let find = |name: &String| {
        PROGRAM_PATH.split(':').map(|dir| Path::new(dir).join(name)).find_map(|path| {
            use std::os::unix::fs::PermissionsExt;
            let path: PathBuf = path.canonicalize().ok()?;
            let meta = path.metadata().ok()?;
            (meta.is_file() && meta.permissions().mode() & 0o111 != 0).then(|| path.display().to_string())
        })
    };
    manifest
        .capabilities
        .shell_allow
        .iter()
        .map(|name| match find(name) {
            Some(path) => Ok((name.clone(), path)),
            None => Err(Refusal::new(
                "E-IO-001",
                format!("capabilities.shell.allow: {name}"),
                format!("no such program in {PROGRAM_PATH}"),
            )
            .hint("install it, or take it out of the list")),
        })
        .collect()
}

/// The whole agent.
///
/// # Errors
/// `E-RUN-005` without an inference driver; `E-RUN-009` if the prompt file cannot be read.
pub(crate) fn agent(
    manifest: &Manifest,
    manifest_dir: &Path,
    compiled: &[Compiled],
    programs: &[(String, String)],
    facts: &Facts<'_>,
    task: Option<String>,
) -> Result<Agent, Refusal> {
    let inference = manifest.inference.as_ref().ok_or_else(no_driver)?;
    let driver = manifest.artifacts.get(inference.driver).ok_or_else(no_driver)?;
    let artifacts = manifest
        .artifacts
        .iter()
        .zip(compiled)
        .map(|(artifact, compiled)| Artifact {
            name: artifact.tool_name.clone(),
            role: match artifact.role {
                manifest::Role::Tool => Role::Tool,
                manifest::Role::Driver => Role::Driver,
            },
            cache_entry: compiled.entry.clone(),
            description: compiled.facts.description.clone(),
            input_schema: compiled.facts.input_schema.clone(),
            config: artifact.config.clone(),
            gateway_path: artifact.gateway.as_ref().map(|gateway| gateway.path.clone()),
            scope: Vec::new(),
        })
        .collect();
    let limits = manifest.capabilities.limits;
    Ok(Agent {
        session_id: facts.session_id.to_owned(),
        name: manifest.name.clone(),
        version: manifest.version.clone(),
        url: facts.url.to_owned(),
        class: facts.class,
        artifacts,
        driver: driver.tool_name.clone(),
        model: inference.model.clone(),
        driver_config: inference.driver_config.clone(),
        max_turns: inference.max_turns,
        max_tokens: inference.max_tokens,
        system_prompt: system_prompt(inference.system_prompt.as_ref(), manifest_dir)?,
        shell: programs.to_vec(),
        environment: host_variables(manifest.capabilities.env_allow.iter().map(String::as_str)),
        acceptance: match manifest.lifecycle.task_acceptance {
            TaskAcceptance::None => Acceptance::None,
            TaskAcceptance::Single => Acceptance::Single,
            TaskAcceptance::Queue => Acceptance::Queue,
        },
        sleep: manifest.lifecycle.after_task == AfterTask::Sleep,
        queue_depth: manifest.lifecycle.queue_depth,
        task,
        limits: ComponentLimits {
            memory_bytes: limits.memory_bytes,
            table_elements: limits.table_elements,
            instances: limits.instances,
            deadline_seconds: limits.deadline_seconds,
        },
        capture: match manifest.capture {
            manifest::Capture::None => Capture::None,
            manifest::Capture::Meta => Capture::Meta,
            manifest::Capture::Content => Capture::Content,
        },
        workdir: facts.workdir.display().to_string(),
        network_allow: manifest.capabilities.network_allow.iter().map(ToString::to_string).collect(),
    })
}

fn no_driver() -> Refusal {
    Refusal::new("E-RUN-005", "inference.driver", "the manifest configures no inference driver")
        .hint("name a driver artifact, or serve files alone with --serve-only")
}

/// The most bytes of a prompt file.
const MAX_PROMPT: u64 = 1024 * 1024;

fn system_prompt(prompt: Option<&SystemPrompt>, manifest_dir: &Path) -> Result<Option<String>, Refusal> {
    use std::io::Read;
    match prompt {
        None => Ok(None),
        Some(SystemPrompt::Text(text)) => Ok(Some(text.clone())),
        Some(SystemPrompt::File(file)) => {
            let path = manifest_dir.join(file);
            let mut text = String::new();
            std::fs::File::open(&path)
                .and_then(|file| file.take(MAX_PROMPT).read_to_string(&mut text))
                .map_err(|error| Refusal::new("E-RUN-009", path.display().to_string(), error.to_string()))?;
            Ok(Some(text))
        }
    }
}

fn host_variables<'a>(names: impl Iterator<Item = &'a str>) -> Vec<(String, String)> {
    names.filter_map(|name| Some((name.to_owned(), std::env::var(name).ok()?))).collect()
}

/// What the runner is told.
pub(crate) fn runner(
    manifest: &Manifest,
    programs: Vec<(String, String)>,
    facts: &Facts<'_>,
    leaves: u32,
    tasks_limited: bool,
) -> RunnerConfigure {
    let session = facts.session.display();
    let temporary = if facts.tmp_mapped { "/tmp".to_owned() } else { format!("{session}/tmp") };
    let mut environment = vec![("PATH".to_owned(), PROGRAM_PATH.to_owned())];
    environment.extend(host_variables(BASELINE.into_iter()));
    let mut set = |name: &str, value: String| environment.push((name.to_owned(), value));
    set("MURMUR_CAPSULE_NAME", manifest.name.clone());
    set("MURMUR_CAPSULE_VERSION", manifest.version.clone());
    set("MURMUR_SESSION_ID", facts.session_id.to_owned());
    set("MURMUR_CAPSULE_URL", facts.url.to_owned());
    for name in ["HOME", "USERPROFILE"] {
        set(name, format!("{session}/home"));
    }
    set("MURMUR_RUNTIME_DIR", facts.runtime.display().to_string());
    set("MURMUR_RECORDS_DIR", session.to_string());
    for name in ["TMPDIR", "TMP", "TEMP"] {
        set(name, temporary.clone());
    }
    let resources = manifest.capabilities.resources;
    RunnerConfigure {
        workdir: facts.workdir.display().to_string(),
        programs,
        environment,
        limits: Limits {
            open_files: resources.max_open_files,
            file_size: resources.max_file_size_bytes,
            cpu_seconds: resources.cpu_seconds,
            memory: resources.memory_bytes,
            // The group's limit counts this session's tasks alone; the per-id limit would count others of the same id too.
            processes: if tasks_limited { u64::MAX } else { resources.max_processes },
        },
        leaves,
    }
}

/// What egress is told.
///
/// # Errors
/// `E-MAN-003` for an `https` gateway, which this version cannot reach yet.
pub(crate) fn egress(manifest: &Manifest) -> Result<EgressConfigure, Refusal> {
    let mut gateways = Vec::new();
    let mut allow = Vec::new();
    for (index, artifact) in manifest.artifacts.iter().enumerate() {
        if let Some(gateway) = &artifact.gateway {
            if gateway.scheme == manifest::Scheme::Https {
                let what = format!("artifacts[{index}].gateway.endpoint");
                return Err(Refusal::new("E-MAN-003", what, "https: not supported yet")
                    .hint("point the gateway at a plain http listener on this machine"));
            }
            gateways.push(Gateway {
                artifact: artifact.tool_name.clone(),
                tls: false,
                host: bare(&gateway.host),
                port: gateway.port,
            });
        }
        let rules = artifact.network_allow.as_ref().unwrap_or(&manifest.capabilities.network_allow);
        allow.push((artifact.tool_name.clone(), rules.iter().map(rule).collect()));
    }
    Ok(EgressConfigure { gateways, allow })
}

fn rule(rule: &NetRule) -> NetworkRule {
    NetworkRule {
        scheme: rule.scheme.map(|scheme| match scheme {
            manifest::Scheme::Http => Scheme::Http,
            manifest::Scheme::Https => Scheme::Https,
        }),
        host: bare(&rule.host),
        port: rule.port,
    }
}

/// A host without brackets.
fn bare(host: &Host) -> String {
    match host {
        Host::Name(name) => name.clone(),
        Host::Address(address) => address.to_string(),
    }
}
