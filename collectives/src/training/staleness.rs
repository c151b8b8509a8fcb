//! Steps that run ahead of the slowest rank, within a bound.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use qpair_verbs::calc::{Element, ReduceOp};

use super::slot::Slot;
use crate::communicator::{CommBuffer, Communicator};
use crate::error::CollectiveError;

/// Training in which a rank may be ahead of the slowest one by a bounded number of steps.
///
/// Each step's contribution begins to be reduced, and the rank goes on before the result is there; it gets each result once,
/// in order, some steps later. With a bound of 0 all ranks wait for each other in each step; with more, a rank that is slow
/// now and then holds up nobody. At which step a rank gets a result may differ from rank to rank; what it gets does not.
///
/// ```
/// use qpair_collectives::{Communicator, ReduceOp, training::Staleness};
///
/// let comm = Communicator::group(1)?.remove(0);
/// let mut steps = Staleness::<f32>::new(&comm, 100, 2, ReduceOp::Sum)?;
/// let mut parameters = vec![1.0; 100];
/// for _step in 0..10 {
///     let gradient: Vec<f32> = parameters.iter().map(|parameter| 0.1 * parameter).collect();
///     steps.step(&gradient, |_step, sum| parameters.iter_mut().zip(sum).for_each(|(p, g)| *p -= g))?;
/// }
/// steps.finish(|_step, sum| parameters.iter_mut().zip(sum).for_each(|(p, g)| *p -= g))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Staleness<'a, T: Element> {
    comm: &'a Communicator,
    op: ReduceOp,
    bound: usize,
    /// One more than the bound. Those under way come first, the oldest in front.
    steps: VecDeque<Step<'a, T>>,
    under_way: usize,
    /// The first that is under way.
    oldest: u64,
    resumed: Instant,
    /// How long each rank computes for a step, in seconds, averaged.
    times: Vec<f64>,
}

struct Step<'a, T: Element> {
    vector: Slot<'a, CommBuffer<T>>,
    /// How long each rank computed for it, in microseconds.
    times: Slot<'a, CommBuffer<u64>>,
}

/// The rank that computes longest for a step, of late.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slowest {
    /// The rank.
    pub rank: usize,
    /// How long it computes for a step.
    pub time: Duration,
    /// The mean of all ranks.
    pub mean: Duration,
}

impl<'a, T: Element> Staleness<'a, T> {
    /// For contributions of `len` elements, where a rank is at most `bound` steps ahead of the slowest; all the same on all
    /// ranks. It takes the memory of `bound + 1` contributions.
    ///
    /// # Errors
    /// [`CollectiveError::Memory`] if there is no memory.
    pub fn new(comm: &'a Communicator, len: usize, bound: usize, op: ReduceOp) -> Result<Self, CollectiveError> {
        let step = |_| Ok(Step { vector: Slot::Here(comm.buffer(len)?), times: Slot::Here(comm.buffer(comm.size())?) });
        let steps = (0..=bound).map(step).collect::<Result<_, CollectiveError>>()?;
        let times = vec![0.0; comm.size()];
        Ok(Self { comm, op, bound, steps, under_way: 0, oldest: 0, resumed: Instant::now(), times })
    }

    /// Ends a step with this rank's contribution to it, and calls `apply` with each result that is there by now, and the
    /// number of its step. Waits while more than the bound are under way.
    ///
    /// The time from one call's end to the next one's begin counts as the rank's for the step.
    ///
    /// # Errors
    /// [`CollectiveError`]; [`Length`](CollectiveError::Length) if the contribution has another length.
    pub fn step(&mut self, contribution: &[T], mut apply: impl FnMut(u64, &[T])) -> Result<(), CollectiveError> {
        let spent = self.resumed.elapsed().as_micros() as u64;
        let (comm, op) = (self.comm, self.op);
        while self.under_way > self.bound {
            self.take_oldest(&mut apply)?; // an earlier call failed at it
        }
        let Step { vector, times } = &mut self.steps[self.under_way];
        let place = vector.wait()?;
        if place.len() != contribution.len() {
            return Err(CollectiveError::Length {
                what: "contribution",
                len: contribution.len(),
                expected: place.len(),
                hint: "it has one length in all steps",
            });
        }
        place.copy_from_slice(contribution);
        times.wait()?[comm.rank()] = spent;
        vector.start(|vector| comm.start().all_reduce(vector, op))?;
        times.start(|times| comm.start().all_gather(times))?;
        self.under_way += 1;
        while self.under_way > self.bound || (self.under_way > 0 && self.is_oldest_done()) {
            self.take_oldest(&mut apply)?;
        }
        self.resumed = Instant::now();
        Ok(())
    }

    /// Waits for all results that are not there yet.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn finish(&mut self, mut apply: impl FnMut(u64, &[T])) -> Result<(), CollectiveError> {
        while self.under_way > 0 {
            self.take_oldest(&mut apply)?;
        }
        self.resumed = Instant::now();
        Ok(())
    }

    /// How many steps have no result yet.
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Who computes longest for a step, as far as the results that are there tell; all ranks are told the same for the same
    /// step. `None` before the first.
    pub fn slowest(&self) -> Option<Slowest> {
        if self.oldest == 0 { None } else { Slowest::of(&self.times) }
    }

    fn is_oldest_done(&mut self) -> bool {
        let Step { vector, times } = &mut self.steps[0];
        vector.test() && times.test()
    }

    fn take_oldest(&mut self, apply: &mut impl FnMut(u64, &[T])) -> Result<(), CollectiveError> {
        let Step { vector, times } = &mut self.steps[0];
        let sum = vector.wait()?;
        average(&mut self.times, self.oldest, times.wait()?);
        apply(self.oldest, sum);
        self.steps.rotate_left(1);
        self.under_way -= 1;
        self.oldest += 1;
        Ok(())
    }
}

impl Slowest {
    /// Of the times of all ranks, in seconds.
    fn of(times: &[f64]) -> Option<Self> {
        let (rank, &time) = times.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1))?;
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        let [time, mean] = [time, mean].map(Duration::from_secs_f64);
        Some(Self { rank, time, mean })
    }
}

/// Averages the times of ranks, in seconds, with those of a step, in microseconds. The first step has none before it.
fn average(times: &mut [f64], step: u64, micros: &[u64]) {
    for (mean, &micros) in times.iter_mut().zip(micros) {
        let time = micros as f64 / 1e6;
        *mean = if step == 0 { time } else { *mean + (time - *mean) * RECENT };
    }
}

impl<T: Element> fmt::Debug for Staleness<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Staleness(step {}, {} of {} under way)", self.oldest, self.under_way, self.bound)
    }
}

/// What a step counts in the average: some four steps make it, so that one hiccup does not name a rank.
const RECENT: f64 = 0.25;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_named_once_it_is_slow_for_some_steps() {
        let us = Duration::from_micros;
        let mut times = [0.0; 3];
        for (step, micros, slowest) in [
            (0, [100, 300, 200], Slowest { rank: 1, time: us(300), mean: us(200) }),
            (1, [500, 400, 300], Slowest { rank: 1, time: us(325), mean: us(250) }),
            (2, [1000, 325, 25], Slowest { rank: 0, time: us(400), mean: us(300) }),
            (3, [0, 25, 875], Slowest { rank: 2, time: us(350), mean: us(300) }),
        ] {
            average(&mut times, step, &micros);
            assert_eq!(Slowest::of(&times), Some(slowest), "after step {step}");
        }
        assert_eq!(Slowest::of(&[]), None);
    }
}
