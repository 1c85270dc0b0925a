//! The operator's manifest, `murmur.yaml`: from text to a typed [`Manifest`], or one clear refusal.
//!
//! This is the only foreign text the broker reads, and it comes from the operator who starts it. It is still
//! bounded (size, depth, aliases) and read without guessing: every key is known by name (`schema`), a key this
//! version does not honour is never silently dropped, and nothing is repaired. [`parse`] looks at nothing but its
//! arguments: no file, no environment, no clock. What needs the file system is in [`check_files`].
//!
//! The manifests inside artifacts are not read here: the compiler process does that.
//!
//! Rules: docs/manifest.md; rulings on keys not built yet and unknown keys: docs/decisions.md.

mod artifacts;
mod block;
mod capabilities;
pub(crate) mod env;
mod error;
mod files;
mod inference;
mod json;
mod json_schema;
mod model;
mod net;
mod runtimes;
mod schema;
mod session;
mod suggest;
mod tree;
mod value;

#[cfg(test)]
mod tests;

#[allow(unused_imports, reason = "the module's face; the launch sequence takes what it needs")]
pub(crate) use self::{
    error::{ManifestError, Warning, shown},
    files::{check_files, read_text},
    json_schema::json_schema,
    model::{
        AfterTask, Artifact, Capabilities, Capture, Class, ExportFiles, ExportPeerFiles, Inference,
        Lifecycle, Limits, Manifest, Origin, Resources, Role, RuntimeDirectory, StagedRuntime, SystemPrompt,
        TaskAcceptance,
    },
    net::{Endpoint, Host, NetRule, Scheme},
    suggest::nearest,
    value::{ByteSize, ExportRoot},
};

use self::block::{Context, Map};

/// What the command line says about the manifest.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ParseOptions {
    /// `--allow-unknown-keys`: unknown keys, and documented ones of this contract that are not built yet, become
    /// `W-SEC-019` warnings. Keys beyond this contract that grant, deny or bound something refuse all the same.
    pub(crate) allow_unknown_keys: bool,
    /// `--containment`: raises the floor, never lowers it.
    pub(crate) containment: Option<Class>,
    /// `--task-acceptance`: replaces `lifecycle.task_acceptance`.
    pub(crate) task_acceptance: Option<TaskAcceptance>,
    /// `--after-task` (`--once` = exit): replaces `lifecycle.after_task`.
    pub(crate) after_task: Option<AfterTask>,
}

/// Parses and validates a manifest.
///
/// The first violation is returned, with its documented code. Warnings come in the order they were met; none of
/// them changes what is launched.
pub(crate) fn parse(text: &str, options: ParseOptions) -> Result<(Manifest, Vec<Warning>), ManifestError> {
    let root = tree::parse(text)?;
    let top = Map::root(&root, &schema::TOP)?;
    let mut ctx = Context::new(options);
    ctx.scan(&root, &schema::TOP, "")?;

    let name = identity(&top, "name")?;
    let version = identity(&top, "version")?;
    if let Some(pin) = top.text("mur_version")? {
        let text = format!("mur_version: {} is not checked; this is capsule-broker", error::shown(&pin));
        ctx.warn(None, text);
    }
    let lifecycle = session::lifecycle(&ctx, &top)?;
    let capabilities = capabilities::read(&mut ctx, &top, lifecycle.after_task)?;
    let driver = inference::driver_name(&top)?;
    let artifacts = artifacts::read(&mut ctx, &top, &capabilities.network_allow, driver.as_deref())?;
    let inference = inference::read(&top, &artifacts)?;
    let capture = session::capture(&mut ctx, &top)?;
    session::network(&top)?;
    let (export_files, export_peer_files) = session::exports(&top, lifecycle.after_task)?;
    let manifest = Manifest {
        name,
        version,
        artifacts,
        capabilities,
        inference,
        lifecycle,
        export_files,
        export_peer_files,
        capture,
    };
    ctx.refuse_unbuilt()?;
    advise(&mut ctx, &manifest);
    Ok((manifest, ctx.warnings))
}

/// A required top-level string: `E-MAN-001` when absent or blank.
fn identity(top: &Map<'_>, key: &str) -> Result<String, ManifestError> {
    let text = top.text(key)?.ok_or_else(|| ManifestError::new("E-MAN-001", key, "is required"))?;
    if text.chars().any(char::is_control) {
        return Err(top.require(key)?.error("contains a control character"));
    }
    Ok(text)
}

/// Warnings about a manifest that is valid as a whole.
fn advise(ctx: &mut Context, manifest: &Manifest) {
    let Lifecycle { task_acceptance, after_task, .. } = manifest.lifecycle;
    let waits = task_acceptance == TaskAcceptance::Queue && after_task == AfterTask::Sleep;
    if !manifest.capabilities.shell_allow.is_empty() && !waits {
        let text = "capabilities.shell.allow: without task_acceptance: queue and after_task: sleep, a program that \
                    runs on in the background ends with the task";
        ctx.warn("W-SEC-022", text);
    }
    let exports = manifest.export_files.is_some() || manifest.export_peer_files.is_some();
    if manifest.inference.is_none() && exports {
        ctx.warn(None, "exports: a capsule without inference opens no listener that could serve them");
    }
    let lists = std::iter::once(&manifest.capabilities.network_allow);
    let lists = lists.chain(manifest.artifacts.iter().filter_map(|artifact| artifact.network_allow.as_ref()));
    let rules: Vec<&NetRule> = lists.flatten().collect();
    for artifact in &manifest.artifacts {
        let Some(upstream) = &artifact.gateway else { continue };
        let exact =
            NetRule { scheme: Some(upstream.scheme), host: upstream.host.clone(), port: Some(upstream.port) };
        if let Some(rule) = rules.iter().find(|rule| rule.covers(&exact)) {
            let text = format!(
                "network.allow: {rule} also admits the gateway upstream of {}, without its credential",
                artifact.name
            );
            ctx.warn("W-SEC-025", text);
        }
    }
}
