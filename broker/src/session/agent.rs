//! What sandbox-host, runner and egress are told about the capsule, made from the manifest.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use ipc::edge::control::{
    Controllers, EgressConfigure, Gateway, Limits, MAX_LISTENERS, NetworkRule, RunnerConfigure, Scheme,
};
use ipc::edge::host_broker::{Acceptance, Agent, Artifact, Capture, ComponentLimits, FetchPeerFile, Role};

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
    /// The same, taken apart.
    pub(crate) address: &'a handle::Address,
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
    let inference = inference(manifest)?;
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
                manifest::Role::Hook => Role::Hook,
            },
            cache_entry: compiled.entry.clone(),
            description: compiled.facts.description.clone(),
            input_schema: compiled.facts.input_schema.clone(),
            config: artifact.config.clone(),
            gateway_path: artifact.gateway.as_ref().map(|gateway| gateway.path.clone()),
            scope: match artifact.role {
                manifest::Role::Hook => Vec::new(),
                manifest::Role::Tool | manifest::Role::Driver => {
                    artifact.scope.clone().unwrap_or_else(|| manifest.capabilities.scope.clone())
                }
            },
            hook: compiled.facts.hook,
        })
        .collect();
    let limits = manifest.capabilities.limits;
    let limited_to = |deadline_seconds| ComponentLimits {
        memory_bytes: limits.memory_bytes,
        table_elements: limits.table_elements,
        instances: limits.instances,
        deadline_seconds,
    };
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
        limits: limited_to(limits.deadline_seconds),
        hook_limits: limited_to(limits.hook_deadline_seconds),
        read_only: manifest.capabilities.read_only.clone(),
        workdir_max_bytes: manifest.capabilities.resources.workdir_max_bytes,
        capture: match manifest.capture {
            manifest::Capture::None => Capture::None,
            manifest::Capture::Meta => Capture::Meta,
            manifest::Capture::Content => Capture::Content,
        },
        workdir: facts.workdir.display().to_string(),
        network_allow: manifest.capabilities.network_allow.iter().map(ToString::to_string).collect(),
        share_file: manifest.export_peer_files.is_some(),
        fetch_peer_file: fetch_peer_file(manifest, facts.address)?,
    })
}

/// The most bytes of a file that is fetched from a peer, unless the workdir's own limit is lower.
const MAX_FETCH: u64 = 64 * 1024 * 1024;

/// What `fetch-peer-file` is told.
///
/// # Errors
/// `E-MAN-003` for a capsule that no peer could mint a handle for.
pub(crate) fn fetch_peer_file(
    manifest: &Manifest,
    address: &handle::Address,
) -> Result<Option<FetchPeerFile>, Refusal> {
    if manifest.capabilities.peer_fetch_allow.is_none() {
        return Ok(None);
    }
    let audience = handle::audience(&manifest.name, address).map_err(|error| {
        Refusal::new(
            "E-MAN-003",
            "capabilities.peer_fetch",
            format!("this capsule's name names no audience: {error}"),
        )
        .hint("give the capsule a plain name")
    })?;
    let max_bytes = MAX_FETCH.min(manifest.capabilities.resources.workdir_max_bytes);
    Ok(Some(FetchPeerFile { audience, max_bytes }))
}

/// What the agent thinks with.
///
/// # Errors
/// `E-RUN-005`.
pub(crate) fn inference(manifest: &Manifest) -> Result<&manifest::Inference, Refusal> {
    manifest.inference.as_ref().ok_or_else(no_driver)
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

/// What programs get of the host's variables: the usual ones and those asked for, without what belongs to the runtime or the
/// loader and what looks like a credential.
fn program_variables(
    host: impl Iterator<Item = (std::ffi::OsString, std::ffi::OsString)>,
    strip: &[String],
    more: &[String],
) -> Vec<(String, String)> {
    const OWNED: [&str; 8] = ["PATH", "HOME", "USERPROFILE", "TMPDIR", "TMP", "TEMP", "BASH_ENV", "ENV"];
    let text = host.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let mut variables: Vec<(String, String)> = text
        .filter(|(name, _)| {
            let asked = more.iter().any(|pattern| manifest::env::matches(pattern, name));
            let ours =
                OWNED.contains(&name.as_str()) || name.starts_with("MURMUR_") || name.starts_with("LD_");
            (BASELINE.contains(&name.as_str()) || asked) && !ours && !manifest::env::is_stripped(name, strip)
        })
        .collect();
    variables.sort();
    variables
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
    controllers: Controllers,
) -> RunnerConfigure {
    let session = facts.session.display();
    let temporary = if facts.tmp_mapped { "/tmp".to_owned() } else { format!("{session}/tmp") };
    let mut environment = vec![("PATH".to_owned(), PROGRAM_PATH.to_owned())];
    let (strip, more) = (&manifest.capabilities.strip_env, &manifest.capabilities.baseline_env);
    environment.extend(program_variables(std::env::vars_os(), strip, more));
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
            processes: if controllers.pids { u64::MAX } else { resources.max_processes },
        },
        leaves,
        controllers,
        pids_max: resources.cgroup_pids_max,
        strip_env: manifest.capabilities.strip_env.clone(),
    }
}

/// The ports at which programs' connections are taken, ascending: what the list implies, and for an entry that names none the
/// two of the web.
///
/// # Errors
/// `E-CAP-001` for more than there are listeners.
pub(crate) fn program_ports(manifest: &Manifest) -> Result<Vec<u16>, Refusal> {
    let rules = &manifest.capabilities.network_allow;
    let ports: BTreeSet<u16> =
        rules.iter().flat_map(|rule| rule.port.map_or(vec![80, 443], |port| vec![port])).collect();
    if ports.len() > MAX_LISTENERS {
        return Err(Refusal::new(
            "E-CAP-001",
            "capabilities.network.allow",
            format!("programs can use {MAX_LISTENERS} different ports, and the entries name {}", ports.len()),
        )
        .hint("name fewer ports, or allow no program"));
    }
    Ok(ports.into_iter().collect())
}

/// What egress is told; `certificates` files of trusted certificates go with it. Names lead to no door at `door`.
pub(crate) fn egress(
    manifest: &Manifest,
    certificates: u8,
    door: SocketAddr,
    programs: bool,
) -> EgressConfigure {
    let mut gateways = Vec::new();
    let mut allow = Vec::new();
    for artifact in &manifest.artifacts {
        if let Some(gateway) = &artifact.gateway {
            gateways.push(Gateway {
                artifact: artifact.tool_name.clone(),
                tls: gateway.scheme == manifest::Scheme::Https,
                host: bare(&gateway.host),
                port: gateway.port,
            });
        }
        // A hook has its own list or nothing: the capsule's does not reach it.
        let inherited = match artifact.role {
            manifest::Role::Hook => &Vec::new(),
            manifest::Role::Tool | manifest::Role::Driver => &manifest.capabilities.network_allow,
        };
        let rules = artifact.network_allow.as_ref().unwrap_or(inherited);
        allow.push((artifact.tool_name.clone(), rules.iter().map(rule).collect()));
    }
    let capabilities = &manifest.capabilities;
    let card =
        manifest.export_peer_files.is_some().then(|| capabilities.network_allow.iter().map(rule).collect());
    let redeem = capabilities.peer_fetch_allow.as_ref().map(|rules| rules.iter().map(rule).collect());
    let programs = if programs { capabilities.network_allow.iter().map(rule).collect() } else { Vec::new() };
    EgressConfigure { gateways, allow, card, redeem, programs, door: Some(door), certificates }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::ParseOptions;

    fn manifest(entries: &str) -> Manifest {
        let text = format!(
            "name: x\nversion: \"0.1.0\"\ncapabilities: {{network: {{allow: [{entries}]}}}}\n\
             exports: {{files: {{root: out/, mode: read-only}}}}\n"
        );
        crate::manifest::parse(&text, ParseOptions::default()).unwrap().0
    }

    #[test]
    fn every_entry_implies_its_port_and_one_without_the_two_of_the_web() {
        for (entries, ports) in [
            ("", &[][..]),
            ("'https://a.example'", &[443]),
            ("'http://a.example', 'https://b.example:8443', c.example:22", &[22, 80, 8443]),
            ("a.example", &[80, 443]),
            ("a.example, 'http://b.example', c.example:80, '[::1]:7'", &[7, 80, 443]),
        ] {
            assert_eq!(program_ports(&manifest(entries)).unwrap(), ports, "{entries}");
        }
    }

    #[test]
    fn more_ports_than_listeners_are_refused_with_a_code() {
        let entries =
            |most: u16| (1..=most).map(|port| format!("a.example:{port}")).collect::<Vec<_>>().join(", ");
        assert_eq!(program_ports(&manifest(&entries(16))).unwrap().len(), 16);
        let refusal = program_ports(&manifest(&entries(17))).unwrap_err().to_string();
        assert!(refusal.contains("E-CAP-001") && refusal.contains("17"), "{refusal}");
    }
}
