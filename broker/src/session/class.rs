//! Which containment class a session gets: what is declared is the floor and the class applied; undeclared, the strongest that
//! host and capsule allow (`docs/decisions.md`, containment classes). Decided before anything is made.

use std::path::{Path, PathBuf};

use ipc::edge::control::ShownDirectory;
use ipc::types::Class;

use crate::cli::Cli;
use crate::host::ordinary::User;
use crate::manifest::{self, Manifest};
use crate::refusal::Refusal;

/// What the host gives, found by doing it once.
#[derive(Debug)]
pub(crate) struct Host {
    /// Why not, in words.
    sealed: Result<(), String>,
}

impl Host {
    /// Tries it.
    ///
    /// # Errors
    /// `E-CAP-003` without Landlock, by which every process of ours is confined in every class.
    pub(crate) fn probe(rights: confine::Rights) -> Result<Host, Refusal> {
        confine::probe::landlock().map_err(|error| {
            Refusal::new("E-CAP-003", "Landlock", format!("this host gives advisory at most: {error}"))
                .hint("boot a kernel of 5.19 or newer with landlock in its list of security modules (lsm=)")
        })?;
        Ok(Host { sealed: confine::probe::sealed(rights).map_err(|error| error.to_string()) })
    }

    /// What the host can back, whatever is applied.
    pub(crate) fn mechanism(&self) -> &'static str {
        match self.sealed {
            Ok(()) => "mountns+pivot_root+landlock+seccomp",
            Err(_) => "landlock+seccomp",
        }
    }
}

/// The class of a session.
#[derive(Debug)]
pub(crate) struct Containment {
    /// What every answer, record and rule about links says.
    pub(crate) class: Class,
    /// The class whose mechanisms programs get: another only with `workdir_exec`.
    pub(crate) tier: Class,
    /// What the host can back.
    pub(crate) mechanism: &'static str,
    /// Why it is weaker than `sealed` although nothing was declared.
    pub(crate) weaker: Option<String>,
    /// Further directories that programs may read.
    pub(crate) shown: Vec<ShownDirectory>,
    /// Whether what programs write may be executed.
    pub(crate) workdir_exec: bool,
    /// Whether programs may make Unix sockets.
    pub(crate) unix_sockets: bool,
}

/// Decides. `programs` are the allowed ones as found; nothing is made or changed.
///
/// # Errors
/// `E-CAP-003` for a floor that the host cannot give and for `advisory` where programs have an ordinary user's id, `E-CAP-004` for a staged runtime below `sealed`, `E-RUN-014` for one
/// that is not there, `E-CAP-006` for a program that a composed root lacks, `E-IO-002` for a directory of the session that
/// cannot stand in one.
pub(crate) fn decide(
    cli: &Cli,
    manifest: &Manifest,
    programs: &[(String, String)],
    user: Option<&User>,
) -> Result<Containment, Refusal> {
    let host = Host::probe(if user.is_some() { confine::Rights::User } else { confine::Rights::Root })?;
    let capabilities = &manifest.capabilities;
    let mut shown = shown(manifest, cli.quiet);
    shown.extend(staged(manifest)?);
    let sealed = || {
        host.sealed.as_ref().map_err(|why| not_sealed(why))?;
        places(cli)?;
        complete(programs, &shown)
    };
    let (tier, weaker) = match capabilities.containment {
        Some(manifest::Class::Advisory) => (Class::Advisory, None),
        Some(manifest::Class::Scoped) => (Class::Scoped, None),
        Some(manifest::Class::Sealed) => {
            sealed()?;
            (Class::Sealed, None)
        }
        None => match sealed() {
            Ok(()) => (Class::Sealed, None),
            Err(refusal) => (Class::Scoped, Some(format!("{}: {}", refusal.what, refusal.reason))),
        },
    };
    let class = if capabilities.workdir_exec { Class::Advisory } else { tier };
    if user.is_some() && class == Class::Advisory {
        return Err(Refusal::new(
            "E-CAP-003",
            "class advisory",
            "programs of an ordinary user's session have that user's id, which nothing would keep from the user's files",
        )
        .hint("declare scoped or sealed and leave out workdir_exec, or start the broker as root"));
    }
    let shown = shown.into_iter().chain(trusted(manifest, tier)).collect();
    let (workdir_exec, unix_sockets) = (capabilities.workdir_exec, capabilities.unix_sockets);
    if unix_sockets && tier != Class::Sealed {
        return Err(Refusal::new(
            "E-CAP-003",
            "capabilities.network.unix_sockets",
            format!("programs of class {} could reach sockets of the host by their path", tier.as_str()),
        )
        .hint("declare sealed, where they see their own alone, or leave it out"));
    }
    Ok(Containment { class, tier, mechanism: host.mechanism(), weaker, shown, workdir_exec, unix_sockets })
}

fn not_sealed(why: &str) -> Refusal {
    Refusal::new(
        "E-CAP-003",
        "capabilities.containment: sealed",
        format!("this host gives scoped at most: no private root can be composed: {why}"),
    )
    .hint("run the broker as root with CAP_SYS_ADMIN and without a filter on mount calls, or declare scoped")
}

/// The directories that programs see at the host's own paths must not lie in what a composed root has itself. They need not
/// exist yet.
fn places(cli: &Cli) -> Result<(), Refusal> {
    let manifest_dir = cli.manifest.parent().unwrap_or(Path::new("."));
    let workdir = cli.workdir.clone().unwrap_or_else(|| manifest_dir.join("workdir"));
    for (flag, path) in
        [("--workdir", &workdir), ("--state-dir", &cli.state_dir), ("--run-dir", &cli.run_dir)]
    {
        let path = future(path).map_err(|error| Refusal::io(path.display(), &error))?;
        if confine::composed::is_taken(&path) {
            return Err(Refusal::new(
                "E-IO-002",
                format!("{flag} {}", path.display()),
                "programs of class sealed have the system's own files there",
            )
            .hint("choose a directory outside /usr, /etc and their like, or declare scoped"));
        }
    }
    Ok(())
}

/// Where a path will be, of which some part exists.
fn future(path: &Path) -> std::io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    for existing in path.ancestors() {
        if let Ok(canonical) = existing.canonicalize() {
            return Ok(canonical.join(path.strip_prefix(existing).unwrap_or(Path::new(""))));
        }
    }
    Ok(path)
}

/// What a composed root has of its own: the host's must not be laid over it.
const COMPOSED: [&str; 5] = ["/proc", "/dev", "/sys", "/etc", "/run"];

/// Every allowed program, and the interpreter it starts with, must be in a composed root, and what is shown beside it must hide
/// nothing of it.
fn complete(programs: &[(String, String)], shown: &[ShownDirectory]) -> Result<(), Refusal> {
    for directory in shown {
        let path = Path::new(&directory.path);
        if let Some(own) =
            COMPOSED.iter().find(|own| path.starts_with(own) || Path::new(own).starts_with(path))
        {
            return Err(Refusal::new(
                "E-CAP-006",
                format!("capabilities.shell.interpreter_runtime: {}", directory.path),
                format!("programs of class sealed have a {own} of their own, which it would hide"),
            )
            .hint("name the interpreter's own directories, or declare scoped"));
        }
    }
    let there = |path: &Path| {
        confine::composed::in_system(path) || shown.iter().any(|directory| path.starts_with(&directory.path))
    };
    for (name, path) in programs {
        let path = Path::new(path);
        let mut closure = confine::programs::closure::Closure::default();
        closure.add(path);
        let missing = std::iter::once(path).chain(closure.executable.iter().map(PathBuf::as_path));
        if let Some(missing) = missing.into_iter().find(|path| !there(path)) {
            return Err(Refusal::new(
                "E-CAP-006",
                format!("capabilities.shell.allow: {name}"),
                format!("{} is not in the root that programs of class sealed have", missing.display()),
            )
            .hint("name its directory in capabilities.shell.interpreter_runtime, or declare scoped"));
        }
    }
    Ok(())
}

/// The directories of `shell.interpreter_runtime`, without links: those that are there.
fn shown(manifest: &Manifest, quiet: bool) -> Vec<ShownDirectory> {
    let mut shown: Vec<ShownDirectory> = Vec::new();
    for directory in &manifest.capabilities.interpreter_runtime {
        let Ok(path) = Path::new(&directory.path).canonicalize() else {
            if !quiet {
                say!("notice: {}: nothing is there, so programs get nothing there", directory.path);
            }
            continue;
        };
        shown.push(ShownDirectory { path: path.display().to_string(), list: directory.list });
    }
    shown
}

/// The trees of `shell.staged_runtime`: what they are for is a root that they are part of, and nothing less.
fn staged(manifest: &Manifest) -> Result<Vec<ShownDirectory>, Refusal> {
    let staged = &manifest.capabilities.staged_runtime;
    if !staged.is_empty() && manifest.capabilities.containment != Some(manifest::Class::Sealed) {
        let binaries: Vec<&str> = staged.iter().map(|entry| entry.binary.as_str()).collect();
        return Err(Refusal::new(
            "E-CAP-004",
            "capabilities.shell.staged_runtime",
            format!("{}: only class sealed, declared, composes a root for it", binaries.join(", ")),
        )
        .hint("declare containment: sealed, or use interpreter_runtime"));
    }
    let mut shown = Vec::new();
    for entry in staged {
        let missing = |error: std::io::Error| {
            Refusal::new("E-RUN-014", "capabilities.shell.staged_runtime", format!("{}: {error}", entry.path))
                .hint("install the runtime there, or take the entry out")
        };
        let path = Path::new(&entry.path).canonicalize().map_err(missing)?;
        if !path.is_dir() {
            return Err(missing(std::io::ErrorKind::NotADirectory.into()));
        }
        shown.push(ShownDirectory { path: path.display().to_string(), list: true });
    }
    Ok(shown)
}

/// Where the host keeps the certificates it trusts: for programs of class `scoped` that reach a network. A composed root has
/// them in any case.
fn trusted(manifest: &Manifest, tier: Class) -> Vec<ShownDirectory> {
    const STORES: [&str; 5] = [
        "/etc/ssl/certs",
        "/etc/pki/tls",
        "/etc/pki/ca-trust",
        "/etc/ca-certificates",
        "/usr/share/ca-certificates",
    ];
    if tier != Class::Scoped || manifest.capabilities.network_allow.is_empty() {
        return Vec::new();
    }
    let stores = STORES.iter().filter_map(|store| Path::new(store).canonicalize().ok());
    stores.map(|store| ShownDirectory { path: store.display().to_string(), list: true }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown_at(path: &str) -> Vec<ShownDirectory> {
        vec![ShownDirectory { path: path.to_owned(), list: false }]
    }

    #[test]
    fn a_program_must_lie_in_the_composed_root_with_its_interpreter() {
        let folder = std::env::temp_dir().join(format!("class-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let folder = folder.canonicalize().unwrap();
        let script = folder.join("script");
        std::fs::write(&script, "#!/bin/sh\n").unwrap();
        let at = |path: &Path| vec![("script".to_owned(), path.display().to_string())];
        let sh = Path::new("/bin/sh").canonicalize().unwrap();
        assert!(complete(&at(&sh), &[]).is_ok());
        let refusal = complete(&at(&script), &[]).unwrap_err();
        assert_eq!(refusal.code, "E-CAP-006");
        assert!(refusal.to_string().contains("script is not in the root"), "{refusal}");
        assert!(complete(&at(&script), &shown_at(folder.to_str().unwrap())).is_ok());
        for hides in ["/", "/proc", "/proc/sys", "/dev/shm", "/etc"] {
            let refusal = complete(&[], &shown_at(hides)).unwrap_err();
            assert!(refusal.to_string().contains("of their own"), "{hides}: {refusal}");
        }
        // Its interpreter is elsewhere again.
        let own = folder.join("interpreter");
        std::fs::copy(&sh, &own).unwrap();
        std::fs::write(&script, format!("#!{}\n", own.display())).unwrap();
        assert!(complete(&at(&script), &shown_at(script.to_str().unwrap())).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_place_is_judged_where_it_will_be() {
        assert_eq!(
            future(Path::new("/usr/local/none/../here")).unwrap(),
            Path::new("/usr/local/none/../here")
        );
        assert_eq!(future(Path::new("/proc/self/../none/deep")).unwrap(), Path::new("/proc/none/deep"));
    }
}
