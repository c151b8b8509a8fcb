//! Ports: several queue pairs behind one socket, packets that are sent at once, and packets that are nobody's.

mod failed;
mod held;
mod late;

use std::time::{Duration, Instant};

use qpair_roce::congestion::{DcqcnParameters, Rate};
use qpair_roce::wire::{Addresses, Bth, Extension, Flow, Headers, Opcode, PORT, Packet, Part, Reth, cm};
use qpair_roce::{
    AddError, Arrival, Completion, Datagram, DatagramConfig, Datagrams, Departure, Extra, Mtu, Op, Outcome, Port, Psn,
    Qpn, QueuePair, ReliableConfig, ReliableConnection, Remote, Route, Send, Target, UnreliableConfig,
    UnreliableConnection,
};

use crate::network::{Faults, Network};
use crate::side::{BASE, KEY, Side};

const CONNECTIONS: u32 = 5;
const UNRELIABLE: Qpn = Qpn(0x108);
const DATAGRAMS: Qpn = Qpn(0x209);
const QKEY: u32 = 7;

struct End {
    port: Port<usize>,
    side: Side,
    addresses: Addresses,
}

struct Net {
    ends: [End; 2],
    network: Network,
    now: Instant,
}

fn connection(number: u32) -> Qpn {
    Qpn(0x10 + number)
}

/// An end with connections of each kind to the other, which has the same numbers.
fn end(own: u8, congestion: Option<DcqcnParameters>) -> End {
    end_of_class(own, congestion, 0)
}

/// One whose packets have that traffic class, but for what is about congestion.
fn end_of_class(own: u8, congestion: Option<DcqcnParameters>, traffic_class: u8) -> End {
    let address = |end: u8| [10, 0, 0, end].into();
    let addresses = Addresses::V4(address(own), address(1 - own));
    let route = Route { addresses, source_port: 50_000, traffic_class, hop_limit: 64 };
    let (now, mut port) = (Instant::now(), Port::new());
    congestion.into_iter().for_each(|parameters| port.control_congestion(parameters));
    for number in 0..CONNECTIONS {
        let qpn = connection(number);
        let config = ReliableConfig {
            ack_timeout: Some(Duration::from_micros(300)),
            retry_count: None,
            ..ReliableConfig::new(qpn, qpn, Psn::new(number), Psn::new(number))
        };
        port.add(now, QueuePair::Reliable(ReliableConnection::new(config), route)).unwrap();
    }
    let config = UnreliableConfig::new(UNRELIABLE, UNRELIABLE, Psn::new(0), Psn::new(0));
    port.add(now, QueuePair::Unreliable(UnreliableConnection::new(config), route)).unwrap();
    let config = DatagramConfig { mtu: Mtu::B1024, ..DatagramConfig::new(DATAGRAMS, QKEY) };
    port.add(now, QueuePair::Datagrams(Datagrams::new(config))).unwrap();
    End { port, side: Side::new(1 << 16), addresses }
}

impl End {
    fn write(&mut self, number: u32, contents: Vec<u8>) -> u64 {
        let (len, local) = (contents.len() as u32, self.side.buffer(contents));
        let remote = Remote { va: BASE + u64::from(number) * 8192, rkey: KEY };
        let op = Op::Write(remote, None);
        let work = Send { id: local as u64, op, local, len, solicited: false, fence: false };
        self.port.post(connection(number), work, &mut self.side).expect("there is room");
        local as u64
    }

    fn route(&self) -> Route {
        Route { addresses: self.addresses, source_port: 50_000, traffic_class: 0, hop_limit: 64 }
    }

    fn receives(&mut self, bytes: &[u8], part: Option<Part>) {
        self.receives_at(Instant::now(), bytes, part);
    }

    fn receives_at(&mut self, now: Instant, bytes: &[u8], part: Option<Part>) {
        let addresses = self.addresses.reversed();
        let arrival = Arrival { addresses, source_port: 50_000, part, traffic_class: 0, hop_limit: 64, bytes };
        self.port.receive(now, &arrival, &mut self.side);
    }

    /// A packet of that operation comes from the peer of connection 2, which wants to hear of it.
    fn hears(&mut self, now: Instant, opcode: Opcode, psn: u32, extension: Extension) {
        let bth = Bth { ack_request: true, ..Bth::new(opcode, connection(2), Psn::new(psn)) };
        let mut bytes = Vec::new();
        Headers { bth, extension }.emit_packet(b"", &mut bytes).unwrap();
        let flow = Flow { addresses: self.addresses.reversed(), source_port: 50_000, destination_port: PORT };
        flow.seal(Part::WHOLE, &mut bytes);
        self.receives_at(now, &bytes, Some(Part::WHOLE));
    }
}

impl Net {
    fn new(seed: u64, faults: Faults) -> Self {
        Net { ends: [end(0, None), end(1, None)], network: Network::new(seed, faults), now: Instant::now() }
    }

    /// Runs until nothing is under way; the departures.
    fn drive(&mut self) -> Vec<Departure> {
        let (mut buffer, mut departures) = (vec![0; 1 << 16], Vec::new());
        loop {
            for own in 0..2 {
                let End { port, side, .. } = &mut self.ends[own];
                while let Some(departure) = port.transmit(self.now, &mut buffer, 32, side) {
                    departures.push(departure);
                    for packet in buffer[..departure.len].chunks(departure.segment) {
                        self.network.send(self.now, 1 - own, packet, ());
                    }
                }
            }
            let timeouts = self.ends.iter().filter_map(|end| end.port.timeout());
            let Some(next) = self.network.next_arrival().into_iter().chain(timeouts).min() else { return departures };
            self.now = self.now.max(next);
            while let Some((to, bytes, ())) = self.network.arrived(self.now) {
                let End { port, side, addresses } = &mut self.ends[to];
                let addresses = addresses.reversed();
                let arrival = Arrival {
                    addresses,
                    source_port: 50_000,
                    part: None,
                    traffic_class: 0,
                    hop_limit: 64,
                    bytes: &bytes,
                };
                port.receive(self.now, &arrival, side);
            }
            for End { port, side, .. } in &mut self.ends {
                port.handle_timeout(self.now, side);
            }
        }
    }
}

#[test]
fn queue_pairs_do_not_disturb_each_other() {
    for seed in 0..20 {
        let mut net = Net::new(seed, Faults { loss: 0.05, duplicate: 0.05, corrupt: 0.05, reorder: 0.1, late: 0.0 });
        for number in 0..CONNECTIONS {
            for end in &mut net.ends {
                end.write(number, vec![number as u8 + 1; 8000]);
            }
        }
        net.drive();
        for End { side, .. } in &net.ends {
            let done = |completion: &&Completion<usize>| {
                matches!(completion, Completion::Sent { outcome: Outcome::Success, .. })
            };
            assert_eq!(side.completions.iter().filter(done).count(), CONNECTIONS as usize);
            for number in 0..CONNECTIONS as usize {
                assert_eq!(side.memory[number * 8192..][..8000], vec![number as u8 + 1; 8000], "seed {seed}");
            }
        }
    }
}

#[test]
fn packets_of_one_message_leave_together() {
    let mut net = Net::new(1, Faults::default());
    net.ends[0].write(0, vec![1; 8192]);
    let departures = net.drive();
    let data: Vec<_> = departures.iter().map(|departure| (departure.segment, departure.len)).collect();
    // The first has a longer header; the others are as long as each other. Then an acknowledgment.
    assert_eq!(data, [(1024 + 32, 1056 + 1040), (1040, 6 * 1040), (20, 20)]);
    let counters = net.ends[1].port.counters();
    assert_eq!((counters.rcvd_pkts, counters.rx_icrc_encapsulated), (8, 0));
}

/// The first packet of a write has a longer header than the second, which ends what goes together.
#[test]
fn an_acknowledgment_parts_no_message_that_comes_behind_it() {
    let (mut end, mut buffer) = (end(0, None), vec![0; 1 << 16]);
    let bth = Bth { ack_request: true, ..Bth::new(Opcode::RC_WRITE_ONLY, connection(0), Psn::new(0)) };
    let mut write = Vec::new();
    let extension = Extension::Remote(Reth { va: BASE, rkey: KEY, len: 0 });
    Headers { bth, extension }.emit_packet(b"", &mut write).unwrap();
    let flow = Flow { addresses: end.addresses.reversed(), source_port: 50_000, destination_port: PORT };
    flow.seal(Part::WHOLE, &mut write);
    end.receives(&write, Some(Part::WHOLE));
    (0..10).for_each(|_| _ = end.write(0, vec![1; 2048]));
    let now = Instant::now();
    let lens: Vec<_> =
        std::iter::from_fn(|| end.port.transmit(now, &mut buffer, 32, &mut end.side)).map(|it| it.len).collect();
    let message = 1056 + 1040;
    assert_eq!(lens[..3], [message, message, 20]);
    assert_eq!(lens[3..], [message; 8]);
}

#[test]
fn datagrams_and_unreliable_messages_arrive() {
    let mut net = Net::new(1, Faults::default());
    for id in 1..3 {
        net.ends[1].side.receive(id, 2000);
    }
    let [near, far] = &mut net.ends;
    let route = near.route();
    let local = near.side.buffer(vec![5; 100]);
    let op = Op::Send(Extra::Nothing);
    let work = Send { id: 0, op, local, len: 100, solicited: false, fence: false };
    near.port.post(UNRELIABLE, work, &mut near.side).unwrap();
    let target = Target { qpn: DATAGRAMS, qkey: QKEY, path: route };
    let work = Datagram { id: 1, local, len: 100, immediate: None, solicited: false, target };
    near.port.post_datagram(DATAGRAMS, work, &mut near.side).unwrap();
    assert!(far.side.completions.is_empty());
    net.drive();
    let far = &net.ends[1].side;
    let lens = far.completions.iter().map(|completion| match completion {
        Completion::Received { outcome: Outcome::Success, message, .. } => message.len,
        other => panic!("{other:?}"),
    });
    assert_eq!(Vec::from_iter(lens), [100, 140]);
    assert_eq!(far.buffers[1][20], 0x45, "an IPv4 header");
}

#[test]
fn what_is_nobodys_is_dropped_and_counted() {
    let mut end = end(1, None);
    let flow = |addresses| Flow { addresses, source_port: 50_000, destination_port: PORT };
    let from = end.addresses.reversed();
    let packet = |qpn, pkey, addresses| {
        let bth = Bth { pkey, ack_request: true, ..Bth::new(Opcode::RC_SEND_ONLY, qpn, Psn::new(0)) };
        let mut bytes = Vec::new();
        Headers { bth, extension: Extension::None }.emit_packet(b"hello", &mut bytes).unwrap();
        flow(addresses).seal(Part::WHOLE, &mut bytes);
        bytes
    };
    let good = packet(connection(0), 0xffff, from);
    end.receives(&good[..7], None);
    end.receives(&packet(Qpn(0x999), 0xffff, from), None);
    end.receives(&packet(connection(0), 0x8001, from), None);
    let mut damaged = good.clone();
    damaged[14] ^= 1;
    end.receives(&damaged, Some(Part::WHOLE));
    let elsewhere = Addresses::V4([10, 0, 0, 9].into(), [10, 0, 0, 1].into());
    let bytes = packet(connection(0), 0xffff, elsewhere);
    let arrival = Arrival {
        addresses: elsewhere,
        source_port: 50_000,
        part: None,
        traffic_class: 0,
        hop_limit: 64,
        bytes: &bytes,
    };
    end.port.receive(Instant::now(), &arrival, &mut end.side);
    end.receives(&packet(Qpn(1), 0xffff, from), None);
    let counters = *end.port.counters();
    let dropped = [
        counters.malformed_packets,
        counters.unknown_qp,
        counters.bad_pkey_cntr,
        counters.rx_icrc_encapsulated,
        counters.wrong_address,
        counters.management_dropped,
    ];
    assert_eq!((dropped, counters.rcvd_pkts), ([1; 6], 0));
    assert_eq!(end.port.transmit(Instant::now(), &mut [0; 2048], 1, &mut end.side), None, "nothing is answered");
    end.side.receive(1, 10);
    end.receives(&good, None);
    assert_eq!((end.port.counters().rcvd_pkts, end.side.completions.len()), (1, 1));
}

#[test]
fn the_connection_managers_datagrams_pass() {
    let mut net = Net::new(1, Faults::default());
    let bytes = std::array::from_fn::<u8, { cm::LEN }, _>(|at| at as u8);
    let route = net.ends[0].route();
    assert!(net.ends[0].port.send_management(route, bytes));
    net.drive();
    assert_eq!(net.ends[1].port.next_management(), Some((route.addresses, bytes)));
    assert_eq!(net.ends[1].port.next_management(), None);
    // A flood is cut off.
    let sent = (0..1000).filter(|_| net.ends[0].port.send_management(route, bytes)).count();
    assert!((1..1000).contains(&sent), "{sent}");
}

#[test]
fn a_number_is_that_of_one_queue_pair_and_free_again_once_it_is_removed() {
    let mut end = end(0, None);
    let mut add = |qpn| {
        let datagrams = Datagrams::new(DatagramConfig::new(qpn, QKEY));
        end.port.add(Instant::now(), QueuePair::Datagrams(datagrams))
    };
    assert_eq!([0, 1, 0x00ff_ffff, 0x0100_0005].map(|number| add(Qpn(number))), [Err(AddError::Reserved); 4]);
    assert_eq!(add(UNRELIABLE), Err(AddError::Taken));
    assert!(matches!(end.port.get(UNRELIABLE), Some(QueuePair::Unreliable(..))), "it stays what it was");
    assert!(end.port.remove(UNRELIABLE).is_some());
    let datagrams = Datagrams::new(DatagramConfig::new(UNRELIABLE, QKEY));
    assert_eq!(end.port.add(Instant::now(), QueuePair::Datagrams(datagrams)), Ok(()));
    assert!(matches!(end.port.get(UNRELIABLE), Some(QueuePair::Datagrams(_))));
}

#[test]
fn a_queue_pair_that_is_removed_gets_nothing() {
    let mut net = Net::new(1, Faults::default());
    net.ends[0].write(0, vec![1; 3000]);
    let End { port, side, .. } = &mut net.ends[0];
    port.close(connection(0), side);
    assert!(port.remove(connection(0)).is_some() && port.get(connection(0)).is_none());
    assert_eq!(net.drive(), []);
    let flushed =
        |completion: &Completion<usize>| matches!(completion, Completion::Sent { outcome: Outcome::Flushed, .. });
    assert!(net.ends[0].side.completions.iter().all(flushed));
    let mut bytes = Vec::new();
    let bth = Bth::new(Opcode::RC_SEND_ONLY, connection(0), Psn::new(0));
    Headers { bth, extension: Extension::None }.emit_packet(b"", &mut bytes).unwrap();
    bytes.extend_from_slice(&[0; 4]);
    assert!(Packet::parse(&bytes).is_ok());
    net.ends[0].receives(&bytes, None);
    assert_eq!(net.ends[0].port.counters().unknown_qp, 1);
}

/// Traffic classes 41 and 105 are in use with RoCE; 107 says that a packet met congestion.
#[test]
fn no_traffic_class_says_that_there_is_congestion() {
    for (class, sent) in [(0, 2), (106, 106), (41, 42), (105, 106), (107, 106)] {
        let mut near = end_of_class(0, Some(DcqcnParameters::new(Rate::from_gbps(1))), class);
        near.write(0, vec![1; 3000]);
        let (mut classes, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
        while let Some(departure) = near.port.transmit(Instant::now(), &mut buffer, 32, &mut near.side) {
            classes.push(departure.route.traffic_class);
        }
        assert!(!classes.is_empty() && classes.iter().all(|seen| *seen == sent), "{class}: {classes:?}");
    }
}

#[test]
fn marks_are_told_and_slow_the_sender_down() {
    let line = DcqcnParameters::new(Rate::from_gbps(1));
    let [mut near, mut far] = [0, 1].map(|own| end(own, Some(line)));
    let (mut now, mut buffer) = (Instant::now(), vec![0; 1 << 16]);
    near.write(0, vec![1; 60_000]);
    let carry = |now, from: &mut End, to: &mut End, buffer: &mut [u8], mark: u8| {
        let mut seen = Vec::new();
        while let Some(departure) = from.port.transmit(now, buffer, 32, &mut from.side) {
            seen.push((departure.route.traffic_class, departure.len));
            for bytes in buffer[..departure.len].chunks(departure.segment) {
                let addresses = from.addresses;
                let arrival =
                    Arrival { addresses, source_port: 50_000, part: None, traffic_class: mark, hop_limit: 64, bytes };
                to.port.receive(now, &arrival, &mut to.side);
            }
        }
        seen
    };
    let data = carry(now, &mut near, &mut far, &mut buffer, 3);
    assert!(data.iter().all(|(class, _)| *class == 2), "they may be marked: {data:?}");
    let answers = carry(now, &mut far, &mut near, &mut buffer, 0);
    assert_eq!(answers[0], (48 << 2, 28 + 4), "one notification before all else: {answers:?}");
    let counters = (near.port.counters(), far.port.counters());
    assert_eq!((counters.0.rp_cnp_handled, counters.1.np_cnp_sent), (1, 1));
    // It begins at half of the rate of the link, and is back there after some milliseconds. Then this network has no limit:
    // 800 kB would take 6.4 ms at the rate of the link.
    let (start, mut soon) = (now, 0);
    for _ in 0..16 {
        near.write(0, vec![1; 50_000]);
    }
    let done = |end: &End| end.side.completions.len();
    while done(&near) < 17 {
        let data = carry(now, &mut near, &mut far, &mut buffer, 0);
        if now - start < Duration::from_micros(50) {
            soon += data.iter().map(|(_, len)| len).sum::<usize>();
        }
        carry(now, &mut far, &mut near, &mut buffer, 0);
        let next = [&near, &far].into_iter().filter_map(|end| end.port.timeout()).min().expect("something is due");
        now = now.max(next);
        for end in [&mut near, &mut far] {
            end.port.handle_timeout(now, &mut end.side);
        }
    }
    let fine =
        |completion: &Completion<usize>| matches!(completion, Completion::Sent { outcome: Outcome::Success, .. });
    assert!(near.side.completions.iter().all(fine));
    let took = (now - start).as_micros();
    assert!((1_000..6_400).contains(&took), "{took} us");
    // In 50 us, 6250 bytes at the rate of the link.
    assert!((1000..4400).contains(&soon), "{soon} bytes");
}

/// A port with two connections that go by ways of their own, and the second retries for ever.
fn two_ways(now: Instant, retry_count: u8) -> End {
    let addresses = Addresses::V4([10, 0, 0, 0].into(), [10, 0, 0, 1].into());
    let mut port = Port::new();
    for (number, retry_count) in [Some(retry_count), None].into_iter().enumerate() {
        let (qpn, source_port) = (connection(number as u32), 50_000 + number as u16);
        let route = Route { addresses, source_port, traffic_class: 0, hop_limit: 64 };
        let config = ReliableConfig { retry_count, ..ReliableConfig::new(qpn, qpn, Psn::new(0), Psn::new(0)) };
        port.add(now, QueuePair::Reliable(ReliableConnection::new(config), route)).unwrap();
    }
    End { port, side: Side::new(1 << 16), addresses }
}

impl End {
    /// What it sends by ways out that have room: of which connection, and the packets.
    fn departs(&mut self, now: Instant, has_room: impl Fn(u16) -> bool) -> Vec<(Option<Qpn>, Vec<u8>)> {
        let (mut to, mut seen) = (vec![0; 1 << 16], Vec::new());
        let has_room = |route: &Route| has_room(route.source_port);
        while let Some(gone) = self.port.transmit_where(now, &mut to, 32, &mut self.side, has_room) {
            seen.push((gone.from, to[..gone.len].to_vec()));
        }
        seen
    }

    fn state(&self, number: u32) -> qpair_roce::State {
        let Some(QueuePair::Reliable(rc, _)) = self.port.get(connection(number)) else { panic!("it is there") };
        rc.state()
    }
}

#[test]
fn a_way_out_without_room_holds_up_only_what_goes_by_it_and_costs_no_retry() {
    let mut now = Instant::now();
    let mut end = two_ways(now, 0);
    let first_is_full = |port| port != 50_000;
    let from = |seen: Vec<(Option<Qpn>, Vec<u8>)>| seen.iter().map(|(from, _)| from.unwrap()).collect::<Vec<_>>();
    for number in 0..2 {
        end.write(number, vec![1; 100]);
    }
    assert_eq!(from(end.departs(now, first_is_full)), [connection(1)]);
    for _ in 0..9 {
        // It is looked at no more, whatever is posted, until there may be room.
        assert!(end.port.is_quiet());
        end.write(0, vec![2; 100]);
        now += Duration::from_millis(100);
        end.port.handle_timeout(now, &mut end.side);
        assert_eq!(from(end.departs(now, first_is_full)), [connection(1)], "sent again");
    }
    end.port.resume();
    assert!(!end.port.is_quiet());
    assert_eq!(from(end.departs(now, first_is_full)), [], "there was none");
    end.port.resume();
    assert_eq!(from(end.departs(now, |_| true)).first(), Some(&connection(0)));
    assert_eq!(end.state(0), qpair_roce::State::Ready);
    // One that leaves says what it has to all the same, and is forgotten.
    end.write(0, vec![3; 100]);
    assert_eq!(from(end.departs(now, first_is_full)), []);
    end.port.close(connection(0), &mut end.side);
    assert_eq!((end.port.is_quiet(), from(end.departs(now, first_is_full))), (false, vec![]));
    end.port.remove(connection(0));
    end.port.resume();
    assert!(end.port.is_quiet());
}

#[test]
fn what_waits_behind_a_full_way_out_is_not_waited_for() {
    let start = Instant::now();
    let timeout = Duration::from_micros(67_109);
    let mut end = two_ways(start, 0);
    end.write(0, vec![1; 100]);
    let made = end.departs(start, |_| true);
    assert_eq!(made.len(), 1);
    // It waits, and then it is given up: the same is made once more.
    let now = start + timeout / 2;
    end.port.still_waits(now, connection(0));
    end.port.handle_timeout(start + timeout, &mut end.side);
    assert_eq!((end.state(0), end.departs(start + timeout, |_| true)), (qpair_roce::State::Ready, vec![]));
    end.port.never_went(connection(0));
    assert_eq!(end.departs(start + timeout, |_| true), made);
    assert_eq!(end.port.counters().local_ack_timeout_err, 0);
    // That has gone, and is waited for.
    end.port.handle_timeout(start + 2 * timeout, &mut end.side);
    assert_eq!((end.state(0), end.port.counters().local_ack_timeout_err), (qpair_roce::State::Failed, 1));
    // Of what is not there, or waits for no answer, nothing comes.
    for qpn in [connection(0), connection(1), Qpn(77)] {
        end.port.still_waits(now, qpn);
        end.port.never_went(qpn);
    }
    assert_eq!(end.departs(now, |_| true), []);
}
