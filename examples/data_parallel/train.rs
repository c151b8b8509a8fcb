//! The training loop of one rank.

use std::time::Instant;

use qpair::collectives::training::{GradientBuckets, broadcast_parameters};
use qpair::{CommBuffer, Communicator, ReduceOp};

use crate::Result;
use crate::data::{Digits, Image};
use crate::model::{Network, Workspace};
use crate::report::{Epoch, Report};
use crate::rng::Rng;

/// What to train, the same on every rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Passes over the training images.
    pub epochs: usize,
    /// Images in one batch, over all ranks.
    pub batch: usize,
    /// Neurons of the hidden layer.
    pub hidden: usize,
    /// Step along the gradient in the first epoch; it falls in a straight line, to 0 after the last.
    pub learning_rate: f32,
    /// Bytes of one gradient bucket.
    pub bucket_bytes: usize,
    /// Of the first parameters and of the order of images.
    pub seed: u64,
}

/// Settings that do not fit together, or ranks that do not.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum TrainError {
    /// Each rank takes the same share of a batch.
    #[error("a batch of {batch} can not be split over {ranks} ranks; choose --batch as a multiple of {ranks}")]
    BatchNotDivisible {
        /// Images in one batch.
        batch: usize,
        /// Ranks to share it.
        ranks: usize,
    },
    /// There must be at least one batch, of at least one image.
    #[error("a batch of {batch} out of {images} training images; choose --batch from 1 to {images}")]
    BatchOutOfRange {
        /// Images in one batch.
        batch: usize,
        /// Images in all.
        images: usize,
    },
    /// There is nothing to report on.
    #[error("no epochs; choose --epochs as 1 or more")]
    NoEpochs,
    /// The loss is no longer a number.
    #[error("the loss is {loss} in epoch {epoch}: the parameters ran away; choose a smaller --lr")]
    Diverged {
        /// Counted from 1.
        epoch: usize,
        /// Infinite or not a number.
        loss: f64,
    },
    /// A network without a hidden layer can not be trained here.
    #[error("a hidden layer of 0 neurons; choose --hidden as 1 or more")]
    NoHiddenLayer,
    /// The ranks' parameters are not the same bits.
    #[error(
        "parameters differ between ranks (hashes from {least:016x} to {greatest:016x}); start all ranks with one command line"
    )]
    ParametersDiffer {
        /// The least of the ranks' hashes.
        least: u64,
        /// The greatest.
        greatest: u64,
    },
}

/// Trains as one rank of `comm`; every rank calls it with the same `digits` and `settings`.
///
/// # Errors
/// [`TrainError`], and those of the communicator.
pub fn train(comm: &Communicator, digits: &Digits, settings: &Settings) -> Result<Report> {
    settings.check(comm.size(), digits.training.len())?;
    let begin = Instant::now();
    let mut trainer = Trainer::new(comm, settings)?;
    let mut order: Vec<&Image> = digits.training.iter().collect();
    let mut rng = Rng::new(settings.seed); // not trainer's: the order must not depend on the network
    let mut epochs = Vec::with_capacity(settings.epochs);
    for done in 0..settings.epochs {
        rng.shuffle(&mut order);
        let remaining = 1.0 - done as f32 / settings.epochs as f32;
        let loss = trainer.learn(&order, remaining * settings.learning_rate)?;
        epochs.push(trainer.score(loss, &order, &digits.held_out)?);
        if !epochs[done].loss.is_finite() {
            return Err(TrainError::Diverged { epoch: done + 1, loss: epochs[done].loss }.into());
        }
    }
    Ok(Report {
        rank: comm.rank(),
        size: comm.size(),
        epochs,
        settings: settings.clone(),
        held_out: digits.held_out.len(),
        parameters: trainer.parameters.len(),
        buckets: trainer.buckets.buckets(),
        hash: agreed_hash(comm, &trainer.parameters)?,
        seconds: begin.elapsed().as_secs_f64(),
    })
}

/// One rank's model and what it needs between batches.
struct Trainer<'a> {
    comm: &'a Communicator,
    settings: &'a Settings,
    network: Network,
    parameters: Vec<f32>,
    velocity: Vec<f32>,
    /// A neuron's gradient is a parameter's; the last layer's come first.
    buckets: GradientBuckets<'a, f32>,
    sums: CommBuffer<f64>,
    work: Workspace,
}

impl<'a> Trainer<'a> {
    /// Every rank starts with the parameters that rank 0 draws.
    fn new(comm: &'a Communicator, settings: &'a Settings) -> Result<Self> {
        let network = Network::new(settings.hidden);
        let mut parameters = vec![0.0; network.parameters()];
        if comm.rank() == 0 {
            network.initialize(&mut parameters, &mut Rng::new(!settings.seed));
        }
        broadcast_parameters(comm, &mut [&mut parameters], 0)?;
        let mut neurons: Vec<usize> = network.neurons().collect();
        neurons.reverse(); // into forward order
        Ok(Self {
            comm,
            settings,
            network,
            velocity: vec![0.0; parameters.len()],
            buckets: GradientBuckets::with(comm, &neurons, settings.bucket_bytes, ReduceOp::Sum)?,
            sums: comm.buffer::<f64>(2)?,
            parameters,
            work: Workspace::default(),
        })
    }

    /// One pass over `order` with steps of `rate`, batch by batch; the last images that make no whole batch are left
    /// out. Returns the sum of the losses of this rank's images.
    fn learn(&mut self, order: &[&Image], rate: f32) -> Result<f64> {
        let share = self.settings.batch / self.comm.size();
        let scale = 1.0 / self.settings.batch as f32;
        let mut loss = 0.0;
        for batch in order.chunks_exact(self.settings.batch) {
            let mine = &batch[self.comm.rank() * share..][..share];
            let mut neurons = (0..self.network.neurons().count()).rev();
            let emit = |piece: &[f32]| match neurons.next() {
                Some(neuron) => self.buckets.add(neuron, piece),
                None => Ok(()),
            };
            loss += self.network.gradient(&self.parameters, mine, scale, &mut self.work, emit)?;
            self.descend(rate)?;
        }
        Ok(loss)
    }

    /// Stochastic gradient descent with momentum.
    fn descend(&mut self, rate: f32) -> Result<()> {
        let neurons = (0..self.network.neurons().count()).rev();
        let gradients = self.buckets.finish()?;
        let sum = neurons.flat_map(|neuron| gradients.gradient(neuron));
        let state = self.parameters.iter_mut().zip(&mut self.velocity);
        for ((parameter, velocity), gradient) in state.zip(sum) {
            *velocity = MOMENTUM * *velocity + gradient;
            *parameter -= rate * *velocity;
        }
        Ok(())
    }

    /// Sums the loss over all ranks, and classifies the held-out images, each rank its share.
    fn score(&mut self, loss: f64, order: &[&Image], held_out: &[Image]) -> Result<Epoch> {
        let mine = held_out.iter().skip(self.comm.rank()).step_by(self.comm.size());
        let (network, parameters, work) = (self.network, &self.parameters, &mut self.work);
        let correct = mine.filter(|image| network.classify(parameters, image, work) == image.label).count();
        self.sums.copy_from_slice(&[loss, correct as f64]);
        self.comm.all_reduce(&mut self.sums, ReduceOp::Sum)?;
        let learnt = order.len() - order.len() % self.settings.batch;
        Ok(Epoch {
            loss: self.sums[0] / learnt as f64,
            correct: self.sums[1] as usize,
            accuracy_percent: 100.0 * self.sums[1] / held_out.len() as f64,
        })
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self { epochs: 20, batch: 64, hidden: 128, learning_rate: 0.2, bucket_bytes: 8192, seed: 1 }
    }
}

impl Settings {
    fn check(&self, ranks: usize, images: usize) -> std::result::Result<(), TrainError> {
        let batch = self.batch;
        if batch == 0 || batch > images {
            return Err(TrainError::BatchOutOfRange { batch, images });
        }
        if !batch.is_multiple_of(ranks) {
            return Err(TrainError::BatchNotDivisible { batch, ranks });
        }
        if self.epochs == 0 {
            return Err(TrainError::NoEpochs);
        }
        if self.hidden == 0 {
            return Err(TrainError::NoHiddenLayer);
        }
        Ok(())
    }
}

/// Compares the hash of this rank's parameters with that of every other rank, by its least and greatest value.
fn agreed_hash(comm: &Communicator, parameters: &[f32]) -> Result<u64> {
    let hash = hash_bits(parameters);
    let extreme = |op| -> Result<u64> {
        let mut halves = comm.buffer::<i64>(2)?; // each half fits in an i64 without touching its sign
        halves.copy_from_slice(&[(hash >> 32) as i64, (hash & 0xFFFF_FFFF) as i64]);
        comm.all_reduce(&mut halves, op)?;
        Ok((halves[0] as u64) << 32 | halves[1] as u64)
    };
    let (least, greatest) = (extreme(ReduceOp::Min)?, extreme(ReduceOp::Max)?);
    if least != greatest {
        return Err(TrainError::ParametersDiffer { least, greatest }.into());
    }
    Ok(hash)
}

/// FNV-1a over the bits of each value.
fn hash_bits(values: &[f32]) -> u64 {
    let bytes = values.iter().flat_map(|value| value.to_bits().to_le_bytes());
    bytes.fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}

/// The share of the last step that is kept in the next.
const MOMENTUM: f32 = 0.9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_sees_every_bit() {
        assert_eq!(hash_bits(&[]), 0xCBF2_9CE4_8422_2325);
        assert_ne!(hash_bits(&[0.0]), hash_bits(&[-0.0]));
        assert_ne!(hash_bits(&[1.0, 2.0]), hash_bits(&[2.0, 1.0]));
    }

    #[test]
    fn a_rank_that_differs_is_found() {
        let group = Communicator::group(2).unwrap();
        let check = |comm: Communicator| {
            let equal = agreed_hash(&comm, &[1.0, 2.0]).unwrap();
            assert_eq!(equal, hash_bits(&[1.0, 2.0]));
            let differs = agreed_hash(&comm, &[1.0, comm.rank() as f32]).unwrap_err();
            matches!(differs.downcast_ref(), Some(TrainError::ParametersDiffer { .. }))
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = group.into_iter().map(|comm| scope.spawn(move || check(comm))).collect();
            threads.into_iter().for_each(|thread| assert!(thread.join().unwrap()));
        });
    }

    #[test]
    fn settings_that_do_not_fit_are_refused() {
        let none = Settings { epochs: 0, ..Settings::default() };
        assert_eq!(none.check(1, 100), Err(TrainError::NoEpochs));
        let check = |batch, hidden, ranks| Settings { batch, hidden, ..Settings::default() }.check(ranks, 100);
        assert_eq!(check(64, 8, 4), Ok(()));
        assert_eq!(check(0, 8, 4), Err(TrainError::BatchOutOfRange { batch: 0, images: 100 }));
        assert_eq!(check(128, 8, 4), Err(TrainError::BatchOutOfRange { batch: 128, images: 100 }));
        assert_eq!(check(64, 8, 3), Err(TrainError::BatchNotDivisible { batch: 64, ranks: 3 }));
        assert_eq!(check(64, 0, 4), Err(TrainError::NoHiddenLayer));
    }
}
