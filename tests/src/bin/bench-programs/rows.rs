//! The rows.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use serde_json::json;
use system_tests::bench::ROUNDS;
use system_tests::bench::figures::Figures;
use system_tests::bench::report::{Fault, Measured, number};

use crate::session::{Bench, repeated};

/// Programs per tool call.
const RUNS: usize = 300;
/// Sessions at once.
const SESSIONS: usize = 8;
/// Round trips per tool call.
const ECHOES: usize = 10_000;
const MIB: usize = 1024 * 1024;
/// Bytes that go through `cat`.
const BODY: usize = 64 * MIB;
const WORD: &str = "0123456789abcdef";
/// The longest a run of ours may take, in milliseconds, whatever `bwrap` takes.
const LONGEST_MS: f64 = 1.2;

/// Answers what it gets; one connection after the other.
const SERVER: &str = r#"socket(my $s, 2, 1, 0) or die; setsockopt($s, 1, 2, pack('l', 1)); $| = 1;
bind($s, pack('S n C4 x8', 2, $ARGV[0], 127, 0, 0, 1)) or die; listen($s, 5) or die; print "listens\n";
while (accept(my $c, $s)) { setsockopt($c, 6, 1, pack('l', 1)); while (sysread($c, my $t, 65536)) { syswrite($c, $t) } close $c }"#;

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// What one of many takes, in milliseconds, without what `none` took.
fn each(all: Duration, none: Duration, count: usize) -> f64 {
    milliseconds(all.saturating_sub(none)) / count as f64
}

/// `true` at once with `program` before it, as often; milliseconds each.
fn started(program: &[&str], count: usize) -> Result<f64, Fault> {
    let (Some(first), rest) = (program.first(), program.get(1..).unwrap_or_default()) else {
        return Err(Fault::Failed("no program".to_owned()));
    };
    let begin = Instant::now();
    for _ in 0..count {
        let status = Command::new(first).args(rest).stdin(Stdio::null()).status()?;
        if !status.success() {
            return Err(Fault::NotRun(format!("{first} ends with {status}")));
        }
    }
    Ok(milliseconds(begin.elapsed()) / count as f64)
}

pub(crate) fn run_true() -> Result<Measured, Fault> {
    const BWRAP: [&str; 6] = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"];
    if let Err(error) = Command::new("bwrap").arg("--version").stdout(Stdio::null()).status() {
        return Err(Fault::NotRun(format!("bwrap: {error}")));
    }
    let bench = Bench::start();
    let steps = repeated(&json!({"run": "true"}), RUNS);
    bench.perform(&steps);
    let (mut ours, mut bwrap, mut bare) = (Figures::default(), Figures::default(), Figures::default());
    for _ in 0..ROUNDS {
        let (none, _) = bench.perform(&json!([]));
        ours.add(each(bench.perform(&steps).0, none, RUNS));
        bwrap.add(started(&BWRAP, RUNS / 3)?);
        bare.add(started(&["true"], RUNS)?);
    }
    bench.stop();
    let ratio = ours.median() / bwrap.median();
    Ok(Measured {
        value: ratio,
        besides: ours.median() <= LONGEST_MS,
        ratio: format!("{} × bwrap, {} × a bare start", number(ratio), number(ours.median() / bare.median())),
        absolute: format!("{}, {}, {} ms", ours.text("ours"), bwrap.text("bwrap"), bare.text("bare")),
    })
}

pub(crate) fn run_true_at_once() -> Result<Measured, Fault> {
    let benches: Vec<Bench> = (0..SESSIONS).map(|_| Bench::start()).collect();
    let steps = repeated(&json!({"run": "true"}), RUNS);
    for bench in &benches {
        bench.perform(&json!([{"run": "true"}]));
    }
    let mut rate = Figures::default();
    for _ in 0..ROUNDS {
        let barrier = Barrier::new(SESSIONS + 1);
        let took = std::thread::scope(|scope| {
            let running: Vec<_> = benches
                .iter()
                .map(|bench| {
                    scope.spawn(|| {
                        barrier.wait();
                        bench.perform(&steps);
                    })
                })
                .collect();
            barrier.wait();
            let begin = Instant::now();
            let ended = running.into_iter().all(|one| one.join().is_ok());
            ended.then(|| begin.elapsed())
        });
        let took = took.ok_or_else(|| Fault::Failed("a session failed".to_owned()))?;
        rate.add((SESSIONS * RUNS) as f64 / took.as_secs_f64());
    }
    benches.into_iter().for_each(Bench::stop);
    Ok(Measured {
        value: rate.median(),
        besides: true,
        ratio: "-".to_owned(),
        absolute: format!("{} per second, whole tasks", rate.text("ours")),
    })
}

/// The same bytes through `cat` without anything of ours.
fn through_cat(body: &[u8]) -> Result<Duration, Fault> {
    let begin = Instant::now();
    let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (Some(mut input), Some(mut output)) = (cat.stdin.take(), cat.stdout.take()) else {
        return Err(Fault::Failed("cat has no pipes".to_owned()));
    };
    let read = std::thread::scope(|scope| {
        scope.spawn(move || input.write_all(body));
        std::io::copy(&mut output, &mut std::io::sink())
    })?;
    cat.wait()?;
    if read != body.len() as u64 {
        return Err(Fault::Failed(format!("cat gave {read} bytes")));
    }
    Ok(begin.elapsed())
}

pub(crate) fn stdin() -> Result<Measured, Fault> {
    let bench = Bench::start();
    let step = |program: &str| json!([{"run": program, "stdin": WORD, "times": BODY / WORD.len()}]);
    let body = WORD.repeat(BODY / WORD.len()).into_bytes();
    let (mut ours, mut plain) = (Figures::default(), Figures::default());
    let rate = |took: Duration| BODY as f64 / MIB as f64 / took.as_secs_f64();
    for _ in 0..ROUNDS {
        // What the component needs to make the bytes and to hand them over is the same for a program that reads none.
        let (unread, _) = bench.perform(&step("true"));
        let (took, results) = bench.perform(&step("cat"));
        if results.first().is_none_or(|result| result.pointer("/ok/stdout/bytes") != Some(&MIB.into())) {
            return Err(Fault::Failed("not the first MiB came back".to_owned()));
        }
        ours.add(rate(took.saturating_sub(unread)));
        plain.add(rate(through_cat(&body)?));
    }
    bench.stop();
    let ratio = ours.median() / plain.median();
    Ok(Measured {
        value: ratio,
        besides: true,
        ratio: format!("{} × plain pipes", number(ratio)),
        absolute: format!("{}, {} MiB/s", ours.text("ours"), plain.text("plain")),
    })
}

/// A program of this machine, killed at the end.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A round trip over plain loopback to the same server, in milliseconds.
fn plain_echo(port: u16) -> Result<f64, Fault> {
    let mut connection = TcpStream::connect(("127.0.0.1", port))?;
    connection.set_nodelay(true)?;
    let begin = Instant::now();
    let mut answer = [0; WORD.len()];
    for _ in 0..ECHOES {
        connection.write_all(WORD.as_bytes())?;
        connection.read_exact(&mut answer)?;
    }
    Ok(milliseconds(begin.elapsed()) / ECHOES as f64)
}

pub(crate) fn echo() -> Result<Measured, Fault> {
    const PORT: u16 = 18_765;
    let port = PORT.to_string();
    let server = Command::new("perl").args(["-e", SERVER, &port]).stdout(Stdio::piped()).spawn();
    let mut server = Server(server.map_err(|error| Fault::NotRun(format!("perl: {error}")))?);
    let mut line = String::new();
    let stdout = server.0.stdout.take().ok_or_else(|| Fault::Failed("no pipe".to_owned()))?;
    BufReader::new(stdout).read_line(&mut line)?;
    if line != "listens\n" {
        return Err(Fault::NotRun(format!("port {port} is taken")));
    }
    let bench = Bench::start();
    bench.perform(&json!([
        {"start": "perl", "name": "server", "args": ["-e", SERVER, &port]},
        {"until": "listens\n", "of": "$server"},
    ]));
    let connect = json!({"connect": "$server", "port": PORT});
    let trip = json!([connect, {"echo": 0, "text": WORD, "times": ECHOES}]);
    let (mut ours, mut plain) = (Figures::default(), Figures::default());
    for _ in 0..ROUNDS {
        let (none, _) = bench.perform(&json!([connect]));
        let (took, results) = bench.perform(&trip);
        if results.last().is_none_or(|result| result["ok"] != WORD) {
            return Err(Fault::Failed("another text came back".to_owned()));
        }
        ours.add(each(took, none, ECHOES));
        plain.add(plain_echo(PORT)?);
    }
    bench.stop();
    let ratio = ours.median() / plain.median();
    Ok(Measured {
        value: ratio,
        besides: true,
        ratio: format!("{} × plain loopback", number(ratio)),
        absolute: format!("{}, {} ms a round trip", ours.text("ours"), plain.text("plain")),
    })
}
