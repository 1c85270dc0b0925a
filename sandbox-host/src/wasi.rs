//! What a component's WASI world is made of: one directory, some variables, clocks, random bytes, HTTP through egress.
//! Sockets and name lookup link and are refused; stdin is empty, stdout and stderr go to a log.

use std::fs::File;
use std::os::fd::OwnedFd;

use ipc::edge::host_broker::{Agent, Artifact};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use wasmtime::Engine;
use wasmtime::component::{HasData, HasSelf, Linker, Resource, ResourceTable};
use wasmtime_wasi::WasiCtx;
use wasmtime_wasi::filesystem::{Descriptor, Dir, OpenMode};
use wasmtime_wasi::p2::bindings::filesystem::preopens;

use crate::load::bindings::murmur::process::process;
use crate::load::bindings::murmur::stream::events;
use crate::stdio::Printed;
use crate::store::CallState;

/// The authority behind which a component's gateway stands; nothing listens there.
pub(crate) const GATEWAY_AUTHORITY: &str = "127.0.0.1:9";

/// Defines everything a tool or driver may import. Only asynchronous bindings: a blocking one would stop the thread that
/// answers clients.
pub(crate) fn linker(engine: &Engine) -> wasmtime::Result<Linker<CallState>> {
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker)?;
    // The stock `preopens` opens by path; ours hands out the directory that is already held.
    linker.allow_shadowing(true);
    preopens::add_to_linker::<CallState, HasPreopens>(&mut linker, |state| {
        let (table, directory) = state.preopens();
        Preopens { table, directory }
    })?;
    linker.allow_shadowing(false);
    events::add_to_linker::<CallState, HasSelf<CallState>>(&mut linker, |state| state)?;
    process::add_to_linker::<CallState, HasSelf<CallState>>(&mut linker, |state| state)?;
    Ok(linker)
}

struct HasPreopens;

impl HasData for HasPreopens {
    type Data<'a> = Preopens<'a>;
}

struct Preopens<'a> {
    table: &'a mut ResourceTable,
    directory: Option<&'a File>,
}

impl preopens::Host for Preopens<'_> {
    fn get_directories(&mut self) -> wasmtime::Result<Vec<(Resource<Descriptor>, String)>> {
        let Some(directory) = self.directory else { return Ok(Vec::new()) };
        let directory = Dir::new(
            directory.try_clone()?,
            wasmtime_wasi::FsPerms::ReadWrite,
            OpenMode::READ | OpenMode::WRITE,
            false,
        );
        Ok(vec![(self.table.push(Descriptor::Dir(directory))?, ".".to_owned())])
    }
}

/// A context with the variables of one artifact, a place for what it prints, and nothing else.
pub(crate) fn context(agent: &Agent, artifact: &Artifact, printed: &Printed<'_>) -> WasiCtx {
    let mut builder = WasiCtx::builder();
    builder.allow_tcp(false).allow_udp(false).allow_ip_name_lookup(false);
    builder.envs(&environment(agent, artifact));
    builder.stdout(printed.stdout.clone()).stderr(printed.stderr.clone());
    builder.build()
}

/// A hook's context: its own configuration, and nothing of the host's or the session's.
pub(crate) fn hook_context(artifact: &Artifact, printed: &Printed<'_>) -> WasiCtx {
    let mut builder = WasiCtx::builder();
    builder.allow_tcp(false).allow_udp(false).allow_ip_name_lookup(false);
    if let Some(config) = &artifact.config {
        builder.env("MURMUR_ARTIFACT_CONFIG", config);
    }
    builder.stdout(printed.stdout.clone()).stderr(printed.stderr.clone());
    builder.build()
}

/// The variables of one artifact: the operator's, then ours (`spec: Environment`).
fn environment(agent: &Agent, artifact: &Artifact) -> Vec<(String, String)> {
    let mut variables: Vec<(String, String)> =
        agent.environment.iter().filter(|(name, _)| !name.starts_with("MURMUR_")).cloned().collect();
    let mut set = |name: &str, value: &str| variables.push((format!("MURMUR_{name}"), value.to_owned()));
    if let Some(config) = &artifact.config {
        set("ARTIFACT_CONFIG", config);
    }
    set("CAPSULE_NAME", &agent.name);
    set("CAPSULE_VERSION", &agent.version);
    set("SESSION_ID", &agent.session_id);
    set("CAPSULE_URL", &agent.url);
    set("INFERENCE_TRANSPORT", "http");
    let gateway = |path: &str| format!("http://{GATEWAY_AUTHORITY}{path}");
    let driver = agent.artifacts.iter().find(|artifact| artifact.name == agent.driver);
    if let Some(path) = driver.and_then(|driver| driver.gateway_path.as_deref()) {
        set("INFERENCE_ENDPOINT", &gateway(path));
    }
    set("INFERENCE_MODEL", &agent.model);
    set("INFERENCE_DRIVER", &agent.driver);
    if let Some(config) = &agent.driver_config {
        set("INFERENCE_DRIVER_CONFIG", config);
    }
    if let Some(path) = &artifact.gateway_path {
        set("GATEWAY_ENDPOINT", &gateway(path));
    }
    variables
}

/// Opens the directory an artifact is bounded to, component by component from the work folder's descriptor, creating what
/// is missing. A link on the way is refused: a program could have put it there to widen what the component sees.
///
/// # Errors
/// The kernel's error.
pub(crate) fn open_scope(workdir: &OwnedFd, scope: &[String]) -> Result<File, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut directory = rustix::fs::openat(workdir, ".", flags, Mode::empty())?;
    for component in scope {
        if component.is_empty() || component == ".." || component.contains('/') {
            return Err(Errno::INVAL);
        }
        directory = match rustix::fs::openat(&directory, component.as_str(), flags, Mode::empty()) {
            Err(Errno::NOENT) => {
                match rustix::fs::mkdirat(&directory, component.as_str(), Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(errno),
                }
                rustix::fs::openat(&directory, component.as_str(), flags, Mode::empty())?
            }
            other => other?,
        };
    }
    Ok(File::from(directory))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Folder, agent};

    fn value(variables: &[(String, String)], name: &str) -> Option<String> {
        variables.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.clone())
    }

    #[test]
    fn variables_of_ours_win_and_gateways_are_named_only_to_their_artifact() {
        let mut agent = agent();
        agent.environment =
            vec![("LANG".into(), "C".into()), ("MURMUR_ARTIFACT_CONFIG".into(), "stolen".into())];
        agent.artifacts[0].gateway_path = Some("/v1".into());
        let mut tool = agent.artifacts[0].clone();
        tool.name = "tool".into();
        tool.gateway_path = None;
        let driver = environment(&agent, &agent.artifacts[0]);
        assert_eq!(value(&driver, "MURMUR_GATEWAY_ENDPOINT").as_deref(), Some("http://127.0.0.1:9/v1"));
        assert_eq!(value(&driver, "MURMUR_INFERENCE_MODEL").as_deref(), Some("test-model"));
        assert_eq!(value(&driver, "LANG").as_deref(), Some("C"));
        let tool = environment(&agent, &tool);
        assert_eq!(value(&tool, "MURMUR_GATEWAY_ENDPOINT"), None);
        assert_eq!(value(&tool, "MURMUR_ARTIFACT_CONFIG"), None);
    }

    #[test]
    fn a_scope_is_made_and_never_followed_out_of_the_work_folder() {
        let folder = Folder::new();
        std::os::unix::fs::symlink("/", folder.path().join("link")).unwrap();
        let workdir: OwnedFd = File::open(folder.path()).unwrap().into();
        let scope =
            |names: &[&str]| open_scope(&workdir, &names.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>());
        assert!(scope(&[]).is_ok());
        assert!(scope(&["a", "b"]).is_ok());
        assert!(folder.path().join("a/b").is_dir());
        for bad in [["link", "etc"], ["..", "x"], ["a/b", "c"], ["", "x"]] {
            assert!(scope(&bad).is_err(), "{bad:?}");
        }
    }
}
