//! The door's descriptors: never leaked, and what happens when there are none. In a binary of its own, one test at a time:
//! count and limit are the process's.

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
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};
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

static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn the_number_of_descriptors_is_the_same_after_thousands_of_requests() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut house = House::new(Limits::default(), constants());
    let _files = Files::start(&house);
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mut rounds = |number: usize| {
        for _ in 0..number {
            assert_eq!(get(house.address, "/resources/files/report.md").status(), 200);
            assert_eq!(get(house.address, "/resources/files").status(), 200);
            assert_eq!(get(house.address, "/resources/files/missing").status(), 404);
            assert_eq!(get(house.address, "/healthz").status(), 204);
            assert_eq!(get(house.address, "/resources/files/../x").status(), 403);
            house.record();
            drop(TcpStream::connect(house.address).unwrap());
            // The request goes to sandbox-host with two descriptors, and the answer never comes.
            let mut client = house::connect(house.address);
            let head = "POST / HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
            client.write_all(head.as_bytes()).unwrap();
            drop(house.host.as_mut().unwrap().receive_until(Instant::now() + house::LONG).unwrap());
            assert_eq!(house::finish(client).status(), 500);
        }
    };
    rounds(5);
    let before = open();
    rounds(400);
    // The last connections may still be closing.
    let started = Instant::now();
    while open() > before && started.elapsed() < house::LONG {
        std::thread::sleep(Duration::from_millis(10));
    }
    // Fewer if the connections of the first rounds were still closing when they were counted.
    assert!(open() <= before, "{} descriptors after {before}", open());
    house.shut_down();
}

#[test]
fn out_of_descriptors_the_door_neither_spins_nor_stays_deaf() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
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
