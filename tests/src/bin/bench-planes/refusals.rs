//! How long a redeem takes that is refused because its MAC does not verify, by the reason why it does not.
//!
//! The answer is the same to the byte whatever the reason (`seed: The peer plane's error table`); the time it takes should not
//! tell either. A test that asserts on times fails on a busy machine and proves nothing on a quiet one, so this is shown:
//! medians that differ by less than the halves of each reason's own requests differ from each other tell nothing apart.

use std::time::Instant;

use system_tests::broker::{Launch, Session};
use system_tests::capsule::Capsule;
use system_tests::handle::{self, Handle};
use system_tests::http;

use system_tests::bench::figures::Figures;
use system_tests::bench::report::{Aim, Fault, Measured, number};

/// What the table says in place of an aim.
pub(crate) const AIM: Aim = Aim::Shown("none of them told apart from the others");

/// Requests of each reason.
const REQUESTS: usize = 2000;

const _: () =
    assert!((FIRST + REQUESTS).is_multiple_of(4), "so that the order at the end is that at the beginning");

/// Before anything is counted.
const FIRST: usize = 200;

/// A reason, and its request.
struct Refusal {
    name: &'static str,
    request: Vec<u8>,
    /// All its requests, and two halves of them: how far these are apart is what chance does.
    all: Figures,
    odd: Figures,
    even: Figures,
    /// The last answer.
    answer: Vec<u8>,
}

impl Refusal {
    fn new(name: &'static str, token: &str, audience: &str) -> Self {
        let header = format!("x-murmur-audience: {audience}");
        let request = handle::redeem_request("GET", &format!("/{token}"), &[&header]);
        let (all, odd, even) = Default::default();
        Self { name, request, all, odd, even, answer: Vec::new() }
    }

    /// The median, the tenth and the ninetieth of a hundred, and the medians of both halves.
    fn text(&self) -> String {
        let [odd, even] = [&self.odd, &self.even].map(|half| number(half.median()));
        let (low, high) = (number(self.all.percentile(10)), number(self.all.percentile(90)));
        format!("{} {} (p10 {low}, p90 {high}; halves {odd}, {even})", self.name, number(self.all.median()))
    }
}

fn capsule() -> Capsule {
    let capsule = Capsule::handoff("writer");
    capsule.write("out/report.md", b"hello\n");
    capsule
}

/// The same handle with one bit of its MAC changed: in the first byte, or in the last.
fn tampered(handle: &Handle, last: bool) -> String {
    let (payload, mac) = handle.segments();
    let mut mac = handle::decode(mac);
    let byte = if last { mac.last_mut() } else { mac.first_mut() };
    if let Some(byte) = byte {
        *byte ^= 1;
    }
    format!("mh1.{payload}.{}", handle::encode(&mac))
}

/// The reasons take turns, each request on a connection of its own. The value is the largest median in the smallest.
pub(crate) fn run() -> Result<Measured, Fault> {
    let (capsule, elsewhere) = (capsule(), capsule());
    let (mut session, mut other) = (Launch::of(&capsule).start(), Launch::of(&elsewhere).start());
    let handle = Handle::mint_for_itself(&session, "report.md");
    let foreign = Handle::mint(&other, "report.md", http::authority(session.url()));
    other.stop();
    let mut refusals = [
        Refusal::new("MAC wrong at its beginning", &tampered(&handle, false), &handle.audience),
        Refusal::new("MAC wrong at its end", &tampered(&handle, true), &handle.audience),
        Refusal::new("wrong audience", &handle.token, "writer@127.0.0.1:1"),
        Refusal::new("handle of another session", &foreign.token, &foreign.audience),
    ];
    measure(&session, &mut refusals)?;
    session.stop();
    let [first, others @ ..] = &refusals;
    if others.iter().any(|other| other.answer != first.answer) {
        return Err(Fault::Failed("the answers differ".to_owned()));
    }
    let ratios: Vec<String> = others
        .iter()
        .map(|other| format!("{} {:.3}", other.name, other.all.median() / first.all.median()))
        .collect();
    let medians = refusals.each_ref().map(|refusal| refusal.all.median());
    let least = medians.into_iter().fold(f64::INFINITY, f64::min);
    Ok(Measured {
        value: medians.into_iter().fold(0.0, f64::max) / least,
        besides: true,
        ratio: format!("{} × {}", ratios.join(", "), first.name),
        absolute: format!("{} µs", refusals.each_ref().map(Refusal::text).join(", ")),
    })
}

/// Fills in figures and answers.
fn measure(session: &Session, refusals: &mut [Refusal; 4]) -> Result<(), Fault> {
    for turn in 0..FIRST + REQUESTS {
        for refusal in refusals.iter_mut() {
            let begun = Instant::now();
            let answer = http::exchange(session.url(), &refusal.request, http::PATIENCE)?;
            let took = begun.elapsed().as_secs_f64() * 1e6;
            if turn < FIRST {
                if http::parse(&answer)?.error() != "handle_not_valid" {
                    let text = String::from_utf8_lossy(&answer).into_owned();
                    return Err(Fault::Failed(format!("{}: {text}", refusal.name)));
                }
                continue;
            }
            refusal.all.add(took);
            // Four turns each, so that both halves have every reason in every place.
            let half = if turn / 4 % 2 == 0 { &mut refusal.even } else { &mut refusal.odd };
            half.add(took);
            refusal.answer = answer;
        }
        // Another one is first in every turn; after the last turn the order is the first again.
        refusals.rotate_left(1);
    }
    Ok(())
}
