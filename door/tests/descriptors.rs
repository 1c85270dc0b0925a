//! A door at the descriptor limit. Alone in its binary: the limit is the process's.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that fails panics, in its helpers too"
)]

#[allow(dead_code, reason = "each test binary uses its part of the house")]
mod house;

use std::fs::File;
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use door::Limits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use house::{Files, House, REPORT, constants, get};

/// Processor time of the whole process so far, in clock ticks of 10 ms; the file is opened while that is possible.
fn ticks(stat: &File) -> u64 {
    let mut text = [0; 4096];
    let read = stat.read_at(&mut text, 0).unwrap();
    let text = String::from_utf8_lossy(&text[..read]).into_owned();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn out_of_descriptors_the_door_neither_spins_nor_stays_deaf() {
    let house = House::new(Limits::default(), constants());
    let _files = Files::start(&house);
    assert_eq!(get(house.address, "/resources/files/report.md").body(), REPORT);
    let held: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(house.address).unwrap()).collect();
    assert_eq!(get(house.address, "/healthz").status(), 204);

    // Descriptors below this are all in use and stay so: from here on `accept` fails, whoever is turned out.
    let waiting = TcpStream::connect(house.address);
    let stat = File::open("/proc/self/stat").unwrap();
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), maximum: before.maximum }).unwrap();
    let (started, used) = (Instant::now(), ticks(&stat));
    std::thread::sleep(Duration::from_secs(1));
    let share = (ticks(&stat) - used) * 10 * 100 / started.elapsed().as_millis() as u64;
    setrlimit(Resource::Nofile, before).unwrap();
    assert!(share < 20, "{share} % of a processor while out of descriptors");

    drop((held, waiting));
    assert_eq!(get(house.address, "/resources/files/report.md").body(), REPORT);
    house.shut_down();
}
