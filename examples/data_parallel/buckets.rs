//! The gradient on its way between the ranks: gathered in buckets, each summed over all ranks once it is full.

use std::num::NonZeroUsize;

use qpair::{CommBuffer, Communicator, ReduceOp};

use crate::Result;

/// The gradient of all parameters, in several buffers. [`push`](Self::push) fills them in order, and starts again
/// with the first when the last is full.
pub struct Buckets<'a> {
    comm: &'a Communicator,
    buckets: Vec<CommBuffer<f32>>,
    current: usize,
    filled: usize,
}

impl<'a> Buckets<'a> {
    /// Buckets of `bytes` bytes (of at least one element) that hold `parameters` elements together.
    ///
    /// # Errors
    /// Those of allocating a buffer.
    pub fn new(comm: &'a Communicator, parameters: usize, bytes: usize) -> Result<Self> {
        let lengths = bucket_lengths(parameters, bytes);
        let buckets = lengths.map(|length| Ok(comm.buffer::<f32>(length)?)).collect::<Result<_>>()?;
        Ok(Self { comm, buckets, current: 0, filled: 0 })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.buckets.len()
    }

    /// Appends a piece of this rank's gradient. Buckets that become full are all-reduced at once.
    ///
    /// # Errors
    /// Those of an all-reduce.
    pub fn push(&mut self, mut piece: &[f32]) -> Result<()> {
        while !piece.is_empty() {
            let bucket = &mut self.buckets[self.current];
            let (now, later) = piece.split_at(piece.len().min(bucket.len() - self.filled));
            bucket[self.filled..][..now.len()].copy_from_slice(now);
            self.filled += now.len();
            if self.filled == bucket.len() {
                self.comm.all_reduce(bucket, ReduceOp::Sum)?;
                self.current = (self.current + 1) % self.buckets.len();
                self.filled = 0;
            }
            piece = later;
        }
        Ok(())
    }

    /// The summed gradient, in the order of the parameters. Complete once all parameters' pieces were pushed.
    pub fn summed(&self) -> impl Iterator<Item = f32> {
        self.buckets.iter().flat_map(|bucket| bucket.iter().copied())
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
            for round in 0..2 {
                let values: Vec<f32> = (0..10u8).map(|i| f32::from(i) + round as f32).collect();
                values.chunks(3).for_each(|piece| buckets.push(piece).unwrap());
            }
            buckets.summed().collect::<Vec<_>>()
        };
        let group = Communicator::group(2).unwrap();
        let ranks: Vec<Vec<f32>> = std::thread::scope(|scope| {
            let threads: Vec<_> = group.into_iter().map(|comm| scope.spawn(move || summed(comm))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let expected: Vec<f32> = (0..10u8).map(|i| 2.0 * (f32::from(i) + 1.0)).collect();
        assert_eq!(ranks, [expected.clone(), expected]);
    }
}
