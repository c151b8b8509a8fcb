//! The work that the arguments amount to: equal on all ranks, since all have the same arguments.

use std::path::PathBuf;
use std::time::Duration;

use qpair::collectives::Algorithm;
use qpair::collectives::tune::{self, Tuning};
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
    /// The sizes, unless there are no elements.
    pub sizes: Option<Sizes>,
    /// Operations before the timed ones.
    pub warmup: u64,
    /// How often an operation is timed.
    pub effort: Effort,
    /// Where algorithms give way to each other.
    pub tuning: Tuning,
    /// Whether results are checked.
    pub check: bool,
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
            eager: settings.eager.map_or(default.eager, |size| size.0),
            deterministic: settings.deterministic,
            ..default
        };
        let (algorithms, compare) = algorithms(&parts)?;
        Ok(Workload {
            operation,
            kinds: kinds(&parts)?,
            root: parts.root.map(|args| args.root),
            placements: placements(operation, vectors)?,
            algorithms,
            compare,
            sizes: vectors.map(Sizes::new).transpose()?,
            warmup: settings.warmup,
            effort: settings.iters.map_or(Effort::Time(settings.time.0), Effort::Operations),
            tuning,
            check: vectors.is_some_and(|vectors| vectors.check || !vectors.no_check),
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

    /// How many measurements there are.
    pub fn measurements(&self, ranks: usize) -> usize {
        let counts: usize = self.kinds.iter().map(|&(dtype, _)| self.counts(dtype, ranks).len()).sum();
        counts * self.algorithms.len() * self.placements.len()
    }

    /// The algorithm that runs where that is asked for.
    pub fn algorithm(&self, asked: Algorithm, call: &Call, ranks: usize) -> Algorithm {
        tune::choose(&self.operation.spec(call, 0, ranks), &self.tuning, asked).unwrap_or(asked)
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
        Some(&algorithm) => Err(BenchError::Algorithm { algorithm, operation }),
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
