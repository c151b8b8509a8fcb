//! Two ports, the network between them, and time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::AddAssign;
use std::time::{Duration, Instant};

use qpair_roce::wire::{Addresses, Part};
use qpair_roce::{Arrival, Port, Qpn};

use super::device::{Device, Local};
use super::links::Link;
use super::scenario::Scenario;
use crate::network::{Network, Random};

/// An end: a port, its device, and its address with that of the other.
pub struct End {
    pub port: Port<Local>,
    pub device: Device,
    pub addresses: Addresses,
}

/// A run.
pub struct World {
    pub random: Random,
    pub scenario: Scenario,
    pub now: Instant,
    pub ends: [End; 2],
    pub links: Vec<Link>,
    /// What is to be done, and when.
    pub chores: BinaryHeap<Reverse<(Instant, u64, Chore)>>,
    pub chore: u64,
    /// Requests posted.
    pub posted: u64,
    pub tally: Tally,
    network: Network<Around>,
    begin: Instant,
    steps: u64,
}

/// What is done at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Chore {
    /// A receive is posted for a queue pair.
    Receive(usize, Qpn),
    /// One is posted for all that share.
    ReceiveShared(usize),
    /// A queue pair is closed.
    Close(usize, Qpn),
    /// Two queue pairs are removed, and others made in their place.
    Remake(usize),
}

/// What is around a packet: UDP port, traffic class, and IPv4 identification.
type Around = (u16, u8, u16);

/// What happened in runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub operations: u64,
    pub packets: u64,
    pub received: u64,
    /// Queue pairs that failed or were closed.
    pub failures: u64,
    pub remade: u64,
    pub no_receive: u64,
    pub sequence_errors: u64,
    pub timeouts: u64,
    pub damaged: u64,
    pub refused: u64,
    pub notifications: u64,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let scenario = Scenario::new(&mut random);
        let now = Instant::now();
        let end = |addresses| {
            let mut port = Port::new();
            scenario.congestion.into_iter().for_each(|parameters| port.control_congestion(parameters));
            End { port, device: Device::new(scenario.longest() as usize + 40, scenario.patience), addresses }
        };
        let mut world = World {
            ends: [end(scenario.addresses), end(scenario.addresses.reversed())],
            network: Network::new(random.next(), scenario.faults),
            random,
            now,
            links: Vec::new(),
            chores: BinaryHeap::new(),
            chore: 0,
            posted: 0,
            tally: Tally::default(),
            begin: now,
            steps: 0,
            scenario,
        };
        world.open_all();
        world
    }

    /// Does something after a time.
    pub fn later(&mut self, after: Duration, chore: Chore) {
        self.chore += 1;
        self.chores.push(Reverse((self.now + after, self.chore, chore)));
    }

    /// True while new requests are posted.
    pub fn is_busy(&self) -> bool {
        self.posted < self.scenario.operations
    }

    /// True once nothing is under way and nothing is due, or if that does not count.
    pub fn is_over(&self) -> bool {
        !self.is_busy() && (self.scenario.is_cut_short || self.next().is_none())
    }

    fn next(&self) -> Option<Instant> {
        let timeouts = self.ends.iter().filter_map(|end| end.port.timeout());
        let chore = self.chores.peek().map(|Reverse((at, ..))| *at);
        self.network.next_arrival().into_iter().chain(timeouts).chain(chore).min()
    }

    pub fn step(&mut self) {
        self.steps += 1;
        let (most, longest) = (self.scenario.operations * 1000 + 100_000, Duration::from_secs(600));
        assert!(self.steps < most && self.now - self.begin < longest, "no end: {:?}", self.scenario);
        if self.is_busy() {
            self.post_some();
            self.harm_some();
        }
        self.transmit();
        let pause = Duration::from_micros(self.random.below(20));
        self.now = self.next().map_or(self.now + pause, |next| next.max(self.now));
        while let Some((to, bytes, around)) = self.network.arrived(self.now) {
            self.deliver(to, &bytes, around);
        }
        for End { port, device, .. } in &mut self.ends {
            if port.timeout().is_some_and(|due| due <= self.now) {
                port.handle_timeout(self.now, device);
            }
        }
        while let Some(Reverse((_, _, chore))) = self.chores.peek().filter(|chore| chore.0.0 <= self.now).copied() {
            self.chores.pop();
            self.do_chore(chore);
        }
        self.transmit();
        self.look();
    }

    /// Sends all that there is to send.
    fn transmit(&mut self) {
        let mut buffer = [0; 1 << 16];
        let room = *super::scenario::one(&mut self.random, &[5000, 20_000, 1 << 16]);
        for (own, End { port, device, .. }) in self.ends.iter_mut().enumerate() {
            loop {
                let segments = 1 + self.random.below(self.scenario.segments) as usize;
                let Some(departure) = port.transmit(self.now, &mut buffer[..room], segments, device) else { break };
                let route = departure.route;
                for (number, packet) in buffer[..departure.len].chunks(departure.segment).enumerate() {
                    let may_be_marked = route.traffic_class & 3 == 2;
                    let mark = u8::from(may_be_marked && self.random.happens(self.scenario.marks));
                    let around = (route.source_port, route.traffic_class | mark, number as u16);
                    self.network.send(self.now, 1 - own, packet, around);
                    self.tally.packets += 1;
                }
            }
        }
    }

    fn deliver(&mut self, to: usize, bytes: &[u8], (source_port, traffic_class, id): Around) {
        let End { port, device, addresses } = &mut self.ends[to];
        let part = self.scenario.shows_part.then(|| Part::segment(id));
        let addresses = addresses.reversed();
        let arrival = Arrival { addresses, source_port, part, traffic_class, hop_limit: 64, bytes };
        port.receive(self.now, &arrival, device);
    }

    /// All is done: nothing is left, nor is once all is closed. What happened.
    pub fn finish(mut self) -> Tally {
        let is_complete = !self.scenario.is_cut_short;
        self.close_all(is_complete);
        let mut tally = self.tally;
        for End { port, device, .. } in &mut self.ends {
            assert_eq!(port.timeout(), None);
            assert_eq!(port.transmit(self.now, &mut [0; 5000], 1, device), None);
            assert!(port.is_empty());
            device.is_over();
            let counters = port.counters();
            if self.scenario.is_perfect() {
                let again = (counters.local_ack_timeout_err, counters.packet_seq_err, counters.duplicate_request);
                assert_eq!(again, (0, 0, 0), "{:?}", self.scenario);
            }
            tally.operations += device.ended;
            tally.received += device.received;
            tally.sequence_errors += counters.packet_seq_err;
            tally.timeouts += counters.local_ack_timeout_err;
            tally.damaged += counters.rx_icrc_encapsulated;
            tally.refused += counters.resp_remote_access_errors;
            tally.notifications += counters.rp_cnp_handled;
            tally.no_receive += counters.send_rnr_err;
        }
        assert_eq!(tally.operations, self.posted, "each request completes once");
        tally
    }
}

impl Tally {
    /// True if everything happened that can.
    pub fn has_all(&self) -> bool {
        let Tally { failures, remade, no_receive, sequence_errors, timeouts, damaged, refused, notifications, .. } =
            *self;
        let least = failures.min(remade).min(no_receive).min(sequence_errors).min(timeouts);
        least.min(damaged).min(refused).min(notifications) > 0
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.operations += other.operations;
        self.packets += other.packets;
        self.received += other.received;
        self.failures += other.failures;
        self.remade += other.remade;
        self.no_receive += other.no_receive;
        self.sequence_errors += other.sequence_errors;
        self.timeouts += other.timeouts;
        self.damaged += other.damaged;
        self.refused += other.refused;
        self.notifications += other.notifications;
    }
}
