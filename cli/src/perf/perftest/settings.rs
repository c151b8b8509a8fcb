//! What is measured and how, with perftest's defaults. Between two qpairs the client's word counts.

use qpair::verbs::{Mtu, QpType, SoftAddress};

use super::error::ExchangeError;
use super::options::{AtomicOperation, PerftestOptions};
use super::terms::{Goal, Terms, service_name};
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
    /// READs and atomics under way at once, if asked for.
    pub outs: Option<u8>,
    /// What atomics do.
    pub atomic: AtomicOperation,
    inline: Option<u32>,
    size: Option<u64>,
    depth: u32,
    rx_depth: u32,
    cq_mod: Option<u32>,
    no_peak: bool,
}

impl Settings {
    /// The settings that the options amount to.
    ///
    /// # Errors
    /// [`PerfError::Options`] and [`PerfError::Size`] for what the test does not have.
    pub fn new(args: &PerfArgs) -> Result<Self, PerfError> {
        let PerftestOptions { connection, qps, rx_depth, margin, .. } = args.perftest;
        let duration = args.duration.map(|period| period.0.as_secs_f64());
        let margin = margin.map_or(0.0, |period| period.0.as_secs_f64());
        let goal = match duration {
            Some(duration) => Goal::Seconds { duration, margin },
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
            outs: args.perftest.outs,
            atomic: args.perftest.atomic.unwrap_or_default(),
            inline: args.perftest.inline,
            size,
            depth: args.depth,
            rx_depth: rx_depth.unwrap_or(DEFAULT_RX_DEPTH),
            cq_mod: args.signal_every,
            no_peak: args.perftest.no_peak,
        };
        if args.perftest.atomic.is_some() && settings.test.kind() != Kind::Atomic {
            return Err(PerfError::Options(format!("{} has no atomics: leave out -A", settings.test)));
        }
        settings.check()?;
        Ok(settings)
    }

    /// Follows the other side's terms, which is a qpair and the client.
    ///
    /// # Errors
    /// [`ExchangeError::TooMuch`] if they need more memory than strangers get, and as [`new`](Settings::new).
    pub fn adopt(&mut self, theirs: &Terms) -> Result<(), PerfError> {
        let own = self.size.unwrap_or(0).saturating_mul(self.qps.into());
        let greatest = if theirs.all { GREATEST } else { DEFAULT_BANDWIDTH_SIZE };
        let asked = theirs.size.unwrap_or(greatest).saturating_mul(theirs.qps.into());
        let limit = own.max(STRANGERS_MEMORY);
        if asked > limit {
            return Err(ExchangeError::TooMuch { asked, limit }.into());
        }
        if !(1..=MAX_QPS).contains(&theirs.qps) {
            return Err(PerfError::Options(format!("the client asks for {} queue pairs; 1 to {MAX_QPS}", theirs.qps)));
        }
        self.size = theirs.size;
        self.all = theirs.all;
        self.goal = theirs.goal;
        self.qps = theirs.qps;
        self.duplex = theirs.duplex;
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
    fn longest(&self, mtu: Mtu) -> u64 {
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
        if self.test.kind() == Kind::Send { self.at_most_iterations(self.rx_depth) } else { 0 }
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
        !self.no_peak && matches!(self.goal, Goal::Iterations(count) if count * u64::from(self.qps) <= PEAK_ITERATIONS)
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

const DEFAULT_BANDWIDTH_SIZE: u64 = 65536;
const DEFAULT_LATENCY_SIZE: u64 = 2;
const DEFAULT_RX_DEPTH: u32 = 512;
const DEFAULT_CQ_MOD: u32 = 100;
/// Above this size each request is signaled, unless asked for otherwise.
const LARGE: u64 = 8192;
/// The end of -a.
const GREATEST: u64 = 1 << 23;
const PEAK_ITERATIONS: u64 = 20_000;
const MIN_ITERATIONS: u64 = 5;
const MAX_ITERATIONS: u64 = 1 << 26;
const MAX_QPS: u32 = 1024;
/// Devices take messages of up to 2^31 bytes.
const MAX_SIZE: u64 = 1 << 31;
/// 100 years, in seconds.
const LONGEST: f64 = 100.0 * 365.0 * 24.0 * 3600.0;
/// What a client may make a server register, unless the server was told more.
const STRANGERS_MEMORY: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        perf: PerfArgs,
    }

    fn settings(line: &str) -> Result<Settings, PerfError> {
        Settings::new(&Line::try_parse_from(std::iter::once("perf").chain(line.split(' '))).expect("a valid line").perf)
    }

    fn valid(line: &str) -> Settings {
        settings(line).expect(line)
    }

    #[test]
    fn defaults_are_those_of_perftest() {
        let shape = |line: &str| {
            let of = valid(line);
            (of.sizes(Mtu::B1024).expect("fits"), of.iterations(), of.tx_depth(), of.rx_depth(), of.cq_mod())
        };
        assert_eq!(shape("write-bw"), (vec![65536], Some(5000), 128, 0, 1));
        assert_eq!(shape("read-bw -s 8192"), (vec![8192], Some(1000), 128, 0, 100));
        assert_eq!(shape("write-bw -n 100"), (vec![65536], Some(100), 100, 0, 1));
        assert_eq!(shape("send-bw -n 100 -c ud"), (vec![1024], Some(100), 100, 100, 100));
        assert_eq!(shape("send-bw -D 3"), (vec![65536], None, 128, 512, 1));
        assert_eq!(shape("atomic-bw"), (vec![8], Some(1000), 128, 0, 100));
        assert_eq!(shape("write-lat"), (vec![2], Some(1000), 1, 0, 1));
        assert_eq!(shape("send-lat -n 100"), (vec![2], Some(100), 1, 100, 1));
        assert_eq!(shape("send-bw -s 64K -t 8 -r 7 -Q 20"), (vec![65536], Some(1000), 8, 7, 8));
        let inline = |line: &str| valid(line).inline(400);
        assert_eq!(["write-lat", "send-lat", "send-lat -c UC", "send-lat -c UD"].map(inline), [220, 236, 236, 188]);
        assert_eq!(
            ["write-bw", "send-bw", "read-lat", "atomic-lat", "read-lat -I 8", "write-bw -I 8"].map(inline),
            [0, 0, 0, 0, 0, 8]
        );
        assert_eq!(valid("send-lat").inline(96), 96);
        let all = valid("write-bw -a -n 20");
        let sizes = all.sizes(Mtu::B1024).expect("fits");
        assert_eq!((sizes.len(), sizes[0], sizes[22], all.cq_mod()), (23, 2, 1 << 23, 20));
        assert_eq!(valid("send-lat -a -c UD").sizes(Mtu::B1024).expect("fits").last(), Some(&1024));
    }

    #[test]
    fn a_datagram_longer_than_the_mtu_is_a_typed_error() {
        let error = valid("send-bw -c UD -s 2048").sizes(Mtu::B1024).expect_err("too long");
        assert!(matches!(error, PerfError::DatagramSize { size: Size(2048), mtu: 1024 }), "{error:?}");
        assert!(error.to_string().contains("-s 1K"), "{error}");
        valid("send-bw -c UD -s 2048").sizes(Mtu::B2048).expect("fits");
    }

    #[test]
    fn what_a_test_does_not_have_is_a_typed_error() {
        for (line, part) in [
            ("read-bw -c UC", "-c RC"),
            ("write-lat -c UD", "-c RC"),
            ("atomic-bw -c UC", "-c RC"),
            ("tag-lat -b", "no test of perftest"),
            ("read-lat -A CMP_AND_SWAP", "-A"),
            ("atomic-bw -s 16", "8 bytes"),
            ("atomic-lat -a", "8 bytes"),
            ("write-bw -s 0", "1 B"),
            ("write-bw -s 2G", "1 B"),
            ("write-bw -s 8,64", "one size"),
            ("write-lat -b", "-b"),
            ("send-lat -q 2", "-q"),
            ("write-lat -e", "-e"),
            ("write-bw -a -D 2", "-D"),
            ("write-bw -D 2 -f 1", "-f"),
            ("write-bw -n 4", "-n"),
        ] {
            let error = settings(line).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
            assert!(error.to_string().contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn the_clients_terms_count_within_limits() {
        let mut server = valid("write-bw");
        let client = valid("write-bw -s 1M -n 77 -q 3 -b").terms(None);
        server.adopt(&client).expect("modest");
        assert_eq!(server.terms(None), client);
        assert_eq!(server.sizes(Mtu::B1024).expect("fits"), [1 << 20]);

        let greedy = Terms { size: Some((1 << 30) + 1), qps: 1, ..client.clone() };
        let error = valid("write-bw").adopt(&greedy).expect_err("greedy");
        assert!(matches!(error, PerfError::Perftest(ExchangeError::TooMuch { .. })), "{error:?}");
        valid("write-bw -s 1200M").adopt(&greedy).expect("told so");
        for terms in [
            Terms { size: Some(1), qps: 100_000, ..client.clone() },
            Terms { size: Some(u64::MAX), qps: u32::MAX, ..client.clone() },
            Terms { goal: Goal::Iterations(u64::MAX), ..client.clone() },
            Terms { goal: Goal::Seconds { duration: f64::MAX, margin: -1.0 }, ..client.clone() },
            Terms { goal: Goal::Seconds { duration: f64::NAN, margin: 0.0 }, ..client.clone() },
            Terms { size: Some(0), ..client.clone() },
            Terms { qps: 0, ..client },
        ] {
            valid("write-bw").adopt(&terms).expect_err("a lie");
        }
    }

    #[test]
    fn the_peak_is_looked_for_in_short_runs() {
        assert!(valid("write-bw").peak());
        assert!(!valid("write-bw -N").peak());
        assert!(!valid("write-bw -n 20001").peak());
        assert!(!valid("write-bw -n 10001 -q 2").peak());
        assert!(!valid("write-bw -D 1").peak());
    }
}
