//! Every refusal, with its code and the thing it names.

use super::*;

const DRIVER: &str = "artifacts:\n- name: d\n  version: '1'\n  runtime: driver\n";
const FILES: &str = "exports.files";

fn export(fields: &str) -> String {
    format!("exports: {{files: {{{fields}}}}}")
}

#[test]
fn identity_is_required() {
    let cases = [
        ("version: '1'", "E-MAN-001", "name"),
        ("name: a", "E-MAN-001", "version"),
        ("name: ' '\nversion: '1'", "E-MAN-001", "name"),
        ("name: a\nversion:", "E-MAN-001", "version"),
        ("name: a\nversion: 0.1", "E-MAN-003", "version"),
        ("name: 7\nversion: '1'", "E-MAN-003", "name"),
        ("name: \"a\\r\\nb\"\nversion: '1'", "E-MAN-003", "name"),
    ];
    for (text, code, what) in cases {
        let error = plain(text).unwrap_err();
        assert_eq!((error.code, error.what.as_str()), (code, what), "{text}");
    }
    assert!(plain("name: a\nversion: 0.1").unwrap_err().to_string().contains("quotes"));
}

#[test]
fn exports_are_held_to_their_rules() {
    let ok = "root: out, mode: read-only";
    let cases: &[(&str, &str)] = &[
        ("mode: read-only", "root"),
        ("root: out", "mode"),
        ("root: out, mode: read-write", "mode"),
        ("root: out, mode: ''", "mode"),
        ("root: ../x, mode: read-only", "root"),
        ("root: a/../b, mode: read-only", "root"),
        ("root: /abs, mode: read-only", "root"),
        ("root: '', mode: read-only", "root"),
        ("root: \"o\\r\\nx: y\", mode: read-only", "root"),
        ("root: \"a\\0b\", mode: read-only", "root"),
        ("root: \"a\\x85b\", mode: read-only", "root"),
        ("root: \"o\\t\", mode: read-only", "root"),
        ("root: \"o\\n\", mode: read-only", "root"),
        ("root: \"o\\x85\", mode: read-only", "root"),
        ("root: [out], mode: read-only", "root"),
    ];
    for (fields, key) in cases {
        refuse(&export(fields), "E-MAN-003", &format!("{FILES}.{key}"));
    }
    let long = "x".repeat(256);
    refuse(&export(&format!("root: {long}, mode: read-only")), "E-MAN-003", "exports.files.root");
    let sizes =
        "10MB;10 Mi;1.5Mi;1.5;-1;0;0Ki;Mi;10mi;10Ti;18446744073709551616;18014398509481984Ki;true;[1];+5x";
    for size in sizes.split(';') {
        refuse(&export(&format!("{ok}, max_bytes: {size}")), "E-MAN-003", "exports.files.max_bytes");
    }
    refuse("exports: []", "E-MAN-003", "exports");
    refuse("exports: {files: true}", "E-MAN-003", "exports.files");
    refuse("exports: {peer_tasks: {}}", "E-MAN-003", "exports.peer_tasks.accept");
}

#[test]
fn peer_files_are_held_to_their_rules() {
    let ttl = |after: &str, ttl: &str| {
        format!("lifecycle: {{after_task: {after}}}\nexports: {{peer_files: {{root: out{ttl}}}}}")
    };
    let max_ttl = "exports.peer_files.max_ttl";
    let cases = [
        ("sleep", "", "E-CAP-008", max_ttl),
        ("sleep", ", max_ttl: 16m", "E-CAP-008", max_ttl),
        ("sleep", ", max_ttl: 901", "E-CAP-008", max_ttl),
        ("sleep", ", max_ttl: 1d", "E-CAP-008", max_ttl),
        ("exit", ", max_ttl: 0", "E-MAN-003", max_ttl),
        ("exit", ", max_ttl: 0s", "E-MAN-003", max_ttl),
        ("exit", ", max_ttl: 15M", "E-MAN-003", max_ttl),
        ("exit", ", max_ttl: 1.5h", "E-MAN-003", max_ttl),
        ("exit", ", max_ttl: 5 m", "E-MAN-003", max_ttl),
        ("exit", ", max_ttl: 99999999999999999999s", "E-MAN-003", max_ttl),
        ("exit", ", max_bytes: 10MB", "E-MAN-003", "exports.peer_files.max_bytes"),
    ];
    for (after, field, code, what) in cases {
        refuse(&ttl(after, field), code, what);
    }
    refuse("exports: {peer_files: {max_ttl: 1m}}", "E-MAN-003", "exports.peer_files.root");
}

#[test]
fn capabilities_are_held_to_their_rules() {
    let cases: &[(&str, &str, &str)] = &[
        ("peer_fetch: {allow: []}", "E-MAN-003", "peer_fetch.allow"),
        ("peer_fetch: {}", "E-MAN-003", "peer_fetch.allow"),
        ("peer_fetch: {allow: ['ftp://h']}", "E-MAN-003", "peer_fetch.allow[0]"),
        ("network: {allow: ['https://h/p']}", "E-CAP-001", "network.allow[0]"),
        ("network: {allow: [ok, '']}", "E-CAP-001", "network.allow[1]"),
        ("network: {allow: h}", "E-MAN-003", "network.allow"),
        ("network: {allow: [7]}", "E-MAN-003", "network.allow[0]"),
        ("network: {unix_sockets: 'no'}", "E-MAN-003", "network.unix_sockets"),
        ("shell: {allow: [sh], strip_env: ['*']}", "E-MAN-003", "shell.strip_env[0]"),
        ("shell: {allow: [sh], strip_env: ['A*B']}", "E-MAN-003", "shell.strip_env[0]"),
        ("shell: {allow: [sh], baseline_env: [OK, 'A=B']}", "E-MAN-003", "shell.baseline_env[1]"),
        ("filesystem: {scope: /abs}", "E-CAP-002", "filesystem.scope"),
        ("filesystem: {scope: a/../..}", "E-CAP-002", "filesystem.scope"),
        ("filesystem: {read_only: [/etc]}", "E-CAP-012", "filesystem.read_only[0]"),
        ("filesystem: {read_only: [ok, ../x]}", "E-CAP-012", "filesystem.read_only[1]"),
        ("filesystem: {read_only: [a/..]}", "E-CAP-012", "filesystem.read_only[0]"),
        ("filesystem: {read_only: ['.']}", "E-CAP-012", "filesystem.read_only[0]"),
        ("filesystem: {read_only: x}", "E-MAN-003", "filesystem.read_only"),
        (
            "shell: {allow: [sh], interpreter_runtime: [{binary: zsh, dirs: [{path: /x, list_dir: true}]}]}",
            "E-MAN-003",
            "shell.interpreter_runtime[0].binary",
        ),
        (
            "shell: {allow: [sh], interpreter_runtime: [{binary: sh, dirs: []}]}",
            "E-MAN-003",
            "shell.interpreter_runtime[0].dirs",
        ),
        (
            "shell: {allow: [sh], interpreter_runtime: [{binary: sh, dirs: [{path: x, list_dir: true}]}]}",
            "E-MAN-003",
            "shell.interpreter_runtime[0].dirs[0].path",
        ),
        (
            "shell: {allow: [sh], interpreter_runtime: [{binary: sh, dirs: [{path: /x}]}]}",
            "E-MAN-003",
            "shell.interpreter_runtime[0].dirs[0].list_dir",
        ),
        (
            "shell: {allow: [sh], staged_runtime: [{binary: zsh, source_path: /x, pin: '1'}]}",
            "E-MAN-003",
            "shell.staged_runtime[0].binary",
        ),
        (
            "shell: {allow: [sh], staged_runtime: [{binary: sh, source_path: x, pin: '1'}]}",
            "E-MAN-003",
            "shell.staged_runtime[0].source_path",
        ),
        (
            "shell: {allow: [sh], staged_runtime: [{binary: sh, source_path: /x, pin: ' '}]}",
            "E-MAN-003",
            "shell.staged_runtime[0].pin",
        ),
        (
            "shell: {allow: [sh], staged_runtime: [{binary: sh, source_path: /x, pin: '1'}, \
             {binary: sh, source_path: /y, pin: '1'}]}",
            "E-MAN-003",
            "shell.staged_runtime[1].binary",
        ),
        (
            "shell: {allow: [sh], interpreter_runtime: [{binary: sh, dirs: [{path: /x, list_dir: true}]}], \
             staged_runtime: [{binary: sh, source_path: /x, pin: '1'}]}",
            "E-MAN-003",
            "shell.staged_runtime[0].binary",
        ),
        ("filesystem: {workdir_exec: true}\n  containment: scoped", "E-CAP-003", "filesystem.workdir_exec"),
        ("filesystem: {workdir_exec: true}\n  containment: sealed", "E-CAP-003", "filesystem.workdir_exec"),
        ("filesystem: {workdir_exec: 1}", "E-MAN-003", "filesystem.workdir_exec"),
        ("filesystem: {records: true}", "E-MAN-003", "filesystem.records"),
        ("shell: {}", "E-MAN-003", "shell.allow"),
        ("shell: {allow: []}", "E-MAN-003", "shell.allow"),
        ("shell: {allow: [sh, /bin/sh]}", "E-MAN-003", "shell.allow[1]"),
        ("shell: {allow: ['..']}", "E-MAN-003", "shell.allow[0]"),
        ("shell: {allow: ['']}", "E-MAN-003", "shell.allow[0]"),
        ("shell: {allow: ['a b']}", "E-MAN-003", "shell.allow[0]"),
        ("shell: {allow: [\"a\\0\"]}", "E-MAN-003", "shell.allow[0]"),
        ("env: {allow: [OK, AWS_REGION, MY_API_KEY]}", "E-CAP-016", "env.allow"),
        ("env: {allow: [KUBECONFIG]}", "E-CAP-016", "env.allow"),
        ("env: {allow: [MINE]}\n  shell: {allow: [sh], strip_env: ['MI*']}", "E-CAP-016", "env.allow"),
        ("env: {allow: ['A=B']}", "E-MAN-003", "env.allow[0]"),
        ("containment: strict", "E-MAN-003", "containment"),
        ("resources: {cpu_seconds: 0}", "E-MAN-003", "resources.cpu_seconds"),
        ("resources: {cpu_seconds: 10s}", "E-MAN-003", "resources.cpu_seconds"),
        ("resources: {cpu_seconds: 1.5}", "E-MAN-003", "resources.cpu_seconds"),
        ("resources: {memory_bytes: -1}", "E-MAN-003", "resources.memory_bytes"),
        ("resources: {memory_bytes: 18446744073709551616}", "E-MAN-003", "resources.memory_bytes"),
        (
            "resources: {workdir_max_bytes: 1, max_workdir_bytes: 1}",
            "E-MAN-003",
            "resources.max_workdir_bytes",
        ),
        ("limits: {memory_bytes: 0}", "E-MAN-003", "limits.memory_bytes"),
        ("limits: {deadline_seconds: 0}", "E-MAN-003", "limits.deadline_seconds"),
        ("task_io: {read: true}", "E-MAN-003", "task_io"),
        ("conversation: {}", "E-MAN-003", "conversation.read"),
        ("plan: {}", "E-MAN-003", "plan.submit"),
    ];
    for (fields, code, what) in cases {
        refuse(&format!("capabilities:\n  {fields}"), code, &format!("capabilities.{what}"));
    }
    let text =
        refuse("capabilities: {env: {allow: [GH_TOKEN, AWS_X]}}", "E-CAP-016", "capabilities.env.allow");
    assert!(text.contains("GH_TOKEN") && text.contains("AWS_*"), "all offenders with their pattern: {text}");
}

#[test]
fn zero_is_refused_for_every_limit_and_resource() {
    for (block, table) in [("limits", &schema::LIMITS), ("resources", &schema::RESOURCES)] {
        for key in table.keys {
            let what = format!("capabilities.{block}.{}", key.name);
            refuse(&format!("capabilities: {{{block}: {{{}: 0}}}}", key.name), "E-MAN-003", &what);
            accept(&format!("capabilities: {{{block}: {{{}: 1}}}}", key.name));
        }
    }
}

#[test]
fn artifact_entries_are_held_to_their_rules() {
    let long = format!("name: {}, version: '1'", "a".repeat(101));
    let cases: &[(&str, &str, &str)] = &[
        ("version: '1'", "E-MAN-003", ".name"),
        ("name: a", "E-MAN-003", ".version"),
        ("name: a, version: 1", "E-MAN-003", ".version"),
        ("name: a, version: ../1", "E-MAN-003", ".version"),
        ("name: a, version: ..", "E-MAN-003", ".version"),
        ("name: A, version: '1'", "E-MAN-003", ".name"),
        ("name: -a, version: '1'", "E-MAN-003", ".name"),
        ("name: a-, version: '1'", "E-MAN-003", ".name"),
        ("name: a_b, version: '1'", "E-MAN-003", ".name"),
        ("name: a/b/c, version: '1'", "E-MAN-003", ".name"),
        ("name: /b, version: '1'", "E-MAN-003", ".name"),
        (&long, "E-MAN-003", ".name"),
        ("name: s/a, source: x, local_source: true", "E-MAN-003", ".name"),
        ("name: a, source: x", "E-MAN-003", ".source"),
        ("name: a, source: x, local_source: false", "E-MAN-003", ".source"),
        ("name: a, source: \"x\\n\", local_source: 1", "E-MAN-003", ".local_source"),
        ("name: a, source: \"x\\0y\", local_source: true", "E-MAN-003", ".source"),
        ("name: a, version: '1', runtime: wasm", "E-MAN-003", ".runtime"),
        ("name: a, version: '1', runtime: native", "E-MAN-003", ".runtime"),
        ("name: a, version: '1', runtime: tol", "E-MAN-003", ".runtime"),
        ("name: a, version: '1', on_overflow: drop", "E-MAN-003", ".on_overflow"),
        ("name: a, version: '1', runtime: hook, on_overflow: dorp", "E-MAN-003", ".on_overflow"),
        ("name: share-file, version: '1'", "E-CAP-013", ""),
        ("name: x/fetch-peer-file, version: '1'", "E-CAP-013", ""),
        ("name: background-command, version: '1'", "E-CAP-013", ""),
        ("name: a, version: '1', config:", "E-CAP-010", ".config"),
        ("name: a, version: '1', config: []", "E-CAP-010", ".config"),
        ("name: a, version: '1', config: {1: x}", "E-CAP-010", ".config"),
        ("name: a, version: '1', config: {x: {true: y}}", "E-CAP-010", ".config"),
        ("name: a, version: '1', config: {x: .inf}", "E-CAP-010", ".config"),
        ("name: a, runtime: skill, source: x, config: {}", "E-MAN-003", ".config"),
        ("name: a, runtime: skill, source: x, capabilities: {}", "E-MAN-003", ".capabilities"),
        (
            "name: a, version: '1', capabilities: {network: {allow: ['h:0']}}",
            "E-CAP-001",
            ".capabilities.network.allow[0]",
        ),
        (
            "name: a, version: '1', capabilities: {filesystem: {scope: ../x}}",
            "E-CAP-002",
            ".capabilities.filesystem.scope",
        ),
        (
            "name: a, version: '1', capabilities: {filesystem: {records: true}}",
            "E-MAN-003",
            ".capabilities.filesystem.records",
        ),
        (
            "name: a, version: '1', capabilities: {task_io: {read: true}}",
            "E-MAN-003",
            ".capabilities.task_io",
        ),
        (
            "name: a, version: '1', capabilities: {conversation: {read: true}}",
            "E-MAN-003",
            ".capabilities.conversation",
        ),
        ("name: a, version: '1', capabilities: {install: {}}", "E-MAN-003", ".capabilities.install"),
        (
            "name: a, version: '1', capabilities: {limits: {instances: 0}}",
            "E-MAN-003",
            ".capabilities.limits.instances",
        ),
        (
            "name: a, version: '1', runtime: hook, capabilities: {task_io: {}}",
            "E-MAN-003",
            ".capabilities.task_io.read",
        ),
    ];
    for (fields, code, what) in cases {
        refuse(
            &format!("artifacts:\n- {{name: ok, version: '1'}}\n- {{{fields}}}"),
            code,
            &format!("artifacts[1]{what}"),
        );
    }
    refuse("artifacts: {a: b}", "E-MAN-003", "artifacts");
    refuse("artifacts: [a]", "E-MAN-003", "artifacts[0]");
    let twice = "artifacts:\n- {name: a/x, version: '1'}\n- {name: x, version: '1'}";
    refuse(twice, "E-CAP-020", "artifacts[1]");
    let big = format!("artifacts:\n- {{name: a, version: '1', config: {{x: {}}}}}", "y".repeat(65_536));
    let text = refuse(&big, "E-CAP-010", "artifacts[0].config");
    assert!(text.contains("65544") && text.contains("65536"), "both sizes: {text}");
    let fits = format!("artifacts:\n- {{name: a, version: '1', config: {{x: {}}}}}", "y".repeat(65_536 - 8));
    accept(&fits);
}

#[test]
fn gateways_are_held_to_their_rules() {
    let gateway = |fields: &str| {
        format!("{DRIVER}  gateway: {{{fields}}}\ninference: {{model: m, driver: {{artifact: d}}}}")
    };
    let cases: &[(&str, &str, &str)] = &[
        ("keyless: true", "E-MAN-003", ".endpoint"),
        ("endpoint: 'https://h'", "E-CAP-018", ""),
        ("endpoint: 'https://h', keyless: false", "E-CAP-018", ""),
        ("endpoint: 'https://h', api_key: ' '", "E-CAP-018", ".api_key"),
        ("endpoint: 'https://h', api_key:", "E-CAP-018", ".api_key"),
        ("endpoint: 'https://h', keyless: true, api_key: ", "E-MAN-003", ".api_key"),
        ("endpoint: 'https://h', keyless: true, api_key: x", "E-MAN-003", ".api_key"),
        ("endpoint: 'https://h', keyless: 'yes'", "E-MAN-003", ".keyless"),
        ("endpoint: 'https://h', api_key: '${KEY}'", "E-MAN-003", ".api_key"),
        ("endpoint: 'http://example.com', keyless: true", "E-MAN-003", ".endpoint"),
    ];
    for (fields, code, what) in cases {
        refuse(&gateway(fields), code, &format!("artifacts[0].gateway{what}"));
    }
    let key = gateway("endpoint: 'https://h', api_key: sk-secret-value");
    let text = refuse(&key, "E-MAN-003", "artifacts[0].gateway.api_key");
    assert!(text.contains("not supported yet") && !text.contains("sk-secret"), "{text}");
    assert!(parse(&format!("{HEAD}{key}"), LAX).is_err(), "no option launches without the key");
    let text = refuse(
        &gateway("endpoint: 'https://user:hunter2@h', keyless: true"),
        "E-MAN-003",
        "artifacts[0].gateway.endpoint",
    );
    assert!(!text.contains("hunter2"), "{text}");
    let other = format!("{DRIVER}  gateway: {{endpoint: 'https://h', keyless: true}}");
    refuse(&other, "E-MAN-003", "artifacts[0].gateway");
    let tool = "artifacts:\n- {name: t, version: '1', gateway: {endpoint: 'https://h', keyless: true}}";
    assert!(refuse(tool, "E-MAN-003", "artifacts[0].gateway").contains("not supported yet"));
    let skill =
        "artifacts:\n- {name: t, source: x, runtime: skill, gateway: {endpoint: 'https://h', keyless: true}}";
    refuse(skill, "E-MAN-003", "artifacts[0].gateway");
}

#[test]
fn inference_is_held_to_its_rules() {
    let base = format!("{DRIVER}  gateway: {{endpoint: 'https://h', keyless: true}}\n");
    let whole = "model: m, driver: {artifact: d}";
    let cases: &[(&str, &str)] = &[
        ("driver: {artifact: d}", "inference.model"),
        ("model: ' ', driver: {artifact: d}", "inference.model"),
        ("model: \"a\\0\", driver: {artifact: d}", "inference.model"),
        ("model: m, driver: {artifact: d, config: [1]}", "inference.driver.config"),
        ("model: m, driver: {artifact: d}, transport: process", "inference.transport"),
        ("model: m, driver: {artifact: d}, transport: htpp", "inference.transport"),
        ("model: m, driver: {artifact: d}, max_turns: 0", "inference.max_turns"),
        ("model: m, driver: {artifact: d}, max_turns: 4294967296", "inference.max_turns"),
        ("model: m, driver: {artifact: d}, max_tokens: 0", "inference.max_tokens"),
        ("model: m, driver: {artifact: d}, max_tokens: many", "inference.max_tokens"),
        ("model: m, driver: {artifact: d}, system_prompt: a, system_prompt_file: b", "inference"),
        ("model: m, driver: {artifact: d}, system_prompt_file: b, system_prompt_artifact: c", "inference"),
        ("model: m, driver: {artifact: d}, system_prompt: {}", "inference.system_prompt"),
        ("model: m, driver: {artifact: d}, endpoint: x", "inference.endpoint"),
        ("model: m, driver: {artifact: d}, api_key: x", "inference.api_key"),
        ("model: m, driver: {artifact: d}, max_task_reopens: 1", "inference.max_task_reopens"),
    ];
    for (fields, what) in cases {
        refuse(&format!("{base}inference: {{{fields}}}"), "E-MAN-003", what);
    }
    accept(&format!("{base}inference: {{model: m, driver: null, provider: {{artifact: d}}}}"));
    let no_driver = "artifacts: [{name: t, version: '1'}]\ninference: {model: m";
    refuse(&format!("{no_driver}}}"), "E-MAN-003", "inference.driver.artifact");
    refuse(&format!("{no_driver}, driver: {{artifact: x}}}}"), "E-MAN-003", "inference.driver.artifact");
    refuse(&format!("{no_driver}, driver: {{artifact: t}}}}"), "E-MAN-003", "inference.driver.artifact");
    refuse(&format!("{DRIVER}inference: {{{whole}}}"), "E-MAN-003", "artifacts[0].gateway");
    refuse("inference: true", "E-MAN-003", "inference");
}

#[test]
fn lifecycle_trace_and_network_are_held_to_their_rules() {
    let cases = [
        ("lifecycle: {task_acceptance: many}", "lifecycle.task_acceptance"),
        ("lifecycle: {after_task: slep}", "lifecycle.after_task"),
        ("lifecycle: {task_acceptance: queue, queue_depth: 0}", "lifecycle.queue_depth"),
        ("lifecycle: {queue_depth: -1}", "lifecycle.queue_depth"),
        ("lifecycle: {input_timeout_secs: 5s}", "lifecycle.input_timeout_secs"),
        ("trace: {capture: all}", "trace.capture"),
        ("trace: {capture: meta, include_tool_output: true}", "trace.include_tool_output"),
        ("trace: {include_tool_output: 1}", "trace.include_tool_output"),
        ("network: {internal_port: 65536}", "network.internal_port"),
        ("network: {internal_port: http}", "network.internal_port"),
        ("config: {}", "config"),
        ("registry: x", "registry"),
    ];
    for (text, what) in cases {
        refuse(text, "E-MAN-003", what);
    }
    assert!(
        refuse("network: {internal_port: 65536}", "E-MAN-003", "network.internal_port")
            .contains("not a port")
    );
    accept("lifecycle: {queue_depth: 0}");
    assert!(
        refuse("lifecycle: {after_task: slep}", "E-MAN-003", "lifecycle.after_task").contains("\"sleep\"?")
    );
}

#[test]
fn an_error_names_thing_reason_line_and_remedy() {
    let text = refuse("exports:\n  files:\n    root: out\n    mode: rw\n", "E-MAN-003", "exports.files.mode");
    assert_eq!(
        text,
        "error[E-MAN-003]: exports.files.mode: must be read-only (line 6)\n  hint: an export cannot be written through"
    );
    let text = refuse("capabilities: {containment: \"\\e[31mred\"}", "E-MAN-003", "capabilities.containment");
    assert!(!text.contains('\u{1b}'), "nothing from the file reaches the terminal raw: {text:?}");
}
