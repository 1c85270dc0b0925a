//! From an artifact's place to a compiled component in the cache.
//!
//! The broker copies bytes and hashes them; unpacking, parsing and compiling happen in a compiler process each. What comes
//! back are typed facts. A cache entry is named by the hash of the artifact's bytes and of everything the native code
//! depends on, so an entry is either right or absent.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use ipc::edge::compiler::{Facts, Form, Job, pack};
use ipc::types::hex;
use rustix::fs::OFlags;
use sha2::{Digest, Sha256};

use crate::host::dirs::Dir;
use crate::manifest::{Artifact, Origin, Role};
use crate::refusal::Refusal;

/// The most bytes of an artifact that are read.
const MAX_ARTIFACT: u64 = 500 * 1024 * 1024;

/// An artifact's bytes, ready for a compiler.
#[derive(Debug)]
pub(crate) struct Payload {
    bytes: Vec<u8>,
    form: Form,
}

/// A compiled artifact.
#[derive(Debug)]
pub(crate) struct Compiled {
    /// File name in the cache directory.
    pub(crate) entry: String,
    /// What the compiler found.
    pub(crate) facts: Facts,
}

/// Reads an artifact.
///
/// # Errors
/// `E-IO-*`; `E-RUN-008` for an artifact that is not installed.
pub(crate) fn read(artifact: &Artifact, manifest_dir: &Path, stores: &[PathBuf]) -> Result<Payload, Refusal> {
    let path = match &artifact.origin {
        Origin::Source(source) => manifest_dir.join(source),
        Origin::Installed { version } => installed(&artifact.name, version, stores)?,
    };
    let refuse =
        |error: io::Error| Refusal::io(format!("artifact {}: {}", artifact.name, path.display()), &error);
    if path.metadata().map_err(refuse)?.is_dir() {
        let manifest = read_file(&path.join("murmur.yaml")).map_err(refuse)?;
        let component = read_file(&component(&path).map_err(refuse)?).map_err(refuse)?;
        Ok(Payload { bytes: pack(&manifest, &component), form: Form::Pack })
    } else {
        Ok(Payload { bytes: read_file(&path).map_err(refuse)?, form: Form::Archive })
    }
}

/// Finds `<store>/<scope>/<name>/<version>.mur.zip`.
fn installed(name: &str, version: &str, stores: &[PathBuf]) -> Result<PathBuf, Refusal> {
    let relative = Path::new(name).join(format!("{version}.mur.zip"));
    for store in stores {
        let path = store.join(&relative);
        if path.is_file() {
            return Ok(path);
        }
    }
    let place = stores.first().map(|store| store.join(&relative).display().to_string()).unwrap_or_default();
    Err(Refusal::new("E-RUN-008", format!("artifact {name} {version}"), "it is not installed")
        .hint(format!("put it at {place}, or name its directory with --artifact-dir")))
}

/// The component of a directory: `capsule.wasm`, else the only `*.wasm`.
fn component(dir: &Path) -> io::Result<PathBuf> {
    let preferred = dir.join("capsule.wasm");
    if preferred.is_file() {
        return Ok(preferred);
    }
    let mut found = Vec::new();
    for entry in dir.read_dir()? {
        let path = entry?.path();
        if path.is_file() && path.extension().is_some_and(|extension| extension == "wasm") {
            found.push(path);
        }
    }
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => Err(io::Error::new(io::ErrorKind::NotFound, "the directory holds no component (*.wasm)")),
        _ => Err(io::Error::other("the directory holds several components and none is capsule.wasm")),
    }
}

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut file = std::fs::File::open(path)?.take(MAX_ARTIFACT + 1);
    file.read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_ARTIFACT {
        return Err(io::Error::other(format!("larger than {MAX_ARTIFACT} bytes")));
    }
    Ok(bytes)
}

impl Payload {
    /// Name of the cache entry: artifact bytes, this build (it pins Wasmtime and its configuration), the CPU's features.
    fn key(&self, role: Role) -> String {
        let mut hash = Sha256::new();
        hash.update(ipc::BUILD_ID);
        hash.update(cpu_features());
        let role = match role {
            Role::Tool => 0,
            Role::Driver => 1,
            Role::Hook => 2,
        };
        hash.update([role, u8::from(self.form == Form::Pack)]);
        hash.update(&self.bytes);
        hex(&hash.finalize())
    }

    /// Takes the compiled component from the cache, or has it compiled by `compile`, which is given the job, the artifact's
    /// descriptor and the file for the native code.
    ///
    /// # Errors
    /// Whatever `compile` refuses with; `E-IO-003` for the cache.
    pub(crate) fn compiled(
        &self,
        artifact: &Artifact,
        cache: &Dir,
        compile: impl FnOnce(
            Job,
            std::os::fd::BorrowedFd<'_>,
            std::os::fd::BorrowedFd<'_>,
        ) -> Result<Facts, Refusal>,
    ) -> Result<Compiled, Refusal> {
        let key = self.key(artifact.role);
        let entry = format!("{key}.cwasm");
        let facts_name = format!("{key}.facts");
        let refuse = |error: io::Error| Refusal::io(cache.path().join(&entry).display(), &error);
        if let Some(facts) = cached_facts(cache, &facts_name)
            && cache.file(&entry, OFlags::RDONLY, 0).is_ok()
        {
            return Ok(Compiled { entry, facts });
        }
        let role = match artifact.role {
            Role::Tool => ipc::edge::host_broker::Role::Tool,
            Role::Driver => ipc::edge::host_broker::Role::Driver,
            Role::Hook => ipc::edge::host_broker::Role::Hook,
        };
        let job = Job { name: artifact.name.clone(), role, form: self.form, code: true };
        let input = ipc::memory::sealed_bytes("artifact", &self.bytes)
            .map_err(|error| Refusal::new("E-IO-003", artifact.name.clone(), error.to_string()))?;
        // Written under a name of its own and renamed whole: a cache entry is never half there.
        let partial = format!("{key}.{}.part", std::process::id());
        let attempt = || -> Result<Facts, Refusal> {
            let output = cache
                .file(&partial, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC, 0o644)
                .map_err(refuse)?;
            let facts = compile(job, input.as_fd(), output.as_fd())?;
            let bytes = ipc::codec::encode_document(&facts)
                .map_err(|error| Refusal::new("E-IO-003", artifact.name.clone(), error.to_string()))?;
            rustix::fs::fchmod(&output, rustix::fs::Mode::from_raw_mode(0o644))
                .map_err(|errno| refuse(errno.into()))?;
            // On disk before it has its name: what a power cut leaves is whole or not there.
            output.sync_data().map_err(refuse)?;
            cache.rename(&partial, cache, &entry).map_err(refuse)?;
            let facts_partial = format!("{facts_name}.{}.part", std::process::id());
            cache
                .file(&facts_partial, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC, 0o600)
                .and_then(|mut file| file.write_all(&bytes).and_then(|()| file.sync_data()))
                .and_then(|()| cache.rename(&facts_partial, cache, &facts_name))
                .map_err(refuse)?;
            Ok(facts)
        };
        let facts = attempt().inspect_err(|_| {
            let _ = cache.remove(&partial);
        })?;
        Ok(Compiled { entry, facts })
    }
}

/// Facts as an earlier launch stored them; whatever cannot be read is compiled again.
fn cached_facts(cache: &Dir, name: &str) -> Option<Facts> {
    let mut bytes = Vec::new();
    cache.file(name, OFlags::RDONLY, 0).ok()?.take(1024 * 1024).read_to_end(&mut bytes).ok()?;
    ipc::codec::decode_document(&bytes).ok()
}

/// What the compiler may use of this CPU, as the kernel lists it.
fn cpu_features() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines()
        .find(|line| line.starts_with("flags") || line.starts_with("Features"))
        .unwrap_or_default()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn artifact(role: Role) -> Artifact {
        Artifact {
            name: "x".into(),
            tool_name: "x".into(),
            role,
            origin: Origin::Source("x".into()),
            network_allow: None,
            config: None,
            gateway: None,
            scope: None,
        }
    }

    fn payload(bytes: &[u8]) -> Payload {
        Payload { bytes: bytes.to_vec(), form: Form::Pack }
    }

    struct Cache {
        place: PathBuf,
        dir: Dir,
        compiled: Cell<u32>,
    }

    impl Cache {
        fn new(name: &str) -> Self {
            let place = std::env::temp_dir().join(format!("broker-cache-{name}-{}", std::process::id()));
            Cache { dir: Dir::base(&place).unwrap(), place, compiled: Cell::new(0) }
        }

        /// The entry, and how many compilations there were until then.
        fn ask(&self, payload: &Payload, role: Role) -> (String, u32) {
            let compiled = payload.compiled(&artifact(role), &self.dir, |job, input, output| {
                self.compiled.set(self.compiled.get() + 1);
                let given = ipc::memory::read_sealed(input.try_clone_to_owned().unwrap(), 100).unwrap();
                assert_eq!(given, payload.bytes);
                rustix::io::write(output, format!("code {}", self.compiled.get()).as_bytes()).unwrap();
                let description = Some(format!("{} by {:?}", job.name, job.role));
                Ok(Facts { description, input_schema: None, imports: vec![], hook: None })
            });
            let compiled = compiled.unwrap();
            assert!(compiled.facts.description.unwrap().starts_with("x by "));
            (compiled.entry, self.compiled.get())
        }

        fn code(&self, entry: &str) -> String {
            std::fs::read_to_string(self.place.join(entry)).unwrap()
        }
    }

    impl Drop for Cache {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.place);
        }
    }

    #[test]
    fn an_artifact_is_compiled_once_and_another_one_or_another_role_anew() {
        let cache = Cache::new("once");
        let one = payload(b"one");
        let (entry, count) = cache.ask(&one, Role::Tool);
        assert_eq!((count, cache.code(&entry).as_str()), (1, "code 1"));
        assert_eq!(cache.ask(&one, Role::Tool), (entry.clone(), 1), "from the cache");
        assert_eq!(cache.code(&entry), "code 1");
        let mut entries = vec![entry];
        for (bytes, form, role) in [
            (&b"two"[..], Form::Pack, Role::Tool),
            (b"one", Form::Pack, Role::Driver),
            (b"one", Form::Pack, Role::Hook),
            (b"one", Form::Archive, Role::Tool),
        ] {
            let before = cache.compiled.get();
            let (entry, count) = cache.ask(&Payload { bytes: bytes.to_vec(), form }, role);
            assert_eq!(count, before + 1);
            assert!(!entries.contains(&entry), "{entry} again");
            entries.push(entry);
        }
    }

    #[test]
    fn an_entry_that_is_not_whole_is_made_again() {
        let cache = Cache::new("whole");
        let one = payload(b"one");
        let (entry, _) = cache.ask(&one, Role::Tool);
        let facts = cache.place.join(entry.replace(".cwasm", ".facts"));
        for (what, spoil) in [
            ("no facts", &(|| std::fs::remove_file(&facts).unwrap()) as &dyn Fn()),
            ("facts cut short", &|| std::fs::write(&facts, b"\x01").unwrap()),
            ("no code", &|| std::fs::remove_file(cache.place.join(&entry)).unwrap()),
        ] {
            let before = cache.compiled.get();
            spoil();
            assert_eq!(cache.ask(&one, Role::Tool), (entry.clone(), before + 1), "{what}");
            assert_eq!(cache.code(&entry), format!("code {}", before + 1), "{what}");
        }
    }

    #[test]
    fn a_refused_artifact_leaves_nothing_in_the_cache() {
        let cache = Cache::new("refused");
        let refused = payload(b"one").compiled(&artifact(Role::Tool), &cache.dir, |_, _, output| {
            rustix::io::write(output, b"half").unwrap();
            Err(Refusal::new("E-RUN-001", "x", "does not compile"))
        });
        assert_eq!(refused.unwrap_err().code, "E-RUN-001");
        assert_eq!(cache.dir.names().unwrap(), Vec::<std::ffi::OsString>::new());
    }
}
