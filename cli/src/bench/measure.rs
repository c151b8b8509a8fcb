//! Times one operation at one size: all ranks do the same number of operations, which the slowest decides.

use std::time::{Duration, Instant};

use qpair::collectives::{Algorithm, CollectiveError, Communicator};
use qpair::verbs::Gpu;
use qpair::verbs::calc::ReduceOp;

use super::error::BenchError;
use super::operation::Call;
use super::pattern::Pattern;
use super::scalar::Scalar;
use super::vectors::Vectors;
use super::workload::{Effort, Workload};

/// One rank's side of the measurements.
#[derive(Debug)]
pub struct Meter<'a, T: Scalar> {
    comm: &'a Communicator,
    workload: &'a Workload,
    pattern: Option<Pattern<T>>,
    /// Where vectors are, if not in the processor's memory.
    gpu: Option<Gpu>,
}

/// The measurement of one operation at one size, equal on all ranks.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// What was called. The root is the first of them, if there are several.
    pub call: Call,
    /// The algorithm that was asked for.
    pub asked: Algorithm,
    /// The algorithm that ran.
    pub algorithm: Algorithm,
    /// Seconds that one operation took on the slowest rank, on average over a turn: the median of the turns.
    pub seconds: f64,
    /// The same of the fastest turn, and of the slowest.
    pub spread: [f64; 2],
    /// Operations that were timed.
    pub operations: u64,
    /// Wrong elements on all ranks, where more were wrong of before and after the timing; `None` if they were not checked.
    pub wrong: Option<u64>,
}

/// What one algorithm did so far, on this rank.
#[derive(Debug)]
struct Timing {
    asked: Algorithm,
    algorithm: Algorithm,
    /// Operations in a turn.
    each: u64,
    wrong: u64,
    /// Of an operation, in each turn.
    seconds: Vec<f64>,
}

impl<'a, T: Scalar> Meter<'a, T> {
    /// For elements that are combined so, if they are, in memory of the GPU, if there is one.
    ///
    /// # Errors
    /// [`BenchError::NotCheckable`] if results shall be checked and are not known.
    pub fn new(
        comm: &'a Communicator,
        workload: &'a Workload,
        op: Option<ReduceOp>,
        gpu: Option<Gpu>,
    ) -> Result<Self, BenchError> {
        let pattern = if workload.check {
            let known = Pattern::new(workload.operation, op, comm.rank(), comm.size());
            Some(known.ok_or_else(|| BenchError::NotCheckable(format!("{op:?}")))?)
        } else {
            None
        };
        Ok(Meter { comm, workload, pattern, gpu })
    }

    /// Measures an operation by each of the algorithms, and checks the results before and after timing. They take turns on the same
    /// vectors: what memory lies where, and what else the machine does meanwhile, is the same for all. `step` is called as each of
    /// them is done.
    ///
    /// # Errors
    /// [`BenchError::Collective`] if an operation fails, on this rank or another.
    pub fn measure(&self, call: Call, asked: &[Algorithm], mut step: impl FnMut()) -> Result<Vec<Point>, BenchError> {
        let ranks = self.comm.size();
        let roots = self.workload.root.map_or(0..1, |root| root.ranks(ranks));
        let vectors = Vectors::<T>::new(self.comm, self.workload.operation, call, roots, self.gpu);
        let mut vectors = self.named(&call, vectors)?;
        let turns = self.workload.turns();
        let mut timings = Vec::with_capacity(asked.len());
        for &asked in asked {
            let algorithm = self.choose(&call, asked)?;
            let wrong = self.check(&call, &mut vectors)?;
            self.named(&call, vectors.rest())?;
            self.timed(&call, &mut vectors, self.workload.warmup)?;
            let each = self.operations(&call, &mut vectors)?.div_ceil(turns as u64);
            timings.push(Timing { asked, algorithm, each, wrong, seconds: Vec::with_capacity(turns) });
        }
        for turn in 1..=turns {
            for timing in &mut timings {
                self.choose(&call, timing.asked)?;
                let time = self.timed(&call, &mut vectors, timing.each)?;
                timing.seconds.push(time.as_secs_f64() / timing.each as f64);
                if turn == turns {
                    timing.wrong = timing.wrong.max(self.check(&call, &mut vectors)?);
                    self.named(&call, vectors.rest())?;
                    step();
                }
            }
        }
        timings.into_iter().map(|timing| self.point(call, timing)).collect()
    }

    /// Uses an algorithm from now on, and says which that is.
    fn choose(&self, call: &Call, asked: Algorithm) -> Result<Algorithm, BenchError> {
        // What earlier ones asked for does not stay.
        self.comm.set_algorithm(Algorithm::Auto);
        self.comm.set_algorithm(asked);
        let spec = self.workload.operation.spec(call, 0, self.comm.size());
        let algorithm = self.comm.algorithm(&spec, self.gpu.is_some()).unwrap_or(asked);
        if asked != Algorithm::Auto && algorithm != asked {
            return Err(BenchError::Overridden { asked, algorithm });
        }
        Ok(algorithm)
    }

    /// What the times of all ranks amount to.
    fn point(&self, call: Call, timing: Timing) -> Result<Point, BenchError> {
        let Timing { asked, algorithm, each, wrong, mut seconds } = timing;
        let turns = seconds.len();
        combine(self.comm, &mut seconds, ReduceOp::Max)?;
        seconds.sort_by(f64::total_cmp);
        let (spread, seconds) = ([seconds[0], seconds[turns - 1]], seconds[turns / 2]);
        let operations = each * turns as u64;
        let wrong = over_ranks(self.comm, wrong as f64, ReduceOp::Sum)? as u64;
        let wrong = self.workload.check.then_some(wrong);
        Ok(Point { call, asked, algorithm, seconds, spread, operations, wrong })
    }

    /// Wrong elements on this rank, of one operation with each root on fresh input.
    fn check(&self, call: &Call, vectors: &mut Vectors<'_, T>) -> Result<u64, BenchError> {
        let Some(pattern) = &self.pattern else { return Ok(0) };
        let wrong = (0..vectors.roots()).map(|root| vectors.check(pattern, root)).sum();
        self.named(call, wrong)
    }

    fn timed(&self, call: &Call, vectors: &mut Vectors<'_, T>, operations: u64) -> Result<Duration, BenchError> {
        self.named(call, self.comm.barrier())?;
        let start = Instant::now();
        for _ in 0..operations {
            self.named(call, vectors.operate_next())?;
        }
        Ok(start.elapsed())
    }

    /// How often to operate so that the time is used: trials grow until one takes a fair part of it.
    fn operations(&self, call: &Call, vectors: &mut Vectors<'_, T>) -> Result<u64, BenchError> {
        let budget = match self.workload.effort {
            Effort::Operations(operations) => return Ok(operations),
            Effort::Time(budget) => budget.as_secs_f64(),
        };
        let mut trial = 1;
        let mut each = f64::INFINITY;
        loop {
            let own = self.timed(call, vectors, trial)?.as_secs_f64();
            // All ranks must come to the same decision.
            let seconds = over_ranks(self.comm, own, ReduceOp::Max)?.max(1e-9);
            // A trial that was interrupted tells nothing.
            each = each.min(seconds / trial as f64);
            let fitting = (budget / each) as u64;
            if seconds * TRIAL_PART >= budget || trial >= MAX_OPERATIONS {
                return Ok(fitting.clamp(1, MAX_OPERATIONS));
            }
            trial = (fitting / TRIAL_PART as u64).clamp(trial * 2, trial * 32).min(MAX_OPERATIONS);
        }
    }

    fn named<R>(&self, call: &Call, done: Result<R, CollectiveError>) -> Result<R, BenchError> {
        let what = || format!("{} of {} elements", self.workload.operation.name(), call.count);
        done.map_err(|source| BenchError::Collective { what: what(), source })
    }
}

/// Whether it holds on any rank.
///
/// # Errors
/// [`BenchError::Collective`].
pub fn on_any(comm: &Communicator, here: bool) -> Result<bool, BenchError> {
    Ok(over_ranks(comm, f64::from(u8::from(here)), ReduceOp::Max)? != 0.0)
}

/// A number combined over all ranks.
fn over_ranks(comm: &Communicator, value: f64, op: ReduceOp) -> Result<f64, BenchError> {
    let mut cell = [value];
    combine(comm, &mut cell, op)?;
    Ok(cell[0])
}

/// Combines numbers over all ranks, each with those at its place.
fn combine(comm: &Communicator, values: &mut [f64], op: ReduceOp) -> Result<(), BenchError> {
    let all = |values: &mut [f64]| -> Result<(), CollectiveError> {
        let mut cells = comm.buffer::<f64>(values.len())?;
        cells.copy_from_slice(values);
        comm.all_reduce(&mut cells, op)?;
        values.copy_from_slice(&cells);
        Ok(())
    };
    let what = format!("all-reduce of {} elements", values.len());
    all(values).map_err(|source| BenchError::Collective { what, source })
}

/// A trial shall take at least this part of the time.
const TRIAL_PART: f64 = 8.0;
/// More than any time allows.
const MAX_OPERATIONS: u64 = 1_000_000_000_000;
