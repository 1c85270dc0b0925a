//! The rules of `docs/architecture.md` on what `scripts/inspect-session.sh` prints of a live session, so that the script and
//! the picture in the document stay true.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use system_tests::broker::{Launch, Session};
use system_tests::capsule::Capsule;
use system_tests::trace::Trace;
use system_tests::{a2a, binaries, needs_root};

const ROLES: [&str; 5] = ["door", "fileserver", "sandbox-host", "runner", "egress"];

/// chown, dac_override, fowner, kill, setgid, setuid, setpcap, sys_ptrace, sys_admin: the bits of `capabilities(7)`.
const OF_THE_BROKER: u64 = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 19 | 1 << 21;

/// What the script printed.
struct Tables {
    text: String,
}

impl Tables {
    fn of(session: &Session) -> Self {
        let script = binaries::checkout().join("scripts/inspect-session.sh");
        let output = Command::new(script).arg(session.pid().to_string()).output().expect("bash");
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && words.is_empty(), "{}: {words}", output.status);
        Self { text: String::from_utf8(output.stdout).unwrap() }
    }

    /// The lines below `# title`.
    fn section(&self, title: &str) -> Vec<&str> {
        let begins = |line: &&str| line.strip_prefix("# ").is_some_and(|rest| rest.starts_with(title));
        let lines = self.text.lines().skip_while(|line| !begins(line)).skip(1);
        let lines: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
        assert!(!lines.is_empty(), "no section {title}:\n{}", self.text);
        lines
    }

    /// The rows of a table, by column.
    fn rows(&self, title: &str) -> Vec<BTreeMap<&str, &str>> {
        let lines = self.section(title);
        let names: Vec<&str> = lines[0].split_whitespace().collect();
        for line in &lines {
            assert_eq!(line.split_whitespace().count(), names.len(), "a cell is missing: {line}");
        }
        lines[1..].iter().map(|line| names.iter().copied().zip(line.split_whitespace()).collect()).collect()
    }

    /// A table with one row for each of the six processes and no other.
    fn processes(&self, title: &str) -> BTreeMap<&str, BTreeMap<&str, &str>> {
        let rows = self.rows(title);
        let by_name: BTreeMap<&str, _> = rows.iter().map(|row| (row["name"], row.clone())).collect();
        let expected: BTreeSet<&str> = ROLES.into_iter().chain(["broker"]).collect();
        assert_eq!(by_name.keys().copied().collect::<BTreeSet<_>>(), expected, "{title}");
        assert_eq!(rows.len(), 6, "{title}");
        by_name
    }

    /// How many descriptors of which kind a process holds.
    fn descriptors(&self, process: &str) -> BTreeMap<&str, usize> {
        let lines = self.section("descriptors").into_iter();
        let lines = lines.skip_while(|line| *line != format!("{process}:")).skip(1);
        let found: BTreeMap<&str, usize> = lines
            .take_while(|line| line.starts_with("  "))
            .map(|line| {
                let (count, what) = line.trim().split_once(" × ").unwrap();
                (what, count.parse().unwrap())
            })
            .collect();
        assert!(!found.is_empty(), "no descriptors of {process}:\n{}", self.text);
        found
    }

    /// How many descriptors of a process are of a kind that begins so.
    fn count(&self, process: &str, kind: &str) -> usize {
        let found = self.descriptors(process).into_iter();
        found.filter(|(what, _)| what.starts_with(kind)).map(|(_, count)| count).sum()
    }
}

/// The tables of a session that has worked on a task, and whether three roles run under the id of the workdir's owner.
fn inspected() -> (Tables, bool) {
    let capsule = Capsule::reporter();
    let mut session = Launch::of(&capsule).start();
    let _ = a2a::complete(session.url(), "one", "Report on inputs/");
    let tables = Tables::of(&session);
    let records = session.records();
    session.stop();
    let trace = Trace::read(&records);
    let shared = trace.of("session_start")[0]["effective_grants"]["shared_owner"].as_bool().unwrap();
    (tables, shared)
}

#[test]
fn six_processes_stand_apart_as_the_architecture_says() {
    needs_root!();
    let (tables, shared) = inspected();
    identities(&tables, shared);
    confinement(&tables);
    namespaces(&tables);
    memory(&tables);
    descriptors(&tables);
}

fn identities(tables: &Tables, shared: bool) {
    let processes = tables.processes("processes");
    for (name, row) in &processes {
        assert_eq!(row["groups"], "0", "{name}: supplementary groups");
    }
    assert_eq!(processes["broker"]["uid"], "0");
    for column in ["uid", "gid"] {
        let id = |name: &str| processes[name][column];
        let ids: BTreeSet<&str> = ROLES.into_iter().map(id).collect();
        assert!(!ids.contains("0"), "{column}: {ids:?}");
        if shared {
            let owner = id("sandbox-host");
            assert_eq!([id("runner"), id("fileserver")], [owner, owner], "{column}");
            assert_eq!(ids.len(), 3, "{column}: {ids:?}");
        } else {
            assert_eq!(ids.len(), ROLES.len(), "{column}: {ids:?}");
        }
    }
}

fn confinement(tables: &Tables) {
    for (name, row) in tables.processes("confinement") {
        assert_eq!((row["no_new_privs"], row["seccomp"]), ("1", "2"), "{name}");
        let kept = if name == "broker" { OF_THE_BROKER } else { 0 };
        for set in ["permitted", "bounding"] {
            assert_eq!(u64::from_str_radix(row[set], 16).unwrap(), kept, "{set} of {name}");
        }
        assert_eq!(row["dumpable"], if name == "broker" { "-" } else { "no" }, "{name}");
    }
}

fn namespaces(tables: &Tables) {
    let processes = tables.processes("namespaces");
    for kind in ["mnt", "pid", "ipc", "uts"] {
        let found: BTreeSet<&str> = processes.values().map(|row| row[kind]).collect();
        assert_eq!(found.len(), 6, "{kind}: {found:?}");
    }
    let net = |name: &str| processes[name]["net"];
    assert_eq!([net("broker"), net("egress")], ["=", "="]);
    assert_eq!([net("fileserver"), net("sandbox-host")], [net("door"), net("door")]);
    let found: BTreeSet<&str> = processes.values().map(|row| row["net"]).collect();
    assert_eq!(found.len(), 3, "the host's, the session's, the programs': {found:?}");
    assert_ne!(net("runner"), net("door"));
}

fn memory(tables: &Tables) {
    let rows = tables.rows("shared memory");
    let found: BTreeSet<(&str, &str, &str)> =
        rows.iter().map(|row| (row["file"], row["name"], row["rights"])).collect();
    let expected = BTreeSet::from([
        ("window", "door", "r--s"),
        ("window", "fileserver", "rw-s"),
        ("generation", "broker", "rw-s"),
        ("generation", "fileserver", "r--s"),
    ]);
    assert_eq!(found, expected, "who maps what, with which rights");
}

fn descriptors(tables: &Tables) {
    for name in ["door", "broker"] {
        assert_eq!(tables.count(name, "socket tcp"), 1, "{name}");
        assert_eq!(tables.count(name, "socket tcp listening"), 1, "{name}");
    }
    for name in ROLES {
        let held = tables.descriptors(name);
        for kind in ["socket raw", "socket unknown", "socket unix stream", "memory file"] {
            assert_eq!(tables.count(name, kind), 0, "{name}: {held:?}");
        }
        // The name server's of the session's network.
        assert_eq!(tables.count(name, "socket udp"), usize::from(name == "egress"), "{name}: {held:?}");
        if name != "door" {
            assert_eq!(tables.count(name, "socket tcp"), 0, "{name}: {held:?}");
        }
        assert!(tables.count(name, "socket unix seqpacket") >= 2, "a control channel and an edge: {held:?}");
        // Standard input and output are /dev/null, standard error is a pipe to the broker, and no other device is open.
        assert_eq!((tables.count(name, "/dev/"), held["/dev/null"], held["pipe"]), (2, 2, 1), "{name}");
        assert!(!held.keys().any(|what| what.contains("namespace") || what.contains("pidfd")), "{held:?}");
        assert!(!held.keys().any(|what| what.contains("trace.jsonl")), "{name}: {held:?}");
        let directories = match name {
            "fileserver" => 1,
            // Workdir and session directory, once for calls and once for their budget's thread.
            "sandbox-host" => 4,
            _ => 0,
        };
        assert_eq!(tables.count(name, "directory"), directories, "{name}: {held:?}");
    }
    let fileserver = tables.descriptors("fileserver");
    assert!(fileserver.contains_key("directory /workdir (path)"), "not to be listed through: {fileserver:?}");
    for name in ["door", "fileserver", "egress"] {
        assert_eq!(tables.count(name, "file "), 0, "{name} holds a file");
    }
    let host = tables.descriptors("sandbox-host");
    let files: Vec<&&str> = host.keys().filter(|what| what.starts_with("file ")).collect();
    assert!(
        files.iter().all(|file| file.ends_with(".cwasm (read)")),
        "components and nothing else: {files:?}"
    );
    let runner = tables.descriptors("runner");
    let files: Vec<&&str> = runner.keys().filter(|what| what.starts_with("file ")).collect();
    let limits = ["memory.events", "pids.events", "pids.current"];
    let of_programs = |file: &str| {
        let (_, below) = file.split_once("/programs/").unwrap_or_default();
        let name = below.strip_prefix("<leaf>/").unwrap_or(below).split(' ').next().unwrap_or_default();
        name.starts_with("cgroup.") || limits.contains(&name)
    };
    assert!(files.iter().all(|file| of_programs(file)), "groups of programs only: {files:?}");

    let broker = tables.descriptors("broker");
    let trace: Vec<_> = broker.iter().filter(|(what, _)| what.contains("trace.jsonl")).collect();
    assert!(matches!(trace[..], [(what, 1)] if what.ends_with("(write)")), "{trace:?}");
}
