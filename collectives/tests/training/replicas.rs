use qpair_collectives::training::{broadcast_parameters, reduce_checkpoint};
use qpair_collectives::{CollectiveError, ReduceOp};

use crate::support::{RANKS, group};

#[test]
fn tensors_of_any_lengths_are_those_of_the_root() {
    for ranks in RANKS {
        group(ranks, |comm| {
            for root in 0..ranks {
                // Once longer than what goes at once.
                let last = if (ranks, root) == (2, 1) { 9_000_000 } else { 5000 };
                let mut tensors = [0, 1, 700, 3, last].map(|len| vec![(10 * comm.rank()) as f32; len]);
                let mut borrowed: Vec<&mut [f32]> = tensors.iter_mut().map(|tensor| &mut tensor[..]).collect();
                broadcast_parameters(&comm, &mut borrowed, root).unwrap();
                for tensor in &tensors {
                    assert!(tensor.iter().all(|&value| value == (10 * root) as f32));
                }
            }
            comm.barrier().unwrap();
        });
    }
}

#[test]
fn a_checkpoint_is_the_mean_on_the_root_alone() {
    for ranks in RANKS {
        group(ranks, |comm| {
            let own = comm.rank() as f64;
            let (mut a, mut b) = (vec![own; 100], vec![2.0 * own; 5]);
            reduce_checkpoint(&comm, &mut [&mut a, &mut b], ReduceOp::Avg, 0).unwrap();
            let mean = if comm.rank() == 0 { (ranks - 1) as f64 / 2.0 } else { own };
            assert_eq!((a, b), (vec![mean; 100], vec![2.0 * mean; 5]));
            comm.barrier().unwrap();
        });
    }
}

#[test]
fn a_root_that_is_none_is_refused() {
    group(1, |comm| {
        let error = broadcast_parameters(&comm, &mut [&mut [1.0_f32]], 1).unwrap_err();
        assert!(matches!(error, CollectiveError::NoSuchRoot { root: 1, ranks: 1 }));
    });
}

#[test]
fn tensors_in_another_order_are_not_mixed_up() {
    for reduces in [false, true] {
        group(3, |comm| {
            let lengths = if comm.rank() == 1 { [20, 10] } else { [10, 20] };
            let mut tensors = lengths.map(|len| vec![comm.rank() as f32; len]);
            let [one, other] = &mut tensors;
            let mut list = [&mut one[..], &mut other[..]];
            let result = if reduces {
                reduce_checkpoint(&comm, &mut list, ReduceOp::Sum, 0)
            } else {
                broadcast_parameters(&comm, &mut list, 0)
            };
            assert!(matches!(result, Err(CollectiveError::Tensors)), "{result:?}");
            assert!(tensors.iter().flatten().all(|&value| value == comm.rank() as f32));
            comm.barrier().unwrap();
        });
    }
}
