//! The classifier: one hidden layer with ReLU, softmax and cross-entropy. Pure functions of plain slices.

use crate::data::{CLASSES, Image, PIXELS};
use crate::rng::Rng;

/// A network of 64 pixels, `hidden` neurons and 10 digits.
///
/// Its parameters are one flat vector, in the order in which the backward pass finds their gradients: the output
/// layer's neurons first, then the hidden layer's; of each neuron its weights, then its bias.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    hidden: usize,
}

/// Room for the values of one batch, kept between batches.
#[derive(Debug, Default)]
pub struct Workspace {
    pixels: Vec<f32>,
    activations: Vec<f32>,
    output_errors: Vec<f32>,
    hidden_errors: Vec<f32>,
    row: Vec<f32>,
}

impl Network {
    /// A network with so many neurons in the hidden layer.
    pub fn new(hidden: usize) -> Self {
        Self { hidden }
    }

    /// The length of its parameter vector.
    pub fn parameters(&self) -> usize {
        self.output_parameters() + self.hidden * (PIXELS + 1)
    }

    /// How many of them each neuron has, in their order: each is a piece of the gradient.
    pub fn neurons(&self) -> impl Iterator<Item = usize> {
        let output = std::iter::repeat_n(self.hidden + 1, CLASSES);
        output.chain(std::iter::repeat_n(PIXELS + 1, self.hidden))
    }

    /// Fills in first parameters: weights evenly distributed with variance 2 / inputs (He), biases 0.
    pub fn initialize(&self, parameters: &mut [f32], rng: &mut Rng) {
        let (output, hidden) = parameters.split_at_mut(self.output_parameters());
        for (layer, inputs) in [(output, self.hidden), (hidden, PIXELS)] {
            let limit = (6.0 / inputs as f32).sqrt();
            for neuron in layer.chunks_exact_mut(inputs + 1) {
                neuron[..inputs].fill_with(|| limit * rng.signed_unit());
                neuron[inputs] = 0.0;
            }
        }
    }

    /// The digit that the network sees in `image`.
    pub fn classify(&self, parameters: &[f32], image: &Image, work: &mut Workspace) -> usize {
        work.resize(1, self.hidden);
        self.forward(parameters, &image.pixels, &mut work.activations, &mut work.output_errors);
        let largest = work.output_errors.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        largest.map_or(0, |(digit, _)| digit)
    }

    /// Forward and backward pass over `images`. Hands the gradient of `scale` x (sum of their losses) to `emit` in
    /// pieces, in the order of the parameters, each as soon as it is known. Returns the sum of the losses, unscaled.
    ///
    /// # Errors
    /// Those of `emit`, which end the pass.
    pub fn gradient<E>(
        &self,
        parameters: &[f32],
        images: &[&Image],
        scale: f32,
        work: &mut Workspace,
        mut emit: impl FnMut(&[f32]) -> Result<(), E>,
    ) -> Result<f64, E> {
        work.resize(images.len(), self.hidden);
        let mut loss = 0.0;
        for (i, image) in images.iter().enumerate() {
            let activations = &mut work.activations[i * self.hidden..][..self.hidden];
            let errors = &mut work.output_errors[i * CLASSES..][..CLASSES];
            self.forward(parameters, &image.pixels, activations, errors);
            loss += f64::from(softmax_errors(errors, image.label, scale));
            work.pixels[i * PIXELS..][..PIXELS].copy_from_slice(&image.pixels);
        }
        emit_layer(&work.output_errors, CLASSES, &work.activations, self.hidden, &mut work.row, &mut emit)?;
        self.propagate(parameters, work);
        emit_layer(&work.hidden_errors, self.hidden, &work.pixels, PIXELS, &mut work.row, &mut emit)?;
        Ok(loss)
    }

    fn output_parameters(&self) -> usize {
        CLASSES * (self.hidden + 1)
    }

    /// `outputs` get the scores of the digits, before softmax.
    fn forward(&self, parameters: &[f32], pixels: &[f32], activations: &mut [f32], outputs: &mut [f32]) {
        let (output, hidden) = parameters.split_at(self.output_parameters());
        apply_layer(hidden, pixels, activations);
        activations.iter_mut().for_each(|a| *a = a.max(0.0));
        apply_layer(output, activations, outputs);
    }

    /// Takes the errors of the output layer back through its weights and through ReLU.
    fn propagate(&self, parameters: &[f32], work: &mut Workspace) {
        work.hidden_errors.fill(0.0);
        let output = &parameters[..self.output_parameters()];
        let batch = work.hidden_errors.chunks_exact_mut(self.hidden).zip(work.output_errors.chunks_exact(CLASSES));
        for (hidden_errors, output_errors) in batch {
            for (neuron, &error) in output.chunks_exact(self.hidden + 1).zip(output_errors) {
                add_scaled(hidden_errors, &neuron[..self.hidden], error);
            }
        }
        for (error, &activation) in work.hidden_errors.iter_mut().zip(&work.activations) {
            if activation <= 0.0 {
                *error = 0.0;
            }
        }
    }
}

impl Workspace {
    fn resize(&mut self, images: usize, hidden: usize) {
        self.pixels.resize(images * PIXELS, 0.0);
        self.activations.resize(images * hidden, 0.0);
        self.output_errors.resize(images * CLASSES, 0.0);
        self.hidden_errors.resize(images * hidden, 0.0);
    }
}

/// `outputs[n]` = bias of neuron n + its weights x `inputs`.
fn apply_layer(layer: &[f32], inputs: &[f32], outputs: &mut [f32]) {
    for (neuron, output) in layer.chunks_exact(inputs.len() + 1).zip(outputs) {
        *output = neuron[inputs.len()] + dot(&neuron[..inputs.len()], inputs);
    }
}

/// Turns scores into `scale` x the derivative of cross-entropy by each score; returns the cross-entropy.
fn softmax_errors(scores: &mut [f32], label: usize, scale: f32) -> f32 {
    let largest = scores.iter().copied().fold(f32::MIN, f32::max);
    let true_score = scores[label];
    scores.iter_mut().for_each(|score| *score = (*score - largest).exp());
    let sum: f32 = scores.iter().sum();
    scores.iter_mut().for_each(|score| *score *= scale / sum);
    scores[label] -= scale;
    sum.ln() + largest - true_score
}

/// Sums each neuron's gradient over the batch, and hands it to `emit`.
fn emit_layer<E>(
    errors: &[f32],
    neurons: usize,
    inputs: &[f32],
    width: usize,
    row: &mut Vec<f32>,
    emit: &mut impl FnMut(&[f32]) -> Result<(), E>,
) -> Result<(), E> {
    for neuron in 0..neurons {
        row.clear();
        row.resize(width + 1, 0.0);
        for (errors, inputs) in errors.chunks_exact(neurons).zip(inputs.chunks_exact(width)) {
            add_scaled(&mut row[..width], inputs, errors[neuron]);
            row[width] += errors[neuron];
        }
        emit(row)?;
    }
    Ok(())
}

/// `sums` += `factor` x `values`.
fn add_scaled(sums: &mut [f32], values: &[f32], factor: f32) {
    for (sum, value) in sums.iter_mut().zip(values) {
        *sum += factor * value;
    }
}

/// Eight partial sums, so that the compiler can use vector instructions.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a, b) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f32 = a.remainder().iter().zip(b.remainder()).map(|(x, y)| x * y).sum();
    let mut sums = [0.0; 8];
    for (a, b) in a.zip(b) {
        for (sum, (x, y)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += x * y;
        }
    }
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// A network of 12 neurons, its parameters, and six images of noise.
    fn fixture() -> (Network, Vec<f32>, Vec<Image>) {
        let mut rng = Rng::new(3);
        let network = Network::new(12);
        let mut parameters = vec![0.0; network.parameters()];
        network.initialize(&mut parameters, &mut rng);
        parameters.iter_mut().for_each(|p| *p += 0.05 * rng.signed_unit()); // biases too
        let images = (0..6).map(|label| Image { pixels: std::array::from_fn(|_| rng.signed_unit().abs()), label });
        (network, parameters, images.collect())
    }

    fn gradient(network: Network, parameters: &[f32], images: &[Image], scale: f32) -> (f64, Vec<f32>) {
        let images: Vec<&Image> = images.iter().collect();
        let mut gradient = Vec::new();
        let emit = |piece: &[f32]| -> Result<(), Infallible> {
            gradient.extend_from_slice(piece);
            Ok(())
        };
        let Ok(loss) = network.gradient(parameters, &images, scale, &mut Workspace::default(), emit);
        (loss, gradient)
    }

    #[test]
    fn gradient_matches_finite_differences() {
        const STEP: f32 = 1e-3;
        let (network, mut parameters, images) = fixture();
        let (_, exact) = gradient(network, &parameters, &images, 1.0);
        assert_eq!(exact.len(), parameters.len());
        assert_eq!(network.neurons().sum::<usize>(), parameters.len());
        for i in 0..parameters.len() {
            let value = parameters[i];
            let [above, below] = [value + STEP, value - STEP].map(|moved| {
                parameters[i] = moved;
                gradient(network, &parameters, &images, 1.0).0
            });
            parameters[i] = value;
            let estimate = (above - below) / f64::from(2.0 * STEP);
            let error = (estimate - f64::from(exact[i])).abs();
            assert!(
                error < 1e-2 * (1.0 + estimate.abs()),
                "parameter {i}: {} but differences say {estimate}",
                exact[i]
            );
        }
    }

    #[test]
    fn parts_of_a_batch_add_up() {
        let (network, parameters, images) = fixture();
        let (loss, whole) = gradient(network, &parameters, &images, 0.25);
        let (first_loss, first) = gradient(network, &parameters, &images[..2], 0.25);
        let (second_loss, second) = gradient(network, &parameters, &images[2..], 0.25);
        assert!((loss - first_loss - second_loss).abs() < 1e-5);
        for (i, sum) in whole.iter().enumerate() {
            assert!((sum - first[i] - second[i]).abs() < 1e-5, "parameter {i}");
        }
    }

    #[test]
    fn first_loss_is_that_of_guessing() {
        let (network, mut parameters, images) = fixture();
        parameters.fill(0.0);
        let (loss, _) = gradient(network, &parameters, &images, 1.0);
        assert!((loss / 6.0 - 10f64.ln()).abs() < 1e-5, "{loss}");
    }

    #[test]
    fn large_scores_stay_finite() {
        let mut scores = [0.0, 1e4, -1e4, 500.0];
        let loss = softmax_errors(&mut scores, 1, 1.0);
        assert!(loss.abs() < 1e-6 && scores.iter().all(|s| s.is_finite()), "{loss} {scores:?}");
    }

    #[test]
    fn an_error_of_emit_ends_the_pass() {
        let (network, parameters, images) = fixture();
        let images: Vec<&Image> = images.iter().collect();
        let mut calls = 0;
        let outcome = network.gradient(&parameters, &images, 1.0, &mut Workspace::default(), |_| {
            calls += 1;
            if calls == 3 { Err("full") } else { Ok(()) }
        });
        assert_eq!((outcome, calls), (Err("full"), 3));
    }

    #[test]
    fn dot_of_odd_lengths() {
        for n in [0, 1, 7, 8, 9, 20] {
            let values: Vec<f32> = (1..=n).map(|v| v as f32).collect();
            assert_eq!(dot(&values, &values), (n * (n + 1) * (2 * n + 1) / 6) as f32, "{n}");
        }
    }
}
