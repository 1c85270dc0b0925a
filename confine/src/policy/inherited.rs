//! Puts the programs' tables together: the filter the runner loads and its programs inherit, and the one a program adds.

use seccompiler::{BpfProgram, SeccompAction};

use super::programs::{
    ALLOWED, CONDITIONAL, EXTRAS, FAMILIES_OF_SOCKETS, MEMORY_FILES, NO_UNIX_SOCKETS, REFUSED, UNIX_SOCKETS,
};
use super::{Rule, allow};
use crate::ConfineError;
use crate::filter::{Layer, build};

const fn errno(number: i32) -> SeccompAction {
    SeccompAction::Errno(number.cast_unsigned())
}

/// Every row that lets a call pass on the runner.
pub(crate) fn passing(memory_files: bool, unix_sockets: bool) -> Vec<Rule> {
    let mut rules = Vec::new();
    for family in ALLOWED {
        rules.extend(family.calls.iter().map(|call| Rule { call: *call, when: &[], why: family.why }));
    }
    rules.extend_from_slice(CONDITIONAL);
    rules.extend_from_slice(EXTRAS);
    if memory_files {
        rules.extend_from_slice(MEMORY_FILES);
    }
    if unix_sockets {
        rules.extend_from_slice(UNIX_SOCKETS);
    }
    rules
}

/// The filter of the runner and, inherited, of every program.
pub(crate) fn runner(memory_files: bool, unix_sockets: bool) -> Result<BpfProgram, ConfineError> {
    let passing = passing(memory_files, unix_sockets);
    let mut refused = REFUSED.to_vec();
    // A call that some arguments may pass is policy with the others, not absence.
    for rule in passing.iter().filter(|rule| !rule.when.is_empty()) {
        refused.push(allow(rule.call, "listed with other arguments"));
    }
    let no_unix = if unix_sockets { &[][..] } else { NO_UNIX_SOCKETS };
    let families = no_unix.iter().chain(FAMILIES_OF_SOCKETS).collect();
    let layers = [
        Layer { action: errno(libc::EACCES), rules: families },
        Layer { action: SeccompAction::Allow, rules: passing.iter().collect() },
        Layer { action: errno(libc::EPERM), rules: refused.iter().collect() },
    ];
    build(&layers, &errno(libc::ENOSYS))
}

/// What a program adds before exec: the runner's extras are gone. A kernel without Landlock answers ENOSYS, and programs
/// that would restrict themselves go on then.
pub(crate) fn program() -> Result<BpfProgram, ConfineError> {
    let gone: Vec<Rule> = EXTRAS.iter().map(|rule| Rule { when: &[], ..*rule }).collect();
    let (policy, absent) = gone.iter().partition(|rule| rule.call == libc::SYS_seccomp);
    let layers = [
        Layer { action: errno(libc::EPERM), rules: policy },
        Layer { action: errno(libc::ENOSYS), rules: absent },
    ];
    build(&layers, &SeccompAction::Allow)
}
