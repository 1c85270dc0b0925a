//! Samples for unit tests.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use ipc::edge::host_broker::{Acceptance, Agent, Artifact, Capture, ComponentLimits, Role};
use ipc::types::Class;

const LIMITS: ComponentLimits = ComponentLimits {
    memory_bytes: 64 * 1024 * 1024,
    table_elements: 10_000,
    instances: 100,
    deadline_seconds: 5,
};

/// An agent with one driver and no programs.
pub(crate) fn agent() -> Agent {
    Agent {
        session_id: "ses_01a1b2c3d4e570008000000000000001".into(),
        name: "test".into(),
        version: "0.1.0".into(),
        url: "localhost:1".into(),
        class: Class::Scoped,
        artifacts: vec![Artifact {
            name: "driver".into(),
            role: Role::Driver,
            cache_entry: "driver.cwasm".into(),
            description: None,
            input_schema: None,
            config: None,
            gateway_path: None,
            scope: vec![],
            hook: None,
        }],
        driver: "driver".into(),
        model: "test-model".into(),
        driver_config: None,
        max_turns: 10,
        max_tokens: 4096,
        system_prompt: None,
        shell: vec![],
        environment: vec![],
        acceptance: Acceptance::Single,
        sleep: false,
        queue_depth: 1,
        task: None,
        limits: LIMITS,
        hook_limits: LIMITS,
        read_only: vec![],
        workdir_max_bytes: 1 << 30,
        capture: Capture::Meta,
        workdir: "/workdir".into(),
        network_allow: vec![],
        share_file: false,
        fetch_peer_file: None,
    }
}

/// A fresh directory that goes with its owner.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("sandbox-host-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
