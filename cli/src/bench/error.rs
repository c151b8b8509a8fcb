//! What can go wrong in a benchmark.

use std::path::PathBuf;

use qpair::collectives::tune::KeepError;
use qpair::collectives::{Algorithm, BootstrapError, CollectiveError};
use qpair::verbs::calc::{DataType, ReduceOp};
use thiserror::Error;

use super::args;
use super::operation::{Operation, Placement, op_name};
use crate::output::{self, PrintError, WriteError};
use crate::ranks::{JobError, RankEnd};
use crate::size::Size;

/// A benchmark that did not run to its end, or found wrong results.
#[derive(Debug, Error)]
pub enum BenchError {
    /// The local ranks could not be started, or one failed.
    #[error(transparent)]
    Job(#[from] JobError),
    /// A GPU is not to be had.
    #[error(transparent)]
    Gpu(#[from] qpair::verbs::GpuError),
    /// There is no size to measure.
    #[error("there is no size from {begin} to {end}; begin with at least 1 byte, and not beyond the end")]
    Range {
        /// The first size.
        begin: Size,
        /// The last size.
        end: Size,
    },
    /// Not addressable on this machine.
    #[error("{size} bytes are more than this machine can address; end with a smaller size")]
    TooLarge {
        /// The size.
        size: Size,
    },
    /// The root is no rank.
    #[error("there is no rank {root} among {ranks}; give --root a number from 0 to {}", ranks - 1)]
    NoSuchRoot {
        /// The root asked for.
        root: usize,
        /// Number of ranks.
        ranks: usize,
    },
    /// The sizes do not grow, or there are too many.
    #[error("steps of {step} bytes are none, or more than {most}; give larger --step-bytes, or a --factor instead")]
    Step {
        /// From one size to the next.
        step: Size,
        /// The most steps there may be.
        most: u64,
    },
    /// The algorithm does another operation.
    #[error(
        "{algorithm} is no algorithm for {}; choose {}of: {}", operation.name(),
        if *compare { "" } else { "auto, all, or " }, args::names(*operation)
    )]
    Algorithm {
        /// The algorithm asked for.
        algorithm: Algorithm,
        /// The operation.
        operation: Operation,
        /// Whether it was to be compared, as `auto` can not be.
        compare: bool,
    },
    /// The environment names an algorithm, or a plan, which is used instead.
    #[error(
        "the environment has {algorithm} used instead of {asked}; unset QPAIR_ALGORITHM and QPAIR_PLANS, or leave --algorithm \
         and --compare out"
    )]
    Overridden {
        /// The algorithm asked for.
        asked: Algorithm,
        /// What would run.
        algorithm: Algorithm,
    },
    /// A launcher decides about that.
    #[error("{option} is for ranks that this program starts itself, and a launcher has started this one; {hint}")]
    OfLauncher {
        /// The option.
        option: &'static str,
        /// What to do instead.
        hint: &'static str,
    },
    /// The automatic choice can not be compared with what it chooses from.
    #[error("what auto takes is marked among the others; leave auto out of --algorithm")]
    AutoCompared,
    /// The operation is not for elements of that type.
    #[error(
        "{} is not for {dtype}; {}", op_name(Some(*op)),
        if matches!(op, ReduceOp::PreMulSum(_)) { "give a whole number that it holds" } else { "give an integer --dtype" }
    )]
    Unsupported {
        /// How elements are to be combined.
        op: ReduceOp,
        /// Their type.
        dtype: DataType,
    },
    /// Communicators have the operation otherwise only.
    #[error("{} is not done {}; leave --placement out", operation.name(), asked.name())]
    Placement {
        /// What was asked for.
        asked: Placement,
        /// The operation.
        operation: Operation,
    },
    /// The picture could not be drawn.
    #[error("can not draw {}: {reason}", path.display())]
    Plot {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The picture could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// All values are 0.
    #[error("there is no busbw to plot with 1 rank, which sends nothing; give -n at least 2")]
    NothingToPlot,
    /// What is measured is nothing that communicators could choose by.
    #[error("there is nothing to --keep of that: {hint}")]
    NothingToKeep {
        /// Why, and what to do.
        hint: &'static str,
    },
    /// What was measured can not be kept.
    #[error(transparent)]
    Keep(#[from] KeepError),
    /// The arguments and the launcher disagree.
    #[error(
        "-n {asked} was given, but a launcher started {launched} ranks; leave -n out, or start it without a launcher"
    )]
    RankCount {
        /// What the arguments say.
        asked: u32,
        /// What the launcher says.
        launched: u32,
    },
    /// A launcher's variables are there, but make no sense.
    #[error("{0}; or unset RANK and WORLD_SIZE, or what another launcher has set, to start local ranks")]
    Environment(BootstrapError),
    /// The results of an operation are not known here.
    #[error("results of {0} can not be checked; give --no-check")]
    NotCheckable(String),
    /// A type that the benchmark does not know.
    #[error("vectors of {0} can not be measured; choose another --dtype")]
    NotMeasurable(DataType),
    /// The ranks did not find each other.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// An operation failed.
    #[error("{what}: {source}")]
    Collective {
        /// The operation.
        what: String,
        /// Why.
        source: CollectiveError,
    },
    /// Results were wrong.
    #[error("{wrong} elements were wrong, in {failed} of {measured} measurements; look for #wrong, or `wrong` in JSON")]
    Wrong {
        /// Number of wrong elements, of all ranks.
        wrong: u64,
        /// Measurements in which there were some.
        failed: usize,
        /// Measurements in all.
        measured: usize,
    },
    /// The table could not be printed.
    #[error(transparent)]
    Print(#[from] PrintError),
}

impl BenchError {
    /// What the command shall exit with: 2 where the arguments are to blame.
    pub fn exit_code(&self) -> u8 {
        match self {
            BenchError::Job(error) => error.exit_code(),
            BenchError::Range { .. }
            | BenchError::TooLarge { .. }
            | BenchError::NoSuchRoot { .. }
            | BenchError::Step { .. }
            | BenchError::Algorithm { .. }
            | BenchError::AutoCompared
            | BenchError::Overridden { .. }
            | BenchError::OfLauncher { .. }
            | BenchError::Unsupported { .. }
            | BenchError::Placement { .. }
            | BenchError::NothingToPlot
            | BenchError::NothingToKeep { .. }
            | BenchError::RankCount { .. }
            | BenchError::Environment(_) => 2,
            _ => 1,
        }
    }

    /// Whether standard output was closed by who read it, here or in rank 0.
    pub fn is_closed_output(&self) -> bool {
        match self {
            BenchError::Print(error) => error.is_closed(),
            BenchError::Job(JobError::RankFailed { end, .. }) => {
                *end == RankEnd::Exited(output::CLOSED_EXIT_CODE.into())
            }
            _ => false,
        }
    }
}
