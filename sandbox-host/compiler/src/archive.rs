//! What is in a `.mur.zip`: its `murmur.yaml` and its component, and nothing written anywhere.

use std::io::{Cursor, Read};

use zip::ZipArchive;

use crate::Refusal;

/// The most entries an archive may list.
const MAX_ENTRIES: usize = 10_000;

/// Manifest and component of an archive.
///
/// A leading `/` of an entry's name is ignored; a `..` or an empty, absolute or prefixed remainder refuses the archive.
/// Symbolic links are not entries. The component is `capsule.wasm` at the root, else the only `*.wasm` there.
///
/// # Errors
/// `E-IO-003`.
pub(crate) fn read(bytes: &[u8], limit: u64) -> Result<(Vec<u8>, Vec<u8>), Refusal> {
    let refuse = |reason: &str| Refusal::new("E-IO-003", reason);
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(|_| refuse("is not a zip archive"))?;
    if archive.len() > MAX_ENTRIES {
        return Err(refuse("the archive has more than 10000 entries"));
    }
    let mut manifest = None;
    let mut named = None;
    let mut others = Vec::new();
    for index in 0..archive.len() {
        let entry = archive.by_index_raw(index).map_err(|_| refuse("the archive's directory is damaged"))?;
        let name = std::str::from_utf8(entry.name_raw())
            .map_err(|_| refuse("an entry's name is not UTF-8"))?
            .to_owned();
        let is_root = is_root_name(&name).map_err(refuse)?;
        if !entry.is_file() || entry.is_symlink() || !is_root {
            continue;
        }
        let slot = match name.as_str() {
            "murmur.yaml" => &mut manifest,
            "capsule.wasm" => &mut named,
            name if name.ends_with(".wasm") => {
                others.push(index);
                continue;
            }
            _ => continue,
        };
        if slot.replace(index).is_some() {
            return Err(refuse("the archive names one file twice"));
        }
    }
    let manifest = manifest.ok_or_else(|| refuse("the archive has no murmur.yaml at its root"))?;
    let component = match (named, others.as_slice()) {
        (Some(index), _) => index,
        (None, [index]) => *index,
        (None, []) => return Err(refuse("the archive has no component (*.wasm) at its root")),
        (None, _) => return Err(refuse("the archive has several components and none is capsule.wasm")),
    };
    Ok((extract(&mut archive, manifest, limit)?, extract(&mut archive, component, limit)?))
}

/// Whether an entry lies at the root; an error for a name that would leave it.
fn is_root_name(name: &str) -> Result<bool, &'static str> {
    let relative = name.strip_prefix('/').unwrap_or(name);
    let escapes = relative.starts_with('/')
        || relative.contains(['\\', '\0', ':'])
        || relative.split('/').any(|component| component == "..");
    if escapes {
        return Err("an entry's name leaves the archive");
    }
    // A name with a leading slash is tolerated and never the payload.
    Ok(!name.starts_with('/') && !relative.contains('/'))
}

fn extract(archive: &mut ZipArchive<Cursor<&[u8]>>, index: usize, limit: u64) -> Result<Vec<u8>, Refusal> {
    let refuse = |reason: &str| Refusal::new("E-IO-003", reason);
    let entry = archive.by_index(index).map_err(|_| refuse("an entry cannot be read"))?;
    let mut bytes = Vec::new();
    // One more than the limit, whatever the directory claims the size to be.
    entry.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(|_| refuse("an entry is damaged"))?;
    if bytes.len() as u64 > limit {
        return Err(Refusal::new("E-IO-003", &format!("an entry decompresses to more than {limit} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use zip::write::{SimpleFileOptions, ZipWriter};

    use super::*;

    fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
        let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
        for (name, bytes) in entries {
            writer.start_file(*name, SimpleFileOptions::default()).unwrap();
            writer.write_all(bytes).unwrap();
        }
        writer.finish().unwrap().into_inner()
    }

    #[test]
    fn the_payload_is_the_named_component_or_the_only_one() {
        type Entry<'a> = (&'a str, &'a [u8]);
        type Case<'a> = (&'a [Entry<'a>], Result<&'a [u8], &'a str>);
        let manifest: Entry<'_> = ("murmur.yaml", b"m");
        let cases: [Case<'_>; 9] = [
            (&[manifest, ("capsule.wasm", b"c"), ("other.wasm", b"o")], Ok(b"c")),
            (&[manifest, ("other.wasm", b"o"), ("sub/x.wasm", b"x")], Ok(b"o")),
            (&[manifest, ("a.wasm", b"a"), ("b.wasm", b"b")], Err("several components")),
            (&[manifest, ("sub/a.wasm", b"a")], Err("no component")),
            (&[manifest, ("/capsule.wasm", b"a")], Err("no component")),
            (&[("capsule.wasm", b"c")], Err("no murmur.yaml")),
            (&[("/murmur.yaml", b"m"), ("capsule.wasm", b"c")], Err("no murmur.yaml")),
            (&[manifest, ("capsule.wasm", b"c"), ("../x", b"")], Err("leaves the archive")),
            (&[manifest, ("capsule.wasm", b"c"), ("a/../../x", b"")], Err("leaves the archive")),
        ];
        for (entries, expected) in cases {
            match (read(&archive(entries), 100), expected) {
                (Ok((m, component)), Ok(bytes)) => {
                    assert_eq!((m.as_slice(), component.as_slice()), (b"m".as_slice(), bytes))
                }
                (Err(refusal), Err(reason)) => assert!(refusal.reason.contains(reason), "{refusal}"),
                (got, expected) => panic!("{got:?} instead of {expected:?}"),
            }
        }
    }

    #[test]
    fn an_entry_that_decompresses_above_the_limit_is_refused() {
        let bomb = archive(&[("murmur.yaml", b"m"), ("capsule.wasm", &[0; 1_000_000])]);
        assert!(bomb.len() < 10_000);
        assert!(read(&bomb, 1_000_000).is_ok());
        assert!(read(&bomb, 999_999).unwrap_err().reason.contains("more than 999999 bytes"));
    }

    #[test]
    fn symbolic_links_are_not_payloads() {
        let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
        writer.start_file("murmur.yaml", SimpleFileOptions::default()).unwrap();
        writer.add_symlink("capsule.wasm", "/etc/passwd", SimpleFileOptions::default()).unwrap();
        let bytes = writer.finish().unwrap().into_inner();
        assert!(read(&bytes, 100).unwrap_err().reason.contains("no component"));
    }

    #[test]
    fn bytes_cut_anywhere_are_refused_and_never_panic() {
        let whole = archive(&[("murmur.yaml", b"name: x"), ("capsule.wasm", b"component")]);
        for end in 0..whole.len() {
            assert!(read(&whole[..end], 100).is_err(), "cut at {end}");
        }
    }
}
