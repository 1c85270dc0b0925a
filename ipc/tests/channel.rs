//! Channels against honest and hostile peers. The peer writes with `passfd` (an implementation of descriptor passing that is
//! not ours) or with raw calls, so that both ends are never wrong in the same way.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::undocumented_unsafe_blocks,
    reason = "a test fails by panicking; helpers outside #[test] functions are not seen as tests"
)]

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use ipc::edge::control::{Begin, DoorOrder, EgressOrder, FromRole, Report, ToRole, expect_hello};
use ipc::edge::door_fileserver::{Body, DoorToFileserver, FileserverToDoor, Slots};
use ipc::types::{FileMeta, Moment, PlaneCode, RelPath, RequestId};
use ipc::{Channel, ChannelError, MAX_PACKET, Message, Never, pair};
use passfd::FdPassingExt;

/// An end of a channel, and the other end as a raw socket for a peer that does as it likes.
fn against_raw<Tx: Message, Rx: Message>() -> (Channel<Tx, Rx>, OwnedFd) {
    let (ours, theirs) = ipc::sys::packet_pair().unwrap();
    (Channel::from_descriptor(ours).unwrap(), theirs)
}

fn send_raw(socket: &OwnedFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
    ipc::sys::send_packet(socket.as_fd(), bytes, descriptors, true).unwrap();
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(5)
}

#[test]
fn messages_of_every_shape_arrive_as_they_were_sent() {
    let (door, mut fileserver) = pair::<DoorToFileserver, FileserverToDoor>().unwrap();
    let path = RelPath::new("a/b").unwrap();
    door.send(&DoorToFileserver::Read {
        id: RequestId(9),
        path: path.clone(),
        freed: Default::default(),
        until: Moment::after(Duration::from_secs(60)),
    })
    .unwrap();
    match fileserver.receive().unwrap().message {
        DoorToFileserver::Read { id, path: received, .. } => assert_eq!((id, received), (RequestId(9), path)),
        other => panic!("{other:?}"),
    }
    let file = std::fs::File::open("/dev/null").unwrap();
    let meta = FileMeta { bytes: 3, sha256: [7; 32], mtime_ms: 1, generation: 2 };
    let message = FileserverToDoor::File { id: RequestId(9), meta, body: Body::File { length: 3 } };
    fileserver.send_with(&message, &[file.as_fd()]).unwrap();
    let mut door = door;
    let received = door.receive_until(soon()).unwrap();
    assert_eq!(received.descriptors.len(), 1);
    let flags = rustix::io::fcntl_getfd(&received.descriptors[0]).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC), "close-on-exec at receipt");
}

#[test]
fn the_wire_has_golden_bytes() {
    let moment = ipc::codec::decode::<Moment>(&9_u64.to_le_bytes()).unwrap();
    let cases: [(Vec<u8>, &[u8]); 4] = [
        (
            ipc::codec::encode(&DoorToFileserver::List {
                id: RequestId(1),
                freed: Slots::default(),
                until: moment,
            })
            .unwrap(),
            &[0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0],
        ),
        (
            ipc::codec::encode(&DoorToFileserver::Read {
                id: RequestId(2),
                path: RelPath::new("r").unwrap(),
                freed: Slots::try_from(vec![5]).unwrap(),
                until: moment,
            })
            .unwrap(),
            &[
                1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, b'r', 1, 0, 0, 0, 0, 0, 0, 0, 5,
                0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0,
            ],
        ),
        (
            ipc::codec::encode(&FileserverToDoor::Refused {
                id: RequestId(3),
                generation: 4,
                code: PlaneCode::OutsideRoot,
            })
            .unwrap(),
            &[2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0],
        ),
        (
            ipc::codec::encode(&FromRole::Ready(Report { landlock_abi: 7 })).unwrap(),
            &[0, 0, 0, 0, 7, 0, 0, 0],
        ),
    ];
    for (encoded, golden) in cases {
        assert_eq!(encoded, golden);
    }
}

#[test]
fn more_slots_than_one_message_gives_back_cannot_be_received() {
    let encode = |count: u32| ipc::codec::encode(&(0..count).collect::<Vec<u32>>()).unwrap();
    assert!(ipc::codec::decode::<Slots>(&encode(64)).is_ok());
    assert!(ipc::codec::decode::<Slots>(&encode(65)).is_err());
}

#[test]
fn a_packet_that_is_no_message_is_an_error_and_never_a_message() {
    let good = ipc::codec::encode(&DoorToFileserver::Cancel { id: RequestId(5) }).unwrap();
    let mut trailing = good.clone();
    trailing.push(0);
    let mut cases: Vec<(&str, Vec<u8>)> = vec![
        ("trailing byte", trailing),
        ("unknown variant", vec![200, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ("one byte", vec![1]),
        ("a path that is none", [&[1, 0, 0, 0][..], &[0; 8], &2u64.to_le_bytes(), b".."].concat()),
        ("length beyond the packet", [&[1, 0, 0, 0][..], &[0; 8], &u64::MAX.to_le_bytes()].concat()),
    ];
    cases.extend((1..good.len()).map(|end| ("cut", good[..end].to_vec())));
    for (name, bytes) in cases {
        let (mut channel, peer) = against_raw::<Never, DoorToFileserver>();
        send_raw(&peer, &bytes, &[]);
        match channel.receive_until(soon()) {
            Err(ChannelError::Codec(_)) => {}
            other => panic!("{name} ({bytes:?}): {other:?}"),
        }
    }
}

#[test]
fn an_oversized_packet_is_an_error() {
    let (mut channel, peer) = against_raw::<Never, DoorToFileserver>();
    send_raw(&peer, &vec![0; MAX_PACKET + 1], &[]);
    assert!(matches!(channel.receive_until(soon()), Err(ChannelError::Oversized)));
}

#[test]
fn a_closed_peer_and_an_empty_packet_end_the_channel() {
    let (mut channel, peer) = against_raw::<Never, DoorToFileserver>();
    drop(peer);
    assert!(matches!(channel.receive_until(soon()), Err(ChannelError::Closed)));
    let (mut channel, peer) = against_raw::<Never, DoorToFileserver>();
    send_raw(&peer, &[], &[]);
    assert!(matches!(channel.receive_until(soon()), Err(ChannelError::Closed)));
}

#[test]
fn a_direction_without_messages_takes_none() {
    let (mut channel, peer) = against_raw::<DoorToFileserver, Never>();
    send_raw(&peer, &[0; 4], &[]);
    assert!(matches!(channel.receive_until(soon()), Err(ChannelError::Codec(_))));
}

/// Whether every writing end of a pipe is closed.
fn ended(reader: &std::io::PipeReader) -> bool {
    let mut polled = [rustix::event::PollFd::new(reader, rustix::event::PollFlags::IN)];
    let at_once = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut polled, Some(&at_once)).unwrap();
    polled[0].revents().contains(rustix::event::PollFlags::HUP)
}

#[test]
fn descriptors_in_a_wrong_number_are_closed_and_an_error() {
    // Expects one with this message, gets none, two, five.
    let with_one =
        FileserverToDoor::Listing { id: RequestId(1), generation: 0, body: Body::File { length: 0 } };
    let bytes = ipc::codec::encode(&with_one).unwrap();
    for count in [0, 2, 5] {
        let (reader, writer) = std::io::pipe().unwrap();
        let (mut channel, peer) = against_raw::<Never, FileserverToDoor>();
        send_raw(&peer, &bytes, &vec![writer.as_fd(); count]);
        drop(writer);
        match channel.receive_until(soon()) {
            Err(ChannelError::Descriptors { expected: 1, received }) => assert_eq!(received, count),
            Err(ChannelError::DescriptorsDropped) => assert!(count > 1),
            other => panic!("{count}: {other:?}"),
        }
        assert!(ended(&reader), "{count}: every descriptor that came is closed");
    }
    // Expects none with this message, though its direction may carry one.
    let (reader, writer) = std::io::pipe().unwrap();
    let (mut channel, peer) = against_raw::<Never, FileserverToDoor>();
    let refused = FileserverToDoor::Refused { id: RequestId(1), generation: 0, code: PlaneCode::NotFound };
    send_raw(&peer, &ipc::codec::encode(&refused).unwrap(), &[writer.as_fd()]);
    drop(writer);
    assert!(matches!(
        channel.receive_until(soon()),
        Err(ChannelError::Descriptors { expected: 0, received: 1 } | ChannelError::DescriptorsDropped)
    ));
    assert!(ended(&reader));
}

#[test]
fn an_end_that_expects_no_descriptor_gets_none() {
    let null = std::fs::File::open("/dev/null").unwrap();
    let bytes = ipc::codec::encode(&DoorToFileserver::List {
        id: RequestId(1),
        freed: Default::default(),
        until: Moment::after(Duration::from_secs(60)),
    })
    .unwrap();
    // Without the kernel's help: no room in the receiving call.
    let (mut channel, peer) = against_raw::<FileserverToDoor, DoorToFileserver>();
    send_raw(&peer, &bytes, &[null.as_fd()]);
    assert!(matches!(channel.receive_until(soon()), Err(ChannelError::DescriptorsDropped)));
    // With it, the sender is refused (Linux 6.16).
    // `pair` has asked for it; asking again only tells whether the kernel knows it.
    let (door, _fileserver) = pair::<DoorToFileserver, FileserverToDoor>().unwrap();
    let (asked, _) = pair::<DoorToFileserver, FileserverToDoor>().unwrap();
    if !ipc::sys::refuse_descriptors(asked.as_fd()).unwrap() {
        let _ = writeln!(
            std::io::stderr(),
            "NOT RUN: an_end_that_expects_no_descriptor_gets_none: SO_PASSRIGHTS needs Linux 6.16"
        );
        return;
    }
    assert!(ipc::sys::send_packet(door.as_fd(), &bytes, &[null.as_fd()], true).is_err());
}

#[test]
fn a_sender_with_the_wrong_number_of_descriptors_sends_nothing() {
    let null = std::fs::File::open("/dev/null").unwrap();
    let (door, _fileserver) = pair::<DoorToFileserver, FileserverToDoor>().unwrap();
    let message = DoorToFileserver::List {
        id: RequestId(1),
        freed: Default::default(),
        until: Moment::after(Duration::from_secs(60)),
    };
    assert!(matches!(door.send_with(&message, &[null.as_fd()]), Err(ChannelError::WrongUse)));
}

/// `passfd` on both sides of us: what it sends we receive, what we send it receives.
#[test]
fn an_independent_implementation_passes_descriptors_both_ways() {
    let (ours, theirs) = ipc::sys::packet_pair().unwrap();
    // It speaks through a stream type; the socket underneath stays what it is.
    // SAFETY: the descriptor is owned and given away here.
    let peer = unsafe { UnixStream::from_raw_fd(theirs.into_raw_fd()) };
    let (mut reader, writer) = std::io::pipe().unwrap();
    peer.send_fd(writer.as_raw_fd()).unwrap();
    drop(writer);
    let mut buffer = [0; 64];
    let packet = ipc::sys::receive_packet(ours.as_fd(), &mut buffer, 1, true).unwrap();
    assert_eq!(packet.descriptors.len(), 1);
    let mut received = std::fs::File::from(packet.descriptors.into_iter().next().unwrap());
    received.write_all(b"through").unwrap();
    drop(received);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "through");

    let (mut reader, writer) = std::io::pipe().unwrap();
    send_raw(&ours, &[0], &[writer.as_fd()]);
    drop(writer);
    // SAFETY: the descriptor was just received and nobody else owns it.
    let mut received = unsafe { std::fs::File::from_raw_fd(peer.recv_fd().unwrap()) };
    received.write_all(b"back").unwrap();
    drop(received);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "back");
}

/// Its packets are no messages of ours, and the descriptor it attached is closed.
#[test]
fn a_descriptor_of_a_hostile_peer_is_closed_with_the_channel() {
    let (mut channel, theirs) = against_raw::<Never, FileserverToDoor>();
    // SAFETY: the descriptor is owned and given away here.
    let peer = unsafe { UnixStream::from_raw_fd(theirs.into_raw_fd()) };
    let (mut reader, writer) = std::io::pipe().unwrap();
    peer.send_fd(writer.as_raw_fd()).unwrap();
    drop(writer);
    assert!(channel.receive_until(soon()).is_err());
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty(), "the writing end is closed, so the pipe ends");
}

#[test]
fn a_full_queue_is_reported_and_never_waited_for_by_a_sender_that_must_not_wait() {
    let (door, _fileserver) = pair::<DoorToFileserver, FileserverToDoor>().unwrap();
    let sender = door.sender();
    let message = DoorToFileserver::SlotFree { slot: 1 };
    let stuck = (0..1_000_000).map(|_| sender.try_send(&message, &[])).find_map(Result::err);
    assert!(matches!(stuck, Some(ChannelError::Stuck)));
}

#[test]
fn begin_carries_as_many_descriptors_as_it_says() {
    let begin = |join_network, trees: &[&str]| {
        ToRole::<DoorOrder>::Begin(Begin {
            uid: 1,
            gid: 1,
            user_namespace: false,
            join_network,
            trees: trees.iter().map(|tree| (*tree).to_owned()).collect(),
            read_only: vec!["/a/b".to_owned()],
            programs: None,
        })
    };
    assert_eq!(begin(false, &[]).descriptors(), 0);
    assert_eq!(begin(true, &["/a", "/b", "/c", "/d"]).descriptors(), 5);
    assert_eq!(ToRole::<DoorOrder>::MAX_DESCRIPTORS, 5);
}

#[test]
fn another_build_is_refused_by_its_hello() {
    let (broker, role) = pair::<ToRole<EgressOrder>, FromRole>().unwrap();
    let role = role.into_descriptor().unwrap();
    send_raw(&role, ipc::edge::control::hello().as_bytes(), &[]);
    expect_hello(&broker, soon()).unwrap();
    for other in ["", "capsule-broker 0.1.0 0000000000000000", "x"] {
        let (broker, role) = pair::<ToRole<EgressOrder>, FromRole>().unwrap();
        let role = role.into_descriptor().unwrap();
        if !other.is_empty() {
            send_raw(&role, other.as_bytes(), &[]);
        }
        drop(role);
        assert!(expect_hello(&broker, soon()).is_err(), "{other:?}");
    }
}

/// Every message kind cut at every length, and random bytes: an error each time, never a panic, never a hang.
#[test]
fn no_bytes_make_a_receiver_panic() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for round in 0..20_000 {
        let length = (random() % 96) as usize;
        let mut bytes: Vec<u8> = (0..length).map(|_| random() as u8).collect();
        if round % 2 == 0 && length > 4 {
            // A known variant, so that decoding gets further.
            bytes[..4].copy_from_slice(&((random() % 8) as u32).to_le_bytes());
        }
        let _ = ipc::codec::decode::<DoorToFileserver>(&bytes);
        let _ = ipc::codec::decode::<FileserverToDoor>(&bytes);
        let _ = ipc::codec::decode::<ToRole<DoorOrder>>(&bytes);
        let _ = ipc::codec::decode::<ipc::edge::host_broker::HostToBroker>(&bytes);
        let _ = ipc::codec::decode::<ipc::edge::host_runner::HostToRunner>(&bytes);
        let _ = ipc::codec::decode::<ipc::edge::host_egress::HostToEgress>(&bytes);
        let _ = ipc::codec::decode::<ipc::edge::door_broker::DoorToBroker>(&bytes);
        let _ = ipc::codec::decode::<ipc::edge::door_broker::BrokerToDoor>(&bytes);
        let _ = ipc::codec::decode::<ipc::edge::broker_fileserver::FileserverToBroker>(&bytes);
        let _ = ipc::codec::decode::<ipc::edge::broker_fileserver::BrokerToFileserver>(&bytes);
        let _ = ipc::codec::decode::<ipc::edge::host_broker::BrokerToHost>(&bytes);
    }
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn the_asynchronous_front_end_passes_the_same_messages() {
    let (door, fileserver) = pair::<DoorToFileserver, FileserverToDoor>().unwrap();
    let (sender, _) = ipc::aio::split(door).unwrap();
    let (_, mut receiver) = ipc::aio::split(fileserver).unwrap();
    for id in 0..1000 {
        sender
            .send(&DoorToFileserver::List {
                id: RequestId(id),
                freed: Slots::default(),
                until: Moment::after(Duration::from_secs(60)),
            })
            .await
            .unwrap();
        match receiver.receive().await.unwrap().message {
            DoorToFileserver::List { id: received, .. } => assert_eq!(received, RequestId(id)),
            other => panic!("{other:?}"),
        }
    }
    drop(sender);
}
