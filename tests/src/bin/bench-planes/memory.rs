//! The peak of memory while many large files are read at once.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use system_tests::http;

use crate::sides::{self, FILES, Side};
use system_tests::bench::ROUNDS;
use system_tests::bench::figures::Figures;
use system_tests::bench::report::{Fault, Measured, number};

/// Between two samples. Nothing announces a peak.
const INTERVAL: Duration = Duration::from_millis(10);

/// How long one answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The name of the file that is read.
const FILE: &str = "large";

/// The value is the largest peak of all rounds, in MB.
///
/// A page of a memfd that nobody has mapped is in no process's share, and the planes pass bodies in memfds. So every sample
/// is the processes' shares without shared memory, and by how much all shared memory of the machine has grown since
/// before the session. The plain sum of shares is printed beside it.
pub(crate) fn run(readers: usize, size: usize) -> Result<Measured, Fault> {
    let capsule = sides::capsule();
    capsule.write(&format!("out/{FILE}"), &sides::content(size));
    let shared_before = shared_memory()?;
    let side = Side::ours(&capsule);
    side.check(FILE, &sides::content(size))?;
    let processes = side.processes();
    let rest = sample(&processes, shared_before)?;
    let (mut whole, mut shares) = (Figures::default(), Figures::default());
    for _ in 0..ROUNDS {
        let peak = peak_during(&processes, shared_before, || read_all(&side, readers, size))?;
        eprintln!("  {} MB, of processes {} MB", number(peak.whole), number(peak.shares));
        whole.add(peak.whole);
        shares.add(peak.shares);
    }
    if side.processes() != processes {
        return Err(Fault::Failed("the processes changed during a run".to_owned()));
    }
    side.stop();
    let value = whole.largest();
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let asked = (readers * size) as f64 / 1e6;
    Ok(Measured {
        value,
        besides: true,
        ratio: format!("{} × the bytes asked for", number(value / asked)),
        absolute: format!(
            "{}, largest counts; {}; at rest {} MB",
            whole.text("with memfds"),
            shares.text("sum of Pss"),
            number(rest.whole)
        ),
    })
}

/// Megabytes.
#[derive(Default, Clone, Copy)]
struct Sample {
    whole: f64,
    shares: f64,
}

fn peak_during(
    processes: &[i32],
    shared_before: f64,
    work: impl FnOnce() -> Result<(), Fault>,
) -> Result<Sample, Fault> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let mut peak = Sample::default();
            while !done.load(Ordering::Acquire) {
                let now = sample(processes, shared_before)?;
                peak.whole = peak.whole.max(now.whole);
                peak.shares = peak.shares.max(now.shares);
                std::thread::sleep(INTERVAL);
            }
            Ok::<Sample, Fault>(peak)
        });
        let worked = work();
        done.store(true, Ordering::Release);
        let peak = sampler.join().unwrap_or_else(|_| Err(Fault::Failed("sampling failed".to_owned())));
        worked.and(peak)
    })
}

fn sample(processes: &[i32], shared_before: f64) -> Result<Sample, Fault> {
    let (mut shares, mut of_shared) = (0.0, 0.0);
    for pid in processes {
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        shares += field(&rollup, "Pss:")?;
        of_shared += field(&rollup, "Pss_Shmem:")?;
    }
    Ok(Sample { whole: shares - of_shared + (shared_memory()? - shared_before).max(0.0), shares })
}

/// All tmpfs and memfd pages of the machine.
fn shared_memory() -> Result<f64, Fault> {
    field(&fs::read_to_string("/proc/meminfo")?, "Shmem:")
}

/// A line of kibibytes, in megabytes.
fn field(text: &str, name: &str) -> Result<f64, Fault> {
    let value = text.lines().find_map(|line| line.strip_prefix(name));
    let value = value.and_then(|value| value.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    let kibibytes = value.ok_or_else(|| Fault::NotRun(format!("this kernel does not tell {name}")))?;
    Ok(kibibytes * 1024.0 / 1e6)
}

/// All readers connect, then all ask at once and read to the end.
fn read_all(side: &Side, readers: usize, size: usize) -> Result<(), Fault> {
    let start = Barrier::new(readers);
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..readers).map(|_| scope.spawn(|| read_one(side, size, &start))).collect();
        let ended = all
            .into_iter()
            .map(|one| one.join().unwrap_or_else(|_| Err(Fault::Failed("a reader failed".to_owned()))));
        // Not the first fault at once: the others still read.
        ended.collect::<Vec<_>>().into_iter().collect()
    })
}

fn read_one(side: &Side, size: usize, start: &Barrier) -> Result<(), Fault> {
    let connected = TcpStream::connect(http::authority(side.url()));
    // Also by one that has no connection: the others wait for it.
    start.wait();
    let mut socket = connected?;
    socket.set_read_timeout(Some(PATIENCE))?;
    write!(socket, "GET {FILES}{FILE} HTTP/1.1\r\nHost: {}\r\n\r\n", http::authority(side.url()))?;
    // The body is counted, not kept: the client's memory is not what is measured, but its page faults take time.
    let mut chunk = vec![0; 64 * 1024];
    let first = socket.read(&mut chunk)?;
    let begin = chunk.get(..first).unwrap_or_default();
    let end = begin.windows(4).position(|four| four == b"\r\n\r\n");
    let (Some(end), true) = (end, begin.starts_with(b"HTTP/1.1 200 ")) else {
        let text = String::from_utf8_lossy(begin.get(..first.min(200)).unwrap_or_default()).into_owned();
        return Err(Fault::Failed(format!("a reader got {text:?}")));
    };
    let mut body = first - end - 4;
    loop {
        match socket.read(&mut chunk)? {
            0 => break,
            count => body += count,
        }
    }
    if body == size { Ok(()) } else { Err(Fault::Failed(format!("a reader got {body} of {size} bytes"))) }
}
