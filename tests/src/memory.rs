//! Looking into the memory of processes, as root: which mappings there are, and where bytes stand in them.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// One mapping of a process.
#[derive(Debug, Clone)]
pub struct Mapping {
    /// Its first address.
    pub start: u64,
    /// The address after its last.
    pub end: u64,
    /// Whether it can be read.
    pub readable: bool,
    /// The file or area it maps, as the kernel names it.
    pub name: String,
    /// `VmFlags`, two letters each.
    pub flags: Vec<String>,
}

/// The mappings of a process, from `/proc/<pid>/smaps`; none if it is gone.
#[must_use]
pub fn mappings(pid: i32) -> Vec<Mapping> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    let mut found: Vec<Mapping> = Vec::new();
    for line in text.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            if let Some(last) = found.last_mut() {
                last.flags = flags.split_whitespace().map(str::to_owned).collect();
            }
            continue;
        }
        let mut words = line.split_whitespace();
        let range = words.next().and_then(|range| range.split_once('-'));
        let Some((start, end)) = range else { continue };
        let (Ok(start), Ok(end)) = (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16)) else {
            continue;
        };
        let readable = words.next().is_some_and(|rights| rights.starts_with('r'));
        let name = words.nth(3).unwrap_or_default().to_owned();
        found.push(Mapping { start, end, readable, name, flags: Vec::new() });
    }
    found
}

/// How many bytes of memory of its own, that of no file, a process holds. Counted page by page: `status` says it roughly.
///
/// # Panics
/// If there is no such process.
#[must_use]
pub fn anonymous(pid: i32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("a process");
    let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:")).expect("its memory");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib * 1024
}

/// Reads memory of a process.
///
/// # Errors
/// The error of `/proc/<pid>/mem`.
pub fn read(pid: i32, start: u64, length: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    File::open(format!("/proc/{pid}/mem"))?.read_exact_at(&mut bytes, start)?;
    Ok(bytes)
}

/// What a search through a process saw.
#[derive(Debug, Default)]
pub struct Search {
    /// Mappings that were read.
    pub mappings: usize,
    /// Bytes that were read.
    pub bytes: u64,
    /// Where a needle stands, with the mapping's name.
    pub found: Vec<(u64, String)>,
}

/// Looks for byte strings in everything a process has mapped and can read, its environment and arguments included.
///
/// # Panics
/// If its memory cannot be opened.
#[must_use]
pub fn search(pid: i32, needles: &[&[u8]]) -> Search {
    const PIECE: u64 = 1 << 20;
    let memory =
        File::open(format!("/proc/{pid}/mem")).unwrap_or_else(|error| panic!("memory of {pid}: {error}"));
    let overlap = needles.iter().map(|needle| needle.len() as u64).max().unwrap_or(0);
    let mut search = Search::default();
    let mut buffer = vec![0; usize::try_from(PIECE + overlap).expect("a size")];
    for mapping in mappings(pid) {
        // Pages of devices and of the kernel's own cannot be read.
        if !mapping.readable || mapping.name == "[vvar]" || mapping.name == "[vsyscall]" {
            continue;
        }
        let mut at = mapping.start;
        let mut any = false;
        while at < mapping.end {
            let length = (mapping.end - at).min(PIECE + overlap);
            let piece = &mut buffer[..usize::try_from(length).expect("a size")];
            let Ok(count) = memory.read_at(piece, at) else { break };
            if count == 0 {
                break;
            }
            any = true;
            search.bytes += count as u64;
            for needle in needles {
                let places = find_all(&piece[..count], needle);
                search.found.extend(places.map(|place| (at + place as u64, mapping.name.clone())));
            }
            at += (count as u64).min(PIECE);
        }
        search.mappings += usize::from(any);
    }
    search
}

/// Every place of a needle: its first byte is looked for first, which makes the search as fast as the memory.
fn find_all<'h>(hay: &'h [u8], needle: &'h [u8]) -> impl Iterator<Item = usize> + 'h {
    let last = hay.len().saturating_sub(needle.len());
    hay[..last + 1.min(hay.len())]
        .iter()
        .enumerate()
        .filter(move |(_, byte)| **byte == needle[0])
        .map(|(place, _)| place)
        .filter(move |place| hay[*place..].starts_with(needle))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_this_process_are_found_where_they_stand() {
        let needle: Vec<u8> = (0..32).map(|byte| (byte * 7) ^ 0x5a).collect();
        let pid = i32::try_from(std::process::id()).unwrap();
        let search = search(pid, &[&needle]);
        assert!(search.found.iter().any(|(place, _)| *place == needle.as_ptr().addr() as u64), "{search:?}");
        assert_eq!(read(pid, needle.as_ptr().addr() as u64, 32).unwrap(), needle);
        let before = anonymous(pid);
        let own = vec![1_u8; 8 << 20];
        assert!(anonymous(pid) >= before + (7 << 20), "{before}");
        drop(own);
        assert!(mappings(pid).iter().any(|mapping| mapping.name == "[stack]" && !mapping.flags.is_empty()));
    }
}
