//! ZeRO: the optimizer's states, the gradients and the parameters of a model, each rank holding a shard of them.
//!
//! Three layers are trained with Adam, once with everything on all ranks, and once in each of the three stages of ZeRO. All
//! have to come to the same parameters. The table tells what a rank holds between steps, in elements of f32: by the stage and
//! the length of its shards, it is not measured.
//!
//! # Run
//!
//! ```text
//! cargo run --release --example zero                            # 4 ranks, threads of one process
//! qpair launch -n 4 -- target/release/examples/zero             # 4 ranks, a process each
//! ```
//!
//! # Expected output
//!
//! ```text
//! 170003 parameters in 3 layers, 20 steps of Adam on 4 ranks
//! stage   parameters  gradient  states  ms/step  difference
//! none        170003    170003  340006     0.61
//! ZeRO-1      170003    170003   85002     0.55   0.0e0
//! ZeRO-2      170003         0   85002     0.41  6.0e-8
//! ZeRO-3       42501         0   85002     0.56  6.0e-8
//! all stages come to the same parameters on 4 ranks
//! ```
//!
//! Times depend on the machine. Differences come of the order of sums, which is another in an all-reduce than in a
//! reduce-scatter.
//!
//! # Troubleshooting
//!
//! - `parameters differ by ...`: ranks run different programs; start all of them by one launcher.
//! - It takes seconds: it was built without `--release`.

use std::process::ExitCode;
use std::time::Instant;

use qpair::collectives::training::{GradientBuckets, Shards};
use qpair::{Communicator, ReduceOp};
use ranks::Result;

#[path = "ranks/mod.rs"]
mod ranks;

const LAYERS: [usize; 3] = [100_003, 60_000, 10_000];
const STEPS: usize = 20;

fn main() -> ExitCode {
    ranks::run(|| Ok(Communicator::group(4)?), rank)
}

fn rank(comm: &Communicator) -> Result<()> {
    let is_first = comm.rank() == 0;
    let total: usize = LAYERS.iter().sum();
    if is_first {
        println!("{total} parameters in {} layers, {STEPS} steps of Adam on {} ranks", LAYERS.len(), comm.size());
        println!("stage   parameters  gradient  states  ms/step  difference");
    }
    let start = Instant::now();
    let expected = unsharded(comm)?;
    if is_first {
        let time = start.elapsed().as_secs_f64() * 1e3 / STEPS as f64;
        println!("none    {total:>10}  {total:>8}  {:>6}  {time:>7.2}", 2 * total);
    }
    for stage in 1..=3 {
        let start = Instant::now();
        let (layers, held) = sharded(comm, stage)?;
        let time = start.elapsed().as_secs_f64() * 1e3 / STEPS as f64;
        let pairs = layers.iter().flatten().zip(expected.iter().flatten());
        let differences = pairs.map(|(a, b)| (a - b).abs());
        let difference = differences.max_by(f32::total_cmp).unwrap_or(0.0);
        if difference.is_nan() || difference > 1e-4 {
            return Err(format!("parameters differ by {difference} in ZeRO-{stage} from those without").into());
        }
        let [parameters, gradient, states] = held;
        if is_first {
            println!("ZeRO-{stage}  {parameters:>10}  {gradient:>8}  {states:>6}  {time:>7.2}  {difference:>6.1e}");
        }
    }
    if is_first {
        println!("all stages come to the same parameters on {} ranks", comm.size());
    }
    Ok(())
}

/// Data parallel: each rank holds all, and updates all.
fn unsharded(comm: &Communicator) -> Result<Vec<Vec<f32>>> {
    let mut layers = LAYERS.map(first_parameters);
    let mut states = LAYERS.map(Adam::new);
    let mut buckets = GradientBuckets::with(comm, &LAYERS, 1 << 18, ReduceOp::Avg)?;
    for step in 0..STEPS {
        for (number, layer) in layers.iter().enumerate().rev() {
            buckets.add_with(number, |place| gradient(comm.rank(), step, layer, place))?;
        }
        let gradients = buckets.finish()?;
        for (number, (layer, state)) in layers.iter_mut().zip(&mut states).enumerate() {
            state.update(layer, gradients.gradient(number));
        }
    }
    Ok(layers.into())
}

/// Gives the layers, and how many elements this rank held of parameters, gradients and states between steps, by what the stage
/// says of them.
fn sharded(comm: &Communicator, stage: u32) -> Result<(Vec<Vec<f32>>, [usize; 3])> {
    let first = |&len: &usize| Ok(Shards::new(comm, &first_parameters(len))?);
    let mut layers: Vec<Shards<'_, f32>> = LAYERS.iter().map(first).collect::<Result<_>>()?;
    let mut states: Vec<_> = layers.iter().map(|layer| Adam::new(layer.own().len())).collect();
    for step in 0..STEPS {
        // The backward pass: a layer's gradient is reduced while that of the one before it is computed.
        for layer in layers.iter_mut().rev() {
            let parameters = layer.parameters()?.to_vec();
            gradient(comm.rank(), step, &parameters, layer.gradient_mut()?);
            if stage == 1 { layer.start_reduce_whole()? } else { layer.start_reduce()? }
        }
        for (layer, state) in layers.iter_mut().zip(&mut states).rev() {
            layer.update(|parameters, gradient| state.update(parameters, gradient))?;
            match stage {
                1 => layer.start_gather()?,
                2 => {
                    layer.release_gradient()?;
                    layer.start_gather()?;
                }
                _ => layer.release()?,
            }
        }
    }
    let own: usize = layers.iter().map(|layer| layer.own().len()).sum();
    let (all, states) = (LAYERS.iter().sum(), states.iter().map(|state| 2 * state.mean.len()).sum());
    let held = [if stage == 3 { own } else { all }, if stage == 1 { all } else { 0 }, states];
    let layers = layers.iter_mut().map(|layer| Ok(layer.parameters()?.to_vec())).collect::<Result<_>>()?;
    Ok((layers, held))
}

fn first_parameters(len: usize) -> Vec<f32> {
    (0..len).map(|at| (at % 17) as f32 / 17.0).collect()
}

/// Each rank pulls its part of the data another way; their mean pulls to 0.5.
fn gradient(rank: usize, step: usize, parameters: &[f32], gradient: &mut [f32]) {
    for (at, (gradient, parameter)) in gradient.iter_mut().zip(parameters).enumerate() {
        *gradient = parameter - 0.5 + ((at + rank * 7 + step) % 5) as f32 / 10.0 - 0.2;
    }
}

/// The optimizer, with its two states per parameter.
struct Adam {
    mean: Vec<f32>,
    square: Vec<f32>,
    steps: i32,
}

impl Adam {
    fn new(len: usize) -> Self {
        Self { mean: vec![0.0; len], square: vec![0.0; len], steps: 0 }
    }

    fn update(&mut self, parameters: &mut [f32], gradient: &[f32]) {
        self.steps += 1;
        let [first, second] = [0.9_f32, 0.999].map(|beta| 1.0 - beta.powi(self.steps));
        let states = self.mean.iter_mut().zip(&mut self.square);
        for ((parameter, gradient), (mean, square)) in parameters.iter_mut().zip(gradient).zip(states) {
            *mean = 0.9 * *mean + 0.1 * gradient;
            *square = 0.999 * *square + 0.001 * gradient * gradient;
            *parameter -= 0.01 * (*mean / first) / ((*square / second).sqrt() + 1e-3);
        }
    }
}
