//! What is posted, and what goes wrong beside the network.

use std::time::Duration;

use qpair_roce::{AccessError, Datagram, Extra, Op, Outcome, Rkey, Route, Send, Target};

use super::device::Local;
use super::links::{Link, QKEY, Service};
use super::oracle::{self, Oracle, Request};
use super::scenario::one;
use super::track::{Answer, Posted};
use super::world::{Chore, End, World};

impl World {
    /// Posts some requests.
    pub fn post_some(&mut self) {
        for _ in 0..=self.random.below(self.scenario.burst) {
            let link = *one(&mut self.random, &self.links);
            let end = self.random.below(2) as usize;
            let depth = self.scenario.send_depth as usize;
            if link.is_open && self.ends[end].device.track(link.qpns[end]).posted.len() < depth {
                self.post(link, end, false);
            }
        }
    }

    /// Posts a request; its memory is gone if `is_gone`.
    fn post(&mut self, link: Link, end: usize, is_gone: bool) {
        self.posted += 1;
        match link.service {
            Service::Reliable => self.post_reliable(link, end, is_gone),
            Service::Unreliable => self.post_unreliable(link, end, is_gone),
            Service::Datagrams => self.post_datagram(link, end, is_gone),
        }
    }

    /// Bytes of a message: often few, or about a whole number of packets.
    fn len(&mut self) -> u32 {
        let (mtu, longest) = (self.scenario.mtu.bytes(), self.scenario.longest());
        match self.random.below(8) {
            0 => 0,
            1 | 2 => self.random.below(64) as u32,
            3 => mtu - 1 + self.random.below(3) as u32,
            4 => mtu * (1 + self.random.below(4) as u32) + self.random.below(2) as u32,
            _ => self.random.below(u64::from(longest)) as u32,
        }
    }

    fn extra(&mut self, may_invalidate: bool) -> Extra {
        match self.random.below(5) {
            0 | 1 => Extra::Immediate(self.random.next() as u32),
            2 if may_invalidate => Extra::Invalidate(Rkey(self.random.next() as u32)),
            _ => Extra::Nothing,
        }
    }

    fn post_reliable(&mut self, link: Link, end: usize, is_gone: bool) {
        let (own, peer) = (link.qpns[end], link.qpns[1 - end]);
        let mut len = self.len();
        let memory = u64::from(self.scenario.memory());
        let offset = self.random.below(memory - u64::from(len));
        let word = self.random.below(memory / 8) * 8;
        let (random, extra) = (self.random.next(), self.extra(true));
        let kind = self.random.below(if link.reads[end] == 0 { 10 } else { 18 });
        let Oracle::Reliable(reliable) = &self.ends[1 - end].device.track(peer).oracle else { unreachable!() };
        let (at, word_at) = (reliable.at(offset), reliable.at(word));
        let op = match kind {
            0..5 => Op::Send(extra),
            5..10 => Op::Write(at, (random % 3 == 0).then_some(random as u32)),
            10..14 => Op::Read(at),
            14 | 15 => {
                let compare = if random % 2 == 0 { reliable.word(word) } else { random };
                Op::CompareSwap { remote: word_at, compare, swap: random }
            }
            _ => Op::FetchAdd { remote: word_at, add: random },
        };
        let changed = match op {
            Op::Write(..) => Some((offset, len)),
            Op::CompareSwap { .. } | Op::FetchAdd { .. } => {
                len = 8;
                Some((word, 8))
            }
            Op::Send(_) | Op::Read(_) => None,
        };
        // What is being read may change only once it has been.
        let device = &mut self.ends[end].device;
        let fence = changed.is_some_and(|(at, len)| device.track(own).reads(at, len)) || self.random.below(16) == 0;
        let brings = matches!(op, Op::Read(_) | Op::CompareSwap { .. } | Op::FetchAdd { .. });
        let local = match (is_gone, brings) {
            (true, _) => Local::Gone,
            (false, true) => Local::Buffer(device.buffer()),
            (false, false) => Local::Noise(random as u16),
        };
        let solicited = self.random.below(4) == 0;
        let request = Request { op, len, noise: random as u16, solicited };
        let Oracle::Reliable(reliable) = &mut self.ends[1 - end].device.track(peer).oracle else { unreachable!() };
        let bytes = reliable.ask(request);
        let from = if let Op::Read(_) = op { offset } else { word };
        let answer = brings.then_some(Answer { bytes, from });
        self.give(link, end, Send { id: self.posted, op, local, len, solicited, fence }, answer);
    }

    fn post_unreliable(&mut self, link: Link, end: usize, is_gone: bool) {
        let (len, noise, extra) = (self.len(), self.random.next() as u16, self.extra(false));
        let (is_write, solicited, fence) =
            (self.random.below(2) == 0, self.random.below(4) == 0, self.random.below(8) == 0);
        let peer = self.ends[1 - end].device.track(link.qpns[1 - end]);
        let Oracle::Unreliable(unreliable) = &mut peer.oracle else { unreachable!() };
        let op = match extra {
            Extra::Immediate(immediate) if is_write => Op::Write(unreliable.next(), Some(immediate)),
            _ if is_write => Op::Write(unreliable.next(), None),
            extra => Op::Send(extra),
        };
        unreliable.ask(Request { op, len, noise, solicited });
        let local = if is_gone { Local::Gone } else { Local::Noise(noise) };
        self.give(link, end, Send { id: self.posted, op, local, len, solicited, fence }, None);
    }

    /// Hands a request to the port, and has the receive posted that it takes, now or later.
    fn give(&mut self, link: Link, end: usize, work: Send<Local>, answer: Option<Answer>) {
        let End { port, device, .. } = &mut self.ends[end];
        let own = link.qpns[end];
        device.track(own).posted.push_back(Posted { id: work.id, answer });
        port.post(own, work, device).expect("there is room");
        if matches!(work.op, Op::Send(_) | Op::Write(_, Some(_))) {
            self.post_receive(link, 1 - end);
        }
    }

    fn post_receive(&mut self, link: Link, end: usize) {
        let is_late = self.random.happens(self.scenario.late_receives);
        let after = if is_late { self.random.below(3000) } else { 0 };
        let qpn = link.qpns[end];
        let shares = self.ends[end].device.track(qpn).shares;
        let chore = if shares { Chore::ReceiveShared(end) } else { Chore::Receive(end, qpn) };
        self.later(Duration::from_micros(after), chore);
    }

    fn post_datagram(&mut self, link: Link, end: usize, is_gone: bool) {
        let (own, peer) = (link.qpns[end], link.qpns[1 - end]);
        let len = self.len() % (self.scenario.mtu.bytes() + 1);
        let immediate = (self.random.below(2) == 0).then_some(self.random.next() as u32);
        let solicited = self.random.below(4) == 0;
        // Sometimes another key, with which it is not taken.
        let qkey = *one(&mut self.random, &[QKEY, QKEY, QKEY, 1 << 31, 5]);
        let Oracle::Datagrams(datagrams) = &mut self.ends[1 - end].device.track(peer).oracle else { unreachable!() };
        let number = datagrams.ask(oracle::Datagram { len, immediate, solicited, source: own });
        let local = if is_gone { Local::Gone } else { Local::Numbered(number) };
        let End { port, device, addresses } = &mut self.ends[end];
        let route = Route { addresses: *addresses, source_port: 50_000, traffic_class: 0, hop_limit: 64 };
        let target = Target { qpn: peer, qkey, path: route };
        let work = Datagram { id: self.posted, local, len, immediate, solicited, target };
        device.track(own).posted.push_back(Posted { id: work.id, answer: None });
        port.post_datagram(own, work, device).expect("there is room");
        if qkey != 5 {
            self.post_receive(link, 1 - end);
        }
    }

    /// Sometimes does something to a connection that it will hardly survive.
    pub fn harm_some(&mut self) {
        let number = self.random.below(self.links.len() as u64) as usize;
        let link = self.links[number];
        if !link.is_open || !self.random.happens(self.scenario.mischief) {
            return;
        }
        let end = self.random.below(2) as usize;
        let qpns = link.qpns;
        let mut allow = |end: usize, outcome| self.ends[end].device.track(qpns[end]).allowed.push(outcome);
        match (self.random.below(5), link.service) {
            (0, Service::Reliable) => {
                // What is refused while it is answered is an error of access, whatever the reason.
                allow(1 - end, Outcome::RemoteAccess);
                allow(1 - end, Outcome::RemoteInvalidRequest);
                let error = *one(&mut self.random, &[AccessError::Key, AccessError::QueuePair]);
                let Oracle::Reliable(reliable) = &mut self.ends[end].device.track(qpns[end]).oracle else { return };
                reliable.withdrawn = Some(error);
            }
            (1, _) => {
                allow(end, Outcome::LocalProtection);
                let depth = self.scenario.send_depth as usize;
                if self.ends[end].device.track(qpns[end]).posted.len() < depth {
                    self.post(link, end, true);
                }
            }
            (2, _) if link.service == Service::Datagrams || !self.scenario.shares => {
                allow(1 - end, Outcome::RemoteOperation);
                allow(end, Outcome::LocalProtection);
                let longest = self.scenario.longest();
                self.ends[end].device.receive(qpns[end], longest + 40, true);
            }
            // On unreliable service, messages that do not fit are dropped until one does.
            (3, _) if link.service == Service::Datagrams || !self.scenario.shares => {
                allow(1 - end, Outcome::RemoteInvalidRequest);
                allow(end, Outcome::LocalLength);
                let len = self.random.below(100) as u32;
                self.ends[end].device.receive(qpns[end], len, false);
            }
            _ => self.end(number, end),
        }
    }
}
