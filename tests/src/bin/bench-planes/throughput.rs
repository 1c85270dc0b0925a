//! Requests per second and processor time per request, under wrk.

use std::fs;

use system_tests::broker::Launch;
use system_tests::capsule::Capsule;
use system_tests::handle::{self, Handle};

use crate::sides::{self, Side};
use crate::wrk;
use system_tests::bench::ROUNDS;
use system_tests::bench::figures::Figures;
use system_tests::bench::report::{Fault, Measured, caught, number};

/// The name of the file that is read.
const FILE: &str = "file";

/// GETs of one file: ours, nginx, the loop. The value is ours in nginx's.
pub(crate) fn get(size: usize, connections: usize, seconds: u64) -> Result<Measured, Fault> {
    let figures = turns(size, |side| Ok(wrk::run(&side.address(FILE), &[], connections, seconds)?.rate))?;
    Ok(compared(&figures, figures[0].median() / figures[1].median(), "requests/s"))
}

/// Processor time of all processes of a side, in user and kernel mode, per GET. The value is ours in microseconds.
pub(crate) fn cpu(size: usize, connections: usize, seconds: u64) -> Result<Measured, Fault> {
    let figures = turns(size, |side| {
        let processes = side.processes();
        let before = spent(&processes)?;
        let run = wrk::run(&side.address(FILE), &[], connections, seconds)?;
        let spent = spent(&processes)? - before;
        if side.processes() != processes {
            return Err(Fault::Failed(format!("the processes of {} changed during a run", side.name)));
        }
        #[expect(clippy::cast_precision_loss, reason = "fewer requests than 2^52")]
        let requests = run.requests as f64;
        Ok(spent * 1e6 / requests)
    })?;
    Ok(compared(&figures, figures[0].median(), "µs"))
}

/// Lets all three sides take turns over a file of `size`.
fn turns(size: usize, mut measure: impl FnMut(&Side) -> Result<f64, Fault>) -> Result<[Figures; 3], Fault> {
    sides::program("wrk", "wrk")?;
    let (capsule, content) = (sides::capsule(), sides::content(size));
    capsule.write(&format!("out/{FILE}"), &content);
    let sides = Side::all(&capsule)?;
    for side in &sides {
        side.check(FILE, &content)?;
    }
    let mut all = [Figures::default(), Figures::default(), Figures::default()];
    for _ in 0..ROUNDS {
        for (side, figures) in sides.iter().zip(&mut all) {
            let figure = measure(side)?;
            eprintln!("  {:5} {}", side.name, number(figure));
            figures.add(figure);
        }
    }
    sides.into_iter().for_each(Side::stop);
    Ok(all)
}

fn compared(figures: &[Figures; 3], value: f64, unit: &str) -> Measured {
    let [ours, nginx, plain] = figures;
    let ratio = |other: &Figures| number(ours.median() / other.median());
    Measured {
        value,
        besides: true,
        ratio: format!("{} × nginx, {} × loop", ratio(nginx), ratio(plain)),
        absolute: format!("{}, {}, {} {unit}", ours.text("ours"), nginx.text("nginx"), plain.text("loop")),
    }
}

/// Seconds of processor time that processes have used so far.
fn spent(processes: &[i32]) -> Result<f64, Fault> {
    let mut ticks = 0;
    for pid in processes {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // The name may hold anything, so fields count from its end: utime is the 14th of all, stime the 15th.
        let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ');
        let both: Vec<u64> = fields.skip(11).take(2).flat_map(str::parse).collect();
        if both.len() != 2 {
            return Err(Fault::Failed(format!("/proc/{pid}/stat is of another form")));
        }
        ticks += both.iter().sum::<u64>();
    }
    #[expect(clippy::cast_precision_loss, reason = "fewer ticks than 2^52")]
    let seconds = ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
    Ok(seconds)
}

/// Redeems of one file beside operator reads of the same file in the same session. The handle is one that the agent minted,
/// for the capsule itself.
pub(crate) fn redeem(size: usize, connections: usize, seconds: u64) -> Result<Measured, Fault> {
    sides::program("wrk", "wrk")?;
    let content = sides::content(size);
    let ready = caught(|| {
        let capsule = Capsule::handoff("writer").and("  files: {root: out/, mode: read-only}");
        capsule.write(&format!("out/{FILE}"), &content);
        let session = Launch::of(&capsule).start();
        let _ = Handle::mint_for_itself(&session, FILE);
        Ok((capsule, session))
    });
    let (_capsule, session) = ready.map_err(|fault| match fault {
        Fault::Failed(why) | Fault::NotRun(why) => Fault::NotRun(format!("no handle was minted: {why}")),
    })?;
    let (mut reads, mut redeems) = (Figures::default(), Figures::default());
    for _ in 0..ROUNDS {
        let read = format!("{}{}{FILE}", session.url(), sides::FILES);
        reads.add(wrk::run(&read, &[], connections, seconds)?.rate);
        // One for each round: they live for minutes only.
        let handle = Handle::mint_for_itself(&session, FILE);
        let answer = handle::redeem(session.url(), &handle.token, &handle.audience);
        if answer.status != 200 || answer.body != content {
            return Err(Fault::Failed(format!("a redeem answers {}", answer.status)));
        }
        let address = format!("{}/resources/peer/{}", session.url(), handle.token);
        let audience = format!("x-murmur-audience: {}", handle.audience);
        redeems.add(wrk::run(&address, &[audience], connections, seconds)?.rate);
    }
    Side::session(session).stop();
    let value = redeems.median() / reads.median();
    Ok(Measured {
        value,
        besides: true,
        ratio: format!("{} × own operator read", number(value)),
        absolute: format!("{}, {} requests/s", redeems.text("redeem"), reads.text("read")),
    })
}
