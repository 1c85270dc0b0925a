//! What each code means and what helps: one table, which `broker explain` prints and `docs/diagnostics.md` is made of.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

/// One code.
pub(crate) struct Diagnostic {
    /// `E-…` refuses or ends something, `W-…` warns.
    pub(crate) code: &'static str,
    /// What happened, in a few words.
    pub(crate) title: &'static str,
    /// Why it is refused, or what it leads to.
    pub(crate) cause: &'static str,
    /// What helps.
    pub(crate) remedy: &'static str,
}

const fn diagnostic(
    code: &'static str,
    title: &'static str,
    cause: &'static str,
    remedy: &'static str,
) -> Diagnostic {
    Diagnostic { code, title, cause, remedy }
}

/// Every code this version has, in order.
pub(crate) const ALL: &[Diagnostic] = &[
    diagnostic(
        "E-CAP-001",
        "a network rule cannot be kept",
        "An entry of `network.allow` is no host, host:port or http(s) URL, names what is never reachable, or implies more ports \
         for programs than there are listeners.",
        "Name each destination by its exact host and port; a list that nobody can keep would look like one that is kept.",
    ),
    diagnostic(
        "E-CAP-002",
        "a directory of a component leads out of the workdir",
        "`filesystem.scope` must be a relative path without `..`.",
        "Name a directory inside the workdir; it is made where it is missing.",
    ),
    diagnostic(
        "E-CAP-003",
        "this host cannot give the class of containment that is asked for",
        "The manifest, or `--containment`, asks for a class, and the kernel or the user's rights do not suffice for it. \
         The message names the step that failed.",
        "Give the host what the step needs (Landlock, user namespaces, a procfs that nothing covers), or declare a weaker \
         class if that is enough. `broker --check` says what a host gives without starting anything.",
    ),
    diagnostic(
        "E-CAP-004",
        "a staged runtime needs a composed root",
        "`shell.staged_runtime` is shown to programs at a place of its own, which only the class `sealed` has.",
        "Declare `capabilities.containment: sealed`.",
    ),
    diagnostic(
        "E-CAP-005",
        "the session's network cannot be made",
        "Programs get a network namespace of their own. The kernel refused it or its loopback, route or listeners.",
        "Allow network namespaces (`user.max_net_namespaces`; in a container, `NET_ADMIN` in a namespace of its own).",
    ),
    diagnostic(
        "E-CAP-006",
        "an allowed program is not reachable in a composed root",
        "A program of `shell.allow`, or the interpreter it names, lies where the composed root of the class `sealed` has \
         nothing.",
        "Install it below `/usr`, grant its directory with `shell.interpreter_runtime`, or declare `scoped`.",
    ),
    diagnostic(
        "E-CAP-007",
        "an export root leads out of the workdir",
        "The root of a file plane, or a part of its path, is a link or a file by which files outside the workdir would be served.",
        "Remove the link, or name a directory inside the workdir. One that does not exist yet is fine.",
    ),
    diagnostic(
        "E-CAP-008",
        "handles would live too long",
        "A capsule that waits for tasks has no end of its own, so its handles need one: `exports.peer_files.max_ttl` of at \
         most 15 minutes.",
        "Declare `max_ttl: 15m` or less, or `lifecycle.after_task: exit`.",
    ),
    diagnostic(
        "E-CAP-010",
        "a configuration cannot be delivered",
        "`config` of an artifact is not what its bundled manifest accepts, or cannot be written as JSON.",
        "Compare it with `config_schema` in the artifact's own murmur.yaml.",
    ),
    diagnostic(
        "E-CAP-012",
        "a read-only path cannot be kept",
        "An entry of `filesystem.read_only` is absolute, leads out of the workdir, is the workdir itself, or meets a link.",
        "Name existing files or directories inside the workdir by their real path.",
    ),
    diagnostic(
        "E-CAP-013",
        "an artifact takes a name of the runtime's",
        "Names like `bash`, `share-file` and `fetch-peer-file` belong to tools of the runtime.",
        "Rename the artifact.",
    ),
    diagnostic(
        "E-CAP-016",
        "a credential would be handed to a component",
        "`env.allow` names a variable that looks like a credential; components never get one.",
        "Give the credential to a gateway instead.",
    ),
    diagnostic(
        "E-CAP-018",
        "a gateway has no credential",
        "`gateway` needs to know what it authenticates with.",
        "Add `keyless: true` if the upstream needs no key.",
    ),
    diagnostic(
        "E-CAP-020",
        "two artifacts have the name of one tool",
        "The model calls a tool by the part of its name after the scope; it has to be one artifact's.",
        "Rename one of them.",
    ),
    diagnostic(
        "E-IO-001",
        "something that is named is not there",
        "A file, a directory, a program of `shell.allow` or a variable of the environment is absent.",
        "Check the path the message names; install the program, or take it out of `shell.allow`.",
    ),
    diagnostic(
        "E-IO-002",
        "something that is named may not be used",
        "The operating system denies access, or the thing belongs to somebody whose files the broker does not serve.",
        "Check owner and mode of the path the message names. A workdir must not belong to root.",
    ),
    diagnostic(
        "E-IO-003",
        "an input or output error",
        "Reading, writing or listening failed for another reason, which the message gives; or a file is of a kind or size \
         that cannot be used.",
        "Act on the reason: a full disk, an address that is not this host's, a file that is no artifact.",
    ),
    diagnostic(
        "E-MAN-001",
        "the manifest lacks a required field",
        "`name`, `version` and what each artifact needs must be there and not blank.",
        "Add the field the message names. `docs/manifest.md` lists all of them.",
    ),
    diagnostic(
        "E-MAN-002",
        "the manifest cannot be read as YAML",
        "It is not UTF-8, too large, or not one plain YAML document.",
        "Correct the line the message names. Anchors, tags and duplicate keys are not accepted.",
    ),
    diagnostic(
        "E-MAN-003",
        "a field of the manifest is not acceptable",
        "A value has the wrong type or is out of its range, a key is unknown or not supported yet, or two fields contradict \
         each other.",
        "Correct the field. For a key of another version `--allow-unknown-keys` turns the refusal into a warning, unless the \
         key grants or denies something.",
    ),
    diagnostic(
        "E-RUN-001",
        "a component or a process of ours does not work",
        "A component does not compile, lacks its export, trapped, ran out of time or of memory; or a process of ours says why \
         it cannot start.",
        "For a limit, raise the field of `capabilities.limits` that is named. A component that traps is its author's to mend; \
         what it printed is in the session's logs.",
    ),
    diagnostic(
        "E-RUN-002",
        "a component imports what is not served",
        "Its import is no interface of this version's, or is not given to its role.",
        "Use a component built for an interface in `wit/`.",
    ),
    diagnostic(
        "E-RUN-004",
        "an artifact holds no component",
        "There is no `capsule.wasm` (or the file its manifest names) in it.",
        "Build the artifact again.",
    ),
    diagnostic(
        "E-RUN-005",
        "there is no inference driver",
        "An agent needs a driver for its model: `inference.driver.artifact`.",
        "Name a driver, or serve files alone with `--serve-only`.",
    ),
    diagnostic(
        "E-RUN-006",
        "a binary or a driver is not installed",
        "The broker looks for its processes beside itself and below `../libexec/capsule-broker`; the driver must be among the \
         artifacts.",
        "Install all of capsule-broker; add the driver to `artifacts`.",
    ),
    diagnostic(
        "E-RUN-007",
        "a process of the session died or broke the protocol",
        "The session ends with exit status 3: what a process cannot answer for must not go on. The message says which \
         process, and how: exit, signal, or the system call its filter refused.",
        "Report it with the message. A kill by the kernel for memory is not a defect: see `dmesg`.",
    ),
    diagnostic(
        "E-RUN-008",
        "an artifact is not installed",
        "It has no `source` in the manifest and is in no artifact directory.",
        "Give its `source`, or name the directory with `--artifact-dir`.",
    ),
    diagnostic(
        "E-RUN-009",
        "the system prompt's file cannot be read",
        "`inference.system_prompt_file` is read at launch.",
        "Check the path; it is relative to the manifest.",
    ),
    diagnostic(
        "E-RUN-010",
        "the address is in use",
        "Another process listens at the address of `--listen`.",
        "Choose another port, or 0 for any.",
    ),
    diagnostic(
        "E-RUN-011",
        "a program met a limit",
        "It was ended for the limit of `capabilities.resources` that is named to the model and in the trace.",
        "Raise the limit if the work is worth it.",
    ),
    diagnostic(
        "E-RUN-012",
        "programs cannot be limited together",
        "There is no cgroup v2 hierarchy with the controllers memory, pids and cpu in which the broker may make groups.",
        "Mount cgroup v2 and delegate the controllers (under systemd `Delegate=yes`), or accept the risk with \
         `--accept-missing cgroup-limits`.",
    ),
    diagnostic(
        "E-RUN-013",
        "the capsule keeps more than it may",
        "Workdir, home and temporary files together hold more than `capabilities.resources.workdir_max_bytes`, or what they \
         hold cannot be counted. The session ends; nothing more is started in it.",
        "Remove what is not needed, or raise the limit.",
    ),
    diagnostic(
        "E-RUN-014",
        "a tree for the composed root is not there",
        "`source_path` of a staged runtime cannot be opened.",
        "Check the path.",
    ),
    diagnostic(
        "E-RUN-025",
        "a gateway does not know how to authenticate",
        "The artifact with the `gateway` says nothing usable in `upstream_auth` of its own manifest.",
        "Use an artifact that does, or `keyless: true`.",
    ),
    diagnostic(
        "E-RUN-029",
        "an artifact is built for another version of its interface",
        "The message names the version it exports and the one that is served.",
        "Use an artifact built for the version that is served.",
    ),
    diagnostic(
        "E-RUN-040",
        "a task did not complete",
        "The session ended in order, but a task failed, was canceled or used up its turns.",
        "`trace.jsonl` in the session's records says at which turn, and why.",
    ),
    diagnostic(
        "E-RUN-060",
        "all ids are taken",
        "Each session takes a block of ids from `--uid-range`.",
        "End a session, or give a longer range.",
    ),
    diagnostic(
        "E-TRC-001",
        "a record is not whole",
        "A trace begins with `session_start`, ends with `session_end` and has one record in each line. It is empty where the \
         launch was refused, and has no end while the session runs or if it was killed.",
        "`broker trace --follow` waits for the end of a session that runs. What a line that is no record was cannot be \
         brought back; a disk that was full leaves one.",
    ),
    diagnostic(
        "W-SEC-006",
        "a key has no effect on a hook",
        "A hook is never given what the key would grant.",
        "Take the key out.",
    ),
    diagnostic(
        "W-SEC-007",
        "an artifact asks for a destination that the capsule does not have",
        "What an artifact may reach can only be narrower than `capabilities.network.allow`; the entry is dropped.",
        "Add it to the capsule's list, or take it out of the artifact's.",
    ),
    diagnostic(
        "W-SEC-008",
        "a key has no effect on an artifact of this role",
        "The grant the key stands for is the capsule's alone.",
        "Move it to the capsule's `capabilities`, or take it out.",
    ),
    diagnostic(
        "W-SEC-009",
        "programs may read the files of an interpreter",
        "`shell.interpreter_runtime` shows its directories to every program.",
        "Nothing, if that is meant.",
    ),
    diagnostic(
        "W-SEC-011",
        "files that programs write may be executed",
        "With `filesystem.workdir_exec` the list of programs is no bound any more.",
        "Take it out unless the capsule builds what it runs.",
    ),
    diagnostic(
        "W-SEC-014",
        "`capabilities.state` has no effect",
        "State belongs to single artifacts.",
        "Take it out.",
    ),
    diagnostic(
        "W-SEC-016",
        "`capabilities.conversation` has no effect",
        "Nothing reads conversations in this version.",
        "Take it out.",
    ),
    diagnostic(
        "W-SEC-019",
        "a key of the manifest has no effect",
        "It is unknown, or of a later version, and `--allow-unknown-keys` was given or it bounds nothing.",
        "Correct its spelling, or take it out.",
    ),
    diagnostic(
        "W-SEC-021",
        "reading and writing are not limited",
        "The host has no `io` controller for the group, or the file system no device it could be limited on.",
        "Delegate the `io` controller, or take `cgroup_io_bytes_per_sec` out.",
    ),
    diagnostic(
        "W-SEC-022",
        "session processes end with their task",
        "Without `task_acceptance: queue` and `after_task: sleep` no later task finds what an earlier one started.",
        "Nothing, if that is meant.",
    ),
    diagnostic(
        "W-SEC-024",
        "a variable looks like a credential",
        "`env.allow` hands it to every component.",
        "Give credentials to a gateway.",
    ),
    diagnostic(
        "W-SEC-025",
        "components may reach a gateway's upstream around the gateway",
        "`network.allow` names the host of a `gateway.endpoint`.",
        "Take it out, unless components are meant to speak to it themselves.",
    ),
];

/// The entry of a code, in any case.
fn find(code: &str) -> Option<&'static Diagnostic> {
    ALL.iter().find(|known| known.code.eq_ignore_ascii_case(code))
}

/// Characters of a line.
const WIDTH: usize = 90;

/// Prints what a code means, or the list of all.
pub(crate) fn explain(code: Option<&str>) -> ExitCode {
    let mut text = String::new();
    match code.map(|code| (code, find(code))) {
        None => {
            for known in ALL {
                let _ = writeln!(text, "{}  {}", known.code, known.title);
            }
        }
        Some((_, Some(known))) => {
            let _ = write!(text, "{}: {}\n\n", known.code, known.title);
            wrap(&mut text, "  ", known.cause);
            wrap(&mut text, "  What helps: ", known.remedy);
        }
        Some((code, None)) => {
            let nearest =
                crate::manifest::nearest(&code.to_ascii_uppercase(), ALL.iter().map(|known| known.code));
            let hint = match nearest {
                Some(nearest) => format!("did you mean {nearest}?"),
                None => "broker explain lists all codes".to_owned(),
            };
            say!("error: {}: no message has this code\n  hint: {hint}", crate::manifest::shown(code));
            return ExitCode::from(2);
        }
    }
    // Whoever reads a part of it has read it.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

/// Adds words in lines of at most [`WIDTH`] characters, the first behind `lead`, the others indented by two.
fn wrap(text: &mut String, lead: &str, words: &str) {
    text.push_str(lead);
    let mut length = lead.len();
    for (number, word) in words.split(' ').enumerate() {
        if number > 0 && length + 1 + word.len() > WIDTH {
            text.push_str("\n  ");
            length = 2;
        } else if number > 0 {
            text.push(' ');
            length += 1;
        }
        text.push_str(word);
        length += word.len();
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    fn checkout() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
    }

    /// The codes in the sources of what is shipped, tests beside them included.
    fn in_the_code() -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut folders: Vec<PathBuf> = [
            "broker",
            "client",
            "confine",
            "door",
            "egress",
            "fileserver",
            "handle",
            "ipc",
            "role",
            "runner",
            "sandbox-host",
        ]
        .iter()
        .map(|name| checkout().join(name))
        .collect();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let text = std::fs::read_to_string(&path).unwrap();
                    // This file would find itself.
                    if !path.ends_with("broker/src/diagnostics.rs") {
                        found.extend(codes(&text));
                    }
                }
            }
        }
        found
    }

    #[test]
    fn lines_are_wrapped() {
        let mut text = String::new();
        wrap(&mut text, "  What helps: ", "word ".repeat(60).trim_end());
        assert!(text.lines().all(|line| line.len() <= WIDTH && line.starts_with("  ")), "{text}");
        assert_eq!(text.split_whitespace().filter(|word| *word == "word").count(), 60);
    }

    fn codes(text: &str) -> impl Iterator<Item = String> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
        words.filter_map(|word| {
            let mut parts = word.split('-');
            let (kind, area, number) = (parts.next()?, parts.next()?, parts.next()?);
            let is_code = matches!(kind, "E" | "W")
                && (2..=3).contains(&area.len())
                && area.bytes().all(|byte| byte.is_ascii_uppercase())
                && number.len() == 3
                && number.bytes().all(|byte| byte.is_ascii_digit());
            is_code.then(|| format!("{kind}-{area}-{number}"))
        })
    }

    #[test]
    fn every_code_in_the_code_is_in_the_table_and_none_besides() {
        // Known to the contract and of no effect here.
        let silent = BTreeSet::from(["W-RUN-004".to_owned()]);
        let found: BTreeSet<String> = in_the_code().difference(&silent).cloned().collect();
        let table: BTreeSet<String> = ALL.iter().map(|known| known.code.to_owned()).collect();
        assert!(found.len() > 30, "{found:?}");
        assert_eq!(found, table);
    }

    #[test]
    fn the_table_is_in_order_and_whole() {
        assert!(ALL.is_sorted_by(|one, other| one.code < other.code));
        for known in ALL {
            for text in [known.cause, known.remedy] {
                assert!(text.ends_with('.') && !text.contains("  "), "{}: {text}", known.code);
            }
            assert!(!known.title.ends_with('.') && known.title.len() < 80, "{}", known.title);
        }
    }

    /// `docs/diagnostics.md` is the table. BLESS=1 writes it.
    #[test]
    fn the_page_is_the_table() {
        let mut page = String::from(
            "# Diagnostics\n\nEvery message has a code, the thing, the reason and a remedy. `broker explain CODE` prints the \
             same without a network. `E-` refuses\nor ends something, `W-` warns and goes on.\n",
        );
        for known in ALL {
            let Diagnostic { code, title, cause, remedy } = known;
            page.push_str(&format!("\n## {code}: {title}\n\n{cause}\n\n*What helps:* {remedy}\n"));
        }
        let path = checkout().join("docs/diagnostics.md");
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, &page).unwrap();
        }
        let there = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            there == page,
            "docs/diagnostics.md is not the table; BLESS=1 cargo test -p broker diagnostics writes it"
        );
    }

    #[test]
    fn a_code_is_found_in_any_case() {
        assert_eq!(find("e-cap-003").map(|known| known.code), Some("E-CAP-003"));
        assert!(find("E-CAP-999").is_none() && find("").is_none());
    }
}
