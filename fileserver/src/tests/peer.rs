//! Reads of the peer plane, which only the broker can ask for, and where a path that is to be shared leads.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ipc::edge::broker_fileserver::{BrokerToFileserver, FileserverToBroker};
use ipc::edge::control::FileserverConfigure;
use ipc::edge::door_fileserver::{Body, DoorToFileserver, FileserverToDoor};
use ipc::memory::{WINDOW_BYTES, map_window, window};
use ipc::types::{Class, FileMeta, PlaneCode, RelPath, RequestId};
use sha2::{Digest, Sha256};

use super::Tree;
use super::protocol::{House, QUARTER, hand_door, quarters, soon};
use crate::desk::{Desk, IN_FLIGHT, Job, Link, Places, SPACE_PATIENCE, Task};
use crate::window::{Leftover, Window};

/// Both planes: `out/` for reads of the door, at most 1024 bytes; `share/` for verified reads.
fn both(tree: &Tree, class: Class, max_bytes: u64) -> House {
    let files = Some(tree.plane_at(class, "out/", 1024).export);
    let peer_files = Some(tree.plane_at(class, "share/", max_bytes).export);
    House::with(tree.workdir(), FileserverConfigure { class, files, peer_files })
}

impl House {
    fn order(&self, id: u64, path: &str) {
        let (id, path) = (RequestId(id), RelPath::new(path).unwrap());
        self.broker.as_ref().unwrap().send(&BrokerToFileserver::VerifiedRead { id, path }).unwrap();
    }

    /// A verified read: what the door got, after the record said the same.
    fn redeem(&mut self, id: u64, path: &str) -> Result<(FileMeta, Body, Option<OwnedFd>), PlaneCode> {
        self.order(id, path);
        let (answer, file, record) = self.answer();
        let FileserverToBroker::Redeemed { id: recorded, generation, outcome: said } = record else {
            panic!("{record:?}")
        };
        let FileserverToDoor::Redeemed { id: answered, outcome } = answer else { panic!("{answer:?}") };
        assert_eq!((recorded, answered), (RequestId(id), RequestId(id)));
        match outcome {
            Ok((meta, body)) => {
                assert_eq!((said, generation), (Ok((meta.bytes, meta.sha256)), meta.generation));
                Ok((meta, body, file))
            }
            Err(code) => {
                assert_eq!(said, Err(code));
                Err(code)
            }
        }
    }

    /// The answer to a verified read in one word.
    fn word(&mut self, path: &str) -> String {
        match self.redeem(7, path) {
            Ok((meta, body, file)) => {
                let bytes = self.body(body, file);
                assert_eq!(meta.sha256, <[u8; 32]>::from(Sha256::digest(&bytes)), "{path}");
                format!("200 {}", String::from_utf8_lossy(&bytes).trim_end())
            }
            Err(code) => code.as_str().to_owned(),
        }
    }

    /// Where a path leads, in one word.
    fn leads(&mut self, path: &str) -> String {
        let (id, path) = (RequestId(3), RelPath::new(path).unwrap());
        self.broker.as_ref().unwrap().send(&BrokerToFileserver::Canonicalise { id, path }).unwrap();
        match self.recorded() {
            FileserverToBroker::Canonical { id: answered, outcome } if answered == id => match outcome {
                Ok(path) => format!("ok {}", path.as_str()),
                Err(code) => code.as_str().to_owned(),
            },
            other => panic!("{other:?}"),
        }
    }

    fn recorded(&mut self) -> FileserverToBroker {
        self.broker.as_mut().unwrap().receive_until(soon()).unwrap().message
    }
}

/// `share/` with links, odd kinds and names; path, answer to a read that follows links, where it leads.
fn populated(tree: &Tree) -> Vec<(&'static str, &'static str, &'static str)> {
    tree.write("share/rA.md", b"decoded twice");
    tree.write("share/r%41.md", b"decoded once");
    tree.mkdir("share/d/e");
    tree.write("share/d/e/deep", b"deep");
    tree.write("share/big", &[b'x'; 65]);
    tree.fifo("share/p", 0o644);
    tree.link("doc", "share/alias");
    tree.link("alias", "share/chain");
    tree.link("d", "share/dirlink");
    tree.link("../../share/doc", "share/d/up");
    tree.link("../share/d/e/deep", "share/hop");
    tree.link(tree.path("share/doc"), "share/abs");
    tree.link("../out/report.md", "share/other");
    tree.link("../secret.txt", "share/esc");
    tree.link("/etc/passwd", "share/passwd");
    tree.link("nothing", "share/dang");
    tree.link("self", "share/self");
    vec![
        ("doc", "200 CANARY", "ok doc"),
        ("d/e/deep", "200 deep", "ok d/e/deep"),
        ("r%41.md", "200 decoded once", "ok r%41.md"),
        ("big", "too_large", "ok big"),
        ("d", "not_a_regular_file", "not_a_regular_file"),
        ("p", "not_a_regular_file", "not_a_regular_file"),
        ("missing", "not_found", "not_found"),
        ("doc/x", "not_found", "not_found"),
        ("alias", "200 CANARY", "ok doc"),
        ("chain", "200 CANARY", "ok doc"),
        ("dirlink/e/deep", "200 deep", "ok d/e/deep"),
        ("dirlink", "not_a_regular_file", "not_a_regular_file"),
        ("d/up", "200 CANARY", "ok doc"),
        ("hop", "200 deep", "ok d/e/deep"),
        ("abs", "200 CANARY", "ok doc"),
        ("other", "outside_root", "outside_root"),
        ("esc", "outside_root", "outside_root"),
        ("passwd", "outside_root", "outside_root"),
        ("dang", "not_found", "not_found"),
        ("self", "not_found", "not_found"),
    ]
}

#[test]
fn a_verified_read_and_a_path_to_share_are_decided_like_any_read_below_their_own_root() {
    let linked =
        ["alias", "chain", "dirlink/", "dirlink", "d/up", "hop", "abs", "other", "esc", "passwd", "dang"];
    for class in [Class::Sealed, Class::Advisory, Class::Scoped] {
        let tree = Tree::new();
        let table = populated(&tree);
        let mut house = both(&tree, class, 64);
        for (path, read, leads) in table {
            let refused = class == Class::Scoped
                && (linked.contains(&path) || path.starts_with("dirlink/") || path == "self");
            let expected = if refused { ("symlink_refused", "symlink_refused") } else { (read, leads) };
            assert_eq!((house.word(path).as_str(), house.leads(path).as_str()), expected, "{class:?} {path}");
        }
        assert!(house.no_record());
        house.shut_down();
    }
}

#[test]
fn the_two_planes_have_roots_and_ceilings_of_their_own() {
    let tree = Tree::new();
    tree.write("share/long", &[b'y'; 2000]);
    tree.write("out/long", &[b'y'; 2000]);
    let mut house = both(&tree, Class::Sealed, 4096);
    assert_eq!(house.word("report.md"), "not_found");
    assert_eq!(house.read("doc").unwrap_err(), PlaneCode::NotFound);
    assert!(house.word("long").starts_with("200 yyy"));
    assert_eq!(house.read("long").unwrap_err(), PlaneCode::TooLarge);
    house.shut_down();

    // Declaring one says nothing about the other.
    let peer_files = Some(tree.plane_at(Class::Sealed, "share/", 1024).export);
    let configure = FileserverConfigure { class: Class::Sealed, files: None, peer_files };
    let mut house = House::with(tree.workdir(), configure);
    assert_eq!(house.word("doc"), "200 CANARY");
    assert_eq!(house.read("report.md").unwrap_err(), PlaneCode::NoResourcePlane);
    house.shut_down();
    let files = Some(tree.plane_at(Class::Sealed, "out/", 1024).export);
    let configure = FileserverConfigure { class: Class::Sealed, files, peer_files: None };
    let mut house = House::with(tree.workdir(), configure);
    assert_eq!(house.word("doc"), "no_peer_plane");
    assert_eq!(house.leads("doc"), "no_peer_plane");
    assert!(house.read("report.md").is_ok());
    house.shut_down();
}

#[test]
fn a_redeem_serves_what_is_there_now() {
    let tree = Tree::new();
    let mut house = both(&tree, Class::Sealed, 64);
    let (before, body, file) = house.redeem(1, "doc").unwrap();
    house.body(body, file);
    tree.write("share/doc", b"newer");
    house.counter.advance();
    let (after, body, file) = house.redeem(1, "doc").unwrap();
    assert_eq!(house.body(body, file), b"newer");
    assert_ne!(before.sha256, after.sha256);
    assert_eq!((before.generation, after.generation), (0, 1));

    type Change = fn(&Tree);
    let remove: Change = |tree| std::fs::remove_file(tree.path("share/doc")).unwrap();
    let table: [(&str, Change, &str); 6] = [
        ("deleted", |_| (), "not_found"),
        ("a directory", |tree| tree.mkdir("share/doc"), "not_a_regular_file"),
        (
            "a fifo",
            |tree| {
                std::fs::remove_dir(tree.path("share/doc")).unwrap();
                tree.fifo("share/doc", 0o644);
            },
            "not_a_regular_file",
        ),
        (
            "an inside link",
            |tree| {
                std::fs::remove_file(tree.path("share/doc")).unwrap();
                tree.write("share/target", b"target");
                tree.link("target", "share/doc");
            },
            "200 target",
        ),
        ("grown", |tree| tree.write("share/target", &[b'x'; 65]), "too_large"),
        (
            "without its root",
            |tree| std::fs::rename(tree.path("share"), tree.path("elsewhere")).unwrap(),
            "not_found",
        ),
    ];
    remove(&tree);
    for (what, change, expected) in table {
        change(&tree);
        assert_eq!(house.word("doc"), expected, "{what}");
    }
    tree.mkdir("share");
    tree.write("share/doc", b"again");
    assert_eq!(house.word("doc"), "200 again");
    house.shut_down();
}

#[test]
fn a_file_no_handle_could_name_cannot_be_shared() {
    use std::os::unix::ffi::OsStrExt;
    let tree = Tree::new();
    let name = std::ffi::OsStr::from_bytes(b"caf\xe9");
    std::fs::write(tree.path("share").join(name), b"x").unwrap();
    tree.link(name, "share/alias");
    let mut house = both(&tree, Class::Sealed, 64);
    assert_eq!(house.leads("alias"), "not_found");
    assert_eq!(house.leads(&"é".repeat(5000)), "not_found");
    house.shut_down();
}

#[test]
fn the_bytes_of_a_slot_are_gone_once_it_is_returned_and_only_on_the_peer_plane() {
    let tree = Tree::new();
    let mut house = both(&tree, Class::Sealed, 64);
    let at = |house: &House, body: &Body| match body {
        Body::Slot { offset, length, .. } => house
            .window
            .bytes(usize::try_from(*offset).unwrap(), usize::try_from(*length).unwrap())
            .unwrap()
            .to_vec(),
        other => panic!("{other:?}"),
    };
    // Released.
    let (_, body, _) = house.redeem(1, "doc").unwrap();
    assert_eq!(at(&house, &body), b"CANARY");
    let Body::Slot { slot, .. } = body else { panic!("{body:?}") };
    house.ask_and_free("missing", &[slot]);
    assert!(matches!(house.answer().0, FileserverToDoor::Refused { code: PlaneCode::NotFound, .. }));
    assert_eq!(at(&house, &body), [0; 6]);
    // Taken back from a door that is gone.
    let (_, body, _) = house.redeem(2, "doc").unwrap();
    assert_eq!(at(&house, &body), b"CANARY");
    house.door = hand_door(&house.control);
    assert_eq!(house.read("missing").unwrap_err(), PlaneCode::NotFound);
    assert_eq!(at(&house, &body), [0; 6]);
    house.shut_down();
}

#[test]
fn space_that_was_filled_and_never_lent_is_wiped_too() {
    let (writable, readable) = window().unwrap();
    let seen = map_window(&readable, false).unwrap();
    let space = Window::new(map_window(&writable, true).unwrap()).unwrap();
    let desk = Arc::new(Desk::new(space, SPACE_PATIENCE));
    for (leftover, expected) in [(Leftover::Stays, &b"CANARY"[..]), (Leftover::Wiped, &[0; 6])] {
        let mut space = desk.take(6, leftover).unwrap();
        space.bytes_mut(6).unwrap().copy_from_slice(b"CANARY");
        assert_eq!(seen.bytes(0, 6).unwrap(), b"CANARY");
        drop(space);
        assert_eq!(seen.bytes(0, 6).unwrap(), expected, "{leftover:?}");
    }
}

#[test]
fn large_shared_files_travel_in_a_sealed_file() {
    let tree = Tree::new();
    let bytes: Vec<u8> = (0..QUARTER + 5).map(|index| (index % 251) as u8).collect();
    tree.write("share/large", &bytes);
    let mut house = both(&tree, Class::Sealed, 1 << 30);
    let (meta, body, file) = house.redeem(1, "large").unwrap();
    assert_eq!(meta.bytes, QUARTER + 5);
    assert!(house.body(body, file) == bytes);
    house.shut_down();
}

#[test]
fn identifiers_of_the_door_and_of_verified_reads_do_not_meet() {
    let tree = Tree::new();
    quarters(&tree, 4);
    let files = Some(tree.plane_at(Class::Sealed, "out/", 1 << 30).export);
    let peer_files = Some(tree.plane_at(Class::Sealed, "share/", 64).export);
    let mut house =
        House::with(tree.workdir(), FileserverConfigure { class: Class::Sealed, files, peer_files });
    let slots = house.fill_window(["q0", "q1", "q2", "q3"]);
    // Both wait for space under one identifier, and the verified one twice: the broker vouches for its own numbers.
    let waiting = house.ask("q0");
    house.order(waiting.0, "doc");
    house.order(waiting.0, "doc");
    // The door takes back its own request and no other.
    house.door.send(&DoorToFileserver::Cancel { id: waiting }).unwrap();
    match house.answer() {
        (FileserverToDoor::Refused { id, code: PlaneCode::IoError, .. }, _, _) => assert_eq!(id, waiting),
        other => panic!("{other:?}"),
    }
    house.free(slots[0]);
    for _ in 0..2 {
        match house.answer() {
            (FileserverToDoor::Redeemed { id, outcome: Ok(_) }, _, FileserverToBroker::Redeemed { .. }) => {
                assert_eq!(id, waiting);
            }
            other => panic!("{other:?}"),
        }
    }
    house.shut_down();
}

#[test]
fn without_a_door_a_verified_read_is_recorded_as_failed_and_answered_to_nobody() {
    let tree = Tree::new();
    quarters(&tree, 4);
    let files = Some(tree.plane_at(Class::Sealed, "out/", 1 << 30).export);
    let peer_files = Some(tree.plane_at(Class::Sealed, "share/", 64).export);
    let mut house =
        House::with(tree.workdir(), FileserverConfigure { class: Class::Sealed, files, peer_files });
    let failed = |house: &mut House, id| match house.recorded() {
        FileserverToBroker::Redeemed { id: recorded, outcome: Err(PlaneCode::IoError), .. } => {
            assert_eq!(recorded, RequestId(id));
        }
        other => panic!("{other:?}"),
    };
    // Asked for a door that was replaced before there was space.
    house.fill_window(["q0", "q1", "q2", "q3"]);
    house.order(1, "doc");
    assert_eq!(house.read("missing").unwrap_err(), PlaneCode::NotFound);
    let old = std::mem::replace(&mut house.door, hand_door(&house.control));
    // The order of two channels is not known: it may be taken up for the new door, which waits for no such answer.
    match house.recorded() {
        FileserverToBroker::Redeemed { id: RequestId(1), outcome: Err(PlaneCode::IoError), .. } => {}
        FileserverToBroker::Redeemed { id: RequestId(1), outcome: Ok(_), .. } => {
            match house.door.receive_until(soon()).unwrap().message {
                FileserverToDoor::Redeemed {
                    id: RequestId(1),
                    outcome: Ok((_, Body::Slot { slot, .. })),
                } => {
                    house.free(slot);
                }
                other => panic!("{other:?}"),
            }
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(house.word("doc"), "200 CANARY");
    // Asked while there was none.
    house.fill_window(["q0", "q1", "q2", "q3"]);
    house.order(2, "doc");
    let (spare, _) = ipc::pair::<DoorToFileserver, FileserverToDoor>().unwrap();
    drop(std::mem::replace(&mut house.door, spare));
    failed(&mut house, 2);
    house.order(3, "doc");
    failed(&mut house, 3);
    house.door = hand_door(&house.control);
    assert_eq!(house.word("doc"), "200 CANARY");
    assert!(house.no_record());
    drop(old);
    house.shut_down();
}

#[test]
fn what_waits_for_space_is_left_over_when_its_door_is_replaced_and_nothing_else_is() {
    let link = || Arc::new(Link::new(ipc::pair().unwrap().0));
    let space = Window::new(map_window(&window().unwrap().0, true).unwrap()).unwrap();
    let desk = Arc::new(Desk::new(space, SPACE_PATIENCE));
    let (old, new) = (link(), link());
    assert!(desk.replace_door(Arc::clone(&old)).is_empty());
    let _held = desk.take(WINDOW_BYTES, Leftover::Stays).unwrap();
    let waiting = |link: &Arc<Link>, id| Job {
        link: Some(Arc::clone(link)),
        id: RequestId(id),
        task: Task::Redeem(RelPath::new("x").unwrap()),
        cancel: link.gone(),
        until: None,
        _place: None,
        generation: None,
        patience: None,
    };
    assert!(desk.put_aside(waiting(&old, 1), 1).is_none());
    assert_eq!(
        desk.replace_door(Arc::clone(&new)).iter().map(|job| job.id).collect::<Vec<_>>(),
        [RequestId(1)]
    );
    // What comes of the old one from now on is not kept waiting, and frees nothing of the new one's.
    assert!(matches!(desk.put_aside(waiting(&old, 2), 1), Some(job) if job.canceled()));
    assert_eq!(desk.release(&old, &[0]), Ok(()));
    assert_eq!(desk.release(&new, &[0]), Err(0));
    assert!(desk.put_aside(waiting(&new, 3), 1).is_none());
    assert!(desk.end_door(&old).is_empty() && !new.is_gone(), "it is not the door any more");
    assert_eq!(desk.end_door(&new).len(), 1);
}

#[test]
fn verified_reads_beyond_the_bound_are_refused_at_once_and_hinder_no_mint() {
    let tree = Tree::new();
    quarters(&tree, 4);
    let files = Some(tree.plane_at(Class::Sealed, "out/", 1 << 30).export);
    let peer_files = Some(tree.plane_at(Class::Sealed, "share/", 64).export);
    let mut house =
        House::with(tree.workdir(), FileserverConfigure { class: Class::Sealed, files, peer_files });
    let slots = house.fill_window(["q0", "q1", "q2", "q3"]);
    for id in 0..IN_FLIGHT as u64 {
        house.order(id, "doc");
    }
    house.order(9999, "doc");
    // Which of those that came together is the one too many is decided by who is first.
    let (answer, _, _) = house.answer();
    assert!(matches!(answer, FileserverToDoor::Redeemed { outcome: Err(PlaneCode::IoError), .. }));
    assert_eq!(house.leads("doc"), "ok doc");
    house.free(slots[0]);
    // Taken all before any is given back: who sends and receives in turns must not wait for room to send.
    let slots: Vec<u32> = (0..IN_FLIGHT)
        .map(|_| match house.answer().0 {
            FileserverToDoor::Redeemed { outcome: Ok((_, Body::Slot { slot, .. })), .. } => slot,
            other => panic!("{other:?}"),
        })
        .collect();
    slots.into_iter().for_each(|slot| house.free(slot));
    assert_eq!(house.word("doc"), "200 CANARY", "their places are free again");
    house.shut_down();
}

#[test]
fn a_place_is_free_again_when_it_is_dropped() {
    let places = Places::default();
    let held = [places.take(2), places.take(2)];
    assert!(held.iter().all(Option::is_some));
    assert!(places.take(2).is_none() && places.take(2).is_none());
    drop(held);
    assert!(places.take(1).is_some());
}
