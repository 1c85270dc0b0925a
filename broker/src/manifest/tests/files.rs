//! The checks against a real directory tree.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// A directory of its own per test, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("manifest-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(fs::canonicalize(path).unwrap())
    }

    fn dir(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn root(root: &str) -> Manifest {
    accept(&format!("exports: {{files: {{root: {root}, mode: read-only}}}}")).0
}

#[test]
fn an_export_root_that_leaves_the_workdir_is_refused() {
    let scratch = Scratch::new();
    let work = scratch.dir("work");
    let outside = scratch.dir("outside");
    scratch.dir("work/real/deep");
    scratch.dir("work-twin");
    fs::write(work.join("file"), "x").unwrap();
    symlink(&outside, work.join("out")).unwrap();
    symlink("..", work.join("up")).unwrap();
    symlink("real", work.join("inside")).unwrap();
    symlink(scratch.0.join("work-twin"), work.join("twin")).unwrap();
    symlink("/nonexistent", work.join("dangling")).unwrap();
    symlink("loop", work.join("loop")).unwrap();
    symlink("out", work.join("hop")).unwrap();
    let cases = [
        ("out", Some("E-CAP-007")),
        ("out/", Some("E-CAP-007")),
        ("out/missing", Some("E-CAP-007")),
        ("hop", Some("E-CAP-007")),
        ("up", Some("E-CAP-007")),
        // Comes back in: a component left the workdir all the same.
        ("up/work/real", Some("E-CAP-007")),
        ("twin", Some("E-CAP-007")),
        ("loop", Some("E-CAP-007")),
        ("inside/deep", None),
        ("real/./deep/", None),
        (".", None),
        ("missing/below", None),
        ("dangling", None),
        ("file", None),
        ("file/below", None),
    ];
    for (path, expected) in cases {
        let found = check_files(&root(path), &scratch.0, &work);
        assert_eq!(found.as_ref().err().map(|e| e.code), expected, "{path}: {found:?}");
    }
    let text = check_files(&root("out"), &scratch.0, &work).unwrap_err().to_string();
    for part in ["exports.files.root", "\"out\"", outside.to_str().unwrap(), work.to_str().unwrap()] {
        assert!(text.contains(part), "{part}: {text}");
    }
    check_files(&root("out"), &scratch.0, &scratch.0.join("not-yet")).unwrap();
    let link = scratch.0.join("link-to-work");
    symlink(&work, &link).unwrap();
    check_files(&root("real"), &scratch.0, &link).unwrap();
}

#[test]
fn sources_and_prompt_files_must_be_there() {
    let scratch = Scratch::new();
    let dir = scratch.dir("capsule");
    scratch.dir("capsule/empty");
    fs::write(scratch.dir("capsule/tool").join("murmur.yaml"), "name: t").unwrap();
    fs::write(dir.join("tool.mur.zip"), "x").unwrap();
    let source =
        |path: &str| accept(&format!("artifacts: [{{name: a, source: {path}, local_source: true}}]")).0;
    let absolute = dir.join("tool");
    let cases = [
        ("./tool", None),
        ("tool.mur.zip", None),
        (absolute.to_str().unwrap(), None),
        ("missing", Some("E-IO-001")),
        ("empty", Some("E-IO-001")),
        ("/dev/null", Some("E-IO-003")),
    ];
    for (path, expected) in cases {
        let found = check_files(&source(path), &dir, &dir);
        assert_eq!(found.as_ref().err().map(|e| e.code), expected, "{path}: {found:?}");
    }
    let driver = "artifacts: [{name: d, version: '1', runtime: driver, gateway: {endpoint: 'https://h', keyless: true}}]";
    let prompt = |file: &str| {
        let inference =
            format!("inference: {{model: m, driver: {{artifact: d}}, system_prompt_file: {file}}}");
        accept(&format!("{driver}\n{inference}")).0
    };
    check_files(&prompt("tool.mur.zip"), &dir, &dir).unwrap();
    for file in ["missing.md", "tool"] {
        assert_eq!(check_files(&prompt(file), &dir, &dir).unwrap_err().code, "E-RUN-009", "{file}");
    }
}

#[test]
fn the_manifest_file_is_read_within_bounds() {
    let scratch = Scratch::new();
    let at = |name: &str| scratch.0.join(name);
    fs::write(at("ok"), HEAD).unwrap();
    fs::write(at("latin"), b"name: \xff").unwrap();
    fs::write(at("huge"), vec![b'#'; tree::MAX_BYTES + 1]).unwrap();
    fs::write(at("full"), vec![b'#'; tree::MAX_BYTES]).unwrap();
    assert_eq!(read_text(&at("ok")).unwrap(), HEAD);
    assert_eq!(read_text(&at("full")).unwrap().len(), tree::MAX_BYTES);
    let cases = [("absent", "E-IO-001"), (".", "E-IO-003"), ("latin", "E-MAN-002"), ("huge", "E-MAN-002")];
    for (name, code) in cases {
        assert_eq!(read_text(&at(name)).unwrap_err().code, code, "{name}");
    }
    assert_eq!(read_text(Path::new("/dev/zero")).unwrap_err().code, "E-IO-003");
}

#[test]
fn io_errors_have_a_code_per_cause() {
    use std::io::{Error, ErrorKind};
    let cases = [
        (ErrorKind::NotFound, "E-IO-001"),
        (ErrorKind::PermissionDenied, "E-IO-002"),
        (ErrorKind::Other, "E-IO-003"),
    ];
    for (kind, code) in cases {
        let error = crate::manifest::files::io_error("workdir", Path::new("/w"), &Error::from(kind));
        assert_eq!((error.code, error.what.as_str()), (code, "workdir"));
        assert!(error.reason.contains("\"/w\""), "names the path: {error}");
    }
}

#[test]
fn a_protected_path_is_a_directory_or_file_of_the_workdir_by_its_own_name() {
    let scratch = Scratch::new();
    let work = scratch.dir("work");
    scratch.dir("work/a/b");
    fs::write(work.join("a/file"), "x").unwrap();
    symlink("a", work.join("link")).unwrap();
    symlink("file", work.join("a/last")).unwrap();
    for (entry, refused) in [
        ("a", false),
        ("a/b/", false),
        ("a/file", false),
        ("link/../a/./b", false),
        ("missing", true),
        ("a/missing", true),
        ("a/file/x", true),
        ("link", true),
        ("link/b", true),
        ("a/last", true),
    ] {
        let (manifest, _) = accept(&format!("capabilities: {{filesystem: {{read_only: [{entry}]}}}}"));
        let answer = check_files(&manifest, &scratch.0, &work);
        assert_eq!(answer.is_err(), refused, "{entry}: {answer:?}");
        if let Err(error) = answer {
            assert_eq!((error.code, error.hint.is_some()), ("E-CAP-012", true), "{entry}: {error}");
        }
    }
    let (manifest, _) = accept("capabilities: {filesystem: {read_only: [a]}}");
    let nowhere = check_files(&manifest, &scratch.0, &scratch.0.join("none")).unwrap_err();
    assert_eq!(nowhere.code, "E-CAP-012");
}
