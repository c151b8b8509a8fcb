//! The reaction point: the rate of a sender, by the CNPs that it gets. Section 3.1 of the DCQCN paper; the increase is
//! that of QCN (IEEE 802.1Qau), as the paper says.

use std::time::{Duration, Instant};

use super::rate::Rate;
use crate::counters::Counters;

/// What a reaction point is made with. The names are the paper's, and in brackets those of mlx5.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DcqcnParameters {
    /// Rate of the link, which the sender may not exceed and begins with (`rpg_max_rate`).
    pub line_rate: Rate,
    /// g, by which alpha follows what happens: 0 to 1 (`dce_tcp_g` is 1024 times 1 - g).
    pub g: f64,
    /// K, time without a CNP after which alpha gets less. Longer than the time between two CNPs (`dce_tcp_rtt`).
    pub k: Duration,
    /// F, iterations of fast recovery (`rpg_threshold`).
    pub f: u32,
    /// T, time after which the rate is raised (`rpg_time_reset`).
    pub timer: Duration,
    /// B, bytes sent after which the rate is raised; 0: the timer alone raises it (`rpg_byte_reset`).
    pub byte_counter: u64,
    /// R_AI, by which additive increase raises the target (`rpg_ai_rate`).
    pub r_ai: Rate,
    /// R_HAI, by which hyper increase does, times its iterations so far (`rpg_hai_rate`).
    pub r_hai: Rate,
    /// Rate that none is cut below (`rpg_min_rate`).
    pub rpg_min_rate: Rate,
    /// Time after a cut in which no other follows (`rate_reduce_monitor_period`).
    pub rate_reduce_monitor_period: Duration,
}

/// The rate of one sender, and what moves it.
///
/// A CNP cuts the current rate R_C by a share that alpha tells, and makes what it was the target rate R_T. Then a timer
/// and a counter of bytes raise it: F times half-way to the target (fast recovery), then half-way to a target that
/// moves on by R_AI (additive increase), or, once both have gone through F, by R_HAI and ever more (hyper increase). At
/// the rate of the link all of this rests, but alpha sinks on.
#[derive(Clone, Copy, Debug)]
pub struct ReactionPoint {
    parameters: DcqcnParameters,
    current: Rate,
    target: Rate,
    /// Alpha, as it was after the last cut; 1 before the first.
    alpha: f64,
    /// The last cut.
    cut_at: Option<Instant>,
    /// The timer's next end. None: the sender is not limited.
    increase_at: Option<Instant>,
    /// Ends of the timer since the last cut, and of the byte counter.
    stages: Stages,
    /// Bytes since the byte counter's last end.
    bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stages {
    timer: u32,
    bytes: u32,
}

/// How the rate is raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    FastRecovery,
    AdditiveIncrease,
    /// With its iterations so far.
    HyperIncrease(u32),
}

impl DcqcnParameters {
    /// The paper's values (section 5: g = 1/256, K = 55 us, T = 55 us, B = 10 MB, F = 5), with R_AI of 1/1000 of the
    /// link, which is its 40 Mb/s on its 40 Gb/s. What it leaves open is QCN's: R_HAI ten times R_AI, and a least rate
    /// of 1/1000 of the link, there 10 Mb/s of 10 Gb/s. The monitor period is mlx5's, 4 us: less than the time between
    /// two CNPs of one receiver, so that of those all count, and none twice.
    pub const fn new(line_rate: Rate) -> Self {
        let thousandth = Rate::from_bps(line_rate.bps() / 1000);
        DcqcnParameters {
            line_rate,
            g: 1.0 / 256.0,
            k: Duration::from_micros(55),
            f: 5,
            timer: Duration::from_micros(55),
            byte_counter: 10_000_000,
            r_ai: thousandth,
            r_hai: Rate::from_bps(thousandth.bps() * 10),
            rpg_min_rate: thousandth,
            rate_reduce_monitor_period: Duration::from_micros(4),
        }
    }
}

impl ReactionPoint {
    /// A sender of the rate of the link: DCQCN has no slow start.
    pub const fn new(parameters: DcqcnParameters) -> Self {
        ReactionPoint {
            current: parameters.line_rate,
            target: parameters.line_rate,
            alpha: 1.0,
            cut_at: None,
            increase_at: None,
            stages: Stages { timer: 0, bytes: 0 },
            bytes: 0,
            parameters,
        }
    }

    /// A sender that begins at another rate, and raises it from there by additive increase.
    pub fn starting_at(now: Instant, rate: Rate, parameters: DcqcnParameters) -> Self {
        let rate = rate.max(parameters.rpg_min_rate).min(parameters.line_rate);
        let mut point = ReactionPoint::new(parameters);
        (point.current, point.target) = (rate, rate);
        point.stages.timer = parameters.f;
        point.arm(now);
        point
    }

    /// R_C, the rate to send at.
    pub const fn rate(&self) -> Rate {
        self.current
    }

    /// True if the rate is below that of the link, or not back there since a CNP.
    pub const fn is_limited(&self) -> bool {
        self.increase_at.is_some()
    }

    /// R_T, the rate that is being recovered.
    pub const fn target(&self) -> Rate {
        self.target
    }

    /// Alpha, the estimate of congestion: 1 while each CNP follows the last, 0 after long without one.
    pub fn alpha(&self, now: Instant) -> f64 {
        let Some(since) = self.cut_at else { return self.alpha };
        let period = self.parameters.k.as_nanos().max(1);
        let updates = now.saturating_duration_since(since).as_nanos() / period;
        self.alpha * power(1.0 - self.parameters.g, updates)
    }

    /// Handles a CNP of the receiver.
    pub fn handle_cnp(&mut self, now: Instant, counters: &mut Counters) {
        self.handle_timeout(now);
        let DcqcnParameters { g, rpg_min_rate, line_rate, rate_reduce_monitor_period, .. } = self.parameters;
        if self.cut_at.is_some_and(|at| now.saturating_duration_since(at) < rate_reduce_monitor_period) {
            counters.rp_cnp_ignored += 1;
            return;
        }
        counters.rp_cnp_handled += 1;
        let alpha = self.alpha(now);
        self.target = self.current;
        let cut = Rate::from_bps((self.current.bps() as f64 * (1.0 - alpha / 2.0)) as u64);
        self.current = cut.max(rpg_min_rate).min(line_rate);
        self.alpha = (1.0 - g) * alpha + g;
        self.cut_at = Some(now);
        self.stages = Stages::default();
        self.bytes = 0;
        self.arm(now);
    }

    /// Takes note of bytes that were sent.
    pub fn sent(&mut self, bytes: u32) {
        if self.increase_at.is_none() || self.parameters.byte_counter == 0 {
            return;
        }
        self.bytes += u64::from(bytes);
        while self.bytes >= self.parameters.byte_counter && self.increase_at.is_some() {
            self.bytes -= self.parameters.byte_counter;
            self.increase();
            self.stages.bytes = self.stages.bytes.saturating_add(1);
        }
    }

    /// When [`handle_timeout`](ReactionPoint::handle_timeout) is due; `None` while the sender has the rate of the link.
    pub const fn timeout(&self) -> Option<Instant> {
        self.increase_at
    }

    /// The time has come that was told, or a later one: then the rate is what it would have been by then, but for a
    /// caller who comes 4096 ends of the timer late; for the rest the rate waits.
    pub fn handle_timeout(&mut self, now: Instant) {
        for _ in 0..LATE {
            let Some(at) = self.increase_at.filter(|at| *at <= now) else { return };
            self.increase_at = at.checked_add(self.parameters.timer);
            self.increase();
            self.stages.timer = self.stages.timer.saturating_add(1);
        }
        if self.increase_at.is_some_and(|at| at <= now) {
            self.arm(now);
        }
    }

    fn increase(&mut self) {
        let DcqcnParameters { f, r_ai, r_hai, line_rate, .. } = self.parameters;
        let more = match self.stages.phase(f) {
            Phase::FastRecovery => 0,
            Phase::AdditiveIncrease => r_ai.bps(),
            Phase::HyperIncrease(iterations) => r_hai.bps().saturating_mul(iterations.into()),
        };
        self.target = self.target.plus(more).min(line_rate);
        self.current = self.current.midway(self.target);
        if self.current >= line_rate {
            self.increase_at = None;
        }
    }

    /// Begins to raise the rate, unless it is that of the link.
    fn arm(&mut self, now: Instant) {
        let is_limited = self.current < self.parameters.line_rate;
        self.increase_at = now.checked_add(self.parameters.timer).filter(|_| is_limited);
    }
}

impl Stages {
    /// The timer's and the counter's ends before this one decide. Section 3.1, the state machine of the reaction point.
    const fn phase(self, f: u32) -> Phase {
        let (least, most) = if self.timer < self.bytes { (self.timer, self.bytes) } else { (self.bytes, self.timer) };
        if most < f {
            Phase::FastRecovery
        } else if least > f {
            Phase::HyperIncrease(least - f)
        } else {
            Phase::AdditiveIncrease
        }
    }
}

/// `base` to the power of `exponent`. By multiplication alone, so that it is the same on every machine.
fn power(mut base: f64, mut exponent: u128) -> f64 {
    let mut power = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            power *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    power
}

/// Ends of the timer that one call makes up for: four times as many as additive increase takes to the rate of the link,
/// with the paper's values. They take some microseconds.
const LATE: u32 = 4096;
