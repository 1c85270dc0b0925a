//! Compiled components: mapped from the cache, linked once, before the process is sealed.

use std::collections::HashMap;
use std::path::Path;

use ipc::edge::host_broker::{Agent, Artifact};
use wasmtime::Engine;
use wasmtime::component::Component;

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
    for artifact in &agent.artifacts {
        let fail = |error: wasmtime::Error| format!("E-RUN-001: {}: {error:#}", artifact.name);
        if artifact.cache_entry.contains('/') || artifact.cache_entry.starts_with('.') {
            return Err(format!("{}: the cache entry is not a file name", artifact.name));
        }
        let path = cache.join(&artifact.cache_entry);
        // SAFETY: the file was written by our compiler for this engine into a directory only the broker can change, which
        // is mounted read-only here; Wasmtime refuses code of another version or configuration.
        let component = unsafe { Component::deserialize_file(&engine, &path) }.map_err(fail)?;
        let component =
            linker.instantiate_pre(&component).and_then(bindings::ComponentCallPre::new).map_err(fail)?;
        by_name.insert(artifact.name.clone(), Loaded { artifact: artifact.clone(), component });
    }
    if !by_name.contains_key(&agent.driver) {
        return Err(format!("E-RUN-006: the driver {} is not among the artifacts", agent.driver));
    }
    Ok(Components { engine, by_name })
}
