//! What a broker that was killed left behind. A session is dead when nobody holds the lock in its run directory; only then
//! are its groups and directories removed. Two brokers on one host never sweep each other.

use std::fs::File;
use std::io;
use std::time::Duration;

use rustix::fs::OFlags;

use super::cgroup;
use super::dirs::Dir;

/// A launch makes its lock file within moments of its directory; after this long it was killed between the two.
const LAUNCH: Duration = Duration::from_secs(60);

/// Name of the lock file in a session's run directory.
const LOCK: &str = "lock";

/// Makes a session's run directory and locks it for as long as the returned file lives.
pub(crate) fn claim(sessions: &Dir, session: &str) -> io::Result<(Dir, File)> {
    let dir = sessions.make_new(session, 0o700)?;
    let lock = dir.file(LOCK, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, 0o600)?;
    lock.try_lock().map_err(io::Error::other)?;
    Ok((dir, lock))
}

/// What became of the remains of one dead session.
pub(crate) type Swept = (String, io::Result<()>);

/// Removes the remains of dead sessions; returns their ids, and why something of one could not be removed. That one is tried
/// again by the next launch, and holds up none.
///
/// The lock is taken first and kept until everything else is gone, and the run directory, by which a dead session is found,
/// goes last: a sweep that is itself killed is finished by the next one.
pub(crate) fn sweep(run: &Dir, state_sessions: &Dir, host: &cgroup::Host) -> io::Result<Vec<Swept>> {
    let mut swept = Vec::new();
    for name in run.names()? {
        let Some(session) = name.to_str().filter(|name| name.starts_with("ses_")) else { continue };
        let Ok(dir) = run.child(session) else { continue };
        let lock = match dir.file(LOCK, OFlags::RDWR, 0) {
            Ok(lock) => lock,
            // Between `mkdir` and the lock file of a launch: of one that goes on, if it is young, else of one that was
            // killed there, before it made anything else.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if dir.age().is_some_and(|age| age > LAUNCH) {
                    run.remove(session)?;
                }
                continue;
            }
            Err(error) => return Err(error),
        };
        if lock.try_lock().is_err() {
            continue;
        }
        let remove = || {
            if let Some(base) = cgroup::base(host) {
                cgroup::kill_and_remove(&base, session)?;
            }
            state_sessions.remove(session)?;
            run.remove(session)
        };
        swept.push((session.to_owned(), remove()));
    }
    Ok(swept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sessions_without_a_living_owner_are_swept() {
        let root = std::env::temp_dir().join(format!("broker-sweep-{}", std::process::id()));
        let run = Dir::base(&root.join("run")).unwrap();
        let sessions = Dir::base(&root.join("sessions")).unwrap();
        let Ok(host) = cgroup::probe() else {
            // Past the capture of the test runner.
            let _ = std::io::Write::write_all(
                &mut std::io::stderr(),
                b"NOT RUN: only_sessions_without_a_living_owner_are_swept: no cgroup v2 hierarchy\n",
            );
            return;
        };
        let living = claim(&run, "ses_living").unwrap();
        drop(claim(&run, "ses_dead").unwrap());
        run.make_new("ses_young", 0o700).unwrap();
        run.make_new("not-a-session", 0o700).unwrap();
        for name in ["ses_living", "ses_dead"] {
            sessions.make_new(name, 0o700).unwrap();
        }
        let swept = || -> Vec<String> {
            let all = sweep(&run, &sessions, &host).unwrap();
            all.into_iter().map(|(session, outcome)| outcome.map(|()| session).unwrap()).collect()
        };
        assert_eq!(swept(), ["ses_dead"]);
        let mut left = run.names().unwrap();
        left.sort();
        assert_eq!(left, ["not-a-session", "ses_living", "ses_young"]);
        assert_eq!(sessions.names().unwrap(), ["ses_living"]);
        drop(living);
        assert_eq!(swept(), ["ses_living"]);
        std::fs::remove_dir_all(root).unwrap();
    }
}
