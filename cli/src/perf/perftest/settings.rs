//! What is measured and how, with perftest's defaults. Between two qpairs the client's word counts.

use qpair::verbs::{Mtu, QpType, SoftAddress};

use super::names::service_name;
use super::options::{AtomicOperation, PerftestOptions};
use super::terms::{Goal, Terms};
use crate::perf::args::PerfArgs;
use crate::perf::error::PerfError;
use crate::perf::test::{Kind, Test};
use crate::size::Size;

/// All that a run depends on, but for the device.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The measurement.
    pub test: Test,
    /// The service of the queue pairs.
    pub service: QpType,
    /// How long, per size.
    pub goal: Goal,
    /// Queue pairs.
    pub qps: u32,
    /// Whether both sides send.
    pub duplex: bool,
    /// Whether all powers of two are measured.
    pub all: bool,
    /// Whether to sleep instead of polling.
    pub events: bool,
    /// Whether bandwidth is told in Gb/s.
    pub gbits: bool,
    /// Whether this side says nothing of how a run goes.
    pub quiet: bool,
    /// READs and atomics under way at once, if asked for.
    pub outs: Option<u8>,
    /// What atomics do.
    pub atomic: AtomicOperation,
    inline: Option<u32>,
    size: Option<u64>,
    depth: u32,
    rx_depth: Option<u32>,
    cq_mod: Option<u32>,
    no_peak: bool,
    /// Requests in a queue, and completions in theirs, that the device has room for.
    room: (u32, u32),
}

impl Settings {
    /// The settings that the options amount to.
    ///
    /// # Errors
    /// [`PerfError::Options`] and [`PerfError::Size`] for what the test does not have.
    pub fn new(args: &PerfArgs) -> Result<Self, PerfError> {
        let PerftestOptions { connection, qps, rx_depth, margin, .. } = args.perftest;
        let duration = args.duration.map(|period| period.0.as_secs_f64());
        let goal = match duration {
            Some(duration) => {
                let margin = margin.map_or_else(|| default_margin(duration), |period| period.0.as_secs_f64());
                Goal::Seconds { duration, margin }
            }
            None => Goal::Iterations(args.iters.unwrap_or(default_iterations(args.test))),
        };
        let size = match args.size.as_slice() {
            [] => None,
            [size] => Some(size.0),
            _ => {
                let why = "on an RDMA device, and with perftest's options, -s takes one size; -a measures all";
                return Err(PerfError::Options(why.to_owned()));
            }
        };
        let settings = Settings {
            test: args.test,
            service: connection.map_or(QpType::Rc, QpType::from),
            goal,
            qps: qps.unwrap_or(1),
            duplex: args.perftest.bidirectional,
            all: args.all,
            events: args.perftest.events,
            gbits: args.perftest.report_gbits,
            quiet: args.announce,
            outs: args.perftest.outs,
            atomic: args.perftest.atomic.unwrap_or_default(),
            inline: args.perftest.inline,
            size,
            depth: args.depth,
            rx_depth,
            cq_mod: args.signal_every,
            no_peak: args.perftest.no_peak,
            room: (u32::MAX, u32::MAX),
        };
        if args.perftest.atomic.is_some() && settings.test.kind() != Kind::Atomic {
            return Err(PerfError::Options(format!("{} has no atomics: leave out -A", settings.test)));
        }
        settings.check()?;
        Ok(settings)
    }

    /// Takes note that the device has room for so many requests in a queue, and completions in theirs.
    pub fn fit(&mut self, requests: u32, completions: u32) {
        self.room = (requests, completions);
    }

    /// Follows the other side's terms, which is a qpair and the client. What they take of this machine is to be
    /// [checked](super::limits::Needs::check) after.
    ///
    /// # Errors
    /// As [`new`](Settings::new), and for numbers that no command line gives.
    pub fn adopt(&mut self, theirs: &Terms) -> Result<(), PerfError> {
        for (what, asked, most) in [
            ("queue pairs", theirs.qps, MAX_QPS),
            ("requests outstanding at once", theirs.depth, MAX_DEPTH),
            ("receives posted at once", theirs.rx_depth.unwrap_or(1), MAX_RX_DEPTH),
            ("requests for each that is signaled", theirs.cq_mod.unwrap_or(1), u32::MAX),
        ] {
            if !(1..=most).contains(&asked) {
                return Err(PerfError::Options(format!("the client asks for {asked} {what}; 1 to {most}")));
            }
        }
        let Terms { size, all, goal, qps, duplex, depth, rx_depth, cq_mod, no_peak, atomic, gbits, .. } = *theirs;
        *self = Settings { size, all, goal, qps, duplex, depth, rx_depth, cq_mod, no_peak, atomic, gbits, ..*self };
        self.check()
    }

    /// What this side tells another qpair.
    pub fn terms(&self, soft: Option<SoftAddress>) -> Terms {
        Terms {
            release: env!("CARGO_PKG_VERSION").to_owned(),
            test: self.test,
            service: self.service,
            size: self.size,
            all: self.all,
            goal: self.goal,
            qps: self.qps,
            duplex: self.duplex,
            depth: self.depth,
            rx_depth: self.rx_depth,
            cq_mod: self.cq_mod,
            no_peak: self.no_peak,
            atomic: self.atomic,
            gbits: self.gbits,
            soft,
        }
    }

    /// The sizes to measure, in order, over a path of this MTU.
    ///
    /// # Errors
    /// [`PerfError::DatagramSize`] if a datagram of the size asked for does not fit.
    pub fn sizes(&self, mtu: Mtu) -> Result<Vec<usize>, PerfError> {
        let longest = self.longest(mtu);
        if self.service == QpType::Ud && longest > u64::from(mtu.bytes()) {
            return Err(PerfError::DatagramSize { size: Size(longest), mtu: mtu.bytes() });
        }
        let longest = usize::try_from(longest).map_err(|_| PerfError::Options("the size is too large".to_owned()))?;
        if self.all {
            return Ok((1..).map(|shift| 1 << shift).take_while(|size| *size <= longest).collect());
        }
        Ok(vec![longest])
    }

    /// The only size, or the longest.
    pub fn longest(&self, mtu: Mtu) -> u64 {
        let datagram = if self.service == QpType::Ud { u64::from(mtu.bytes()) } else { u64::MAX };
        match self.size {
            Some(size) => size,
            None if self.test.kind() == Kind::Atomic => 8,
            None if self.all => GREATEST.min(datagram),
            None if self.test.is_bandwidth() => DEFAULT_BANDWIDTH_SIZE.min(datagram),
            None => DEFAULT_LATENCY_SIZE,
        }
    }

    /// Requests outstanding at once on a queue pair.
    pub fn tx_depth(&self) -> u32 {
        if !self.test.is_bandwidth() {
            return 1;
        }
        self.at_most_iterations(self.depth)
    }

    /// Receives posted at once on a queue pair; 0 where the test has none.
    pub fn rx_depth(&self) -> u32 {
        if self.test.kind() != Kind::Send {
            return 0;
        }
        self.at_most_iterations(self.rx_depth.unwrap_or(self.default_rx_depth()))
    }

    /// What finds no receive is lost, but for RC: of a count of messages, all are to find one.
    fn default_rx_depth(&self) -> u32 {
        if self.service == QpType::Rc || self.iterations().is_none() {
            return DEFAULT_RX_DEPTH;
        }
        let (requests, completions) = self.room;
        LOSSY_RX_DEPTH.min(requests).min(completions / self.qps).max(1)
    }

    /// One request in so many is signaled.
    pub fn cq_mod(&self) -> u32 {
        let large = !self.all && self.longest(Mtu::B4096) > LARGE;
        let every = self.cq_mod.unwrap_or(if large { 1 } else { DEFAULT_CQ_MOD });
        every.min(self.tx_depth())
    }

    /// Bytes up to which data goes inline, on a device that takes at most so many; above, it goes from registered memory.
    pub fn inline(&self, most: u32) -> u32 {
        let default = match (self.test.kind(), self.service) {
            (Kind::Read | Kind::Atomic, _) => return 0,
            _ if self.test.is_bandwidth() => 0,
            (Kind::Send, QpType::Ud) => 188,
            (Kind::Send, _) => 236,
            _ => 220,
        };
        self.inline.unwrap_or(default.min(most))
    }

    /// Whether the best bandwidth over any part of a run is looked for.
    pub fn peak(&self) -> bool {
        !self.no_peak && matches!(self.goal, Goal::Iterations(count) if count <= PEAK_ITERATIONS)
    }

    /// Messages on each queue pair; none with a duration.
    pub fn iterations(&self) -> Option<u64> {
        match self.goal {
            Goal::Iterations(count) => Some(count),
            Goal::Seconds { .. } => None,
        }
    }

    fn at_most_iterations(&self, depth: u32) -> u32 {
        self.iterations().and_then(|count| u32::try_from(count).ok()).map_or(depth, |count| depth.min(count))
    }

    fn check(&self) -> Result<(), PerfError> {
        let refuse = |why: String| Err(PerfError::Options(why));
        let (test, service) = (self.test, service_name(self.service));
        match (test.kind(), self.service) {
            (Kind::Tagged, _) => return refuse(format!("{test} is no test of perftest; leave out its options")),
            (Kind::Write | Kind::Send, QpType::Uc) | (_, QpType::Rc) | (Kind::Send, QpType::Ud) => {}
            _ => return refuse(format!("{service} has no such operation: give -c RC with {test}")),
        }
        if let (Kind::Atomic, Some(size)) = (test.kind(), self.size.filter(|size| *size != 8)) {
            return Err(PerfError::Size { test, size: Size(size), why: "atomics work on 8 bytes" });
        }
        if let Some(size) = self.size.filter(|size| !(1..MAX_SIZE).contains(size)) {
            return Err(PerfError::Size { test, size: Size(size), why: "a message is of 1 B to 2G - 1" });
        }
        if self.all && test.kind() == Kind::Atomic {
            return refuse("atomics work on 8 bytes: leave out -a".to_owned());
        }
        if !test.is_bandwidth() && (self.duplex || self.qps != 1) {
            return refuse(format!("{test} goes over one queue pair, forth and back: leave out -q and -b"));
        }
        if self.events && test == Test::WriteLat {
            return refuse("write-lat polls memory, where no event comes: leave out -e".to_owned());
        }
        match self.goal {
            Goal::Seconds { .. } if self.all => refuse("-a measures by -n: leave out -D".to_owned()),
            Goal::Seconds { duration, margin } if !(duration > 2.0 * margin && margin >= 0.0 && duration < LONGEST) => {
                refuse(
                    "nothing is left of the duration between its margins: give a longer -D or a shorter -f".to_owned(),
                )
            }
            Goal::Iterations(count) if !(MIN_ITERATIONS..=MAX_ITERATIONS).contains(&count) => {
                refuse(format!("-n is {MIN_ITERATIONS} to {MAX_ITERATIONS} here, and gets {count}"))
            }
            _ => Ok(()),
        }
    }
}

fn default_iterations(test: Test) -> u64 {
    if test == Test::WriteBw { 5000 } else { 1000 }
}

/// A quarter, in whole seconds.
fn default_margin(duration: f64) -> f64 {
    (duration / 4.0).floor()
}

const DEFAULT_BANDWIDTH_SIZE: u64 = 65536;
const DEFAULT_LATENCY_SIZE: u64 = 2;
/// Requests outstanding at once, unless asked for otherwise.
pub const DEFAULT_DEPTH: u32 = 128;
/// Receives posted at once, unless asked for otherwise.
pub const DEFAULT_RX_DEPTH: u32 = 512;
const LOSSY_RX_DEPTH: u32 = 16_000;
const DEFAULT_CQ_MOD: u32 = 100;
/// Above this size each request is signaled, unless asked for otherwise.
const LARGE: u64 = 8192;
/// The end of -a.
const GREATEST: u64 = 1 << 23;
/// In longer runs, by messages on each queue pair, the peak is not looked for.
pub const PEAK_ITERATIONS: u64 = 20_000;
const MIN_ITERATIONS: u64 = 5;
const MAX_ITERATIONS: u64 = 1 << 26;
/// The most queue pairs.
pub const MAX_QPS: u32 = 1024;
/// The most requests outstanding at once.
pub const MAX_DEPTH: u32 = 4096;
/// The most receives posted at once.
pub const MAX_RX_DEPTH: u32 = 16_384;
/// Devices take messages of up to 2^31 bytes.
const MAX_SIZE: u64 = 1 << 31;
/// 100 years, in seconds.
const LONGEST: f64 = 100.0 * 365.0 * 24.0 * 3600.0;

#[cfg(test)]
#[path = "settings_tests.rs"]
pub mod tests;
