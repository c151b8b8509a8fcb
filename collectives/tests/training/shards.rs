use qpair_collectives::training::Shards;
use qpair_collectives::{CollectiveError, Communicator, ReduceOp};

use crate::support::{RANKS, group};

const LENS: [usize; 6] = [0, 1, 4, 7, 30, 10_007];
const STEPS: usize = 4;

fn gradient(rank: usize, step: usize, at: usize) -> f64 {
    (rank * 64 + step * 8 + at % 16) as f64
}

fn start(len: usize) -> Vec<f64> {
    (0..len).map(|at| at as f64).collect()
}

/// What one process alone comes to, with the gradients of all ranks.
fn alone(ranks: usize, len: usize) -> Vec<f64> {
    let (mut parameters, mut momentum) = (start(len), vec![0.0; len]);
    for step in 0..STEPS {
        for at in 0..len {
            let sum: f64 = (0..ranks).map(|rank| gradient(rank, step, at)).sum();
            momentum[at] = 0.5 * momentum[at] + sum / ranks as f64;
            parameters[at] -= 0.25 * momentum[at];
        }
    }
    parameters
}

/// Trains with a step of this kind, and gives the parameters.
fn trained(comm: &Communicator, len: usize, stage: u32) -> Vec<f64> {
    let mut shards = Shards::new(comm, &start(len)).unwrap();
    let mut momentum = vec![0.0; shards.own().len()];
    for step in 0..STEPS {
        if stage == 3 {
            assert_eq!(shards.parameters().unwrap().len(), len);
        }
        let place = shards.gradient_mut().unwrap();
        place.iter_mut().enumerate().for_each(|(at, place)| *place = gradient(comm.rank(), step, at));
        let update = |parameters: &mut [f64], gradient: &[f64]| {
            assert_eq!((parameters.len(), gradient.len()), (momentum.len(), momentum.len()));
            for ((parameter, m), gradient) in parameters.iter_mut().zip(&mut momentum).zip(gradient) {
                *m = 0.5 * *m + gradient;
                *parameter -= 0.25 * *m;
            }
        };
        match stage {
            1 => {
                shards.start_reduce_whole().unwrap();
                shards.update(update).unwrap();
                shards.start_gather().unwrap();
            }
            2 => {
                shards.step(update).unwrap();
                shards.release_gradient().unwrap();
            }
            _ => {
                shards.start_reduce().unwrap();
                shards.update(update).unwrap();
                shards.release().unwrap();
            }
        }
    }
    shards.parameters().unwrap().to_vec()
}

#[test]
fn each_stage_of_zero_comes_to_what_one_process_does() {
    for ranks in RANKS {
        group(ranks, |comm| {
            for len in LENS {
                for stage in 1..=3 {
                    let what = format!("ZeRO-{stage} of {len} on {ranks}");
                    assert_eq!(trained(&comm, len, stage), alone(ranks, len), "{what}");
                }
            }
        });
    }
}

#[test]
fn shards_cover_the_parameters_once() {
    for ranks in RANKS {
        for len in LENS {
            let mut shards = group(ranks, |comm| Shards::<f32>::new(&comm, &vec![0.0; len]).unwrap().own());
            shards.retain(|own| !own.is_empty());
            assert_eq!(shards.iter().flat_map(Clone::clone).collect::<Vec<_>>(), (0..len).collect::<Vec<_>>());
        }
    }
}

#[test]
fn layers_are_under_way_together() {
    for ranks in RANKS {
        group(ranks, |comm| {
            let layer = |_| Shards::<i64>::new(&comm, &[0; 1000]).unwrap().reduced_by(ReduceOp::Sum);
            let mut layers: Vec<_> = (0..6).map(layer).collect();
            for _step in 0..3 {
                for (number, layer) in layers.iter_mut().enumerate().rev() {
                    layer.gradient_mut().unwrap().fill(number as i64);
                    layer.start_reduce().unwrap();
                }
                for layer in layers.iter_mut().rev() {
                    let add = |parameters: &mut [i64], gradient: &[i64]| {
                        parameters.iter_mut().zip(gradient).for_each(|(parameter, gradient)| *parameter += gradient);
                    };
                    layer.update(add).unwrap();
                    layer.start_gather().unwrap();
                }
            }
            for (number, layer) in layers.iter_mut().enumerate() {
                assert_eq!(layer.parameters().unwrap(), vec![(3 * number * ranks) as i64; 1000]);
            }
        });
    }
}

#[test]
fn a_checkpoint_has_the_shards_of_all() {
    for ranks in RANKS {
        let root = ranks - 1;
        let checkpoints = group(ranks, |comm| {
            let mut shards = Shards::new(&comm, &start(31)).unwrap();
            shards.step(|parameters, _| parameters.iter_mut().for_each(|parameter| *parameter += 0.5)).unwrap();
            let whole = shards.checkpoint(root).unwrap();
            shards.release().unwrap();
            assert_eq!(shards.checkpoint(root).unwrap(), whole, "also where parameters are released");
            comm.barrier().unwrap();
            whole
        });
        for (rank, checkpoint) in checkpoints.into_iter().enumerate() {
            let expected: Vec<f64> = start(31).iter().map(|parameter| parameter + 0.5).collect();
            assert_eq!(checkpoint, (rank == root).then_some(expected));
        }
    }
}

#[test]
fn a_gradient_that_nothing_reduced_is_not_taken() {
    group(2, |comm| {
        let mut shards = Shards::new(&comm, &[1.0_f32; 6]).unwrap();
        let refused = |shards: &mut Shards<f32>| {
            let result = shards.update(|_, _| panic!("it is this rank's own"));
            assert!(matches!(result, Err(CollectiveError::NotReduced)), "{result:?}");
        };
        refused(&mut shards);
        shards.gradient_mut().unwrap().fill(2.0);
        refused(&mut shards);
        shards.start_reduce_whole().unwrap();
        // What is reduced may be clipped.
        shards.gradient_mut().unwrap().iter_mut().for_each(|value| *value = value.min(1.5));
        (0..2).for_each(|_| shards.update(|_, gradient| assert_eq!(gradient, [1.5; 3])).unwrap());
        shards.gradient_mut().unwrap().fill(3.0);
        refused(&mut shards);
        shards.start_reduce().unwrap();
        shards.update(|_, gradient| assert_eq!(gradient, [3.0; 3])).unwrap();
        shards.release_gradient().unwrap();
        refused(&mut shards);
        comm.barrier().unwrap();
    });
}
