//! The few fields of a 64-bit little-endian ELF file that tell what it loads. Every number is bounded before it is used.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The most program headers that are looked at.
const HEADERS: usize = 128;
/// The most bytes of a dynamic section.
const DYNAMIC: u64 = 64 * 1024;
/// The most bytes of a string table.
const STRINGS: u64 = 4 * 1024 * 1024;
/// The most libraries one file names.
const NEEDED: usize = 256;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_STRSZ: u64 = 10;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;

/// `e_machine`.
pub(crate) type Machine = u16;

/// What a file says it loads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Elf {
    pub(crate) machine: Machine,
    pub(crate) interpreter: Option<PathBuf>,
    pub(crate) needed: Vec<PathBuf>,
    pub(crate) r_path: Vec<PathBuf>,
    pub(crate) run_path: Vec<PathBuf>,
}

struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    size: u64,
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    number(bytes, at).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    number(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    number(bytes, at).map(u64::from_le_bytes)
}

fn part(file: &File, offset: u64, size: u64, most: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(size.min(most)).ok()?];
    file.read_exact_at(&mut bytes, offset).ok()?;
    Some(bytes)
}

/// A NUL-terminated string; `None` without its end.
fn string(bytes: &[u8], at: u64) -> Option<PathBuf> {
    let rest = bytes.get(usize::try_from(at).ok()?..)?;
    let end = rest.iter().position(|byte| *byte == 0)?;
    Some(PathBuf::from(OsStr::from_bytes(rest.get(..end)?)))
}

fn path_list(bytes: &[u8], at: u64) -> Vec<PathBuf> {
    let Some(list) = string(bytes, at) else { return Vec::new() };
    let entries = list.as_os_str().as_bytes().split(|byte| *byte == b':');
    entries.filter(|entry| !entry.is_empty()).map(|entry| PathBuf::from(OsStr::from_bytes(entry))).collect()
}

impl Elf {
    /// Reads a file; `None` if it is no 64-bit little-endian ELF file or ends too early.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        let file = File::open(path).ok()?;
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let header = part(&file, 0, 64, 64)?;
        if !header.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        let mut elf = Elf { machine: u16_at(&header, 18)?, ..Elf::default() };
        let segments = segments(&file, &header)?;
        if let Some(place) = segments.iter().find(|segment| segment.kind == PT_INTERP) {
            elf.interpreter = string(&part(&file, place.offset, place.size, 4096)?, 0);
        }
        let Some(place) = segments.iter().find(|segment| segment.kind == PT_DYNAMIC) else {
            return Some(elf);
        };
        elf.dynamic(&file, &segments, &part(&file, place.offset, place.size, DYNAMIC)?);
        Some(elf)
    }

    fn dynamic(&mut self, file: &File, segments: &[Segment], section: &[u8]) -> Option<()> {
        let entries = || {
            let pairs = section.chunks_exact(16);
            pairs
                .filter_map(|pair| Some((u64_at(pair, 0)?, u64_at(pair, 8)?)))
                .take_while(|(tag, _)| *tag != DT_NULL)
        };
        let value = |wanted| entries().find(|(tag, _)| *tag == wanted).map(|(_, value)| value);
        let table = offset_of(segments, value(DT_STRTAB)?)?;
        let strings = part(file, table, value(DT_STRSZ)?, STRINGS)?;
        for (tag, value) in entries() {
            match tag {
                DT_NEEDED if self.needed.len() < NEEDED => self.needed.extend(string(&strings, value)),
                DT_RPATH => self.r_path = path_list(&strings, value),
                DT_RUNPATH => self.run_path = path_list(&strings, value),
                _ => {}
            }
        }
        Some(())
    }
}

fn segments(file: &File, header: &[u8]) -> Option<Vec<Segment>> {
    let (size, count) = (usize::from(u16_at(header, 54)?), usize::from(u16_at(header, 56)?));
    if size < 56 || count > HEADERS {
        return None;
    }
    let table = part(file, u64_at(header, 32)?, (size * count) as u64, u64::MAX)?;
    let mut segments = Vec::new();
    for entry in table.chunks_exact(size) {
        segments.push(Segment {
            kind: u32_at(entry, 0)?,
            offset: u64_at(entry, 8)?,
            address: u64_at(entry, 16)?,
            size: u64_at(entry, 32)?,
        });
    }
    Some(segments)
}

/// Where in the file an address of the loaded image comes from.
fn offset_of(segments: &[Segment], address: u64) -> Option<u64> {
    segments.iter().filter(|segment| segment.kind == PT_LOAD).find_map(|segment| {
        let inside = address.checked_sub(segment.address)?;
        if inside < segment.size { segment.offset.checked_add(inside) } else { None }
    })
}
