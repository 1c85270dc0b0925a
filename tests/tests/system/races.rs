//! Reads while files are swapped underneath: nothing outside the root may ever come back, and every etag is of its body.
//!
//! Each race hammers one session per plane and class. The flippers pause for a moment between two flips, so that several
//! fall into every read and reading still gets its share of the processor. On the peer plane the handles are minted before
//! the first flip and redeemed throughout: what a handle names is looked up anew every time, by the same rules.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use system_tests::broker::{Launch, Session};
use system_tests::capsule::Capsule;
use system_tests::hammer::{Flipper, Hammer, Tally, exchange};
use system_tests::handle::{Handle, redeem_request};
use system_tests::plane::{CODES, get};
use system_tests::temporary::{self, OWNER};
use system_tests::{host, needs_root};

use crate::operator_plane::{classes, serve};

/// Reads of a race on each plane in each class, at least: the number that S27 of the cases asks for.
const READS: usize = 100_000;

/// Clients that read at the same time.
const CLIENTS: usize = 4;

/// The largest file that is served.
const LIMIT: usize = 64 * 1024;

/// In every file outside the root, and nowhere else.
const CANARY: &[u8] = b"\x01canary-outside-the-root";

/// The way by which a race reads.
#[derive(Debug, Clone, Copy)]
enum Plane {
    /// `/resources/files/<path>`
    Operator,
    /// `/resources/peer/<handle>`
    Peer,
}

/// Every plane in every class.
fn planes() -> Vec<(Plane, &'static str)> {
    [Plane::Operator, Plane::Peer]
        .into_iter()
        .flat_map(|plane| classes().into_iter().map(move |class| (plane, class)))
        .collect()
}

/// One race: a session, the place on disk, and a place beside the root on the same filesystem where swaps are prepared.
struct Race {
    plane: Plane,
    class: &'static str,
    session: Session,
    work: PathBuf,
    stage: PathBuf,
    capsule: Capsule,
}

impl Race {
    fn of(plane: Plane, class: &'static str) -> Self {
        let capsule = match plane {
            Plane::Operator => Capsule::reporter(),
            // The handles have to outlive the race.
            Plane::Peer => Capsule::handoff("writer").with("max_ttl: 5m", "max_ttl: 15m"),
        };
        let capsule = capsule
            .with("root: out/", &format!("root: out/\n    max_bytes: {LIMIT}"))
            .with("capabilities:\n", &format!("capabilities:\n  containment: {class}\n"));
        capsule.write("out/d/report.md", b"inside\n");
        capsule.write("out/report.md", b"inside\n");
        capsule.write("outside/report.md", CANARY);
        capsule.write("outside/d/report.md", CANARY);
        capsule.write("stage/file", b"inside\n");
        // Outside the workdir, where a root that is a link would lead.
        temporary::write(capsule.folder(), "report.md", CANARY);
        temporary::write(capsule.folder(), "d/report.md", CANARY);
        let session = match plane {
            Plane::Operator => serve(&capsule),
            Plane::Peer => Launch::of(&capsule).start(),
        };
        assert_eq!(session.containment(), class);
        let work = capsule.work();
        Race { plane, class, session, stage: work.join("stage"), work, capsule }
    }

    /// The requests for these paths; on the peer plane this mints, so the files are there and nothing flips yet.
    fn requests(&self, paths: &[&str]) -> Vec<Vec<u8>> {
        let request = |path: &&str| match self.plane {
            Plane::Operator => get(&format!("f/{path}")),
            Plane::Peer => {
                let handle = Handle::mint_for_itself(&self.session, path);
                let audience = format!("x-murmur-audience: {}", handle.audience);
                redeem_request("GET", &format!("/{}", handle.token), &[&audience])
            }
        };
        paths.iter().map(request).collect()
    }

    fn out(&self, name: &str) -> PathBuf {
        self.work.join("out").join(name)
    }

    fn link(&self, name: &str, target: &str) -> PathBuf {
        let path = self.stage.join(name);
        symlink(target, &path).unwrap();
        temporary::give(&path, OWNER);
        path
    }

    /// The code that a link is refused with, below the root.
    fn link_code(&self) -> &'static str {
        if self.class == "scoped" { "symlink_refused" } else { "outside_root" }
    }

    /// Hammers while `flipper` flips; ends the session and sees that every request is on record.
    fn run(
        mut self,
        what: &str,
        count: usize,
        requests: &[Vec<u8>],
        refusals: &[&str],
        body: &(dyn Fn(&[u8]) -> bool + Sync),
        flipper: Flipper,
    ) -> Tally {
        let what = format!("{what}, {:?}, {}", self.plane, self.class);
        let refusals: Vec<(&str, u16)> =
            CODES.iter().copied().filter(|(code, _)| refusals.contains(code)).collect();
        let hammer = Hammer {
            url: self.session.url(),
            requests,
            count,
            clients: CLIENTS,
            refusals: &refusals,
            canary: CANARY,
            body,
        };
        let begun = std::time::Instant::now();
        let struck = hammer.strike();
        let flips = flipper.finish();
        let tally = struck.unwrap_or_else(|reason| panic!("{what}: {reason}"));
        eprintln!("{what}: {tally:?}, {flips} flips, {:.0?}", begun.elapsed());
        let records = self.session.records();
        self.session.stop();
        let trace = fs::read_to_string(records.join("trace.jsonl")).unwrap();
        let event = match self.plane {
            Plane::Operator => "{\"event_type\":\"resource_read\",",
            Plane::Peer => "{\"event_type\":\"peer_handle_redeem\",",
        };
        let lines = trace.lines().filter(|line| line.starts_with(event)).count();
        assert_eq!(lines, count, "{what}: each request once on record");
        assert!(!trace.contains("canary-outside"), "{what}: in the trace");
        tally
    }
}

/// Both came up: else nothing was raced.
fn assert_seen(tally: &Tally, outcomes: &[&str]) {
    for outcome in outcomes {
        assert!(tally.contains_key(*outcome), "never {outcome}: {tally:?}");
    }
}

/// S26, S27: a directory on the way is exchanged for a link that leaves the root.
#[test]
fn a_directory_that_flips_to_an_escaping_link_never_lets_out() {
    needs_root!();
    for (plane, class) in planes() {
        let race = Race::of(plane, class);
        let relative = race.link("relative", "../outside/d");
        let absolute = race.link("absolute", race.work.join("outside/d").to_str().unwrap());
        let directory = race.out("d");
        let code = race.link_code();
        let requests = race.requests(&["d/report.md"]);
        let flipper = Flipper::start(move |number| {
            // There and back, by turns.
            exchange(&directory, if number / 2 % 2 == 0 { &relative } else { &absolute });
        });
        let accepted = [code, "not_found", "io_error"];
        let tally = race.run(
            "a directory and a link",
            READS,
            &requests,
            &accepted,
            &|body| body == b"inside\n",
            flipper,
        );
        assert_seen(&tally, &["ok", code]);
    }
}

/// S25, F3, F4: the file itself is exchanged for a link, a fifo, a socket and a device.
#[test]
fn a_file_that_flips_to_another_kind_is_served_or_refused_by_its_kind() {
    needs_root!();
    for (plane, class) in planes() {
        let race = Race::of(plane, class);
        let mut others = vec![race.link("link", "../outside/report.md")];
        let socket = race.stage.join("socket");
        drop(UnixListener::bind(&socket).unwrap());
        others.push(socket);
        for (name, kind, device) in
            [("fifo", FileType::Fifo, 0), ("device", FileType::CharacterDevice, makedev(1, 5))]
        {
            let path = race.stage.join(name);
            match mknodat(CWD, &path, kind, Mode::from_raw_mode(0o644), device) {
                Ok(()) => others.push(path),
                Err(error) => host::say_not_run("races", &format!("cannot make a {name}: {error}")),
            }
        }
        others.iter().for_each(|other| temporary::give(other, OWNER));
        let (file, code) = (race.out("report.md"), race.link_code());
        let requests = race.requests(&["report.md"]);
        let flipper = Flipper::start(move |number| exchange(&file, &others[number / 2 % others.len()]));
        // A device is no other failure of the open: `not_a_regular_file` is its code, whenever it came.
        let accepted = [code, "not_a_regular_file"];
        let tally = race.run(
            "a file and other kinds",
            READS,
            &requests,
            &accepted,
            &|body| body == b"inside\n",
            flipper,
        );
        assert_seen(&tally, &["ok", code, "not_a_regular_file"]);
    }
}

/// F18, R13: the file loses its name while it is read, or the root does; what is open is served whole, what is gone is absent.
#[test]
fn a_file_or_a_root_that_vanishes_while_it_is_read_is_whole_or_absent() {
    needs_root!();
    // Longer than one read of the fileserver's.
    let content = b"inside\n".repeat(LIMIT / 7);
    for (plane, class) in planes() {
        let race = Race::of(plane, class);
        race.capsule.write("out/d/report.md", &content);
        let (file, root) = (race.out("d/report.md"), race.work.join("out"));
        let (no_file, no_root) = (race.stage.join("no-file"), race.stage.join("no-root"));
        let requests = race.requests(&["d/report.md"]);
        let flipper = Flipper::start(move |number| match number % 4 {
            0 => fs::rename(&file, &no_file).unwrap(),
            1 => fs::rename(&no_file, &file).unwrap(),
            2 => fs::rename(&root, &no_root).unwrap(),
            _ => fs::rename(&no_root, &root).unwrap(),
        });
        let whole = |body: &[u8]| body == content;
        // A name that is moved while it is looked up can be found outside for a moment.
        let accepted = ["not_found", "outside_root", "io_error"];
        let tally = race.run("a name that vanishes", READS, &requests, &accepted, &whole, flipper);
        assert_seen(&tally, &["ok", "not_found"]);
    }
}

/// A version of a file: lines that all say which it is, and how many there are.
fn version(number: usize) -> Vec<u8> {
    let lines = number * 7919 % 400 + 1;
    format!("version {number:08} of {lines:06} lines\n").repeat(lines).into_bytes()
}

fn is_one_version(body: &[u8]) -> bool {
    let Some(first) = body.split_inclusive(|byte| *byte == b'\n').next() else { return false };
    let lines = first.get(20..26).and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<usize>().ok());
    lines.is_some_and(|lines| body.len() == lines * first.len())
        && body.chunks(first.len()).all(|line| line == first)
}

/// V9: temp and rename.
#[test]
fn a_file_that_is_renamed_over_is_always_one_whole_version() {
    needs_root!();
    assert!(is_one_version(&version(0)) && is_one_version(&version(4321)));
    assert!(!is_one_version(&version(4321)[1..]) && !is_one_version(b""));
    for (plane, class) in planes() {
        let race = Race::of(plane, class);
        let (next, target) = (race.stage.join("next"), race.out("versions"));
        let write = move |number: usize| {
            fs::write(&next, version(number)).unwrap();
            temporary::give(&next, OWNER);
            fs::rename(&next, &target).unwrap();
        };
        write(0);
        let requests = race.requests(&["versions"]);
        let flipper = Flipper::start(move |number| write(number + 1));
        let tally = race.run("renamed over", READS, &requests, &[], &is_one_version, flipper);
        assert_eq!(tally.len(), 1, "served every time: {tally:?}");
    }
}

/// V10, F14, F16: truncated and written in place, to sizes below and above the limit.
#[test]
fn a_file_that_is_rewritten_in_place_is_torn_at_most_and_never_above_the_limit() {
    needs_root!();
    for (plane, class) in planes() {
        let race = Race::of(plane, class);
        let path = race.out("rewritten");
        fs::write(&path, b"").unwrap();
        temporary::give(&path, OWNER);
        let requests = race.requests(&["rewritten"]);
        let file = File::options().write(true).open(&path).unwrap();
        let (small, large) = (vec![b's'; 1000], vec![b'l'; LIMIT + 4096]);
        let flipper = Flipper::start(move |number| match number % 4 {
            0 => file.set_len(0).unwrap(),
            1 => file.write_all_at(&small, 0).unwrap(),
            // Beyond the limit, piece by piece: a reader may be anywhere in it.
            2 => large.chunks(4096).enumerate().for_each(|(index, piece)| {
                file.write_all_at(piece, index as u64 * 4096).unwrap();
            }),
            _ => file.set_len(1000).unwrap(),
        });
        let body =
            |body: &[u8]| body.len() <= LIMIT && body.iter().all(|byte| matches!(byte, b's' | b'l' | 0));
        let tally = race.run("rewritten in place", READS, &requests, &["too_large"], &body, flipper);
        assert_seen(&tally, &["ok", "too_large"]);
    }
}

/// R11: the root itself becomes a link out of the workdir and comes back.
#[test]
fn a_root_that_flips_to_a_link_out_of_the_workdir_never_lets_out() {
    needs_root!();
    for (plane, class) in planes() {
        let race = Race::of(plane, class);
        let above = race.link("above", "..");
        let host = race.link("host", race.capsule.folder().to_str().unwrap());
        let root = race.work.join("out");
        let requests = race.requests(&["report.md", "d/report.md"]);
        let flipper =
            Flipper::start(move |number| exchange(&root, if number / 2 % 2 == 0 { &above } else { &host }));
        let accepted = ["outside_root", "not_found", "io_error"];
        let tally = race.run(
            "the root and a link",
            READS,
            &requests,
            &accepted,
            &|body| body == b"inside\n",
            flipper,
        );
        assert_seen(&tally, &["ok", "outside_root"]);
    }
}

/// The same swaps under a listing: an entry's hash is never that of something outside.
#[test]
fn a_listing_of_a_tree_that_flips_never_names_what_is_outside() {
    needs_root!();
    let canary = system_tests::programs::sha256(CANARY);
    for class in classes() {
        let mut race = Race::of(Plane::Operator, class);
        let link = race.link("link", "../outside/d");
        let file_link = race.link("file-link", "../outside/report.md");
        let (directory, file) = (race.out("d"), race.out("report.md"));
        let flipper = Flipper::start(move |_| {
            exchange(&directory, &link);
            exchange(&file, &file_link);
        });
        let mut sizes = std::collections::BTreeSet::new();
        for _ in 0..5_000 {
            let listing = system_tests::http::get(race.session.url(), "/resources/files");
            assert_eq!(listing.status, 200, "{}", listing.text());
            assert!(!listing.text().contains(&canary), "{}", listing.text());
            sizes.insert(listing.json()["entries"].as_array().unwrap().len());
        }
        assert!(flipper.finish() > 0 && sizes.len() > 1, "nothing changed meanwhile: {sizes:?}");
        race.session.stop();
    }
}
