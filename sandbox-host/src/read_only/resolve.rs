//! Where a path leads below the work folder, links followed; what does not exist yet keeps its name.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};

/// Links followed on one path, as in the kernel.
const MOST_LINKS: usize = 40;
/// Bytes of the longest path that is looked at (`PATH_MAX`), a link's included.
const LONGEST: usize = 4096;
/// The deepest place that is looked at; the workdir's budget counts no deeper one.
pub(super) const DEEPEST: usize = 256;
/// Components that are looked at for one call, all its paths and their links together: this is done on the thread that serves
/// everybody, for whoever asks, and each component costs a look at the disk.
const MOST_LOOKS: usize = 16_384;

/// What is left of the effort for one call.
#[derive(Debug)]
pub(super) struct Effort(usize);

/// It takes more than that to tell where a path leads.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooMuch;

impl Effort {
    pub(super) fn new() -> Self {
        Effort(MOST_LOOKS)
    }

    fn look(&mut self) -> Result<(), TooMuch> {
        self.0 = self.0.checked_sub(1).ok_or(TooMuch)?;
        Ok(())
    }
}

/// The components below the folder, or `None` for a path that leads out of it. `root` is the folder's path as programs see it:
/// an absolute path below that is one below the folder.
///
/// # Errors
/// [`TooMuch`].
pub(super) fn below(
    folder: &OwnedFd,
    root: &str,
    path: &str,
    effort: &mut Effort,
) -> Result<Option<Vec<String>>, TooMuch> {
    if path.is_empty() {
        return Ok(None);
    }
    let mut resolved: Vec<String> = Vec::new();
    let Some(path) = within(root, path) else { return Ok(None) };
    let mut rest = parts(path)?;
    let mut links = 0;
    while let Some(part) = rest.pop() {
        effort.look()?;
        match part.as_str() {
            "" | "." => {}
            ".." => {
                if resolved.pop().is_none() {
                    return Ok(None);
                }
            }
            _ if resolved.len() == DEEPEST => return Err(TooMuch),
            _ => {
                resolved.push(part);
                let Some(target) = link(folder, &resolved) else { continue };
                links += 1;
                if links > MOST_LINKS {
                    return Ok(None);
                }
                resolved.pop();
                if target.starts_with('/') {
                    resolved.clear();
                }
                let Some(target) = within(root, &target) else { return Ok(None) };
                rest.extend(parts(target)?);
            }
        }
    }
    Ok(Some(resolved))
}

/// A path without the folder's own if it is absolute; `None` if it is absolute and lies elsewhere.
fn within<'p>(root: &str, path: &'p str) -> Option<&'p str> {
    if !path.starts_with('/') {
        return Some(path);
    }
    let rest = path.strip_prefix(root)?;
    (rest.is_empty() || rest.starts_with('/')).then_some(rest)
}

/// Components, the next one last.
fn parts(path: &str) -> Result<Vec<String>, TooMuch> {
    if path.len() > LONGEST {
        return Err(TooMuch);
    }
    Ok(path.rsplit('/').map(str::to_owned).collect())
}

/// What a link says. Everything before it has been resolved, so that only a link put there meanwhile is followed on the way.
fn link(folder: &OwnedFd, components: &[String]) -> Option<String> {
    let path = components.join("/");
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let stat = rustix::fs::statat(folder, path.as_str(), flags).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
        return None;
    }
    let opened = rustix::fs::openat(
        folder,
        path.as_str(),
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .ok()?;
    rustix::fs::readlinkat(opened.as_fd(), c"", Vec::new()).ok()?.into_string().ok()
}
