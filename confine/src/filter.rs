//! From tables to BPF: seccompiler compiles small runs of calls, and this file arranges them as a tree, because a linear
//! list of a hundred calls costs a third of a millisecond at load.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, SeccompRule, TargetArch, sock_filter};

use crate::ConfineError;
use crate::policy::Rule;

/// Calls per leaf of the tree.
const RUN: usize = 6;
/// Means "ask the next layer" while a program is put together; replaced before it is used. No such errno exists.
const NEXT: u32 = 0xfffe;
/// Set in the number of a call that is made in the x32 way, which no table lists.
const X32: u32 = 0x4000_0000;

const LOAD: u16 = 0x20;
const JUMP: u16 = 0x05;
const JUMP_IF_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;
/// `offsetof(struct seccomp_data, nr)`.
const NUMBER: u32 = 0;

/// What is answered to the calls of some rows, if their conditions hold.
#[derive(Debug, Clone)]
pub(crate) struct Layer<'a> {
    pub(crate) action: SeccompAction,
    pub(crate) rules: Vec<&'a Rule>,
}

fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

fn failed(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ConfineError {
    ConfineError { step: "seccomp filter", cause: io::Error::other(cause) }
}

fn architecture() -> Result<TargetArch, ConfineError> {
    std::env::consts::ARCH.try_into().map_err(failed)
}

/// Builds one program: the first layer with a row that matches answers, `otherwise` answers the rest. A foreign
/// architecture ends the process.
pub(crate) fn build(layers: &[Layer<'_>], otherwise: &SeccompAction) -> Result<BpfProgram, ConfineError> {
    let mut program = vec![
        instruction(LOAD, 0, 0, NUMBER),
        instruction(JUMP_IF_AT_LEAST, 0, 1, X32),
        instruction(RETURN, 0, 0, refusal(otherwise)),
    ];
    for layer in layers {
        let mut rules: BTreeMap<i64, Vec<&Rule>> = BTreeMap::new();
        for rule in &layer.rules {
            rules.entry(rule.call).or_default().push(rule);
        }
        let rules: Vec<_> = rules.into_iter().collect();
        let mut part = tree(&rules, &layer.action)?;
        let length = part.len();
        for (index, instruction) in part.iter_mut().enumerate() {
            if instruction.code == RETURN && instruction.k == u32::from(SeccompAction::Errno(NEXT)) {
                instruction.code = JUMP;
                instruction.k = u32::try_from(length - index - 1).map_err(failed)?;
            }
        }
        program.append(&mut part);
    }
    program.push(instruction(RETURN, 0, 0, otherwise.clone().into()));
    Ok(program)
}

/// What an x32 call gets: what unknown calls get, or ENOSYS where unknown calls pass.
fn refusal(otherwise: &SeccompAction) -> u32 {
    match otherwise {
        SeccompAction::Allow => SeccompAction::Errno(libc::ENOSYS.cast_unsigned()).into(),
        other => other.clone().into(),
    }
}

fn tree(rules: &[(i64, Vec<&Rule>)], action: &SeccompAction) -> Result<BpfProgram, ConfineError> {
    if rules.len() <= RUN {
        return leaf(rules, action);
    }
    let (low, high) = rules.split_at(rules.len() / 2);
    let first = high.first().map_or(0, |(call, _)| *call);
    let mut low = tree(low, action)?;
    let mut high = tree(high, action)?;
    let mut program = vec![
        instruction(LOAD, 0, 0, NUMBER),
        instruction(JUMP_IF_AT_LEAST, 0, 1, u32::try_from(first).map_err(failed)?),
        instruction(JUMP, 0, 0, u32::try_from(low.len()).map_err(failed)?),
    ];
    program.append(&mut low);
    program.append(&mut high);
    Ok(program)
}

fn leaf(rules: &[(i64, Vec<&Rule>)], action: &SeccompAction) -> Result<BpfProgram, ConfineError> {
    let mut calls = BTreeMap::new();
    for (call, rows) in rules {
        let mut alternatives = Vec::new();
        // A row without a condition makes the others of its call superfluous.
        if rows.iter().all(|row| !row.when.is_empty()) {
            for row in rows {
                let conditions = row.conditions().map_err(failed)?;
                alternatives.push(SeccompRule::new(conditions).map_err(failed)?);
            }
        }
        calls.insert(*call, alternatives);
    }
    let filter = SeccompFilter::new(calls, SeccompAction::Errno(NEXT), action.clone(), architecture()?);
    filter.and_then(BpfProgram::try_from).map_err(failed)
}

/// Loads a filter on the calling thread, which it then holds for ever.
pub(crate) fn load(program: &BpfProgram) -> Result<(), ConfineError> {
    seccompiler::apply_filter(program).map_err(failed)
}

/// Loads a filter on every thread of the process, or on none.
pub(crate) fn load_everywhere(program: &BpfProgram) -> Result<(), ConfineError> {
    seccompiler::apply_filter_all_threads(program).map_err(failed)
}

/// The filter of one of our own processes: what its table does not list ends it.
pub(crate) fn for_table(table: &crate::policy::Table) -> Result<BpfProgram, ConfineError> {
    let layers = [
        Layer {
            action: SeccompAction::Errno(libc::ENOSYS.cast_unsigned()),
            rules: table.absent.iter().collect(),
        },
        Layer { action: SeccompAction::Allow, rules: table.rules().collect() },
    ];
    build(&layers, &SeccompAction::Trap)
}
