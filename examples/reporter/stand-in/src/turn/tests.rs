//! The whole loop against the real `bash`, `wc` and `sha256sum`, with the host's part played here.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::*;

/// A work folder of one test, removed at its end.
struct Workdir(PathBuf);

impl Workdir {
    fn new(test: &str, files: &[(&str, &str)]) -> Self {
        let root = std::env::temp_dir().join(format!("stand-in-{test}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir(&root).unwrap();
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        Self(root)
    }

    fn report(&self) -> Option<String> {
        std::fs::read_to_string(self.0.join("out/report.md")).ok()
    }
}

impl Drop for Workdir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn bash(directory: &Path, command: &str) -> std::process::Output {
    Command::new("bash").args(["-c", command]).current_dir(directory).output().unwrap()
}

/// The shell tool as the driver contract words it.
fn shell_tool(directory: &Path, command: &str) -> String {
    let output = bash(directory, command);
    format!(
        "<untrusted-content source=tool:bash>\n$ bash -c {command}\nExit code: {}\nStdout:\n{}\nStderr:\n{}\n</untrusted-content>",
        output.status.code().unwrap(),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    )
}

fn text(text: &str) -> Value {
    json!([{"type": "text", "text": text}])
}

/// Runs the loop to its end and gives the last response and the number of tool calls.
fn run(directory: &Path, task: &str) -> (Value, usize) {
    let mut messages = vec![json!({"role": "user", "content": text(task)})];
    for calls in 0..10 {
        let request = json!({"model": "stand-in", "max_tokens": 1, "messages": messages, "params": {}, "system": "s",
            "tools": [{"name": "bash", "parameters": {"type": "object", "required": ["command"]}}]});
        let request = request.to_string();
        let response = decide(&request).unwrap().response(request.len());
        assert_eq!(response, decide(&request).unwrap().response(request.len()));
        let response: Value = serde_json::from_str(&response).unwrap();
        if response["stop_reason"] != "tool_call" {
            return (response, calls);
        }
        let block = &response["content"][1];
        assert_eq!((&block["type"], &block["name"]), (&json!("tool_call"), &json!("bash")));
        let command = block["input"]["command"].as_str().unwrap();
        assert!(!command.contains('\n'), "{command}");
        messages.push(json!({"role": "assistant", "content": response["content"]}));
        messages.push(json!({"role": "tool", "tool_call_id": block["id"], "is_error": false,
            "content": text(&shell_tool(directory, command))}));
    }
    panic!("the loop does not end");
}

/// The table's rows below its head, as cells.
fn rows(report: &str) -> Vec<Vec<String>> {
    let rows = report.lines().filter(|line| line.starts_with("| ")).skip(2);
    rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
}

#[test]
fn the_report_says_what_wc_and_sha256sum_say() {
    let work =
        Workdir::new("says", &[("in/b.txt", "one\ntwo three\n"), ("in/a.txt", ""), ("in/sub/no.txt", "x")]);
    let (response, calls) = run(&work.0, "Report on in/, please.");
    assert_eq!((&response["stop_reason"], calls), (&json!("end_turn"), 3));
    assert!(response["usage"]["input_tokens"].as_u64().unwrap() > 0);

    let report = work.report().unwrap();
    assert!(report.contains("Task: Report on in/, please."));
    let output = bash(
        &work.0,
        "cd in; for f in a.txt b.txt; do echo $f $(wc -l <$f) $(wc -w <$f) $(wc -c <$f) $(sha256sum <$f); done",
    );
    let mut expected: Vec<Vec<String>> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| line.split_whitespace().take(5).map(str::to_owned).collect())
        .collect();
    expected.push(["**Total**", "2", "3", "14", ""].map(str::to_owned).to_vec());
    assert_eq!(rows(&report), expected);
}

#[test]
fn names_of_every_kind_are_measured_and_none_is_executed() {
    let names = [
        "-",
        "--help",
        "a b",
        "it's",
        "\"q\"",
        "$(touch x)",
        "`id`",
        "c\\d",
        "*",
        "file x",
        "total",
        "é",
        "Stderr:",
    ];
    let files: Vec<(String, &str)> = names.iter().map(|name| (format!("odd dir's/{name}"), "w\n")).collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (name.as_str(), *text)).collect();
    let work = Workdir::new("names", &files);
    let (response, calls) = run(&work.0, "Report on \"odd dir's\"");
    assert_eq!((&response["stop_reason"], calls), (&json!("end_turn"), 3), "{response}");
    let rows = rows(&work.report().unwrap());
    assert_eq!(rows.len(), names.len() + 1);
    assert_eq!(rows.last().unwrap()[3], (2 * names.len()).to_string());
    assert!(rows.iter().rev().skip(1).all(|row| row[4] == rows[0][4]));
    let left: Vec<_> = std::fs::read_dir(work.0.join("out")).unwrap().collect();
    assert_eq!(left.len(), 1, "no temporary file stays: {left:?}");
    assert!(!work.0.join("x").exists() && !work.0.join("odd dir's/x").exists());
}

#[test]
fn a_second_task_replaces_the_report() {
    let work = Workdir::new("second", &[("in/a", "1\n"), ("notes/b", "2\n"), ("notes/c", "3\n")]);
    run(&work.0, "Report on in/");
    let first = work.report().unwrap();
    run(&work.0, "Report on notes/");
    let second = work.report().unwrap();
    assert_eq!((rows(&first).len(), rows(&second).len()), (2, 3));
}

#[test]
fn what_cannot_be_done_is_said_and_nothing_is_written() {
    let work =
        Workdir::new("cannot", &[("empty/sub/f", "x"), ("bad/a\u{1}b", "x"), ("out", "a file in the way")]);
    std::fs::create_dir(work.0.join("full")).unwrap();
    std::fs::write(work.0.join("full/f"), "x").unwrap();
    for (task, calls, says) in [
        ("Report on nowhere/", 1, "No such file"),
        ("Report on empty/", 1, "no files in empty/"),
        ("Report on bad/", 1, "control character"),
        ("Report on the weather", 0, "name it with a slash"),
        ("Report on full/", 3, "could not write out/report.md"),
    ] {
        let (response, called) = run(&work.0, task);
        assert_eq!((&response["stop_reason"], called), (&json!("end_turn"), calls), "{task}");
        let answer = response["content"][0]["text"].as_str().unwrap();
        assert!(answer.contains(says), "{task}: {answer}");
    }
    assert_eq!(work.report(), None);
}

fn decide_after(tools: Value, result: Option<Value>) -> Decision {
    let mut messages = vec![json!({"role": "user", "content": text("Report on in/")})];
    messages.extend(result);
    decide(&json!({"messages": messages, "tools": tools}).to_string()).unwrap()
}

#[test]
fn without_the_bash_tool_the_turn_ends_with_an_error() {
    for tools in [json!([]), json!(null), json!([{"name": "bash2"}]), json!([{"title": "bash"}])] {
        let decision = decide_after(tools.clone(), None);
        assert!(matches!(decision, Decision::GiveUp(_)), "{tools}");
        let response: Value = serde_json::from_str(&decision.response(4)).unwrap();
        assert_eq!((&response["stop_reason"], &response["content"]), (&json!("error"), &json!([])));
        assert!(response["error"].as_str().unwrap().contains("`bash`"));
    }
}

#[test]
fn a_result_that_is_refused_cut_or_strange_ends_the_turn_with_words() {
    let tools = json!([{"name": "bash"}]);
    for (is_error, result, says) in [
        (true, "Refused by policy hook 'h': no", "Refused by policy hook"),
        (false, "running as wrk_1", "shape I do not know"),
        (false, "$ x\nExit code: 0\nStdout:\nfile a\n", "not complete"),
        (false, "$ x\nExit code: 0\nStdout:\nfile a\nend 2\nStderr:\n", "not complete"),
        (false, "$ x\nExit code: 137\nStdout:\nStderr:\nKilled", "exit code 137: Killed"),
        (false, "", "shape I do not know"),
    ] {
        let message =
            json!({"role": "tool", "tool_call_id": "c", "is_error": is_error, "content": text(result)});
        match decide_after(tools.clone(), Some(message)) {
            Decision::Say(answer) => assert!(answer.contains(says), "{result:?}: {answer}"),
            other => panic!("{result:?}: {other:?}"),
        }
    }
}
