//! `artifacts[]`: what each entry is, where it comes from and what it may do.

use super::block::{Context, Field, Map};
use super::capabilities as caps;
use super::error::{ManifestError, shown};
use super::json;
use super::model::{Artifact, Origin, Role};
use super::net::{Endpoint, NetRule};
use super::value::is_bare_name;

/// Names of tools the runtime itself provides, taken whether or not their grant is declared.
const RESERVED: &[&str] = &[
    "share-file",
    "fetch-peer-file",
    "delegate-task",
    "submit-plan",
    "switch-driver",
    "call-member",
    "end-without-answer",
    "pull-artifact",
    "remove-artifact",
    "session-status",
    "background-command",
];

/// Every word `runtime` may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runtime {
    Tool,
    Driver,
    Hook,
    Skill,
}

impl Runtime {
    const WORDS: &'static [(&'static str, Self)] =
        &[("tool", Self::Tool), ("driver", Self::Driver), ("hook", Self::Hook), ("skill", Self::Skill)];

    fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, role)| *role == self).map_or("", |(word, _)| *word)
    }
}

/// Reads the list. `ceiling` is the capsule's `network.allow`; `driver` is the configured driver's name.
pub(super) fn read(
    ctx: &mut Context,
    top: &Map<'_>,
    ceiling: &[NetRule],
    driver: Option<&str>,
) -> Result<Vec<Artifact>, ManifestError> {
    let Some(list) = top.get("artifacts") else { return Ok(Vec::new()) };
    let mut artifacts: Vec<Artifact> = Vec::new();
    for field in list.list()? {
        let artifact = read_entry(ctx, &field, ceiling, driver)?;
        if RESERVED.contains(&artifact.tool_name.as_str()) {
            let reason = format!("{} is the name of a tool the runtime provides", shown(&artifact.tool_name));
            return Err(field.coded("E-CAP-013", reason).hint("rename the artifact"));
        }
        if artifacts.iter().any(|earlier| earlier.tool_name == artifact.tool_name) {
            let reason = format!("a second artifact is called {}", shown(&artifact.tool_name));
            return Err(field.coded("E-CAP-020", reason).hint("the part after the scope must differ"));
        }
        artifacts.push(artifact);
    }
    Ok(artifacts)
}

fn read_entry(
    ctx: &mut Context,
    field: &Field<'_>,
    ceiling: &[NetRule],
    driver: Option<&str>,
) -> Result<Artifact, ManifestError> {
    let entry = field.map()?;
    let name_field = entry.require("name")?;
    let name = name_field.text()?;
    let runtime = read_runtime(&entry)?;
    let source = entry.text("source")?;
    let tool_name = check_name(&name_field, &name, source.is_some())?;
    let origin = read_origin(ctx, &entry, &name, runtime, source)?;
    entry.flag("prompt_payload")?;
    let network_allow = match entry.get("capabilities") {
        Some(block) if runtime == Runtime::Skill => {
            return Err(block.error("a skill runs nothing and takes none"));
        }
        Some(block) => read_capabilities(ctx, &block.map()?, &name, runtime, ceiling)?,
        None => None,
    };
    let scope = match entry.map("capabilities")? {
        Some(block) if runtime != Runtime::Hook => {
            block.map("filesystem")?.map_or(Ok(None), |block| caps::scope(&block))?
        }
        _ => None,
    };
    if let Some(overflow) = entry.get("on_overflow") {
        if runtime != Runtime::Hook {
            return Err(overflow.error("only a hook takes it"));
        }
        overflow.word(&[("drop", ()), ("block", ())])?;
    }
    let config = read_config(&entry, runtime)?;
    let gateway = read_gateway(ctx, &entry, &name, &tool_name, runtime, driver)?;
    let role = match runtime {
        Runtime::Tool => Role::Tool,
        Runtime::Driver => Role::Driver,
        Runtime::Hook => Role::Hook,
        Runtime::Skill => {
            // The refusal comes at the end of the parse; until then any role will do.
            ctx.unbuilt(format!("{}: {}", entry.path("runtime"), runtime.word()), entry.line);
            Role::Tool
        }
    };
    Ok(Artifact { name, tool_name, role, origin, network_allow, config, gateway, scope })
}

fn read_runtime(entry: &Map<'_>) -> Result<Runtime, ManifestError> {
    let Some(field) = entry.get("runtime") else { return Ok(Runtime::Tool) };
    if matches!(field.text()?.as_str(), "wasm" | "native") {
        return Err(field.error("is how an artifact is built, not what it is for").hint(
            "write tool, driver, hook or skill; wasm and native belong to the artifact's own manifest",
        ));
    }
    field.word(Runtime::WORDS)
}

/// Checks the name and returns the part the model sees.
fn check_name(field: &Field<'_>, name: &str, local: bool) -> Result<String, ManifestError> {
    let grammar = "1 to 100 of a-z, 0-9 and -, without - at either end";
    match name.split_once('/') {
        Some(_) if local => Err(field
            .error(format!("{} names a scope, which an artifact with a source has not", shown(name)))
            .hint("drop the scope")),
        Some((scope, bare)) if is_bare_name(scope) && is_bare_name(bare) => Ok(bare.to_owned()),
        None if is_bare_name(name) => Ok(name.to_owned()),
        Some(_) | None => {
            let kind = if local { "a name" } else { "a name or scope/name" };
            Err(field.error(format!("{} is not {kind}", shown(name))).hint(format!("a name is {grammar}")))
        }
    }
}

fn read_origin(
    ctx: &mut Context,
    entry: &Map<'_>,
    name: &str,
    runtime: Runtime,
    source: Option<String>,
) -> Result<Origin, ManifestError> {
    let local = entry.flag("local_source")?.unwrap_or(runtime == Runtime::Skill);
    let version = entry.text("version")?;
    let Some(source) = source else {
        let version =
            version.ok_or_else(|| entry.missing("version").hint("or give the artifact a source"))?;
        // It becomes a file's name.
        let safe = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'+' | b'_');
        if version.len() > 100 || version.starts_with('.') || !version.bytes().all(safe) {
            return Err(entry.require("version")?.error(format!("{} is not a version", shown(&version))));
        }
        return Ok(Origin::Installed { version });
    };
    let field = entry.require("source")?;
    if !local {
        let reason = format!(
            "the {} {} is read from a path, which needs local_source: true",
            runtime.word(),
            shown(name)
        );
        return Err(field.error(reason));
    }
    if source.chars().any(char::is_control) {
        return Err(field.error("contains a control character"));
    }
    if version.is_some() {
        ctx.warn(
            None,
            format!("{}: ignored, an artifact with a source has version local", entry.path("version")),
        );
    }
    Ok(Origin::Source(source))
}

fn read_capabilities(
    ctx: &mut Context,
    block: &Map<'_>,
    name: &str,
    runtime: Runtime,
    ceiling: &[NetRule],
) -> Result<Option<Vec<NetRule>>, ManifestError> {
    let hook = runtime == Runtime::Hook;
    let only_hook = |field: Field<'_>| field.error("only a hook may declare it");
    for key in ["task_io", "conversation"] {
        match block.get(key) {
            Some(field) if !hook => return Err(only_hook(field)),
            Some(field) => drop(caps::required_flag(&field.map()?, "read")?),
            None => {}
        }
    }
    if let Some(filesystem) = block.map("filesystem")? {
        // A blank one is absent; an invalid one is refused whatever the artifact is.
        if caps::scope(&filesystem)?.is_some() && hook {
            ctx.unbuilt(format!("{} of a hook", filesystem.path("scope")), filesystem.line);
        }
        if let Some(records) = filesystem.get("records") {
            if !hook {
                return Err(only_hook(records));
            }
            if records.flag()? && filesystem.text("scope")?.is_some() {
                return Err(records.error("cannot be combined with scope"));
            }
        }
    }
    check_inert(ctx, block, if hook { "W-SEC-006" } else { "W-SEC-008" })?;
    let Some(network) = block.map("network")? else { return Ok(None) };
    let Some(mut rules) = caps::rules(&network, "E-CAP-001")? else { return Ok(None) };
    if !hook {
        rules.retain(|rule| {
            let covered = ceiling.iter().any(|entry| entry.covers(rule));
            if !covered {
                let path = network.path("allow");
                let text = format!(
                    "{path}: {rule} of {} is not within capabilities.network.allow; dropped",
                    shown(name)
                );
                ctx.warn("W-SEC-007", text);
            }
            covered
        });
    }
    Ok(Some(rules))
}

/// Sub-blocks that only the capsule can be given: their shape is checked, then they are reported.
fn check_inert(ctx: &mut Context, block: &Map<'_>, code: &'static str) -> Result<(), ManifestError> {
    for key in ["shell", "spawn", "env", "limits", "resources", "containment"] {
        let Some(field) = block.get(key) else { continue };
        match key {
            "shell" => drop(caps::read_shell(&field.map()?)?),
            "limits" => drop(caps::read_limits(&field.map()?)?),
            "resources" => drop(caps::read_resources(&field.map()?)?),
            "containment" => drop(field.word(caps::CLASSES)?),
            _ => drop(caps::strings(&field.map()?, "allow")?),
        }
        ctx.warn(code, format!("{}: has no effect on a single artifact", field.path));
    }
    Ok(())
}

fn read_config(entry: &Map<'_>, runtime: Runtime) -> Result<Option<String>, ManifestError> {
    // A key with nothing under it is a declaration too, and cannot be delivered.
    let Some(field) = entry.raw("config") else { return Ok(None) };
    if runtime == Runtime::Skill {
        return Err(field.error("a skill runs nothing and takes none"));
    }
    json::compact(field.node).map(Some).map_err(|reason| field.coded("E-CAP-010", reason))
}

fn read_gateway(
    ctx: &mut Context,
    entry: &Map<'_>,
    name: &str,
    tool_name: &str,
    runtime: Runtime,
    driver: Option<&str>,
) -> Result<Option<Endpoint>, ManifestError> {
    let Some(field) = entry.get("gateway") else { return Ok(None) };
    let gateway = field.map()?;
    let configured = runtime == Runtime::Driver && driver.is_some_and(|d| d == name || d == tool_name);
    match runtime {
        Runtime::Skill => return Err(field.error("a skill calls nothing and takes none")),
        Runtime::Driver if !configured => {
            return Err(field.error("only the driver named by inference.driver.artifact takes one"));
        }
        Runtime::Tool | Runtime::Driver | Runtime::Hook => {}
    }
    let endpoint = gateway.require("endpoint")?;
    let parsed = Endpoint::parse(&endpoint.text()?).map_err(|reason| endpoint.error(reason))?;
    let keyless = gateway.flag("keyless")?.unwrap_or(false);
    let key = gateway.raw("api_key");
    match key {
        Some(key) if keyless => return Err(key.error("contradicts keyless: true")),
        None if keyless => {}
        key => {
            let given = match gateway.get("api_key") {
                Some(key) => !key.text()?.is_empty(),
                None => false,
            };
            if !given {
                return Err(key.unwrap_or(field).coded("E-CAP-018", "the gateway has no credential").hint(
                    "declare keyless: true if the upstream needs none, or name the variable: api_key: ${NAME}",
                ));
            }
            // Without its key the capsule could not work, so no option waives this.
            ctx.unbuilt(gateway.path("api_key"), gateway.line);
        }
    }
    if runtime != Runtime::Driver {
        ctx.unbuilt(gateway.path.clone(), gateway.line);
    }
    Ok(Some(parsed))
}
