//! The built binary, locked down as the broker locks it down, serves every kind of answer and ends as told.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of a test fail by panicking"
)]

use std::io::{Read, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use confine::spawn::{Child, Exit, Program, spawn};
use ipc::edge::broker_fileserver::{BrokerToFileserver, FileserverToBroker};
use ipc::edge::control::{
    Begin, BrokerControl, ExportRoot, FileserverConfigure, FileserverOrder, FromRole, ToRole, WORKDIR,
    expect_hello,
};
use ipc::edge::door_fileserver::{Body, DoorToFileserver, FileserverToDoor};
use ipc::memory::{CounterWriter, map_window, read_sealed, window};
use ipc::sys::Mapping;
use ipc::types::{Class, Moment, PlaneCode, RelPath, RequestId};
use ipc::{Channel, pair};

const ID: u32 = 61_235;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

struct Confined {
    child: Child,
    log: std::fs::File,
    control: BrokerControl<FileserverOrder>,
    broker: Channel<BrokerToFileserver, FileserverToBroker>,
    door: Channel<DoorToFileserver, FileserverToDoor>,
    window: Mapping,
    _counter: CounterWriter,
}

/// The workdir, removed at the end.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn scratch(name: &str) -> Scratch {
    let place = Scratch(std::env::temp_dir().join(format!("confined-{name}-{}", std::process::id())));
    std::fs::create_dir_all(place.0.join("out/sub")).unwrap();
    std::fs::create_dir(place.0.join("peer")).unwrap();
    std::fs::write(place.0.join("peer/doc"), "shared\n").unwrap();
    std::os::unix::fs::symlink("doc", place.0.join("peer/alias")).unwrap();
    std::fs::write(place.0.join("secret"), "CANARY").unwrap();
    std::fs::write(place.0.join("out/report.md"), "hello\n").unwrap();
    std::fs::write(place.0.join("out/large"), vec![b'x'; 20_000_000]).unwrap();
    std::os::unix::fs::symlink("report.md", place.0.join("out/alias")).unwrap();
    std::os::unix::fs::symlink("../secret", place.0.join("out/esc")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", place.0.join("out/passwd")).unwrap();
    place
}

/// `None`, and why, where it cannot be confined.
fn start(workdir: &Path) -> Option<Confined> {
    if std::fs::metadata(workdir.join("secret")).unwrap().uid() != 0 {
        let _ = writeln!(std::io::stderr(), "NOT RUN: the confined binary: needs root");
        return None;
    }
    let binary = Path::new(env!("CARGO_BIN_EXE_fileserver"));
    let name = binary.file_name().unwrap().to_str().unwrap();
    let program = Program::open(binary.parent().unwrap(), name).unwrap();
    let (mut control, far) = pair::<ToRole<FileserverOrder>, FromRole>().unwrap();
    let far = far.into_descriptor().unwrap();
    let (log, log_end) = std::io::pipe().unwrap();
    let child = spawn(&program, None, far.as_fd(), log_end.as_fd()).unwrap();
    drop((far, log_end));
    expect_hello(&control, soon()).unwrap();
    let directory = std::fs::File::open(workdir).unwrap();
    let map = confine::mount::id_map((0, 0), (ID, ID)).unwrap();
    let read_only = confine::mount::Attributes { read_only: true };
    let tree = confine::mount::tree(directory.as_fd(), Some(&map), read_only);
    let Ok(tree) = tree else {
        let _ = writeln!(
            std::io::stderr(),
            "NOT RUN: the confined binary: this file system refuses id-mapped mounts"
        );
        let _ = child.kill();
        let _ = child.wait();
        return None;
    };
    let begin = Begin {
        uid: ID,
        gid: ID,
        user_namespace: false,
        join_network: false,
        trees: vec![WORKDIR.into()],
        read_only: vec![],
        programs: None,
    };
    control.send_with(&ToRole::Begin(begin), &[tree.as_fd()]).unwrap();
    match control.receive_until(soon()).unwrap().message {
        FromRole::Ready(_) => {}
        other => panic!("{other:?}"),
    }
    let (broker, far_broker) = pair::<BrokerToFileserver, FileserverToBroker>().unwrap();
    let (writable, readable) = window().unwrap();
    let (counter, page) = CounterWriter::new().unwrap();
    let export = ExportRoot {
        verbatim: "out/".into(),
        components: vec!["out".into()],
        host_path: Some(workdir.canonicalize().unwrap().join("out").to_str().unwrap().into()),
        max_bytes: 30_000_000,
    };
    let peer_files =
        Some(ExportRoot { verbatim: "peer/".into(), components: vec!["peer".into()], ..export.clone() });
    let configure = FileserverConfigure { class: Class::Sealed, files: Some(export), peer_files };
    let far_broker = far_broker.into_descriptor().unwrap();
    let gifts: [BorrowedFd<'_>; 3] = [far_broker.as_fd(), writable.as_fd(), page.as_fd()];
    control.send_with(&ToRole::Order(FileserverOrder::Configure(configure)), &gifts).unwrap();
    let (door, far_door) = pair::<DoorToFileserver, FileserverToDoor>().unwrap();
    let far_door = far_door.into_descriptor().unwrap();
    control.send_with(&ToRole::Order(FileserverOrder::Door), &[far_door.as_fd()]).unwrap();
    let window = map_window(&readable, false).unwrap();
    Some(Confined { child, log: OwnedFd::from(log).into(), control, broker, door, window, _counter: counter })
}

impl Confined {
    fn ask(&mut self, message: &DoorToFileserver) -> (FileserverToDoor, Vec<u8>) {
        self.door.send(message).unwrap();
        self.answer()
    }

    fn answer(&mut self) -> (FileserverToDoor, Vec<u8>) {
        let mut received = match self.door.receive_until(soon()) {
            Ok(received) => received,
            Err(error) => {
                let _ = self.child.kill();
                let mut log = String::new();
                let _ = self.log.read_to_string(&mut log);
                panic!("{error}: {log}");
            }
        };
        self.broker.receive_until(Instant::now()).unwrap();
        let file = received.descriptors.pop();
        let bytes = match &received.message {
            FileserverToDoor::Listing { body, .. }
            | FileserverToDoor::File { body, .. }
            | FileserverToDoor::Redeemed { outcome: Ok((_, body)), .. } => match body {
                Body::Slot { slot, offset, length } => {
                    let range = (usize::try_from(*offset).unwrap(), usize::try_from(*length).unwrap());
                    let bytes = self.window.bytes(range.0, range.1).unwrap().to_vec();
                    self.door.send(&DoorToFileserver::SlotFree { slot: *slot }).unwrap();
                    bytes
                }
                Body::File { .. } => read_sealed(file.unwrap(), 1 << 30).unwrap(),
            },
            FileserverToDoor::Refused { .. } | FileserverToDoor::Redeemed { .. } => Vec::new(),
        };
        (received.message, bytes)
    }

    fn read(&mut self, path: &str) -> Result<Vec<u8>, PlaneCode> {
        let path = RelPath::new(path).unwrap();
        match self.ask(&DoorToFileserver::Read {
            id: RequestId(1),
            path,
            freed: Default::default(),
            until: Moment::after(Duration::from_secs(60)),
        }) {
            (FileserverToDoor::File { .. }, bytes) => Ok(bytes),
            (FileserverToDoor::Refused { code, .. }, _) => Err(code),
            (other, _) => panic!("{other:?}"),
        }
    }

    fn end(mut self) -> (Exit, String) {
        let exit = self.child.wait().unwrap();
        let mut log = String::new();
        self.log.read_to_string(&mut log).unwrap();
        (exit, log)
    }
}

#[test]
fn the_confined_binary_serves_reads_and_listings_and_ends_with_0() {
    let workdir = scratch("serves");
    let Some(mut confined) = start(&workdir.0) else { return };
    for _ in 0..100 {
        assert_eq!(confined.read("report.md").unwrap(), b"hello\n");
    }
    assert_eq!(confined.read("alias").unwrap(), b"hello\n");
    assert_eq!(confined.read("large").unwrap(), vec![b'x'; 20_000_000]);
    let refused = [
        ("esc", PlaneCode::OutsideRoot),
        ("passwd", PlaneCode::OutsideRoot),
        ("missing", PlaneCode::NotFound),
        ("sub", PlaneCode::NotARegularFile),
    ];
    for (path, code) in refused {
        assert_eq!(confined.read(path).unwrap_err(), code, "{path}");
    }
    let (id, path) = (RequestId(1), RelPath::new("alias").unwrap());
    confined.broker.send(&BrokerToFileserver::VerifiedRead { id, path: path.clone() }).unwrap();
    assert_eq!(confined.answer().1, b"shared\n");
    confined.broker.send(&BrokerToFileserver::Canonicalise { id, path }).unwrap();
    match confined.broker.receive_until(soon()).unwrap().message {
        FileserverToBroker::Canonical { outcome: Ok(path), .. } => assert_eq!(path.as_str(), "doc"),
        other => panic!("{other:?}"),
    }
    let list = DoorToFileserver::List {
        id: RequestId(2),
        freed: Default::default(),
        until: Moment::after(Duration::from_secs(60)),
    };
    let text = String::from_utf8(confined.ask(&list).1).unwrap();
    assert!(
        text.contains(r#""path":"alias""#) && !text.contains("esc") && !text.contains("passwd"),
        "{text}"
    );
    for index in 0..8000 {
        std::fs::write(workdir.0.join(format!("out/sub/{index:0>100}")), "x").unwrap();
    }
    let text = confined.ask(&list).1;
    assert!(text.len() > 1024 * 1024 && text.ends_with(b"}]}"));
    confined.control.send(&ToRole::Shutdown).unwrap();
    assert_eq!(confined.end(), (Exit::Status(0), String::new()));
}

#[test]
fn the_confined_binary_says_why_it_ends() {
    let workdir = scratch("ends");
    let Some(mut confined) = start(&workdir.0) else { return };
    assert_eq!(confined.read("report.md").unwrap(), b"hello\n");
    confined.door.send(&DoorToFileserver::SlotFree { slot: 9 }).unwrap();
    let (exit, log) = confined.end();
    assert_eq!(exit, Exit::Status(3));
    assert_eq!(log, "fileserver: the door freed slot 9, which it does not hold\n");
}
