//! Parameters of which each rank updates a shard.

use std::fmt;
use std::mem;
use std::ops::Range;

use qpair_verbs::calc::{Element, ReduceOp};

use super::slot::Slot;
use crate::communicator::{CommBuffer, Communicator};
use crate::error::CollectiveError;

/// A flat vector of parameters, cut into one shard per rank: each rank holds the optimizer's state of its own shard alone, and
/// updates that alone.
///
/// | | gradient | then | memory that is divided by the ranks |
/// |---|---|---|---|
/// | ZeRO-1 | [`start_reduce_whole`](Self::start_reduce_whole): all-reduce | [`update`](Self::update), [`start_gather`](Self::start_gather) | optimizer states |
/// | ZeRO-2 | [`start_reduce`](Self::start_reduce): reduce-scatter | the same; [`step`](Self::step) is all three | gradients too, by [`release_gradient`](Self::release_gradient) |
/// | ZeRO-3 | reduce-scatter | `update`, then [`release`](Self::release) until [`parameters`](Self::parameters) are needed | parameters too |
///
/// ZeRO-2 sends as much as an all-reduce alone does. What is started is under way while the caller computes: with one
/// `Shards` for each layer, or some layers, the backward pass starts the reduction of each that is complete, the optimizer
/// updates one while others are reduced or collected, and ZeRO-3 collects the next layer while one is used. All ranks call
/// the same in the same order.
///
/// ```
/// use qpair_collectives::{Communicator, training::Shards};
///
/// let ranks = Communicator::group(2)?;
/// std::thread::scope(|scope| {
///     for comm in ranks {
///         scope.spawn(move || {
///             let mut shards = Shards::new(&comm, &[1.0_f32; 5])?; // padded to 6: 3 for each rank
///             let mut momentum = vec![0.0; shards.own().len()];
///             for _step in 0..2 {
///                 shards.gradient_mut()?.fill(0.5); // the backward pass, on this rank's part of the batch
///                 shards.step(|parameters, gradient| {
///                     for ((parameter, m), gradient) in parameters.iter_mut().zip(&mut momentum).zip(gradient) {
///                         *m = 0.5 * *m + gradient;
///                         *parameter -= *m;
///                     }
///                 })?;
///             }
///             assert_eq!(shards.parameters()?, [-0.25; 5]);
///             Ok::<(), qpair_collectives::CollectiveError>(())
///         });
///     }
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Shards<'a, T: Element> {
    comm: &'a Communicator,
    op: ReduceOp,
    len: usize,
    block: usize,
    /// `None` while it is released.
    gradient: Option<Slot<'a, CommBuffer<T>>>,
    /// What has become of it.
    stage: Stage,
    /// All, of which this rank's shard counts. `None` while they are released.
    parameters: Option<Slot<'a, CommBuffer<T>>>,
    /// This rank's shard, with its padding, while they are released; else nothing.
    shard: Vec<T>,
}

/// What has become of a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It is this rank's own.
    Own,
    /// It is reduced, or under way to be.
    Reduced,
    /// An update has taken it.
    Taken,
}

impl<'a, T: Element> Shards<'a, T> {
    /// Shards of parameters that all ranks have alike; see [`broadcast_parameters`](super::broadcast_parameters). Gradients
    /// are averaged.
    ///
    /// # Errors
    /// [`CollectiveError::Memory`] if there is no memory.
    pub fn new(comm: &'a Communicator, parameters: &[T]) -> Result<Self, CollectiveError> {
        let (len, block) = (parameters.len(), parameters.len().div_ceil(comm.size()));
        let mut whole = comm.buffer(block * comm.size())?;
        whole[..len].copy_from_slice(parameters);
        let parameters = Some(Slot::Here(whole));
        Ok(Self {
            comm,
            op: ReduceOp::Avg,
            len,
            block,
            gradient: None,
            stage: Stage::Own,
            parameters,
            shard: Vec::new(),
        })
    }

    /// The same, where gradients are combined by another operation.
    #[must_use = "it is what comes of it that combines so"]
    pub fn reduced_by(self, op: ReduceOp) -> Self {
        Self { op, ..self }
    }

    /// Which of the parameters are in this rank's shard; it may be empty.
    pub fn own(&self) -> Range<usize> {
        let block = self.comm.block(self.block * self.comm.size(), self.comm.rank());
        block.start.min(self.len)..block.end.min(self.len)
    }

    /// The place for this rank's gradient of all parameters. It has what an earlier step left in it, or zeros. What is written there
    /// after an [update](Self::update) has to be [reduced](Self::start_reduce) before the next; what was reduced may be read and
    /// changed there before, as to clip it.
    ///
    /// # Errors
    /// [`CollectiveError`], also of what is under way, which it waits for; so with all that follow.
    pub fn gradient_mut(&mut self) -> Result<&mut [T], CollectiveError> {
        let len = self.len;
        if self.stage == Stage::Taken {
            self.stage = Stage::Own;
        }
        Ok(&mut self.gradient_slot()?.wait()?[..len])
    }

    /// Starts to reduce the gradient, each rank's shard of it to that rank (ZeRO-2 and 3).
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn start_reduce(&mut self) -> Result<(), CollectiveError> {
        let (comm, op) = (self.comm, self.op);
        self.stage = Stage::Reduced;
        self.gradient_slot()?.start(|gradient| comm.start().reduce_scatter(gradient, op))
    }

    /// Starts to reduce the gradient, all of it on all ranks (ZeRO-1): where its norm is needed, say.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn start_reduce_whole(&mut self) -> Result<(), CollectiveError> {
        let (comm, op) = (self.comm, self.op);
        self.stage = Stage::Reduced;
        self.gradient_slot()?.start(|gradient| comm.start().all_reduce(gradient, op))
    }

    /// Calls `update` with this rank's shard of the parameters and of the reduced gradient, which it waits for.
    ///
    /// # Errors
    /// [`CollectiveError`]; [`NotReduced`](CollectiveError::NotReduced) if nothing has begun to reduce the gradient since it was
    /// taken up again after the update before, or let go of.
    pub fn update(&mut self, update: impl FnOnce(&mut [T], &[T])) -> Result<(), CollectiveError> {
        if self.stage == Stage::Own {
            return Err(CollectiveError::NotReduced);
        }
        let own = self.own();
        let (len, comm) = (self.block * self.comm.size(), self.comm);
        let gradient = filled(&mut self.gradient, || comm.needed(comm.buffer(len)))?.wait()?;
        let parameters = match &mut self.parameters {
            Some(whole) => &mut whole.wait()?[own.clone()],
            None => &mut self.shard[..own.len()],
        };
        update(parameters, &gradient[own]);
        self.stage = Stage::Taken;
        Ok(())
    }

    /// Starts to collect the parameters of all shards on all ranks.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn start_gather(&mut self) -> Result<(), CollectiveError> {
        let comm = self.comm;
        self.parameters_slot()?.start(|whole| comm.start().all_gather(whole))
    }

    /// A whole step of ZeRO-2: reduces the gradient, calls `update`, and starts to collect the parameters.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn step(&mut self, update: impl FnOnce(&mut [T], &[T])) -> Result<(), CollectiveError> {
        self.start_reduce()?;
        self.update(update)?;
        self.start_gather()
    }

    /// All parameters, as they were collected last. Where they are released it collects them: then all ranks must call it.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn parameters(&mut self) -> Result<&[T], CollectiveError> {
        if self.parameters.is_none() {
            self.start_gather()?;
        }
        let len = self.len;
        Ok(&self.parameters_slot()?.wait()?[..len])
    }

    /// Lets go of the gradient's memory until it is needed (ZeRO-2).
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn release_gradient(&mut self) -> Result<(), CollectiveError> {
        if let Some(gradient) = &mut self.gradient {
            gradient.wait()?;
            (self.gradient, self.stage) = (None, Stage::Own);
        }
        Ok(())
    }

    /// Lets go of the gradient, and of all parameters but this rank's shard, until they are needed (ZeRO-3).
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn release(&mut self) -> Result<(), CollectiveError> {
        self.release_gradient()?;
        let padded = self.comm.block(self.block * self.comm.size(), self.comm.rank());
        if let Some(whole) = &mut self.parameters {
            self.shard = whole.wait()?[padded].to_vec();
            self.parameters = None;
        }
        Ok(())
    }

    /// Collects the shards of all ranks on `root`, which gets the parameters; the others get `None`.
    ///
    /// # Errors
    /// [`CollectiveError`]; [`RankFailed`](CollectiveError::RankFailed), on all ranks, where one has no memory for its part.
    pub fn checkpoint(&mut self, root: usize) -> Result<Option<Vec<T>>, CollectiveError> {
        let padded = self.comm.block(self.block * self.comm.size(), self.comm.rank());
        let is_root = self.comm.rank() == root;
        let mut shard = self.comm.needed(self.comm.buffer(self.block))?;
        match &mut self.parameters {
            Some(whole) => shard.copy_from_slice(&whole.wait()?[padded]),
            None => shard.copy_from_slice(&self.shard),
        }
        let whole = self.comm.buffer(if is_root { self.block * self.comm.size() } else { 0 });
        let mut whole = self.comm.needed(whole)?;
        self.comm.gather(&mut shard, &mut whole, root)?;
        Ok(is_root.then(|| whole[..self.len].to_vec()))
    }

    fn gradient_slot(&mut self) -> Result<&mut Slot<'a, CommBuffer<T>>, CollectiveError> {
        let (len, comm) = (self.block * self.comm.size(), self.comm);
        filled(&mut self.gradient, || comm.needed(comm.buffer(len)))
    }

    /// The place for all parameters, of which those of other ranks are not there yet where they were released.
    fn parameters_slot(&mut self) -> Result<&mut Slot<'a, CommBuffer<T>>, CollectiveError> {
        let (len, comm, shard) = (self.block * self.comm.size(), self.comm, &mut self.shard);
        filled(&mut self.parameters, || {
            let mut whole = comm.needed(comm.buffer(len))?;
            whole[comm.block(len, comm.rank())].copy_from_slice(&mem::take(shard));
            Ok(whole)
        })
    }
}

/// What a place has, or gets.
fn filled<'s, 'a, T: Element>(
    place: &'s mut Option<Slot<'a, CommBuffer<T>>>,
    buffer: impl FnOnce() -> Result<CommBuffer<T>, CollectiveError>,
) -> Result<&'s mut Slot<'a, CommBuffer<T>>, CollectiveError> {
    let slot = match place.take() {
        Some(slot) => slot,
        None => Slot::Here(buffer()?),
    };
    Ok(place.insert(slot))
}

impl<T: Element> fmt::Debug for Shards<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shards({} {}, own {:?})", self.len, T::TYPE, self.own())
    }
}
