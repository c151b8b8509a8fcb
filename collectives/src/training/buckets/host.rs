//! Gradients in memory of the processor.

use std::ops::Range;

use qpair_verbs::calc::{Element, ReduceOp};

use super::{BUCKET_BYTES, GradientBuckets, Gradients};
use crate::communicator::{CommBuffer, Communicator};
use crate::error::CollectiveError;
use crate::training::error::BucketError;

impl<'a, T: Element> GradientBuckets<'a, T> {
    /// Buckets of [`BUCKET_BYTES`], for the mean of gradients of these lengths, which are in forward order and the same on all
    /// ranks.
    ///
    /// # Errors
    /// As [`with`](Self::with).
    pub fn new(comm: &'a Communicator, lengths: &[usize]) -> Result<Self, CollectiveError> {
        Self::with(comm, lengths, BUCKET_BYTES, ReduceOp::Avg)
    }

    /// Buckets of at most so many bytes, unless one gradient alone has more.
    ///
    /// # Errors
    /// [`CollectiveError::Memory`] if there is no memory.
    pub fn with(
        comm: &'a Communicator,
        lengths: &[usize],
        bucket_bytes: usize,
        op: ReduceOp,
    ) -> Result<Self, CollectiveError> {
        Self::of(comm, lengths, bucket_bytes, op, |len| comm.buffer(len))
    }

    /// Gives the gradient of a parameter. What is under way moves on.
    ///
    /// # Errors
    /// [`BucketError`].
    pub fn add(&mut self, param: usize, gradient: &[T]) -> Result<(), BucketError> {
        self.check_length(param, gradient.len())?;
        self.add_with(param, |place| place.copy_from_slice(gradient))
    }

    /// The same, where `fill` writes the gradient to its place, which has what an earlier step left in it.
    ///
    /// # Errors
    /// [`BucketError`].
    pub fn add_with(&mut self, param: usize, fill: impl FnOnce(&mut [T])) -> Result<(), BucketError> {
        let put = |vector: &mut CommBuffer<T>, place: Range<usize>| {
            fill(&mut vector[place]);
            Ok(())
        };
        self.give(param, put, None)
    }

    /// Gives zeros as the gradient of a parameter that this rank did not use in this step.
    ///
    /// # Errors
    /// [`BucketError`].
    pub fn skip(&mut self, param: usize) -> Result<(), BucketError> {
        self.add_with(param, |place| place.fill(T::default()))
    }
}

impl<T: Element> Gradients<'_, '_, T> {
    /// The reduced gradient of a parameter.
    ///
    /// # Panics
    /// If there is no such parameter.
    pub fn gradient(&self, param: usize) -> &[T] {
        let (vector, place) = self.place(param);
        vector.map_or(&[], |vector| &vector[place])
    }

    /// The reduced gradients of all parameters, in forward order.
    pub fn iter(&self) -> impl Iterator<Item = &[T]> {
        (0..self.buckets.parameters.len()).map(|param| self.gradient(param))
    }
}
