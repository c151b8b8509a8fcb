//! Pairs of queue pairs, from being made to being removed, and made anew.

use std::time::Duration;

use qpair_roce::{
    DatagramConfig, Datagrams, Grh, Op, Outcome, Psn, Qpn, QueuePair, ReliableConfig, ReliableConnection, Rkey, Route,
    Send, UnreliableConfig, UnreliableConnection,
};

use super::device::Local;
use super::oracle::{self, Oracle};
use super::scenario::one;
use super::track::{Posted, Track};
use super::world::{Chore, End, World};
use crate::network::Random;

/// Two queue pairs, one at each end.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    pub service: Service,
    pub qpns: [Qpn; 2],
    /// READs and atomics that each end may have under way.
    pub reads: [u8; 2],
    /// Neither end was closed, or has failed.
    pub is_open: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    Reliable,
    Unreliable,
    Datagrams,
}

impl World {
    pub fn open_all(&mut self) {
        let counts = [
            (Service::Reliable, self.scenario.reliable),
            (Service::Unreliable, self.scenario.unreliable),
            (Service::Datagrams, self.scenario.datagrams),
        ];
        for (service, count) in counts {
            for _ in 0..count {
                let qpns = [0, 1].map(|end| self.number(end));
                let link = self.open(service, qpns);
                self.links.push(link);
            }
        }
    }

    /// A number that no queue pair of an end has. All of an end agree in the lowest bits.
    fn number(&mut self, end: usize) -> Qpn {
        loop {
            let qpn = Qpn(self.random.below(1 << 18) as u32 * 64 + 5 + end as u32);
            let is_free = self.links.iter().all(|link| link.qpns[end] != qpn);
            if is_free && self.ends[end].port.get(qpn).is_none() {
                return qpn;
            }
        }
    }

    fn open(&mut self, service: Service, qpns: [Qpn; 2]) -> Link {
        let psns = [0, 1].map(|_| psn(&mut self.random));
        let reads = [0, 1].map(|_| *one(&mut self.random, &[0, 1, 2, 16, 16]));
        for own in 0..2 {
            let (qpn, peer) = (qpns[own], qpns[1 - own]);
            let End { port, device, addresses } = &mut self.ends[own];
            let source_port = 49_152 + (qpn.0 % 16_384) as u16;
            let route = Route { addresses: *addresses, source_port, traffic_class: 0, hop_limit: 64 };
            let (oracle, queue_pair) = match service {
                Service::Reliable => {
                    let config = ReliableConfig {
                        mtu: self.scenario.mtu,
                        ack_timeout: Some(self.scenario.ack_timeout),
                        retry_count: self.scenario.retries,
                        rnr_retry: self.scenario.rnr_retries,
                        rnr_timer: self.scenario.rnr_timer,
                        max_reads: reads[own],
                        reads_answered: reads[1 - own],
                        send_depth: self.scenario.send_depth,
                        window: self.scenario.window,
                        ..ReliableConfig::new(qpn, peer, psns[own], psns[1 - own])
                    };
                    let rkey = Rkey(self.random.next() as u32);
                    let oracle = oracle::Reliable::new(rkey, self.scenario.memory() as usize);
                    (Oracle::Reliable(oracle), QueuePair::Reliable(ReliableConnection::new(config), route))
                }
                Service::Unreliable => {
                    let config = UnreliableConfig {
                        mtu: self.scenario.mtu,
                        send_depth: self.scenario.send_depth,
                        ..UnreliableConfig::new(qpn, peer, psns[own], psns[1 - own])
                    };
                    let oracle = Oracle::Unreliable(oracle::Unreliable::default());
                    (oracle, QueuePair::Unreliable(UnreliableConnection::new(config), route))
                }
                Service::Datagrams => {
                    let (mtu, send_depth) = (self.scenario.mtu, self.scenario.send_depth);
                    let config = DatagramConfig { mtu, send_depth, ..DatagramConfig::new(qpn, QKEY) };
                    let oracle = Oracle::Datagrams(oracle::Datagrams::default());
                    (oracle, QueuePair::Datagrams(Datagrams::new(config)))
                }
            };
            // A datagram that is repeated takes a receive more: it would take another queue pair's.
            let mut track =
                Track::new(oracle, self.scenario.shares && service != Service::Datagrams, self.scenario.counts);
            if self.scenario.retries.is_some() {
                track.allowed.extend([Outcome::RetriesExceeded, Outcome::RnrRetriesExceeded]);
            }
            device.add(qpn, track);
            port.add(self.now, queue_pair).expect("a free number");
        }
        Link { service, qpns, reads, is_open: true }
    }

    pub fn do_chore(&mut self, chore: Chore) {
        let longest = self.scenario.longest() + Grh::LEN as u32;
        match chore {
            Chore::Receive(end, qpn) => {
                if self.links.iter().any(|link| link.is_open && link.qpns[end] == qpn) {
                    self.ends[end].device.receive(qpn, longest, false);
                }
            }
            // Also for one that was closed: its message may have taken another's.
            Chore::ReceiveShared(end) => self.ends[end].device.receive_shared(longest),
            Chore::Close(end, qpn) => self.close(end, qpn),
            Chore::Remake(number) => {
                self.remove(number);
                self.tally.remade += 1;
                let Link { service, qpns, .. } = self.links[number];
                // Nothing is on its way any more to the old ones: the new ones may have their numbers.
                let again = self.random.below(2) == 0;
                let qpns = if again { qpns } else { [0, 1].map(|end| self.number(end)) };
                self.links[number] = self.open(service, qpns);
            }
        }
    }

    /// Closes a queue pair, and posts to it once more.
    fn close(&mut self, end: usize, qpn: Qpn) {
        let End { port, device, .. } = &mut self.ends[end];
        port.close(qpn, device);
        if let Some(QueuePair::Reliable(..) | QueuePair::Unreliable(..)) = port.get(qpn) {
            self.posted += 1;
            device.track(qpn).posted.push_back(Posted { id: self.posted, answer: None });
            let op = Op::Send(qpair_roce::Extra::Nothing);
            let work = Send { id: self.posted, op, local: Local::Noise(0), len: 9, solicited: false, fence: true };
            port.post(qpn, work, device).expect("it is flushed");
        }
    }

    fn remove(&mut self, number: usize) {
        for (End { port, device, .. }, qpn) in self.ends.iter_mut().zip(self.links[number].qpns) {
            assert!(port.remove(qpn).is_some());
            device.remove(qpn);
        }
    }

    /// Ends a link, one end after the other, and makes it anew once no packet of it is under way.
    pub fn end(&mut self, number: usize, first: usize) {
        let Link { qpns, is_open, .. } = &mut self.links[number];
        let qpns = *qpns;
        if std::mem::replace(is_open, false) {
            let after = Duration::from_micros(self.random.below(2000));
            self.later(Duration::ZERO, Chore::Close(first, qpns[first]));
            self.later(after, Chore::Close(1 - first, qpns[1 - first]));
            self.later(after + TIMEWAIT, Chore::Remake(number));
        }
    }

    /// Looks at what the engines told of.
    pub fn look(&mut self) {
        for end in 0..2 {
            for (qpn, _) in std::mem::take(&mut self.ends[end].device.failed) {
                self.tally.failures += 1;
                let number = self.links.iter().position(|link| link.qpns[end] == qpn).expect("a link");
                self.end(number, end);
            }
            for qpn in std::mem::take(&mut self.ends[end].device.succeeded) {
                let link = self.links.iter().find(|link| link.qpns[end] == qpn).expect("a link");
                let (qpns, [near, far]) = (link.qpns, &mut self.ends);
                let (own, peer) = if end == 0 { (near, far) } else { (far, near) };
                let succeeded = own.device.track(qpn).succeeded;
                if let Oracle::Reliable(reliable) = &peer.device.track(qpns[1 - end]).oracle {
                    assert!(succeeded <= reliable.done, "{qpn} has an answer to what was not done");
                }
            }
        }
    }

    /// Closes and removes all there is. Where nothing was under way, all is done that was asked for.
    pub fn close_all(&mut self, is_complete: bool) {
        for number in 0..self.links.len() {
            let Link { qpns, is_open, .. } = self.links[number];
            for (end, qpn) in qpns.into_iter().enumerate() {
                let track = self.ends[end].device.track(qpn);
                if is_complete {
                    assert!(is_open && track.posted.is_empty() && !track.is_failed, "{qpn} has no end");
                    if let Oracle::Reliable(reliable) = &track.oracle {
                        reliable.is_complete();
                    }
                }
                self.close(end, qpn);
            }
            self.remove(number);
        }
    }
}

fn psn(random: &mut Random) -> Psn {
    // Often one that soon wraps, or comes to the middle.
    let anywhere = random.next() as u32;
    let near = *one(random, &[0, 0x0080_0000, anywhere]);
    Psn::new(near).back(random.below(200) as u32)
}

/// Longer than any packet is under way.
const TIMEWAIT: Duration = Duration::from_millis(10);
pub const QKEY: u32 = 0x1111_1111;
