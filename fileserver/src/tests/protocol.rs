//! The whole process but for its confinement: real channels, a real window, the broker and the door played by the test.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ipc::edge::broker_fileserver::Served;
use ipc::edge::control::{FileserverConfigure, FileserverOrder, FromRole, ToRole};
use ipc::edge::door_fileserver::{Body, DoorToFileserver, FileserverToDoor};
use ipc::memory::{CounterWriter, WINDOW_BYTES, map_window, read_sealed, window};
use ipc::sys::Mapping;
use ipc::types::{Class, FileMeta, MAX_RELPATH, PlaneCode, RelPath, RequestId};
use ipc::{Channel, ChannelError, Never, pair};
use sha2::{Digest, Sha256};

use super::Tree;
use crate::desk::{Desk, IN_FLIGHT, Job, Link, Next};
use crate::orders;
use crate::serve::Fault;
use crate::window::Window;

const QUARTER: u64 = (WINDOW_BYTES / 4) as u64;

type Door = Channel<DoorToFileserver, FileserverToDoor>;
type Control = Channel<ToRole<FileserverOrder>, FromRole>;
type Server = JoinHandle<Result<(), Fault>>;
type Breach = fn(&mut House);
type Judge = fn(&Fault) -> bool;

/// A running fileserver with its neighbours.
struct House {
    control: Control,
    broker: Option<Channel<Never, Served>>,
    door: Door,
    window: Mapping,
    counter: CounterWriter,
    server: Server,
    faults: mpsc::Receiver<Fault>,
    next: u64,
}

fn soon() -> Instant {
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
        Self::with(tree.workdir(), FileserverConfigure { class: plane.class, files: Some(plane.export) })
    }

    fn with(workdir: OwnedFd, configure: FileserverConfigure) -> Self {
        let (control, server, faults) = spawn(workdir);
        let (broker, servers_broker) = pair::<Never, Served>().unwrap();
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

    fn ask(&mut self, path: &str) -> RequestId {
        let id = self.id();
        self.door.send(&DoorToFileserver::Read { id, path: RelPath::new(path).unwrap() }).unwrap();
        id
    }

    /// The next answer. Its record is there already.
    fn answer(&mut self) -> (FileserverToDoor, Option<OwnedFd>, Served) {
        let mut received = self.door.receive_until(soon()).unwrap();
        let record = self.broker.as_mut().unwrap().receive_until(soon_enough()).unwrap().message;
        (received.message, received.descriptors.pop(), record)
    }

    fn no_record(&mut self) -> bool {
        let now = Instant::now();
        matches!(self.broker.as_mut().unwrap().receive_until(now), Err(ChannelError::TimedOut))
    }

    fn free(&self, slot: u32) {
        self.door.send(&DoorToFileserver::SlotFree { slot }).unwrap();
    }

    /// Asks for a file and takes its bytes, however they travel.
    fn read(&mut self, path: &str) -> Result<(Vec<u8>, FileMeta), PlaneCode> {
        let asked = self.ask(path);
        let (answer, file, record) = self.answer();
        let Served::Read { path: recorded, generation, outcome } = record else { panic!("{record:?}") };
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
            FileserverToDoor::Listing { .. } => panic!("a listing for a read"),
        }
    }

    fn body(&self, body: Body, file: Option<OwnedFd>) -> Vec<u8> {
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
    fn fill_window(&mut self, names: [&str; 4]) -> Vec<u32> {
        for name in names {
            self.ask(name);
        }
        (0..names.len())
            .map(|_| match self.answer().0 {
                FileserverToDoor::File { body: Body::Slot { slot, .. }, .. } => slot,
                other => panic!("{other:?}"),
            })
            .collect()
    }

    fn shut_down(self) {
        self.control.send(&ToRole::Shutdown).unwrap();
        self.server.join().unwrap().unwrap();
        assert!(self.faults.try_recv().is_err());
    }
}

/// Records are sent before answers, so one that belongs to an answer needs no waiting for.
fn soon_enough() -> Instant {
    Instant::now()
}

fn hand_door(control: &Control) -> Door {
    let (door, servers_door) = pair::<DoorToFileserver, FileserverToDoor>().unwrap();
    let channel = servers_door.into_descriptor().unwrap();
    control.send_with(&ToRole::Order(FileserverOrder::Door), &[channel.as_fd()]).unwrap();
    door
}

/// `count` files of a quarter of the window each.
fn quarters(tree: &Tree, count: usize) {
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
    house.ask(&"é".repeat(5000));
    house.ask(&format!("x{}", "é".repeat(5000)));
    for expected in [MAX_RELPATH, MAX_RELPATH - 1] {
        match house.answer().2 {
            Served::Read { path, outcome: Err(PlaneCode::NotFound), .. } => assert_eq!(path.len(), expected),
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
    house.door.send(&DoorToFileserver::List { id }).unwrap();
    match house.answer() {
        (
            FileserverToDoor::Listing { generation: 1, body, .. },
            file,
            Served::List { generation: 1, entry_count: 2, total_bytes: 12, refused: None },
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
    let mut house = House::with(tree.workdir(), FileserverConfigure { class: Class::Sealed, files: None });
    assert_eq!(house.read("report.md").unwrap_err(), PlaneCode::NoResourcePlane);
    let id = house.id();
    house.door.send(&DoorToFileserver::List { id }).unwrap();
    let (answer, _, record) = house.answer();
    assert!(matches!(answer, FileserverToDoor::Refused { code: PlaneCode::NoResourcePlane, .. }));
    assert!(matches!(record, Served::List { refused: Some(PlaneCode::NoResourcePlane), entry_count: 0, .. }));
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
        let configure = FileserverConfigure { class: Class::Sealed, files: Some(export) };
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
    house.door.send(&DoorToFileserver::List { id }).unwrap();
    let (answer, file, record) = house.answer();
    assert!(matches!(record, Served::List { entry_count: 6002, .. }));
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
    let (sender, _) = pair::<FileserverToDoor, DoorToFileserver>().unwrap();
    let link = Arc::new(Link::new(sender.sender()));
    let space = Window::new(map_window(&window().unwrap().0, true).unwrap()).unwrap();
    let desk = Arc::new(Desk::new(space, Duration::from_millis(50)));
    let held = desk.take(WINDOW_BYTES).unwrap();
    assert!(desk.take(1).is_none());
    let job = |id| Job {
        link: Arc::clone(&link),
        id: RequestId(id),
        path: Some(RelPath::new("x").unwrap()),
        cancel: Arc::default(),
        generation: None,
        patience: None,
    };
    let begin = Instant::now();
    desk.put_aside(job(1), 1);
    assert!(matches!(desk.next(), Some(Next::Refuse(Job { id: RequestId(1), .. }))));
    assert!(begin.elapsed() >= Duration::from_millis(50));
    desk.put_aside(job(2), 1);
    drop(held);
    assert!(matches!(desk.next(), Some(Next::Serve(Job { id: RequestId(2), .. }))));
    desk.close();
    assert!(desk.next().is_none() && desk.next_listing().is_none());
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
    assert!(matches!(record, Served::Read { outcome: Err(PlaneCode::IoError), .. }));
    // Of a request that was answered, or never made: no answer, no fault.
    house.door.send(&DoorToFileserver::Cancel { id }).unwrap();
    house.door.send(&DoorToFileserver::Cancel { id: RequestId(999) }).unwrap();

    std::fs::File::create(tree.path("out/sparse")).unwrap().set_len(1 << 40).unwrap();
    let id = house.id();
    house.door.send(&DoorToFileserver::List { id }).unwrap();
    house.door.send(&DoorToFileserver::Cancel { id }).unwrap();
    let (answer, _, record) = house.answer();
    assert!(matches!(answer, FileserverToDoor::Refused { code: PlaneCode::IoError, .. }));
    assert!(matches!(record, Served::List { refused: Some(PlaneCode::IoError), .. }));
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
        matches!(record, Served::Read { outcome: Err(PlaneCode::IoError), .. }),
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
fn requests_beyond_the_bound_are_refused_at_once() {
    let tree = Tree::new();
    quarters(&tree, 4);
    let mut house = House::new(&tree, 1 << 30);
    house.fill_window(["q0", "q1", "q2", "q3"]);
    for _ in 0..IN_FLIGHT {
        house.ask("q0");
    }
    let beyond = house.ask("q0");
    let (answer, _, record) = house.answer();
    assert!(matches!(answer, FileserverToDoor::Refused { id, code: PlaneCode::IoError, .. } if id == beyond));
    assert!(matches!(record, Served::Read { outcome: Err(PlaneCode::IoError), .. }));
    house.shut_down();
}

#[test]
fn a_door_that_breaks_the_rules_ends_the_process() {
    let tree = Tree::new();
    quarters(&tree, 4);
    let table: [(&str, Breach, Judge); 5] = [
        (
            "frees a slot it was not lent",
            |house| house.free(0),
            |fault| matches!(fault, Fault::UnknownSlot(0)),
        ),
        (
            "frees a slot twice",
            |house| {
                house.ask("report.md");
                match house.answer().0 {
                    FileserverToDoor::File { body: Body::Slot { slot, .. }, .. } => {
                        house.free(slot);
                        house.free(slot);
                    }
                    other => panic!("{other:?}"),
                }
            },
            |fault| matches!(fault, Fault::UnknownSlot(_)),
        ),
        (
            "uses an identifier twice",
            |house| {
                house.fill_window(["q0", "q1", "q2", "q3"]);
                let id = house.ask("q0");
                let path = RelPath::new("report.md").unwrap();
                house.door.send(&DoorToFileserver::Read { id, path }).unwrap();
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
                let good = DoorToFileserver::Read { id: RequestId(7), path: RelPath::new("aa/x").unwrap() };
                let mut bytes = ipc::codec::encode(&good).unwrap();
                let end = bytes.len();
                bytes[end - 4..].copy_from_slice(b"../x");
                ipc::sys::send_packet(house.door.as_fd(), &bytes, &[], true).unwrap();
            },
            |fault| matches!(fault, Fault::Door(ChannelError::Codec(_))),
        ),
    ];
    for (what, breach, is_fault) in table {
        let mut house = House::new(&tree, 1 << 30);
        breach(&mut house);
        let fault = house.server.join().unwrap().unwrap_err();
        assert!(is_fault(&fault), "a door that {what}: {fault:?}");
    }
}

#[test]
fn without_the_broker_nothing_is_served() {
    let tree = Tree::new();
    let mut house = House::new(&tree, 1024);
    house.broker = None;
    let fault = house.server.join().unwrap().unwrap_err();
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
    let configure = FileserverConfigure { class: Class::Sealed, files: None };
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
