//! Policy hooks and protected paths, before programs and before component tools.

use std::time::Duration;

use ipc::edge::host_broker::{Agent, Event, HookEvent, Role};
use serde_json::{Value, json};

use super::rig::{Rig, Seen, tool};
use super::{FILE_TOOL, SPIN, response, with_bash};

const HOOK: &str = "tests/guests/policy-hook/artifact/capsule.wasm";

fn with_hook(agent: &mut Agent, name: &str, event: HookEvent) {
    let mut hook = tool(HOOK, &[]);
    hook.name = name.into();
    hook.role = Role::Hook;
    hook.hook = Some(event);
    agent.artifacts.push(hook);
}

/// What the model was told of one call, and what is on record of the task.
fn call(rig: &mut Rig, text: &str) -> (String, Vec<String>) {
    let answer = rig.send(text).join().unwrap().unwrap();
    (response(&answer["task"]).to_owned(), rig.until_task_ended())
}

fn shell(script: &str) -> String {
    format!("tool bash {}", json!({"command": script}))
}

#[test]
fn anything_but_a_clean_none_of_an_on_shell_hook_refuses_the_program() {
    let mut rig = Rig::start(SPIN, |agent| {
        with_bash(agent);
        with_hook(agent, "guard", HookEvent::OnShell);
    });
    for (word, told) in [
        ("deny", "Refused by policy hook 'guard': seen /bin/bash"),
        ("blank", "the hook gave no reason"),
        ("other", "the hook answered `artifact`, which decides nothing"),
        ("error", "the hook failed: could not decide"),
    ] {
        refused(&mut rig, word, word, told);
        // It lives on.
        let (text, words) = call(&mut rig, &shell("echo went on"));
        assert!(text.contains("went on"), "after {word}: {text}");
        assert!(words.contains(&"shell 0".to_owned()), "after {word}: {words:?}");
    }
    assert_eq!(rig.shut_down(), Ok(()));
}

#[test]
fn a_hook_that_trapped_or_met_a_limit_refuses_for_the_rest_of_the_session() {
    for (word, told) in [
        ("trap", "the hook did not decide: E-RUN-001"),
        ("spin", "ran longer than 1 seconds"),
        ("memory", "capabilities.limits.memory_bytes"),
    ] {
        let mut rig = Rig::start(SPIN, |agent| {
            with_bash(agent);
            with_hook(agent, "guard", HookEvent::OnShell);
            agent.hook_limits.deadline_seconds = 1;
            agent.hook_limits.memory_bytes = 16 << 20;
        });
        refused(&mut rig, word, word, told);
        for again in ["", "count"] {
            refused(&mut rig, word, again, "failed before and decides nothing in this session");
        }
        assert_eq!(rig.shut_down(), Ok(()));
    }
}

#[test]
fn a_hook_whose_asker_gave_up_is_not_made_anew() {
    let mut rig = Rig::start(SPIN, |agent| {
        with_bash(agent);
        with_hook(agent, "guard", HookEvent::OnShell);
        agent.hook_limits.deadline_seconds = 4;
    });
    let held = rig.send(&shell(": hook:spin"));
    let (task_id, _) = rig.received();
    rig.until_inference();
    // Until the hook is being asked, which nothing tells.
    std::thread::sleep(Duration::from_secs(1));
    rig.call("CancelTask", json!({"id": task_id})).join().unwrap().unwrap();
    assert!(held.join().unwrap().is_ok());
    rig.until_task_ended();
    // It decides the call nobody waits for to its end, and only then the next one.
    refused(&mut rig, "given-up", "count", "failed before and decides nothing in this session");
    assert_eq!(rig.shut_down(), Ok(()));
}

/// A program is refused with a line for the hook, and nothing else of it is seen.
fn refused(rig: &mut Rig, case: &str, word: &str, told: &str) {
    let (text, words) = call(rig, &shell(&format!("touch ran-{case}; : hook:{word}")));
    assert!(text.contains(told) && text.contains("It did not run"), "{case}: {text}");
    assert!(!rig.workdir.path().join(format!("ran-{case}")).exists(), "{case} ran");
    assert!(words.contains(&"denied guard".to_owned()), "{case}: {words:?}");
    let lines_of_a_call = words.iter().filter(|line| line.starts_with("tool ") || line.starts_with("shell "));
    assert_eq!(lines_of_a_call.count(), 0, "{case}: {words:?}");
}

#[test]
fn a_hook_sees_the_exact_arguments_and_lives_as_long_as_the_session() {
    let mut rig = Rig::start(SPIN, |agent| {
        with_bash(agent);
        with_hook(agent, "guard", HookEvent::OnShell);
    });
    let (text, _) = call(&mut rig, &shell("echo 'a  b' # hook:deny"));
    assert!(
        text.contains(r#"["-c", "echo 'a  b' # hook:deny"] script Some("echo 'a  b' # hook:deny")"#),
        "{text}"
    );
    assert!(text.contains("outcome false"), "{text}");
    for before in 1..4 {
        let (text, _) = call(&mut rig, &shell(": hook:count"));
        assert!(text.contains(&format!("asked {before} times before")), "{text}");
    }
    assert_eq!(rig.shut_down(), Ok(()));
}

#[test]
fn a_hook_on_tool_calls_is_asked_about_tools_that_are_no_programs() {
    let mut rig = Rig::start(SPIN, |agent| {
        with_bash(agent);
        agent.artifacts.push(tool(FILE_TOOL, &[]));
        with_hook(agent, "guard", HookEvent::OnToolCall);
    });
    let (text, _) = call(&mut rig, &shell("echo hook:deny"));
    assert!(text.contains("hook:deny") && !text.contains("Refused"), "{text}");
    let write = |text: &str| format!("tool file-tool {}", json!({"write": "new", "text": text}));
    let (text, words) = call(&mut rig, &write("hook:deny"));
    assert!(text.contains("Refused by policy hook 'guard': seen file-tool {"), "{text}");
    assert!(!rig.workdir.path().join("new").exists());
    assert!(!words.iter().any(|line| line.starts_with("tool ")), "{words:?}");
    let (_, words) = call(&mut rig, &write("plain"));
    assert!(words.contains(&"tool file-tool true".to_owned()), "{words:?}");
    assert_eq!(rig.shut_down(), Ok(()));
}

#[test]
fn hooks_are_asked_in_order_and_the_first_refusal_is_the_answer() {
    let mut rig = Rig::start(SPIN, |agent| {
        with_bash(agent);
        with_hook(agent, "first", HookEvent::OnShell);
        with_hook(agent, "second", HookEvent::OnShell);
    });
    let (text, words) = call(&mut rig, &shell(": hook:deny"));
    assert!(text.contains("'first'"), "{text}");
    assert_eq!(words.iter().filter(|line| line.starts_with("denied")).count(), 1, "{words:?}");
    // The first was asked once; the second is asked only when the first lets a call go on.
    let (text, _) = call(&mut rig, &shell(": hook:count"));
    assert!(text.contains("'first': asked 1 times"), "{text}");
    assert_eq!(rig.shut_down(), Ok(()));
}

#[test]
fn a_write_to_a_protected_path_is_refused_before_any_hook_is_asked() {
    let mut rig = Rig::start(SPIN, |agent| {
        with_bash(agent);
        agent.artifacts.push(tool(FILE_TOOL, &[]));
        agent.artifacts[1].input_schema =
            Some(r#"{"properties":{"write":{"type":"string","format":"murmur-destination"}}}"#.into());
        with_hook(agent, "guard", HookEvent::OnShell);
        agent.read_only = vec!["inputs".into()];
    });
    std::fs::create_dir(rig.workdir.path().join("inputs")).unwrap();
    std::fs::write(rig.workdir.path().join("inputs/a"), "kept").unwrap();
    for text in [
        shell("echo x > inputs/a; : hook:deny"),
        shell("rm -rf inputs"),
        format!("tool file-tool {}", json!({"write": "inputs/a", "text": "x"})),
    ] {
        let (told, words) = call(&mut rig, &text);
        assert!(told.contains("capabilities.filesystem.read_only"), "{told}");
        assert!(told.contains("Reading it is allowed"), "{told}");
        assert!(words.iter().any(|line| line.starts_with("protected inputs")), "{words:?}");
        assert!(
            !words.iter().any(|line| line.starts_with("denied") || line.starts_with("tool ")),
            "{words:?}"
        );
    }
    let (told, _) = call(&mut rig, &shell("cat inputs/a"));
    assert!(told.contains("kept"), "{told}");
    let (told, _) = call(&mut rig, &format!("tool file-tool {}", json!({"read": "inputs/a"})));
    assert!(told.contains("kept"), "{told}");
    assert_eq!(rig.shut_down(), Ok(()));
}

#[test]
fn a_refusal_is_on_record_with_what_it_was_about() {
    let mut rig = Rig::start(SPIN, |agent| {
        with_bash(agent);
        with_hook(agent, "guard", HookEvent::OnShell);
        agent.read_only = vec!["inputs".into()];
    });
    let sent = rig.send(&shell("touch inputs/new"));
    let (program, target, path, rule, signal) = loop {
        let Seen::Event(event) = rig.next() else { continue };
        if let Event::ProtectedPathDenied { program, target, path, rule, signal, .. } = *event {
            break (program, target, path, rule, signal);
        }
    };
    assert_eq!(
        (program, target.as_str(), path.as_str(), rule.as_str(), signal.as_str()),
        (true, "/bin/bash", "inputs/new", "inputs", "`touch`")
    );
    assert!(sent.join().unwrap().is_ok());
    let sent = rig.send(&shell(": hook:blank"));
    let (event, hook_name, target, reason) = loop {
        let Seen::Event(event) = rig.next() else { continue };
        if let Event::CallDenied { event, hook_name, target, reason, .. } = *event {
            break (event, hook_name, target, reason);
        }
    };
    assert_eq!(
        (event, hook_name.as_str(), target.as_str(), reason.as_str()),
        (HookEvent::OnShell, "guard", "/bin/bash", "the hook gave no reason")
    );
    assert!(sent.join().unwrap().is_ok_and(|answer: Value| answer["task"].is_object()));
    assert_eq!(rig.shut_down(), Ok(()));
}
