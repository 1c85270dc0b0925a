//! Clients that send a few bytes of a head and no more: when they are gone, and what others notice meanwhile.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use system_tests::http;

use crate::sides::{self, FILES, Side};
use system_tests::bench::figures::Figures;
use system_tests::bench::report::{Aim, Fault, Measured, number};

/// A head must be there within 10 s; the rest is the machine's. Readers count as unaffected while none fails and their
/// median stays below [`UNAFFECTED`] times the quiet one.
pub(crate) const AIM: Aim = Aim::Within(12.0, "other readers unaffected");

const UNAFFECTED: f64 = 2.0;

/// When we give up on the door.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long one connection may take to be let in.
const CONNECT_PATIENCE: Duration = Duration::from_secs(1);

/// After so many connections in a row that were not let in, the kernel lets in no more.
const GIVE_UP: usize = 3;

/// Between two GETs of the reader, which is a client and no load.
const PAUSE: Duration = Duration::from_millis(5);

/// So many GETs are the quiet measure.
const QUIET: usize = 400;

const FILE: &str = "file";

/// Lets this process hold as many descriptors as it may.
pub(crate) fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// The value is the time in seconds from the last connection to the end of all.
pub(crate) fn run(count: usize) -> Result<Measured, Fault> {
    let (capsule, content) = (sides::capsule(), sides::content(4096));
    capsule.write(&format!("out/{FILE}"), &content);
    let side = Side::ours(&capsule);
    side.check(FILE, &content)?;
    let mut quiet = Figures::default();
    for _ in 0..QUIET {
        quiet.add(one_get(&side, &content)?);
        std::thread::sleep(PAUSE);
    }
    let done = AtomicBool::new(false);
    let (closed, meanwhile) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut figures, mut failures) = (Figures::default(), Vec::new());
            while !done.load(Ordering::Acquire) {
                match one_get(&side, &content) {
                    Ok(figure) => figures.add(figure),
                    Err(Fault::Failed(why) | Fault::NotRun(why)) => failures.push(why),
                }
                std::thread::sleep(PAUSE);
            }
            (figures, failures)
        });
        let closed = hold(&side, count);
        done.store(true, Ordering::Release);
        (closed, reader.join())
    });
    let (opened, seconds) = closed?;
    let (meanwhile, failures) = meanwhile.map_err(|_| Fault::Failed("the reader failed".to_owned()))?;
    if meanwhile.count() == 0 {
        return Err(Fault::Failed(format!("no GET was answered meanwhile: {failures:?}")));
    }
    side.check(FILE, &content)?;
    side.stop();
    let factor = meanwhile.median() / quiet.median();
    let first = failures.first().map(|why| format!(" (first: {why})")).unwrap_or_default();
    let latencies = |figures: &Figures| {
        let [median, most] = [figures.median(), figures.percentile(99)].map(number);
        format!("{median} ms, 99th of 100 {most} ms, longest {} ms", number(figures.largest()))
    };
    Ok(Measured {
        value: seconds,
        besides: failures.is_empty() && factor <= UNAFFECTED,
        ratio: format!("median GET {} × quiet", number(factor)),
        absolute: format!(
            "{opened} opened, all closed after {} s; {} GETs meanwhile, {} failed{first}: {}; quiet: {}",
            number(seconds),
            meanwhile.count() + failures.len(),
            failures.len(),
            latencies(&meanwhile),
            latencies(&quiet)
        ),
    })
}

/// Milliseconds of one GET, from connecting to the end.
fn one_get(side: &Side, content: &[u8]) -> Result<f64, Fault> {
    let started = Instant::now();
    let answer = http::try_request(side.url(), "GET", &format!("{FILES}{FILE}"))?;
    let taken = started.elapsed().as_secs_f64() * 1e3;
    if answer.status == 200 && answer.body == content {
        Ok(taken)
    } else {
        Err(Fault::Failed(format!("a GET answers {}", answer.status)))
    }
}

/// Opens up to `count` connections with the beginning of a head each, and waits until the door has closed them all. How many
/// were opened, and the seconds that the last was closed after the last was opened.
fn hold(side: &Side, count: usize) -> Result<(usize, f64), Fault> {
    let address: SocketAddr = http::authority(side.url())
        .parse()
        .map_err(|_| Fault::Failed(format!("{} is no address", side.url())))?;
    let (mut held, mut refused) = (Vec::new(), 0);
    while held.len() < count && refused < GIVE_UP {
        match TcpStream::connect_timeout(&address, CONNECT_PATIENCE) {
            Ok(mut socket) => {
                // One that is closed already is seen below.
                let _ = socket.write_all(b"GET /res");
                socket.set_nonblocking(true)?;
                held.push(socket);
                refused = 0;
            }
            Err(_) => refused += 1,
        }
    }
    let opened = held.len();
    if opened == 0 {
        return Err(Fault::Failed("not one connection was let in".to_owned()));
    }
    let started = Instant::now();
    let mut last = started;
    while !held.is_empty() {
        if started.elapsed() > PATIENCE {
            let text = format!("{} of {opened} connections are open after {PATIENCE:?}", held.len());
            return Err(Fault::Failed(text));
        }
        let mut watched: Vec<PollFd<'_>> =
            held.iter().map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        let timeout = Timespec { tv_sec: 1, tv_nsec: 0 };
        match poll(&mut watched, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Fault::Failed(format!("poll: {error}"))),
        }
        drop(watched);
        let before = held.len();
        held.retain_mut(is_open);
        if held.len() < before {
            last = Instant::now();
        }
    }
    Ok((opened, last.duration_since(started).as_secs_f64()))
}

/// Reads what came, an answer that says why perhaps; whether more can come.
fn is_open(socket: &mut TcpStream) -> bool {
    let mut chunk = [0; 1024];
    loop {
        match socket.read(&mut chunk) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
        }
    }
}
