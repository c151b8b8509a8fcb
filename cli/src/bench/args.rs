//! Arguments of the benchmarks, and the work that they amount to.

use std::time::Duration;

use clap::{Args, Subcommand};
use qpair::collectives::Algorithm;
use qpair::collectives::Collective;
use qpair::verbs::calc::{DataType, ReduceOp};

use super::error::BenchError;
use crate::period::Period;
use crate::size::Size;

/// Times collectives over a range of sizes and checks every result.
///
/// The columns are those of nccl-tests: time of one operation on the slowest rank, algbw = size / time, and busbw,
/// which counts the bytes that the links carry (all-reduce: algbw x 2(n-1)/n), in units of 10^9 B/s.
///
/// Without a launcher it starts its own ranks on this machine; under `qpair launch`, torchrun, mpirun or srun it is one of them.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  qpair bench all-reduce                      4 local ranks, 8 B to 64 MiB
  qpair bench all-reduce -n 2 -b 1K -e 1M -f 2
  qpair bench all-reduce --dtype f64 --op max --json
  qpair bench broadcast -n 3 --root 2
  qpair launch -n 4 -- qpair bench all-reduce")]
pub enum BenchCommand {
    /// Combines the vectors of all ranks and gives each the result, in place.
    AllReduce(AllReduceArgs),
    /// Copies the vector of one rank to all others.
    Broadcast(BroadcastArgs),
}

/// Arguments of `bench all-reduce`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  qpair bench all-reduce                      4 local ranks, 8 B to 64 MiB
  qpair bench all-reduce -n 2 -b 1K -e 1M -f 2
  qpair bench all-reduce --dtype f64 --op max --json
  qpair launch -n 4 -- qpair bench all-reduce")]
pub struct AllReduceArgs {
    #[command(flatten)]
    settings: Settings,
    /// Operation: sum, prod, min or max; of integers also land, lor, lxor, band, bor or bxor
    #[arg(long, default_value_t = ReduceOp::Sum)]
    op: ReduceOp,
}

/// Arguments of `bench broadcast`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  qpair bench broadcast                       4 local ranks, from rank 0
  qpair bench broadcast -n 3 --root 2 -e 1M")]
pub struct BroadcastArgs {
    #[command(flatten)]
    settings: Settings,
    /// The rank whose vector all get
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    root: usize,
}

/// What all benchmarks have in common.
#[derive(Debug, Args)]
pub struct Settings {
    /// Number of local ranks [default: 4, or what a launcher says]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub ranks: Option<u32>,
    /// Smallest size in bytes; takes K, M, G
    #[arg(short, long, value_name = "SIZE", default_value = "8")]
    pub begin: Size,
    /// Greatest size in bytes, always measured; takes K, M, G
    #[arg(short, long, value_name = "SIZE", default_value = "64M")]
    pub end: Size,
    /// Each size is this many times the one before
    #[arg(short, long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(2..))]
    pub factor: u64,
    /// Type of the elements: f64, f32, f16, bf16, f8e4m3, f8e5m2, or i or u with 8, 32 or 64
    #[arg(long, value_name = "TYPE", default_value_t = DataType::F32)]
    pub dtype: DataType,
    /// Timed operations per size [default: as many as --time allows]
    #[arg(long, value_name = "N", conflicts_with = "time", value_parser = clap::value_parser!(u64).range(1..))]
    pub iters: Option<u64>,
    /// Time to spend on each size: 1, 200ms
    #[arg(long, value_name = "TIME", default_value = "200ms")]
    pub time: Period,
    /// Operations before the timed ones, per size
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub warmup: u64,
    #[arg(long, value_name = "NAME", default_value_t, help = algorithms())]
    pub algo: Algorithm,
    /// Print one JSON object per size instead of the table
    #[arg(long)]
    pub json: bool,
    /// Check every result (the default)
    #[arg(long, overrides_with = "no_check")]
    check: bool,
    /// Do not check results
    #[arg(long)]
    no_check: bool,
    /// Device for local ranks; ranks that others start take the one of QPAIR_DEVICE, or what topology names [default: soft0]
    #[arg(short, long, value_name = "NAME")]
    pub device: Option<String>,
    /// Do not bind local ranks to CPUs; else each gets its own, or shares one evenly where there are too few
    #[arg(long)]
    pub no_pin: bool,
    /// Port for local ranks to meet at [default: a free one]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// End local ranks after this time [default: none]
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<Period>,
}

/// What is measured: a collective with what it needs to be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// All-reduce with an operation.
    AllReduce(ReduceOp),
    /// Broadcast from a root.
    Broadcast {
        /// The rank that has the data.
        root: usize,
    },
}

/// How often an operation is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// So many times.
    Operations(u64),
    /// As often as fits this time.
    Time(Duration),
}

/// What a rank shall measure: equal on all ranks, since all have the same arguments.
#[derive(Clone, Debug)]
pub struct Workload {
    /// What is measured.
    pub subject: Subject,
    /// Type of the elements.
    pub dtype: DataType,
    /// Element counts in ascending order, each at least 1.
    pub counts: Vec<usize>,
    /// Operations before the timed ones.
    pub warmup: u64,
    /// How often an operation is timed.
    pub effort: Effort,
    /// The algorithm, or that the library chooses.
    pub algorithm: Algorithm,
    /// Whether results are checked.
    pub check: bool,
    /// Whether to print JSON.
    pub json: bool,
}

impl BenchCommand {
    /// The common arguments.
    pub fn settings(&self) -> &Settings {
        match self {
            BenchCommand::AllReduce(args) => &args.settings,
            BenchCommand::Broadcast(args) => &args.settings,
        }
    }

    fn subject(&self) -> Subject {
        match self {
            BenchCommand::AllReduce(args) => Subject::AllReduce(args.op),
            BenchCommand::Broadcast(args) => Subject::Broadcast { root: args.root },
        }
    }
}

impl Workload {
    /// Checks the arguments against each other.
    ///
    /// # Errors
    /// [`BenchError::Range`] if there is no size to measure, [`BenchError::Algorithm`] if the algorithm does another
    /// collective.
    pub fn new(command: &BenchCommand) -> Result<Self, BenchError> {
        let settings = command.settings();
        let subject = command.subject();
        if !settings.algo.does(subject.collective()) {
            return Err(BenchError::Algorithm { algorithm: settings.algo, collective: subject.name() });
        }
        Ok(Workload {
            subject,
            dtype: settings.dtype,
            counts: counts(settings.begin, settings.end, settings.factor, settings.dtype.size())?,
            warmup: settings.warmup,
            effort: settings.iters.map_or(Effort::Time(settings.time.0), Effort::Operations),
            algorithm: settings.algo,
            check: settings.check || !settings.no_check,
            json: settings.json,
        })
    }

    /// Whether the root is a rank.
    ///
    /// # Errors
    /// [`BenchError::NoSuchRoot`] if not.
    pub fn check_root(&self, ranks: usize) -> Result<(), BenchError> {
        match self.subject {
            Subject::Broadcast { root } if root >= ranks => Err(BenchError::NoSuchRoot { root, ranks }),
            _ => Ok(()),
        }
    }
}

impl Subject {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Subject::AllReduce(_) => "all-reduce",
            Subject::Broadcast { .. } => "broadcast",
        }
    }

    /// Its collective.
    pub fn collective(self) -> Collective {
        match self {
            Subject::AllReduce(_) => Collective::AllReduce,
            // Which root makes no difference to what an algorithm does.
            Subject::Broadcast { .. } => Collective::Broadcast { root: 0 },
        }
    }

    /// Bytes that the busiest link carries, per byte of the vector.
    pub fn bus_factor(self, ranks: usize) -> f64 {
        match self {
            Subject::AllReduce(_) => 2.0 * (ranks as f64 - 1.0) / ranks as f64,
            Subject::Broadcast { .. } => 1.0,
        }
    }
}

/// Help that names every algorithm there is for what can be measured.
fn algorithms() -> String {
    let of = |collective| {
        let named = Algorithm::ALL.into_iter().filter(|&algorithm| algorithm != Algorithm::Auto);
        named.filter(|algorithm| algorithm.does(collective)).map(Algorithm::name).collect::<Vec<_>>().join(", ")
    };
    let (all_reduce, broadcast) = (of(Collective::AllReduce), of(Collective::Broadcast { root: 0 }));
    format!("Algorithm: auto goes by size and rank count; all-reduce has {all_reduce}; broadcast has {broadcast}")
}

/// The element counts: sizes rounded down to whole elements, but not to none.
fn counts(begin: Size, end: Size, factor: u64, element: usize) -> Result<Vec<usize>, BenchError> {
    if begin.0 == 0 || begin > end {
        return Err(BenchError::Range { begin, end });
    }
    let sizes = std::iter::successors(Some(begin.0), |size| size.checked_mul(factor));
    let sizes = sizes.take_while(|&size| size < end.0).chain([end.0]);
    let too_large = |_| BenchError::TooLarge { size: end };
    let count = |size: u64| usize::try_from(size).map(|size| (size / element).max(1)).map_err(too_large);
    let mut counts = sizes.map(count).collect::<Result<Vec<_>, _>>()?;
    counts.dedup();
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_grow_by_the_factor_and_end_with_the_last() {
        assert_eq!(counts(Size(8), Size(128), 4, 4).expect("a range"), [2, 8, 32]);
        assert_eq!(counts(Size(8), Size(100), 4, 4).expect("a range"), [2, 8, 25]);
        let default = counts(Size(8), Size(64 << 20), 4, 4).expect("a range");
        assert_eq!((default.len(), default.last()), (13, Some(&(16 << 20))));
    }

    #[test]
    fn a_size_below_one_element_is_one_element_once() {
        assert_eq!(counts(Size(1), Size(16), 2, 8).expect("a range"), [1, 2]);
    }

    #[test]
    fn sizes_do_not_overflow() {
        let all = counts(Size(1), Size(u64::MAX), 2, 1).expect("a range");
        assert_eq!(all.len(), 65);
    }

    #[test]
    fn an_empty_range_is_a_typed_error() {
        for (begin, end) in [(0, 8), (16, 8)] {
            let error = counts(Size(begin), Size(end), 2, 4).expect_err("no range");
            assert!(matches!(error, BenchError::Range { .. }), "{error}");
        }
    }

    #[test]
    fn bus_factors_are_those_of_nccl_tests() {
        let all_reduce = Subject::AllReduce(ReduceOp::Sum);
        assert_eq!(all_reduce.bus_factor(1), 0.0);
        assert_eq!(all_reduce.bus_factor(2), 1.0);
        assert_eq!(all_reduce.bus_factor(4), 1.5);
        assert_eq!(Subject::Broadcast { root: 0 }.bus_factor(4), 1.0);
    }
}
