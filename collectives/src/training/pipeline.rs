//! Stages of a model on ranks, one after the other.

use std::fmt;

use qpair_verbs::calc::Element;

use super::schedule::{Work, one_forward_one_backward};
use super::slot::Slot;
use crate::communicator::{CommBuffer, Communicator};
use crate::error::CollectiveError;

/// A part of a model, as a rank of a [`Pipeline`] runs it.
///
/// A stage keeps what its backward pass needs of a micro-batch: of at most as many at once as there are stages from it on.
pub trait Stage<T> {
    /// The forward pass of a micro-batch: makes `output` of `input`. The first stage has an empty input, and takes its own
    /// data; the last has an empty output, and keeps its loss.
    fn forward(&mut self, micro_batch: usize, input: &[T], output: &mut [T]);

    /// Its backward pass: makes the gradient of the input of that of the output. The last stage has an empty `output`, and
    /// begins with its loss; the first has an empty `input`.
    fn backward(&mut self, micro_batch: usize, output: &[T], input: &mut [T]);
}

/// The stages of a model, each on a rank, in the order of ranks: activations go to the next rank, gradients back to the
/// one before. Each transfer is under way while the stages compute; the order of work is that of
/// [`one_forward_one_backward`].
///
/// ```
/// use qpair_collectives::Communicator;
/// use qpair_collectives::training::{Pipeline, Stage};
///
/// /// Multiplies by a weight; the loss is the sum of what comes out.
/// struct Scale {
///     weight: f32,
///     gradient: f32,
///     inputs: Vec<f32>,
/// }
///
/// impl Stage<f32> for Scale {
///     fn forward(&mut self, micro_batch: usize, input: &[f32], output: &mut [f32]) {
///         let x = input.first().copied().unwrap_or(micro_batch as f32);
///         self.inputs.push(x); // kept for the backward pass
///         output.iter_mut().for_each(|y| *y = self.weight * x);
///     }
///
///     fn backward(&mut self, micro_batch: usize, output: &[f32], input: &mut [f32]) {
///         let dy = output.first().copied().unwrap_or(1.0);
///         self.gradient += dy * self.inputs[micro_batch];
///         input.iter_mut().for_each(|dx| *dx = self.weight * dy);
///     }
/// }
///
/// let ranks = Communicator::group(3)?;
/// std::thread::scope(|scope| {
///     for comm in ranks {
///         scope.spawn(move || {
///             let mut pipeline = Pipeline::<f32>::new(&comm, 1, 1)?;
///             let mut stage = Scale { weight: 2.0, gradient: 0.0, inputs: Vec::new() };
///             pipeline.run(4, &mut stage)?;
///             assert_eq!(stage.gradient, 4.0 * (0.0 + 1.0 + 2.0 + 3.0)); // 2 x 2, wherever the stage is
///             comm.barrier() // the first stages are at work when the last is done
///         });
///     }
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Pipeline<'a, T: Element> {
    comm: &'a Communicator,
    inputs: Lane<'a, T>,
    outputs: Lane<'a, T>,
    output_gradients: Lane<'a, T>,
    input_gradients: Lane<'a, T>,
}

impl<'a, T: Element> Pipeline<'a, T> {
    /// This rank's stage takes `input` elements per micro-batch, and gives `output`; what it gives is what the next takes.
    /// Nothing comes to the first stage, and nothing leaves the last, so theirs do not count.
    ///
    /// # Errors
    /// [`CollectiveError::Memory`] if there is no memory.
    pub fn new(comm: &'a Communicator, input: usize, output: usize) -> Result<Self, CollectiveError> {
        let before = comm.rank().checked_sub(1);
        let after = Some(comm.rank() + 1).filter(|&next| next < comm.size());
        Ok(Self {
            comm,
            inputs: Lane::new(comm, input, before)?,
            outputs: Lane::new(comm, output, after)?,
            output_gradients: Lane::new(comm, output, after)?,
            input_gradients: Lane::new(comm, input, before)?,
        })
    }

    /// Takes so many micro-batches, the same number on all ranks, forward and back through the stages.
    ///
    /// # Errors
    /// [`CollectiveError`]; if a stage takes another length than the one before it gives, both are named.
    pub fn run(&mut self, micro_batches: usize, stage: &mut impl Stage<T>) -> Result<(), CollectiveError> {
        for lane in [&mut self.inputs, &mut self.output_gradients] {
            lane.expect_first(micro_batches)?;
        }
        for work in one_forward_one_backward(self.comm.rank(), self.comm.size(), micro_batches) {
            match work {
                Work::Forward(micro) => {
                    stage.forward(micro, self.inputs.wait(micro)?, self.outputs.wait(micro)?);
                    self.inputs.expect_after(micro, micro_batches)?;
                    self.outputs.send(micro)?;
                }
                Work::Backward(micro) => {
                    stage.backward(micro, self.output_gradients.wait(micro)?, self.input_gradients.wait(micro)?);
                    self.output_gradients.expect_after(micro, micro_batches)?;
                    self.input_gradients.send(micro)?;
                }
            }
        }
        for lane in [&mut self.outputs, &mut self.input_gradients] {
            lane.finish()?;
        }
        Ok(())
    }
}

/// What goes to a neighbour, or comes from it: one vector is used while another is under way.
struct Lane<'a, T: Element> {
    comm: &'a Communicator,
    /// `None` at the ends of the pipeline: nothing comes, nothing goes.
    peer: Option<usize>,
    vectors: [Slot<'a, CommBuffer<T>>; 2],
}

impl<'a, T: Element> Lane<'a, T> {
    fn new(comm: &'a Communicator, len: usize, peer: Option<usize>) -> Result<Self, CollectiveError> {
        let len = if peer.is_some() { len } else { 0 };
        Ok(Self { comm, peer, vectors: [Slot::Here(comm.buffer(len)?), Slot::Here(comm.buffer(len)?)] })
    }

    /// The vector of a micro-batch, once it came, or what was in it before has gone.
    fn wait(&mut self, micro: usize) -> Result<&mut [T], CollectiveError> {
        Ok(&mut self.vectors[micro % 2].wait()?[..])
    }

    fn send(&mut self, micro: usize) -> Result<(), CollectiveError> {
        let (comm, Some(peer)) = (self.comm, self.peer) else { return Ok(()) };
        self.vectors[micro % 2].start(|vector| comm.start().send(vector, peer))
    }

    /// Receives the first micro-batches, as far as there are vectors.
    fn expect_first(&mut self, micro_batches: usize) -> Result<(), CollectiveError> {
        (0..self.vectors.len().min(micro_batches)).try_for_each(|micro| self.expect(micro))
    }

    /// Receives the micro-batch that takes the vector of one that was used.
    fn expect_after(&mut self, micro: usize, micro_batches: usize) -> Result<(), CollectiveError> {
        let next = micro + self.vectors.len();
        if next < micro_batches { self.expect(next) } else { Ok(()) }
    }

    fn expect(&mut self, micro: usize) -> Result<(), CollectiveError> {
        let (comm, Some(peer)) = (self.comm, self.peer) else { return Ok(()) };
        self.vectors[micro % 2].start(|vector| comm.start().recv(vector, peer))
    }

    fn finish(&mut self) -> Result<(), CollectiveError> {
        self.vectors.iter_mut().try_for_each(|vector| vector.wait().map(|_| ()))
    }
}

impl<T: Element> fmt::Debug for Pipeline<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pipeline(stage {} of {}, {})", self.comm.rank(), self.comm.size(), T::TYPE)
    }
}
