//! Measures what operations, messages and bytes cost here, within some milliseconds.
//!
//! Two ranks are driven by one thread, bound to no core, so that nobody waits for another to get a core, and nothing depends on
//! how many ranks there are: what is timed is the work of both ends. What has to do with other [cores] is timed with another
//! thread.
//!
//! Each time is the least of several, since all that disturbs makes it longer. What can not be after all is as in the default.

mod cores;
mod gpus;

use std::ops::Range;
use std::time::{Duration, Instant};

use qpair_verbs::calc::ReduceOp;
use qpair_verbs::shared_memory_domain;

use super::buffer::CommBuffer;
use super::comm::Communicator;
use super::pending::{OperationFailed, Pending};
use crate::algorithms::Algorithm;
use crate::cost::{CostModel, Link};
use crate::error::BootstrapError;
use crate::machine::{self, Known, Origin, unbound};
use crate::parallel;
use crate::tune::{Fastest, Tuning};
use crate::variable::variable;

/// The cost model of this machine, as QPAIR_COST_MODEL says.
///
/// # Errors
/// [`BootstrapError::CostModel`] if that names a file that can not be read, or holds no model.
pub(crate) fn this_machine() -> Result<Known, BootstrapError> {
    machine::this_machine(variable, measured)
}

impl CostModel {
    /// What communicators whose rank 0 is here use: measured, or read from where that is kept, or what QPAIR_COST_MODEL names; see
    /// [`Environment`](crate::Environment#what-to-use).
    ///
    /// # Errors
    /// [`BootstrapError::CostModel`] if QPAIR_COST_MODEL names a file that holds none.
    pub fn of_this_machine() -> Result<Self, BootstrapError> {
        Ok(this_machine()?.model)
    }

    /// Measures what operations cost on this machine now, in some tens of milliseconds, and keeps nothing. The default where that
    /// is not possible, as where QPAIR_NO_SHARED_MEMORY has ranks not reach each other's memory.
    pub fn measured() -> Self {
        measured().model
    }
}

impl Fastest {
    /// What was measured of algorithms, as communicators whose rank 0 is here choose by: nothing where nobody kept anything, or
    /// QPAIR_COST_MODEL says what to use.
    ///
    /// # Errors
    /// As [`CostModel::of_this_machine`].
    pub fn of_this_machine() -> Result<Self, BootstrapError> {
        Ok(this_machine()?.fastest)
    }
}

/// The cost model of this machine, measured now; the default, if that is not possible, also where ranks do not reach each other's
/// memory: what messages take by the network within a process is nobody's to choose by.
fn measured() -> Known {
    if shared_memory_domain().is_none() {
        return Known::default();
    }
    unbound(|| {
        let start = Instant::now();
        match measure() {
            Ok(model) if model.check().is_ok() => {
                let origin = Origin::Measured { took: start.elapsed() };
                return Known { model: rounded(model), origin, ..Known::default() };
            }
            Ok(model) => tracing::warn!(?model, "what was measured makes no sense: the default cost model is used"),
            Err(error) => tracing::warn!(%error, "the default cost model is used"),
        }
        Known::default()
    })
}

/// To three digits, which is more than they are good for, and what files and messages hold exactly.
fn rounded(mut model: CostModel) -> CostModel {
    let CostModel {
        start,
        send,
        receive,
        transfer,
        packet,
        payload,
        turn,
        copy,
        straight,
        combine,
        within,
        beside,
        between,
        gpu: _,
    } = &mut model;
    let links = [within, beside, between].into_iter().flat_map(|link| [&mut link.latency, &mut link.speed]);
    for value in
        [start, send, receive, transfer, packet, payload, turn, copy, straight, combine].into_iter().chain(links)
    {
        digits(value);
    }
    model
}

fn digits(value: &mut f64) {
    *value = format!("{value:.2e}").parse().unwrap_or(*value);
}

fn measure() -> Result<CostModel, Box<dyn std::error::Error>> {
    let mut pair = Pair::new()?;
    let built_in = CostModel::default();
    // Some of both ranks' work, by messages and bytes.
    let copied = |messages| Shape { messages, elements: messages as usize, eager: u64::MAX };
    let straight = |messages| Shape { messages, elements: 16 * messages as usize, eager: 0 };
    let (one, many) = (pair.broadcast(copied(1))?, pair.broadcast(copied(MANY))?);
    let message = each(one, many, built_in.send + built_in.receive);
    let full = pair.broadcast(Shape { messages: 1, elements: EAGER / 4, eager: EAGER as u64 })?;
    // What disturbed the one would make the other take no time.
    let one = one.min(pair.broadcast(copied(1))?);
    let (near, read) = (pair.broadcast(straight(1))?, pair.broadcast(straight(MANY))?);
    let long = Shape { messages: 1, elements: LONG / 4, eager: 0 };
    let (moved, combined) = (pair.broadcast(long)?, pair.reduce(long)?);
    // Of the cores that can be at it at once, a few fill the memory.
    let memory = speed(cores::BULK, cores::bulk(), built_in.copy) * parallel::cores().min(8) as f64;
    let straight = speed(LONG, moved - near, built_in.straight);
    Ok(CostModel {
        start: time((one - message) / 2.0, built_in.start),
        send: message / 2.0,
        receive: message / 2.0,
        transfer: each(near, read, built_in.transfer),
        turn: cores::turn().unwrap_or(built_in.turn),
        copy: speed(2 * EAGER, full - one, straight),
        straight,
        combine: speed(LONG, combined - near, built_in.combine),
        within: Link { latency: cores::latency().unwrap_or(built_in.within.latency), speed: memory },
        beside: cores::beside().unwrap_or(built_in.beside),
        ..built_in
    })
}

/// What a message takes, of so many more; `otherwise` if what disturbed the clock was longer.
fn each(one: f64, many: f64, otherwise: f64) -> f64 {
    time((many - one) / f64::from(MANY - 1), otherwise)
}

/// That many seconds, if they can be.
fn time(seconds: f64, otherwise: f64) -> f64 {
    if PLAUSIBLE_TIMES.contains(&seconds) { seconds } else { otherwise }
}

/// Of bytes that took so long, if that can be.
fn speed(bytes: usize, seconds: f64, otherwise: f64) -> f64 {
    let speed = bytes as f64 / seconds;
    if PLAUSIBLE_SPEEDS.contains(&speed) { speed } else { otherwise }
}

/// Two ranks that one thread drives.
struct Pair {
    ranks: Vec<Communicator>,
    vectors: Vec<CommBuffer<f32>>,
}

/// What is timed: a vector of so many elements in so many messages, of which those of up to `eager` bytes are copied.
#[derive(Clone, Copy)]
struct Shape {
    messages: u32,
    elements: usize,
    eager: u64,
}

impl Pair {
    fn new() -> Result<Self, BootstrapError> {
        let ranks = Communicator::group_knowing(2, Default::default(), &Known::default())?;
        Ok(Self { ranks, vectors: Vec::new() })
    }

    /// Seconds of both ranks' work for a vector that goes from one to the other.
    fn broadcast(&mut self, shape: Shape) -> Result<f64, Box<dyn std::error::Error>> {
        self.least(shape, Algorithm::Chain, |rank, vector| rank.start().broadcast(vector, 0))
    }

    /// The same for one of whose halves each rank combines one.
    fn reduce(&mut self, shape: Shape) -> Result<f64, Box<dyn std::error::Error>> {
        self.least(shape, Algorithm::Direct, |rank, vector| rank.start().reduce_scatter(vector, ReduceOp::Sum))
    }

    fn least(
        &mut self,
        shape: Shape,
        algorithm: Algorithm,
        start: impl for<'a> Fn(&'a Communicator, CommBuffer<f32>) -> Started<'a>,
    ) -> Result<f64, Box<dyn std::error::Error>> {
        let segment = (4 * shape.elements as u64 / u64::from(shape.messages)).max(4);
        for rank in &self.ranks {
            rank.set_algorithm(algorithm);
            rank.set_tuning(Tuning { segment, eager: Some(shape.eager), deterministic: false });
        }
        self.vectors = self.ranks.iter().map(|rank| rank.buffer(shape.elements)).collect::<Result<_, _>>()?;
        let (mut least, begin) = (f64::INFINITY, Instant::now());
        for trial in 0..TRIALS {
            let operations = if 4 * shape.elements >= LONG { 1 } else { BATCH };
            let start_of_batch = Instant::now();
            for _ in 0..operations {
                self.operate(&start)?;
            }
            least = least.min(start_of_batch.elapsed().as_secs_f64() / f64::from(operations));
            if trial >= FEW && begin.elapsed() > BUDGET {
                break;
            }
        }
        Ok(least)
    }

    fn operate(
        &mut self,
        start: impl for<'a> Fn(&'a Communicator, CommBuffer<f32>) -> Started<'a>,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let vectors = std::mem::take(&mut self.vectors);
        let mut pending = Vec::with_capacity(2);
        for (rank, vector) in self.ranks.iter().zip(vectors) {
            pending.push(start(rank, vector)?);
        }
        let until = Instant::now() + STUCK;
        // Each makes progress in its own calls, so that both are tested.
        while pending.iter_mut().map(|one| one.test()).filter(|done| !done).count() > 0 {
            if Instant::now() > until {
                return Err("two ranks of this process did not reach each other".into());
            }
        }
        for one in pending {
            self.vectors.push(one.wait()?);
        }
        Ok(())
    }
}

type Started<'a> = Result<Pending<'a, CommBuffer<f32>>, OperationFailed<CommBuffer<f32>>>;

/// Messages of an operation that shows what one more takes: within what a peer may have under way.
const MANY: u32 = 16;
/// Bytes of a long message that is copied; and of one that goes straight, which the second-level cache of the one core at
/// work here does not hold at both ends, as it holds none of another's.
const EAGER: usize = 8 << 10;
const LONG: usize = 2 << 20;
/// Batches of operations, of which the fastest counts; after a few, as many as there is time for.
const TRIALS: u32 = 100;
const FEW: u32 = 5;
const BATCH: u32 = 8;
const BUDGET: Duration = Duration::from_millis(2);
/// After that something is wrong.
const STUCK: Duration = Duration::from_secs(5);
/// Seconds that a message or an operation may take: more than a few cycles, and less than what none does.
const PLAUSIBLE_TIMES: Range<f64> = 1e-9..1e-3;
/// Bytes per second that a core may copy or combine, unoptimised or from its first-level cache.
const PLAUSIBLE_SPEEDS: Range<f64> = 1e7..1e12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_makes_sense_and_comes_from_here() {
        let known = measured();
        // Over the network nothing is measured.
        let expected = shared_memory_domain().is_some();
        assert_eq!(matches!(known.origin, Origin::Measured { .. }), expected, "{known:?}");
        assert_eq!(known.model.check(), Ok(()));
        // A file holds it exactly.
        let text = serde_json::to_string(&known.model).unwrap();
        assert_eq!(serde_json::from_str::<CostModel>(&text).unwrap(), known.model);
    }

    #[test]
    fn what_can_not_be_is_as_in_the_default() {
        assert_eq!(each(1e-6, 16e-6, 7.0), 1e-6);
        // More messages took less time, no time, or for ever.
        for many in [0.9e-6, 1e-6, f64::INFINITY, f64::NAN] {
            assert_eq!(each(1e-6, many, 7.0), 7.0, "{many}");
        }
        assert_eq!(speed(1000, 1e-6, 7.0), 1e9);
        for seconds in [-1e-6, 0.0, 1.0, f64::NAN] {
            assert_eq!(speed(1000, seconds, 7.0), 7.0, "{seconds}");
        }
    }
}
