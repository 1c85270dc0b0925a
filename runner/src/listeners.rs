//! Who listens on a port of the session's loopback: socket tables, then the descriptors of a process group.

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use nix::unistd::Pid;

/// Who takes connections to an address.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Listeners {
    /// Nobody.
    Nobody,
    /// Somebody outside the group, perhaps beside it.
    Others,
    /// The group alone, with these sockets.
    Group(BTreeSet<u64>),
}

/// Looks who takes connections to `port` at `address`, which is 127.0.0.1 or ::1: a socket bound to just this address is
/// preferred by the kernel to one bound to any, so the others are not looked at then.
///
/// # Errors
/// The kernel does not tell.
pub(crate) fn listeners(address: IpAddr, port: u16, group: Pid) -> io::Result<Listeners> {
    let mut sockets = Vec::new();
    for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        match std::fs::File::open(table) {
            Ok(file) => listening(BufReader::new(file), port, &mut sockets)?,
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    let inodes = preferred(&sockets, address);
    if inodes.is_empty() {
        return Ok(Listeners::Nobody);
    }
    let held = held_by(group, &inodes)?;
    Ok(if held == inodes { Listeners::Group(inodes) } else { Listeners::Others })
}

/// Reads the listening sockets of a port from a table, which holds them before all others.
fn listening(table: impl BufRead, port: u16, sockets: &mut Vec<(IpAddr, u64)>) -> io::Result<()> {
    for line in table.lines().skip(1) {
        let line = line?;
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (Some(local), Some(state), Some(inode)) = (fields.get(1), fields.get(3), fields.get(9)) else {
            continue;
        };
        if *state != "0A" {
            break;
        }
        if let Some((address, here)) = local.split_once(':')
            && u16::from_str_radix(here, 16) == Ok(port)
            && let (Some(address), Ok(inode)) = (parse_address(address), inode.parse())
        {
            sockets.push((address, inode));
        }
    }
    Ok(())
}

/// An address as the tables write it: words of the network's byte order, printed as numbers of the machine's.
fn parse_address(text: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(text.get(at * 8..at * 8 + 8)?, 16).ok().map(u32::to_ne_bytes);
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let mut bytes = [0; 16];
            for (number, place) in bytes.chunks_exact_mut(4).enumerate() {
                place.copy_from_slice(&word(number)?);
            }
            Some(Ipv6Addr::from(bytes).into())
        }
        _ => None,
    }
}

/// The sockets among which the kernel chooses for a connection to `address`, in its order of preference.
fn preferred(sockets: &[(IpAddr, u64)], address: IpAddr) -> BTreeSet<u64> {
    let any_4 = IpAddr::from(Ipv4Addr::UNSPECIFIED);
    let any_6 = IpAddr::from(Ipv6Addr::UNSPECIFIED);
    // A socket of IPv6 that is bound to any address may take connections over IPv4, too.
    let order: &[IpAddr] = if address.is_ipv4() { &[address, any_4, any_6] } else { &[address, any_6] };
    let bound = |to: IpAddr| -> BTreeSet<u64> {
        let mapped = |at: &IpAddr| if to.is_ipv4() { at.to_canonical() } else { *at };
        sockets.iter().filter(|(at, _)| mapped(at) == to).map(|(_, inode)| *inode).collect()
    };
    order.iter().map(|to| bound(*to)).find(|inodes| !inodes.is_empty()).unwrap_or_default()
}

/// Those of the sockets that a process of the group has open.
fn held_by(group: Pid, inodes: &BTreeSet<u64>) -> io::Result<BTreeSet<u64>> {
    let mut held = BTreeSet::new();
    for entry in std::fs::read_dir("/proc")? {
        let Ok(name) = entry?.file_name().into_string() else { continue };
        let process = Path::new("/proc").join(&name);
        // Whatever ends meanwhile holds nothing.
        if name.bytes().all(|byte| byte.is_ascii_digit()) && group_of(&process) == Some(group) {
            held.extend(sockets_of(&process).into_iter().flatten().filter(|inode| inodes.contains(inode)));
        }
    }
    Ok(held)
}

fn group_of(process: &Path) -> Option<Pid> {
    let bytes = std::fs::read(process.join("stat")).ok()?;
    // The name in parentheses is the process's own and may hold anything.
    let end = bytes.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(bytes.get(end + 1..)?).ok()?;
    rest.split_ascii_whitespace().nth(2)?.parse().ok().map(Pid::from_raw)
}

fn sockets_of(process: &Path) -> io::Result<Vec<u64>> {
    let descriptors = std::fs::read_dir(process.join("fd"))?;
    let targets = descriptors.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let inode = |target: std::path::PathBuf| {
        target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    Ok(targets.filter_map(inode).collect())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

    fn sockets(list: &[(&str, u64)]) -> Vec<(IpAddr, u64)> {
        list.iter().map(|(address, inode)| (address.parse().unwrap(), *inode)).collect()
    }

    #[test]
    fn the_socket_the_kernel_prefers_is_the_one_that_counts() {
        for (list, address, expected) in [
            (&[][..], V4, &[][..]),
            (&[("127.0.0.1", 1), ("0.0.0.0", 2), ("::", 3)], V4, &[1]),
            (&[("0.0.0.0", 2), ("::", 3)], V4, &[2]),
            (&[("::", 3), ("::", 4)], V4, &[3, 4]),
            (&[("::ffff:127.0.0.1", 5), ("127.0.0.1", 1)], V4, &[1, 5]),
            (&[("::1", 6), ("127.0.0.2", 7)], V4, &[]),
            (&[("::1", 6), ("::", 3)], V6, &[6]),
            (&[("::", 3), ("0.0.0.0", 2)], V6, &[3]),
            (&[("0.0.0.0", 2), ("::ffff:0.0.0.0", 8)], V6, &[]),
        ] {
            let expected: BTreeSet<u64> = expected.iter().copied().collect();
            assert_eq!(preferred(&sockets(list), address), expected, "{list:?} {address}");
        }
    }

    #[test]
    fn a_table_is_read_to_the_end_of_its_listening_sockets() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
                     0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 41 1 0 100 0 0 10 0\n\
                     1: 00000000:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 42 1 0 100 0 0 10 0\n\
                     2: 0100007F:1F90 0100007F:9999 01 00000000:00000000 00:00000000 00000000  1000        0 43 1 0 100 0 0 10 0\n";
        let mut found = Vec::new();
        listening(table.as_bytes(), 0x1f90, &mut found).unwrap();
        if cfg!(target_endian = "little") {
            assert_eq!(found, sockets(&[("127.0.0.1", 41)]));
        }
        assert_eq!(
            parse_address("00000000000000000000000001000000").map(|at| at == V6),
            Some(cfg!(target_endian = "little"))
        );
        for odd in ["", "0100007", "0100007G", "é100007F"] {
            assert_eq!(parse_address(odd), None, "{odd}");
        }
    }

    #[test]
    fn a_listener_of_this_process_belongs_to_its_group_and_to_no_other() {
        let listener = TcpListener::bind((V4, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = nix::unistd::getpgrp();
        assert!(matches!(listeners(V4, port, own).unwrap(), Listeners::Group(sockets) if sockets.len() == 1));
        assert_eq!(listeners(V4, port, Pid::from_raw(i32::MAX)).unwrap(), Listeners::Others);
        assert_eq!(listeners(V6, port, own).unwrap(), Listeners::Nobody);
        drop(listener);
        assert_eq!(listeners(V4, port, own).unwrap(), Listeners::Nobody);
    }
}
