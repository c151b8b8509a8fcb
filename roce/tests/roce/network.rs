//! A network between two ends. What it does is a function of a seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

/// What happens to packets, as probabilities.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub loss: f64,
    pub duplicate: f64,
    pub corrupt: f64,
    /// Of packets that are held up behind others.
    pub reorder: f64,
    /// Of packets that come milliseconds later, when they were sent again long ago.
    pub late: f64,
}

/// Packets on their way, each with something of the sender's that nothing happens to.
pub struct Network<T = ()> {
    random: Random,
    faults: Faults,
    delay: Duration,
    link: Option<Link>,
    flying: BinaryHeap<Reverse<Flying<T>>>,
    sent: u64,
}

/// A link in each direction that takes its time.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Bytes in a microsecond.
    pub rate: u64,
    /// Until when it is taken, towards each end.
    busy: [Instant; 2],
}

/// A packet on its way: by time of arrival, and in the order of sending.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Flying<T> {
    arrives: Instant,
    number: u64,
    to: usize,
    packet: Vec<u8>,
    with: T,
}

/// Numbers that look random. SplitMix64 (Steele, Lea, Flood 2014).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn happens(&mut self, probability: f64) -> bool {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64 <= probability && probability > 0.0
    }
}

impl<T: Copy + Ord> Network<T> {
    pub fn new(seed: u64, faults: Faults) -> Self {
        let delay = Duration::from_micros(10);
        Network { random: Random(seed), faults, delay, link: None, flying: BinaryHeap::new(), sent: 0 }
    }

    /// With links of such a rate, in bytes in a microsecond, from `now` on.
    pub fn limit(&mut self, now: Instant, rate: u64) {
        self.link = Some(Link { rate, busy: [now; 2] });
    }

    /// When the link towards an end takes a packet; `None`: now.
    pub fn takes(&self, now: Instant, to: usize) -> Option<Instant> {
        self.link.map(|link| link.busy[to]).filter(|busy| *busy > now)
    }

    /// Takes a packet for end `to`.
    pub fn send(&mut self, now: Instant, to: usize, packet: &[u8], with: T) {
        let mut leaves = now;
        if let Some(link) = &mut self.link {
            let bytes = packet.len() as u64 + AROUND;
            leaves = link.busy[to].max(now) + Duration::from_nanos(bytes * 1000 / link.rate);
            link.busy[to] = leaves;
        }
        let times = if self.random.happens(self.faults.duplicate) { 2 } else { 1 };
        for _ in 0..times {
            if self.random.happens(self.faults.loss) {
                continue;
            }
            let mut packet = packet.to_vec();
            if self.random.happens(self.faults.corrupt) {
                let bit = self.random.below(packet.len() as u64 * 8);
                packet[bit as usize / 8] ^= 1 << (bit % 8);
            }
            let mut held = if self.random.happens(self.faults.reorder) { self.random.below(100) } else { 0 };
            if self.faults.late > 0.0 && self.random.happens(self.faults.late) {
                held += self.random.below(LATEST);
            }
            self.sent += 1;
            let arrives = leaves + self.delay + Duration::from_micros(held);
            self.flying.push(Reverse(Flying { arrives, number: self.sent, to, packet, with }));
        }
    }

    pub fn next_arrival(&self) -> Option<Instant> {
        self.flying.peek().map(|Reverse(flying)| flying.arrives)
    }

    /// A packet that has arrived by now, and where.
    pub fn arrived(&mut self, now: Instant) -> Option<(usize, Vec<u8>, T)> {
        if self.next_arrival()? > now {
            return None;
        }
        self.flying.pop().map(|Reverse(flying)| (flying.to, flying.packet, flying.with))
    }
}

/// Microseconds that a packet may be late.
const LATEST: u64 = 5000;
/// Ethernet, IPv4 and UDP headers, and what Ethernet has between frames.
const AROUND: u64 = 14 + 20 + 8 + 24;
