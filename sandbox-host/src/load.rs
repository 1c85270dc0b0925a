//! Compiled components: mapped from the cache, linked once, before the process is sealed.

use std::collections::HashMap;
use std::path::Path;

use ipc::edge::host_broker::{Agent, Artifact, HookEvent};
use wasmtime::Engine;
use wasmtime::component::{Component, ComponentExportIndex, InstancePre};

use crate::store::CallState;
use crate::wasi;

#[path = "../engine.rs"]
mod engine;

/// The bindings of one call of a tool or driver.
pub(crate) mod bindings {
    #![allow(missing_docs, unreachable_pub, reason = "generated")]
    wasmtime::component::bindgen!({
        path: "../wit",
        world: "murmur:host/component-call",
        imports: { "murmur:process/process": async | trappable },
        exports: { default: async },
        with: { "murmur:process/process.connection": crate::process::connection::Connection },
    });
}

/// The types of a hook's events and answers.
pub(crate) mod hook_bindings {
    #![allow(missing_docs, unreachable_pub, dead_code, reason = "generated")]
    wasmtime::component::bindgen!({
        path: "../wit",
        world: "murmur:host/hook-call",
        exports: { default: async },
    });
}

/// A component ready to be instantiated, and what the capsule says about it.
pub(crate) struct Loaded {
    pub(crate) artifact: Artifact,
    pub(crate) component: bindings::ComponentCallPre<CallState>,
}

/// Everything that was loaded, by artifact name.
pub(crate) struct Components {
    pub(crate) engine: Engine,
    pub(crate) by_name: HashMap<String, Loaded>,
    /// Policy hooks in the order of their declaration.
    pub(crate) hooks: Vec<LoadedHook>,
}

/// A policy hook ready to be instantiated.
pub(crate) struct LoadedHook {
    pub(crate) artifact: Artifact,
    pub(crate) event: HookEvent,
    pub(crate) component: InstancePre<CallState>,
    /// The function of its event.
    pub(crate) function: ComponentExportIndex,
}

/// The engine. Made before lockdown: it sets the handlers of the signals that traps arrive as, which no filter of this
/// process allows later.
///
/// # Errors
/// One line.
pub(crate) fn engine() -> Result<Engine, String> {
    Engine::new(&engine::engine_config()).map_err(|error| format!("wasmtime: {error:#}"))
}

/// Maps and links every artifact of the agent. No page becomes executable after this.
///
/// # Errors
/// One line that names the artifact.
pub(crate) fn load(engine: Engine, agent: &Agent, cache: &Path) -> Result<Components, String> {
    let linker = wasi::linker(&engine).map_err(|error| format!("linker: {error:#}"))?;
    let mut by_name = HashMap::new();
    let mut hooks = Vec::new();
    for artifact in &agent.artifacts {
        let fail = |error: wasmtime::Error| format!("E-RUN-001: {}: {error:#}", artifact.name);
        if artifact.cache_entry.contains('/') || artifact.cache_entry.starts_with('.') {
            return Err(format!("{}: the cache entry is not a file name", artifact.name));
        }
        let path = cache.join(&artifact.cache_entry);
        // SAFETY: the file was written by our compiler for this engine into a directory only the broker can change, which
        // is mounted read-only here; Wasmtime refuses code of another version or configuration.
        let component = unsafe { Component::deserialize_file(&engine, &path) }.map_err(fail)?;
        if let Some(event) = artifact.hook {
            let function = hook_function(&component, event)
                .map_err(|missing| format!("E-RUN-001: {}: {HOOK} exports no `{missing}`", artifact.name))?;
            let component = linker.instantiate_pre(&component).map_err(fail)?;
            hooks.push(LoadedHook { artifact: artifact.clone(), event, component, function });
            continue;
        }
        let component =
            linker.instantiate_pre(&component).and_then(bindings::ComponentCallPre::new).map_err(fail)?;
        by_name.insert(artifact.name.clone(), Loaded { artifact: artifact.clone(), component });
    }
    if !by_name.contains_key(&agent.driver) {
        return Err(format!("E-RUN-006: the driver {} is not among the artifacts", agent.driver));
    }
    Ok(Components { engine, by_name, hooks })
}

/// The interface a hook exports.
const HOOK: &str = "murmur:hook/lifecycle@0.9.0";

/// Functions without which a component is no hook (`spec: Required exports`).
const REQUIRED: [&str; 6] =
    ["on-session-start", "on-inference", "on-tool-call", "on-shell", "on-compaction", "on-session-end"];

/// Finds the function of an event.
///
/// # Errors
/// The name of a function that every hook has and this one lacks.
fn hook_function(component: &Component, event: HookEvent) -> Result<ComponentExportIndex, &'static str> {
    let interface = component.get_export_index(None, HOOK);
    let find =
        |name: &str| component.get_export_index(interface.as_ref(), name).filter(|_| interface.is_some());
    if let Some(missing) = REQUIRED.into_iter().find(|name| find(name).is_none()) {
        return Err(missing);
    }
    find(event.as_str()).ok_or(event.as_str())
}
