//! Two ends of an unreliable connection, driven until nothing happens any more.

use std::time::Instant;

use qpair_roce::wire::{Addresses, Flow, PORT, Packet, Part};
use qpair_roce::{
    Completion, Counters, Mtu, Op, Outcome, PostError, Psn, Qpn, Send, UnreliableConfig, UnreliableConnection,
};

use crate::network::{Faults, Network};
use crate::side::Side;

/// One end.
pub struct End {
    pub uc: UnreliableConnection<usize>,
    pub side: Side,
    pub counters: Counters,
    flow: Flow,
}

/// Two ends, and the network between them.
pub struct Pair {
    pub ends: [End; 2],
    /// Of the packets that are sent, by number, those that are lost beside what the network loses.
    pub lost: Vec<bool>,
    now: Instant,
    network: Network,
    posted: u64,
    /// Packets that the posted messages take, by end: no end sends any other.
    due: [u64; 2],
    sent: usize,
}

impl Pair {
    pub fn new(seed: u64, faults: Faults, mtu: Mtu) -> Self {
        // Close to the end of the numbers, so that they wrap.
        let psns = [Psn::new(0x00ff_fff0), Psn::new(5)];
        let address = |end: u8| [10, 0, 0, end].into();
        let end = |own: usize, peer: usize| {
            let config = UnreliableConfig {
                mtu,
                send_depth: 1000,
                ..UnreliableConfig::new(Qpn(0x11 + own as u32), Qpn(0x11 + peer as u32), psns[own], psns[peer])
            };
            End {
                uc: UnreliableConnection::new(config),
                side: Side::new(1 << 18),
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
            lost: Vec::new(),
            now: Instant::now(),
            network: Network::new(seed, faults),
            posted: 0,
            due: [0; 2],
            sent: 0,
        }
    }

    pub fn perfect() -> Self {
        Pair::new(1, Faults::default(), Mtu::B1024)
    }

    /// Posts a request whose buffer has such contents, solicited if they are an odd number; its number.
    pub fn post(&mut self, end: usize, op: Op, contents: Vec<u8>) -> u64 {
        let packets = contents.len().div_ceil(self.ends[end].uc.config().mtu.bytes() as usize).max(1);
        self.due[end] += packets as u64;
        self.try_post(end, op, contents).expect("it is taken")
    }

    pub fn try_post(&mut self, end: usize, op: Op, contents: Vec<u8>) -> Result<u64, PostError> {
        self.posted += 1;
        let End { uc, side, .. } = &mut self.ends[end];
        let len = contents.len() as u32;
        let local = side.buffer(contents);
        let work = Send { id: self.posted, op, local, len, solicited: len % 2 == 1, fence: false };
        uc.post(work, side).map(|()| self.posted)
    }

    /// Runs until nothing is under way. Each end sends what was posted to it, and nothing else.
    pub fn drive(&mut self) {
        loop {
            self.transmit();
            let Some(next) = self.network.next_arrival() else { break };
            self.now = self.now.max(next);
            while let Some((to, bytes, ())) = self.network.arrived(self.now) {
                let flow = self.ends[1 - to].flow;
                if let Ok(packet) = Packet::parse(&bytes)
                    && flow.verifies(Part::WHOLE, &packet)
                {
                    self.handle(to, &packet);
                }
            }
        }
        assert_eq!(self.ends.each_ref().map(|end| end.counters.sent_pkts), self.due, "nothing was answered");
    }

    /// A packet comes to an end.
    pub fn handle(&mut self, to: usize, packet: &Packet<'_>) {
        let End { uc, side, counters, .. } = &mut self.ends[to];
        uc.handle(packet, side, counters);
    }

    fn transmit(&mut self) {
        for (own, End { uc, side, counters, flow }) in self.ends.iter_mut().enumerate() {
            let mut packet = vec![0xaa; uc.config().longest_packet()];
            while let Some(len) = uc.transmit(&mut packet, side, counters) {
                let mut whole = packet[..len].to_vec();
                flow.seal(Part::WHOLE, &mut whole);
                if !self.lost.get(self.sent).copied().unwrap_or(false) {
                    self.network.send(self.now, 1 - own, &whole, ());
                }
                self.sent += 1;
            }
        }
    }

    /// Numbers and outcomes of the requests that an end has sent, in order; forgotten then.
    pub fn sent(&mut self, end: usize) -> Vec<(u64, Outcome)> {
        let mut sent = Vec::new();
        self.ends[end].side.completions.retain(|completion| match completion {
            Completion::Sent { id, outcome, .. } => {
                sent.push((*id, *outcome));
                false
            }
            Completion::Received { .. } => true,
        });
        sent
    }
}

/// Bytes that differ from one place to the next.
pub fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 256) as u8).collect()
}
