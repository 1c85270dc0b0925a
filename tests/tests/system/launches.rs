//! Launches that must be refused: quickly, with a code, leaving nothing.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use system_tests::broker::{Ended, Launch};
use system_tests::capsule::Capsule;
use system_tests::remains::assert_nothing_made;
use system_tests::temporary::Temporary;
use system_tests::{binaries, host, needs_root, not_run};

const QUICK: Duration = Duration::from_secs(5);

/// Refused with one of `codes` in the form operators know, nothing on standard output, nothing made.
fn assert_refused(what: &str, ended: &Ended, codes: &[&str], folder: &Path) {
    assert_eq!(ended.code(), Some(1), "{what}: {}", ended.stderr);
    let found = codes.iter().any(|code| ended.stderr.contains(&format!("error[{code}]: ")));
    assert!(found, "{what}: none of {codes:?} in\n{}", ended.stderr);
    assert_eq!(ended.stdout, "", "{what}");
    assert_nothing_made(folder);
}

#[test]
fn bad_manifests_are_refused_with_their_code_before_anything_is_made() {
    let gateway = "      endpoint: http://127.0.0.1:8089\n      keyless: true";
    for (what, piece, replacement, code, named) in [
        ("no name", "name: reporter\n", "", "E-MAN-001", "name"),
        ("a blank version", "version: \"0.1.0\"\n", "version: \"  \"\n", "E-MAN-001", "version"),
        ("broken YAML", "name: reporter\n", "name: [reporter\n", "E-MAN-002", "line"),
        ("a misspelt key", "capabilities:\n", "capabilites:\n", "E-MAN-003", "capabilities"),
        ("another mode", "mode: read-only", "mode: read-write", "E-MAN-003", "exports.files.mode"),
        ("a root above", "root: out/", "root: ../out/", "E-MAN-003", "exports.files.root"),
        ("an absolute root", "root: out/", "root: /out/", "E-MAN-003", "exports.files.root"),
        (
            "a size with another unit",
            "root: out/",
            "root: out/\n    max_bytes: 10MB",
            "E-MAN-003",
            "max_bytes",
        ),
        ("no size", "root: out/", "root: out/\n    max_bytes: 0", "E-MAN-003", "max_bytes"),
        (
            "an unknown class",
            "capabilities:\n",
            "capabilities:\n  containment: airtight\n",
            "E-MAN-003",
            "containment",
        ),
        ("a source without leave", "    local_source: true\n", "", "E-MAN-003", "stand-in"),
        ("a gateway without a key", gateway, "      endpoint: http://127.0.0.1:8089", "E-CAP-018", "gateway"),
    ] {
        let capsule = Capsule::reporter().with(piece, replacement);
        let ended = Launch::of(&capsule).arguments(&["--task", "Report on inputs/"]).run(QUICK);
        assert_refused(what, &ended, &[code], capsule.folder());
        assert!(ended.stderr.contains(named), "{what}: {named} in\n{}", ended.stderr);
    }
}

#[test]
fn a_manifest_that_is_not_there_is_refused() {
    let folder = Temporary::new();
    let launch =
        Launch::bare(folder.path()).arguments(&["--manifest"]).path(&folder.path().join("none.yaml"));
    let ended = launch.run(QUICK);
    assert_refused("no manifest", &ended, &["E-IO-001"], folder.path());
    assert!(ended.stderr.contains("none.yaml"), "{}", ended.stderr);
}

#[test]
fn a_driver_that_is_not_there_is_refused() {
    needs_root!();
    let capsule = Capsule::reporter();
    fs::remove_dir_all(capsule.folder().join("artifacts/stand-in")).unwrap();
    let ended = Launch::of(&capsule).run(QUICK);
    let codes = ["E-RUN-006", "E-RUN-008", "E-IO-001"];
    assert_refused("no driver", &ended, &codes, capsule.folder());
    assert!(ended.stderr.contains("stand-in"), "{}", ended.stderr);
}

#[test]
fn an_export_root_that_leads_out_of_the_workdir_is_refused() {
    needs_root!();
    for target in ["/tmp", ".."] {
        let capsule = Capsule::reporter();
        let out = capsule.work().join("out");
        let _ = fs::remove_dir_all(&out);
        symlink(target, &out).unwrap();
        let ended = Launch::of(&capsule).arguments(&["--serve-only"]).run(QUICK);
        assert_refused(target, &ended, &["E-CAP-007"], capsule.folder());
    }
}

#[test]
fn a_workdir_that_holds_the_brokers_own_directories_is_refused() {
    needs_root!();
    let capsule = Capsule::reporter();
    let launch = Launch::bare(capsule.folder()).arguments(&["--serve-only", "--manifest"]);
    let ended = launch.path(&capsule.manifest()).arguments(&["--workdir"]).path(capsule.folder()).run(QUICK);
    assert_refused("workdir above", &ended, &["E-IO-002", "E-IO-003", "E-MAN-003"], capsule.folder());
}

/// The classes that are named are the floor and the one the host gives; what is missing is named too.
#[test]
fn a_floor_that_the_host_cannot_give_is_refused_before_anything_is_made() {
    needs_root!();
    for from_manifest in [false, true] {
        let mut capsule = Capsule::reporter();
        if from_manifest {
            capsule = capsule.with("capabilities:\n", "capabilities:\n  containment: sealed\n");
        }
        let mut launch = Launch::of(&capsule).without_capability("sys_admin");
        if !from_manifest {
            launch = launch.arguments(&["--containment", "sealed"]);
        }
        let ended = launch.run(QUICK);
        assert_refused("no sealed", &ended, &["E-CAP-003"], capsule.folder());
        for named in ["sealed", "scoped", "mount namespace", "CAP_SYS_ADMIN"] {
            assert!(ended.stderr.contains(named), "{named} in\n{}", ended.stderr);
        }
    }
}

#[test]
fn directories_that_cannot_stand_in_a_composed_root_are_refused_before_anything_is_made() {
    needs_root!();
    for place in ["/usr/local/capsule-test-none", "/etc/capsule-test-none", "/lib/capsule-test-none"] {
        let capsule = Capsule::reporter();
        let launch = Launch::bare(capsule.folder()).arguments(&["--containment", "sealed", "--manifest"]);
        let ended = launch.path(&capsule.manifest()).arguments(&["--workdir", place]).run(QUICK);
        assert_refused(place, &ended, &["E-IO-002"], capsule.folder());
        assert!(!Path::new(place).exists(), "{place}");
    }
}

#[test]
fn a_staged_runtime_needs_a_declared_sealed_and_a_tree_that_is_there() {
    needs_root!();
    let shell = "capabilities:\n  shell:\n    staged_runtime: [{binary: bash, source_path: /capsule-none, pin: '1'}]\n";
    for (class, code, named) in [
        ("", "E-CAP-004", "bash"),
        ("  containment: scoped\n", "E-CAP-004", "bash"),
        ("  containment: sealed\n", "E-RUN-014", "/capsule-none"),
    ] {
        let capsule = Capsule::reporter()
            .with("capabilities:\n  shell:\n", shell)
            .with("\ninference:\n", &format!("{class}\ninference:\n"));
        let ended = Launch::of(&capsule).run(QUICK);
        assert_refused(class, &ended, &[code], capsule.folder());
        assert!(ended.stderr.contains(named), "{named} in\n{}", ended.stderr);
    }
}

#[test]
fn what_cannot_be_protected_is_refused() {
    needs_root!();
    for entry in ["missing", "notes/../../x", "linked", "/etc"] {
        let filesystem = format!("capabilities:\n  filesystem: {{read_only: [inputs, '{entry}']}}\n");
        let capsule = Capsule::reporter().with("capabilities:\n", &filesystem);
        symlink("inputs", capsule.work().join("linked")).unwrap();
        let ended = Launch::of(&capsule).arguments(&["--serve-only"]).run(QUICK);
        assert_refused(entry, &ended, &["E-CAP-012"], capsule.folder());
        assert!(ended.stderr.contains("capabilities.filesystem.read_only[1]"), "{}", ended.stderr);
    }
}

#[test]
fn a_floor_and_an_executable_workdir_contradict_each_other() {
    needs_root!();
    for class in ["scoped", "sealed"] {
        let capsule = Capsule::reporter()
            .with("capabilities:\n", "capabilities:\n  filesystem: {workdir_exec: true}\n");
        let ended = Launch::of(&capsule).arguments(&["--containment", class]).run(QUICK);
        assert_refused(class, &ended, &["E-CAP-003"], capsule.folder());
    }
}

#[test]
fn a_host_without_the_controllers_refuses_unless_told_to_go_on() {
    needs_root!();
    let missing = host::missing_controllers();
    if missing.is_empty() {
        not_run!("this host offers every cgroup v2 controller that limits need");
    }
    let capsule = Capsule::reporter();
    let ended =
        Launch::of(&capsule).without_accepting().arguments(&["--task", "Report on inputs/"]).run(QUICK);
    assert_refused("no controllers", &ended, &["E-RUN-012"], capsule.folder());
    for controller in missing {
        assert!(ended.stderr.contains(controller), "{controller} in\n{}", ended.stderr);
    }
    assert!(ended.stderr.contains("--accept-missing cgroup-limits"), "the remedy in\n{}", ended.stderr);
}

/// The builds of two checkouts differ in the identifier that every binary carries and says first; here one is changed in a
/// copy, where it stands.
#[test]
fn a_sibling_of_another_build_is_refused_by_name() {
    needs_root!();
    let capsule = Capsule::reporter();
    let mixed = capsule.folder().join("bin");
    fs::create_dir(&mixed).unwrap();
    for name in binaries::SIBLINGS.into_iter().chain(["broker"]) {
        binaries::copy(&binaries::directory().join(name), &mixed.join(name));
    }
    let mut door = fs::read(mixed.join("door")).unwrap();
    let (own, other) = (ipc::BUILD_ID.as_bytes(), ipc::BUILD_ID.chars().rev().collect::<String>());
    assert_ne!(own, other.as_bytes());
    let places: Vec<usize> =
        door.windows(own.len()).enumerate().filter(|(_, window)| *window == own).map(|(at, _)| at).collect();
    assert!(!places.is_empty(), "the door carries {}: are the binaries of this checkout?", ipc::BUILD_ID);
    for at in places {
        door[at..at + own.len()].copy_from_slice(other.as_bytes());
    }
    fs::write(mixed.join("other"), door).unwrap();
    binaries::copy(&mixed.join("other"), &mixed.join("door"));

    let ended =
        Launch::of(&capsule).binaries(&mixed).arguments(&["--serve-only"]).run(Duration::from_secs(20));
    assert!(matches!(ended.code(), Some(1 | 3)), "{:?}: {}", ended.code(), ended.stderr);
    let told = ended.stderr.lines().any(|line| line.contains("door") && line.contains("build"));
    assert!(told, "no line names the door and its build:\n{}", ended.stderr);
    assert_eq!(ended.stdout, "", "it never served");
    let entries = ["run", "state/sessions"].map(|place| fs::read_dir(capsule.folder().join(place)));
    let names = entries.into_iter().flatten().flatten().flatten().map(|entry| entry.file_name());
    let sessions: Vec<_> = names.filter(|name| name.to_string_lossy().contains("ses_")).collect();
    assert!(sessions.is_empty(), "left behind: {sessions:?}");
}

#[test]
fn two_launches_of_one_capsule_at_the_same_time_do_not_disturb_each_other() {
    needs_root!();
    let (one, other) = (Capsule::reporter(), Capsule::reporter());
    let mut first = Launch::of(&one).arguments(&["--serve-only"]).start();
    let mut second = Launch::of(&other).arguments(&["--serve-only"]).start();
    assert_ne!((first.id(), first.url()), (second.id(), second.url()));
    first.stop();
    assert_eq!(system_tests::http::get(second.url(), "/healthz").status, 204);
    second.stop();
}
