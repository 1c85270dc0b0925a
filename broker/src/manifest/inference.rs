//! `inference`: which model, through which driver, within which bounds.

use super::block::{Field, Map};
use super::error::{ManifestError, shown};
use super::json;
use super::model::{Artifact, Inference, Role, SystemPrompt};

/// Inference calls per task when the manifest names no bound (docs/decisions.md).
const DEFAULT_MAX_TURNS: u32 = 10;
/// Output tokens per call when the manifest names no bound.
const DEFAULT_MAX_TOKENS: u32 = 8192;

#[derive(Debug, Clone, Copy)]
enum Transport {
    Http,
    Process,
}

/// The configured driver's declared name. Entries need it before the block itself can be checked.
pub(super) fn driver_name(top: &Map<'_>) -> Result<Option<String>, ManifestError> {
    match top.map("inference")? {
        Some(block) => Ok(driver_field(&block)?.map(|field| field.text()).transpose()?),
        None => Ok(None),
    }
}

/// `driver.artifact`, or its older spelling `provider.artifact`.
fn driver_field<'a>(block: &Map<'a>) -> Result<Option<Field<'a>>, ManifestError> {
    for name in ["driver", "provider"] {
        if let Some(map) = block.map(name)?
            && map.text("artifact")?.is_some()
        {
            return Ok(map.get("artifact"));
        }
    }
    Ok(None)
}

/// Reads the block; `None` makes this a script capsule.
pub(super) fn read(top: &Map<'_>, artifacts: &[Artifact]) -> Result<Option<Inference>, ManifestError> {
    let Some(block) = top.map("inference")? else { return Ok(None) };
    if let Some(transport) = block.get("transport") {
        match transport.word(&[("http", Transport::Http), ("process", Transport::Process)])? {
            Transport::Http => {}
            Transport::Process => {
                return Err(transport.error("process: not supported yet").hint("use transport: http"));
            }
        }
    }
    let model = block.required_text("model")?;
    if model.chars().any(char::is_control) {
        return Err(block.require("model")?.error("contains a control character"));
    }
    let driver = find_driver(&block, artifacts)?;
    let driver_config = match block.map("driver")?.and_then(|driver| driver.get("config")) {
        Some(field) => Some(json::compact(field.node).map_err(|reason| field.error(reason))?),
        None => None,
    };
    Ok(Some(Inference {
        model,
        driver,
        driver_config,
        max_turns: bound(&block, "max_turns", DEFAULT_MAX_TURNS)?,
        max_tokens: bound(&block, "max_tokens", DEFAULT_MAX_TOKENS)?,
        system_prompt: read_prompt(&block)?,
    }))
}

fn bound(block: &Map<'_>, name: &str, default: u32) -> Result<u32, ManifestError> {
    block.get(name).map_or(Ok(default), |field| field.integer32(1))
}

fn find_driver(block: &Map<'_>, artifacts: &[Artifact]) -> Result<usize, ManifestError> {
    let Some(field) = driver_field(block)? else {
        let error =
            ManifestError::new("E-MAN-003", block.path("driver.artifact"), "is required").line(block.line);
        return Err(error.hint("name the artifact that makes the inference calls"));
    };
    let name = field.text()?;
    // Tool names are unique, so the part after the scope identifies the entry as well.
    let by = |wanted: &dyn Fn(&Artifact) -> bool| artifacts.iter().position(wanted);
    let index = by(&|a| a.name == name).or_else(|| by(&|a| a.tool_name == name));
    let Some((index, artifact)) = index.and_then(|index| Some((index, artifacts.get(index)?))) else {
        return Err(field.error(format!("no artifact is called {}", shown(&name))));
    };
    if artifact.role != Role::Driver {
        return Err(field
            .error(format!("the artifact {} is not a driver", shown(&name)))
            .hint("runtime: driver"));
    }
    if artifact.gateway.is_none() {
        let what = format!("artifacts[{index}].gateway");
        return Err(ManifestError::new("E-MAN-003", what, "is required on the configured driver")
            .hint("give the upstream: endpoint: https://…, and keyless: true if it needs no key"));
    }
    Ok(index)
}

fn read_prompt(block: &Map<'_>) -> Result<Option<SystemPrompt>, ManifestError> {
    let text = block.text("system_prompt")?.map(SystemPrompt::Text);
    let file = block.text("system_prompt_file")?.map(SystemPrompt::File);
    let artifact = block.text("system_prompt_artifact")?;
    if let (Some(_), Some(_), _) | (Some(_), _, Some(_)) | (_, Some(_), Some(_)) = (&text, &file, &artifact) {
        let names = "system_prompt, system_prompt_file, system_prompt_artifact";
        let reason = format!("declares more than one of: {names}");
        return Err(ManifestError::new("E-MAN-003", &block.path, reason).line(block.line));
    }
    if let Some(SystemPrompt::File(path)) = &file
        && path.chars().any(char::is_control)
    {
        return Err(block.require("system_prompt_file")?.error("contains a control character"));
    }
    Ok(text.or(file))
}
