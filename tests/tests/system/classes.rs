//! Which class a session gets, what it is told to be, and what that means for the programs in it.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};
use system_tests::broker::{Launch, Session};
use system_tests::capsule::Capsule;
use system_tests::trace::Trace;
use system_tests::{a2a, host, http, needs_root, not_run};

const PROGRAMS: &str = "shell: {allow: [bash, cat, ls, cp, chmod, mv, rm, touch]";

/// A capsule whose driver calls whatever tool its task names; `more` goes into its capabilities.
fn capsule(more: &str) -> Capsule {
    let capabilities = format!("{PROGRAMS}}}{more}");
    let capsule = Capsule::driven_by("spin-driver", "http://127.0.0.1:9", &["file-tool"], &capabilities);
    capsule.write("inputs/deep/file", b"kept\n");
    capsule.write("out/report.md", b"hello\n");
    capsule
}

/// What the tool answers.
fn tool(session: &Session, tool: &str, input: &Value) -> String {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let done = a2a::complete(session.url(), &format!("call-{number}"), &format!("tool {tool} {input}"));
    a2a::answer(&done).to_owned()
}

fn bash(session: &Session, command: &str) -> String {
    tool(session, "bash", &json!({ "command": command }))
}

/// `session_start` of a session that has ended.
fn start_of(session: &mut Session) -> Value {
    let records = session.records();
    session.stop();
    Trace::read(&records).of("session_start")[0].clone()
}

#[test]
fn the_class_is_the_declared_one_or_else_the_strongest_and_is_recorded_with_what_backs_it() {
    needs_root!();
    for (declared, raised, recorded, class, tier) in [
        (None, None, "advisory", "sealed", "sealed"),
        (Some("sealed"), None, "sealed", "sealed", "sealed"),
        (Some("scoped"), None, "scoped", "scoped", "full"),
        (Some("scoped"), Some("advisory"), "scoped", "scoped", "full"),
        (Some("scoped"), Some("sealed"), "sealed", "sealed", "sealed"),
        (None, Some("scoped"), "scoped", "scoped", "full"),
        (Some("advisory"), None, "advisory", "advisory", "seccomp-only"),
    ] {
        if class == "advisory" && !host::takes_id_maps() {
            host::say_not_run(
                "class advisory",
                "the filesystem of temporary folders takes no id-mapped mounts",
            );
            continue;
        }
        let what = format!("{declared:?} raised by {raised:?}");
        let capsule = capsule(&declared.map_or(String::new(), |class| format!(", containment: {class}")));
        let mut launch = Launch::of(&capsule);
        if let Some(raised) = raised {
            launch = launch.arguments(&["--containment", raised]);
        }
        let mut session = launch.start();
        assert_eq!(session.containment(), class, "{what}");
        let file = http::get(session.url(), "/resources/files/report.md");
        assert_eq!(file.header("x-murmur-containment"), Some(class), "{what}");
        // Whether the host's own /etc is there, and whether it can be read.
        let seen = bash(
            &session,
            "[ -e /etc/hostname ]; echo there $?; cat /etc/hostname >/dev/null 2>&1; echo read $?",
        );
        let expected = match class {
            "sealed" => ["there 1", "read 1"],
            "scoped" => ["there 0", "read 1"],
            _ => ["there 0", "read 0"],
        };
        assert!(expected.iter().all(|line| seen.contains(line)), "{what}: {seen}");
        let start = start_of(&mut session);
        assert_eq!(start["containment_achieved"], class, "{what}");
        assert_eq!(start["containment_declared"], recorded, "{what}");
        let grants = &start["effective_grants"];
        assert_eq!(grants["enforcement_tier"], tier, "{what}");
        assert_eq!(
            grants["mechanism"], "mountns+pivot_root+landlock+seccomp",
            "what the host can back: {what}"
        );
    }
}

#[test]
fn an_executable_workdir_is_called_advisory_and_keeps_the_rest() {
    needs_root!();
    if !host::takes_id_maps() {
        not_run!(
            "the filesystem of temporary folders takes no id-mapped mounts, without which advisory is refused"
        );
    }
    let plant = "cp /usr/bin/true planted && chmod 755 planted && ./planted; echo ran $?; \
                 cp /usr/bin/true $TMPDIR/planted && $TMPDIR/planted; echo ran $?; \
                 [ -e /etc/hostname ]; echo there $?; cat /etc/hostname; echo read $?";
    for (declared, there, read) in [("", 1, 1), (", containment: advisory", 0, 0)] {
        let capsule = capsule(&format!(", filesystem: {{workdir_exec: true}}{declared}"));
        let mut session = Launch::of(&capsule).start();
        assert_eq!(session.containment(), "advisory");
        let seen = bash(&session, plant);
        assert_eq!(seen.matches("ran 0").count(), 2, "{declared:?}: {seen}");
        assert!(seen.contains(&format!("there {there}")) && seen.contains(&format!("read {read}")), "{seen}");
        let start = start_of(&mut session);
        assert_eq!(
            (&start["containment_achieved"], &start["workdir_exec"]),
            (&"advisory".into(), &true.into())
        );
    }
    let capsule = capsule("");
    let mut session = Launch::of(&capsule).start();
    assert_eq!(bash(&session, plant).matches("ran 126").count(), 2);
    session.stop();
}

/// By no program and by no component: in both the kernel refuses.
#[test]
fn protected_paths_are_read_and_never_changed() {
    needs_root!();
    for class in ["sealed", "scoped"] {
        let capsule = capsule(&format!(", filesystem: {{read_only: [inputs/deep]}}, containment: {class}"));
        // Nothing tells the runtime that `write` is a destination: the mounts are asked.
        let own = capsule.folder().join("artifacts/file-tool/murmur.yaml");
        let text = fs::read_to_string(&own).unwrap();
        assert!(text.contains(", format: murmur-destination"), "{text}");
        fs::write(&own, text.replace(", format: murmur-destination", "")).unwrap();
        let mut session = Launch::of(&capsule).start();
        let seen = bash(
            &session,
            "cat inputs/deep/file; d=inputs/deep; (echo x > $d/file) 2>&1; mv inputs moved; rm -rf inputs; \
             mv inputs/deep inputs/other; touch inputs/beside; echo end",
        );
        assert!(seen.contains("kept") && seen.contains("Read-only file system"), "{class}: {seen}");
        assert!(seen.contains("Device or resource busy") && seen.contains("end"), "{class}: {seen}");
        for path in ["inputs/deep/file", "inputs/deep/new"] {
            let seen = tool(&session, "file-tool", &json!({ "write": path, "text": "changed" }));
            assert!(
                seen.contains("\"error\":") && !capsule.work().join("inputs/deep/new").exists(),
                "{seen}"
            );
        }
        assert_eq!(fs::read_to_string(capsule.work().join("inputs/deep/file")).unwrap(), "kept\n", "{class}");
        assert!(capsule.work().join("inputs/beside").exists(), "{class}: what is beside it is free");
        let start = start_of(&mut session);
        assert_eq!(start["effective_grants"]["read_only_paths"], json!(["inputs/deep"]));
    }
}

#[test]
fn directories_of_interpreters_are_shown_to_programs_and_nothing_beside_them() {
    needs_root!();
    for class in ["sealed", "scoped"] {
        let folder = system_tests::temporary::Temporary::new();
        let at = folder.path();
        for (name, text) in
            [("listed/file", "in listed"), ("named/file", "in named"), ("beside/file", "beside")]
        {
            fs::create_dir_all(at.join(name).parent().unwrap()).unwrap();
            fs::write(at.join(name), text).unwrap();
        }
        fs::set_permissions(at.join("listed"), PermissionsExt::from_mode(0o777)).unwrap();
        let grant = format!(
            ", interpreter_runtime: [{{binary: bash, dirs: [{{path: {0}/listed, list_dir: true}}, \
             {{path: {0}/named, list_dir: false}}]}}]}}, containment: {class}",
            at.display()
        );
        let capabilities = format!("{PROGRAMS}{grant}");
        let capsule = Capsule::driven_by("spin-driver", "http://127.0.0.1:9", &[], &capabilities);
        let mut session = Launch::of(&capsule).start();
        let seen = bash(
            &session,
            &format!(
                "cd {}; ls listed; cat listed/file named/file; echo; ls named >/dev/null 2>&1; echo list $?; \
                 cat beside/file >/dev/null 2>&1; echo beside $?; (echo x > listed/new) 2>/dev/null; echo write $?",
                at.display()
            ),
        );
        for expected in ["in listedin named", "list 2", "beside 1", "write 1"] {
            assert!(seen.contains(expected), "{class}: {expected} in {seen}");
        }
        assert!(session.stderr().contains("W-SEC-009"), "{}", session.stderr());
        session.stop();
    }
}

/// Undeclared is never refused: what stands in the way of `sealed` is told and recorded.
#[test]
fn an_undeclared_class_is_scoped_where_this_capsule_cannot_be_sealed_and_says_why() {
    needs_root!();
    const PLACE: &str = "/usr/local/sbin";
    let capsule = capsule("");
    let launch = Launch::bare(capsule.folder()).arguments(&["--manifest"]).path(&capsule.manifest());
    let launch = launch.arguments(&["--workdir", &format!("{PLACE}/work")]);
    let mut session = launch.installing(std::path::Path::new("/usr/bin/true"), PLACE.as_ref()).start();
    assert_eq!(session.containment(), "scoped");
    let why = format!("--workdir {PLACE}/work");
    assert!(
        session.stderr().contains(&format!("notice: class scoped, not sealed: {why}")),
        "{}",
        session.stderr()
    );
    assert!(bash(&session, "pwd; echo x > file && cat file").contains(&format!("{PLACE}/work\nx")));
    let start = start_of(&mut session);
    let missing = start["effective_grants"]["missing"].as_array().unwrap();
    assert!(
        missing.iter().any(|line| line.as_str().unwrap().starts_with(&format!("sealed: {why}"))),
        "{missing:?}"
    );
}
