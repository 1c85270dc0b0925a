//! A door in a thread, wired as the broker wires it, with the other ends of its channels in the test's hands.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use door::{DoorError, Limits};
use ipc::edge::control::{DoorConfigure, DoorOrder, FromRole, PlaneConstants, ToRole};
use ipc::edge::door_broker::{BrokerToDoor, DoorToBroker};
use ipc::edge::door_fileserver::{Body, DoorToFileserver, FileserverToDoor};
use ipc::edge::door_host::DoorToHost;
use ipc::sys::Mapping;
use ipc::types::{Class, FileMeta, PlaneCode, RequestId};
use ipc::{Channel, Never};

/// Longer than anything a test waits for when all is well.
pub(crate) const LONG: Duration = Duration::from_secs(10);

pub(crate) struct House {
    pub(crate) address: SocketAddr,
    pub(crate) control: Channel<ToRole<DoorOrder>, FromRole>,
    pub(crate) broker: Channel<BrokerToDoor, DoorToBroker>,
    pub(crate) host: Option<Channel<Never, DoorToHost>>,
    thread: Option<JoinHandle<Result<(), DoorError>>>,
}

/// The first redeem of a door.
pub(crate) const FIRST: u64 = 5000;

pub(crate) fn constants() -> DoorConfigure {
    DoorConfigure {
        class: Class::Sealed,
        files: Some(PlaneConstants { root: "out/".into(), max_bytes: 1 << 30 }),
        peer_files: false,
        requests_from: FIRST,
        card: "{\"name\":\"reporter\"}".into(),
        agent: true,
    }
}

impl House {
    /// A serving door in a thread, without a fileserver.
    pub(crate) fn new(limits: Limits, constants: DoorConfigure) -> Self {
        let (control, door_end) = ipc::pair::<ToRole<DoorOrder>, FromRole>().unwrap();
        let thread = std::thread::Builder::new()
            .name("door".into())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
                runtime.unwrap().block_on(door::run(door_end, limits))
            })
            .unwrap();
        House { thread: Some(thread), ..House::wired(control, constants) }
    }

    /// A serving door at the other end of `control`, wherever that is.
    pub(crate) fn wired(control: Channel<ToRole<DoorOrder>, FromRole>, constants: DoorConfigure) -> Self {
        let (broker, to_broker) = ipc::pair::<BrokerToDoor, DoorToBroker>().unwrap();
        let (host, to_host) = ipc::pair::<Never, DoorToHost>().unwrap();
        let agent = constants.agent;
        order(&control, DoorOrder::Configure(constants), &[&to_broker.into_descriptor().unwrap()]);
        if agent {
            order(&control, DoorOrder::SandboxHost, &[&to_host.into_descriptor().unwrap()]);
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        order(&control, DoorOrder::Serve, &[&OwnedFd::from(listener)]);
        House { address, control, broker, host: agent.then_some(host), thread: None }
    }

    /// Gives the door a (new) fileserver.
    pub(crate) fn fileserver(&self) -> (Channel<FileserverToDoor, DoorToFileserver>, Mapping) {
        let (fileserver, door_end) = ipc::pair::<FileserverToDoor, DoorToFileserver>().unwrap();
        let (writable, readable) = ipc::memory::window().unwrap();
        let window = ipc::memory::map_window(&writable, true).unwrap();
        order(&self.control, DoorOrder::Fileserver, &[&door_end.into_descriptor().unwrap(), &readable]);
        (fileserver, window)
    }

    /// The next record.
    pub(crate) fn record(&mut self) -> DoorToBroker {
        self.broker.receive_until(Instant::now() + LONG).unwrap().message
    }

    /// How the door ended.
    pub(crate) fn join(self) -> Result<(), DoorError> {
        self.thread.unwrap().join().unwrap()
    }

    /// How the door ends once the broker's end of its control channel closes.
    pub(crate) fn orphan(self) -> Result<(), DoorError> {
        drop(self.control);
        self.thread.unwrap().join().unwrap()
    }

    /// Orders the door to end and waits for it.
    pub(crate) fn shut_down(self) {
        self.control.send(&ToRole::Shutdown).unwrap();
        self.join().unwrap();
    }
}

fn order(control: &Channel<ToRole<DoorOrder>, FromRole>, order: DoorOrder, descriptors: &[&OwnedFd]) {
    let descriptors: Vec<_> = descriptors.iter().map(|fd| fd.as_fd()).collect();
    control.send_with(&ToRole::Order(order), &descriptors).unwrap();
}

/// A door with default limits and a [`Files`] behind it.
pub(crate) fn house() -> (House, Files) {
    let house = House::new(Limits::default(), constants());
    let files = Files::start(&house);
    (house, files)
}

/// A fileserver in a thread that answers by name and reports every message it got.
pub(crate) struct Files {
    pub(crate) messages: mpsc::Receiver<DoorToFileserver>,
}

pub(crate) const REPORT: &[u8] = b"hello\n";
pub(crate) const LISTING: &[u8] = b"{\"root\":\"out/\",\"entries\":[]}";

/// The bytes of `large` (in a slot) and `file` (in a memory file).
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    let mut bytes = vec![b'.'; length];
    for (number, block) in bytes.chunks_exact_mut(1024).enumerate() {
        block[..4].copy_from_slice(&(number as u32).to_le_bytes());
    }
    bytes
}

pub(crate) fn meta(bytes: usize) -> FileMeta {
    FileMeta { bytes: bytes as u64, sha256: [0xab; 32], mtime_ms: 1_787_577_327_015, generation: 3 }
}

impl Files {
    pub(crate) fn start(house: &House) -> Self {
        let (mut channel, mut window) = house.fileserver();
        let (report, messages) = mpsc::channel();
        std::thread::spawn(move || {
            let mut slot = 0;
            while let Ok(received) = channel.receive() {
                let mut put = |bytes: &[u8]| {
                    slot += 1;
                    let offset = (slot as usize % 2) * (32 << 20);
                    window.bytes_mut(offset, bytes.len()).unwrap().copy_from_slice(bytes);
                    Body::Slot { slot, offset: offset as u64, length: bytes.len() as u64 }
                };
                let mut file = None;
                let answer = match &received.message {
                    DoorToFileserver::List { id, .. } => {
                        Some(FileserverToDoor::Listing { id: *id, generation: 3, body: put(LISTING) })
                    }
                    DoorToFileserver::Read { id, path, .. } => match path.as_str() {
                        "report.md" => Some(served(*id, REPORT.len(), put(REPORT))),
                        "large" => Some(served(*id, 24 << 20, put(&pattern(24 << 20)))),
                        "empty" => Some(served(*id, 0, put(b""))),
                        "file" => {
                            let bytes = pattern(20_000_001);
                            file = Some(ipc::memory::sealed_bytes("file", &bytes).unwrap());
                            let body = Body::File { length: bytes.len() as u64 };
                            Some(served(*id, bytes.len(), body))
                        }
                        "never" => None,
                        name => {
                            let code = PlaneCode::ALL.into_iter().find(|code| code.as_str() == name);
                            let code = code.unwrap_or(PlaneCode::NotFound);
                            Some(FileserverToDoor::Refused { id: *id, generation: 3, code })
                        }
                    },
                    DoorToFileserver::Cancel { .. }
                    | DoorToFileserver::Abandon { .. }
                    | DoorToFileserver::SlotFree { .. } => None,
                };
                let _ = report.send(received.message);
                if let Some(answer) = answer {
                    let descriptors: Vec<_> = file.iter().map(|fd| fd.as_fd()).collect();
                    if channel.send_with(&answer, &descriptors).is_err() {
                        return;
                    }
                }
            }
        });
        Files { messages }
    }

    pub(crate) fn next(&self) -> DoorToFileserver {
        self.messages.recv_timeout(LONG).unwrap()
    }
}

pub(crate) fn served(id: RequestId, bytes: usize, body: Body) -> FileserverToDoor {
    FileserverToDoor::File { id, meta: meta(bytes), body }
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.set_write_timeout(Some(LONG)).unwrap();
    stream
}

/// Writes exactly these bytes and reads to the end.
pub(crate) fn raw(address: SocketAddr, bytes: &[u8]) -> Reply {
    let mut stream = connect(address);
    stream.write_all(bytes).unwrap();
    finish(stream)
}

pub(crate) fn get(address: SocketAddr, target: &str) -> Reply {
    raw(address, format!("GET {target} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes())
}

/// Reads to the end of the connection, a reset included.
pub(crate) fn finish(mut stream: TcpStream) -> Reply {
    let mut bytes = Vec::new();
    if let Err(error) = stream.read_to_end(&mut bytes) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    }
    Reply(bytes)
}

/// Everything that came back on a connection.
pub(crate) struct Reply(pub(crate) Vec<u8>);

impl Reply {
    fn end_of_head(&self) -> usize {
        self.0.windows(4).position(|four| four == b"\r\n\r\n").expect("a whole head") + 4
    }

    pub(crate) fn head(&self) -> String {
        String::from_utf8(self.0[..self.end_of_head()].to_vec()).unwrap()
    }

    pub(crate) fn status(&self) -> u16 {
        self.head()[9..12].parse().unwrap()
    }

    pub(crate) fn body(&self) -> &[u8] {
        &self.0[self.end_of_head()..]
    }

    pub(crate) fn has(&self, line: &str) -> bool {
        self.head().contains(&format!("\r\n{line}\r\n"))
    }

    /// Whether this is one whole refusal with this code and nothing else.
    pub(crate) fn refuses(&self, code: PlaneCode) -> bool {
        let body = format!("{{\"error\":\"{}\",\"message\":\"{}\"}}", code.as_str(), code.message());
        self.status() == code.status()
            && self.has("content-type: application/json")
            && self.has(&format!("content-length: {}", body.len()))
            && self.has("connection: close")
            && self.has("allow: GET") == (code == PlaneCode::MethodNotAllowed)
            && self.body() == body.as_bytes()
    }
}
