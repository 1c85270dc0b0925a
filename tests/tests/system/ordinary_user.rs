//! A broker that root does not start: what it needs, what it says where a piece is missing, and what keeps its processes apart
//! when all of them have one id.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Duration;

use serde_json::json;
use system_tests::broker::{Launch, Session};
use system_tests::capsule::{Capsule, expected_rows, rows};
use system_tests::ordinary::{self, Delegated};
use system_tests::temporary::{self, OWNER};
use system_tests::trace::Trace;
use system_tests::{a2a, binaries, http, needs_root, network, not_run, process, programs};

const QUICK: Duration = Duration::from_secs(20);

/// Groups that a user may have, one of them the user's own; the other opens files that nobody else may open.
const GROUPS: [u32; 2] = [OWNER, 4712];

macro_rules! delegated {
    () => {{
        needs_root!();
        match Delegated::new() {
            Ok(delegated) => delegated,
            Err(why) => not_run!("{why}"),
        }
    }};
}

/// A capsule of a class whose driver calls whatever tool its task names.
fn shell(class: &str) -> Capsule {
    let allowed = "bash, cat, chmod, touch, id";
    let capabilities = format!("containment: {class}, shell: {{allow: [{allowed}]}}");
    Capsule::driven_by("spin-driver", "http://127.0.0.1:9", &[], &capabilities)
}

fn bash(session: &Session, command: &str) -> String {
    let task = format!("tool bash {}", json!({ "command": command }));
    a2a::answer(&a2a::complete(session.url(), "bash", &task)).to_owned()
}

/// The lines of `/proc/<pid>/task/<tid>/status` of each thread, by name.
fn threads(pid: i32) -> Vec<BTreeMap<String, String>> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let words = |value: &str| value.split_whitespace().collect::<Vec<_>>().join(" ");
    let lines = |text: String| {
        text.lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_owned(), words(value)))
            .collect()
    };
    tasks.map(|task| lines(fs::read_to_string(task.unwrap().path().join("status")).unwrap())).collect()
}

#[test]
fn an_ordinary_user_runs_a_capsule_from_launch_to_clean_end() {
    let delegated = delegated!();
    let capsule = Capsule::reporter();
    let mut session = Launch::of(&capsule).as_user(Some(delegated.path()), &GROUPS).start();
    assert_eq!(session.containment(), "sealed", "{}", session.stderr());
    a2a::complete(session.url(), "one", "Report on inputs/");
    let read = http::get(session.url(), "/resources/files/report.md");
    assert_eq!(read.status, 200, "{}", read.text());
    let sum = programs::sha256sum_of(&read.body);
    assert_eq!(read.header("etag"), Some(format!("\"sha256:{sum}\"").as_str()));
    assert_eq!(rows(read.text()), expected_rows(&capsule.work().join("inputs")));
    let report = fs::metadata(capsule.work().join("out/report.md")).unwrap();
    assert_eq!((report.uid(), report.gid()), (OWNER, OWNER));
    // A stateless process is replaced in the same way.
    for name in ["door", "fileserver", "egress"] {
        session.replace(name);
    }
    process::until("the new door", QUICK, || {
        let read = http::try_request(session.url(), "GET", "/resources/files/report.md").ok()?;
        (read.status == 200).then_some(())
    });

    let records = session.records();
    assert_eq!(fs::metadata(&records).unwrap().mode() & 0o7777, 0o700);
    session.stop();
    assert_eq!(delegated.left(), Vec::<String>::new(), "control groups");
    let start = Trace::read(&records).of("session_start")[0].clone();
    let one = &start["effective_grants"]["one_id"];
    assert_eq!((&one["uid"], &one["gid"]), (&json!(OWNER), &json!(OWNER)), "{start}");
    assert_eq!(one["rests_on"].as_array().map(Vec::len), Some(5), "{start}");
    assert!(start["userns_grant"].is_string(), "{start}");
    assert_eq!(start["containment_achieved"], "sealed");
}

/// What root has distinct ids for. Read from outside, where all of them can be seen.
#[test]
fn processes_with_one_id_have_namespaces_of_their_own_and_no_capability() {
    let delegated = delegated!();
    let capsule = Capsule::reporter();
    let mut session = Launch::of(&capsule).as_user(Some(delegated.path()), &GROUPS).start();
    a2a::complete(session.url(), "one", "Report on inputs/");
    let roles = session.roles();
    assert_eq!(roles.len(), 5, "{roles:?}");
    for role in &roles {
        for thread in threads(role.pid) {
            for (field, value) in [
                ("NoNewPrivs", "1"),
                ("Seccomp", "2"),
                ("CapInh", "0000000000000000"),
                ("CapPrm", "0000000000000000"),
                ("CapEff", "0000000000000000"),
                ("CapBnd", "0000000000000000"),
                ("CapAmb", "0000000000000000"),
                ("Uid", &[OWNER.to_string().as_str(); 4].join(" ")),
                ("Groups", "4712 61234"),
            ] {
                assert_eq!(thread[field], value, "{field} of a thread of {}", role.name);
            }
        }
        let owner = fs::metadata(format!("/proc/{}/status", role.pid)).unwrap().uid();
        assert_eq!(owner, 0, "{} is not dumpable", role.name);
        let map = fs::read_to_string(format!("/proc/{}/uid_map", role.pid)).unwrap();
        let expected = [OWNER.to_string(), OWNER.to_string(), "1".to_owned()];
        assert_eq!(map.split_whitespace().collect::<Vec<_>>(), expected, "{}", role.name);
    }
    // Not even another process of the user's looks into the process that makes keys.
    let look = ordinary::run_as_owner(&["cat", &format!("/proc/{}/environ", session.pid())]);
    assert!(!look.status.success(), "the broker's environment can be read");
    let broker = &threads(session.pid())[0];
    let kept = 1_u64 << 1 | 1 << 19 | 1 << 21;
    assert_eq!(
        u64::from_str_radix(&broker["CapBnd"], 16).unwrap(),
        kept,
        "CAP_DAC_OVERRIDE, SYS_PTRACE, SYS_ADMIN"
    );
    for kind in ["user", "pid", "mnt", "ipc", "uts"] {
        let namespace = |pid: i32| {
            fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap().to_string_lossy().into_owned()
        };
        let mut found: BTreeSet<String> = roles.iter().map(|role| namespace(role.pid)).collect();
        found.insert(namespace(session.pid()));
        if kind == "user" {
            found.insert(namespace(i32::try_from(std::process::id()).unwrap()));
            assert_eq!(found.len(), roles.len() + 2, "{kind}: {found:?}");
        } else {
            assert_eq!(found.len(), roles.len() + 1, "{kind}: {found:?}");
        }
    }
    session.stop();
}

/// The user's own files are within reach of the programs' id: only mounts and Landlock are between them.
#[test]
fn programs_with_the_users_id_neither_read_nor_change_the_users_files() {
    let delegated = delegated!();
    for class in ["sealed", "scoped"] {
        let capsule = shell(class);
        let launch = Launch::of(&capsule).as_user(Some(delegated.path()), &GROUPS);
        let private = capsule.folder().join("private");
        let theirs = capsule.folder().join("of-a-group");
        fs::write(&private, "of the user").unwrap();
        fs::write(&theirs, "of a group").unwrap();
        temporary::give(&private, OWNER);
        std::os::unix::fs::chown(&theirs, Some(0), Some(GROUPS[1])).unwrap();
        for (file, mode) in [(&private, 0o600), (&theirs, 0o660)] {
            fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
        }
        let before = fs::metadata(&private).unwrap();
        let mut session = launch.start();
        assert_eq!(session.containment(), class, "{}", session.stderr());
        let seen = bash(
            &session,
            &format!(
                "id -u; for f in {0} {1} {2}/trace.jsonl; do cat $f; chmod 777 $f && echo chan''ged $f; \
                 touch -d @1 $f && echo chan''ged $f; (echo x >> $f) && echo chan''ged $f; done 2>&1; \
                 kill -9 -1; kill -9 1; for p in {3} {4}; do kill -9 $p && echo kil''led $p; done 2>&1; \
                 echo made > out/made && chmod 600 out/made; echo end",
                private.display(),
                theirs.display(),
                session.records().display(),
                session.pid(),
                session.role("sandbox-host").pid,
            ),
        );
        assert!(seen.contains(&OWNER.to_string()) && seen.contains("end"), "{class}: {seen}");
        for never in ["of the user", "of a group", "session_id", "changed", "killed"] {
            assert!(!seen.contains(never), "{class}: {never}: {seen}");
        }
        let after = fs::metadata(&private).unwrap();
        assert_eq!((before.mode(), before.mtime()), (after.mode(), after.mtime()), "{class}");
        // A program's private file is served all the same.
        assert_eq!(http::get(session.url(), "/resources/files/made").body, b"made\n", "{class}");
        session.stop();
    }
    assert_eq!(delegated.left(), Vec::<String>::new());
}

#[test]
fn advisory_is_refused_where_programs_have_the_users_id() {
    let delegated = delegated!();
    let capsule = shell("advisory");
    let ended = Launch::of(&capsule).as_user(Some(delegated.path()), &[]).run(QUICK);
    assert_eq!(ended.code(), Some(1), "{}", ended.stderr);
    assert!(ended.stderr.starts_with("error[E-CAP-003]: class advisory: "), "{}", ended.stderr);
    assert!(ended.stderr.contains("hint: declare scoped or sealed"), "{}", ended.stderr);
    assert!(!capsule.folder().join("state").exists(), "nothing was made");
}

/// Invariant 8 without root: what a process says of itself is not believed.
#[test]
fn a_role_that_only_says_that_it_is_confined_is_found_out_without_root() {
    let delegated = delegated!();
    for role in ["door", "fileserver", "sandbox-host", "egress", "runner", "compiler"] {
        let capsule = Capsule::reporter();
        let launch = Launch::of(&capsule).as_user(Some(delegated.path()), &[]);
        let own = capsule.folder().join("binaries");
        fs::remove_file(own.join(role)).unwrap();
        binaries::copy(&binaries::directory().join("hostile"), &own.join(role));
        fs::write(own.join("probe"), "unconfined").unwrap();
        let ended = launch.run(QUICK);
        assert_eq!(ended.code(), Some(3), "{role}: {}", ended.stderr);
        let told = ended.stderr.lines().any(|line| line.contains(role) && line.contains("seen from outside"));
        assert!(told, "{role}: no line says what differs:\n{}", ended.stderr);
        assert!(!ended.stderr.contains("was given Order"), "{role}: {}", ended.stderr);
    }
    assert_eq!(delegated.left(), Vec::<String>::new());
}

#[test]
fn directories_are_where_the_users_environment_has_them() {
    let delegated = delegated!();
    let capsule = Capsule::reporter();
    let launch = Launch::of(&capsule).as_user(Some(delegated.path()), &[]).in_xdg_places();
    let mut session = launch.arguments(&["--serve-only"]).start();
    let state = capsule.folder().join("state/capsule-broker");
    assert!(session.records().starts_with(state.join("records")), "{:?}", session.records());
    assert!(capsule.folder().join("run/capsule-broker/sessions").join(session.id()).is_dir());
    assert!(capsule.folder().join("cache/capsule-broker/components").is_dir());
    session.stop();
}

#[test]
fn the_first_missing_piece_is_named_with_reason_and_remedy() {
    let delegated = delegated!();
    // Somebody else in the group; ended by its closed input.
    let crowded = Delegated::new().unwrap();
    let mut other = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
    fs::write(crowded.path().join("cgroup.procs"), other.id().to_string()).unwrap();

    type Change = fn(Launch) -> Launch;
    let plain: Change = |launch| launch;
    let cases: [(&str, Option<&Delegated>, Change, [&str; 3]); 5] = [
        (
            "a group that is not the user's",
            None,
            plain,
            [
                "E-RUN-012]: cgroup v2 group ",
                "it is not delegated to you: ",
                "systemd-run --user --scope -p Delegate=yes",
            ],
        ),
        (
            "a group with others in it",
            Some(&crowded),
            plain,
            [
                "E-RUN-012]: cgroup v2 group ",
                "the broker must be alone in it",
                "systemd-run --user --scope -p Delegate=yes",
            ],
        ),
        (
            "no user namespaces",
            Some(&delegated),
            |launch| launch.behind(NO_USER_NAMESPACES),
            [
                "E-CAP-003]: user namespaces for ordinary users",
                "user.max_user_namespaces is 0",
                "sysctl user.max_user_namespaces=",
            ],
        ),
        (
            "a covered /proc",
            Some(&delegated),
            |launch| {
                launch.behind(
                    "exec unshare --mount sh -c 'mount -t tmpfs none /proc/sys && exec \"$@\"' sh \"$@\"",
                )
            },
            ["E-CAP-003]: a procfs of the programs' own", "covered", "systempaths=unconfined"],
        ),
        (
            "no runtime directory",
            Some(&delegated),
            |launch| launch.in_xdg_places().behind("unset XDG_RUNTIME_DIR; exec \"$@\""),
            ["E-IO-001]: XDG_RUNTIME_DIR", "it names no absolute path", "--run-dir"],
        ),
    ];
    for (what, group, change, expected) in cases {
        let capsule = Capsule::reporter();
        let launch = Launch::of(&capsule).as_user(group.map(Delegated::path), &[]);
        let ended = change(launch).run(QUICK);
        assert_eq!(ended.code(), Some(1), "{what}: {}", ended.stderr);
        for part in expected {
            assert!(ended.stderr.contains(part), "{what}: {part} in\n{}", ended.stderr);
        }
        assert_eq!(ended.stderr.matches("error[").count(), 1, "{what}: one refusal:\n{}", ended.stderr);
        assert_eq!(ended.stdout, "", "{what}");
        let made =
            capsule.folder().join("state/records").exists() || capsule.folder().join("run/ids").exists();
        assert!(!made, "{what}: nothing was made");
    }
    drop(other.stdin.take());
    other.wait().unwrap();
}

/// Root of a user namespace with every id sets its limit of further ones to none.
const NO_USER_NAMESPACES: &str = r#"
pipe=$(mktemp -u) && mkfifo "$pipe" || exit 9
unshare --user sh -c 'read go < "$1" && shift && exec sh -c "$@"' sh "$pipe" \
    'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"' sh "$@" &
child=$!
while [ "$(readlink /proc/$child/ns/user)" = "$(readlink /proc/self/ns/user)" ]; do sleep 0.01; done
echo 0 0 4294967295 > /proc/$child/uid_map && echo 0 0 4294967295 > /proc/$child/gid_map && echo go > "$pipe"
wait $child
status=$?
rm "$pipe"
exit $status
"#;

#[test]
fn a_killed_broker_takes_everything_with_it_and_the_next_launch_removes_the_rest() {
    let delegated = delegated!();
    let capsule = Capsule::reporter();
    let launch = || Launch::of(&capsule).as_user(Some(delegated.path()), &[]);
    let mut session = launch().start();
    a2a::complete(session.url(), "one", "Report on inputs/");
    let footprint = session.footprint();
    let processes = process::watch(footprint.processes());
    session.signal(process::Signal::KILL);
    session.wait(QUICK);
    assert!(process::wait_ended(&processes, Duration::from_secs(2)).is_empty());
    assert_eq!(delegated.left(), [session.id()], "its groups stay for the next launch");
    let mut next = launch().arguments(&["--serve-only"]).start();
    assert!(
        next.stderr().contains(&format!("removed what the dead session {}", session.id())),
        "{}",
        next.stderr()
    );
    footprint.assert_gone();
    next.stop();
    assert_eq!(delegated.left(), Vec::<String>::new());
}

/// The ways out are made in a network namespace that belongs to the session's user namespace.
#[test]
fn programs_reach_what_is_listed_and_nothing_else_without_root() {
    let delegated = delegated!();
    let listed = network::greeter("127.0.0.1:0", "hello\n");
    let other = network::greeter("127.0.0.1:0", "never\n");
    let capabilities = format!("shell: {{allow: [bash]}}, network: {{allow: ['{listed}']}}");
    let capsule = Capsule::driven_by("spin-driver", "http://127.0.0.1:9", &[], &capabilities);
    let mut session = Launch::of(&capsule).as_user(Some(delegated.path()), &GROUPS).start();
    let seen = bash(
        &session,
        &format!(
            "for p in {} {}; do exec 3<>/dev/tcp/127.0.0.1/$p && read -r line <&3 && echo sa''id $line; done 2>&1",
            listed.port(),
            other.port()
        ),
    );
    assert!(seen.contains("said hello") && seen.contains("Connection refused"), "{seen}");
    assert!(!seen.contains("never"), "{seen}");
    session.stop();
}

#[test]
fn a_workdir_of_somebody_else_is_refused() {
    let delegated = delegated!();
    let capsule = Capsule::reporter();
    temporary::give(&capsule.work(), OWNER + 1);
    let ended = Launch::of(&capsule).as_user(Some(delegated.path()), &[]).run(QUICK);
    assert_eq!(ended.code(), Some(1), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("error[E-IO-002]") && ended.stderr.contains("it is not yours"),
        "{}",
        ended.stderr
    );
}

#[test]
fn the_banner_says_what_rests_on_namespaces_and_filters_alone() {
    let delegated = delegated!();
    let capsule = Capsule::reporter();
    let launch = Launch::of(&capsule).as_user(Some(delegated.path()), &[]).on_a_terminal();
    let ended = launch.arguments(&["--serve-only"]).run_and(QUICK, |typed| {
        let broker = process::until("the broker", QUICK, || {
            process::descendants(typed).into_iter().find(|process| process.name == "broker")
        });
        process::until("its last process", QUICK, || {
            process::children(broker.pid).into_iter().find(|process| process.name == "fileserver")
        });
        std::thread::sleep(Duration::from_millis(500));
        process::signal(broker.pid, process::Signal::TERM);
    });
    let shown = ended.stdout;
    assert!(shown.contains(&format!("every process has yours, {OWNER}")), "{shown}");
    assert!(shown.contains("namespaces and filters alone"), "{shown}");
    assert!(shown.contains(&format!("uid {OWNER}")) && !shown.contains("uid 0"), "{shown}");
}

#[test]
fn check_says_the_same_as_a_launch() {
    let delegated = delegated!();
    let capsule = Capsule::reporter();
    let check = |group: Option<&Delegated>| {
        let launch = Launch::of(&capsule).as_user(group.map(Delegated::path), &[]).arguments(&["--check"]);
        launch.run(QUICK)
    };
    let good = check(Some(&delegated));
    assert_eq!(good.code(), Some(0), "{}", good.stderr);
    assert!(good.stdout.contains("  achieved                 sealed\n"), "{}", good.stdout);
    assert!(good.stdout.contains(&format!("one id for all processes, {OWNER}\n")), "{}", good.stdout);
    let bad = check(None);
    assert_eq!(bad.code(), Some(1), "{}", bad.stderr);
    assert!(bad.stderr.contains("E-RUN-012"), "{}", bad.stderr);
}
