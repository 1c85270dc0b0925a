//! Which limit a program hit, as the real runner tells it. The kernel's counters are files of the test's here; real ones need a
//! host with the controllers (`tests/vm`).

use std::path::{Path, PathBuf};

use ipc::edge::host_runner::{HostToRunner, RunnerToHost};
use ipc::types::{RequestId, ResourceLimit};

use crate::end;
use crate::session::{Request, Session};

/// Kills a session process; the limit its end is told with.
fn killed(session: &mut Session, id: RequestId) -> Option<ResourceLimit> {
    session.host.send(&HostToRunner::Kill { id }).unwrap();
    match session.answer() {
        RunnerToHost::Ended { id: other, resource_limit, .. } if other == id => resource_limit,
        other => panic!("{other:?}"),
    }
}

fn sleep() -> Request<'static> {
    Request { program: "sleep", args: &["600"], ..Request::default() }
}

#[test]
fn a_signal_of_a_limit_names_it() {
    let with = |configure: &mut ipc::edge::control::RunnerConfigure| {
        configure.limits.cpu_seconds = 1;
        configure.limits.file_size = 4096;
    };
    let Some(mut session) = Session::with(2, with) else { return };
    for (what, script, code, limit) in [
        ("spins", "while :; do :; done", 152, Some(ResourceLimit::CpuSeconds)),
        ("fills a file", "exec head -c 8192 /dev/zero >file", 153, Some(ResourceLimit::MaxFileSizeBytes)),
        ("is killed", "kill -9 $$", 137, None),
        ("says the same code", "exit 152", 152, None),
        ("ends well", "true", 0, None),
    ] {
        let output = session.bash(script);
        assert_eq!((output.finished(), output.limit()), ((code, false), limit), "{what}");
    }
    let (id, _pipes) = session.started(Request {
        program: "bash",
        args: &["-c", "exec head -c 8192 /dev/zero >other"],
        ..Request::default()
    });
    match session.answer() {
        RunnerToHost::Ended { id: other, exit_code: 153, killed: false, resource_limit } if other == id => {
            assert_eq!(resource_limit, Some(ResourceLimit::MaxFileSizeBytes));
        }
        other => panic!("{other:?}"),
    }
    end(session);
}

/// Counter files, removed at the end.
struct Counters(PathBuf);

impl Counters {
    fn new() -> Self {
        let name = format!("runner-counters-{}", std::process::id());
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let counters = Counters(directory);
        counters.set("memory.events", "low 0\nmax 0\noom 0\noom_kill 1\n");
        counters.set("pids.events", "max 5\n");
        counters.set("scope", "max 0\n");
        counters.set("current", "9\n");
        counters
    }

    fn set(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).unwrap();
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_counter_of_a_call_names_its_limit_and_one_that_is_shared_only_if_the_call_was_alone() {
    let counters = Counters::new();
    let Some(mut session) = Session::with_counters(2, &counters.0) else { return };
    assert_eq!(session.run(Request::default()).limit(), None, "what was counted before is not of this call");

    // Its answer says that the runner has looked at the counters.
    let hits = |session: &mut Session, change: &dyn Fn()| {
        let (id, _pipes) = session.started(sleep());
        change();
        killed(session, id)
    };
    let memory = || counters.set("memory.events", "oom_kill 2\n");
    assert_eq!(hits(&mut session, &memory), Some(ResourceLimit::CgroupMemoryBytes));
    let scope = || counters.set("scope", "max 1\n");
    assert_eq!(hits(&mut session, &scope), Some(ResourceLimit::CgroupPidsMax));
    let leaf = || counters.set("pids.events", "max 6\n");
    assert_eq!(hits(&mut session, &leaf), Some(ResourceLimit::CgroupPidsMax), "before Linux 6.11");
    let both = || {
        counters.set("memory.events", "oom_kill 3\n");
        counters.set("scope", "max 2\n");
    };
    assert_eq!(hits(&mut session, &both), None, "two are proven");

    counters.set("current", "10\n");
    let refused = session.run(Request::default()).answer;
    assert!(
        matches!(&refused, RunnerToHost::Failed { reason, .. } if reason.contains("cgroup_pids_max")),
        "{refused:?}"
    );
    counters.set("current", "9\n");

    let (other, _pipes) = session.started(sleep());
    let scope = || counters.set("scope", "max 3\n");
    assert_eq!(hits(&mut session, &scope), None, "it may have been the other one's");
    let memory = || counters.set("memory.events", "oom_kill 4\n");
    assert_eq!(hits(&mut session, &memory), Some(ResourceLimit::CgroupMemoryBytes), "its own leaf counts");
    killed(&mut session, other);
    end(session);
}
