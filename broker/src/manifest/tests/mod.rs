//! Tables of manifests and what becomes of them.

mod accepted;
mod files;
mod keys;
mod mutation;
mod net;
mod refused;
mod yaml;

use super::*;

/// What every test manifest starts with.
const HEAD: &str = "name: writer\nversion: \"0.1.0\"\n";

/// A complete operator-plane capsule, as `examples/` has it.
const REPORTER: &str = r#"
name: reporter
version: "0.1.0"
artifacts:
  - name: model-driver
    runtime: driver
    source: ./artifacts/model-driver
    local_source: true
    gateway:
      endpoint: http://127.0.0.1:8089/v1/
      keyless: true
  - name: note-tool
    source: ./artifacts/note-tool.mur.zip
    local_source: true
    capabilities:
      network:
        allow: ["https://api.example.com", "other.example.com"]
    config: {zeta: 1, alpha: [true, null, 1.5, "x\ny"]}
capabilities:
  network:
    allow: ["api.example.com", "localhost:8080"]
    unix_sockets: false
  filesystem:
    read_only: []
    workdir_exec: false
  shell:
    allow: [bash, git]
  env:
    allow: [LANG, MURMUR_HOME, MY_TOKEN]
  limits: {deadline_seconds: 60}
  resources: {cpu_seconds: 5, max_workdir_bytes: 1000000}
  containment: scoped
inference:
  transport: http
  model: local-model
  driver:
    artifact: model-driver
    config: {temperature: 0}
  max_turns: 4
  max_tokens: 256
  system_prompt: "  Be brief.  "
lifecycle:
  task_acceptance: queue
  after_task: sleep
  queue_depth: 2
exports:
  files: {root: ./out/, mode: read-only, max_bytes: 10Mi}
trace:
  capture: content
"#;

/// A capsule that also declares the peer plane and protected paths.
const PEERS: &str = r#"
name: writer
version: "0.1.0"
artifacts:
  - {name: model-driver, runtime: driver, source: ./driver.mur.zip, local_source: true,
     gateway: {endpoint: "http://127.0.0.1:8089", keyless: true}}
  - {name: note-tool, source: ./note-tool, local_source: true}
capabilities:
  network: {allow: [localhost]}
  peer_fetch: {allow: ["localhost:41234"]}
  filesystem: {read_only: [inputs]}
  shell: {allow: [bash]}
  containment: scoped
inference: {model: local-model, driver: {artifact: model-driver}}
lifecycle: {task_acceptance: queue, after_task: sleep, queue_depth: 2}
exports:
  files: {root: out/, mode: read-only, max_bytes: 10Mi}
  peer_files: {root: out/handoff/, max_ttl: 15m}
"#;

const LAX: ParseOptions =
    ParseOptions { allow_unknown_keys: true, containment: None, task_acceptance: None, after_task: None };

fn plain(text: &str) -> Result<(Manifest, Vec<Warning>), ManifestError> {
    parse(text, ParseOptions::default())
}

fn with_head(text: &str) -> Result<(Manifest, Vec<Warning>), ManifestError> {
    plain(&format!("{HEAD}{text}"))
}

#[track_caller]
fn accept(text: &str) -> (Manifest, Vec<Warning>) {
    match with_head(text) {
        Ok(parsed) => parsed,
        Err(error) => panic!("refused:\n{text}\n{error}"),
    }
}

/// Asserts that `text` after the head refuses with `code` about `what`, and returns the rendered error.
#[track_caller]
fn refuse(text: &str, code: &str, what: &str) -> String {
    match with_head(text) {
        Ok(_) => panic!("accepted, expected {code} {what}:\n{text}"),
        Err(error) => {
            assert_eq!((error.code, error.what.as_str()), (code, what), "for:\n{text}\n{error}");
            error.to_string()
        }
    }
}

fn codes(warnings: &[Warning]) -> Vec<&'static str> {
    warnings.iter().map(|warning| warning.code.unwrap_or("-")).collect()
}
