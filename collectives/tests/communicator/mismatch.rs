//! Ranks that are asked for different things: an error that names both, on all ranks, and never a hang.

use std::time::{Duration, Instant};

use qpair_collectives::Algorithm;
use qpair_collectives::tune::Tuning;
use qpair_collectives::{CollectiveError, Communicator, ReduceOp};

use crate::meeting::Meeting;
use crate::support::group;

/// Runs `work` on each rank, then two barriers, until an error; checks that all name ranks `one` and `other`, and gives
/// the words.
fn differ(
    ranks: usize,
    (one, other): (u32, u32),
    work: impl Fn(&Communicator) -> Result<(), CollectiveError> + Sync,
) -> String {
    let (named, words) = named_by_all(ranks, work);
    assert_eq!(named, [one.min(other), one.max(other)], "{words}");
    words
}

/// The same, whom they name, and the words.
fn named_by_all(
    ranks: usize,
    work: impl Fn(&Communicator) -> Result<(), CollectiveError> + Sync,
) -> ([u32; 2], String) {
    let start = Instant::now();
    let errors = group(ranks, |comm| {
        comm.set_timeout(Duration::from_secs(60));
        let result = work(&comm).and_then(|()| comm.barrier()).and_then(|()| comm.barrier());
        let error = result.expect_err("ranks that differ");
        let again = comm.barrier().expect_err("the communicator is over");
        assert_eq!(again.to_string(), error.to_string());
        error
    });
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}: {errors:?}", start.elapsed());
    let named = errors.iter().map(|error| {
        let CollectiveError::Mismatch(mismatch) = error else { panic!("{error}") };
        let mut named = [mismatch.one.rank, mismatch.other.rank];
        named.sort_unstable();
        (named, error.to_string())
    });
    let named: Vec<_> = named.collect();
    assert!(named.iter().all(|one| one == &named[0]), "{named:?}");
    named[0].clone()
}

fn sum(comm: &Communicator, len: usize, op: ReduceOp) -> Result<(), CollectiveError> {
    comm.all_reduce(&mut comm.buffer::<f32>(len)?, op)
}

#[test]
fn a_count() {
    for (right, wrong) in [(100, 101), (100_000, 100_001), (100, 100_000), (0, 1)] {
        let words = differ(2, (0, 1), |comm| sum(comm, if comm.rank() == 1 { wrong } else { right }, ReduceOp::Sum));
        assert!(words.contains(&format!("of {wrong} f32")), "{words}");
        assert!(words.contains("all ranks must call the same operations"), "{words}");
    }
}

#[test]
fn a_count_after_both_were_used() {
    for lens in [[100, 101], [100_000, 100_001]] {
        differ(2, (0, 1), |comm| {
            sum(comm, lens[0], ReduceOp::Sum)?;
            sum(comm, lens[1], ReduceOp::Sum)?;
            sum(comm, lens[comm.rank()], ReduceOp::Sum)
        });
    }
}

/// A rank that has nothing to do is not to take the next operation for this one, and all after it.
#[test]
fn a_vector_without_elements() {
    for (ranks, lens) in [(2, [0, 100, 100]), (2, [0, 100_000, 100_000]), (3, [0, 100, 100])] {
        let (named, words) = named_by_all(ranks, |comm| {
            lens.into_iter().try_for_each(|len| sum(comm, if comm.rank() == 1 { len } else { lens[1] }, ReduceOp::Sum))
        });
        assert!(named.contains(&1) && words.contains(" of 0 f32"), "{words}");
    }
    // One that is started, and the next before its end.
    let words = differ(2, (0, 1), |comm| {
        let start =
            |len| comm.start().all_reduce(comm.buffer::<f32>(len)?, ReduceOp::Sum).map_err(|failed| failed.error);
        let first = start(if comm.rank() == 1 { 0 } else { 64 })?;
        let second = start(64)?;
        first.wait().map_err(|failed| failed.error)?;
        second.wait().map(drop).map_err(|failed| failed.error)
    });
    assert!(words.contains(" of 0 f32"), "{words}");
    // Where all have nothing, they go on together.
    group(3, |comm| {
        for len in [0, 10, 0, 0, 20_000] {
            let mut vector = comm.buffer::<f32>(len).unwrap();
            vector.fill(1.0);
            comm.all_reduce(&mut vector, ReduceOp::Sum).unwrap();
            assert!(vector.iter().all(|&sum| sum == 3.0));
        }
    });
}

#[test]
fn an_operation() {
    for len in [10, 100_000] {
        let ops = [ReduceOp::Sum, ReduceOp::Max];
        let words = differ(2, (0, 1), |comm| sum(comm, len, ops[comm.rank()]));
        assert!(words.contains("(sum)") && words.contains("(max)"), "{words}");
        let ops = [ReduceOp::Sum, ReduceOp::pre_mul_sum(0.5)];
        let words = differ(2, (0, 1), |comm| sum(comm, len, ops[comm.rank()]));
        assert!(words.contains("(sum)") && words.contains("(premulsum)"), "{words}");
    }
}

#[test]
fn a_type() {
    let words = differ(2, (0, 1), |comm| {
        if comm.rank() == 0 {
            return sum(comm, 50, ReduceOp::Sum);
        }
        comm.all_reduce(&mut comm.buffer::<i32>(50)?, ReduceOp::Sum)
    });
    assert!(words.contains("50 f32") && words.contains("50 i32"), "{words}");
}

#[test]
fn a_root() {
    for len in [10, 100_000] {
        let words = differ(2, (0, 1), |comm| {
            let mut vector = comm.buffer::<f32>(len)?;
            comm.broadcast(&mut vector, comm.rank())
        });
        assert!(words.contains("from rank 0") && words.contains("from rank 1"), "{words}");
    }
}

/// Each receives first, so that nothing of the operation comes to anybody.
#[test]
fn what_no_rank_gives() {
    for len in [10, 100_000] {
        let words = differ(2, (0, 1), |comm| {
            let mut vector = comm.buffer::<f32>(len)?;
            comm.broadcast(&mut vector, 1 - comm.rank())
        });
        assert!(words.contains("from rank 0") && words.contains("from rank 1"), "{words}");
        let words = differ(2, (0, 1), |comm| {
            let mut vector = comm.buffer::<f32>(len)?;
            match comm.rank() {
                0 => comm.reduce(&mut vector, ReduceOp::Sum, 0),
                _ => comm.broadcast(&mut vector, 0),
            }
        });
        assert!(words.contains("reduce") && words.contains("broadcast"), "{words}");
    }
    // What each waits for from before is asked about as well.
    let words = differ(2, (0, 1), |comm| {
        let other = 1 - comm.rank();
        let before = comm.start().recv(comm.buffer::<f32>(10)?, other).map_err(|failed| failed.error)?;
        let mut vector = comm.buffer::<f32>(10)?;
        let outcome = comm.broadcast(&mut vector, other);
        drop(before);
        outcome
    });
    assert!(words.contains("from rank 0") && words.contains("from rank 1"), "{words}");
    // One that comes later, and one that only looks.
    let words = differ(2, (0, 1), |comm| {
        let vector = comm.buffer::<f32>(10)?;
        if comm.rank() == 0 {
            std::thread::sleep(Duration::from_millis(500));
            return comm.broadcast(&mut { vector }, 1);
        }
        let mut pending = comm.start().broadcast(vector, 0).map_err(|failed| failed.error)?;
        while !pending.test() {
            std::thread::yield_now();
        }
        pending.wait().map(drop).map_err(|failed| failed.error)
    });
    assert!(words.contains("from rank 0") && words.contains("from rank 1"), "{words}");
}

#[test]
fn an_order() {
    let words = differ(2, (0, 1), |comm| {
        let mut vector = comm.buffer::<f32>(10)?;
        if comm.rank() == 0 {
            comm.all_reduce(&mut vector, ReduceOp::Sum)?;
            comm.broadcast(&mut vector, 0)
        } else {
            comm.broadcast(&mut vector, 0)?;
            comm.all_reduce(&mut vector, ReduceOp::Sum)
        }
    });
    assert!(words.contains("all-reduce") && words.contains("broadcast"), "{words}");
}

#[test]
fn one_operation_more() {
    let words = differ(2, (0, 1), |comm| {
        comm.barrier()?;
        if comm.rank() == 0 {
            sum(comm, 0, ReduceOp::Sum)?
        } else {
            sum(comm, 10, ReduceOp::Sum)?
        }
        Ok(())
    });
    assert!(words.contains("operation 1"), "{words}");
}

#[test]
fn an_algorithm_or_a_tuning() {
    let words = differ(2, (0, 1), |comm| {
        comm.set_algorithm([Algorithm::Ring, Algorithm::Direct][comm.rank()]);
        sum(comm, 1000, ReduceOp::Sum)
    });
    assert!(words.contains("by ring") && words.contains("by direct"), "{words}");
    differ(2, (0, 1), |comm| {
        comm.set_tuning(Tuning { segment: [1 << 10, 2 << 10][comm.rank()], ..Tuning::default() });
        sum(comm, 100_000, ReduceOp::Sum)
    });
}

#[test]
fn all_ranks_hear_of_two_that_differ() {
    let errors = group(5, |comm| {
        let len = if comm.rank() == 3 { 20_001 } else { 20_000 };
        let error = sum(&comm, len, ReduceOp::Sum).and_then(|()| comm.barrier()).expect_err("rank 3 differs");
        let CollectiveError::Mismatch(mismatch) = error else { panic!("{error}") };
        assert!(mismatch.one.rank == 3 || mismatch.other.rank == 3, "{mismatch}");
        mismatch.to_string()
    });
    assert!(errors.windows(2).all(|pair| pair[0] == pair[1]), "{errors:?}");
}

/// A rank's numbers for its plans come round: what another keeps of it from before is of the plan that had the number then.
#[test]
fn a_message_that_waits_is_of_the_plan_that_its_number_stood_for() {
    const NUMBERS: usize = 4096;
    let through = Meeting::new(3);
    group(3, |comm| {
        match comm.rank() {
            0 => {
                comm.send(&mut comm.buffer::<u8>(1).unwrap(), 1).unwrap();
                for len in 1..NUMBERS {
                    comm.send(&mut comm.buffer::<u8>(len).unwrap(), 2).unwrap();
                }
                comm.send(&mut comm.buffer::<u8>(2).unwrap(), 1).unwrap();
                through.wait();
            }
            1 => {
                // Takes in what comes for later while it waits for another.
                let mut pending = comm.start().recv(comm.buffer::<u8>(1).unwrap(), 2).unwrap();
                let mut is_done = false;
                let sent = std::thread::scope(|scope| {
                    let sent = scope.spawn(|| through.wait());
                    while !sent.is_finished() {
                        is_done |= pending.test();
                        std::thread::yield_now();
                    }
                    sent.join()
                });
                sent.unwrap();
                let start = Instant::now();
                while !is_done && !pending.test() {
                    assert!(start.elapsed() < Duration::from_secs(60), "nothing comes");
                }
                pending.wait().unwrap();
                for len in [1, 2] {
                    comm.recv(&mut comm.buffer::<u8>(len).unwrap(), 0).unwrap();
                }
            }
            _ => {
                for len in 1..NUMBERS {
                    comm.recv(&mut comm.buffer::<u8>(len).unwrap(), 0).unwrap();
                }
                through.wait();
                comm.send(&mut comm.buffer::<u8>(1).unwrap(), 1).unwrap();
            }
        }
        comm.barrier().unwrap();
    });
}
