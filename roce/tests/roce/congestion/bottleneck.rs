//! The port of a switch that all packets go through: a queue, which marks packets by its length (RED), and a link.

use std::time::{Duration, Instant};

/// By which length of the queue which share of packets is marked: none up to `k_min` bytes, then in proportion up to
/// `p_max` at `k_max`, and above all. Section 3.1 of the DCQCN paper.
#[derive(Clone, Copy, Debug)]
pub struct Red {
    pub k_min: u64,
    pub k_max: u64,
    pub p_max: f64,
}

/// The paper's values for 40 Gb/s. Section 5.
pub const DEPLOYED: Red = Red { k_min: 5_000, k_max: 200_000, p_max: 0.01 };

/// The port. Nothing is dropped: such networks pause senders before they would.
pub struct Bottleneck {
    bits_per_second: u64,
    red: Red,
    /// Length of the queue at `at`, in 10^-9 bits: what a link of one bit a second takes a nanosecond for.
    backlog: u64,
    at: Instant,
    random: u64,
    usage: Usage,
}

/// What went on since it was asked for last.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Bytes of the longest queue.
    pub peak: u64,
    /// Sum over the packets of the queue that they met, and how many there were.
    pub met: u128,
    pub packets: u64,
    /// Time that the link had nothing to do.
    pub idle: Duration,
}

impl Bottleneck {
    pub fn new(now: Instant, bits_per_second: u64, red: Red, seed: u64) -> Self {
        Bottleneck { bits_per_second, red, backlog: 0, at: now, random: seed, usage: Usage::default() }
    }

    /// Takes a packet; when it has gone through, and whether it is marked.
    pub fn take(&mut self, now: Instant, bytes: u32) -> (Instant, bool) {
        self.settle(now);
        let queue = self.backlog / PER_BYTE;
        let marked = self.marks(queue);
        self.usage.peak = self.usage.peak.max(queue + u64::from(bytes));
        self.usage.met += u128::from(queue);
        self.usage.packets += 1;
        self.backlog += u64::from(bytes) * PER_BYTE;
        (now + Duration::from_nanos(self.backlog.div_ceil(self.bits_per_second)), marked)
    }

    /// What went on since the last call.
    pub fn usage(&mut self, now: Instant) -> Usage {
        self.settle(now);
        std::mem::take(&mut self.usage)
    }

    fn settle(&mut self, now: Instant) {
        let could_go = now.saturating_duration_since(self.at).as_nanos() as u64 * self.bits_per_second;
        self.usage.idle += Duration::from_nanos(could_go.saturating_sub(self.backlog) / self.bits_per_second);
        self.backlog = self.backlog.saturating_sub(could_go);
        self.at = now;
    }

    fn marks(&mut self, queue: u64) -> bool {
        let Red { k_min, k_max, p_max } = self.red;
        if queue <= k_min || queue > k_max {
            return queue > k_max;
        }
        self.uniform() < p_max * (queue - k_min) as f64 / (k_max - k_min) as f64
    }

    /// From 0 to 1. SplitMix64 (Steele, Lea, Flood 2014).
    fn uniform(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) >> 11) as f64 / (1u64 << 53) as f64
    }
}

const PER_BYTE: u64 = 8_000_000_000;

#[test]
fn red_marks_in_proportion() {
    let mut port = Bottleneck::new(Instant::now(), 1, DEPLOYED, 1);
    let mut share = |queue| (0..100_000).filter(|_| port.marks(queue)).count();
    assert_eq!([share(0), share(5_000), share(200_001)], [0, 0, 100_000]);
    assert!((450..550).contains(&share(102_500)), "half of one in a hundred");
}
