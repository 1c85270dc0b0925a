//! What a broker that was killed left behind. A session is dead when nobody holds the lock in its run directory; only then
//! are its groups and directories removed. Two brokers on one host never sweep each other.

use std::fs::File;
use std::io;

use rustix::fs::OFlags;

use super::cgroup;
use super::dirs::Dir;

/// Name of the lock file in a session's run directory.
const LOCK: &str = "lock";

/// Makes a session's run directory and locks it for as long as the returned file lives.
pub(crate) fn claim(sessions: &Dir, session: &str) -> io::Result<(Dir, File)> {
    let dir = sessions.make_new(session, 0o700)?;
    let lock = dir.file(LOCK, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, 0o600)?;
    lock.try_lock().map_err(io::Error::other)?;
    Ok((dir, lock))
}

/// Removes the remains of dead sessions; returns their ids.
///
/// The lock is taken first and kept until everything else is gone, and the run directory, by which a dead session is found,
/// goes last: a sweep that is itself killed is finished by the next one.
pub(crate) fn sweep(run: &Dir, state_sessions: &Dir, host: &cgroup::Host) -> io::Result<Vec<String>> {
    let mut swept = Vec::new();
    for name in run.names()? {
        let Some(session) = name.to_str().filter(|name| name.starts_with("ses_")) else { continue };
        let Ok(dir) = run.child(session) else { continue };
        let lock = match dir.file(LOCK, OFlags::RDWR, 0) {
            Ok(lock) => lock,
            // Between `mkdir` and the lock file of a launch that goes on, or of one that was killed there: a launch that
            // lives makes its lock file within moments, so leave it to the next sweep.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        if lock.try_lock().is_err() {
            continue;
        }
        if let Some(base) = cgroup::base(host) {
            cgroup::kill_and_remove(&base, session)?;
        }
        state_sessions.remove(session)?;
        run.remove(session)?;
        swept.push(session.to_owned());
    }
    Ok(swept)
}
