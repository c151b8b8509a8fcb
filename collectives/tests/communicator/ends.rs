//! Ranks that leave, panic or keep others waiting; and arguments that make no sense.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use qpair_collectives::{Algorithm, CollectiveError, Communicator, ReduceOp};

use crate::meeting::Meeting;
use crate::support::group;

#[test]
fn a_rank_that_leaves_is_named_on_all_others() {
    for len in [4, 200_000] {
        group(5, |comm| {
            let mut vector = comm.buffer::<f32>(len).unwrap();
            vector.fill(1.0);
            if comm.rank() == 2 {
                comm.all_reduce(&mut vector, ReduceOp::Sum).unwrap();
                return;
            }
            // A rank that is ahead may hear of it while others are still in the first operation.
            let error = loop {
                match comm.all_reduce(&mut vector, ReduceOp::Sum) {
                    Ok(()) => {}
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, CollectiveError::RankLeft { rank: 2, .. }), "{error}");
            assert!(error.is_fatal());
            // The memory is the caller's again.
            vector.fill(7.0);
            assert_eq!(vector.len(), len);
            let start = Instant::now();
            let again = comm.all_reduce(&mut vector, ReduceOp::Sum).unwrap_err();
            assert_eq!(again.to_string(), error.to_string());
            assert_eq!(vector[len - 1], 7.0);
            assert!(start.elapsed() < Duration::from_secs(20), "it waited again");
        });
    }
}

/// So it is to a rank that only tests what it started.
#[test]
fn who_only_tests_hears_of_a_rank_that_left_before_it_was_ever_met() {
    group(2, |comm| {
        if comm.rank() == 0 {
            return;
        }
        let mut pending = comm.start().recv(comm.buffer::<f32>(10).unwrap(), 0).unwrap();
        while !pending.test() {
            std::thread::yield_now();
        }
        let failed = pending.wait().unwrap_err();
        assert!(matches!(failed.error, CollectiveError::RankLeft { rank: 0, .. }), "{failed}");
    });
}

#[test]
fn a_rank_that_leaves_before_it_was_ever_met_is_named() {
    // Of two ranks the lower connects.
    for (ranks, leaver) in [(3, 1), (2, 0), (2, 1)] {
        group(ranks, |comm| {
            if comm.rank() == leaver {
                return;
            }
            let error = comm.barrier().unwrap_err();
            assert!(matches!(error, CollectiveError::RankLeft { rank, .. } if rank as usize == leaver), "{error}");
        });
    }
}

#[test]
fn a_rank_that_has_done_its_part_may_leave() {
    for len in [1, 100_000] {
        group(4, |comm| {
            let mut vector = comm.buffer::<f64>(len).unwrap();
            vector.fill(2.0 * comm.rank() as f64);
            for _ in 0..3 {
                comm.broadcast(&mut vector, 3).unwrap();
            }
            assert!(vector.iter().all(|&element| element == 6.0));
        });
    }
}

/// All that the last rank needs of it had come before.
#[test]
fn what_a_rank_sent_before_it_left_is_taken_by_operations_that_begin_later() {
    let left = Meeting::new(2);
    group(3, |comm| {
        let mut vector = comm.buffer::<f32>(100).unwrap();
        for rank in [1, 2] {
            match comm.rank() {
                0 => comm.recv(&mut vector, rank).unwrap(),
                me if me == rank => comm.send(&mut vector, 0).unwrap(),
                _ => {}
            }
        }
        vector.fill(comm.rank() as f32);
        match comm.rank() {
            // It has left when the other's comes, for which this one waits first.
            2 => {
                (0..3).for_each(|_| comm.send(&mut vector, 0).unwrap());
                drop((vector, comm));
                left.wait();
            }
            1 => {
                left.wait();
                comm.send(&mut vector, 0).unwrap();
            }
            _ => {
                comm.recv(&mut vector, 1).unwrap();
                for _ in 0..3 {
                    vector.fill(0.0);
                    comm.recv(&mut vector, 2).unwrap();
                    assert!(vector.iter().all(|&element| element == 2.0));
                }
                let error = comm.recv(&mut vector, 2).unwrap_err();
                assert!(matches!(error, CollectiveError::RankLeft { rank: 2, .. }), "{error}");
            }
        }
    });
}

/// The same by plans that this rank has not begun before: it hears that the other is about to end as it would tell it of one.
#[test]
fn what_a_rank_sent_before_it_left_is_taken_by_plans_that_are_new() {
    for _ in 0..20 {
        let left = Meeting::new(3);
        group(3, |comm| {
            comm.barrier().unwrap();
            let mut vector = comm.buffer::<f32>(10).unwrap();
            vector.fill(comm.rank() as f32);
            match comm.rank() {
                2 => {
                    comm.send(&mut vector, 0).unwrap();
                    drop((vector, comm));
                    left.wait();
                }
                1 => {
                    (0..2).for_each(|_| comm.send(&mut vector, 0).unwrap());
                    left.wait();
                    comm.send(&mut vector, 0).unwrap();
                }
                _ => {
                    left.wait();
                    (0..3).for_each(|_| comm.recv(&mut vector, 1).unwrap());
                    vector.fill(0.0);
                    comm.recv(&mut vector, 2).unwrap();
                    assert!(vector.iter().all(|&element| element == 2.0));
                }
            }
        });
    }
}

/// The last operation of a program, to whose root others have given their part when the last of them comes.
#[test]
fn ranks_may_leave_before_the_last_of_a_gather_comes() {
    let left = Meeting::new(3);
    group(4, |comm| {
        comm.set_algorithm(Algorithm::Flat);
        let (me, ranks) = (comm.rank(), comm.size());
        let mut parts = comm.buffer::<u32>(if me == 0 { ranks } else { 0 }).unwrap();
        let mut part = comm.buffer::<u32>(1).unwrap();
        part[0] = me as u32;
        if me == 3 {
            left.wait();
        }
        comm.gather(&mut part, &mut parts, 0).unwrap();
        match me {
            0 => assert_eq!(parts[..], [0, 1, 2, 3]),
            3 => {}
            _ => {
                drop((part, parts, comm));
                left.wait();
            }
        }
    });
}

/// As many as the other takes wait for it; the rest is not sent before.
#[test]
fn a_rank_that_is_ahead_by_far_with_short_messages_waits_for_one_that_is_busy() {
    let (first, messages, sent) = (10_000, 30_000, AtomicU64::new(0));
    group(3, |comm| {
        let mut vector = comm.buffer::<u64>(1).unwrap();
        match comm.rank() {
            0 => {
                for number in 0..messages {
                    if number == first {
                        comm.recv(&mut vector, 2).unwrap();
                    }
                    comm.recv(&mut vector, 1).unwrap();
                    assert_eq!(vector[0], number);
                }
            }
            1 => {
                for number in 0..messages {
                    vector[0] = number;
                    comm.send(&mut vector, 0).unwrap();
                    sent.store(number, Ordering::Relaxed);
                }
            }
            _ => {
                // Until the other gets no further.
                let count = || {
                    std::thread::sleep(Duration::from_millis(300));
                    sent.load(Ordering::Relaxed)
                };
                while count() != count() {}
                comm.send(&mut vector, 0).unwrap();
            }
        }
    });
}

/// What is sent for operations that a rank has not begun is nothing that it waits for.
#[test]
fn a_rank_that_sends_and_sends_puts_no_time_limit_of_others_off() {
    group(3, |comm| {
        let mut vector = comm.buffer::<u64>(1).unwrap();
        comm.barrier().unwrap();
        let error = match comm.rank() {
            0 => {
                comm.set_timeout(Duration::from_millis(300));
                comm.recv(&mut vector, 2).unwrap_err()
            }
            1 => {
                let mut sends = (0..3000).map(|_| {
                    std::thread::sleep(Duration::from_millis(10));
                    comm.send(&mut vector, 0)
                });
                sends.find_map(Result::err).expect("the other's time is over")
            }
            _ => comm.barrier().unwrap_err(),
        };
        assert!(matches!(error, CollectiveError::TimedOut { .. }), "{error}");
    });
}

#[test]
fn a_rank_that_panics_is_named() {
    let comms = Communicator::group(3).unwrap();
    std::thread::scope(|scope| {
        let threads = comms.into_iter().map(|comm| {
            scope.spawn(move || {
                comm.barrier().unwrap();
                if comm.rank() == 1 {
                    std::panic::resume_unwind(Box::new("on purpose"));
                }
                comm.barrier().unwrap_err()
            })
        });
        let ends: Vec<_> = threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join()).collect();
        assert!(ends[1].is_err());
        for end in [&ends[0], &ends[2]] {
            let error = end.as_ref().expect("an error, not a panic");
            assert!(matches!(error, CollectiveError::RankFailed { rank: 1, .. }), "{error}");
            assert!(error.to_string().contains("panicked"), "{error}");
        }
    });
}

#[test]
fn a_rank_that_keeps_others_waiting_is_named_with_the_step() {
    let limit = Duration::from_secs(3);
    let through = Meeting::new(3);
    group(3, |comm| {
        let mut vector = comm.buffer::<f32>(1 << 20).unwrap();
        vector.fill(1.0);
        comm.barrier().unwrap();
        if comm.rank() == 1 {
            through.wait();
            return;
        }
        comm.set_timeout(limit);
        let result = comm.all_reduce(&mut vector, ReduceOp::Sum);
        through.wait();
        let error = result.unwrap_err();
        let CollectiveError::TimedOut { place, limit: waited, waits, .. } = &error else { panic!("{error}") };
        assert_eq!((place.rank, *waited, waits.culprit(1)), (1, limit, Some(1)), "{error}");
        assert!(error.to_string().contains("; rank 1 is in no operation; see what rank 1 does"), "{error}");
        assert!(error.to_string().contains("of direct all-reduce of 4 MiB"), "{error}");
    });
}

/// Rank 3 waits for rank 2, that for rank 1, and that for rank 0, which does something else: it is found at the end.
#[test]
fn who_keeps_all_waiting_is_found_behind_those_who_wait() {
    let limit = Duration::from_secs(3);
    let through = Meeting::new(4);
    group(4, |comm| {
        let mut vector = comm.buffer::<f32>(100).unwrap();
        comm.barrier().unwrap();
        if comm.rank() == 0 {
            through.wait();
            return;
        }
        comm.set_timeout(if comm.rank() == 3 { limit } else { Duration::from_secs(60) });
        let result = comm.recv(&mut vector, comm.rank() - 1);
        through.wait();
        let error = result.unwrap_err();
        let CollectiveError::TimedOut { by: 3, place, waits, .. } = &error else { panic!("{error}") };
        assert_eq!((place.rank, waits.culprit(2), waits.iter().count()), (2, Some(0), 4));
        let words = error.to_string();
        for part in [
            "; rank 2 waits for rank 1 at step 0 of flat transfer",
            "; rank 1 waits for rank 0 at",
            "; rank 0 is in no",
        ] {
            assert!(words.contains(part), "{words}");
        }
        assert!(words.contains("see what rank 0 does"), "{words}");
    });
}

/// The same where rank 1 looks now and then, and where it has looked, and does something else by now.
#[test]
fn who_looks_now_and_then_says_whom_it_waits_for_as_long_as_it_does() {
    for (looks_on, culprit) in [(true, 0), (false, 1)] {
        let through = Meeting::new(3);
        let is_over = AtomicBool::new(false);
        group(3, |comm| {
            let mut vector = comm.buffer::<f32>(100).unwrap();
            comm.barrier().unwrap();
            match comm.rank() {
                0 => through.wait(),
                1 => {
                    let start = Instant::now();
                    let mut pending = comm.start().recv(vector, 0).unwrap();
                    while !pending.test() && (looks_on || start.elapsed() < Duration::from_millis(600)) {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    while !is_over.load(Ordering::Acquire) {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    through.wait();
                }
                _ => {
                    comm.set_timeout(Duration::from_secs(3));
                    let error = comm.recv(&mut vector, 1).unwrap_err();
                    is_over.store(true, Ordering::Release);
                    through.wait();
                    let CollectiveError::TimedOut { by: 2, waits, .. } = &error else { panic!("{error}") };
                    assert_eq!(waits.culprit(1), Some(culprit), "{error}");
                }
            }
        });
    }
}

/// Rank 0 has slept for one operation while another was under way, and computes now: what it slept for keeps nobody waiting.
#[test]
fn a_rank_that_waits_no_more_is_not_taken_to_wait_still() {
    let (asleep, through) = (Meeting::new(2), Meeting::new(3));
    group(3, |comm| {
        let mut vector = comm.buffer::<f32>(100).unwrap();
        comm.barrier().unwrap();
        match comm.rank() {
            0 => {
                let first = comm.start().recv(vector, 2).unwrap();
                let second = comm.start().recv(comm.buffer::<f32>(100).unwrap(), 2).unwrap();
                asleep.wait();
                drop(first.wait().unwrap());
                through.wait();
                drop(second);
            }
            1 => {
                comm.set_timeout(Duration::from_secs(3));
                let error = comm.recv(&mut vector, 0).unwrap_err();
                through.wait();
                let CollectiveError::TimedOut { by: 1, place, waits, .. } = &error else { panic!("{error}") };
                assert_eq!((place.rank, waits.culprit(0)), (0, Some(0)), "{error}");
            }
            _ => {
                asleep.wait();
                // Long enough for the other to sleep.
                std::thread::sleep(Duration::from_millis(300));
                comm.send(&mut vector, 0).unwrap();
                through.wait();
            }
        }
    });
}

#[test]
fn a_limit_may_be_for_ever() {
    group(2, |comm| {
        comm.set_timeout(Duration::MAX);
        if comm.rank() == 1 {
            // Long enough for the other to sleep.
            std::thread::sleep(Duration::from_millis(50));
        }
        comm.barrier().unwrap();
    });
}

#[test]
fn arguments_that_make_no_sense_are_refused_and_change_nothing() {
    let others = Communicator::group(1).unwrap();
    let others = std::sync::Mutex::new(others);
    group(2, |comm| {
        let mut vector = comm.buffer::<f32>(4).unwrap();
        let error = comm.broadcast(&mut vector, 2).unwrap_err();
        assert!(matches!(error, CollectiveError::NoSuchRoot { root: 2, ranks: 2 }), "{error}");
        assert!(error.to_string().contains("choose a root from 0 to 1"), "{error}");
        assert!(!error.is_fatal());
        let mut foreign = others.lock().unwrap()[0].buffer::<f32>(4).unwrap();
        let error = comm.all_reduce(&mut foreign, ReduceOp::Sum).unwrap_err();
        assert!(matches!(error, CollectiveError::ForeignBuffer), "{error}");
        assert!(matches!(comm.buffer::<f64>(usize::MAX / 8), Err(CollectiveError::Memory(_))));
        comm.all_reduce(&mut vector, ReduceOp::Sum).unwrap();
    });
    assert!(matches!(Communicator::group(0), Err(qpair_collectives::BootstrapError::Size { size: 0, .. })));
}

#[test]
fn what_was_decided_is_explained() {
    group(2, |comm| {
        let mut vector = comm.buffer::<f32>(1 << 16).unwrap();
        comm.all_reduce(&mut vector, ReduceOp::Sum).unwrap();
        comm.barrier().unwrap();
        let words = comm.explain().to_string();
        let own = format!("rank {} of 2", comm.rank());
        for part in [&own, "all-reduce (sum) of 65536 f32 by direct", "waiting:", "barrier by exchange"] {
            assert!(words.contains(part), "{part}: {words}");
        }
    });
}

/// What was started and is not waited for has a short time as the communicator is dropped; the error says what to do about it.
#[test]
fn a_communicator_that_is_dropped_does_not_wait_for_long_for_what_was_started() {
    let dropped = Meeting::new(2);
    let errors = group(2, |comm| {
        comm.barrier().unwrap();
        if comm.rank() == 1 {
            dropped.wait();
            return comm.barrier().err();
        }
        comm.set_timeout(Duration::from_millis(100));
        let vector = comm.buffer::<f32>(100).unwrap();
        drop(comm.start().all_reduce(vector, ReduceOp::Sum).unwrap());
        drop(comm);
        dropped.wait();
        None
    });
    let error = errors[1].as_ref().expect("it ended");
    assert!(matches!(error, CollectiveError::RankFailed { rank: 0, .. }), "{error}");
    let words = error.to_string();
    assert!(words.contains("wait for what was started") && !words.contains("set_timeout"), "{words}");
}
