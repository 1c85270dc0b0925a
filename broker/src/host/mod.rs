//! The host as a session uses it: directories, ids, cgroups, the workdir.

pub(crate) mod cgroup;
pub(crate) mod dirs;
pub(crate) mod sweep;
pub(crate) mod uids;
pub(crate) mod workdir;
