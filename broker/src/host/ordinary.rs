//! What the broker of an ordinary user needs of the host. It is looked for by trying it, before anything is made, and the
//! first piece that is missing is named with what would bring it.

use std::io;
use std::path::Path;

use confine::ConfineError;
use rustix::fs::Access;

use super::cgroup;
use super::uids::Id;
use crate::cli::Cli;
use crate::refusal::Refusal;

/// How one gets a group of one's own.
const DELEGATE: &str =
    "start it in one: systemd-run --user --scope -p Delegate=yes broker …; or start it as root";

/// The user whose session this is. Every process of it has this id.
#[derive(Debug)]
pub(crate) struct User {
    /// Uid and gid.
    pub(crate) id: Id,
    /// Supplementary groups as the session's user namespace shows them; nobody can give them up there.
    pub(crate) groups: Vec<u32>,
    /// What lets the user make the namespace, in the words of `session_start`.
    pub(crate) grant: &'static str,
}

/// What a broker does first: that of an ordinary user moves to that user's places and enters the session's user namespace.
///
/// # Errors
/// Those of both.
pub(crate) fn enter_unless_root(cli: &mut Cli) -> Result<Option<User>, Refusal> {
    if nix::unistd::geteuid().is_root() {
        return Ok(None);
    }
    cli.move_to_the_user(|name| std::env::var_os(name))?;
    enter().map(Some)
}

/// Looks for everything, then enters the session's user namespace. Call it while the process has one thread.
///
/// # Errors
/// `E-CAP-003` for namespaces, `E-RUN-012` for the control group, each naming the piece, the reason and the remedy.
fn enter() -> Result<User, Refusal> {
    let id = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
    probe(id)?;
    let grant = grant(sysctl("kernel/apparmor_restrict_unprivileged_userns").as_deref());
    confine::userns::enter().map_err(|error| namespaces(&error, sysctl))?;
    let groups = confine::userns::own_groups().map_err(|error| Refusal::io("/proc/self/status", &error))?;
    Ok(User { id, groups, grant })
}

/// It worked, so whatever restricts others lets this broker.
fn grant(apparmor: Option<&str>) -> &'static str {
    match apparmor {
        None => "apparmor_absent",
        Some("0") => "restriction_disabled_host_wide",
        Some(_) => "profile_confining",
    }
}

/// Tries everything.
fn probe((uid, gid): Id) -> Result<(), Refusal> {
    // Real and effective ids are one, and none is what a namespace shows for ids it does not know.
    let real = (nix::unistd::getuid().as_raw(), nix::unistd::getgid().as_raw());
    let unknown = |name: &str| sysctl(name).and_then(|id| id.parse().ok()).unwrap_or(NOBODY);
    if real != (uid, gid) || gid == 0 || uid == unknown("kernel/overflowuid") {
        return Err(Refusal::new(
            "E-IO-002",
            format!("broker as uid {uid}, gid {gid}"),
            "a session needs a user and a group that are neither root nor nobody",
        )
        .hint("start it as an ordinary user, or as root"));
    }
    confine::userns::try_out().map_err(|error| namespaces(&error, sysctl))?;
    let (_, own) = cgroup::places()?;
    may_divide(&own).map_err(|why| {
        Refusal::new("E-RUN-012", format!("cgroup v2 group {}", own.display()), why).hint(DELEGATE)
    })
}

fn sysctl(name: &str) -> Option<String> {
    let path = Path::new("/proc/sys").join(name);
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

/// The decision was the attempt's; what the host says of itself only chooses the words.
fn namespaces(error: &ConfineError, sysctl: impl Fn(&str) -> Option<String>) -> Refusal {
    let is = |name: &str, value: &str| sysctl(name).is_some_and(|found| found == value);
    let refuse = |what: &str, reason: &str, hint: &str| {
        let reason = format!("{reason} ({error})");
        Refusal::new("E-CAP-003", what, reason).hint(format!("{hint}, or start the broker as root"))
    };
    let users = "user namespaces for ordinary users";
    let about_users = matches!(error.step, "user namespace" | "nested user namespace" | "id maps");
    if about_users && is("kernel/unprivileged_userns_clone", "0") {
        return refuse(
            users,
            "kernel.unprivileged_userns_clone is 0",
            "sysctl kernel.unprivileged_userns_clone=1",
        );
    }
    if about_users && is("user/max_user_namespaces", "0") {
        return refuse(users, "user.max_user_namespaces is 0", "sysctl user.max_user_namespaces=10000");
    }
    // It lets one make the namespace and refuses what a namespace is for.
    if is("kernel/apparmor_restrict_unprivileged_userns", "1") {
        return refuse(
            users,
            "AppArmor restricts them (kernel.apparmor_restrict_unprivileged_userns is 1)",
            "load an AppArmor profile for the broker that says `userns,`",
        );
    }
    match error.step {
        _ if about_users && error.cause.raw_os_error() == Some(ENOSPC) => {
            refuse(users, "no more of them may be made", "raise user.max_user_namespaces")
        }
        _ if about_users => refuse(
            users,
            "the kernel or a container's filter refuses them",
            "allow unshare and clone with CLONE_NEWUSER",
        ),
        "procfs" => refuse(
            "a procfs of the programs' own",
            "the kernel mounts none where parts of the host's /proc are covered, as containers do",
            "leave /proc uncovered (systempaths=unconfined)",
        ),
        "namespaces" | "mount namespace" => refuse(
            "namespaces in a user namespace",
            "the kernel makes none",
            "raise the limits user.max_*_namespaces",
        ),
        "mount propagation" | "private root" => refuse(
            "mounts in a user namespace",
            "a policy of the host refuses them",
            "allow mount, fsopen, move_mount and pivot_root",
        ),
        _ => refuse("namespaces for ordinary users", "they cannot be tried", "free memory and processes"),
    }
}

/// The id that stands for all that a namespace does not know, where the host does not say another.
const NOBODY: u32 = 65_534;

/// No room: what the kernel says of one namespace too many.
const ENOSPC: i32 = 28;

/// Whether a group is the caller's to divide: its files may be written, and nobody else runs in it, for a group with
/// processes passes no controller on.
///
/// # Errors
/// Why not, in words.
pub(crate) fn may_divide(group: &Path) -> Result<(), String> {
    let writable = |path: &Path| {
        rustix::fs::access(path, Access::WRITE_OK).map_err(|errno| {
            format!("it is not delegated to you: {}: {}", path.display(), io::Error::from(errno))
        })
    };
    writable(group)?;
    for file in ["cgroup.procs", "cgroup.subtree_control"] {
        writable(&group.join(file))?;
    }
    let processes = std::fs::read_to_string(group.join("cgroup.procs"))
        .map_err(|error| format!("its processes cannot be read: {error}"))?;
    let own = std::process::id().to_string();
    match processes.lines().find(|pid| *pid != own) {
        Some(other) => Err(format!("the broker must be alone in it, and process {other} is there, too")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(step: &'static str, errno: i32) -> ConfineError {
        ConfineError { step, cause: io::Error::from_raw_os_error(errno) }
    }

    #[test]
    fn what_is_missing_is_named_with_reason_and_remedy() {
        const CLONE: &str = "kernel/unprivileged_userns_clone";
        const MOST: &str = "user/max_user_namespaces";
        const APPARMOR: &str = "kernel/apparmor_restrict_unprivileged_userns";
        for (step, errno, setting, expected) in [
            ("user namespace", 1, (CLONE, "0"), ["clone is 0", "sysctl kernel.unprivileged_userns_clone=1"]),
            (
                "user namespace",
                ENOSPC,
                (MOST, "0"),
                ["max_user_namespaces is 0", "user.max_user_namespaces=10000"],
            ),
            ("user namespace", ENOSPC, (MOST, "5"), ["no more", "raise user.max_user_namespaces"]),
            ("nested user namespace", ENOSPC, (MOST, "1"), ["no more", "raise user.max_user_namespaces"]),
            ("user namespace", 1, (CLONE, "1"), ["container's filter", "CLONE_NEWUSER"]),
            ("mount propagation", 13, (APPARMOR, "1"), ["AppArmor", "`userns,`"]),
            ("mount propagation", 13, (APPARMOR, "0"), ["a policy", "allow mount"]),
            ("procfs", 1, (CLONE, "1"), ["covered", "systempaths=unconfined"]),
            ("namespaces", ENOSPC, (CLONE, "1"), ["makes none", "user.max_*_namespaces"]),
            ("trial", 11, (CLONE, "1"), ["cannot be tried", "free memory"]),
        ] {
            let settings = |name: &str| (name == setting.0).then(|| setting.1.to_owned());
            let refusal = namespaces(&failed(step, errno), settings);
            let text = refusal.to_string();
            assert_eq!(refusal.code, "E-CAP-003", "{text}");
            assert!(expected.iter().all(|part| text.contains(part)), "{step}: {text}");
            assert!(text.contains("as root") && text.contains(&format!("os error {errno}")), "{text}");
        }
    }

    #[test]
    fn a_group_is_divided_only_by_who_may_write_it_and_is_alone_there() {
        let group = std::env::temp_dir().join(format!("broker-group-{}", std::process::id()));
        std::fs::create_dir_all(&group).unwrap();
        let write = |name: &str, text: String| std::fs::write(group.join(name), text).unwrap();
        assert!(may_divide(&group).unwrap_err().contains("cgroup.procs"));
        write("cgroup.procs", format!("{}\n", std::process::id()));
        assert!(may_divide(&group).unwrap_err().contains("cgroup.subtree_control"));
        write("cgroup.subtree_control", String::new());
        assert_eq!(may_divide(&group), Ok(()));
        write("cgroup.procs", format!("{}\n1\n", std::process::id()));
        assert!(may_divide(&group).unwrap_err().contains("process 1 is there"));
        std::fs::remove_dir_all(group).unwrap();
    }
}
