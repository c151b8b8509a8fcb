//! Plays a script.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use qpair_roce::wire::{Packet, Part};
use qpair_roce::{Arrival, Datagram, Extra, Op as Verb, Qpn, Receive, Remote, Send, Target};

use super::device::{BASE, KEY, Local, MEMORY};
use super::end::{End, QKEY, QPNS, SOURCE_PORT, flow};
use super::op::{Kind, Op, Setup};

/// A packet on its way.
#[derive(Clone)]
struct Flying {
    to: usize,
    bytes: Vec<u8>,
    part: Part,
    traffic_class: u8,
}

/// Two ends, and what is between them.
pub struct Play<'a> {
    setup: &'a Setup,
    ends: [End; 2],
    flying: VecDeque<Flying>,
    now: Instant,
    posted: u64,
}

impl<'a> Play<'a> {
    pub fn new(setup: &'a Setup) -> Self {
        let now = Instant::now();
        let ends = [0, 1].map(|own| End::new(now, own, setup));
        Play { setup, ends, flying: VecDeque::new(), now, posted: 0 }
    }

    pub fn act(&mut self, op: &Op) {
        match *op {
            Op::Post { .. } => self.post(op),
            Op::Receive { end, len } => {
                self.posted += 1;
                let receive = Receive { id: self.posted, local: Local(len.into()), len: len.into() };
                self.ends[usize::from(end)].device.receives.push_back(receive);
            }
            Op::Send { end, times, segments } => self.send(end.into(), times.into(), segments.into()),
            Op::Arrive { count, is_marked } => {
                for _ in 0..count {
                    let Some(mut flying) = self.flying.pop_front() else { break };
                    flying.traffic_class |= if is_marked { 3 } else { 0 };
                    self.arrive(&flying);
                }
            }
            Op::Overtake(which) => {
                if let Some(flying) = self.pick(which).and_then(|place| self.flying.remove(place)) {
                    self.arrive(&flying);
                }
            }
            Op::Lose(which) => {
                self.pick(which).and_then(|place| self.flying.remove(place));
            }
            Op::Repeat(which) => {
                let again = self.pick(which).map(|place| self.flying[place].clone());
                self.flying.extend(again);
            }
            Op::Change { packet, at, by, sealed } => {
                if let Some(place) = self.pick(packet) {
                    let Flying { to, bytes, part, .. } = &mut self.flying[place];
                    let at = usize::from(at) % bytes.len();
                    bytes[at] ^= by;
                    if sealed {
                        flow(self.ends[*to].addresses.reversed()).seal_in_place(*part, bytes);
                    }
                }
            }
            Op::Forge(ref forged) => {
                let to = usize::from(forged.end);
                let near = self.ends[if forged.answers { to } else { 1 - to }].sent;
                let qpn = ALL[usize::from(forged.qp) % ALL.len()];
                self.inject(to, forged.make(qpn, near), forged.sealed);
            }
            Op::Bytes { end, ref bytes, sealed } => self.inject(end.into(), bytes.clone(), sealed),
            Op::Wait { micros } => {
                self.now += Duration::from_micros(micros.into());
                self.time_out();
            }
            Op::Exchange(times) => {
                for _ in 0..times % 16 {
                    (0..2).for_each(|end| self.send(end, 64, 8));
                    while let Some(flying) = self.flying.pop_front() {
                        self.arrive(&flying);
                    }
                    self.time_out();
                }
            }
            Op::Withdraw { end, local } => {
                let device = &mut self.ends[usize::from(end)].device;
                let what = if local { &mut device.is_gone } else { &mut device.is_withdrawn };
                *what = !*what;
            }
            Op::Close { end, qp } => {
                let End { port, device, .. } = &mut self.ends[usize::from(end)];
                port.close(QPNS[usize::from(qp) % 3], device);
            }
            Op::Remake { end, qp } => {
                let qpn = QPNS[usize::from(qp) % 3];
                let own = usize::from(end);
                self.ends[own].remove(qpn);
                self.ends[own].open(self.now, own, qpn, self.setup);
            }
        }
    }

    fn post(&mut self, op: &Op) {
        let Op::Post { end, qp, kind, len, at, solicited, fence } = *op else { return };
        let (own, qpn, len) = (usize::from(end), QPNS[usize::from(qp) % 3], len.get());
        let route = self.ends[own].route();
        let End { port, device, .. } = &mut self.ends[own];
        self.posted += 1;
        let (id, local) = (self.posted, Local(len));
        let remote = Remote { va: BASE + u64::from(at) % (MEMORY + 8), rkey: KEY };
        let verb = match kind {
            Kind::Send => Verb::Send(Extra::Nothing),
            Kind::SendImmediate => Verb::Send(Extra::Immediate(at.into())),
            Kind::SendInvalidate => Verb::Send(Extra::Invalidate(KEY)),
            Kind::Write => Verb::Write(remote, None),
            Kind::WriteImmediate => Verb::Write(remote, Some(at.into())),
            Kind::Read => Verb::Read(remote),
            Kind::CompareSwap => Verb::CompareSwap { remote, compare: 0, swap: 1 },
            Kind::FetchAdd => Verb::FetchAdd { remote, add: 1 },
        };
        // A queue pair that has failed completes it at once.
        device.posted.entry(qpn).or_default().push_back(id);
        let result = if qpn == QPNS[2] {
            let immediate = matches!(kind, Kind::SendImmediate).then_some(1);
            let target = Target { qpn, qkey: if fence { 1 << 31 } else { QKEY }, path: route };
            port.post_datagram(qpn, Datagram { id, local, len, immediate, solicited, target }, device)
        } else {
            port.post(qpn, Send { id, op: verb, local, len, solicited, fence }, device)
        };
        if result.is_err() {
            assert_eq!(device.posted.get_mut(&qpn).and_then(VecDeque::pop_back), Some(id), "it was not taken");
        }
    }

    fn send(&mut self, own: usize, times: usize, segments: usize) {
        let End { port, device, addresses, sent } = &mut self.ends[own];
        let mut buffer = [0; 4096];
        for _ in 0..times {
            let Some(departure) = port.transmit(self.now, &mut buffer, segments, device) else { break };
            assert_eq!(departure.route.addresses, *addresses);
            for (number, bytes) in buffer[..departure.len].chunks(departure.segment).enumerate() {
                let part = Part::segment(number as u16);
                let packet = Packet::parse(bytes).expect("a packet");
                assert!(flow(*addresses).verifies(part, &packet), "{packet:?}");
                let bth = packet.headers.bth;
                if bth.destination == QPNS[0] && bth.opcode.0 <= 0x0c {
                    *sent = bth.psn;
                }
                let traffic_class = departure.route.traffic_class;
                self.flying.push_back(Flying { to: 1 - own, bytes: bytes.to_vec(), part, traffic_class });
            }
        }
        let too_many = self.flying.len().saturating_sub(UNDER_WAY);
        self.flying.drain(..too_many);
    }

    /// One of the packets on their way.
    fn pick(&self, which: u16) -> Option<usize> {
        usize::from(which).checked_rem(self.flying.len())
    }

    fn inject(&mut self, to: usize, mut bytes: Vec<u8>, sealed: bool) {
        let addresses = self.ends[to].addresses.reversed();
        if sealed {
            flow(addresses).seal(Part::WHOLE, &mut bytes);
        } else {
            bytes.extend_from_slice(&[0; 4]);
        }
        self.arrive(&Flying { to, bytes, part: Part::WHOLE, traffic_class: 0 });
    }

    fn arrive(&mut self, Flying { to, bytes, part, traffic_class }: &Flying) {
        let End { port, device, addresses, .. } = &mut self.ends[*to];
        let arrival = Arrival {
            addresses: addresses.reversed(),
            source_port: SOURCE_PORT,
            part: Some(*part),
            traffic_class: *traffic_class,
            hop_limit: 64,
            bytes,
        };
        port.receive(self.now, &arrival, device);
        while port.next_management().is_some() {}
    }

    fn time_out(&mut self) {
        for End { port, device, .. } in &mut self.ends {
            port.handle_timeout(self.now, device);
        }
    }

    /// Closes all: each request has completed, nothing is sent any more, and nothing is due.
    pub fn finish(mut self) {
        for own in 0..2 {
            QPNS.into_iter().for_each(|qpn| self.ends[own].remove(qpn));
            let End { port, device, .. } = &mut self.ends[own];
            // One packet may wait that did not go with others.
            let mut buffer = [0; 4096];
            port.transmit(self.now, &mut buffer, 1, device);
            assert_eq!(port.transmit(self.now, &mut buffer, 1, device), None);
            assert_eq!((port.timeout(), port.len()), (None, 0));
        }
    }
}

/// Packets on their way at most; the oldest are lost.
const UNDER_WAY: usize = 256;
/// Those, the connection manager, and one that there is not.
const ALL: [Qpn; 7] = [Qpn(0x10), Qpn(0x10), Qpn(0x10), Qpn(0x11), Qpn(0x12), Qpn(1), Qpn(0x99)];
