//! Ports for tests, wires at them, packets, and waiting for them.

use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use qpair_roce::wire::{Addresses, Bth, Extension, Flow, Headers, Opcode, Packet, Part};
use qpair_roce::{Arrival, Departure, Psn, Qpn, Route};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

use crate::soft::random_u32;
use crate::soft::roce::udp::place::Place;
use crate::soft::roce::udp::{HeldUp, Outbox, Slot, Wire};

/// A port that no other test has.
pub(super) struct TestPort {
    pub(super) place: Place,
    _lease: OwnedFd,
}

/// A packet that arrived, kept.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) addresses: Addresses,
    pub(super) source_port: u16,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
    pub(super) bytes: Vec<u8>,
}

impl TestPort {
    pub(super) fn new() -> Self {
        loop {
            // Below what the system gives out by itself.
            let port = 20_000 + (random_u32() % 12_000) as u16;
            let lease = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).unwrap();
            let name = SocketAddrUnix::new_abstract_name(format!("qpair-test-port-{port}").as_bytes()).unwrap();
            let is_free = || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok();
            if bind(&lease, &name).is_ok() && is_free() {
                return TestPort { place: Place { port }, _lease: lease };
            }
        }
    }

    pub(super) fn wire(&self) -> Wire {
        let slot = Slot::claim_at(self.place).unwrap().expect("a slot is free");
        Wire::open(Arc::new(slot)).unwrap()
    }
}

/// A queue pair of a slot.
pub(super) fn qpn(slot: u32, high: u32) -> Qpn {
    Qpn((high + 1) << 6 | slot)
}

/// The two loopbacks.
pub(super) fn loopbacks() -> Vec<Addresses> {
    let mut found = vec![Addresses::V4(Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::LOCALHOST)];
    match UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)) {
        Ok(_) => found.push(Addresses::V6(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST)),
        Err(error) => println!("skipped for IPv6: {error}"),
    }
    found
}

/// A packet, with its CRC.
pub(super) fn packet(flow: &Flow, part: Part, to: Qpn, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let bth = Bth::new(Opcode::RC_SEND_ONLY, to, Psn::new(7));
    Headers { bth, extension: Extension::None }.emit_packet(payload, &mut bytes).unwrap();
    flow.seal(part, &mut bytes);
    bytes
}

/// The flow of packets from a wire to a port of the tests.
pub(super) fn flow(port: &TestPort, route: &Route) -> Flow {
    Flow { destination_port: port.place.port, ..route.flow() }
}

pub(super) fn route(wire: &Wire, addresses: Addresses, peer: Qpn) -> Route {
    Route { addresses, source_port: wire.source_port(&addresses, peer), traffic_class: 0x2a, hop_limit: 64 }
}

/// Sends packets that go together.
pub(super) fn send(wire: &mut Wire, route: Route, packets: &[Vec<u8>]) {
    let mut outbox = Outbox::new();
    put(&mut outbox, route, packets);
    wire.send(Instant::now(), &mut outbox, nobody);
    assert!(outbox.is_empty() && !wire.is_full());
}

/// None hears that something of a connection was held up.
pub(super) fn nobody(qpn: Qpn, held_up: HeldUp) {
    panic!("{qpn:?} {held_up:?}");
}

/// Puts packets that go together into an outbox.
pub(super) fn put(outbox: &mut Outbox, route: Route, packets: &[Vec<u8>]) {
    let bytes = packets.concat();
    outbox.room().unwrap()[..bytes.len()].copy_from_slice(&bytes);
    outbox.push(Departure { from: None, route, segment: packets[0].len(), len: bytes.len() });
}

/// Receives until there are as many packets.
pub(super) fn receive(wire: &mut Wire, count: usize) -> Vec<Kept> {
    let mut kept = Vec::new();
    let end = Instant::now() + LIMIT;
    while kept.len() < count {
        assert!(Instant::now() < end, "{} of {count} packets came; {:?}", kept.len(), wire.counters());
        turn(wire, |arrival| kept.push(Kept::new(arrival)));
    }
    kept
}

/// Waits for something, and takes some of what there is.
pub(super) fn turn(wire: &mut Wire, each: impl FnMut(Arrival<'_>)) {
    let fd = PollFd::from_borrowed_fd(wire.fd(), PollFlags::IN);
    poll(&mut [fd], Some(&Timespec { tv_sec: 0, tv_nsec: 50_000_000 })).unwrap();
    wire.look_everywhere();
    wire.receive(each).unwrap();
}

/// Tries until something is there. A name that is given up lives on for a moment in a process that another test just starts.
pub(super) fn eventually<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(Instant::now() < end, "it does not come");
        std::thread::yield_now();
    }
}

impl Kept {
    fn new(arrival: Arrival<'_>) -> Self {
        assert_eq!(arrival.part, None, "a socket shows no identification");
        let Arrival { addresses, source_port, traffic_class, hop_limit, bytes, .. } = arrival;
        Kept { addresses, source_port, traffic_class, hop_limit, bytes: bytes.to_vec() }
    }

    /// Checks its CRC as of a part of a datagram, and gives what it carries.
    pub(super) fn check(&self, port: &TestPort, part: Part) -> &[u8] {
        let flow = Flow { addresses: self.addresses, source_port: self.source_port, destination_port: port.place.port };
        let packet = Packet::parse(&self.bytes).unwrap();
        assert!(flow.verifies(part, &packet), "{self:?} as {part:?}");
        packet.payload
    }
}

/// How long a busy machine may take.
pub(super) const LIMIT: Duration = Duration::from_secs(30);
