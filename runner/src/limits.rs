//! Which limit a program hit, where the kernel's own counters or the signal that ended it prove exactly one.
//!
//! A leaf is one call's alone, so what the kernel killed for memory in it was of that call. A refused fork is counted at the
//! scope of all programs (before Linux 6.11: at the leaf that forked), and speaks of a call only while no other one ran
//! (`docs/decisions.md`, attribution).

use ipc::types::ResourceLimit;
use nix::sys::signal::Signal;

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exit {
    /// 128 + n for signal n.
    pub(crate) code: i32,
    /// The signal that ended it, if one did.
    pub(crate) signal: Option<Signal>,
}

/// Counters of refusals, as far as the host has the controllers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// `oom_kill` of the leaf's `memory.events`.
    pub(crate) memory: Option<u64>,
    /// `max` of `pids.events`, of the leaf and of the scope together.
    pub(crate) pids: Option<u64>,
}

/// What is known of a call's limits when it starts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Before {
    pub(crate) counters: Counters,
    /// How many calls had taken a leaf, this one included.
    pub(crate) taken: u64,
    /// No other call was there.
    pub(crate) alone: bool,
}

/// The one limit that is proven to have been hit; `now` and `taken` are of the moment its leaf was found empty.
pub(crate) fn proven(
    before: &Before,
    now: Counters,
    taken: u64,
    signal: Option<Signal>,
) -> Option<ResourceLimit> {
    match signal {
        Some(Signal::SIGXCPU) => return Some(ResourceLimit::CpuSeconds),
        Some(Signal::SIGXFSZ) => return Some(ResourceLimit::MaxFileSizeBytes),
        _ => {}
    }
    let grew = |then: Option<u64>, now: Option<u64>| matches!((then, now), (Some(a), Some(b)) if b > a);
    let memory = grew(before.counters.memory, now.memory);
    let alone = before.alone && before.taken == taken;
    let pids = alone && grew(before.counters.pids, now.pids);
    match (memory, pids) {
        (true, false) => Some(ResourceLimit::CgroupMemoryBytes),
        (false, true) => Some(ResourceLimit::CgroupPidsMax),
        (true, true) | (false, false) => None,
    }
}

/// The value of one line of a control file of the form `name value`.
pub(crate) fn value(text: &[u8], name: &str) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(memory: u64, pids: u64) -> Counters {
        Counters { memory: Some(memory), pids: Some(pids) }
    }

    #[test]
    fn a_limit_is_named_only_when_one_alone_is_proven() {
        let before = Before { counters: counters(3, 7), taken: 5, alone: true };
        let of = |now, taken, signal| proven(&before, now, taken, signal);
        assert_eq!(of(counters(3, 7), 5, None), None);
        assert_eq!(of(counters(3, 7), 5, Some(Signal::SIGKILL)), None);
        assert_eq!(of(counters(3, 7), 5, Some(Signal::SIGXCPU)), Some(ResourceLimit::CpuSeconds));
        assert_eq!(of(counters(3, 7), 5, Some(Signal::SIGXFSZ)), Some(ResourceLimit::MaxFileSizeBytes));
        assert_eq!(of(counters(4, 7), 5, Some(Signal::SIGKILL)), Some(ResourceLimit::CgroupMemoryBytes));
        assert_eq!(of(counters(3, 8), 5, None), Some(ResourceLimit::CgroupPidsMax));
        assert_eq!(of(counters(4, 8), 5, None), None, "two are proven");
        assert_eq!(of(counters(3, 8), 6, None), None, "another call came");
        assert_eq!(of(counters(4, 8), 6, None), Some(ResourceLimit::CgroupMemoryBytes));
        assert_eq!(of(Counters::default(), 5, None), None, "no controller");
        let crowded = Before { alone: false, ..before };
        assert_eq!(proven(&crowded, counters(3, 8), 5, None), None, "another call was there");
    }

    #[test]
    fn a_counter_is_read_from_its_own_line() {
        let text = b"low 1\nmax 2\noom 3\noom_kill 4\noom_group_kill 5\n";
        assert_eq!(value(text, "oom_kill"), Some(4));
        assert_eq!(value(text, "max"), Some(2));
        assert_eq!(value(b"maxx 2\n", "max"), None);
        assert_eq!(value(b"max two\n", "max"), None);
        assert_eq!(value(b"\xff", "max"), None);
    }
}
