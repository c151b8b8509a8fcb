//! What all ranks begin with, and what one of them keeps.

use qpair_verbs::calc::{Element, ReduceOp};

use super::alike;
use crate::communicator::{CommBuffer, Communicator};
use crate::error::CollectiveError;

/// Gives the tensors of `root` to all ranks, so that replicas begin alike. Tensors travel together, however small each is;
/// their lengths and their order are the same on all ranks.
///
/// ```
/// # use qpair_collectives::{Communicator, training::broadcast_parameters};
/// # let comm = Communicator::group(1)?.remove(0);
/// let (mut weights, mut biases) = (vec![0.1_f32; 600], vec![0.0; 20]);
/// broadcast_parameters(&comm, &mut [&mut weights, &mut biases], 0)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`CollectiveError`]; [`Tensors`](CollectiveError::Tensors), on all ranks, where they have tensors of other lengths;
/// [`RankFailed`](CollectiveError::RankFailed), on all ranks, where one has no memory for its part.
pub fn broadcast_parameters<T: Element>(
    comm: &Communicator,
    tensors: &mut [&mut [T]],
    root: usize,
) -> Result<(), CollectiveError> {
    check_alike(comm, tensors)?;
    fused(comm, tensors, comm.rank() != root, |vector| comm.broadcast(vector, root))
}

/// Combines the tensors of all ranks into those of `root`, for a checkpoint where ranks hold different ones: replicas that
/// drifted apart, or statistics of batches. The tensors of other ranks stay as they are.
///
/// # Errors
/// [`CollectiveError`]; [`Tensors`](CollectiveError::Tensors), on all ranks, where they have tensors of other lengths;
/// [`RankFailed`](CollectiveError::RankFailed), on all ranks, where one has no memory for its part.
pub fn reduce_checkpoint<T: Element>(
    comm: &Communicator,
    tensors: &mut [&mut [T]],
    op: ReduceOp,
    root: usize,
) -> Result<(), CollectiveError> {
    check_alike(comm, tensors)?;
    fused(comm, tensors, comm.rank() == root, |vector| comm.reduce(vector, op, root))
}

/// Whether all ranks have tensors of the same lengths. All find the same.
fn check_alike<T>(comm: &Communicator, tensors: &[&mut [T]]) -> Result<(), CollectiveError> {
    let mut hashes = comm.needed(comm.buffer(2))?;
    hashes.copy_from_slice(&alike::hashes(tensors.iter().map(|tensor| tensor.len())));
    comm.all_reduce(&mut hashes, alike::COMBINED)?;
    if alike::are_alike(&hashes) { Ok(()) } else { Err(CollectiveError::Tensors) }
}

/// Does an operation on the tensors one after the other, as if they were one vector, in pieces of bounded length; takes over
/// the results if `keep`.
fn fused<T: Element>(
    comm: &Communicator,
    tensors: &mut [&mut [T]],
    keep: bool,
    operate: impl Fn(&mut CommBuffer<T>) -> Result<(), CollectiveError>,
) -> Result<(), CollectiveError> {
    let total: usize = tensors.iter().map(|tensor| tensor.len()).sum();
    let most = FUSED_BYTES / T::TYPE.size();
    let mut vector = comm.needed(comm.buffer::<T>(total.min(most)))?;
    for begin in (0..total).step_by(most) {
        let len = most.min(total - begin);
        if vector.len() != len {
            vector = comm.needed(comm.buffer(len))?;
        }
        spans(tensors, begin, len, |at, part| vector[at..at + part.len()].copy_from_slice(part));
        operate(&mut vector)?;
        if keep {
            spans(tensors, begin, len, |at, part| part.copy_from_slice(&vector[at..at + part.len()]));
        }
    }
    Ok(())
}

/// Calls `each` for the parts of tensors that make the elements from `begin` on, with where they are among those.
fn spans<T>(tensors: &mut [&mut [T]], begin: usize, len: usize, mut each: impl FnMut(usize, &mut [T])) {
    let (end, mut offset) = (begin + len, 0);
    for tensor in tensors {
        let (from, to) = (begin.max(offset), end.min(offset + tensor.len()));
        if from < to {
            each(from - begin, &mut tensor[from - offset..to - offset]);
        }
        offset += tensor.len();
    }
}

/// Enough for full speed, and little beside a model.
const FUSED_BYTES: usize = 32 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_cover_what_is_asked_for() {
        let (mut a, mut b, mut c) = ([0, 1, 2], [], [3, 4]);
        let mut seen = Vec::new();
        spans(&mut [&mut a, &mut b, &mut c], 1, 3, |at, part| seen.push((at, part.to_vec())));
        assert_eq!(seen, [(0, vec![1, 2]), (2, vec![3])]);
    }
}
