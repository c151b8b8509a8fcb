//! What a seed makes of a run: the network, how the ends are set, and what else happens.

use std::time::Duration;

use qpair_roce::Mtu;
use qpair_roce::congestion::{DcqcnParameters, Rate};
use qpair_roce::wire::{Addresses, RnrTimer};

use crate::network::{Faults, Random};

/// A run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Requests that are posted in all.
    pub operations: u64,
    /// Pairs of queue pairs, by service.
    pub reliable: u64,
    pub unreliable: u64,
    pub datagrams: u64,
    pub mtu: Mtu,
    pub faults: Faults,
    /// From the first end's address to the second's.
    pub addresses: Addresses,
    /// The receiver sees the IPv4 identification.
    pub shows_part: bool,
    pub congestion: Option<DcqcnParameters>,
    /// Of packets that may be marked, those that are.
    pub marks: f64,
    pub ack_timeout: Duration,
    pub rnr_timer: RnrTimer,
    /// Retries, and those without a receive; `None`: without end.
    pub retries: Option<u8>,
    pub rnr_retries: Option<u8>,
    pub window: u32,
    pub send_depth: u32,
    /// Receives are shared by connections.
    pub shares: bool,
    /// Connections tell their peers how many receives of their own there are.
    pub counts: bool,
    /// Of receives, those that are posted late.
    pub late_receives: f64,
    /// How likely it is in a step that something bad happens to a connection.
    pub mischief: f64,
    /// Requests that are posted in a step at most.
    pub burst: u64,
    /// Packets that leave together at most.
    pub segments: u64,
    /// It ends while much is under way.
    pub is_cut_short: bool,
    /// How long acknowledgments may wait for requests.
    pub patience: Duration,
}

impl Scenario {
    pub fn new(random: &mut Random) -> Self {
        let mtu =
            *one(random, &[Mtu::B256, Mtu::B256, Mtu::B256, Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B1024, Mtu::B4096]);
        let is_impatient = random.below(4) == 0;
        let is_v6 = random.below(3) == 0;
        let shows_part = random.below(2) == 0;
        let mut faults = Faults {
            loss: share(random, 0.1),
            duplicate: share(random, 0.1),
            corrupt: share(random, 0.05),
            reorder: share(random, 0.2),
            late: share(random, 0.02),
        };
        let is_perfect = random.below(10) == 0;
        if is_perfect {
            faults = Faults::default();
        }
        if !is_v6 && !shows_part {
            // What a receiver must find, it can not check: some damage would pass.
            faults.corrupt = 0.0;
        }
        let ack_timeout = 150 + random.below(2000);
        Scenario {
            operations: 2000 + random.below(4000),
            reliable: 1 + random.below(10),
            unreliable: random.below(4),
            datagrams: random.below(3),
            mtu,
            faults,
            addresses: addresses(is_v6),
            shows_part,
            congestion: (random.below(4) == 0).then(|| DcqcnParameters::new(Rate::from_gbps(10))),
            marks: share(random, 0.3),
            ack_timeout: Duration::from_micros(ack_timeout),
            rnr_timer: RnrTimer::from_code(1 + random.below(14) as u8),
            retries: is_impatient.then(|| 2 + random.below(6) as u8),
            rnr_retries: is_impatient.then(|| random.below(7) as u8),
            window: *one(random, &[1, 2, 7, 32, 128, 128, 512]),
            send_depth: *one(random, &[1, 4, 16, 64]),
            shares: random.below(3) == 0,
            counts: random.below(3) == 0,
            late_receives: share(random, 0.5),
            mischief: if is_perfect { 0.0 } else { share(random, 0.01) },
            burst: 1 + random.below(20),
            segments: 1 + random.below(40),
            is_cut_short: random.below(8) == 0,
            patience: Duration::from_micros(random.below(2) * random.below(ack_timeout / 4)),
        }
    }

    /// True if nothing goes wrong, so that nothing is sent twice.
    pub fn is_perfect(&self) -> bool {
        let Faults { loss, duplicate, corrupt, reorder, late } = self.faults;
        loss + duplicate + corrupt + reorder + late + self.mischief == 0.0
            && self.congestion.is_none()
            && self.retries.is_none()
    }

    /// Bytes of the longest message.
    pub fn longest(&self) -> u32 {
        self.mtu.bytes() * 5
    }

    /// Bytes of memory that a peer may reach.
    pub fn memory(&self) -> u32 {
        self.mtu.bytes() * 8
    }
}

/// One of several, each as likely.
pub fn one<'a, T>(random: &mut Random, of: &'a [T]) -> &'a T {
    &of[random.below(of.len() as u64) as usize]
}

/// Nothing, or some share up to `most`.
fn share(random: &mut Random, most: f64) -> f64 {
    if random.below(3) == 0 { 0.0 } else { most * random.below(1000) as f64 / 1000.0 }
}

fn addresses(is_v6: bool) -> Addresses {
    if is_v6 {
        Addresses::V6([0xfd, 0, 0, 0, 0, 0, 0, 1].into(), [0xfd, 0, 0, 0, 0, 0, 0, 2].into())
    } else {
        Addresses::V4([10, 0, 0, 1].into(), [10, 0, 0, 2].into())
    }
}
