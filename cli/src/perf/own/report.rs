//! What the client prints: a header that says what runs on what, and a row or JSON object per size.

use serde::Serialize;

use super::bandwidth::Bandwidth;
use super::latency::Latency;
use super::postpoll::PostPoll;
use crate::output::Results;
use crate::perf::args::PerfArgs;
use crate::perf::error::PerfError;
use crate::perf::test::{Parameters, Test};
use crate::table::Column;

/// Prints results as they come.
#[derive(Debug)]
pub struct Report {
    test: Test,
    parameters: Parameters,
    results: Results,
}

#[derive(Debug, Serialize)]
struct LatencyRow {
    test: Test,
    size: usize,
    operations: u64,
    typical_us: f64,
    min_us: f64,
    median_us: f64,
    p99_us: f64,
    max_us: f64,
    gpu: bool,
}

#[derive(Debug, Serialize)]
struct BandwidthRow {
    test: Test,
    size: usize,
    operations: u64,
    depth: u32,
    signal_every: u32,
    mb_s: f64,
    mmsg_s: f64,
    mean_mb_s: f64,
    memcpy_gb_s: f64,
    ratio: f64,
    gpu: bool,
}

#[derive(Debug, Serialize)]
struct PostPollRow {
    test: &'static str,
    signal_every: u64,
    operations: u64,
    min_ns: f64,
    median_ns: f64,
    p99_ns: f64,
}

impl Report {
    /// Prints the header. `how` tells over what the sides are connected, `place` on what they run.
    ///
    /// # Errors
    /// If standard output fails, or the options are not valid.
    pub fn begin(args: &PerfArgs, how: &str, place: &str) -> Result<Self, PerfError> {
        let columns = match (args.post_poll, args.test.is_bandwidth()) {
            (true, _) => &POST_POLL[..],
            (false, true) => &BANDWIDTH,
            (false, false) => &LATENCY,
        };
        let parameters = args.parameters()?;
        let what = if args.post_poll { "cost of posting and polling 8-byte WRITEs" } else { describe(args.test) };
        let mut remarks = vec![how.to_owned(), place.to_owned()];
        if args.test.is_bandwidth() {
            let Parameters { depth, signal_every, .. } = parameters;
            let signaled =
                if args.test.is_tagged() { String::new() } else { format!(", 1 in {signal_every} signaled") };
            remarks.push(format!("{depth} outstanding{signaled}; 1 MB = 10^6 B, 1 GB = 10^9 B"));
        }
        let results = Results::begin(args.json, columns, &format!("perf {}: {what}", args.test), &remarks)?;
        Ok(Report { test: args.test, parameters, results })
    }

    /// Prints a latency.
    ///
    /// # Errors
    /// If standard output fails.
    pub fn latency(&self, of: &Latency) -> Result<(), PerfError> {
        let row = LatencyRow {
            test: self.test,
            size: of.size,
            operations: of.operations,
            typical_us: of.typical * 1e6,
            min_us: of.min * 1e6,
            median_us: of.median * 1e6,
            p99_us: of.p99 * 1e6,
            max_us: of.max * 1e6,
            gpu: self.parameters.gpu,
        };
        let times = [row.typical_us, row.min_us, row.median_us, row.p99_us, row.max_us];
        let cells = [row.size.to_string(), row.operations.to_string()].into_iter();
        Ok(self.results.row(&row, &cells.chain(times.map(|time| format!("{time:.3}"))).collect::<Vec<_>>())?)
    }

    /// Prints a bandwidth.
    ///
    /// # Errors
    /// If standard output fails.
    pub fn bandwidth(&self, of: &Bandwidth) -> Result<(), PerfError> {
        let row = BandwidthRow {
            test: self.test,
            size: of.size,
            operations: of.operations,
            depth: self.parameters.depth,
            signal_every: self.parameters.signal_every,
            mb_s: of.size as f64 / of.seconds / 1e6,
            mmsg_s: 1e-6 / of.seconds,
            mean_mb_s: of.size as f64 / of.mean / 1e6,
            memcpy_gb_s: of.size as f64 / of.memcpy / 1e9,
            ratio: of.memcpy / of.seconds,
            gpu: self.parameters.gpu,
        };
        let cells = [
            row.size.to_string(),
            row.operations.to_string(),
            format!("{:.1}", row.mb_s),
            format!("{:.4}", row.mmsg_s),
            format!("{:.2}", row.memcpy_gb_s),
            format!("{:.2}", row.ratio),
        ];
        Ok(self.results.row(&row, &cells)?)
    }

    /// Prints a cost of posting and polling.
    ///
    /// # Errors
    /// If standard output fails.
    pub fn post_poll(&self, of: &PostPoll) -> Result<(), PerfError> {
        let row = PostPollRow {
            test: "post-poll",
            signal_every: of.signal_every,
            operations: of.operations,
            min_ns: of.min * 1e9,
            median_ns: of.median * 1e9,
            p99_ns: of.p99 * 1e9,
        };
        let signaled = if row.signal_every == 1 { "each".to_owned() } else { format!("1 in {}", row.signal_every) };
        let cells = [signaled, row.operations.to_string()].into_iter();
        let times = [row.min_ns, row.median_ns, row.p99_ns].map(|time| format!("{time:.1}"));
        Ok(self.results.row(&row, &cells.chain(times).collect::<Vec<_>>())?)
    }
}

fn describe(test: Test) -> &'static str {
    match test {
        Test::WriteLat => "RDMA WRITE ping-pong, one way (half a round trip)",
        Test::WriteBw => "stream of RDMA WRITEs",
        Test::ReadLat => "RDMA READ, from post to completion",
        Test::ReadBw => "stream of RDMA READs",
        Test::SendLat => "SEND ping-pong, one way (half a round trip)",
        Test::SendBw => "stream of SENDs",
        Test::AtomicLat => "FETCH_ADD, from post to completion",
        Test::AtomicBw => "stream of FETCH_ADDs",
        Test::TagLat => "tagged message ping-pong, one way (half a round trip)",
        Test::TagBw => "stream of tagged messages",
    }
}

const SIZE: Column = Column { name: "size", unit: "(B)", width: 10 };
const OPERATIONS: Column = Column { name: "operations", unit: "", width: 11 };

const LATENCY: [Column; 7] = [
    SIZE,
    OPERATIONS,
    Column { name: "typical", unit: "(us)", width: 10 },
    Column { name: "min", unit: "(us)", width: 10 },
    Column { name: "median", unit: "(us)", width: 10 },
    Column { name: "p99", unit: "(us)", width: 10 },
    Column { name: "max", unit: "(us)", width: 10 },
];

const BANDWIDTH: [Column; 6] = [
    SIZE,
    OPERATIONS,
    Column { name: "bandwidth", unit: "(MB/s)", width: 10 },
    Column { name: "rate", unit: "(Mmsg/s)", width: 10 },
    Column { name: "memcpy", unit: "(GB/s)", width: 8 },
    Column { name: "of memcpy", unit: "(ratio)", width: 9 },
];

const POST_POLL: [Column; 5] = [
    Column { name: "signaled", unit: "", width: 10 },
    OPERATIONS,
    Column { name: "min", unit: "(ns)", width: 8 },
    Column { name: "median", unit: "(ns)", width: 8 },
    Column { name: "p99", unit: "(ns)", width: 8 },
];
