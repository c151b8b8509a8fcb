//! Gradients that are reduced while the backward pass goes on.

mod gpu;
mod host;

use std::fmt;
use std::ops::Range;

use qpair_verbs::GpuEvent;
use qpair_verbs::calc::{Element, ReduceOp};

use super::alike;
use super::assign::{Place, assign};
use super::error::BucketError;
use super::slot::Slot;
use crate::communicator::{CommBuffer, Communicator, Location, OnHost};
use crate::error::CollectiveError;

/// The gradients of a model's parameters, gathered in buckets, each of which is reduced over all ranks as soon as it is full.
///
/// Parameters are numbered in forward order. The last ones are in the first bucket, since the backward pass finds their
/// gradients first. Ranks may give gradients in any order, and not the same one: buckets start in one fixed order on all
/// ranks, so a bucket that is full waits until those before it are. Each step gives each gradient once, by
/// [`add`](GradientBuckets::add), [`add_with`](GradientBuckets::add_with) or [`skip`](GradientBuckets::skip), and ends by
/// [`finish`](Self::finish); the first gradient after that begins the next step. The memory is the same in each. A rank that has
/// nothing to learn from in a step gives zeros for all parameters, by [`skip`](GradientBuckets::skip): the others wait for it.
///
/// They are in memory of the processor, or [of a GPU](GradientBuckets::on_gpu), whose kernels write them there.
///
/// ```
/// use qpair_collectives::Communicator;
/// use qpair_collectives::training::GradientBuckets;
///
/// let comm = Communicator::group(1)?.remove(0);
/// let mut buckets = GradientBuckets::<f32>::new(&comm, &[6, 2])?; // a layer's weights, and its biases
/// for _step in 0..3 {
///     buckets.add(1, &[0.5, 1.5])?;
///     buckets.add_with(0, |gradient| gradient.fill(2.0))?;
///     let gradients = buckets.finish()?; // the mean over all ranks
///     assert_eq!(gradients.gradient(1), [0.5, 1.5]);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct GradientBuckets<'a, T: Element, L: Location = OnHost> {
    comm: &'a Communicator,
    op: ReduceOp,
    parameters: Vec<Parameter>,
    buckets: Vec<Bucket<'a, T, L>>,
    phase: Phase,
    /// What tells in the first step whether all ranks have parameters of the same lengths, until that is known.
    hashes: Option<Slot<'a, CommBuffer<u64>>>,
}

/// How far the step is.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// So many buckets are under way, of which the first `done` are reduced.
    Filling { started: usize, done: usize },
    /// All are reduced, and can be read.
    Finished,
}

#[derive(Debug)]
struct Parameter {
    place: Place,
    is_given: bool,
}

struct Bucket<'a, T: Element, L: Location> {
    vector: Slot<'a, CommBuffer<T, L>>,
    /// What a GPU has to do before it is full.
    after: Vec<GpuEvent>,
    parameters: usize,
    missing: usize,
}

/// The reduced gradients of a step.
#[derive(Debug)]
pub struct Gradients<'b, 'a, T: Element, L: Location = OnHost> {
    buckets: &'b GradientBuckets<'a, T, L>,
}

impl<'a, T: Element, L: Location> GradientBuckets<'a, T, L> {
    /// Buckets in memory that `vector` takes.
    fn of(
        comm: &'a Communicator,
        lengths: &[usize],
        bucket_bytes: usize,
        op: ReduceOp,
        vector: impl Fn(usize) -> Result<CommBuffer<T, L>, CollectiveError>,
    ) -> Result<Self, CollectiveError> {
        let (places, buckets) = assign(lengths, bucket_bytes / T::TYPE.size());
        let bucket = |(at, &len): (usize, &usize)| {
            let parameters = places.iter().filter(|place| place.bucket == at).count();
            Ok(Bucket { vector: Slot::Here(vector(len)?), after: Vec::new(), parameters, missing: parameters })
        };
        let buckets = buckets.iter().enumerate().map(bucket).collect::<Result<_, CollectiveError>>()?;
        let parameters = places.into_iter().map(|place| Parameter { place, is_given: false }).collect();
        let mut hashes = comm.buffer(2)?;
        hashes.copy_from_slice(&alike::hashes(lengths.iter().copied()));
        let phase = Phase::Filling { started: 0, done: 0 };
        Ok(Self { comm, op, parameters, buckets, phase, hashes: Some(Slot::Here(hashes)) })
    }

    /// How many buckets there are.
    pub fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// Does what can be done at once, for those who compute for long between two gradients. True if nothing is under way.
    pub fn poll(&mut self) -> bool {
        if let Phase::Filling { started, done } = &mut self.phase {
            while done < started && self.buckets[*done].vector.test() {
                *done += 1;
            }
            return done == started && self.hashes.as_mut().is_none_or(Slot::test);
        }
        true
    }

    /// Waits until all gradients of the step are reduced.
    ///
    /// # Errors
    /// [`BucketError::Missing`] if this rank has not given all, also if it has given none since the step before was finished; then
    /// the step goes on. [`BucketError::Lengths`] in the first step, where ranks have other parameters and the buckets happen to be as
    /// long all the same; else those are a [`Mismatch`](CollectiveError::Mismatch). Else those of an all-reduce.
    pub fn finish(&mut self) -> Result<Gradients<'_, 'a, T, L>, BucketError> {
        if matches!(self.phase, Phase::Finished) && !self.parameters.is_empty() {
            return Err(BucketError::Missing { params: (0..self.parameters.len()).collect() });
        }
        self.check_complete()?;
        self.check_alike()?;
        for bucket in &mut self.buckets {
            bucket.vector.wait()?;
        }
        self.phase = Phase::Finished;
        Ok(Gradients { buckets: self })
    }

    /// The gradients of the step that was finished last, until the next begins.
    pub fn gradients(&self) -> Option<Gradients<'_, 'a, T, L>> {
        matches!(self.phase, Phase::Finished).then_some(Gradients { buckets: self })
    }

    /// Takes a gradient, which `put` brings to its place in the vector of its bucket. What is under way moves on.
    fn give(
        &mut self,
        param: usize,
        put: impl FnOnce(&mut CommBuffer<T, L>, Range<usize>) -> Result<(), CollectiveError>,
        after: Option<&GpuEvent>,
    ) -> Result<(), BucketError> {
        let begins = matches!(self.phase, Phase::Finished);
        let Parameter { place, is_given } = self.parameter(param)?;
        if *is_given && !begins {
            return Err(BucketError::Twice { param });
        }
        let (at, range) = (place.bucket, place.range.clone());
        put(self.buckets[at].vector.wait()?, range)?;
        // Those of the step before could be had until here.
        if begins {
            self.begin();
        }
        self.parameters[param].is_given = true;
        let bucket = &mut self.buckets[at];
        bucket.after.extend(after.cloned());
        bucket.missing -= 1;
        self.start_full()?;
        self.poll();
        Ok(())
    }

    /// Begins a step.
    fn begin(&mut self) {
        self.parameters.iter_mut().for_each(|parameter| parameter.is_given = false);
        self.buckets.iter_mut().for_each(|bucket| bucket.missing = bucket.parameters);
        self.phase = Phase::Filling { started: 0, done: 0 };
    }

    /// Starts the buckets that are full, unless one before them is not.
    fn start_full(&mut self) -> Result<(), CollectiveError> {
        let comm = self.comm;
        let Phase::Filling { started, .. } = &mut self.phase else { return Ok(()) };
        while let Some(bucket) = self.buckets.get_mut(*started).filter(|bucket| bucket.missing == 0) {
            if let (0, Some(hashes)) = (*started, &mut self.hashes) {
                hashes.start(|hashes| comm.start().all_reduce(hashes, alike::COMBINED))?;
            }
            let start = bucket.after.drain(..).fold(comm.start(), |start, event| start.after(&event));
            bucket.vector.start(|vector| start.all_reduce(vector, self.op))?;
            *started += 1;
        }
        Ok(())
    }

    /// Whether all ranks have parameters of the same lengths.
    fn check_alike(&mut self) -> Result<(), BucketError> {
        if let Some(hashes) = &mut self.hashes {
            if !alike::are_alike(hashes.wait()?) {
                return Err(BucketError::Lengths);
            }
            self.hashes = None;
        }
        Ok(())
    }

    /// Whether all gradients of the step were given.
    fn check_complete(&self) -> Result<(), BucketError> {
        let missing = self.parameters.iter().enumerate().filter(|(_, parameter)| !parameter.is_given);
        let params: Vec<_> = missing.map(|(param, _)| param).collect();
        if params.is_empty() { Ok(()) } else { Err(BucketError::Missing { params }) }
    }

    /// Whether a gradient of so many elements is a parameter's.
    fn check_length(&self, param: usize, len: usize) -> Result<(), BucketError> {
        let expected = self.parameter(param)?.place.range.len();
        if len == expected { Ok(()) } else { Err(BucketError::Length { param, len, expected }) }
    }

    fn parameter(&self, param: usize) -> Result<&Parameter, BucketError> {
        let none = BucketError::NoSuchParameter { param, parameters: self.parameters.len() };
        self.parameters.get(param).ok_or(none)
    }
}

impl<T: Element, L: Location> Gradients<'_, '_, T, L> {
    /// The vector that a parameter's gradient is in, and where.
    ///
    /// # Panics
    /// If there is no such parameter.
    fn place(&self, param: usize) -> (Option<&CommBuffer<T, L>>, Range<usize>) {
        let Place { bucket, range } = &self.buckets.parameters[param].place;
        (self.buckets.buckets[*bucket].vector.here(), range.clone())
    }
}

impl<T: Element, L: Location> fmt::Debug for GradientBuckets<'_, T, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (parameters, buckets) = (self.parameters.len(), self.buckets.len());
        write!(f, "GradientBuckets({parameters} parameters in {buckets} buckets, {:?})", self.phase)
    }
}

/// As large as PyTorch's DistributedDataParallel has them: large enough that latency does not count, small enough that the
/// first is under way early.
pub const BUCKET_BYTES: usize = 25_000_000;
