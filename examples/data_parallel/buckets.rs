//! The gradient on its way between the ranks: gathered in buckets, each on its way as soon as it is full.

use std::collections::VecDeque;
use std::num::NonZeroUsize;

use qpair::collectives::Pending;
use qpair::{CommBuffer, Communicator, ReduceOp};

use crate::Result;

/// The gradient of all parameters, in several buckets. [`push`](Self::push) fills them in order and starts the
/// all-reduce of each that is full; [`sum`](Self::sum) waits for all of them.
pub struct Buckets<'a> {
    comm: &'a Communicator,
    ready: VecDeque<CommBuffer<f32>>,
    under_way: Vec<Pending<'a, CommBuffer<f32>>>,
    filled: usize,
}

impl<'a> Buckets<'a> {
    /// Buckets of `bytes` bytes (of at least one element) that hold `parameters` elements together.
    ///
    /// # Errors
    /// Those of allocating a buffer.
    pub fn new(comm: &'a Communicator, parameters: usize, bytes: usize) -> Result<Self> {
        let lengths = bucket_lengths(parameters, bytes);
        let ready = lengths.map(|length| Ok(comm.buffer::<f32>(length)?)).collect::<Result<VecDeque<_>>>()?;
        Ok(Self { comm, under_way: Vec::with_capacity(ready.len()), ready, filled: 0 })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.ready.len() + self.under_way.len()
    }

    /// Appends a piece of this rank's gradient. A bucket that becomes full goes on its way, while the caller finds the
    /// next piece.
    ///
    /// # Errors
    /// Those of starting an all-reduce.
    ///
    /// # Panics
    /// If more is pushed than the parameters' elements before [`sum`](Self::sum).
    pub fn push(&mut self, mut piece: &[f32]) -> Result<()> {
        while !piece.is_empty() {
            let bucket = self.ready.front_mut().expect("no more elements than parameters");
            let (now, later) = piece.split_at(piece.len().min(bucket.len() - self.filled));
            bucket[self.filled..][..now.len()].copy_from_slice(now);
            self.filled += now.len();
            if self.filled == bucket.len() {
                let full = self.ready.pop_front().expect("it was filled just now");
                self.under_way.push(self.comm.start().all_reduce(full, ReduceOp::Sum)?);
                self.filled = 0;
            }
            piece = later;
        }
        if let Some(pending) = self.under_way.last_mut() {
            pending.test(); // what is under way goes on within calls like this one
        }
        Ok(())
    }

    /// The gradient summed over all ranks, in the order of the parameters, once all pieces of this rank were pushed.
    ///
    /// # Errors
    /// Those of an all-reduce.
    pub fn sum(&mut self) -> Result<impl Iterator<Item = f32>> {
        for pending in self.under_way.drain(..) {
            self.ready.push_back(pending.wait()?);
        }
        Ok(self.ready.iter().flat_map(|bucket| bucket.iter().copied()))
    }
}

/// Full buckets, and the rest in the last.
fn bucket_lengths(parameters: usize, bytes: usize) -> impl Iterator<Item = usize> {
    let length = NonZeroUsize::new(bytes / size_of::<f32>()).unwrap_or(NonZeroUsize::MIN).get();
    (0..parameters).step_by(length).map(move |start| length.min(parameters - start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_add_up() {
        let lengths = |parameters, bytes| bucket_lengths(parameters, bytes).collect::<Vec<_>>();
        assert_eq!(lengths(10, 16), [4, 4, 2]);
        assert_eq!(lengths(8, 16), [4, 4]);
        assert_eq!(lengths(3, 1 << 20), [3]);
        assert_eq!(lengths(2, 0), [1, 1]);
    }

    #[test]
    fn pieces_of_any_length_are_summed_in_order() {
        let summed = |comm: Communicator| {
            let mut buckets = Buckets::new(&comm, 10, 16).unwrap();
            [0.0, 1.0].map(|round| {
                let values: Vec<f32> = (0..10u8).map(|i| f32::from(i) + round).collect();
                values.chunks(3).for_each(|piece| buckets.push(piece).unwrap());
                assert_eq!((buckets.under_way.len(), buckets.count()), (3, 3));
                buckets.sum().unwrap().collect::<Vec<_>>()
            })
        };
        let group = Communicator::group(2).unwrap();
        let ranks: Vec<[Vec<f32>; 2]> = std::thread::scope(|scope| {
            let threads: Vec<_> = group.into_iter().map(|comm| scope.spawn(move || summed(comm))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let expected = [0.0, 1.0].map(|round| (0..10u8).map(|i| 2.0 * (f32::from(i) + round)).collect::<Vec<_>>());
        assert_eq!(ranks, [expected.clone(), expected]);
    }
}
