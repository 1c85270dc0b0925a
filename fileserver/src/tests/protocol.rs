//! The whole process but for its confinement: real channels, a real window, the broker and the door played by the test.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ipc::edge::broker_fileserver::{BrokerToFileserver, FileserverToBroker};
use ipc::edge::control::{FileserverConfigure, FileserverOrder, FromRole, ToRole};
use ipc::edge::door_fileserver::{Body, DoorToFileserver, FileserverToDoor};
use ipc::memory::{CounterWriter, WINDOW_BYTES, map_window, read_sealed, window};
use ipc::sys::Mapping;
use ipc::types::{Class, FileMeta, MAX_RELPATH, Moment, PlaneCode, RelPath, RequestId};
use ipc::{Channel, ChannelError, pair};
use sha2::{Digest, Sha256};

use super::Tree;
use crate::desk::{Desk, Ended, IN_FLIGHT, Job, Link, Task};
use crate::orders;
use crate::serve::Fault;
use crate::window::{Leftover, Window};

pub(super) const QUARTER: u64 = (WINDOW_BYTES / 4) as u64;

pub(super) type Door = Channel<DoorToFileserver, FileserverToDoor>;
pub(super) type Control = Channel<ToRole<FileserverOrder>, FromRole>;
type Server = JoinHandle<Result<(), Fault>>;
type Breach = fn(&mut House);
type Judge = fn(&Fault) -> bool;

/// A running fileserver with its neighbours.
pub(super) struct House {
    pub(super) control: Control,
    pub(super) broker: Option<Channel<BrokerToFileserver, FileserverToBroker>>,
    pub(super) door: Door,
    pub(super) window: Mapping,
    pub(super) counter: CounterWriter,
    server: Server,
    faults: mpsc::Receiver<Fault>,
    next: u64,
}

pub(super) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

fn spawn(workdir: OwnedFd) -> (Control, Server, mpsc::Receiver<Fault>) {
    let (control, role) = pair().unwrap();
    let (fault, faults) = mpsc::channel();
    let fault = Mutex::new(fault);
    let end = Arc::new(move |value| {
        let _ = fault.lock().unwrap().send(value);
    });
    (control, std::thread::spawn(move || orders::run(role, workdir, end)), faults)
}

impl House {
    fn new(tree: &Tree, max_bytes: u64) -> Self {
        let plane = tree.plane_at(Class::Sealed, "out/", max_bytes);
        Self::with(
            tree.workdir(),
            FileserverConfigure { class: plane.class, files: Some(plane.export), peer_files: None },
        )
    }

    pub(super) fn with(workdir: OwnedFd, configure: FileserverConfigure) -> Self {
        let (control, server, faults) = spawn(workdir);
        let (broker, servers_broker) = pair::<BrokerToFileserver, FileserverToBroker>().unwrap();
        let (writable, readable) = window().unwrap();
        let (counter, page) = CounterWriter::new().unwrap();
        let order = ToRole::Order(FileserverOrder::Configure(configure));
        let channel = servers_broker.into_descriptor().unwrap();
        control.send_with(&order, &[channel.as_fd(), writable.as_fd(), page.as_fd()]).unwrap();
        let door = hand_door(&control);
        let window = map_window(&readable, false).unwrap();
        House { control, broker: Some(broker), door, window, counter, server, faults, next: 0 }
    }

    fn id(&mut self) -> RequestId {
        self.next += 1;
        RequestId(self.next)
    }

    pub(super) fn ask(&mut self, path: &str) -> RequestId {
        self.ask_and_free(path, &[])
    }

    /// Asks for a file and gives slots back in the same message.
    pub(super) fn ask_and_free(&mut self, path: &str, slots: &[u32]) -> RequestId {
        let id = self.id();
        let freed = slots.to_vec().try_into().unwrap();
        self.door
            .send(&DoorToFileserver::Read {
                id,
                path: RelPath::new(path).unwrap(),
                freed,
                until: Moment::after(Duration::from_secs(60)),
            })
            .unwrap();
        id
    }

    /// What ended the process, whichever thread found it.
    pub(super) fn fault(self) -> Fault {
        self.faults.recv_timeout(Duration::from_secs(10)).unwrap()
    }

    /// The next answer. Its record is there already.
    pub(super) fn answer(&mut self) -> (FileserverToDoor, Option<OwnedFd>, FileserverToBroker) {
        let mut received = self.door.receive_until(soon()).unwrap();
        let record = self.broker.as_mut().unwrap().receive_until(soon_enough()).unwrap().message;
        (received.message, received.descriptors.pop(), record)
    }

    pub(super) fn no_record(&mut self) -> bool {
        let now = Instant::now();
        matches!(self.broker.as_mut().unwrap().receive_until(now), Err(ChannelError::TimedOut))
    }

    pub(super) fn free(&self, slot: u32) {
        self.door.send(&DoorToFileserver::SlotFree { slot }).unwrap();
    }

    /// Asks for a file and takes its bytes, however they travel.
    pub(super) fn read(&mut self, path: &str) -> Result<(Vec<u8>, FileMeta), PlaneCode> {
        let asked = self.ask(path);
        let (answer, file, record) = self.answer();
        let FileserverToBroker::Read { path: recorded, generation, outcome } = record else {
            panic!("{record:?}")
        };
        assert_eq!(recorded, path);
        match answer {
            FileserverToDoor::File { id, meta, body } => {
                assert_eq!((id, meta.generation), (asked, generation));
                assert_eq!(outcome, Ok((meta.bytes, meta.sha256)));
                Ok((self.body(body, file), meta))
            }
            FileserverToDoor::Refused { id, generation: answered, code } => {
                assert_eq!((id, answered, outcome), (asked, generation, Err(code)));
                Err(code)
            }
            other @ (FileserverToDoor::Listing { .. } | FileserverToDoor::Redeemed { .. }) => {
                panic!("{other:?}")
            }
        }
    }

    pub(super) fn body(&self, body: Body, file: Option<OwnedFd>) -> Vec<u8> {
        match body {
            Body::Slot { slot, offset, length } => {
                let (offset, length) = (usize::try_from(offset).unwrap(), usize::try_from(length).unwrap());
                let bytes = self.window.bytes(offset, length).unwrap().to_vec();
                self.free(slot);
                bytes
            }
            Body::File { length } => {
                let bytes = read_sealed(file.unwrap(), 1 << 30).unwrap();
                assert_eq!(bytes.len() as u64, length);
                bytes
            }
        }
    }

    /// Asks for files until the window is full of these four; their slots.
    pub(super) fn fill_window(&mut self, names: [&str; 4]) -> Vec<u32> {
        let mut slots = Vec::new();
        for name in names {
            self.ask(name);
            slots.push(self.slot());
        }
        slots
    }

    /// The slot of the next answer.
    pub(super) fn slot(&mut self) -> u32 {
        match self.answer().0 {
            FileserverToDoor::File { body: Body::Slot { slot, .. }, .. } => slot,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn shut_down(self) {
        self.control.send(&ToRole::Shutdown).unwrap();
        self.server.join().unwrap().unwrap();
        assert!(self.faults.try_recv().is_err());
    }
}

/// Records are sent before answers, so one that belongs to an answer needs no waiting for.
fn soon_enough() -> Instant {
    Instant::now()
}

pub(super) fn hand_door(control: &Control) -> Door {
    let (door, servers_door) = pair::<DoorToFileserver, FileserverToDoor>().unwrap();
    let channel = servers_door.into_descriptor().unwrap();
    control.send_with(&ToRole::Order(FileserverOrder::Door), &[channel.as_fd()]).unwrap();
    door
}

/// `count` files of a quarter of the window each.
pub(super) fn quarters(tree: &Tree, count: usize) {
    for index in 0..count {
        std::fs::File::create(tree.path(&format!("out/q{index}"))).unwrap().set_len(QUARTER).unwrap();
    }
}

#[test]
fn every_answer_is_recorded_first_and_with_the_same_words() {
    let tree = Tree::new();
    tree.write("out/max", &[b'x'; 1024]);
    tree.write("out/more", &[b'x'; 1025]);
    tree.write("out/none", b"");
    tree.link("../secret.txt", "out/esc");
    tree.fifo("out/p", 0o644);
    std::fs::File::create(tree.path("out/sparse")).unwrap().set_len(1 << 40).unwrap();
    let mut house = House::new(&tree, 1024);
    let table = [
        ("report.md", Ok(b"hello\n".to_vec())),
        ("none", Ok(vec![])),
        ("max", Ok(vec![b'x'; 1024])),
        ("more", Err(PlaneCode::TooLarge)),
        ("sparse", Err(PlaneCode::TooLarge)),
        ("esc", Err(PlaneCode::OutsideRoot)),
        ("p", Err(PlaneCode::NotARegularFile)),
        ("missing", Err(PlaneCode::NotFound)),
    ];
    for (path, expected) in table {
        match (house.read(path), expected) {
            (Ok((bytes, meta)), Ok(expected)) => {
                assert_eq!(bytes, expected, "{path}");
                assert_eq!(meta.sha256, <[u8; 32]>::from(Sha256::digest(&bytes)), "{path}");
            }
            (answer, expected) => assert_eq!(answer.map(|(bytes, _)| bytes), expected, "{path}"),
        }
    }
    assert!(house.no_record());
    house.shut_down();
}

#[test]
fn a_recorded_path_is_cut_on_a_character_boundary() {
    let tree = Tree::new();
    let mut house = House::new(&tree, 1024);
    let long = "é".repeat(5000);
    for (path, expected) in [(long.clone(), MAX_RELPATH), (format!("x{long}"), MAX_RELPATH - 1)] {
        house.ask(&path);
        match house.answer().2 {
            FileserverToBroker::Read { path, outcome: Err(PlaneCode::NotFound), .. } => {
                assert_eq!(path.len(), expected)
            }
            other => panic!("{other:?}"),
        }
    }
    house.shut_down();
}

#[test]
fn the_generation_is_the_same_in_answer_and_record_and_moves_with_the_counter() {
    let tree = Tree::new();
    let mut house = House::new(&tree, 1024);
    let (_, before) = house.read("report.md").unwrap();
    house.counter.advance();
    let (_, after) = house.read("report.md").unwrap();
    assert_eq!((before.generation, after.generation), (0, 1));
    assert_eq!(before.sha256, after.sha256);
    let id = house.id();
    house
        .door
        .send(&DoorToFileserver::List {
            id,
            freed: Default::default(),
            until: Moment::after(Duration::from_secs(60)),
        })
        .unwrap();
    match house.answer() {
        (
            FileserverToDoor::Listing { generation: 1, body, .. },
            file,
            FileserverToBroker::List { generation: 1, entry_count: 2, total_bytes: 12, refused: None },
        ) => {
            let text = String::from_utf8(house.body(body, file)).unwrap();
            assert!(
                text.contains(r#""generation":1,"#) && text.contains(r#""path":"sub/report.md""#),
                "{text}"
            );
        }
        other => panic!("{other:?}"),
    }
    house.shut_down();
}

#[test]
fn an_undeclared_plane_refuses_reads_and_listings() {
    let tree = Tree::new();
    let mut house = House::with(
        tree.workdir(),
        FileserverConfigure { class: Class::Sealed, files: None, peer_files: None },
    );
    assert_eq!(house.read("report.md").unwrap_err(), PlaneCode::NoResourcePlane);
    let id = house.id();
    house
        .door
        .send(&DoorToFileserver::List {
            id,
            freed: Default::default(),
            until: Moment::after(Duration::from_secs(60)),
        })
        .unwrap();
    let (answer, _, record) = house.answer();
    assert!(matches!(answer, FileserverToDoor::Refused { code: PlaneCode::NoResourcePlane, .. }));
    assert!(matches!(
        record,
        FileserverToBroker::List { refused: Some(PlaneCode::NoResourcePlane), entry_count: 0, .. }
    ));
    house.shut_down();
}

#[test]
fn a_file_that_yields_more_than_its_size_is_read_whole_or_refused() {
    let tree = Tree::new();
    for (max_bytes, expected) in [(1024, Ok(b"Linux\n".to_vec())), (3, Err(PlaneCode::TooLarge))] {
        let mut export = tree.plane_at(Class::Sealed, ".", max_bytes).export;
        export.host_path = None;
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY;
        let workdir = rustix::fs::open("/proc/sys/kernel", flags, rustix::fs::Mode::empty()).unwrap();
        let configure = FileserverConfigure { class: Class::Sealed, files: Some(export), peer_files: None };
        let mut house = House::with(workdir, configure);
        assert_eq!(house.read("ostype").map(|(bytes, _)| bytes), expected);
        house.shut_down();
    }
}

#[test]
fn large_bodies_travel_in_a_sealed_file_and_the_window_is_not_needed() {
    let tree = Tree::new();
    let bytes: Vec<u8> = (0..QUARTER + 5).map(|index| (index % 251) as u8).collect();
    tree.write("out/large", &bytes);
    quarters(&tree, 4);
    let mut house = House::new(&tree, 1 << 30);
    house.fill_window(["q0", "q1", "q2", "q3"]);
    let (body, meta) = house.read("large").unwrap();
    assert!(body == bytes);
    assert_eq!(meta.sha256, <[u8; 32]>::from(Sha256::digest(&bytes)));
    house.shut_down();
    let mut house = House::new(&tree, QUARTER + 4);
    assert_eq!(house.read("large").unwrap_err(), PlaneCode::TooLarge);
    house.shut_down();
}

#[test]
fn a_long_listing_travels_in_a_sealed_file() {
    let tree = Tree::new();
    for index in 0..6000 {
        tree.write(&format!("out/{index:0>120}"), b"");
    }
    let mut house = House::new(&tree, 1024);
    let id = house.id();
    house
        .door
        .send(&DoorToFileserver::List {
            id,
            freed: Default::default(),
            until: Moment::after(Duration::from_secs(60)),
        })
        .unwrap();
    let (answer, file, record) = house.answer();
    assert!(matches!(record, FileserverToBroker::List { entry_count: 6002, .. }));
    let FileserverToDoor::Listing { body: Body::File { length }, .. } = answer else { panic!("{answer:?}") };
    let text = house.body(Body::File { length }, file);
    assert!(text.len() > 1024 * 1024 && text.ends_with(b"}]}"));
    house.shut_down();
}

#[test]
fn the_hash_describes_the_body_whatever_a_writer_does() {
    let tree = Tree::new();
    let path = tree.path("out/torn");
    std::fs::write(&path, b"").unwrap();
    let mut house = House::new(&tree, 600_000);
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let writer = std::thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            let mut round = 0u64;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                round += 1;
                let bytes = vec![b'a' + (round % 26) as u8; (round * 7919 % 500_000) as usize];
                // Truncates, then writes in place: the worst kind of writer.
                std::fs::write(&path, bytes).unwrap();
            }
        }
    });
    for round in 0..600 {
        let (body, meta) = house.read("torn").unwrap();
        assert_eq!(meta.bytes, body.len() as u64, "round {round}");
        assert_eq!(meta.sha256, <[u8; 32]>::from(Sha256::digest(&body)), "round {round}");
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    writer.join().unwrap();
    house.shut_down();
}

#[test]
fn a_body_waits_for_space_and_others_that_fit_do_not() {
    let tree = Tree::new();
    quarters(&tree, 4);
    std::fs::File::options().write(true).open(tree.path("out/q3")).unwrap().set_len(QUARTER - 65536).unwrap();
    let mut house = House::new(&tree, 1 << 30);
    let slots = house.fill_window(["q0", "q1", "q2", "q3"]);
    let waiting = house.ask("q0");
    for _ in 0..50 {
        assert_eq!(house.read("report.md").unwrap().0, b"hello\n");
    }
    assert!(house.no_record(), "the large one has no space yet");
    house.free(slots[1]);
    match house.answer().0 {
        FileserverToDoor::File { id, meta, .. } => assert_eq!((id, meta.bytes), (waiting, QUARTER)),
        other => panic!("{other:?}"),
    }
    house.shut_down();
}

#[test]
fn waiting_for_space_ends() {
    let (channel, _) = pair::<FileserverToDoor, DoorToFileserver>().unwrap();
    let link = Arc::new(Link::new(channel));
    let space = Window::new(map_window(&window().unwrap().0, true).unwrap()).unwrap();
    let desk = Arc::new(Desk::new(space, Duration::from_millis(50)));
    let held = desk.take(WINDOW_BYTES, Leftover::Stays).unwrap();
    assert!(desk.take(1, Leftover::Stays).is_none());
    let job = |id| Job {
        link: Some(Arc::clone(&link)),
        id: RequestId(id),
        task: Task::Read(RelPath::new("x").unwrap()),
        cancel: Arc::default(),
        until: None,
        _place: None,
        generation: None,
        patience: None,
    };
    let begin = Instant::now();
    assert!(desk.put_aside(job(1), 1).is_none());
    assert!(desk.next_ready().is_none());
    assert!(matches!(desk.next_late(), Some(Job { id: RequestId(1), .. })));
    assert!(begin.elapsed() >= Duration::from_millis(50));
    // Space that came free and that nobody has used is no reason to wait longer.
    assert!(desk.put_aside(job(2), 1).is_none() && desk.put_aside(job(3), 1).is_none());
    drop(held);
    assert!(matches!(desk.next_ready(), Some(Job { id: RequestId(2), .. })));
    assert!(matches!(desk.next_late(), Some(Job { id: RequestId(3), .. })));
    assert!(matches!(desk.put_aside(job(4), 1), Some(Job { id: RequestId(4), .. })), "there is space");
    desk.close();
    assert!(desk.next_late().is_none() && desk.next_listing().is_none() && desk.next_door().is_none());
}

#[test]
fn what_waits_for_space_is_served_oldest_first_also_after_it_found_its_space_taken() {
    let (channel, _) = pair::<FileserverToDoor, DoorToFileserver>().unwrap();
    let link = Arc::new(Link::new(channel));
    let space = Window::new(map_window(&window().unwrap().0, true).unwrap()).unwrap();
    let desk = Arc::new(Desk::new(space, Duration::from_secs(3600)));
    let mut held = desk.take(WINDOW_BYTES, Leftover::Stays).unwrap();
    let start = Instant::now() + Duration::from_secs(3600);
    for id in 1..=3 {
        let job = Job {
            link: Some(Arc::clone(&link)),
            id: RequestId(id),
            task: Task::Read(RelPath::new("x").unwrap()),
            cancel: Arc::default(),
            until: None,
            _place: None,
            generation: None,
            patience: Some(start + Duration::from_secs(id)),
        };
        assert!(desk.put_aside(job, 1).is_none());
    }
    let ready = || -> Vec<Job> { std::iter::from_fn(|| desk.next_ready()).collect() };
    for _ in 0..2 {
        drop(held);
        let jobs = ready();
        assert_eq!(jobs.iter().map(|job| job.id.0).collect::<Vec<_>>(), [1, 2, 3]);
        held = desk.take(WINDOW_BYTES, Leftover::Stays).unwrap();
        for job in jobs.into_iter().rev() {
            assert!(desk.put_aside(job, 1).is_none());
        }
    }
}

#[test]
fn a_cancellation_is_heard_before_or_after_what_it_cancels() {
    let (channel, _) = pair::<FileserverToDoor, DoorToFileserver>().unwrap();
    let link = Link::new(channel);
    let space = Window::new(map_window(&window().unwrap().0, true).unwrap()).unwrap();
    let desk = Desk::new(space, Duration::from_secs(1));
    let canceled = |id| link.begin(RequestId(id)).unwrap().load(std::sync::atomic::Ordering::Relaxed);
    assert!(!canceled(1));
    assert!(desk.cancel(&link, RequestId(2), Ended::Canceled).is_none());
    assert!(canceled(2));
    link.finish(RequestId(2));
    assert!(!canceled(2), "only once");
    // However many come late, they are forgotten some day.
    (100..100_000).for_each(|id| assert!(desk.cancel(&link, RequestId(id), Ended::Abandoned).is_none()));
    assert!(!canceled(100) && canceled(99_999));
}

#[test]
fn a_canceled_request_is_still_recorded_and_answered_once() {
    let tree = Tree::new();
    quarters(&tree, 4);
    let mut house = House::new(&tree, 1 << 30);
    house.fill_window(["q0", "q1", "q2", "q3"]);
    let id = house.ask("q0");
    house.door.send(&DoorToFileserver::Cancel { id }).unwrap();
    let (answer, _, record) = house.answer();
    assert!(
        matches!(answer, FileserverToDoor::Refused { id: refused, code: PlaneCode::IoError, .. } if refused == id)
    );
    assert!(matches!(record, FileserverToBroker::Read { outcome: Err(PlaneCode::IoError), .. }));
    // Of a request that was answered, or never made: no answer, no fault.
    house.door.send(&DoorToFileserver::Cancel { id }).unwrap();
    house.door.send(&DoorToFileserver::Cancel { id: RequestId(999) }).unwrap();

    std::fs::File::create(tree.path("out/sparse")).unwrap().set_len(1 << 40).unwrap();
    let id = house.id();
    house
        .door
        .send(&DoorToFileserver::List {
            id,
            freed: Default::default(),
            until: Moment::after(Duration::from_secs(60)),
        })
        .unwrap();
    house.door.send(&DoorToFileserver::Cancel { id }).unwrap();
    let (answer, _, record) = house.answer();
    assert!(matches!(answer, FileserverToDoor::Refused { code: PlaneCode::IoError, .. }));
    assert!(matches!(record, FileserverToBroker::List { refused: Some(PlaneCode::IoError), .. }));
    assert!(house.no_record());
    house.shut_down();
}

/// The door of a client that left records nothing: whatever the hour, it is the fileserver's.
#[test]
fn a_request_that_was_canceled_is_recorded_although_it_is_late_or_waits_for_another() {
    let (channel, _) = pair::<FileserverToDoor, DoorToFileserver>().unwrap();
    let link = Arc::new(Link::new(channel));
    let space = Window::new(map_window(&window().unwrap().0, true).unwrap()).unwrap();
    let desk = Desk::new(space, Duration::from_secs(1));
    for (how, canceled, over) in
        [(Ended::Canceled, true, false), (Ended::Abandoned, true, true), (Ended::Canceled, false, true)]
    {
        let id = RequestId(7);
        let job = Job {
            link: Some(Arc::clone(&link)),
            id,
            task: Task::Read(RelPath::new("a").unwrap()),
            cancel: link.begin(id).unwrap(),
            until: Some(Moment::after(Duration::ZERO)),
            _place: None,
            generation: None,
            patience: None,
        };
        if canceled {
            assert!(desk.cancel(&link, id, how).is_none());
        }
        assert_eq!(job.over(), over, "{how:?} {canceled}");
        link.finish(id);
    }

    let tree = Tree::new();
    std::fs::File::create(tree.path("out/sparse")).unwrap().set_len(1 << 40).unwrap();
    let mut house = House::new(&tree, 1 << 41);
    let [first, second] = [house.id(), house.id()];
    for id in [first, second] {
        let until = Moment::after(Duration::from_secs(60));
        house.door.send(&DoorToFileserver::List { id, freed: Default::default(), until }).unwrap();
    }
    // The second waits for the first, which takes many minutes.
    for id in [second, first] {
        house.door.send(&DoorToFileserver::Cancel { id }).unwrap();
        let (answer, _, record) = house.answer();
        assert!(
            matches!(answer, FileserverToDoor::Refused { id: refused, code: PlaneCode::IoError, .. } if refused == id),
            "{answer:?}"
        );
        assert!(matches!(record, FileserverToBroker::List { refused: Some(PlaneCode::IoError), .. }));
    }
    house.shut_down();
}

/// The door recorded it, so nobody else does.
#[test]
fn an_abandoned_request_is_neither_recorded_nor_answered() {
    let tree = Tree::new();
    quarters(&tree, 4);
    let mut house = House::new(&tree, 1 << 30);
    house.fill_window(["q0", "q1", "q2", "q3"]);
    let id = house.ask("q0");
    house.door.send(&DoorToFileserver::Abandon { id }).unwrap();
    std::fs::File::create(tree.path("out/sparse")).unwrap().set_len(1 << 40).unwrap();
    let listing = house.id();
    house
        .door
        .send(&DoorToFileserver::List {
            id: listing,
            freed: Default::default(),
            until: Moment::after(Duration::from_secs(60)),
        })
        .unwrap();
    house.door.send(&DoorToFileserver::Abandon { id: listing }).unwrap();
    // The next answer and the next record are those of the next request.
    let next = house.ask("none");
    let (answer, _, record) = house.answer();
    assert!(
        matches!(answer, FileserverToDoor::Refused { id, code: PlaneCode::NotFound, .. } if id == next),
        "{answer:?}"
    );
    assert!(matches!(record, FileserverToBroker::Read { outcome: Err(PlaneCode::NotFound), .. }));
    assert!(house.no_record());
    // Its identifier is free again.
    house
        .door
        .send(&DoorToFileserver::Read {
            id,
            path: RelPath::new("none").unwrap(),
            freed: Default::default(),
            until: Moment::after(Duration::from_secs(60)),
        })
        .unwrap();
    assert!(matches!(house.answer().0, FileserverToDoor::Refused { code: PlaneCode::NotFound, .. }));
    house.shut_down();
}

/// The door gave it up, or is about to: it has the record.
#[test]
fn a_request_taken_up_too_late_is_neither_recorded_nor_answered() {
    let tree = Tree::new();
    let mut house = House::new(&tree, 1 << 30);
    let (late, listing) = (house.id(), house.id());
    let until = Moment::after(Duration::ZERO);
    let path = RelPath::new("none").unwrap();
    house.door.send(&DoorToFileserver::Read { id: late, path, freed: Default::default(), until }).unwrap();
    house.door.send(&DoorToFileserver::List { id: listing, freed: Default::default(), until }).unwrap();
    let next = house.ask("none");
    assert!(matches!(house.answer().0, FileserverToDoor::Refused { id, .. } if id == next));
    assert!(house.no_record());
    house.shut_down();
}

#[test]
fn a_new_door_finds_the_window_empty_and_gets_no_answer_of_the_old_one() {
    let tree = Tree::new();
    quarters(&tree, 4);
    let mut house = House::new(&tree, 1 << 30);
    house.fill_window(["q0", "q1", "q2", "q3"]);
    let waiting = house.ask("q0");
    // Taken after the one that waits, and needs no space.
    assert_eq!(house.read("missing").unwrap_err(), PlaneCode::NotFound);
    assert!(house.no_record());
    // Replaced while the old one still lives.
    let old = std::mem::replace(&mut house.door, hand_door(&house.control));
    let record = house.broker.as_mut().unwrap().receive_until(soon()).unwrap().message;
    assert!(
        matches!(record, FileserverToBroker::Read { outcome: Err(PlaneCode::IoError), .. }),
        "{waiting:?} is on record"
    );
    assert_eq!(house.read("q0").unwrap().1.bytes, QUARTER);
    drop(old);
    // Closed before there is a new one.
    house.fill_window(["q0", "q1", "q2", "q3"]);
    let (spare, _) = pair::<DoorToFileserver, FileserverToDoor>().unwrap();
    house.door = spare;
    house.door = hand_door(&house.control);
    house.fill_window(["q0", "q1", "q2", "q3"]);
    house.shut_down();
}

#[test]
fn slots_that_ride_with_a_read_or_a_listing_are_free_again() {
    let tree = Tree::new();
    quarters(&tree, 4);
    let mut house = House::new(&tree, 1 << 30);
    let mut slots = house.fill_window(["q0", "q1", "q2", "q3"]);
    for round in 0..20 {
        // The very read that gives space back finds it.
        let freed = slots.remove(0);
        house.ask_and_free(&format!("q{}", round % 4), &[freed]);
        slots.push(house.slot());
    }
    let waiting = house.ask("q0");
    let id = house.id();
    let freed = vec![slots[1], slots[2]].try_into().unwrap();
    std::fs::remove_dir_all(tree.path("out/sub")).unwrap();
    house
        .door
        .send(&DoorToFileserver::List { id, freed, until: Moment::after(Duration::from_secs(60)) })
        .unwrap();
    let mut answered = [house.answer().0, house.answer().0].map(|answer| match answer {
        FileserverToDoor::File { id, .. } | FileserverToDoor::Listing { id, .. } => id,
        other => panic!("{other:?}"),
    });
    answered.sort_unstable();
    assert_eq!(answered, [waiting, id]);
    house.shut_down();
}

#[test]
fn a_door_that_is_replaced_and_lives_on_is_heard_no_more_and_holds_no_worker() {
    let tree = Tree::new();
    let mut house = House::new(&tree, 1 << 30);
    // All workers wait for messages of a door that is replaced and goes on living.
    for _ in 0..10 {
        let old = std::mem::replace(&mut house.door, hand_door(&house.control));
        // The end of the old one is heard there, and what it still says is heard by nobody.
        assert_eq!(house.read("report.md").unwrap().0, b"hello\n");
        let _ = old.send(&DoorToFileserver::SlotFree { slot: 77 });
        let mut old = old;
        assert!(matches!(old.receive_until(soon()), Err(ChannelError::Closed)));
        assert_eq!(house.read("report.md").unwrap().0, b"hello\n");
    }
    house.shut_down();
}

#[test]
fn requests_beyond_the_bound_are_refused_at_once() {
    let tree = Tree::new();
    quarters(&tree, 4);
    let mut house = House::new(&tree, 1 << 30);
    house.fill_window(["q0", "q1", "q2", "q3"]);
    for _ in 0..IN_FLIGHT {
        house.ask("q0");
    }
    house.ask("q0");
    let (answer, _, record) = house.answer();
    // Which of those that came together is the one too many is decided by who is first.
    assert!(matches!(answer, FileserverToDoor::Refused { code: PlaneCode::IoError, .. }));
    assert!(matches!(record, FileserverToBroker::Read { outcome: Err(PlaneCode::IoError), .. }));
    assert!(house.no_record());
    house.shut_down();
}

#[test]
fn a_door_that_breaks_the_rules_ends_the_process() {
    let tree = Tree::new();
    quarters(&tree, 4);
    let table: [(&str, Breach, Judge); 8] = [
        (
            "frees a slot it was not lent with a read",
            |house| {
                house.ask_and_free("report.md", &[3]);
            },
            |fault| matches!(fault, Fault::UnknownSlot(3)),
        ),
        (
            "frees a slot twice with a read",
            |house| {
                house.ask("report.md");
                let slot = house.slot();
                house.ask_and_free("missing", &[slot, slot]);
            },
            |fault| matches!(fault, Fault::UnknownSlot(_)),
        ),
        (
            "frees a slot it was not lent with a listing",
            |house| {
                let freed = vec![4].try_into().unwrap();
                house
                    .door
                    .send(&DoorToFileserver::List {
                        id: RequestId(1),
                        freed,
                        until: Moment::after(Duration::from_secs(60)),
                    })
                    .unwrap();
            },
            |fault| matches!(fault, Fault::UnknownSlot(4)),
        ),
        (
            "frees a slot it was not lent",
            |house| house.free(0),
            |fault| matches!(fault, Fault::UnknownSlot(0)),
        ),
        (
            "frees a slot twice",
            |house| {
                house.ask("report.md");
                let slot = house.slot();
                house.free(slot);
                house.free(slot);
            },
            |fault| matches!(fault, Fault::UnknownSlot(_)),
        ),
        (
            "uses an identifier twice",
            |house| {
                house.fill_window(["q0", "q1", "q2", "q3"]);
                let id = house.ask("q0");
                let path = RelPath::new("report.md").unwrap();
                house
                    .door
                    .send(&DoorToFileserver::Read {
                        id,
                        path,
                        freed: Default::default(),
                        until: Moment::after(Duration::from_secs(60)),
                    })
                    .unwrap();
            },
            |fault| matches!(fault, Fault::ReusedRequest),
        ),
        (
            "sends bytes that are no message",
            |house| ipc::sys::send_packet(house.door.as_fd(), b"\xff\xff\xff\xff", &[], true).unwrap(),
            |fault| matches!(fault, Fault::Door(ChannelError::Codec(_))),
        ),
        (
            "sends a path that leaves the root",
            |house| {
                let good = DoorToFileserver::Read {
                    id: RequestId(7),
                    path: RelPath::new("aa/x").unwrap(),
                    freed: Default::default(),
                    until: Moment::after(Duration::from_secs(60)),
                };
                let mut bytes = ipc::codec::encode(&good).unwrap();
                let place = bytes.windows(4).position(|four| four == b"aa/x").unwrap();
                bytes[place..place + 4].copy_from_slice(b"../x");
                ipc::sys::send_packet(house.door.as_fd(), &bytes, &[], true).unwrap();
            },
            |fault| matches!(fault, Fault::Door(ChannelError::Codec(_))),
        ),
    ];
    for (what, breach, is_fault) in table {
        let mut house = House::new(&tree, 1 << 30);
        breach(&mut house);
        let fault = house.fault();
        assert!(is_fault(&fault), "a door that {what}: {fault:?}");
    }
}

#[test]
fn without_the_broker_nothing_is_served() {
    let tree = Tree::new();
    let mut house = House::new(&tree, 1024);
    house.broker = None;
    let fault = house.fault();
    assert!(matches!(fault, Fault::Broker(ChannelError::Closed)), "{fault:?}");

    let house = House::new(&tree, 1024);
    drop(house.control);
    let fault = house.server.join().unwrap().unwrap_err();
    assert!(matches!(fault, Fault::Control(ChannelError::Closed)), "{fault:?}");
}

#[test]
fn orders_out_of_turn_end_the_process() {
    let tree = Tree::new();
    let (control, server, _faults) = spawn(tree.workdir());
    let _door = hand_door(&control);
    assert!(matches!(server.join().unwrap(), Err(Fault::Order(_))));

    let house = House::new(&tree, 1024);
    let configure = FileserverConfigure { class: Class::Sealed, files: None, peer_files: None };
    let (one, other) = ipc::sys::packet_pair().unwrap();
    let order = ToRole::Order(FileserverOrder::Configure(configure));
    house.control.send_with(&order, &[one.as_fd(), other.as_fd(), other.as_fd()]).unwrap();
    assert!(matches!(house.server.join().unwrap(), Err(Fault::Order(_))));
}

#[test]
fn no_descriptor_of_the_tree_stays_open() {
    let tree = Tree::new();
    tree.link("report.md", "out/alias");
    tree.link("../secret.txt", "out/esc");
    tree.fifo("out/p", 0o644);
    let mut house = House::new(&tree, 1024);
    for _ in 0..500 {
        for path in ["report.md", "alias", "esc", "p", "sub", "missing/x", "sub/report.md"] {
            let _ = house.read(path);
        }
    }
    let place = tree.place.clone();
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let open =
        links.filter_map(|fd| std::fs::read_link(fd.path()).ok()).filter(|path| path.starts_with(&place));
    assert_eq!(open.count(), 1, "the workdir and nothing else");
    house.shut_down();
}
