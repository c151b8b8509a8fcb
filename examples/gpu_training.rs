//! Data-parallel training in memory of GPUs: each rank has a replica of a model on its GPU, and the gradients of all are
//! averaged there. No CUDA toolkit is needed, and nothing but the loss comes to the processor.
//!
//! The model has a weight per feature, `prediction = weight * feature`, in three layers of features. So its gradient is made of
//! products and sums of vectors, for which there are kernels in the library. They are done when their call returns; with kernels of
//! your own, in a stream of your own, `record_in` and `hold_in` take the place of `record` and `hold` below: then the stream is
//! given the backward pass, the reductions and the update at once, and the processor only sees to the operations.
//!
//! # Run
//!
//! ```text
//! cargo run --release --features cuda --example gpu_training                 # a rank per GPU, threads of one process
//! qpair launch -n 4 -- target/release/examples/gpu_training                  # 4 ranks, a process each, on the GPUs there are
//! ```
//!
//! # Expected output
//!
//! ```text
//! 3 layers of 50000 weights in memory of GPUs, 40 steps on 2 ranks
//! step  0: loss 0.4270
//! step 39: loss 0.0000
//! the loss has fallen, and the replicas are bit-identical on 2 ranks
//! ```
//!
//! # Troubleshooting
//!
//! - `this program was built without GPU memory`: add `--features cuda`.
//! - `no CUDA driver`: install NVIDIA's driver, and let the container see the GPU. The other examples need none.
//! - `streams of GPU 0 can not wait for the processor`: this GPU or driver has no `cuStreamWaitValue32`; leave out `before`, and
//!   update after `wait`, as this example does anyway.

use std::process::ExitCode;

use qpair::collectives::OnGpu;
use qpair::verbs::calc::{Calc, Scale};
use qpair::verbs::{Gpu, GpuBuffer, GpuEvent};
use qpair::{CommBuffer, Communicator, DataType, ReduceOp};
use ranks::Result;

#[path = "ranks/mod.rs"]
mod ranks;

fn main() -> ExitCode {
    // One rank each: threads that share a GPU would share its default stream.
    ranks::run(|| Ok(Communicator::group_on(&gpus()?)?), rank)
}

fn gpus() -> Result<Vec<Gpu>> {
    Ok((0..Gpu::count()?).map(Gpu::open).collect::<std::result::Result<_, _>>()?)
}

fn rank(comm: &Communicator) -> Result<()> {
    train(comm, Gpu::open(comm.local_rank() % Gpu::count()?.max(1))?)
}

fn train(comm: &Communicator, gpu: Gpu) -> Result<()> {
    let is_first = comm.rank() == 0;
    if is_first {
        println!("{LAYERS} layers of {LEN} weights in memory of GPUs, {STEPS} steps on {} ranks", comm.size());
    }
    let mut layers = (0..LAYERS).map(|number| Layer::new(comm, gpu, number)).collect::<Result<Vec<_>>>()?;
    prepare(comm, &mut layers)?;
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let mut loss = 0.0;
        let mut reductions = Vec::new();
        // The backward pass: a layer's gradient is reduced beside the computation of those of the layers below, as far as each
        // call of the communicator takes it.
        for layer in layers.iter_mut().rev() {
            let gradient = layer.gradient.take().ok_or("a layer without its gradient")?;
            let gradient = layer.backward(gradient)?;
            if step % (STEPS - 1) == 0 {
                loss += layer.loss()?;
            }
            let written = gpu.record()?;
            reductions.push(comm.start().after(&written).all_reduce(comm.gpu_vector::<f32>(gradient), ReduceOp::Avg)?);
        }
        // Now that all is recorded that reductions begin after, which would wait behind a hold, the stream can be held up: until
        // each of them has ended, in their order.
        let updates = reductions.iter().map(|pending| between(gpu, pending)).collect::<Result<Vec<_>>>()?;
        for ((layer, pending), goes_on) in layers.iter_mut().rev().zip(reductions).zip(updates) {
            let gradient = pending.wait()?.into_gpu_buffer().ok_or("a vector without elements")?;
            // Kernels that were given to the stream behind its hold would be under way, while the others are reduced.
            goes_on.wait()?;
            layer.update(&gradient)?;
            layer.gradient = Some(gradient);
        }
        if step % (STEPS - 1) == 0 {
            let loss = mean(comm, loss / (LAYERS * LEN) as f32)?;
            losses.push(loss);
            if is_first {
                println!("step {step:2}: loss {loss:.4}");
            }
        }
    }
    if losses.last() >= losses.first() {
        return Err(format!("the loss has not fallen: {losses:?}").into());
    }
    for layer in &layers {
        layer.check_replicas(comm)?;
    }
    if is_first {
        println!("the loss has fallen, and the replicas are bit-identical on {} ranks", comm.size());
    }
    Ok(())
}

type Pending<'a> = qpair::collectives::Pending<'a, CommBuffer<f32, OnGpu>>;

/// Does once, with gradients of zeroes, what a step does: as many reductions at once, and the update. It loads kernels and takes
/// memory, for which a driver may wait for all streams; so none may be held up yet.
fn prepare(comm: &Communicator, layers: &mut [Layer]) -> Result<()> {
    let mut reductions = Vec::new();
    for layer in layers.iter_mut() {
        let gradient = layer.gradient.take().ok_or("a layer without its gradient")?;
        reductions.push(comm.start().all_reduce(comm.gpu_vector::<f32>(gradient), ReduceOp::Avg)?);
    }
    for (layer, pending) in layers.iter_mut().zip(reductions) {
        let gradient = pending.wait()?.into_gpu_buffer().ok_or("a vector without elements")?;
        layer.update(&gradient)?;
        layer.gradient = Some(gradient);
    }
    Ok(())
}

/// Holds the GPU's stream up until a reduction has ended. The event is done once the stream goes on.
fn between(gpu: Gpu, pending: &Pending<'_>) -> Result<GpuEvent> {
    pending.before(gpu.hold()?);
    // Here the stream would be given the kernels that update the weights.
    Ok(gpu.record()?)
}

/// Weights, and what is to be learnt: targets for this rank's features. All but the loss stays on the GPU.
struct Layer {
    weights: GpuBuffer,
    features: GpuBuffer,
    /// The targets with their sign turned, to be added.
    targets: GpuBuffer,
    /// By how much predictions are off.
    errors: GpuBuffer,
    /// Away while it is reduced.
    gradient: Option<GpuBuffer>,
}

impl Layer {
    fn new(comm: &Communicator, gpu: Gpu, number: usize) -> Result<Layer> {
        // Each rank has features of its own; the weights that explain all of them are the same.
        let feature = |at: usize| 0.5 + ((at * 7 + comm.rank() * 31 + number) % 64) as f32 / 64.0;
        let target = |at: usize| -feature(at) * (((at + number) % 11) as f32 / 5.0 - 1.0);
        Ok(Layer {
            weights: vector(gpu, |_| 0.0)?,
            features: vector(gpu, feature)?,
            targets: vector(gpu, target)?,
            errors: vector(gpu, |_| 0.0)?,
            gradient: Some(vector(gpu, |_| 0.0)?),
        })
    }

    /// The gradient of half the squared error: `(weight * feature - target) * feature`.
    fn backward(&mut self, mut gradient: GpuBuffer) -> Result<GpuBuffer> {
        let (times, plus) = (Calc::of::<f32>(ReduceOp::Prod), Calc::of::<f32>(ReduceOp::Sum));
        self.errors.copy_from(0, &self.weights, 0, BYTES)?;
        self.errors.combine_from((0, &self.features, 0), BYTES, times)?;
        self.errors.combine_from((0, &self.targets, 0), BYTES, plus)?;
        gradient.copy_from(0, &self.errors, 0, BYTES)?;
        gradient.combine_from((0, &self.features, 0), BYTES, times)?;
        Ok(gradient)
    }

    /// `weight -= RATE * gradient`, with the errors' memory in between.
    fn update(&mut self, gradient: &GpuBuffer) -> Result<()> {
        self.errors.copy_from(0, gradient, 0, BYTES)?;
        self.errors.scale(0, BYTES, DataType::F32, Scale::Multiply(-RATE))?;
        Ok(self.weights.combine_from((0, &self.errors, 0), BYTES, Calc::of::<f32>(ReduceOp::Sum))?)
    }

    /// The squared error of this rank's features, as of the last backward pass.
    fn loss(&self) -> Result<f32> {
        Ok(floats(&self.errors)?.iter().map(|error| error * error).sum())
    }

    /// Compares the bits of the weights with those of all ranks.
    fn check_replicas(&self, comm: &Communicator) -> Result<()> {
        let own: Vec<u32> = floats(&self.weights)?.into_iter().map(f32::to_bits).collect();
        for op in [ReduceOp::Min, ReduceOp::Max] {
            let mut all = comm.buffer::<u32>(LEN)?;
            all.copy_from_slice(&own);
            comm.all_reduce(&mut all, op)?;
            if all[..] != own[..] {
                return Err("the replicas are not the same".into());
            }
        }
        Ok(())
    }
}

/// A vector on the GPU.
fn vector(gpu: Gpu, element: impl Fn(usize) -> f32) -> Result<GpuBuffer> {
    let bytes: Vec<u8> = (0..LEN).flat_map(|at| element(at).to_ne_bytes()).collect();
    let mut vector = gpu.alloc(BYTES)?;
    vector.write(0, &bytes)?;
    Ok(vector)
}

fn floats(vector: &GpuBuffer) -> Result<Vec<f32>> {
    let mut bytes = vec![0; vector.len()];
    vector.read(0, &mut bytes)?;
    Ok(bytes.chunks_exact(4).map(|four| f32::from_ne_bytes([four[0], four[1], four[2], four[3]])).collect())
}

fn mean(comm: &Communicator, value: f32) -> Result<f32> {
    let mut vector = comm.buffer::<f32>(1)?;
    vector[0] = value;
    comm.all_reduce(&mut vector, ReduceOp::Avg)?;
    Ok(vector[0])
}

const LAYERS: usize = 3;
/// Weights of a layer.
const LEN: usize = if cfg!(test) { 3_000 } else { 50_000 };
const BYTES: usize = LEN * 4;
const STEPS: usize = 40;
const RATE: f64 = 0.3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(feature = "cuda")]
    fn it_trains_on_a_driver_in_memory_on_one_gpu_and_on_several() {
        for count in [1, 3] {
            let gpu = || qpair_fake_cuda::control::add_device().expect("the library is built beside the tests");
            let comms = Communicator::group(count).expect("a group");
            std::thread::scope(|scope| {
                for comm in comms {
                    let gpu = gpu();
                    scope.spawn(move || {
                        train(&comm, Gpu::open(gpu.ordinal() as usize).expect("a GPU")).expect("trained");
                        assert_eq!(gpu.violations(), "");
                        // No kernel is loaded once the stream has been held.
                        let calls = gpu.calls();
                        let mut held = calls.lines().skip_while(|call| !call.starts_with("cuStreamWaitValue32"));
                        assert!(held.next().is_some() && held.all(|call| !call.starts_with("cuModuleLoadData")));
                        // It is done with the stream, and has had it held.
                        assert!(gpu.count("cuStreamWaitValue32").expect("a device") >= (STEPS * LAYERS) as u64);
                    });
                }
            });
        }
    }

    #[test]
    #[cfg(not(feature = "cuda"))]
    fn built_without_gpus_it_says_how_to_build_it() {
        let error = Gpu::count().unwrap_err().to_string();
        assert!(error.contains("build it with the feature `cuda`"), "{error}");
    }
}
