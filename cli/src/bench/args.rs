//! Arguments of the benchmarks.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use qpair::collectives::Algorithm;
use qpair::verbs::calc::{DataType, ReduceOp};

use super::operation::{Operation, Placement};
use super::wanted::{Root, Wanted, algorithms, operations};
use crate::period::Period;
use crate::size::Size;

/// Times collectives over a range of sizes and checks every result.
///
/// Sizes and columns are those of nccl-tests: the size is that of all blocks together, the count that of one rank's block;
/// time of one operation on the slowest rank, algbw = size / time, and busbw, which counts the bytes that the links carry
/// (all-reduce: algbw x 2(n-1)/n), in units of 10^9 B/s; out of place and in place where the operation has both. Arguments go by
/// the names of nccl-tests too, but for two letters: -n is the number of ranks here, --iters that of operations, and -d the
/// device, --datatype the type.
///
/// Without a launcher it starts its own ranks on this machine; under `qpair launch`, torchrun, mpirun or srun it is one of them.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  qpair bench all-reduce                      4 local ranks, 8 B to 64 MiB
  qpair bench all-reduce -n 2 -b 1K -e 1M -f 2
  qpair bench all-reduce --compare            every algorithm, and how well the choice is made
  qpair bench all-reduce --dtype f64 --op max --json
  qpair bench all-to-all --plot busbw.svg
  qpair launch -n 4 -- qpair bench all-reduce")]
pub enum BenchCommand {
    /// Combines the vectors of all ranks and gives each the result
    #[command(after_help = help(Operation::AllReduce, &["", "-n 2 -b 1K -e 1M -f 2", "--dtype f64 --op max --json",
        "--dtype all --op all -e 4K", "--compare -n 8 --plot all-reduce.svg"]))]
    AllReduce(ReducingArgs),
    /// Combines the vectors of all ranks and gives each its block of the result
    #[command(after_help = help(Operation::ReduceScatter, &["", "-n 3 --dtype bf16 --op avg", "--compare"]))]
    ReduceScatter(ReducingArgs),
    /// Gives each rank the blocks of all
    #[command(after_help = help(Operation::AllGather, &["", "-n 8 -e 1M", "--compare"]))]
    AllGather(PlainArgs),
    /// Gives block b of rank a to rank b
    #[command(after_help = help(Operation::AllToAll, &["", "-n 8 -e 1M", "--compare"]))]
    AllToAll(PlainArgs),
    /// Gives each rank a block of another length: a rank gives others the more the further they are
    #[command(name = "all-to-all-v",
        after_help = help(Operation::AllToAllV, &["", "-n 8 -e 1M", "--compare"]))]
    AllToAllV(PlainArgs),
    /// Copies the vector of one rank to all others
    #[command(after_help = help(Operation::Broadcast, &["", "-n 3 --root 2 -e 1M", "--compare"]))]
    Broadcast(RootedArgs),
    /// Combines the vectors of all ranks and gives the result to one
    #[command(after_help = help(Operation::Reduce, &["", "-n 3 --root all --op min", "--compare"]))]
    Reduce(ReducingRootedArgs),
    /// Gives each rank its block of the vector of one
    #[command(after_help = help(Operation::Scatter, &["", "-n 3 --root 2 -e 1M", "--compare"]))]
    Scatter(RootedArgs),
    /// Gives one rank the blocks of all
    #[command(after_help = help(Operation::Gather, &["", "-n 3 --root 2 -e 1M", "--compare"]))]
    Gather(RootedArgs),
    /// Waits until all ranks have come
    #[command(after_help = help(Operation::Barrier, &["", "-n 8 --time 1", "--compare"]))]
    Barrier(BarrierArgs),
}

/// Arguments of operations that combine elements.
#[derive(Debug, Args)]
pub struct ReducingArgs {
    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    vectors: VectorArgs,
    #[command(flatten)]
    op: OpArgs,
}

/// Arguments of operations that combine elements at a root.
#[derive(Debug, Args)]
pub struct ReducingRootedArgs {
    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    vectors: VectorArgs,
    #[command(flatten)]
    op: OpArgs,
    #[command(flatten)]
    root: RootArgs,
}

/// Arguments of operations that move elements from or to a root.
#[derive(Debug, Args)]
pub struct RootedArgs {
    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    vectors: VectorArgs,
    #[command(flatten)]
    root: RootArgs,
}

/// Arguments of operations that move elements.
#[derive(Debug, Args)]
pub struct PlainArgs {
    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    vectors: VectorArgs,
}

/// Arguments of the barrier.
#[derive(Debug, Args)]
pub struct BarrierArgs {
    #[command(flatten)]
    settings: Settings,
}

/// How elements are combined.
#[derive(Debug, Args)]
pub struct OpArgs {
    /// Operation, or several with commas: sum, prod, min, max, avg, premul:FACTOR (a sum of multiples); of integers also
    /// land, lor, lxor, band, bor or bxor; or all
    #[arg(short, long, value_name = "OP", default_value = "sum", value_parser = operations)]
    pub op: Wanted<ReduceOp>,
}

/// From where, or to where.
#[derive(Debug, Args)]
pub struct RootArgs {
    /// The rank that has the vector, or gets the result; all: one after the other
    #[arg(short, long, value_name = "RANK", default_value = "0")]
    pub root: Root,
}

/// What operations on vectors have in common.
#[derive(Debug, Args)]
pub struct VectorArgs {
    /// Smallest size in bytes; takes K, M, G
    #[arg(short, long, visible_alias = "minbytes", value_name = "SIZE", default_value = "8")]
    pub begin: Size,
    /// Greatest size in bytes, always measured; takes K, M, G
    #[arg(short, long, visible_alias = "maxbytes", value_name = "SIZE", default_value = "64M")]
    pub end: Size,
    /// Each size is this many times the one before
    #[arg(short, long, visible_alias = "stepfactor", value_name = "N", default_value_t = 4,
        value_parser = clap::value_parser!(u64).range(2..))]
    pub factor: u64,
    /// Each size is so many bytes more than the one before; takes K, M, G
    #[arg(short = 'i', long, visible_alias = "stepbytes", value_name = "SIZE", conflicts_with = "factor")]
    pub step_bytes: Option<Size>,
    /// Type of the elements, or several with commas: f64, f32, f16, bf16, f8e4m3, f8e5m2, or i or u with 8, 32 or 64; or
    /// all
    #[arg(long, visible_alias = "datatype", value_name = "TYPE", default_value = "f32")]
    pub dtype: Wanted<DataType>,
    /// Where results go: into another vector, or the one that is given [default: both, where the operation has both]
    #[arg(long, value_name = "WHERE")]
    pub placement: Option<Placement>,
    /// Keep the vectors in memory of a GPU: ranks of one host take its GPUs in turn
    #[arg(short, long)]
    pub gpu: bool,
    /// Draw busbw over size into this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Check every result, bit by bit (the default)
    #[arg(long, overrides_with = "no_check")]
    pub check: bool,
    /// Do not check results
    #[arg(long)]
    pub no_check: bool,
}

/// What all benchmarks have in common.
#[derive(Debug, Args)]
pub struct Settings {
    /// Number of local ranks [default: 4, or what a launcher says]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub ranks: Option<u32>,
    /// Timed operations per measurement [default: as many as --time allows]
    #[arg(long, visible_alias = "iterations", value_name = "N", conflicts_with = "time",
        value_parser = clap::value_parser!(u64).range(1..))]
    pub iters: Option<u64>,
    /// Time to spend on each measurement, of an algorithm at one size in one placement: 1, 200ms
    #[arg(long, value_name = "TIME", default_value = "200ms")]
    pub time: Period,
    /// Operations before the timed ones, per measurement
    #[arg(short, long, visible_alias = "warmup_iters", value_name = "N", default_value_t = 3)]
    pub warmup: u64,
    /// Algorithm; auto goes by size and number of ranks. Several with commas, or all, are compared
    #[arg(long, visible_alias = "algo", value_name = "NAME", default_value = "auto", value_parser = algorithms)]
    pub algorithm: Wanted<Algorithm>,
    /// Compare all algorithms: a table of their times, with the best and the automatic choice marked
    #[arg(long)]
    pub compare: bool,
    /// With --compare: keep which algorithm was the fastest at each size. Programs that start from then on choose it at such sizes, in
    /// communicators of as many ranks on as many nodes and cores, with rails as fast
    #[arg(long, requires = "compare", conflicts_with_all = ["deterministic", "segment", "eager"])]
    pub keep: bool,
    /// Size of the segments in which long vectors go; takes K, M, G [default: the library's]
    #[arg(long, value_name = "SIZE")]
    pub segment: Option<Size>,
    /// Longest message of a plan up to which its messages are copied instead of going from memory to memory; takes K, M, G [default: the
    /// library's]
    #[arg(long, value_name = "SIZE")]
    pub eager: Option<Size>,
    /// Combine elements in one order, whatever the algorithm, the size and the timing
    #[arg(long)]
    pub deterministic: bool,
    /// Print one JSON object per measurement instead of the table
    #[arg(long)]
    pub json: bool,
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
    /// Show the progress on the terminal, although standard error is none: it goes through the process that started this.
    #[arg(long, hide = true)]
    pub progress: bool,
    /// `qpair bench` itself has started this rank, with the arguments that it had.
    #[arg(long, hide = true)]
    pub spawned: bool,
}

/// The arguments by what they are about. Those that the operation does not take are `None`.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// What is measured.
    pub operation: Operation,
    /// What all take.
    pub settings: &'a Settings,
    /// Sizes, types, placements.
    pub vectors: Option<&'a VectorArgs>,
    /// How elements are combined.
    pub op: Option<&'a OpArgs>,
    /// From or to where.
    pub root: Option<&'a RootArgs>,
}

impl BenchCommand {
    /// The arguments by what they are about.
    pub fn parts(&self) -> Parts<'_> {
        use Operation as O;
        match self {
            Self::AllReduce(args) => args.parts(O::AllReduce),
            Self::ReduceScatter(args) => args.parts(O::ReduceScatter),
            Self::AllGather(args) => args.parts(O::AllGather),
            Self::AllToAll(args) => args.parts(O::AllToAll),
            Self::AllToAllV(args) => args.parts(O::AllToAllV),
            Self::Broadcast(args) => args.parts(O::Broadcast),
            Self::Reduce(ReducingRootedArgs { settings, vectors, op, root }) => {
                Parts { operation: O::Reduce, settings, vectors: Some(vectors), op: Some(op), root: Some(root) }
            }
            Self::Scatter(args) => args.parts(O::Scatter),
            Self::Gather(args) => args.parts(O::Gather),
            Self::Barrier(BarrierArgs { settings }) => {
                Parts { operation: O::Barrier, settings, vectors: None, op: None, root: None }
            }
        }
    }
}

impl ReducingArgs {
    fn parts(&self, operation: Operation) -> Parts<'_> {
        let (settings, vectors) = (&self.settings, Some(&self.vectors));
        Parts { operation, settings, vectors, op: Some(&self.op), root: None }
    }
}

impl PlainArgs {
    fn parts(&self, operation: Operation) -> Parts<'_> {
        Parts { operation, settings: &self.settings, vectors: Some(&self.vectors), op: None, root: None }
    }
}

impl RootedArgs {
    fn parts(&self, operation: Operation) -> Parts<'_> {
        let (settings, vectors) = (&self.settings, Some(&self.vectors));
        Parts { operation, settings, vectors, op: None, root: Some(&self.root) }
    }
}

/// The algorithms there are for an operation, and examples.
fn help(operation: Operation, examples: &[&str]) -> String {
    let name = operation.name();
    let examples = examples.iter().map(|args| format!("  qpair bench {name} {args}").trim_end().to_owned());
    let examples = examples.chain([format!("  qpair launch -n 4 -- qpair bench {name}")]).collect::<Vec<_>>();
    format!("Algorithms: auto, {}\n\nExamples:\n{}", names(operation), examples.join("\n"))
}

/// The names of the algorithms there are for an operation.
pub fn names(operation: Operation) -> String {
    operation.algorithms().into_iter().map(Algorithm::name).collect::<Vec<_>>().join(", ")
}
