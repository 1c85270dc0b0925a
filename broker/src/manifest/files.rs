//! The checks that need the file system: reading the manifest, sources, prompt, export root.
//!
//! They look (`stat`, `readlink`) and read the manifest itself; nothing is created or changed, and no
//! environment variable is read. What they find can change afterwards: the file server holds every request
//! against the root again.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::error::{ManifestError, shown};
use super::model::{Manifest, Origin, SystemPrompt};
use super::tree::MAX_BYTES;

/// Reads a manifest file, at most 1 MiB of UTF-8.
///
/// `E-IO-001` absent, `E-IO-002` not permitted, `E-IO-003` otherwise unreadable, `E-MAN-002` too large or not UTF-8.
pub(crate) fn read_text(path: &Path) -> Result<String, ManifestError> {
    let failed = |error: io::Error| io_error(show_path(path), path, &error);
    // Asked before opening: opening a fifo would wait for its writer.
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err(ManifestError::new("E-IO-003", show_path(path), "is not a regular file"));
    }
    let file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > MAX_BYTES {
        return Err(ManifestError::new(
            "E-MAN-002",
            show_path(path),
            format!("larger than {MAX_BYTES} bytes"),
        ));
    }
    String::from_utf8(bytes).map_err(|_| ManifestError::new("E-MAN-002", show_path(path), "is not UTF-8"))
}

/// Holds a valid manifest against the file system.
///
/// `E-IO-001` a source is absent, `E-IO-003` it is of no usable kind, `E-RUN-009` the system prompt's file cannot be
/// read, `E-CAP-007` an export root leaves the accessible workdir. A workdir or root that does not exist yet passes.
pub(crate) fn check_files(
    manifest: &Manifest,
    manifest_dir: &Path,
    workdir: &Path,
) -> Result<(), ManifestError> {
    for (index, artifact) in manifest.artifacts.iter().enumerate() {
        if let Origin::Source(source) = &artifact.origin {
            check_source(index, &manifest_dir.join(source))?;
        }
    }
    if let Some(SystemPrompt::File(file)) =
        manifest.inference.as_ref().and_then(|inference| inference.system_prompt.as_ref())
    {
        let path = manifest_dir.join(file);
        let what = "inference.system_prompt_file";
        match fs::metadata(&path) {
            Ok(found) if found.is_file() => {}
            Ok(_) => return Err(prompt_error(what, &path, "is not a regular file".to_owned())),
            Err(error) => return Err(prompt_error(what, &path, reason(&error))),
        }
    }
    for (index, entry) in manifest.capabilities.read_only.iter().enumerate() {
        check_read_only(index, entry, workdir)?;
    }
    let files = manifest.export_files.as_ref().map(|files| ("exports.files.root", &files.root));
    let peer_files =
        manifest.export_peer_files.as_ref().map(|files| ("exports.peer_files.root", &files.root));
    for (field, root) in files.into_iter().chain(peer_files) {
        check_export(field, root.verbatim(), root.components(), workdir)?;
    }
    Ok(())
}

fn prompt_error(what: &str, path: &Path, reason: String) -> ManifestError {
    ManifestError::new("E-RUN-009", what, format!("{} {reason}", show_path(path)))
}

fn check_source(index: usize, path: &Path) -> Result<(), ManifestError> {
    let what = format!("artifacts[{index}].source");
    let found = fs::metadata(path).map_err(|error| io_error(what.clone(), path, &error))?;
    let inner = path.join("murmur.yaml");
    let problem = if found.is_file() {
        return Ok(());
    } else if !found.is_dir() {
        ("E-IO-003", format!("{} is neither a directory nor an archive", show_path(path)))
    } else if !inner.is_file() {
        ("E-IO-001", format!("{} holds no murmur.yaml", show_path(path)))
    } else {
        return Ok(());
    };
    Err(ManifestError::new(problem.0, what, problem.1)
        .hint("a source is a directory with murmur.yaml, or a .mur.zip"))
}

/// Refuses an entry of `read_only` that is not a directory or file of the workdir, or that is reached through a link: what is
/// kept must be what was named.
fn check_read_only(index: usize, entry: &str, workdir: &Path) -> Result<(), ManifestError> {
    let what = format!("capabilities.filesystem.read_only[{index}]");
    let refuse = |reason: String| {
        Err(ManifestError::new("E-CAP-012", what.clone(), format!("{} {reason}", shown(entry)))
            .hint("name a directory or file of the workdir by its own path, and make it before the launch"))
    };
    let mut path = match fs::canonicalize(workdir) {
        Ok(path) => path,
        Err(_) => return refuse("is not in the workdir, which does not exist yet".to_owned()),
    };
    let parts = match super::value::relative(entry) {
        Ok(parts) => parts,
        Err(reason) => return refuse(reason.to_owned()),
    };
    for (number, part) in parts.iter().enumerate() {
        path.push(part);
        let kind = match fs::symlink_metadata(&path) {
            Ok(found) => found.file_type(),
            Err(error) => return refuse(reason(&error)),
        };
        let last = number + 1 == parts.len();
        if kind.is_symlink() {
            return refuse("is reached through a symbolic link".to_owned());
        } else if !(kind.is_dir() || last && kind.is_file()) {
            return refuse("is neither a directory nor a file".to_owned());
        }
    }
    Ok(())
}

/// Refuses a root of which any existing part resolves outside the workdir (seed: Path resolution).
fn check_export(field: &str, verbatim: &str, parts: &[String], workdir: &Path) -> Result<(), ManifestError> {
    let outside = |code, reason: String| {
        Err(ManifestError::new(code, field, reason).hint("point the root at a directory of the workdir"))
    };
    let real_workdir = match fs::canonicalize(workdir) {
        Ok(path) => path,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io_error("workdir", workdir, &error)),
    };
    // From the workdir down: a link in the middle counts even where nothing exists behind it.
    let mut path: PathBuf = real_workdir.clone();
    for part in parts {
        path.push(part);
        match fs::canonicalize(&path) {
            Ok(real) if real.starts_with(&real_workdir) => {}
            Ok(real) => {
                let text = format!(
                    "{} resolves to {}, outside the workdir {}",
                    shown(verbatim),
                    show_path(&real),
                    show_path(&real_workdir)
                );
                return outside("E-CAP-007", text);
            }
            Err(error) => match error.kind() {
                // Nothing there yet, or a file in the way: nothing can be served from it.
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => return Ok(()),
                io::ErrorKind::PermissionDenied => return Err(io_error(field, &path, &error)),
                _ => {
                    let text = format!("{} cannot be resolved: {}", shown(verbatim), reason(&error));
                    return outside("E-CAP-007", text);
                }
            },
        }
    }
    Ok(())
}

pub(super) fn io_error(what: impl Into<String>, path: &Path, error: &io::Error) -> ManifestError {
    let code = match error.kind() {
        io::ErrorKind::NotFound => "E-IO-001",
        io::ErrorKind::PermissionDenied => "E-IO-002",
        _ => "E-IO-003",
    };
    let what = what.into();
    let path = show_path(path);
    // Where the path is itself the thing, it is not said twice.
    let reason = if what == path { reason(error) } else { format!("{path} {}", reason(error)) };
    ManifestError::new(code, what, reason)
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "does not exist".to_owned(),
        io::ErrorKind::PermissionDenied => "may not be read".to_owned(),
        _ => format!("cannot be read ({error})"),
    }
}

fn show_path(path: &Path) -> String {
    shown(&path.to_string_lossy())
}
