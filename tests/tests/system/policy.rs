//! Policy hooks and `read_only` in a whole session: what the model is told, what is on record, what did not happen.

use serde_json::json;
use system_tests::broker::Launch;
use system_tests::capsule::Capsule;
use system_tests::trace::Trace;
use system_tests::{a2a, needs_root};

/// A driver must have a gateway; nothing of these tests uses it.
const NO_GATEWAY: &str = "http://127.0.0.1:9";

fn shell(script: &str) -> String {
    format!("tool bash {}", json!({"command": script}))
}

#[test]
fn a_hook_refuses_a_program_and_the_refusal_takes_the_place_of_the_call_on_record() {
    needs_root!();
    let capsule =
        Capsule::driven_by("spin-driver", NO_GATEWAY, &["policy-hook"], "shell: {allow: [bash, touch]}");
    let mut session = Launch::of(&capsule).start();
    let refused = a2a::complete(session.url(), "one", &shell("touch out/ran # hook:deny"));
    let told = a2a::answer(&refused);
    assert!(told.contains("Refused by policy hook 'policy-hook': seen "), "{told}");
    assert!(told.contains("It did not run"), "{told}");
    let allowed = a2a::complete(session.url(), "two", &shell("touch out/allowed"));
    assert!(a2a::answer(&allowed).contains("Exit code: 0"), "{allowed}");
    let records = session.records();
    session.stop();

    assert_eq!(capsule.paths(), ["out", "out/allowed"]);
    let trace = Trace::read(&records);
    let [denied] = &trace.of("call_denied")[..] else { panic!("{}", trace.text()) };
    assert_eq!(
        (&denied["event"], &denied["hook_name"], &denied["turn"]),
        (&json!("on-shell"), &json!("policy-hook"), &json!(0))
    );
    assert!(denied["target"].as_str().unwrap().ends_with("/bash"), "{denied}");
    assert!(denied["reason"].as_str().unwrap().starts_with("seen "), "{denied}");
    assert_eq!((trace.of("tool_call").len(), trace.of("shell").len()), (1, 1), "{}", trace.text());
}

#[test]
fn a_contract_that_is_not_served_refuses_the_launch() {
    needs_root!();
    for (contract, words) in [
        ("binding: on-shell", "is not supported yet"),
        ("commit_policy: deny", "needs a `binding`"),
        ("binding: on-shell\ncommit_policy: reopen-task", "does not take"),
        ("binding: on-sunday\ncommit_policy: deny", "is no event"),
    ] {
        let capsule =
            Capsule::driven_by("spin-driver", NO_GATEWAY, &["policy-hook"], "shell: {allow: [bash, touch]}");
        let own = capsule.folder().join("artifacts/policy-hook/murmur.yaml");
        std::fs::write(&own, format!("name: policy-hook\nversion: \"0.1.0\"\nruntime: hook\n{contract}\n"))
            .unwrap();
        let ended = Launch::of(&capsule).run(std::time::Duration::from_secs(60));
        assert_eq!(ended.code(), Some(1), "{contract}: {}", ended.stderr);
        assert!(
            ended.stderr.contains("error[E-MAN-003]") && ended.stderr.contains(words),
            "{contract}: {}",
            ended.stderr
        );
    }
}

#[test]
fn a_protected_path_is_refused_by_name_and_kept_by_the_kernel() {
    needs_root!();
    let capabilities = "shell: {allow: [bash, rm, mv, mkdir, ln]}, filesystem: {read_only: [inputs]}";
    let capsule = Capsule::driven_by("spin-driver", NO_GATEWAY, &["file-tool"], capabilities);
    capsule.write("inputs/a", b"kept");
    let mut session = Launch::of(&capsule).start();
    let named = a2a::complete(session.url(), "one", &shell("echo x > inputs/a"));
    assert!(a2a::answer(&named).contains("capabilities.filesystem.read_only"), "{named}");
    // Nothing of these is recognised; the mounts refuse.
    for (number, script) in [
        "cd inputs && echo x > a",
        "f=inputs/a; echo x > $f",
        "cd inputs; rm a",
        "d=inputs; mv $d elsewhere",
        "d=inputs/new; mkdir $d",
    ]
    .into_iter()
    .enumerate()
    {
        let tried = a2a::complete(session.url(), &format!("m{number}"), &shell(script));
        let told = a2a::answer(&tried);
        assert!(told.contains("Read-only file system") || told.contains("busy"), "{script}: {told}");
    }
    let write = format!("tool file-tool {}", json!({"write": "inputs/a", "text": "x"}));
    assert!(a2a::answer(&a2a::complete(session.url(), "two", &write)).contains("read_only"));
    // The schema calls `write` a destination; a link to the same place is seen through as well.
    let link = a2a::complete(session.url(), "three", &shell("ln -s inputs out/link"));
    assert!(a2a::answer(&link).contains("Exit code: 0"), "{link}");
    let records = session.records();
    session.stop();
    assert_eq!(std::fs::read(capsule.work().join("inputs/a")).unwrap(), b"kept");
    let trace = Trace::read(&records);
    let denied = trace.of("protected_path_denied");
    assert_eq!(denied.len(), 2, "{}", trace.text());
    assert_eq!(
        (&denied[0]["call"], &denied[0]["path"], &denied[0]["rule"], &denied[0]["signal"]),
        (&json!("shell"), &json!("inputs/a"), &json!("inputs"), &json!("the redirection `>`"))
    );
    assert_eq!((&denied[1]["call"], &denied[1]["target"]), (&json!("tool"), &json!("file-tool")));
}
