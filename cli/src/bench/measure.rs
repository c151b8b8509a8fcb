//! Times one collective at one size: all ranks do the same number of operations, which the slowest decides.

use std::time::{Duration, Instant};

use qpair::collectives::{CollectiveError, CommBuffer, Communicator};
use qpair::verbs::calc::ReduceOp;

use super::args::{Effort, Subject, Workload};
use super::check::{Pattern, Scalar};
use super::error::BenchError;
use super::report::Point;

/// One rank's side of the measurements.
#[derive(Debug)]
pub struct Meter<'a, T: Scalar> {
    comm: &'a Communicator,
    workload: &'a Workload,
    pattern: Option<Pattern<T>>,
}

impl<'a, T: Scalar> Meter<'a, T> {
    /// # Errors
    /// [`BenchError::NotCheckable`] if results shall be checked and are not known.
    pub fn new(comm: &'a Communicator, workload: &'a Workload) -> Result<Self, BenchError> {
        let pattern = if workload.check {
            let known = Pattern::new(workload.subject, comm.rank(), comm.size());
            Some(known.ok_or_else(|| BenchError::NotCheckable(format!("{:?}", workload.subject)))?)
        } else {
            None
        };
        Ok(Meter { comm, workload, pattern })
    }

    /// Measures vectors of `count` elements, and checks the result before and after timing.
    ///
    /// # Errors
    /// [`BenchError::Collective`] if an operation fails, on this rank or another.
    pub fn measure(&self, count: usize) -> Result<Point, BenchError> {
        let mut vector = self.named("allocate", count, self.comm.buffer::<T>(count))?;
        let mut wrong = self.check(&mut vector)?;
        // Zeros and ones stay what they are, however often they are combined.
        let rest = if self.workload.subject == Subject::AllReduce(ReduceOp::Prod) { 1 } else { 0 };
        vector.fill(T::from_small(rest));
        for _ in 0..self.workload.warmup {
            self.operate(&mut vector)?;
        }
        let operations = self.operations(&mut vector)?;
        let own = self.timed(&mut vector, operations)?;
        wrong += self.check(&mut vector)?;
        let seconds = self.over_ranks(own.as_secs_f64(), ReduceOp::Max)? / operations as f64;
        let wrong = self.over_ranks(wrong as f64, ReduceOp::Sum)? as u64;
        Ok(Point { count, seconds, operations, wrong: self.workload.check.then_some(wrong) })
    }

    /// Whether it holds on any rank.
    ///
    /// # Errors
    /// As [`measure`](Meter::measure).
    pub fn on_any(&self, here: bool) -> Result<bool, BenchError> {
        Ok(self.over_ranks(f64::from(u8::from(here)), ReduceOp::Max)? != 0.0)
    }

    fn operate(&self, vector: &mut CommBuffer<T>) -> Result<(), BenchError> {
        let count = vector.len();
        let done = match self.workload.subject {
            Subject::AllReduce(op) => self.comm.all_reduce(vector, op),
            Subject::Broadcast { root } => self.comm.broadcast(vector, root),
        };
        self.named(self.workload.subject.name(), count, done)
    }

    /// Wrong elements on this rank, of one operation on fresh input.
    fn check(&self, vector: &mut CommBuffer<T>) -> Result<u64, BenchError> {
        let Some(pattern) = &self.pattern else { return Ok(0) };
        pattern.fill(vector);
        self.operate(vector)?;
        Ok(pattern.wrong(vector))
    }

    fn timed(&self, vector: &mut CommBuffer<T>, operations: u64) -> Result<Duration, BenchError> {
        self.named("barrier", 0, self.comm.barrier())?;
        let start = Instant::now();
        for _ in 0..operations {
            self.operate(vector)?;
        }
        Ok(start.elapsed())
    }

    /// How often to operate so that the time is used: trials grow until one takes a fair part of it.
    fn operations(&self, vector: &mut CommBuffer<T>) -> Result<u64, BenchError> {
        let budget = match self.workload.effort {
            Effort::Operations(operations) => return Ok(operations),
            Effort::Time(budget) => budget.as_secs_f64(),
        };
        let mut trial = 1;
        let mut each = f64::INFINITY;
        loop {
            let own = self.timed(vector, trial)?.as_secs_f64();
            // All ranks must come to the same decision.
            let seconds = self.over_ranks(own, ReduceOp::Max)?.max(1e-9);
            // A trial that was interrupted tells nothing.
            each = each.min(seconds / trial as f64);
            let fitting = (budget / each) as u64;
            if seconds * TRIAL_PART >= budget || trial >= MAX_OPERATIONS {
                return Ok(fitting.clamp(1, MAX_OPERATIONS));
            }
            trial = (fitting / TRIAL_PART as u64).clamp(trial * 2, trial * 32).min(MAX_OPERATIONS);
        }
    }

    /// A number combined over all ranks.
    fn over_ranks(&self, value: f64, op: ReduceOp) -> Result<f64, BenchError> {
        let mut cell = self.named("allocate", 1, self.comm.buffer::<f64>(1))?;
        cell[0] = value;
        self.named("all-reduce", 1, self.comm.all_reduce(&mut cell, op))?;
        Ok(cell[0])
    }

    fn named<R>(&self, what: &str, count: usize, done: Result<R, CollectiveError>) -> Result<R, BenchError> {
        done.map_err(|source| BenchError::Collective { what: format!("{what} of {count} elements"), source })
    }
}

/// A trial shall take at least this part of the time.
const TRIAL_PART: f64 = 8.0;
const MAX_OPERATIONS: u64 = 1 << 24;
