//! Two connected ends, driven until nothing happens any more.

use std::time::{Duration, Instant};

use qpair_roce::wire::{Addresses, Flow, PORT, Packet, Part};
use qpair_roce::{Counters, Op, Outcome, Psn, Qpn, ReliableConfig, ReliableConnection, Send};

use crate::network::{Faults, Network};
use crate::side::Side;

/// One end.
pub struct End {
    pub rc: ReliableConnection<usize>,
    pub side: Side,
    pub counters: Counters,
    flow: Flow,
}

/// Two ends, and the network between them.
pub struct Pair {
    pub ends: [End; 2],
    pub now: Instant,
    network: Network,
    /// When a link takes a packet again, if one is taken now.
    held: Option<Instant>,
    posted: u64,
    /// Packets so far, of which some go in one departure.
    packets: u32,
}

impl Pair {
    pub fn new(seed: u64, faults: Faults) -> Self {
        Pair::with(seed, faults, |config| config)
    }

    /// With both ends' values changed.
    pub fn with(seed: u64, faults: Faults, change: impl Fn(ReliableConfig) -> ReliableConfig) -> Self {
        // Close to the end of the numbers, so that they wrap.
        let psns = [Psn::new(0x00ff_fff0), Psn::new(5)];
        let address = |end: u8| [10, 0, 0, end].into();
        let end = |own: usize, peer: usize| {
            let config = ReliableConfig {
                ack_timeout: Some(Duration::from_micros(500)),
                ..ReliableConfig::new(Qpn(0x11 + own as u32), Qpn(0x11 + peer as u32), psns[own], psns[peer])
            };
            End {
                rc: ReliableConnection::new(change(config)),
                side: Side::new(1 << 16),
                counters: Counters::default(),
                flow: Flow {
                    addresses: Addresses::V4(address(own as u8), address(peer as u8)),
                    source_port: 50_000,
                    destination_port: PORT,
                },
            }
        };
        Pair {
            ends: [end(0, 1), end(1, 0)],
            now: Instant::now(),
            network: Network::new(seed, faults),
            held: None,
            posted: 0,
            packets: 0,
        }
    }

    /// Posts a request whose buffer has such contents; its number and buffer.
    pub fn post(&mut self, end: usize, op: Op, contents: Vec<u8>) -> (u64, usize) {
        self.post_as(end, op, contents, false)
    }

    pub fn post_as(&mut self, end: usize, op: Op, contents: Vec<u8>, fence: bool) -> (u64, usize) {
        self.posted += 1;
        let End { rc, side, .. } = &mut self.ends[end];
        let len = contents.len() as u32;
        let local = side.buffer(contents);
        let work = Send { id: self.posted, op, local, len, solicited: false, fence };
        rc.post(work, side).expect("there is room");
        (self.posted, local)
    }

    /// Runs until nothing is under way and nothing is due.
    pub fn drive(&mut self) {
        for _ in 0..STEPS {
            self.transmit();
            let Some(next) = self.next_event() else { return };
            self.now = self.now.max(next);
            while let Some((to, bytes, ())) = self.network.arrived(self.now) {
                let flow = self.ends[1 - to].flow;
                let End { rc, side, counters, .. } = &mut self.ends[to];
                if let Ok(packet) = Packet::parse(&bytes)
                    && flow.verifies(Part::WHOLE, &packet)
                {
                    rc.handle(self.now, &packet, side, counters);
                }
            }
            for End { rc, side, counters, .. } in &mut self.ends {
                if rc.timeout().is_some_and(|at| at <= self.now) {
                    rc.handle_timeout(self.now, side, counters);
                }
            }
        }
        panic!("no end after {STEPS} steps");
    }

    /// Lets packets take their time, at so many bytes in a microsecond.
    pub fn limit(&mut self, rate: u64) {
        self.network.limit(self.now, rate);
    }

    fn transmit(&mut self) {
        let mut packet = vec![0; 8192];
        self.held = None;
        for (own, End { rc, side, counters, flow }) in self.ends.iter_mut().enumerate() {
            let held = loop {
                let held = self.network.takes(self.now, 1 - own);
                if held.is_some() {
                    break held;
                }
                if self.packets.is_multiple_of(3) || rc.ends_departure() {
                    rc.begin_departure();
                }
                self.packets = self.packets.wrapping_add(1);
                let Some(len) = rc.transmit(self.now, &mut packet, side, counters) else { break None };
                let mut whole = packet[..len].to_vec();
                flow.seal(Part::WHOLE, &mut whole);
                self.network.send(self.now, 1 - own, &whole, ());
            };
            self.held = self.held.into_iter().chain(held).min();
        }
    }

    fn next_event(&self) -> Option<Instant> {
        let timeouts = self.ends.iter().filter_map(|end| end.rc.timeout());
        self.network.next_arrival().into_iter().chain(timeouts).chain(self.held).min()
    }

    /// Numbers and outcomes of the requests that an end has sent, in order; forgotten then.
    pub fn sent(&mut self, end: usize) -> Vec<(u64, Outcome)> {
        let mut sent = Vec::new();
        self.ends[end].side.completions.retain(|completion| match completion {
            qpair_roce::Completion::Sent { id, outcome, .. } => {
                sent.push((*id, *outcome));
                false
            }
            qpair_roce::Completion::Received { .. } => true,
        });
        sent
    }
}

/// Far more than any test takes.
const STEPS: u32 = 1_000_000;
