//! Packets for queue pair 1: whoever has its socket hands them to those that they are for.

use std::time::{Duration, Instant};

use qpair_roce::wire::cm::{LEN, Message, Pair, QKEY, SERVICE_TCP};
use qpair_roce::wire::{Bth, Deth, Extension, Headers, Opcode, Part};
use qpair_roce::{Psn, Qpn};

use super::ground::{LIMIT, TestPort, flow, loopbacks, receive, route, send, turn};
use crate::soft::roce::udp::Wire;

/// A message to the connection of that number.
fn ready(remote: u32) -> [u8; LEN] {
    let message = Message::ReadyToUse { ids: Pair { local: 1, remote }, private: [0; 224] };
    qpair_roce::wire::cm::Packet { transaction: 7, message }.emit()
}

/// A request for a port, as far as that is looked at.
fn request(port: u16) -> [u8; LEN] {
    let mut bytes = ready(0);
    bytes[16..18].copy_from_slice(&0x10u16.to_be_bytes());
    bytes[32..40].copy_from_slice(&(SERVICE_TCP + u64::from(port)).to_be_bytes());
    bytes
}

/// Sends a message to queue pair 1; the packet.
fn say(port: &TestPort, from: &mut Wire, message: &[u8]) -> Vec<u8> {
    let route = route(from, loopbacks()[0], Qpn(1));
    let bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn(1), Psn::new(0));
    let extension = Extension::Datagram(Deth { qkey: QKEY, source: Qpn(1) });
    let mut bytes = Vec::new();
    Headers { bth, extension }.emit_packet(message, &mut bytes).unwrap();
    flow(port, &route).seal(Part::WHOLE, &mut bytes);
    send(from, route, std::slice::from_ref(&bytes));
    bytes
}

/// Has `desk`, which has the socket, hand on what came, until `to` has it.
fn arrives(desk: &mut Wire, to: &mut Wire, sent: &[u8]) {
    let (mut came, end) = (false, Instant::now() + LIMIT);
    while !came {
        assert!(Instant::now() < end, "{:?} {:?}", desk.counters(), to.counters());
        turn(desk, |arrival| assert_ne!(arrival.bytes, sent, "it is not for this one"));
        turn(to, |arrival| came |= arrival.bytes == sent);
    }
}

#[test]
fn messages_reach_the_device_that_their_number_names() {
    let port = TestPort::new();
    let (mut desk, mut other) = (port.wire(), port.wire());
    assert!(desk.claim_management(Instant::now()).unwrap());
    let [own, others, nobodys] = {
        let [own, others] = [desk.slot().number(), other.slot().number()];
        [own, others, (0..64).find(|slot| ![own, others].contains(slot)).unwrap()]
    };
    let sent = say(&port, &mut other, &ready(0x500 << 6 | others));
    arrives(&mut desk, &mut other, &sent);
    for slot in [own, nobodys] {
        let sent = say(&port, &mut other, &ready(0x500 << 6 | slot));
        assert_eq!(receive(&mut desk, 1)[0].bytes, sent, "what is nobody's is answered by who has the socket");
    }
}

#[test]
fn requests_reach_the_device_that_listens() {
    let port = TestPort::new();
    let (mut desk, mut other) = (port.wire(), port.wire());
    assert!(desk.claim_management(Instant::now()).unwrap());
    assert!(other.listen(7471).unwrap());
    assert!(!desk.listen(7471).unwrap() && !other.listen(7471).unwrap(), "another has that port");
    assert!(desk.listen(7472).unwrap());
    let sent = say(&port, &mut desk, &request(7471));
    arrives(&mut desk, &mut other, &sent);
    for unheard in [7472, 7473] {
        let sent = say(&port, &mut other, &request(unheard));
        assert_eq!(receive(&mut desk, 1)[0].bytes, sent);
    }
    other.unlisten(7471);
    let sent = say(&port, &mut other, &request(7471));
    assert_eq!(receive(&mut desk, 1)[0].bytes, sent);
    assert!(desk.listen(7471).unwrap());
}

/// As one does that is stopped.
#[test]
fn what_the_one_with_the_socket_leaves_unread_others_read() {
    let port = TestPort::new();
    let (mut desk, mut other, mut third) = (port.wire(), port.wire(), port.wire());
    let start = Instant::now();
    assert!(desk.claim_management(start).unwrap());
    let names = [&other, &third].map(|wire| ready(0x500 << 6 | wire.slot().number()));
    // What is there so many seconds after the beginning.
    let read = |wire: &mut Wire, seconds: u32, sent: &[u8]| {
        let mut came = false;
        assert!(!wire.claim_management(start + Duration::from_secs(seconds.into())).unwrap(), "the other has it");
        wire.receive(|arrival| came |= arrival.bytes == sent).unwrap();
        came
    };
    let sent = say(&port, &mut other, &names[0]);
    assert!(!read(&mut other, 0, &sent), "it may be read at any moment");
    assert!((1..60).any(|seconds| read(&mut other, seconds, &sent)));
    // What is a third one's goes on to that, also where there are more than it has room for.
    let sent: Vec<_> = (0..100).map(|_| say(&port, &mut other, &names[1])).collect();
    let (mut count, end) = (0, Instant::now() + LIMIT);
    for seconds in 60.. {
        read(&mut other, seconds, &[]);
        other.look_everywhere();
        if count == sent.len() && !other.has_waiting() {
            break;
        }
        assert!(Instant::now() < end, "{count} came; {:?}", other.counters());
        third.look_everywhere();
        third.receive(|arrival| count += usize::from(arrival.bytes == sent[0])).unwrap();
    }
    // Nothing is left, and what comes next is left to the one with the socket.
    let sent = say(&port, &mut other, &names[0]);
    arrives(&mut desk, &mut other, &sent);
}

#[test]
fn a_burst_for_one_without_room_waits() {
    let port = TestPort::new();
    let (mut desk, mut other) = (port.wire(), port.wire());
    assert!(desk.claim_management(Instant::now()).unwrap() && other.listen(7471).unwrap());
    // Far more than a Unix socket has room for.
    let mut left: Vec<_> = (0..600).map(|_| say(&port, &mut other, &request(7471))).collect();
    while desk.counters().forwarded == 0 {
        turn(&mut desk, |_| panic!("it is for the other"));
    }
    (0..200).for_each(|_| turn_at_once(&mut desk));
    assert!(desk.has_waiting(), "{:?}", desk.counters());
    let end = Instant::now() + LIMIT;
    while !left.is_empty() {
        assert!(Instant::now() < end, "{} are missing; {:?}", left.len(), desk.counters());
        turn_at_once(&mut desk);
        other.look_everywhere();
        other.receive(|_| drop(left.pop())).unwrap();
    }
    assert!(!desk.has_waiting());
}

fn turn_at_once(wire: &mut Wire) {
    wire.look_everywhere();
    wire.receive(|_| panic!("it is for the other")).unwrap();
}
