//! The system calls of each process as data: call, condition on its arguments, and the reason, which names the caller.
//!
//! A row is added in one line: `allow(SYS_…, "who calls it and why")`, or `when(SYS_…, &[condition], "…")` if only some
//! arguments are needed. Several rows of one call are alternatives. A row without a reason does not compile.

pub(crate) mod broker;
pub(crate) mod common;
pub(crate) mod compiler;
pub(crate) mod door;
pub(crate) mod egress;
pub(crate) mod fileserver;
pub(crate) mod host;
pub(crate) mod inherited;
mod names;
pub(crate) mod programs;

use seccompiler::{SeccompCmpArgLen, SeccompCmpOp, SeccompCondition};

use crate::Role;
pub use names::call_name;

/// A condition on one argument of a call. Pointers are never looked behind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arg {
    index: u8,
    test: Test,
}

#[derive(Debug, Clone, Copy)]
enum Test {
    /// The low 32 bits are this.
    Is(u32),
    /// The low 32 bits are anything but this.
    IsNot(u32),
    /// All 64 bits are zero.
    Null,
    /// The low 32 bits, reduced to the mask, are this.
    Bits { mask: u32, value: u32 },
}

/// Argument `index` is exactly `value` (as the kernel sees an `int`).
pub(crate) const fn is(index: u8, value: i32) -> Arg {
    Arg { index, test: Test::Is(value.cast_unsigned()) }
}

/// Argument `index` is anything but `value`.
pub(crate) const fn is_not(index: u8, value: i32) -> Arg {
    Arg { index, test: Test::IsNot(value.cast_unsigned()) }
}

/// Argument `index` is a null pointer.
pub(crate) const fn null(index: u8) -> Arg {
    Arg { index, test: Test::Null }
}

/// Argument `index` has none of these bits.
pub(crate) const fn without(index: u8, mask: i32) -> Arg {
    Arg { index, test: Test::Bits { mask: mask.cast_unsigned(), value: 0 } }
}

/// Argument `index` has all of these bits.
pub(crate) const fn with(index: u8, mask: i32) -> Arg {
    let mask = mask.cast_unsigned();
    Arg { index, test: Test::Bits { mask, value: mask } }
}

/// Argument `index`, reduced to `mask`, is `value`.
pub(crate) const fn masked(index: u8, mask: i32, value: i32) -> Arg {
    Arg { index, test: Test::Bits { mask: mask.cast_unsigned(), value: value.cast_unsigned() } }
}

impl Arg {
    fn condition(self) -> Result<SeccompCondition, seccompiler::BackendError> {
        use SeccompCmpArgLen::{Dword, Qword};
        let (length, test, value) = match self.test {
            Test::Is(value) => (Dword, SeccompCmpOp::Eq, value.into()),
            Test::IsNot(value) => (Dword, SeccompCmpOp::Ne, value.into()),
            Test::Null => (Qword, SeccompCmpOp::Eq, 0),
            Test::Bits { mask, value } => (Dword, SeccompCmpOp::MaskedEq(mask.into()), value.into()),
        };
        SeccompCondition::new(self.index, length, test, value)
    }
}

/// One row of a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rule {
    pub(crate) call: i64,
    pub(crate) when: &'static [Arg],
    pub(crate) why: &'static str,
}

impl Rule {
    pub(crate) fn conditions(&self) -> Result<Vec<SeccompCondition>, seccompiler::BackendError> {
        self.when.iter().map(|arg| arg.condition()).collect()
    }
}

/// A row for a call whatever its arguments.
#[allow(clippy::panic, reason = "evaluated when the tables are compiled")]
pub(crate) const fn allow(call: libc::c_long, why: &'static str) -> Rule {
    assert!(why.len() > 7, "a rule needs a reason that names its caller");
    Rule { call, when: &[], why }
}

/// A row for a call with these arguments.
#[allow(clippy::panic, reason = "evaluated when the tables are compiled")]
pub(crate) const fn when(call: libc::c_long, when: &'static [Arg], why: &'static str) -> Rule {
    assert!(why.len() > 7, "a rule needs a reason that names its caller");
    assert!(!when.is_empty(), "a rule without a condition is an `allow`");
    Rule { call, when, why }
}

/// Rows that several processes share, or one process's own.
pub(crate) type Group = &'static [Rule];

/// The policy of one of our own processes: everything else ends it (the runner's is [`programs`]).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Table {
    /// What it may call.
    pub(crate) groups: &'static [Group],
    /// What answers ENOSYS, so that a library takes its other way.
    pub(crate) absent: Group,
}

impl Table {
    pub(crate) fn rules(&self) -> impl Iterator<Item = &'static Rule> {
        self.groups.iter().flat_map(|group| group.iter())
    }
}

/// The table of a role; `None` for the runner, whose filter is its programs'.
pub(crate) fn table(role: Role) -> Option<&'static Table> {
    match role {
        Role::Door => Some(&door::TABLE),
        Role::Fileserver => Some(&fileserver::TABLE),
        Role::SandboxHost => Some(&host::TABLE),
        Role::Egress => Some(&egress::TABLE),
        Role::Compiler => Some(&compiler::TABLE),
        Role::Runner => None,
    }
}

/// Every call a role may make with the reason, one entry per row, in the order of its table: for documents and tests. The
/// runner's are its programs', too.
#[must_use]
pub fn reasons(role: Role) -> Vec<(&'static str, &'static str)> {
    let rules = match table(role) {
        Some(table) => table.rules().copied().collect(),
        None => inherited::passing(true, true),
    };
    rules.iter().map(|rule| (call_name(rule.call).unwrap_or("?"), rule.why)).collect()
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
