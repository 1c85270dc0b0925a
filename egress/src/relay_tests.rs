//! Connections that arrive at a listener and go on to where they were meant for: here, addresses of loopback, so that listener
//! and destination differ by address and share the port.

use ipc::edge::control::NetworkRule;
use ipc::edge::egress_broker::{EgressToBroker, Reason};
use tokio::task::JoinHandle;

use super::*;
use crate::addresses::Addresses;
use crate::denials::Reports;
use crate::programs::tests::Table;

/// Where the listener of programs is in these tests; the destinations that are allowed are listed by address.
struct Relay {
    port: u16,
    told: ipc::aio::AsyncReceiver<EgressToBroker>,
    task: JoinHandle<()>,
}

/// A relay that allows 127.0.0.1 at the port of `upstream`. It cannot hold a listener there too, so it is asked to carry
/// connections that a listener of the test took.
async fn relay(upstream: &TcpListener, most: usize) -> (Relay, Arc<Semaphore>) {
    let to = upstream.local_addr().unwrap();
    let (broker, far) = ipc::pair::<EgressToBroker, ipc::Never>().unwrap();
    let (_, told) = ipc::aio::split(far).unwrap();
    let (sender, _) = ipc::aio::split(broker).unwrap();
    let rules = [NetworkRule { scheme: None, host: to.ip().to_string(), port: Some(to.port()) }];
    let programs = Programs::new(&rules, Table::default(), Addresses::new(None), Reports::new(sender));
    let programs = Arc::new(programs);
    let room = Arc::new(Semaphore::new(most));
    // Connections are "meant for" the address they were accepted at: the pair below is spliced by hand.
    let entrance = TcpListener::bind("127.0.0.2:0").await.unwrap();
    let port = entrance.local_addr().unwrap().port();
    let task = tokio::spawn(serve(entrance, programs, Arc::clone(&room)));
    (Relay { port, told, task }, room)
}

#[tokio::test(flavor = "current_thread")]
async fn what_the_list_does_not_name_is_closed_and_told() {
    let upstream = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (mut relay, _) = relay(&upstream, 1).await;
    let mut program = TcpStream::connect(("127.0.0.2", relay.port)).await.unwrap();
    assert_eq!(program.read(&mut [0; 8]).await.unwrap_or(0), 0);
    let EgressToBroker::NetworkDenied { asker, destination, reason, count } =
        relay.told.receive().await.unwrap().message;
    assert_eq!((asker, reason, count), (Asker::Program, Reason::NotListed, 1));
    assert_eq!(destination, format!("127.0.0.2:{}", relay.port));
    relay.task.abort();
}

#[tokio::test(flavor = "current_thread")]
async fn one_connection_more_than_there_is_room_for_is_closed_at_once() {
    let upstream = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (relay, room) = relay(&upstream, 1).await;
    let held = room.try_acquire_owned().unwrap();
    let mut program = TcpStream::connect(("127.0.0.2", relay.port)).await.unwrap();
    assert_eq!(program.read(&mut [0; 8]).await.unwrap_or(0), 0);
    drop(held);
    relay.task.abort();
}

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (near, listener.accept().await.unwrap().0)
}

/// A program and an upstream with a relay between them.
async fn joined() -> (TcpStream, TcpStream, JoinHandle<()>) {
    let (program, mut inside) = pair().await;
    let (mut outside, upstream) = pair().await;
    let task = tokio::spawn(async move { both_ways(&mut inside, &mut outside).await });
    (program, upstream, task)
}

#[tokio::test(flavor = "current_thread")]
async fn a_direction_that_ends_leaves_the_other_open() {
    let (mut program, mut upstream, task) = joined().await;
    program.write_all(b"everything").await.unwrap();
    program.shutdown().await.unwrap();
    let mut all = Vec::new();
    upstream.read_to_end(&mut all).await.unwrap();
    assert_eq!(all, b"everything");
    upstream.write_all(b"the answer comes after that").await.unwrap();
    drop(upstream);
    all.clear();
    program.read_to_end(&mut all).await.unwrap();
    assert_eq!(all, b"the answer comes after that");
    task.await.unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn much_moves_in_both_directions_at_once() {
    const BIG: usize = 8 * 1024 * 1024;
    let (program, upstream, task) = joined().await;
    let pattern: Arc<Vec<u8>> = Arc::new((0..BIG).map(|n| (n / 7) as u8).collect());
    let side = async |stream: TcpStream, pattern: Arc<Vec<u8>>| {
        let (mut read, mut write) = stream.into_split();
        let sending = tokio::spawn(async move {
            write.write_all(&pattern).await.unwrap();
            write.shutdown().await.unwrap();
        });
        let mut all = Vec::new();
        read.read_to_end(&mut all).await.unwrap();
        sending.await.unwrap();
        all
    };
    let (left, right) =
        tokio::join!(side(program, Arc::clone(&pattern)), side(upstream, Arc::clone(&pattern)));
    assert!(left == *pattern && right == *pattern);
    task.await.unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn a_side_that_is_gone_ends_the_other() {
    let (program, mut upstream, task) = joined().await;
    upstream.write_all(b"never read").await.unwrap();
    upstream.writable().await.unwrap();
    program.readable().await.unwrap();
    // With bytes unread: a reset.
    drop(program);
    let _ = upstream.write_all(&[0; 1 << 20]).await;
    task.await.unwrap();
    assert_eq!(upstream.read(&mut [0; 8]).await.unwrap_or(0), 0);
}

#[tokio::test(flavor = "current_thread")]
async fn silence_in_both_directions_ends_a_connection() {
    let (mut program, mut upstream, task) = joined().await;
    program.write_all(b"x").await.unwrap();
    assert_eq!(upstream.read_u8().await.unwrap(), b'x');
    tokio::time::pause();
    let begun = Instant::now();
    assert_eq!(upstream.read(&mut [0; 8]).await.unwrap_or(0), 0);
    let passed = begun.elapsed();
    assert!(passed >= IDLE - Duration::from_secs(1) && passed < IDLE + Duration::from_secs(2), "{passed:?}");
    assert_eq!(program.read(&mut [0; 8]).await.unwrap_or(0), 0);
    task.await.unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn lines_about_connections_are_a_second_apart_and_none_is_forgotten() {
    let mut lines = Lines { last: None, untold: 0 };
    let begin = Instant::now();
    let at = |milliseconds| begin + Duration::from_millis(milliseconds);
    assert_eq!(lines.due(at(0), "a").as_deref(), Some("a"));
    assert_eq!(lines.due(at(1), "b"), None);
    assert_eq!(lines.due(at(999), "c"), None);
    assert_eq!(lines.due(at(1000), "d").as_deref(), Some("d (2 more like it before)"));
    assert_eq!(lines.due(at(2000), "e").as_deref(), Some("e"));
}
