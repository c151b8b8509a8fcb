use qpair_collectives::training::{Pipeline, Stage};
use qpair_collectives::{CollectiveError, Communicator};

use crate::support::{RANKS, group};

const WIDTH: usize = 3;

/// y = weight x x, element by element; the loss is the sum of y.
struct Scale {
    weight: f64,
    gradient: f64,
    loss: f64,
    kept: Vec<Option<Vec<f64>>>,
    most_kept: usize,
}

fn data(micro: usize) -> Vec<f64> {
    (0..WIDTH).map(|at| (micro * 10 + at) as f64).collect()
}

impl Scale {
    fn new(weight: f64, micro_batches: usize) -> Self {
        Scale { weight, gradient: 0.0, loss: 0.0, kept: vec![None; micro_batches], most_kept: 0 }
    }
}

impl Stage<f64> for Scale {
    fn forward(&mut self, micro: usize, input: &[f64], output: &mut [f64]) {
        let x = if input.is_empty() { data(micro) } else { input.to_vec() };
        let y: Vec<f64> = x.iter().map(|x| self.weight * x).collect();
        if output.is_empty() {
            self.loss += y.iter().sum::<f64>()
        } else {
            output.copy_from_slice(&y)
        }
        self.kept[micro] = Some(x);
        self.most_kept = self.most_kept.max(self.kept.iter().flatten().count());
    }

    fn backward(&mut self, micro: usize, output: &[f64], input: &mut [f64]) {
        let x = self.kept[micro].take().expect("it went forward");
        let dy = if output.is_empty() { vec![1.0; WIDTH] } else { output.to_vec() };
        self.gradient += x.iter().zip(&dy).map(|(x, dy)| x * dy).sum::<f64>();
        input.iter_mut().zip(&dy).for_each(|(dx, dy)| *dx = self.weight * dy);
    }
}

fn weight(stage: usize) -> f64 {
    [2.0, -1.0, 0.5, 4.0, -0.25][stage]
}

#[test]
fn gradients_are_those_of_the_whole_model() {
    for ranks in RANKS {
        group(ranks, |comm: Communicator| {
            let mut pipeline = Pipeline::new(&comm, WIDTH, WIDTH).unwrap();
            for micro_batches in [0, 1, 2, 4, 5, 16, 1] {
                let mut stage = Scale::new(weight(comm.rank()), micro_batches);
                pipeline.run(micro_batches, &mut stage).unwrap();
                let sum: f64 = (0..micro_batches).flat_map(data).sum();
                let others = |but: usize| (0..ranks).filter(|&stage| stage != but).map(weight).product::<f64>();
                assert_eq!(stage.gradient, others(comm.rank()) * sum);
                assert!(stage.most_kept <= ranks - comm.rank(), "{} are kept", stage.most_kept);
                let is_last = comm.rank() + 1 == ranks;
                assert_eq!(stage.loss, if is_last { others(ranks) * sum } else { 0.0 });
            }
            comm.barrier().unwrap();
        });
    }
}

/// Layers between stages may have different widths; also such that transfers are not copied.
struct Widths(usize);

impl Stage<u32> for Widths {
    fn forward(&mut self, micro: usize, input: &[u32], output: &mut [u32]) {
        assert!(input.iter().all(|&value| value == (1000 * self.0 + micro) as u32), "of another micro-batch");
        output.fill((1000 * (self.0 + 1) + micro) as u32);
    }

    fn backward(&mut self, micro: usize, output: &[u32], input: &mut [u32]) {
        assert!(output.iter().all(|&value| value == (5000 + 1000 * (self.0 + 1) + micro) as u32));
        input.fill((5000 + 1000 * self.0 + micro) as u32);
    }
}

#[test]
fn widths_may_differ_from_stage_to_stage() {
    group(4, |comm| {
        let widths = [0, 10, 100_000, 1, 0];
        let mut pipeline = Pipeline::new(&comm, widths[comm.rank()], widths[comm.rank() + 1]).unwrap();
        for _step in 0..3 {
            pipeline.run(9, &mut Widths(comm.rank())).unwrap();
        }
        comm.barrier().unwrap();
    });
}

#[test]
fn stages_that_do_not_fit_are_told() {
    let errors = group(2, |comm| {
        let mut pipeline = Pipeline::new(&comm, 7, 8).unwrap();
        pipeline.run(2, &mut Widths(comm.rank())).and_then(|()| comm.barrier()).unwrap_err()
    });
    for error in errors {
        assert!(matches!(error, CollectiveError::Mismatch(_)), "{error}");
    }
}
