use super::*;

/// Calls that no process of ours and no program makes. Containment rules, seccomp.
const NEVER: &[&str] = &[
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "bpf",
    "userfaultfd",
    "perf_event_open",
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "open_by_handle_at",
    "keyctl",
    "add_key",
    "request_key",
    "mount",
    "umount2",
    "pivot_root",
    "chroot",
    "unshare",
    "setns",
    "open_tree",
    "move_mount",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "mount_setattr",
    "init_module",
    "finit_module",
    "delete_module",
    "kexec_load",
    "kexec_file_load",
    "reboot",
    "swapon",
    "swapoff",
    "acct",
    "quotactl",
    "quotactl_fd",
    "settimeofday",
    "clock_settime",
    "clock_adjtime",
    "adjtimex",
    "mbind",
    "set_mempolicy",
    "set_mempolicy_home_node",
    "migrate_pages",
    "move_pages",
    "fanotify_init",
    "fanotify_mark",
    "iopl",
    "ioperm",
    "seccomp",
    "personality",
    "kcmp",
    "pidfd_getfd",
    "process_mrelease",
    "syslog",
    "lookup_dcookie",
    "uselib",
    "modify_ldt",
    "clone3",
];

fn names(role: Role) -> Vec<&'static str> {
    reasons(role).into_iter().map(|(name, _)| name).collect()
}

#[test]
fn no_table_lists_a_call_that_must_stay_denied() {
    for role in Role::ALL {
        for name in names(role) {
            // The two that load a further filter on themselves, and can no more afterwards: sandbox-host when it seals
            // itself, the runner in each child before exec.
            let own_filter = name == "seccomp" && matches!(role, Role::SandboxHost | Role::Runner);
            assert!(own_filter || !NEVER.contains(&name), "{role:?} lists {name}");
        }
    }
}

#[test]
fn every_row_has_a_name_and_a_reason() {
    for role in Role::ALL {
        for (name, why) in reasons(role) {
            assert_ne!(name, "?", "{role:?}: {why}");
            assert!(why.len() > 7, "{role:?}: {name}");
        }
    }
}

#[test]
fn no_row_is_written_twice() {
    for role in Role::ALL {
        let Some(table) = table(role) else { continue };
        let mut seen = Vec::new();
        for rule in table.rules() {
            let row = format!("{} {:?}", rule.call, rule.when);
            assert!(!seen.contains(&row), "{role:?}: {:?}", call_name(rule.call));
            seen.push(row);
        }
    }
}

#[test]
fn a_role_that_is_given_a_socket_makes_none_and_aims_none() {
    for role in [Role::Door, Role::SandboxHost] {
        for call in ["socket", "connect", "bind", "listen", "sendmmsg", "socketpair"] {
            assert!(!names(role).contains(&call), "{role:?} lists {call}");
        }
        let table = table(role).unwrap();
        for rule in table.rules() {
            let free = [libc::SYS_sendto, libc::SYS_sendmsg, libc::SYS_setsockopt, libc::SYS_getsockopt];
            assert!(
                !free.contains(&rule.call) || !rule.when.is_empty(),
                "{role:?}: {:?}",
                call_name(rule.call)
            );
        }
    }
}

#[test]
fn egress_takes_connections_of_listeners_it_was_given_and_makes_none() {
    let listed = names(Role::Egress);
    assert_eq!(listed.iter().filter(|name| **name == "accept4").count(), 1);
    for call in ["listen", "accept", "socketpair", "sendmmsg", "recvmmsg"] {
        assert!(!listed.contains(&call), "{call}");
    }
    for rule in table(Role::Egress).unwrap().rules() {
        // MSG_FASTOPEN connects past Landlock, whichever call carries it.
        let flags = match rule.call {
            libc::SYS_sendto => 3,
            libc::SYS_sendmsg => 2,
            _ => continue,
        };
        let without = without(flags, common::FASTOPEN);
        assert!(rule.when.iter().any(|arg| format!("{arg:?}") == format!("{without:?}")), "{rule:?}");
    }
}

#[test]
fn only_the_runner_starts_programs() {
    for role in Role::ALL {
        let starts = names(role).iter().any(|name| ["execve", "execveat", "fork", "vfork"].contains(name));
        assert_eq!(starts, role == Role::Runner, "{role:?}");
    }
}

#[test]
fn what_programs_are_refused_by_policy_is_in_no_list_of_theirs() {
    let passing: Vec<i64> = inherited::passing(true, true).iter().map(|rule| rule.call).collect();
    for rule in programs::REFUSED {
        assert!(!passing.contains(&rule.call), "{:?}", call_name(rule.call));
    }
    // Their own filter's second part names exactly the extras.
    for rule in programs::EXTRAS {
        let again = passing.iter().filter(|call| **call == rule.call).count();
        assert_eq!(again, 1, "{:?} would stay allowed by another row", call_name(rule.call));
    }
}

#[test]
fn filters_stay_far_below_the_kernels_limit() {
    for role in Role::ALL {
        let program = match table(role) {
            Some(table) => crate::filter::for_table(table).unwrap(),
            None => inherited::runner(true, true).unwrap(),
        };
        assert!(program.len() < 3000, "{role:?}: {} instructions", program.len());
    }
    assert!(inherited::program().unwrap().len() < 64);
}
