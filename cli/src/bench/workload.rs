//! The work that the arguments amount to: equal on all ranks, since all have the same arguments.

use std::path::PathBuf;
use std::time::Duration;

use qpair::collectives::Algorithm;
use qpair::collectives::tune::{Case, Tuner, Tuning};
use qpair::verbs::calc::{DataType, ReduceOp};

use super::args::{BenchCommand, Parts, VectorArgs};
use super::error::BenchError;
use super::operation::{Call, Operation, Placement};
use super::sizes::Sizes;
use super::wanted::{Root, Wanted};

/// What a rank shall measure.
#[derive(Clone, Debug)]
pub struct Workload {
    /// What is measured.
    pub operation: Operation,
    /// Element types, each with how elements are combined, if they are.
    pub kinds: Vec<Kind>,
    /// The root, where there is one.
    pub root: Option<Root>,
    /// Where results go.
    pub placements: Vec<Placement>,
    /// The algorithms, or that the library chooses.
    pub algorithms: Vec<Algorithm>,
    /// Whether they are compared with each other.
    pub compare: bool,
    /// Whether the fastest of them is kept for communicators.
    pub keep: bool,
    /// The sizes, unless there are no elements.
    pub sizes: Option<Sizes>,
    /// Operations before the timed ones.
    pub warmup: u64,
    /// How often an operation is timed.
    pub effort: Effort,
    /// How algorithms are chosen: by the default cost model until there is a communicator.
    pub tuner: Tuner,
    /// Whether results are checked.
    pub check: bool,
    /// Whether the vectors are in memory of a GPU.
    pub gpu: bool,
    /// Whether to print JSON.
    pub json: bool,
    /// The file to draw into.
    pub plot: Option<PathBuf>,
    /// Whether whoever started this process looks at a terminal.
    pub progress: bool,
}

/// What the elements are, and how they are combined, if they are.
pub type Kind = (DataType, Option<ReduceOp>);

/// How often an operation is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// So many times.
    Operations(u64),
    /// As often as fits this time.
    Time(Duration),
}

impl Workload {
    /// Checks the arguments against each other.
    ///
    /// # Errors
    /// [`BenchError`] that says which do not fit.
    pub fn new(command: &BenchCommand) -> Result<Self, BenchError> {
        let parts = command.parts();
        let Parts { operation, settings, vectors, .. } = parts;
        let default = Tuning::default();
        let tuning = Tuning {
            segment: settings.segment.map_or(default.segment, |size| size.0),
            eager: settings.eager.map(|size| size.0),
            deterministic: settings.deterministic,
        };
        let (algorithms, compare) = algorithms(&parts)?;
        let kinds = kinds(&parts)?;
        let keep = keeps(&parts, &kinds, &algorithms)?;
        Ok(Workload {
            operation,
            root: parts.root.map(|args| args.root),
            placements: placements(operation, vectors)?,
            algorithms,
            compare,
            keep,
            kinds,
            sizes: vectors.map(Sizes::new).transpose()?,
            warmup: settings.warmup,
            effort: settings.iters.map_or(Effort::Time(settings.time.0), Effort::Operations),
            tuner: Tuner { tuning, ..Tuner::default() },
            check: vectors.is_some_and(|vectors| vectors.check || !vectors.no_check),
            gpu: vectors.is_some_and(|vectors| vectors.gpu),
            json: settings.json,
            plot: vectors.and_then(|vectors| vectors.plot.clone()),
            progress: settings.progress,
        })
    }

    /// Whether the root is a rank.
    ///
    /// # Errors
    /// [`BenchError::NoSuchRoot`] if not.
    pub fn check_root(&self, ranks: usize) -> Result<(), BenchError> {
        match self.root {
            Some(Root::Rank(root)) if root >= ranks => Err(BenchError::NoSuchRoot { root, ranks }),
            _ => Ok(()),
        }
    }

    /// The counts of elements to measure, in ascending order: of the vector, or of each block.
    pub fn counts(&self, dtype: DataType, ranks: usize) -> Vec<usize> {
        let blocks = self.operation.blocks(ranks);
        self.sizes.as_ref().map_or_else(|| vec![0], |sizes| sizes.counts(dtype.size() * blocks))
    }

    /// How many times are taken, of which the median counts: one of so many operations, else enough that a rank which has to
    /// wait for a core now and then does not decide; where algorithms are compared, which may be nearly alike, more of them.
    pub fn turns(&self) -> usize {
        match self.effort {
            Effort::Operations(_) => 1,
            Effort::Time(_) if self.compare => TURNS_COMPARED,
            Effort::Time(_) => TURNS,
        }
    }

    /// How many measurements there are.
    pub fn measurements(&self, ranks: usize) -> usize {
        let counts: usize = self.kinds.iter().map(|&(dtype, _)| self.counts(dtype, ranks).len()).sum();
        counts * self.algorithms.len() * self.placements.len()
    }

    /// Whether communicators could choose by what is measured, where it is to be kept.
    ///
    /// # Errors
    /// [`BenchError::NothingToKeep`] if not.
    pub fn check_kept(&self, ranks: usize) -> Result<(), BenchError> {
        let spec = self.operation.spec(&Call::default(), 0, ranks);
        match Case::of(&spec, &self.tuner.seats, &self.tuner.model, Algorithm::Auto) {
            None if self.keep => Err(BenchError::NothingToKeep { hint: "start as many ranks on each node" }),
            _ => Ok(()),
        }
    }

    /// The algorithm that is chosen where none is asked for.
    pub fn chosen(&self, call: &Call, ranks: usize) -> Algorithm {
        self.tuner.choose(&self.operation.spec(call, 0, ranks), Algorithm::Auto).unwrap_or_default()
    }
}

/// Whether the fastest algorithm is kept for communicators.
fn keeps(parts: &Parts<'_>, kinds: &[Kind], algorithms: &[Algorithm]) -> Result<bool, BenchError> {
    let refused = |hint| Err(BenchError::NothingToKeep { hint });
    match parts.vectors {
        _ if !parts.settings.keep => Ok(false),
        _ if parts.operation == Operation::AllToAllV => {
            refused("no two of them have the same lengths; keep all-to-all")
        }
        Some(vectors) if vectors.gpu => {
            refused("what is kept is for vectors in the processor's memory; leave --gpu out")
        }
        _ if parts.operation.algorithms().iter().any(|algorithm| !algorithms.contains(algorithm)) => {
            refused("only all algorithms together show which is the fastest; leave --algorithm out")
        }
        _ if kinds.len() > 1 => refused("sizes count, whatever their elements are; give one --dtype and one --op"),
        _ => Ok(true),
    }
}

/// The algorithms, and whether they are compared.
fn algorithms(parts: &Parts<'_>) -> Result<(Vec<Algorithm>, bool), BenchError> {
    let (operation, there) = (parts.operation, parts.operation.algorithms());
    let asked = match &parts.settings.algorithm {
        Wanted::All => return Ok((there, true)),
        Wanted::These(asked) => asked.clone(),
    };
    if parts.settings.compare && asked == [Algorithm::Auto] {
        return Ok((there, true));
    }
    let compare = parts.settings.compare || asked.len() > 1;
    let is_none = |named: &&Algorithm| !there.contains(named) && (compare || **named != Algorithm::Auto);
    match asked.iter().find(is_none) {
        Some(&Algorithm::Auto) => Err(BenchError::AutoCompared),
        Some(&algorithm) => Err(BenchError::Algorithm { algorithm, operation, compare }),
        None => Ok((asked, compare)),
    }
}

/// The types with the operations that are for them. Where all are asked for, those that do not fit are left out.
fn kinds(parts: &Parts<'_>) -> Result<Vec<Kind>, BenchError> {
    let types = match parts.vectors.map(|vectors| &vectors.dtype) {
        None => return Ok(vec![(Call::default().dtype, None)]),
        Some(Wanted::All) => DataType::ALL.to_vec(),
        Some(Wanted::These(types)) => types.clone(),
    };
    let ops = match parts.op.map(|args| &args.op) {
        None => return Ok(types.into_iter().map(|dtype| (dtype, None)).collect()),
        Some(Wanted::All) => ReduceOp::ALL.to_vec(),
        Some(Wanted::These(ops)) => ops.clone(),
    };
    let all_types = parts.vectors.is_some_and(|vectors| vectors.dtype == Wanted::All);
    let all_ops = parts.op.is_some_and(|args| args.op == Wanted::All);
    let mut kinds = Vec::new();
    for &dtype in &types {
        for &op in &ops {
            if op.supports(dtype) {
                kinds.push((dtype, Some(op)));
            } else if !all_types && !all_ops {
                return Err(BenchError::Unsupported { op, dtype });
            }
        }
    }
    Ok(kinds)
}

fn placements(operation: Operation, vectors: Option<&VectorArgs>) -> Result<Vec<Placement>, BenchError> {
    let there = operation.placements();
    match vectors.and_then(|vectors| vectors.placement) {
        None => Ok(there.to_vec()),
        Some(asked) if there.contains(&asked) => Ok(vec![asked]),
        Some(asked) => Err(BenchError::Placement { asked, operation }),
    }
}

const TURNS: usize = 9;
const TURNS_COMPARED: usize = 25;

#[cfg(test)]
pub(super) mod tests {
    use clap::Parser;

    use super::*;

    /// The workload of a command line, for tests.
    pub(in super::super) fn parsed(line: &str) -> Result<Workload, BenchError> {
        #[derive(Parser)]
        struct Command {
            #[command(subcommand)]
            command: BenchCommand,
        }
        let args = std::iter::once("bench").chain(line.split(' '));
        Workload::new(&Command::try_parse_from(args).expect("arguments").command)
    }

    #[test]
    fn all_types_and_operations_are_those_that_fit() {
        let kinds = |line| parsed(line).expect("it fits").kinds;
        let all = kinds("reduce --dtype all --op all");
        assert_eq!(all.len(), 6 * 11 + 6 * 5);
        assert!(all.iter().all(|(dtype, op)| op.is_some_and(|op| op.supports(*dtype))));
        assert_eq!(kinds("reduce --dtype all --op band").len(), 6);
        assert_eq!(kinds("reduce --dtype f16,i8 --op all").len(), 5 + 11);
        assert_eq!(kinds("gather --dtype all").len(), 12);
        let error = parsed("reduce --dtype f16,i8 --op band").expect_err("not for floats");
        assert!(matches!(error, BenchError::Unsupported { op: ReduceOp::BitAnd, dtype: DataType::F16 }), "{error}");
    }

    #[test]
    fn several_algorithms_are_compared() {
        let of = |line| parsed(line).map(|workload| (workload.algorithms.len(), workload.compare));
        assert_eq!(of("barrier").expect("auto"), (1, false));
        assert_eq!(of("barrier --algo exchange").expect("one"), (1, false));
        assert_eq!(of("barrier --algo exchange --compare").expect("one"), (1, true));
        assert_eq!(of("barrier --algo exchange,dissemination").expect("two"), (2, true));
        assert_eq!(of("barrier --compare").expect("all"), of("barrier --algo all").expect("all"));
        assert!(matches!(of("barrier --algo auto,exchange"), Err(BenchError::AutoCompared)));
        assert!(matches!(of("barrier --algo ring"), Err(BenchError::Algorithm { .. })));
    }

    #[test]
    fn sizes_are_those_of_all_blocks_together() {
        let workload = parsed("all-gather -b 8 -e 4K -f 8").expect("it fits");
        assert_eq!(workload.counts(DataType::F32, 3), [1, 5, 42, 341]);
        assert_eq!(workload.measurements(3), 2 * 4);
        let workload = parsed("broadcast -b 8 -e 4K -f 8").expect("it fits");
        assert_eq!(workload.counts(DataType::F32, 3), [2, 16, 128, 1024]);
    }

    #[test]
    fn the_automatic_choice_follows_the_size() {
        let workload = parsed("all-reduce").expect("it fits");
        let choice = |count| {
            let call = Call { dtype: DataType::F32, op: Some(ReduceOp::Sum), count, ..Call::default() };
            workload.chosen(&call, 4)
        };
        assert_ne!(choice(1), choice(1 << 20));
    }
}
