//! Results, for all types and operations, on many numbers of ranks and elements.

use qpair_collectives::Algorithm;
use qpair_collectives::tune::Tuning;
use qpair_collectives::{Communicator, ReduceOp};

use crate::random::{Random, seed};
use crate::support::{OPERATIONS, all_reduce, broadcast, group};

/// Messages longer than a few elements are read by their receiver, in short segments.
fn all_read() -> Tuning {
    Tuning { eager: Some(16), segment: 256, ..Tuning::default() }
}

fn every_type_and_operation(ranks: usize, lens: &[usize], tuning: Tuning) {
    group(ranks, |comm| {
        comm.set_tuning(tuning);
        for &len in lens {
            for op in OPERATIONS {
                all_reduce::<f32>(&comm, len, op);
                all_reduce::<f64>(&comm, len, op);
                all_reduce::<i32>(&comm, len, op);
                all_reduce::<i64>(&comm, len, op);
            }
        }
    });
}

#[test]
fn all_reduce_is_right_for_every_type_and_operation() {
    for ranks in [1, 2, 3, 4, 5, 7, 8] {
        every_type_and_operation(ranks, &[0, 1, ranks - 1, ranks + 1, 97, 6151], Tuning::default());
    }
}

#[test]
fn all_reduce_is_right_where_every_message_is_read() {
    for ranks in [1, 2, 3, 4, 5, 7, 8] {
        every_type_and_operation(ranks, &[0, 1, ranks - 1, ranks + 1, 97, 1009], all_read());
    }
}

#[test]
fn all_reduce_of_long_vectors_is_right() {
    for ranks in [1, 2, 3, 4, 5, 7, 8] {
        group(ranks, |comm| {
            all_reduce::<f32>(&comm, 100_003, ReduceOp::Sum);
            all_reduce::<i64>(&comm, 100_003, ReduceOp::Max);
        });
    }
    group(2, |comm| all_reduce::<f32>(&comm, 1 << 20, ReduceOp::Sum));
    group(5, |comm| all_reduce::<f32>(&comm, 1 << 20, ReduceOp::Sum));
}

#[test]
fn each_algorithm_is_right_copied_and_read() {
    for ranks in [2, 3, 4, 7] {
        group(ranks, |comm| {
            for tuning in [Tuning::default(), all_read()] {
                comm.set_tuning(tuning);
                for algorithm in [Algorithm::Ring, Algorithm::RecursiveDoubling, Algorithm::Direct, Algorithm::Exchange]
                {
                    comm.set_algorithm(algorithm);
                    for len in [0, 1, 5, 1000, 10_007] {
                        all_reduce::<f64>(&comm, len, ReduceOp::Sum);
                        all_reduce::<i32>(&comm, len, ReduceOp::Min);
                    }
                    comm.barrier().unwrap();
                }
                for algorithm in [Algorithm::Flat, Algorithm::BinomialTree, Algorithm::Chain] {
                    comm.set_algorithm(algorithm);
                    for root in 0..comm.size() {
                        broadcast::<f32>(&comm, 3001, root);
                    }
                }
            }
        });
    }
}

#[test]
fn broadcast_is_right_from_every_root() {
    for ranks in [1, 2, 3, 4, 5, 7, 8] {
        group(ranks, |comm| {
            for len in [0, 1, 97, 6151, 50_021] {
                for root in 0..comm.size() {
                    broadcast::<i32>(&comm, len, root);
                }
                broadcast::<f64>(&comm, len, comm.size() - 1);
            }
        });
    }
}

#[test]
fn all_ranks_end_with_the_same_bits() {
    let seed = seed();
    for ranks in [3, 5, 8] {
        for (len, tuning) in [(700, Tuning::default()), (700, all_read()), (60_000, Tuning::default())] {
            let bits = group(ranks, |comm| {
                comm.set_tuning(tuning);
                let mut random = Random::new(seed + comm.rank() as u64);
                let mut vector = comm.buffer::<f32>(len).unwrap();
                // Of very unlike size, so that each order of adding has other bits; infinities and NaN among them.
                vector.fill_with(|| f32::from_bits(random.next() as u32));
                comm.all_reduce(&mut vector, ReduceOp::Sum).unwrap();
                vector.iter().map(|element| element.to_bits()).collect::<Vec<_>>()
            });
            assert!(bits.windows(2).all(|pair| pair[0] == pair[1]), "{ranks} ranks, {len} elements");
        }
    }
}

#[test]
fn many_operations_of_all_sizes_follow_each_other() {
    let seed = seed();
    group(4, |comm| {
        let mut random = Random::new(seed);
        for _ in 0..300 {
            let len = random.below(12_000) as usize >> random.below(12);
            match random.below(4) {
                0 => broadcast::<f64>(&comm, len, random.below(comm.size() as u64) as usize),
                1 => comm.barrier().unwrap(),
                _ => all_reduce::<f32>(&comm, len, ReduceOp::Sum),
            }
        }
    });
}

#[test]
fn many_ranks_are_right_too() {
    for ranks in [12, 13, 16, 17, 24] {
        group(ranks, |comm| {
            for len in [ranks + 1, 20_011] {
                all_reduce::<f32>(&comm, len, ReduceOp::Sum);
                broadcast::<f32>(&comm, len, ranks / 2);
            }
            comm.barrier().unwrap();
            comm.set_tuning(all_read());
            comm.set_algorithm(Algorithm::Ring);
            all_reduce::<i64>(&comm, 301, ReduceOp::Max);
        });
    }
}

#[test]
fn a_root_may_be_many_operations_ahead() {
    group(4, |comm| {
        comm.set_algorithm(Algorithm::Flat);
        let mut vector = comm.buffer::<f32>(4).unwrap();
        for round in 0..10 {
            // The root waits for nobody until it has used up the room at its peers, which begin late.
            if comm.rank() != round % 4 {
                (0..200).for_each(|_| std::thread::yield_now());
            }
            for number in 0..150 {
                vector.fill(if comm.rank() == round % 4 { number as f32 } else { -1.0 });
                comm.broadcast(&mut vector, round % 4).unwrap();
                assert_eq!(vector[..], [number as f32; 4]);
            }
            all_reduce::<f32>(&comm, 10_000, ReduceOp::Sum);
        }
    });
}

#[test]
fn more_plans_than_are_kept_can_be_used() {
    group(2, |comm| {
        for round in 0..2 {
            for len in 1..300 {
                all_reduce::<i32>(&comm, len + round, ReduceOp::Sum);
            }
        }
    });
}

#[test]
fn two_communicators_work_at_once() {
    let (one, two) = (Communicator::group(3).unwrap(), Communicator::group(3).unwrap());
    std::thread::scope(|scope| {
        for (one, two) in one.into_iter().zip(two) {
            scope.spawn(move || {
                let mut a = one.buffer::<f32>(5000).unwrap();
                let mut b = two.buffer::<f32>(7).unwrap();
                for _ in 0..20 {
                    a.fill(1.0);
                    b.fill(2.0);
                    one.all_reduce(&mut a, ReduceOp::Sum).unwrap();
                    two.all_reduce(&mut b, ReduceOp::Sum).unwrap();
                    assert_eq!((a[4999], b[6]), (3.0, 6.0));
                }
                // Started on one, while the other is used.
                let pending = one.start().all_reduce(a, ReduceOp::Sum).unwrap();
                two.barrier().unwrap();
                assert_eq!(pending.wait().unwrap()[0], 9.0);
            });
        }
    });
}
