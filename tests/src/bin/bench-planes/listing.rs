//! A listing of many files beside the least that any listing does: a walk that opens, reads and hashes on one thread.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use system_tests::http;

use crate::sides::{self, Side};
use system_tests::bench::ROUNDS;
use system_tests::bench::figures::Figures;
use system_tests::bench::report::{Fault, Measured, number};

/// How long one listing may take.
const PATIENCE: Duration = Duration::from_secs(120);

const FILE_SIZE: usize = 4096;

/// So many files lie in one directory.
const PER_DIRECTORY: usize = 100;

/// The value is our wall time in the floor's.
pub(crate) fn run(files: usize) -> Result<Measured, Fault> {
    let capsule = sides::capsule();
    let root = capsule.work().join("out");
    let mut content = sides::content(FILE_SIZE);
    fs::create_dir_all(&root)?;
    for number in 0..files {
        let directory = root.join(format!("d{:04}", number / PER_DIRECTORY));
        if number % PER_DIRECTORY == 0 {
            fs::create_dir(&directory)?;
        }
        content.splice(..8, number.to_le_bytes());
        fs::write(directory.join(format!("f{number:06}")), &content)?;
    }
    system_tests::temporary::give(&root, system_tests::temporary::OWNER);

    let side = Side::ours(&capsule);
    // Once each uncounted: what is compared is work on files that the kernel holds in memory.
    let (_, expected) = floor(&root)?;
    let (_, listed) = ours(&side)?;
    if listed != expected || expected.len() != files {
        let text =
            format!("{} entries listed, {} files there, or other hashes", listed.len(), expected.len());
        return Err(Fault::Failed(text));
    }
    let (mut listings, mut floors) = (Figures::default(), Figures::default());
    for _ in 0..ROUNDS {
        let (milliseconds, listed) = ours(&side)?;
        if listed != expected {
            return Err(Fault::Failed("a listing that is not the first one".to_owned()));
        }
        listings.add(milliseconds);
        floors.add(floor(&root)?.0);
    }
    side.stop();
    let value = listings.median() / floors.median();
    Ok(Measured {
        value,
        besides: true,
        ratio: format!("{} × one-thread floor", number(value)),
        absolute: format!("{}, {} ms", listings.text("ours"), floors.text("floor")),
    })
}

/// Hashes by path.
type Hashes = BTreeMap<String, String>;

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// From connecting to the last byte.
fn ours(side: &Side) -> Result<(f64, Hashes), Fault> {
    let request = format!("GET /resources/files HTTP/1.1\r\nHost: {}\r\n\r\n", http::authority(side.url()));
    let started = Instant::now();
    let answer = http::exchange(side.url(), request.as_bytes(), PATIENCE)?;
    let taken = milliseconds(started);
    let answer = http::parse(&answer)?;
    if answer.status != 200 {
        return Err(Fault::Failed(format!("a listing answers {}", answer.status)));
    }
    let listing = answer.json();
    let entries = listing.get("entries").and_then(serde_json::Value::as_array);
    let entry = |entry: &serde_json::Value| {
        let text = |key| Some(entry.get(key)?.as_str()?.to_owned());
        Some((text("path")?, text("sha256")?))
    };
    let hashes = entries.and_then(|entries| entries.iter().map(entry).collect());
    Ok((taken, hashes.ok_or_else(|| Fault::Failed("a listing of another form".to_owned()))?))
}

fn floor(root: &Path) -> Result<(f64, Hashes), Fault> {
    let started = Instant::now();
    let mut found = Vec::new();
    walk(root, "", &mut Vec::new(), &mut found)?;
    found.sort();
    let taken = milliseconds(started);
    let hex = |hash: [u8; 32]| hash.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((taken, found.into_iter().map(|(path, hash)| (path, hex(hash))).collect()))
}

fn walk(
    folder: &Path,
    prefix: &str,
    buffer: &mut Vec<u8>,
    found: &mut Vec<(String, [u8; 32])>,
) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            walk(&entry.path(), &format!("{path}/"), buffer, found)?;
            continue;
        }
        let mut file = File::open(entry.path())?;
        buffer.clear();
        // Which also asks for the file's size and time, as a listing must.
        file.metadata()?.modified()?;
        file.read_to_end(buffer)?;
        found.push((path, Sha256::digest(&*buffer).into()));
    }
    Ok(())
}
