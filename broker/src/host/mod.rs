//! The host as a session uses it: directories, ids, cgroups, the workdir, and what it lets an ordinary user do.

pub(crate) mod certificates;
pub(crate) mod cgroup;
pub(crate) mod dirs;
pub(crate) mod ordinary;
pub(crate) mod sweep;
pub(crate) mod uids;
pub(crate) mod workdir;
