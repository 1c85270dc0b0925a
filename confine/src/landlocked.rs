//! Landlock: one reviewed table of rights per version, required in full of the version the kernel has.

use std::io;
use std::os::fd::BorrowedFd;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};

use crate::ConfineError;

/// The oldest version our own processes run with. `docs/decisions.md`, Landlock.
pub(crate) const OLDEST: u32 = 2;

/// Rights to read files and list directories.
pub(crate) fn read() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::ReadDir
}

/// Rights on a tree where files are made, changed and removed, but no device, no socket, and nothing is executed.
pub(crate) fn read_write(abi: ABI) -> BitFlags<AccessFs> {
    let rights = read()
        | AccessFs::WriteFile
        | AccessFs::MakeReg
        | AccessFs::MakeDir
        | AccessFs::MakeSym
        | AccessFs::MakeFifo
        | AccessFs::RemoveFile
        | AccessFs::RemoveDir
        | AccessFs::Refer
        | AccessFs::Truncate;
    rights & AccessFs::from_all(abi)
}

/// Which network rights a layer refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Network {
    /// Everything the version knows.
    All,
    /// Making listeners; connecting is another layer's business.
    Bind,
    /// Nothing: a program binds and connects inside its own network namespace.
    Free,
}

/// The version a ruleset is built for.
pub(crate) fn abi() -> Result<(ABI, u32), ConfineError> {
    let version = crate::sys::landlock_version();
    if version < OLDEST {
        let cause =
            io::Error::other(format!("the kernel has version {version}, at least {OLDEST} is needed"));
        return Err(ConfineError { step: "landlock", cause });
    }
    let abi = by_version(version);
    Ok((abi, abi as u32))
}

/// The newest version that kernel and library know.
fn by_version(version: u32) -> ABI {
    match version {
        0 => ABI::Unsupported,
        1 => ABI::V1,
        2 => ABI::V2,
        3 => ABI::V3,
        4 => ABI::V4,
        5 => ABI::V5,
        6 => ABI::V6,
        7 => ABI::V7,
        8 => ABI::V8,
        _ => ABI::V9,
    }
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> ConfineError {
    ConfineError { step: "landlock", cause: io::Error::other(error) }
}

/// Builds and enforces one layer on the calling thread: every file system right of the version is refused except where a
/// rule grants it, and so are the network rights asked for and both scopes.
pub(crate) fn enforce<'a>(
    abi: ABI,
    network: Network,
    rules: impl IntoIterator<Item = (BorrowedFd<'a>, BitFlags<AccessFs>)>,
) -> Result<(), ConfineError> {
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(abi))
        .map_err(failed)?;
    let refused = match network {
        Network::All => AccessNet::from_all(abi),
        Network::Bind => AccessNet::from_all(abi) & AccessNet::BindTcp,
        Network::Free => BitFlags::EMPTY,
    };
    if !refused.is_empty() {
        ruleset = ruleset.handle_access(refused).map_err(failed)?;
    }
    if !Scope::from_all(abi).is_empty() {
        ruleset = ruleset.scope(Scope::from_all(abi)).map_err(failed)?;
    }
    let mut ruleset = ruleset.create().map_err(failed)?;
    for (fd, rights) in rules {
        ruleset = ruleset.add_rule(PathBeneath::new(fd, rights)).map_err(failed)?;
    }
    restrict(ruleset)
}

/// Enforces a layer that lets TCP connect to the given ports only. Below version 4 there is no such right: `Ok(false)`.
pub(crate) fn enforce_ports(abi: ABI, ports: &[u16]) -> Result<bool, ConfineError> {
    let right = AccessNet::from_all(abi) & AccessNet::ConnectTcp;
    if right.is_empty() {
        return Ok(false);
    }
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(right)
        .and_then(Ruleset::create)
        .map_err(failed)?;
    for port in ports {
        ruleset = ruleset.add_rule(NetPort::new(*port, AccessNet::ConnectTcp)).map_err(failed)?;
    }
    restrict(ruleset)?;
    Ok(true)
}

fn restrict(ruleset: landlock::RulesetCreated) -> Result<(), ConfineError> {
    let status = ruleset.restrict_self().map_err(failed)?;
    if status.ruleset == RulesetStatus::FullyEnforced && status.no_new_privs {
        Ok(())
    } else {
        Err(ConfineError { step: "landlock", cause: io::Error::other("not fully enforced") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bits of `LANDLOCK_ACCESS_FS_*`, `LANDLOCK_ACCESS_NET_*` and `LANDLOCK_SCOPE_*` per version, from the kernel's header.
    const MASKS: [(u32, u64, u64, u64); 9] = [
        (1, 0x1fff, 0, 0),
        (2, 0x3fff, 0, 0),
        (3, 0x7fff, 0, 0),
        (4, 0x7fff, 3, 0),
        (5, 0xffff, 3, 0),
        (6, 0xffff, 3, 3),
        (7, 0xffff, 3, 3),
        (8, 0xffff, 3, 3),
        (9, 0x1_ffff, 3, 3),
    ];

    #[test]
    fn the_rights_of_each_version_are_the_kernels() {
        for (version, files, network, scopes) in MASKS {
            let abi = by_version(version);
            assert_eq!(abi as u32, version);
            assert_eq!(AccessFs::from_all(abi).bits(), files, "{version}");
            assert_eq!(AccessNet::from_all(abi).bits(), network, "{version}");
            assert_eq!(Scope::from_all(abi).bits(), scopes, "{version}");
        }
        assert_eq!(by_version(40) as u32, 9, "a newer kernel is asked for what we have reviewed");
    }

    #[test]
    fn a_writable_tree_has_no_right_to_execute_or_to_make_devices_or_sockets() {
        let never = AccessFs::Execute
            | AccessFs::MakeChar
            | AccessFs::MakeBlock
            | AccessFs::MakeSock
            | AccessFs::IoctlDev
            | AccessFs::ResolveUnix;
        for version in 1..=9 {
            let abi = by_version(version);
            assert!((read_write(abi) & never).is_empty(), "{version}");
            assert!(AccessFs::from_all(abi).contains(read_write(abi)), "{version}");
        }
    }
}
