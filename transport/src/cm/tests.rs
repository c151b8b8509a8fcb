//! Streams of the connection manager over the loopback, in time that the test tells.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::*;

const SECOND: Duration = Duration::from_secs(1);
/// Where time stands where it does not matter.
const NOW: Duration = SECOND;
const PATIENCE: Duration = Duration::from_secs(20);
/// A READY, as the peer that connected says last.
const READY: &[u8] = b"QPTR\x02\x03\0\0";

fn listening() -> (Sockets, u32, SocketAddr) {
    let mut sockets = Sockets::new(Limits { connect: 100 * SECOND, hello: SECOND }).unwrap();
    let (id, address) = sockets.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    (sockets, id, address)
}

/// Polls until `count` notices are there, and takes them.
fn notices(sockets: &mut Sockets, count: usize) -> Vec<Notice> {
    let start = Instant::now();
    while sockets.notices().len() < count {
        sockets.poll(Some(Duration::from_millis(1)), NOW).unwrap();
        assert!(start.elapsed() < PATIENCE, "{:?}", sockets.notices());
    }
    std::mem::take(sockets.notices())
}

fn incoming(sockets: &mut Sockets) -> SocketId {
    match &notices(sockets, 1)[..] {
        &[Notice::Incoming { socket, .. }] => socket,
        other => panic!("{other:?}"),
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

#[test]
fn what_is_said_of_a_stream_that_ended_is_meant_for_no_other() {
    let (mut sockets, _, address) = listening();
    let mut first = connect(address);
    let old = incoming(&mut sockets);
    first.write_all(READY).unwrap();
    drop(first);
    let second = connect(address);
    let all = notices(&mut sockets, 3);
    assert!(matches!(&all[0], Notice::Message { socket, message: Message::Ready } if *socket == old), "{all:?}");
    assert!(matches!(&all[1], Notice::Ended { socket, end: StreamEnd::HungUp } if *socket == old), "{all:?}");
    let Notice::Incoming { socket: new, .. } = all[2] else { panic!("{all:?}") };
    assert_ne!(old, new);
    // What a driver does that learns of the message only now.
    sockets.settle(old);
    sockets.close(old);
    sockets.send(old, &Message::Reject("late".into()));
    assert!(sockets.notices().is_empty());
    assert_eq!(sockets.next_deadline(), Some(NOW + SECOND), "the new one still has to say hello");
    second.set_nonblocking(true).unwrap();
    let read = Read::read(&mut &second, &mut [0; 8]).unwrap_err();
    assert_eq!(read.kind(), std::io::ErrorKind::WouldBlock, "it is open, and nothing was said to it");
    assert!(sockets.next_deadline().is_some());
}

#[test]
fn a_stranger_has_a_second_to_say_hello_and_costs_no_haste() {
    let (mut sockets, _, address) = listening();
    let stranger = connect(address);
    let socket = incoming(&mut sockets);
    assert!(!sockets.is_brisk(NOW));
    sockets.expire(NOW + SECOND - Duration::from_millis(1));
    assert!(sockets.notices().is_empty());
    sockets.expire(NOW + SECOND);
    assert!(matches!(sockets.notices()[..], [Notice::TimedOut { socket: late }] if late == socket));
    drop(stranger);
}

#[test]
fn who_has_said_hello_or_was_called_has_the_callers_time_and_haste_while_young() {
    let (mut sockets, _, address) = listening();
    let _guest = connect(address);
    let socket = incoming(&mut sockets);
    sockets.greeted(socket, NOW);
    assert!(sockets.is_brisk(NOW));
    assert!(!sockets.is_brisk(NOW + SECOND), "not young any more");
    sockets.expire(NOW + 99 * SECOND);
    assert!(sockets.notices().is_empty());
    sockets.settle(socket);
    assert!(!sockets.is_brisk(NOW), "over");
    let called = sockets.connect(address, NOW).unwrap();
    assert!(sockets.is_brisk(NOW));
    assert_eq!(sockets.next_deadline(), Some(NOW + 100 * SECOND));
    sockets.close(called);
    assert_eq!((sockets.is_brisk(NOW), sockets.next_deadline()), (false, None));
}

#[test]
fn what_came_in_time_counts_however_late_it_is_read() {
    let (mut sockets, _, address) = listening();
    let mut slow = connect(address);
    let socket = incoming(&mut sockets);
    slow.write_all(READY).unwrap();
    // The loopback delivers at once; nothing polls in between.
    sockets.expire(NOW + 10 * SECOND);
    assert!(matches!(&sockets.notices()[..], [Notice::Message { socket: by, .. }] if *by == socket));
    sockets.notices().clear();
    sockets.expire(NOW + 10 * SECOND);
    assert!(matches!(&sockets.notices()[..], [Notice::TimedOut { .. }]), "and then no more");
}

/// Also where it was told something that it has not read.
#[test]
fn who_parts_says_farewell_before_it_hangs_up() {
    let (mut sockets, _, address) = listening();
    let mut peer = connect(address);
    let socket = incoming(&mut sockets);
    peer.write_all(READY).unwrap();
    sockets.part(socket);
    let mut said = Vec::new();
    peer.read_to_end(&mut said).unwrap();
    assert_eq!(Message::decode(&said), Ok(Some((Message::Farewell, said.len()))));
    // Once more it does nothing.
    sockets.part(socket);
}

#[test]
fn a_flood_of_messages_is_cut_off() {
    let (mut sockets, _, address) = listening();
    let mut flood = connect(address);
    let socket = incoming(&mut sockets);
    // Less than the kernel buffers, more than a connection has.
    flood.write_all(&READY.repeat(1000)).unwrap();
    let all = notices(&mut sockets, 4);
    let [messages @ .., Notice::Ended { socket: by, end }] = &all[..] else { panic!("{all:?}") };
    assert!(messages.len() == 3 && messages.iter().all(|one| matches!(one, Notice::Message { .. })), "{all:?}");
    assert!(matches!(end, StreamEnd::Handshake(HandshakeError::Unexpected(3))), "{all:?}");
    assert_eq!(*by, socket);
}

#[test]
fn a_listener_that_is_stopped_twice_leaves_others_alone() {
    let (mut sockets, first, _) = listening();
    sockets.stop_listening(first);
    let (second, address) = sockets.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    sockets.stop_listening(first);
    assert_ne!(first, second);
    let _peer = connect(address);
    assert!(matches!(notices(&mut sockets, 1)[..], [Notice::Incoming { listener, .. }] if listener == second));
}
