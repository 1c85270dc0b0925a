//! Directories of the host that `capabilities.shell` names beside its programs.

use super::block::{Context, Field, Map};
use super::error::{ManifestError, shown};
use super::model::{RuntimeDirectory, StagedRuntime};

/// The most directories of `interpreter_runtime`.
const MOST_RUNTIMES: usize = 64;

/// Reads `interpreter_runtime`, which names programs of `allow` alone.
pub(super) fn interpreters(
    ctx: &mut Context,
    shell: &Map<'_>,
    allow: &[String],
) -> Result<Vec<RuntimeDirectory>, ManifestError> {
    let mut directories: Vec<RuntimeDirectory> = Vec::new();
    let Some(grants) = shell.get("interpreter_runtime") else { return Ok(directories) };
    for grant in grants.list()? {
        let grant = grant.map()?;
        let name = allowed(&grant, allow)?;
        let dirs = grant.require("dirs")?;
        let entries = dirs.list()?;
        if entries.is_empty() {
            return Err(dirs.error("must name at least one directory"));
        }
        for entry in entries {
            let entry = entry.map()?;
            let field = entry.require("path")?;
            let path = absolute(&field)?;
            if directories.len() == MOST_RUNTIMES {
                return Err(field.error(format!("is one more than {MOST_RUNTIMES} directories")));
            }
            let list = entry.require("list_dir")?.flag()?;
            directories.push(RuntimeDirectory { path, list });
        }
        ctx.warn(
            "W-SEC-009",
            format!("{}: {} depends on this host's directories", grant.path("dirs"), shown(&name)),
        );
    }
    Ok(directories)
}

/// Reads `staged_runtime`; whether the class suits it is decided with the class.
pub(super) fn staged(shell: &Map<'_>, allow: &[String]) -> Result<Vec<StagedRuntime>, ManifestError> {
    let mut staged: Vec<StagedRuntime> = Vec::new();
    let Some(entries) = shell.get("staged_runtime") else { return Ok(staged) };
    for entry in entries.list()? {
        let entry = entry.map()?;
        let binary = allowed(&entry, allow)?;
        if named(shell, &binary)? || staged.iter().any(|known| known.binary == binary) {
            let reason = format!("{} has another runtime already", shown(&binary));
            return Err(entry
                .require("binary")?
                .error(reason)
                .hint("declare one form, once, for one program"));
        }
        let path = absolute(&entry.require("source_path")?)?;
        entry.required_text("pin")?;
        if staged.len() == MOST_RUNTIMES {
            return Err(entries.error(format!("names more than {MOST_RUNTIMES} trees")));
        }
        staged.push(StagedRuntime { binary, path });
    }
    Ok(staged)
}

/// Whether `interpreter_runtime` names a program.
fn named(shell: &Map<'_>, binary: &str) -> Result<bool, ManifestError> {
    let Some(grants) = shell.get("interpreter_runtime") else { return Ok(false) };
    for grant in grants.list()? {
        if grant.map()?.require("binary")?.verbatim()? == binary {
            return Ok(true);
        }
    }
    Ok(false)
}

fn allowed(entry: &Map<'_>, allow: &[String]) -> Result<String, ManifestError> {
    let binary = entry.require("binary")?;
    let name = binary.verbatim()?;
    if allow.iter().any(|allowed| allowed == name) {
        Ok(name.to_owned())
    } else {
        Err(binary.error(format!("{} is not in shell.allow", shown(name))))
    }
}

fn absolute(field: &Field<'_>) -> Result<String, ManifestError> {
    let path = field.text()?;
    if path.starts_with('/') && !path.contains('\0') {
        Ok(path)
    } else {
        Err(field.error("must be an absolute path"))
    }
}
