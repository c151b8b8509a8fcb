//! Pipeline parallelism: the layers of a model on ranks, one after the other, micro-batches on their way through them.
//!
//! Each rank holds a dense layer. Activations go to the next rank and gradients back, each transfer under way while the ranks
//! compute, in the order of 1F1B. Every rank checks its gradient against that of the whole model, which it computes alone.
//!
//! # Run
//!
//! ```text
//! cargo run --release --example pipeline                            # 4 stages, threads of one process
//! qpair launch -n 4 -- target/release/examples/pipeline             # 4 stages, a process each
//! ```
//!
//! # Expected output
//!
//! ```text
//! 4 stages, a layer of 32 x 32 each; 12 micro-batches of 16 samples per step
//! stage 0 works in the order F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 F8 B5 F9 B6 F10 B7 F11 B8 B9 B10 B11
//! step  1: loss 0.3182, 2.31 ms
//! step  2: loss 0.3113, 1.09 ms
//! ...
//! step 10: loss 0.0868, 1.05 ms
//! gradients on 4 stages are those of the whole model
//! ```
//!
//! Times and the last digits of losses depend on the machine. Stages work at once only where each has a core.
//!
//! # Troubleshooting
//!
//! - `the gradient differs by ...`: ranks run different programs; start all of them by one launcher.
//! - An error that names two lengths of a transfer: the layers of two neighbours do not fit.

use std::process::ExitCode;
use std::time::Instant;

use qpair::collectives::training::{Pipeline, Stage, Work, one_forward_one_backward};
use qpair::{Communicator, ReduceOp};
use ranks::Result;

#[path = "ranks/mod.rs"]
mod ranks;

const WIDTH: usize = 32;
const SAMPLES: usize = 16;
const MICRO_BATCHES: usize = 12;
const STEPS: usize = 10;
const RATE: f32 = 2.0;

fn main() -> ExitCode {
    ranks::run(|| Ok(Communicator::group(4)?), rank)
}

fn rank(comm: &Communicator) -> Result<()> {
    let (me, stages) = (comm.rank(), comm.size());
    if me == 0 {
        println!(
            "{stages} stages, a layer of {WIDTH} x {WIDTH} each; {MICRO_BATCHES} micro-batches of {SAMPLES} samples per step"
        );
        let order = one_forward_one_backward(0, stages, MICRO_BATCHES).map(|work| match work {
            Work::Forward(micro) => format!(" F{micro}"),
            Work::Backward(micro) => format!(" B{micro}"),
        });
        println!("stage 0 works in the order{}", order.collect::<String>());
    }
    let mut layers: Vec<Layer> = (0..stages).map(Layer::new).collect(); // the whole model, to compare with
    let mut own = Layer::new(me);
    let mut pipeline = Pipeline::new(comm, SAMPLES * WIDTH, SAMPLES * WIDTH)?;
    let mut loss = comm.buffer::<f32>(1)?;
    for step in 1..=STEPS {
        let start = Instant::now();
        own.begin();
        pipeline.run(MICRO_BATCHES, &mut own)?;
        let time = start.elapsed().as_secs_f64() * 1e3;
        loss[0] = own.loss / (MICRO_BATCHES * SAMPLES) as f32;
        comm.all_reduce(&mut loss, ReduceOp::Sum)?; // only the last stage has one
        whole_model(&mut layers);
        let pairs = own.gradient.iter().zip(&layers[me].gradient);
        let differences = pairs.map(|(a, b)| (a - b).abs());
        let difference = differences.max_by(f32::total_cmp).unwrap_or(0.0);
        if difference.is_nan() || difference > 1e-5 {
            return Err(
                format!("the gradient differs by {difference} from that of the whole model in step {step}").into()
            );
        }
        own.descend();
        layers.iter_mut().for_each(Layer::descend);
        if me == 0 {
            println!("step {step:>2}: loss {:.4}, {time:.2} ms", loss[0]);
        }
    }
    if me == 0 {
        println!("gradients on {stages} stages are those of the whole model");
    }
    Ok(())
}

/// Takes all micro-batches through all layers in one place.
fn whole_model(layers: &mut [Layer]) {
    let last = layers.len() - 1;
    let vector = || vec![0.0; SAMPLES * WIDTH];
    layers.iter_mut().for_each(Layer::begin);
    for micro in 0..MICRO_BATCHES {
        let mut activations = Vec::new();
        for (number, layer) in layers.iter_mut().enumerate() {
            let mut output = if number < last { vector() } else { Vec::new() };
            layer.forward(micro, &activations, &mut output);
            activations = output;
        }
        let mut gradients = Vec::new();
        for (number, layer) in layers.iter_mut().enumerate().rev() {
            let mut input = if number > 0 { vector() } else { Vec::new() };
            layer.backward(micro, &gradients, &mut input);
            gradients = input;
        }
    }
}

/// output = tanh(weights x input), sample by sample. As the last stage it learns to give the first stage's input turned round.
struct Layer {
    weights: Vec<f32>,
    gradient: Vec<f32>,
    loss: f32,
    /// Inputs and outputs of the micro-batches under way.
    kept: Vec<Option<(Vec<f32>, Vec<f32>)>>,
}

impl Layer {
    fn new(number: usize) -> Self {
        let weight = |at: usize| {
            let mixed = ((number * WIDTH * WIDTH + at + 1) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            (mixed as f32 / (1 << 24) as f32 - 0.5) * (12.0 / WIDTH as f32).sqrt()
        };
        let weights = (0..WIDTH * WIDTH).map(weight).collect();
        Self { weights, gradient: vec![0.0; WIDTH * WIDTH], loss: 0.0, kept: vec![None; MICRO_BATCHES] }
    }

    fn begin(&mut self) {
        self.gradient.fill(0.0);
        self.loss = 0.0;
    }

    fn descend(&mut self) {
        self.weights.iter_mut().zip(&self.gradient).for_each(|(weight, gradient)| *weight -= RATE * gradient);
    }
}

impl Stage<f32> for Layer {
    fn forward(&mut self, micro: usize, input: &[f32], output: &mut [f32]) {
        let input = if input.is_empty() { samples(micro) } else { input.to_vec() };
        let mut own = vec![0.0; input.len()];
        for (sample, own) in input.chunks(WIDTH).zip(own.chunks_mut(WIDTH)) {
            for (neuron, own) in self.weights.chunks(WIDTH).zip(own) {
                *own = neuron.iter().zip(sample).map(|(weight, value)| weight * value).sum::<f32>().tanh();
            }
        }
        if output.is_empty() {
            self.loss +=
                own.iter().zip(targets(micro)).map(|(own, target)| (own - target).powi(2)).sum::<f32>() / WIDTH as f32;
        } else {
            output.copy_from_slice(&own);
        }
        self.kept[micro] = Some((input, own));
    }

    fn backward(&mut self, micro: usize, output: &[f32], input: &mut [f32]) {
        let Some((given, own)) = self.kept[micro].take() else { return };
        let mut errors = output.to_vec();
        if output.is_empty() {
            let scale = 2.0 / (MICRO_BATCHES * SAMPLES * WIDTH) as f32;
            errors.extend(own.iter().zip(targets(micro)).map(|(own, target)| scale * (own - target)));
        }
        errors.iter_mut().zip(&own).for_each(|(error, own)| *error *= 1.0 - own * own);
        input.fill(0.0);
        for (number, (errors, given)) in errors.chunks(WIDTH).zip(given.chunks(WIDTH)).enumerate() {
            for (neuron, error) in errors.iter().enumerate() {
                let row = neuron * WIDTH..(neuron + 1) * WIDTH;
                let gradient = self.gradient[row.clone()].iter_mut().zip(given);
                gradient.for_each(|(gradient, value)| *gradient += error * value);
                if !input.is_empty() {
                    let back = input[number * WIDTH..][..WIDTH].iter_mut().zip(&self.weights[row]);
                    back.for_each(|(back, weight)| *back += error * weight);
                }
            }
        }
    }
}

fn samples(micro: usize) -> Vec<f32> {
    let value = |at: usize| ((micro * SAMPLES * WIDTH + at) as f32 * 0.37).sin() * 0.8;
    (0..SAMPLES * WIDTH).map(value).collect()
}

/// The samples, each turned round.
fn targets(micro: usize) -> Vec<f32> {
    samples(micro).chunks(WIDTH).flat_map(|sample| sample.iter().rev().copied().collect::<Vec<_>>()).collect()
}
