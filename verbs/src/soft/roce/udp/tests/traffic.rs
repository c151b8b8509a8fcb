//! Packets between slots of one process.

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Instant;

use qpair_roce::wire::{Addresses, Part};
use qpair_roce::{Departure, Qpn, Route};

use super::ground::{
    LIMIT, TestPort, eventually, flow, loopbacks, nobody, packet, put, qpn, receive, route, send, turn,
};
use crate::soft::roce::udp::counters::Loss;
use crate::soft::roce::udp::{Outbox, SLOTS, options};

#[test]
fn packets_come_with_all_that_their_headers_said() {
    let port = TestPort::new();
    let (mut a, mut b) = (port.wire(), port.wire());
    for addresses in loopbacks() {
        let to = qpn(b.slot().number(), 3);
        let route = route(&a, addresses, to);
        let sent = packet(&flow(&port, &route), Part::WHOLE, to, b"sixteen bytes...");
        send(&mut a, route, std::slice::from_ref(&sent));
        let got = receive(&mut b, 1).remove(0);
        assert_eq!((got.addresses, got.source_port), (addresses, route.source_port));
        assert_eq!((got.traffic_class, got.hop_limit), (0x2a, 64), "{got:?}");
        assert_eq!(got.bytes, sent);
        assert_eq!(got.check(&port, Part::WHOLE), b"sixteen bytes...");
        send(&mut a, Route { hop_limit: 3, ..route }, std::slice::from_ref(&sent));
        assert_eq!(receive(&mut b, 1)[0].hop_limit, 3);
    }
}

/// rdma_rxe sends such, and adapters do.
#[test]
fn packets_without_a_udp_checksum_come_as_all_others() {
    let port = TestPort::new();
    let mut wire = port.wire();
    for addresses in loopbacks() {
        let Addresses::V6(from, to) = addresses else { continue };
        let socket = UdpSocket::bind((from, 0)).unwrap();
        options::send_unsummed(socket.as_fd()).unwrap();
        let route =
            Route { addresses, source_port: socket.local_addr().unwrap().port(), traffic_class: 0, hop_limit: 64 };
        let sent = packet(&flow(&port, &route), Part::WHOLE, qpn(wire.slot().number(), 0), b"no checksum.");
        socket.send_to(&sent, (to, port.place.port)).unwrap();
        assert_eq!(receive(&mut wire, 1)[0].check(&port, Part::WHOLE), b"no checksum.");
    }
}

#[test]
fn packets_that_go_together_come_one_by_one() {
    let port = TestPort::new();
    let (mut a, mut b) = (port.wire(), port.wire());
    if a.segments() == 1 {
        return println!("skipped: this system takes one packet at a time");
    }
    for addresses in loopbacks() {
        let to = qpn(b.slot().number(), 0);
        let route = route(&a, addresses, to);
        let payload = |index: u16| vec![index as u8; if index < 40 { 1024 } else { 512 }];
        let make = |index| packet(&flow(&port, &route), Part::segment(index), to, &payload(index));
        let sent: Vec<_> = (0..=40).map(make).collect();
        send(&mut a, route, &sent);
        for (index, got) in (0..).zip(receive(&mut b, sent.len())) {
            assert_eq!((got.addresses, got.traffic_class), (addresses, 0x2a));
            assert_eq!(got.check(&port, Part::segment(index)), payload(index));
        }
    }
}

/// Some by one call, some not: those of two families, and one that the system refuses.
#[test]
fn departures_that_wait_together_all_go_in_their_order() {
    let port = TestPort::new();
    let (mut a, mut b) = (port.wire(), port.wire());
    let to = qpn(b.slot().number(), 0);
    let mut outbox = Outbox::new();
    let mut sent = Vec::new();
    let ways = loopbacks();
    for (number, way) in [0, 0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0].into_iter().enumerate() {
        let mut route = route(&a, ways[way % ways.len()], to);
        let payload = vec![number as u8; 64 + 4 * number];
        let packet = packet(&flow(&port, &route), Part::WHOLE, to, &payload);
        if number == 6 {
            route.source_port = 1; // Of no socket.
        } else {
            sent.push(packet.clone());
        }
        put(&mut outbox, route, &[packet]);
    }
    assert_eq!(outbox.waiting().count(), 12);
    a.send(Instant::now(), &mut outbox, nobody);
    assert!(outbox.is_empty() && !a.is_full());
    let got: Vec<_> = receive(&mut b, sent.len()).into_iter().map(|kept| kept.bytes).collect();
    assert_eq!(got, sent);
    assert_eq!(a.counters().lost.iter().sum::<u64>(), 1);
    // All the room is there again.
    let first = outbox.room().unwrap().len();
    (0..16).for_each(|_| put(&mut outbox, route(&a, ways[0], to), &[sent[0].clone()]));
    assert!(outbox.room().is_none() && first > 16 * sent[0].len(), "as many as go by one call");
}

#[test]
fn no_departure_is_begun_where_only_a_few_packets_have_room() {
    let port = TestPort::new();
    let wire = port.wire();
    let route = route(&wire, loopbacks()[0], qpn(wire.slot().number(), 0));
    for (left, begins) in [(3 * qpair_roce::LONGEST_PACKET, false), (5 * qpair_roce::LONGEST_PACKET, true)] {
        let mut outbox = Outbox::new();
        let len = outbox.room().unwrap().len() - left;
        outbox.push(Departure { from: None, route, segment: len, len });
        assert_eq!(outbox.room().is_some(), begins);
    }
}

#[test]
fn packets_of_one_flow_get_to_each_that_they_are_for() {
    let port = TestPort::new();
    let (mut a, mut b) = (port.wire(), port.wire());
    if a.segments() == 1 {
        return println!("skipped: this system takes one packet at a time");
    }
    let nobody = (0..SLOTS).find(|slot| ![a.slot().number(), b.slot().number()].contains(slot)).unwrap();
    for addresses in loopbacks() {
        let route = route(&a, addresses, qpn(0, 0));
        let slots = [a.slot().number(), b.slot().number(), nobody];
        let make = |index: u16| {
            let to = qpn(slots[usize::from(index % 3)], 5);
            packet(&flow(&port, &route), Part::segment(index), to, &[index as u8; 256])
        };
        let sent: Vec<_> = (0..30).map(make).collect();
        send(&mut a, route, &sent);
        // All came to the first one's slot, whose owner hands on what is for the other.
        for (first, wire) in [(0, &mut a), (1, &mut b)] {
            for (index, got) in (first..30).step_by(3).zip(receive(wire, 10)) {
                assert_eq!((got.addresses, got.source_port, got.traffic_class), (addresses, route.source_port, 0x2a));
                assert_eq!(got.check(&port, Part::segment(index)), [index as u8; 256]);
            }
        }
    }
    let rounds = loopbacks().len() as u64;
    assert_eq!((a.counters().forwarded, a.counters().dropped_forwards), (10 * rounds, 10 * rounds));
    assert_eq!(b.counters().taken_over, 10 * rounds);
}

#[test]
fn one_has_connection_management() {
    let port = TestPort::new();
    let (mut a, mut b) = (port.wire(), port.wire());
    assert!(a.claim_management(Instant::now()).unwrap());
    assert!(a.claim_management(Instant::now()).unwrap(), "it has it already");
    assert!(!b.claim_management(Instant::now()).unwrap());
    let route = route(&b, loopbacks()[0], Qpn(1));
    let sent = packet(&flow(&port, &route), Part::WHOLE, Qpn(1), b"hello, manager..");
    send(&mut b, route, std::slice::from_ref(&sent));
    assert_eq!(receive(&mut a, 1)[0].bytes, sent);
    drop(a);
    eventually(|| b.claim_management(Instant::now()).unwrap().then_some(()));
}

#[test]
fn garbage_does_no_harm() {
    let port = TestPort::new();
    let (mut a, mut b) = (port.wire(), port.wire());
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let stranger = UnixDatagram::unbound().unwrap();
    let own = b.slot().number();
    let name = SocketAddr::from_abstract_name(serving_name(&port, own)).unwrap();
    for len in [0, 1, 7, 8, 11, 12, 15, 16, 4097, 65507] {
        let mut bytes = vec![0xff; len];
        if let Some(destination) = bytes.get_mut(4..8) {
            destination.copy_from_slice(&qpn(own, 9).0.to_be_bytes());
        }
        socket.send_to(&bytes, (Ipv4Addr::LOCALHOST, port.place.port)).unwrap();
        // A full socket is as good as one that took it.
        let _ = stranger.send_to_addr(&bytes, &name);
        let _ = stranger.send_to_addr(&[b"qpair forward 1 ", &bytes[..]].concat(), &name);
        turn(&mut b, |_| {});
    }
    let end = Instant::now() + LIMIT;
    let to = qpn(own, 1);
    let route = route(&a, loopbacks()[0], to);
    let sent = packet(&flow(&port, &route), Part::WHOLE, to, b"still there");
    send(&mut a, route, std::slice::from_ref(&sent));
    let mut is_there = false;
    while !is_there {
        assert!(Instant::now() < end, "{:?}", b.counters());
        turn(&mut b, |arrival| is_there |= arrival.bytes == sent);
    }
    assert!(b.counters().bad_messages > 0);
}

#[test]
fn what_can_not_be_sent_is_lost_and_counted() {
    let port = TestPort::new();
    let (mut a, b) = (port.wire(), port.wire());
    let to = qpn(b.slot().number(), 0);
    let addresses = Addresses::V4(Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::LOCALHOST);
    let route = route(&a, addresses, to);
    let one = packet(&flow(&port, &route), Part::WHOLE, to, b"from an address that is not here");
    send(&mut a, route, &[one.clone(), one.clone()]);
    send(&mut a, route, std::slice::from_ref(&one));
    assert_eq!(a.counters().lost.iter().sum::<u64>(), 2, "{:?}", a.counters());
    assert_eq!(a.segments(), b.segments(), "the number of packets was not at fault");
    send(&mut a, Route { source_port: 1, ..route }, &[one]);
    assert_eq!(a.counters().lost[Loss::NoAddress as usize], 1, "no socket here has that port");
}

fn serving_name(port: &TestPort, slot: u32) -> String {
    format!("qpair-roce-{}-serving-{slot}", port.place.port)
}
