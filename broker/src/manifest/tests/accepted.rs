//! What valid manifests become.

use std::net::{IpAddr, Ipv4Addr};

use super::*;

#[test]
fn the_reporter_example_becomes_typed_values() {
    let (manifest, warnings) = plain(REPORTER).unwrap();
    assert_eq!((manifest.name.as_str(), manifest.version.as_str()), ("reporter", "0.1.0"));
    let [driver, tool] = manifest.artifacts.as_slice() else { panic!("two artifacts") };
    assert_eq!(driver.role, Role::Driver);
    assert_eq!(driver.origin, Origin::Source("./artifacts/model-driver".into()));
    assert_eq!(
        driver.gateway,
        Some(Endpoint {
            scheme: Scheme::Http,
            host: Host::Address(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            port: 8089,
            path: "/v1".into(),
        })
    );
    assert_eq!(tool.role, Role::Tool);
    assert_eq!(tool.config.as_deref(), Some(r#"{"zeta":1,"alpha":[true,null,1.5,"x\ny"]}"#));
    let allowed: Vec<String> = tool.network_allow.iter().flatten().map(ToString::to_string).collect();
    assert_eq!(allowed, ["https://api.example.com:443"], "only what the ceiling covers");
    let capabilities = &manifest.capabilities;
    assert_eq!(capabilities.network_allow.len(), 2);
    assert_eq!(capabilities.shell_allow, ["bash", "git"]);
    assert_eq!(capabilities.env_allow, ["LANG", "MY_TOKEN"]);
    assert_eq!(capabilities.limits.deadline_seconds, 60);
    assert_eq!(capabilities.limits.memory_bytes, 536_870_912);
    assert_eq!(capabilities.resources.cpu_seconds, 5);
    assert_eq!(capabilities.resources.workdir_max_bytes, 1_000_000);
    assert_eq!(capabilities.resources.cgroup_pids_max, 256);
    assert_eq!(capabilities.containment, Some(Class::Scoped));
    let inference = manifest.inference.unwrap();
    assert_eq!((inference.driver, inference.model.as_str()), (0, "local-model"));
    assert_eq!(inference.driver_config.as_deref(), Some(r#"{"temperature":0}"#));
    assert_eq!((inference.max_turns, inference.max_tokens), (4, 256));
    assert_eq!(inference.system_prompt, Some(SystemPrompt::Text("Be brief.".into())));
    assert_eq!(
        manifest.lifecycle,
        Lifecycle { task_acceptance: TaskAcceptance::Queue, after_task: AfterTask::Sleep, queue_depth: 2 }
    );
    let files = manifest.export_files.unwrap();
    assert_eq!((files.root.verbatim(), files.root.components()), ("./out/", ["out".to_owned()].as_slice()));
    assert_eq!(files.max_bytes.bytes(), 10 * 1024 * 1024);
    assert_eq!(manifest.capture, Capture::Content);
    assert_eq!(codes(&warnings), ["-", "W-SEC-024", "W-SEC-007"], "{warnings:?}");
}

#[test]
fn scopes_and_patterns_are_read() {
    let text = "name: a\nversion: '1'\nartifacts:\n  - {name: t, version: '1', capabilities: {filesystem: {scope: ./x//y/}}}\n  - {name: u, version: '1'}\n\
                capabilities: {filesystem: {scope: ' '}, network: {unix_sockets: true}, shell: {allow: [sh], strip_env: [A, 'B*', A], baseline_env: ['*C*']}}";
    let (manifest, _) = plain(text).unwrap();
    let capabilities = &manifest.capabilities;
    assert_eq!(manifest.artifacts[0].scope.as_deref(), Some(["x".to_owned(), "y".to_owned()].as_slice()));
    assert_eq!((&manifest.artifacts[1].scope, capabilities.scope.as_slice()), (&None, [].as_slice()));
    assert!(capabilities.unix_sockets);
    assert_eq!(
        (capabilities.strip_env.as_slice(), capabilities.baseline_env.as_slice()),
        (["A", "B*"].map(str::to_owned).as_slice(), ["*C*".to_owned()].as_slice())
    );
}

#[test]
fn a_capsule_with_peers_and_protected_paths_is_read() {
    let (manifest, warnings) = plain(PEERS).unwrap();
    assert_eq!(codes(&warnings), [""; 0], "{warnings:?}");
    assert!(manifest.export_files.is_some());
    assert_eq!(manifest.capabilities.read_only, ["inputs"]);
    let peers = manifest.export_peer_files.unwrap();
    assert_eq!((peers.root.verbatim(), peers.max_ttl.as_secs()), ("out/handoff/", 900));
    let fetch = manifest.capabilities.peer_fetch_allow.unwrap();
    assert_eq!(fetch.iter().map(ToString::to_string).collect::<Vec<_>>(), ["localhost:41234"]);
}

#[test]
fn protected_paths_are_plain_and_blank_ones_are_none() {
    let (manifest, _) = accept("capabilities: {filesystem: {read_only: [./a//b/, ' ', 'c/../d', ' e ']}}");
    let paths = manifest.capabilities.read_only_paths();
    assert_eq!(paths, ["a/b", "d", "e"].map(std::path::PathBuf::from));
}

#[test]
fn directories_of_interpreters_are_read_with_a_warning_each() {
    let text = "capabilities:\n  shell:\n    allow: [python3, ruby]\n    interpreter_runtime:\n\
                \x20   - {binary: python3, dirs: [{path: /opt/py, list_dir: true}, {path: /opt/x, list_dir: false}]}\n\
                \x20   - {binary: ruby, dirs: [{path: /opt/rb, list_dir: false}]}";
    let (manifest, warnings) = accept(text);
    assert_eq!(codes(&warnings), ["W-SEC-009", "W-SEC-009", "W-SEC-022"], "{warnings:?}");
    let found: Vec<(&str, bool)> = manifest
        .capabilities
        .interpreter_runtime
        .iter()
        .map(|directory| (directory.path.as_str(), directory.list))
        .collect();
    assert_eq!(found, [("/opt/py", true), ("/opt/x", false), ("/opt/rb", false)]);
}

#[test]
fn a_manifest_of_name_and_version_allows_nothing() {
    let (manifest, warnings) = accept("");
    assert!(warnings.is_empty());
    assert!(manifest.artifacts.is_empty() && manifest.inference.is_none() && manifest.export_files.is_none());
    let capabilities = manifest.capabilities;
    assert!(capabilities.network_allow.is_empty() && capabilities.shell_allow.is_empty());
    assert!(capabilities.env_allow.is_empty() && capabilities.containment.is_none());
    assert_eq!(manifest.lifecycle.task_acceptance, TaskAcceptance::Single);
    assert_eq!(manifest.lifecycle.after_task, AfterTask::Exit);
    assert_eq!(manifest.lifecycle.queue_depth, 1);
    assert_eq!(manifest.capture, Capture::Meta);
}

#[test]
fn null_counts_as_absent() {
    for key in
        ["capabilities", "inference", "exports", "lifecycle", "artifacts", "network", "trace", "context"]
    {
        accept(&format!("{key}:\n"));
    }
    accept("capabilities: {peer_fetch: null, shell: null, containment: ~, filesystem: {read_only: ~}}");
}

#[test]
fn launch_options_override_the_lifecycle_and_raise_containment() {
    let text = format!("{HEAD}capabilities: {{containment: scoped}}\nlifecycle: {{after_task: sleep}}");
    let cases =
        [(None, Class::Scoped), (Some(Class::Advisory), Class::Scoped), (Some(Class::Sealed), Class::Sealed)];
    for (containment, expected) in cases {
        let options = ParseOptions {
            containment,
            after_task: Some(AfterTask::Exit),
            task_acceptance: Some(TaskAcceptance::None),
            ..ParseOptions::default()
        };
        let (manifest, _) = parse(&text, options).unwrap();
        assert_eq!(manifest.capabilities.containment, Some(expected));
        assert_eq!(manifest.lifecycle.after_task, AfterTask::Exit);
        assert_eq!(manifest.lifecycle.task_acceptance, TaskAcceptance::None);
    }
    assert!(Class::Advisory < Class::Scoped && Class::Scoped < Class::Sealed);
}

#[test]
fn a_handles_longest_life_is_an_hour_unless_declared_and_bounded_only_while_the_capsule_waits() {
    for (after, field, seconds) in [
        ("exit", "", 3600),
        ("exit", ", max_ttl: 30d", 30 * 86_400),
        ("exit", ", max_ttl: 5", 5),
        ("sleep", ", max_ttl: 15m", 900),
        ("sleep", ", max_ttl: 900", 900),
        ("sleep", ", max_ttl: 1s", 1),
    ] {
        let (manifest, _) = accept(&format!(
            "lifecycle: {{after_task: {after}}}\nexports: {{peer_files: {{root: share{field}}}}}"
        ));
        let peers = manifest.export_peer_files.unwrap();
        assert_eq!(peers.max_ttl.as_secs(), seconds, "{after} {field}");
        assert_eq!(peers.max_bytes.bytes(), 10 * 1024 * 1024);
        assert!(manifest.export_files.is_none(), "neither plane implies the other");
        assert_eq!(manifest.capabilities.containment, None);
    }
}

#[test]
fn overridden_lifecycle_decides_the_rules_that_depend_on_it() {
    let peers = format!("{HEAD}exports: {{peer_files: {{root: out}}}}");
    let sleep = ParseOptions { after_task: Some(AfterTask::Sleep), ..LAX };
    assert_eq!(parse(&peers, sleep).unwrap_err().code, "E-CAP-008");
    assert!(parse(&peers, LAX).is_ok());
    let exec = format!("{HEAD}capabilities: {{filesystem: {{workdir_exec: true}}}}");
    let scoped = ParseOptions { containment: Some(Class::Scoped), ..LAX };
    assert_eq!(parse(&exec, scoped).unwrap_err().code, "E-CAP-003");
    assert!(parse(&exec, LAX).is_ok());
}

#[test]
fn byte_sizes_are_powers_of_1024() {
    let cases = [
        ("1", 1),
        ("\"1\"", 1),
        ("1Ki", 1 << 10),
        ("' 3Mi '", 3 << 20),
        ("2Gi", 2 << 30),
        ("18446744073709551615", u64::MAX),
    ];
    for (written, bytes) in cases {
        let (manifest, _) =
            accept(&format!("exports: {{files: {{root: out, mode: read-only, max_bytes: {written}}}}}"));
        assert_eq!(manifest.export_files.unwrap().max_bytes.bytes(), bytes, "{written}");
    }
}

#[test]
fn export_roots_are_kept_verbatim_and_normalised() {
    let cases: [(&str, &str, &[&str]); 6] = [
        ("out/", "out/", &["out"]),
        ("\" out \"", "out", &["out"]),
        (".", ".", &[]),
        ("./a/./b//c/", "./a/./b//c/", &["a", "b", "c"]),
        ("día/", "día/", &["día"]),
        ("..out/a..b", "..out/a..b", &["..out", "a..b"]),
    ];
    for (written, verbatim, components) in cases {
        let (manifest, _) = accept(&format!("exports: {{files: {{root: {written}, mode: read-only}}}}"));
        let root = manifest.export_files.unwrap().root;
        assert_eq!(root.verbatim(), verbatim);
        assert_eq!(root.components(), components, "{written}");
    }
}

#[test]
fn artifact_names_give_tool_names_and_origins() {
    let text = "artifacts:\n- {name: acme/fetch, version: 1.2.3}\n- {name: plain, version: \"2\"}\n\
                - {name: here, source: /opt/here, local_source: true, version: 9.9.9}\n";
    let (manifest, warnings) = accept(text);
    let seen: Vec<(&str, &Origin)> =
        manifest.artifacts.iter().map(|a| (a.tool_name.as_str(), &a.origin)).collect();
    assert_eq!(seen[0], ("fetch", &Origin::Installed { version: "1.2.3".into() }));
    assert_eq!(seen[1], ("plain", &Origin::Installed { version: "2".into() }));
    assert_eq!(seen[2], ("here", &Origin::Source("/opt/here".into())));
    assert_eq!(codes(&warnings), ["-"], "the written version of a local artifact is reported as ignored");
}

#[test]
fn the_older_provider_key_names_the_driver_unless_driver_does() {
    let driver = |name: &str| {
        format!(
            "- {{name: {name}, version: '1', runtime: driver, gateway: {{endpoint: 'https://h', keyless: true}}}}\n"
        )
    };
    let text = format!("artifacts:\n{}inference: {{model: m, provider: {{artifact: a}}}}", driver("a"));
    assert_eq!(accept(&text).0.inference.unwrap().driver, 0);
    let text = format!(
        "artifacts:\n- {{name: b, version: '1', runtime: driver}}\n{}\
         inference: {{model: m, provider: {{artifact: b}}, driver: {{artifact: a}}}}",
        driver("s/a")
    );
    assert_eq!(accept(&text).0.inference.unwrap().driver, 1);
}

#[test]
fn an_empty_list_of_an_artifact_differs_from_an_absent_one() {
    let text = "capabilities: {network: {allow: [h]}}\nartifacts:\n- {name: a, version: '1'}\n\
                - {name: b, version: '1', capabilities: {network: {allow: []}}}\n";
    let (manifest, _) = accept(text);
    assert_eq!(manifest.artifacts[0].network_allow, None);
    assert_eq!(manifest.artifacts[1].network_allow, Some(Vec::new()));
}

#[test]
fn every_warning_has_its_cause() {
    let entry =
        "artifacts:\n- {name: a, version: '1', capabilities: {containment: sealed, limits: {instances: 1}}}";
    let upstream = "capabilities: {network: {allow: [up.example]}}\ninference: {model: m, driver: {artifact: d}}\n\
                    artifacts:\n- {name: d, version: '1', runtime: driver, gateway: {endpoint: 'https://up.example', keyless: true}}";
    let cases: &[(&str, &[&str])] = &[
        ("mur_version: 0.10.0", &["W-SEC-019", "-"]),
        (entry, &["W-SEC-008", "W-SEC-008"]),
        (upstream, &["W-SEC-025"]),
        ("capabilities: {shell: {allow: [sh]}}", &["W-SEC-022"]),
        ("capabilities: {shell: {allow: [sh]}}\nlifecycle: {task_acceptance: queue, after_task: sleep}", &[]),
        ("capabilities: {env: {allow: [SESSION_COOKIE, KEYBOARD]}}", &["W-SEC-024"]),
        ("capabilities: {state: {store: x}}", &["W-SEC-014"]),
        ("capabilities: {conversation: {read: true}}", &["W-SEC-016"]),
        ("trace: {include_tool_output: true}", &["-"]),
        ("exports: {files: {root: out, mode: read-only}}", &["-"]),
    ];
    for (text, expected) in cases {
        let (_, warnings) = accept(text);
        assert_eq!(codes(&warnings), *expected, "{text}\n{warnings:?}");
    }
}
