//! On the software device, which the environment has go by slots.

use std::time::{Duration, Instant};

use qpair_collectives::{Algorithm, CollectiveError, Communicator, ReduceOp};
use qpair_fake_cuda::{code, control::Device};
use qpair_fake_ibverbs::process::in_process;

use crate::support::{elements, gpu, in_threads, vector};

const FORCED: &[(&str, &str)] = &[("QPAIR_GPU_STAGING", "1")];

/// Elements of some slots, and of a part of one: more than there are slots, too.
const LENGTHS: [usize; 4] = [131_072, 131_073, 400_000, 2_000_003];

#[test]
fn long_messages_go_part_by_part_by_every_algorithm() {
    in_process(FORCED, || {
        let gpu = gpu();
        for (count, algorithm) in [
            (2, Algorithm::Auto),
            (3, Algorithm::Ring),
            (3, Algorithm::Direct),
            (4, Algorithm::RecursiveDoubling),
            (5, Algorithm::DoubleTree),
            (3, Algorithm::ParameterServer),
        ] {
            in_threads(Communicator::group(count).unwrap(), |comm| {
                comm.set_algorithm(algorithm);
                for len in LENGTHS {
                    let own: Vec<i32> = (0..len).map(|at| (at as i32).wrapping_mul(1 + comm.rank() as i32)).collect();
                    let mut sum = vector(&comm, gpu, &own);
                    comm.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
                    let factor = (1..=count as i32).sum::<i32>();
                    let expected = (0..len).map(|at| (at as i32).wrapping_mul(factor));
                    assert!(elements(&sum).into_iter().eq(expected), "{len} by {algorithm} on {count} ranks");
                }
                let text = comm.explain().to_string();
                let told = "messages of GPUs: by slots of pinned memory, as QPAIR_GPU_STAGING=1 says at rank 0";
                assert!(text.contains(told) && text.contains("messages by slots"), "{text}");
            });
        }
    });
}

#[test]
fn what_is_handed_on_goes_part_by_part() {
    in_process(FORCED, || {
        let gpu = gpu();
        in_threads(Communicator::group(4).unwrap(), |comm| {
            for algorithm in [Algorithm::Chain, Algorithm::BinomialTree] {
                comm.set_algorithm(algorithm);
                let mut all = vector(&comm, gpu, &vec![comm.rank() as i32; 3_000_001]);
                comm.broadcast(&mut all, 2).unwrap();
                assert_eq!(elements(&all), vec![2; 3_000_001], "{algorithm}");
                let mut sum = vector(&comm, gpu, &vec![1_i32; 3_000_001]);
                comm.reduce(&mut sum, ReduceOp::Sum, 1).unwrap();
                assert!(comm.rank() != 1 || elements(&sum) == vec![4; 3_000_001], "{algorithm}");
            }
            // A step for each part, and not for the whole.
            let text = comm.explain().to_string();
            let broadcast = text.lines().find(|line| line.contains("broadcast") && line.contains("chain"));
            let steps: Option<usize> =
                broadcast.and_then(|line| line.split(", ").nth(1)?.split(' ').next()?.parse().ok());
            assert!(steps.is_some_and(|steps| steps >= 3), "{broadcast:?}");
        });
    });
}

#[test]
fn blocks_of_any_lengths_come_to_where_they_belong() {
    in_process(FORCED, || {
        let gpu = gpu();
        in_threads(Communicator::group(4).unwrap(), |comm| {
            let (me, count) = (comm.rank(), comm.size());
            // Some give nothing, and some more than a slot.
            let len = |from: usize, to: usize| [0, 7, 200_000][(from * count + to) % 3];
            let sends: Vec<usize> = (0..count).map(|to| len(me, to)).collect();
            let receives: Vec<usize> = (0..count).map(|from| len(from, me)).collect();
            let own: Vec<u32> = (0..count).flat_map(|to| vec![(me * count + to) as u32; len(me, to)]).collect();
            let mut input = vector(&comm, gpu, &own);
            let mut output = vector(&comm, gpu, &vec![u32::MAX; receives.iter().sum()]);
            comm.all_to_all_v(&mut input, &sends, &mut output, &receives).unwrap();
            let expected: Vec<u32> =
                (0..count).flat_map(|from| vec![(from * count + me) as u32; len(from, me)]).collect();
            assert_eq!(elements(&output), expected);
            assert_eq!(elements(&input), own);
        });
    });
}

/// What a rank without elements of its own hands on to others goes by memory of its GPU.
#[test]
fn a_rank_that_has_nothing_hands_on_what_is_of_others() {
    in_process(FORCED, || {
        let gpu = gpu();
        in_threads(Communicator::group(4).unwrap(), |comm| {
            comm.set_algorithm(Algorithm::BinomialTree);
            let counts = [3, 2, 0, 200_000];
            let me = comm.rank();
            let all: Vec<u32> = (0..4).flat_map(|rank| vec![rank as u32 + 1; counts[rank]]).collect();
            let mut whole = vector(&comm, gpu, if me == 0 { &all[..] } else { &[] });
            let mut own = vector(&comm, gpu, &vec![0_u32; counts[me]]);
            comm.scatter_v(&mut whole, &mut own, &counts, 0).unwrap();
            assert_eq!(elements(&own), vec![me as u32 + 1; counts[me]]);
            let mut back = vector(&comm, gpu, &vec![0_u32; if me == 0 { all.len() } else { 0 }]);
            comm.gather_v(&mut own, &mut back, &counts, 0).unwrap();
            assert!(me != 0 || elements(&back) == all);
        });
    });
}

#[test]
fn who_expects_another_length_than_is_given_is_told() {
    in_process(FORCED, || {
        let gpu = gpu();
        for wrong in [0, 99_999, 100_001] {
            let errors = in_threads(Communicator::group(2).unwrap(), |comm| {
                let me = comm.rank();
                // Rank 1 expects of rank 0 what it does not give.
                let expected = if me == 1 { wrong } else { 100_000 };
                let receives = if me == 1 { [expected, 0] } else { [0, 100_000] };
                let sends = if me == 1 { [100_000, 0] } else { [0, 100_000] };
                let mut input = vector(&comm, gpu, &vec![me as u8; 100_000]);
                let mut output = vector(&comm, gpu, &vec![9_u8; expected]);
                comm.all_to_all_v(&mut input, &sends, &mut output, &receives).err().map(|error| error.to_string())
            });
            let told = |error: &Option<String>| error.as_ref().is_some_and(|error| error.contains("expects"));
            assert!(errors.iter().all(told), "{wrong}: {errors:?}");
        }
    });
}

#[test]
fn operations_under_way_together_share_the_slots() {
    in_process(FORCED, || {
        let gpu = gpu();
        in_threads(Communicator::group(3).unwrap(), |comm| {
            let other = comm.duplicate().unwrap();
            for len in [3_000_000_usize, 100] {
                let started: Vec<_> = (0..6)
                    .map(|turn: i32| {
                        let on = if turn % 2 == 0 { &comm } else { &other };
                        on.start().all_reduce(vector(on, gpu, &vec![turn; len]), ReduceOp::Sum).unwrap()
                    })
                    .collect();
                for (turn, pending) in (0..).zip(started) {
                    assert_eq!(elements(&pending.wait().unwrap()), vec![3 * turn; len]);
                }
            }
        });
    });
}

#[test]
fn parts_of_a_communicator_go_by_slots_too() {
    in_process(FORCED, || {
        let gpu = gpu();
        in_threads(Communicator::group(4).unwrap(), |comm| {
            let half = comm.split(Some(comm.rank() as u32 % 2), 0).unwrap().expect("a colour");
            let mut sum = vector(&half, gpu, &vec![comm.rank() as u64; 200_000]);
            half.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            assert_eq!(elements(&sum), vec![if comm.rank() % 2 == 0 { 2 } else { 4 }; 200_000]);
            assert!(half.explain().to_string().contains("messages by slots"));
        });
    });
}

#[test]
fn slots_that_can_not_be_had_end_the_operation_by_their_reason() {
    in_process(FORCED, || {
        let gpu = gpu();
        Device::of(0).fail_times("cuMemHostRegister_v2", 1, 100, code::OUT_OF_MEMORY).unwrap();
        let errors = in_threads(Communicator::group(2).unwrap(), |comm| {
            comm.all_reduce(&mut vector(&comm, gpu, &[1_i64; 100]), ReduceOp::Sum).unwrap_err().to_string()
        });
        assert!(errors.iter().all(|error| error.contains("are not pinned for GPUs")), "{errors:?}");
    });
}

#[test]
fn a_rank_that_does_not_come_is_named_in_time() {
    in_process(FORCED, || {
        let gpu = gpu();
        let errors = in_threads(Communicator::group(3).unwrap(), |comm| {
            if comm.rank() == 2 {
                std::thread::sleep(Duration::from_secs(3));
                return None;
            }
            let begin = Instant::now();
            let pending = comm.start().within(Duration::from_secs(1));
            let pending = pending.all_reduce(vector(&comm, gpu, &vec![1_u8; 3_000_000]), ReduceOp::Sum).unwrap();
            let error = pending.wait().unwrap_err();
            assert!(begin.elapsed() < Duration::from_secs(20), "{error}");
            Some(error.to_string())
        });
        assert!(errors[..2].iter().flatten().all(|error| error.contains("rank 2")), "{errors:?}");
    });
}

#[test]
fn a_copy_that_fails_ends_the_operation_by_its_reason() {
    in_process(FORCED, || {
        let gpu = gpu();
        let cuda = Device::of(0);
        let comms = Communicator::group(2).unwrap();
        let errors = in_threads(comms, |comm| {
            let len = 1_000_000;
            comm.all_reduce(&mut vector(&comm, gpu, &vec![1_i64; len]), ReduceOp::Sum).unwrap();
            let mut sum = vector(&comm, gpu, &vec![1_i64; len]);
            comm.barrier().unwrap();
            if comm.rank() == 0 {
                cuda.fail_times("cuMemcpyAsync", 5, 1, code::LAUNCH_FAILED).unwrap();
            }
            comm.barrier().unwrap();
            comm.all_reduce(&mut sum, ReduceOp::Sum).unwrap_err()
        });
        let told = |error: &CollectiveError| error.to_string().contains("cuMemcpy");
        assert!(errors.iter().all(told), "{errors:?}");
    });
}
