//! Operations that are started, and waited for later.

use std::time::{Duration, Instant};

use qpair_collectives::tune::Tuning;
use qpair_collectives::{
    Algorithm, Collective, CollectiveError, Communicator, Elements, Ranks, Recipe, ReduceOp, Spec,
};

use crate::meeting::Meeting;
use crate::support::group;

#[test]
fn several_are_carried_out_in_order() {
    for tuning in [Tuning::default(), Tuning { eager: Some(16), segment: 256, ..Tuning::default() }] {
        group(3, |comm| {
            comm.set_tuning(tuning);
            let pending: Vec<_> = (0..8)
                .map(|i| {
                    let mut vector = comm.buffer::<f64>(100 * i).unwrap();
                    vector.fill(i as f64);
                    comm.start().all_reduce(vector, ReduceOp::Sum).unwrap()
                })
                .collect();
            comm.barrier().unwrap();
            // Waited for in another order.
            for (i, pending) in pending.into_iter().enumerate().rev() {
                let vector = pending.wait().unwrap();
                assert_eq!(vector.len(), 100 * i);
                assert!(vector.iter().all(|&sum| sum == 3.0 * i as f64));
            }
        });
    }
}

#[test]
fn testing_makes_progress() {
    group(2, |comm| {
        let mut vector = comm.buffer::<i64>(3).unwrap();
        vector.fill(1 + comm.rank() as i64);
        let mut pending = comm.start().all_reduce(vector, ReduceOp::Prod).unwrap();
        while !pending.test() {
            std::thread::yield_now();
        }
        assert_eq!(pending.wait().unwrap()[..], [2, 2, 2]);
    });
}

#[test]
fn one_that_is_dropped_is_carried_out_all_the_same() {
    group(3, |comm| {
        let mut vector = comm.buffer::<f32>(10).unwrap();
        vector.fill(1.0);
        let pending = comm.start().broadcast(vector, 2).unwrap();
        if comm.rank() == 0 {
            drop(pending);
        } else {
            assert_eq!(pending.wait().unwrap()[9], 1.0);
        }
        comm.barrier().unwrap();
        // And one with nothing after it, when the communicator is dropped.
        let last = comm.start().all_reduce(comm.buffer::<f32>(10).unwrap(), ReduceOp::Sum).unwrap();
        if comm.rank() != 0 {
            last.wait().unwrap();
        }
    });
}

#[test]
fn what_can_not_start_gives_the_buffer_back() {
    let mut groups = [Communicator::group(1).unwrap(), Communicator::group(1).unwrap()];
    let (one, two) = (groups[0].remove(0), groups[1].remove(0));
    let failed = one.start().all_reduce(two.buffer::<i32>(5).unwrap(), ReduceOp::Sum).unwrap_err();
    assert!(matches!(failed.error, CollectiveError::ForeignBuffer));
    let failed = two.start().broadcast(failed.buffer, 1).unwrap_err();
    assert!(matches!(failed.error, CollectiveError::NoSuchRoot { root: 1, ranks: 1 }));
    assert_eq!(failed.buffer.len(), 5);
    assert!(failed.to_string().contains("choose a root from 0 to 0"), "{failed}");
}

#[test]
fn after_an_error_the_buffers_come_back() {
    group(2, |comm| {
        if comm.rank() == 1 {
            return;
        }
        let vectors = [comm.buffer::<f32>(100_000).unwrap(), comm.buffer::<f32>(3).unwrap()];
        let pending = vectors.map(|vector| comm.start().all_reduce(vector, ReduceOp::Sum).unwrap());
        for (pending, len) in pending.into_iter().zip([100_000, 3]) {
            let mut failed = pending.wait().unwrap_err();
            assert!(matches!(failed.error, CollectiveError::RankLeft { rank: 1, .. }), "{failed}");
            assert_eq!(failed.buffer.len(), len);
            failed.buffer.fill(1.0);
        }
    });
}

/// A rank starts what it can and goes on, though peers have not even connected: one thread may hold several ranks.
#[test]
fn starting_waits_for_nobody() {
    let comms = Communicator::group(3).expect("a group");
    let started = |comm: &Communicator, len: usize| {
        let mut vector = comm.buffer::<i64>(len).expect("a buffer");
        vector.fill(comm.rank() as i64 + 1);
        vector
    };
    let mut pending: Vec<_> = comms
        .iter()
        .flat_map(|comm| {
            [10, 5000].map(|len| comm.start().all_reduce(started(comm, len), ReduceOp::Sum).expect("a start"))
        })
        .collect();
    while pending.iter_mut().filter_map(|one| (!one.test()).then_some(())).count() > 0 {}
    for one in pending {
        let vector = one.wait().expect("a sum");
        assert!(vector.iter().all(|&element| element == 6));
    }
}

#[test]
fn an_operation_has_a_time_of_its_own() {
    let through = Meeting::new(2);
    group(2, |comm: Communicator| {
        comm.barrier().unwrap();
        let summed = |limit| comm.start().within(limit).all_reduce(comm.buffer::<f32>(10).unwrap(), ReduceOp::Sum);
        summed(Duration::MAX).unwrap().wait().unwrap();
        if comm.rank() == 0 {
            let limit = Duration::from_millis(100);
            let failed = summed(limit).unwrap().wait();
            through.wait();
            let failed = failed.unwrap_err();
            assert_eq!(failed.buffer.len(), 10);
            let CollectiveError::TimedOut { by: 0, limit: waited, .. } = failed.error else { panic!("{failed}") };
            assert_eq!(waited, limit);
        } else {
            through.wait();
            let error = comm.barrier().unwrap_err();
            assert!(matches!(error, CollectiveError::TimedOut { by: 0, .. }), "{error}");
        }
    });
}

/// One that is only tested from time to time is over too.
#[test]
fn an_operation_that_is_tested_runs_out_of_time() {
    let through = Meeting::new(2);
    group(2, |comm: Communicator| {
        comm.barrier().unwrap();
        if comm.rank() == 1 {
            through.wait();
            return;
        }
        let vector = comm.buffer::<f32>(10).unwrap();
        let mut pending = comm.start().within(Duration::from_millis(20)).all_reduce(vector, ReduceOp::Sum).unwrap();
        while !pending.test() {
            std::thread::yield_now();
        }
        let failed = pending.wait();
        through.wait();
        assert!(matches!(failed.unwrap_err().error, CollectiveError::TimedOut { by: 0, .. }));
    });
}

/// Its time is over long before that of the other, but so is the operation.
#[test]
fn the_time_of_one_that_is_done_does_not_count() {
    let through = Meeting::new(2);
    group(2, |comm: Communicator| {
        comm.barrier().unwrap();
        let limit = Duration::from_millis(50);
        let first = comm.start().within(limit).all_reduce(comm.buffer::<f32>(10).unwrap(), ReduceOp::Sum).unwrap();
        if comm.rank() == 0 {
            let second = comm.start().all_reduce(comm.buffer::<f32>(20).unwrap(), ReduceOp::Sum).unwrap();
            through.wait();
            second.wait().unwrap();
            first.wait().unwrap();
        } else {
            first.wait().unwrap();
            through.wait();
            // So that the other finds the time of the first over, and nothing to do.
            std::thread::sleep(3 * limit);
            comm.all_reduce(&mut comm.buffer::<f32>(20).unwrap(), ReduceOp::Sum).unwrap();
        }
    });
}

/// A rank sends to one with which it has nothing to do in a barrier, and goes on to that. The other connects to it when it
/// receives, after the barrier.
#[test]
fn operations_with_other_ranks_do_not_wait_for_a_connection() {
    group(8, |comm: Communicator| {
        comm.set_algorithm(Algorithm::Dissemination);
        let vector = comm.buffer::<i32>(3).unwrap();
        let pairs = pairs_left_out(8);
        let &(low, high) = pairs.first().expect("ranks that have nothing to do with each other");
        if comm.rank() == high {
            let sent = comm.start().send(vector, low).unwrap();
            comm.barrier().unwrap();
            sent.wait().unwrap();
        } else {
            comm.barrier().unwrap();
            if comm.rank() == low {
                comm.start().recv(vector, high).unwrap().wait().unwrap();
            }
        }
        comm.barrier().unwrap();
    });
}

/// Pairs of ranks that send each other nothing in a barrier.
fn pairs_left_out(ranks: u32) -> Vec<(usize, usize)> {
    let spec = Spec::new(Collective::Barrier, Ranks(ranks), Elements(0), 1);
    let recipe = Recipe::new(spec, Algorithm::Dissemination).unwrap();
    let talk = |a: u32, b: u32| recipe.program(a).steps().iter().any(|step| step.kind.peer() == Some(b));
    let pairs = (0..ranks).flat_map(|low| (low + 1..ranks).map(move |high| (low, high)));
    pairs.filter(|&(low, high)| !talk(low, high)).map(|(low, high)| (low as usize, high as usize)).collect()
}

/// Both ranks start more sends than there is room for, and then receive: what is received makes the room.
#[test]
fn receives_pass_sends_that_have_no_room() {
    const SENDS: usize = 100;
    for len in [4, 100_000] {
        group(2, |comm: Communicator| {
            comm.set_timeout(Duration::from_secs(60));
            let (me, other) = (comm.rank(), 1 - comm.rank());
            let sends: Vec<_> = (0..SENDS)
                .map(|i| {
                    let mut vector = comm.buffer::<i32>(len).unwrap();
                    vector.fill((SENDS * me + i) as i32);
                    comm.start().send(vector, other).unwrap()
                })
                .collect();
            let mut vector = comm.buffer::<i32>(len).unwrap();
            for i in 0..SENDS / 2 {
                comm.recv(&mut vector, other).unwrap();
                assert!(vector.iter().all(|&element| element == (SENDS * other + i) as i32));
            }
            let recvs: Vec<_> = (SENDS / 2..SENDS)
                .map(|_| comm.start().recv(comm.buffer::<i32>(len).unwrap(), other).unwrap())
                .collect();
            // The sends first, which wait for the other's receives.
            for send in sends {
                send.wait().unwrap();
            }
            for (i, recv) in (SENDS / 2..).zip(recvs) {
                assert!(recv.wait().unwrap().iter().all(|&element| element == (SENDS * other + i) as i32));
            }
            comm.barrier().unwrap();
        });
    }
}

/// While a rank waits for one operation, it starts those for which there is room by then: others count on them.
#[test]
fn what_waits_for_room_is_started_meanwhile() {
    const SENDS: usize = 40;
    group(3, |comm: Communicator| {
        comm.set_timeout(Duration::from_secs(60));
        let vector = || comm.buffer::<f32>(100_000).unwrap();
        match comm.rank() {
            0 => {
                let sends: Vec<_> = (0..SENDS).map(|_| comm.start().send(vector(), 1).unwrap()).collect();
                comm.recv(&mut vector(), 2).unwrap();
                sends.into_iter().for_each(|send| drop(send.wait().unwrap()));
            }
            1 => {
                (0..SENDS).for_each(|_| comm.recv(&mut vector(), 0).unwrap());
                comm.send(&mut vector(), 2).unwrap();
            }
            _ => {
                comm.recv(&mut vector(), 1).unwrap();
                comm.send(&mut vector(), 0).unwrap();
            }
        }
        comm.barrier().unwrap();
    });
}

/// Collectives stay in order, also behind sends without room: so do those behind them.
#[test]
fn collectives_stay_behind_sends_that_have_no_room() {
    const SENDS: usize = 50;
    group(2, |comm: Communicator| {
        comm.set_timeout(Duration::from_secs(60));
        let other = 1 - comm.rank();
        let vector = |value| {
            let mut vector = comm.buffer::<f64>(5000).unwrap();
            vector.fill(value);
            vector
        };
        let sends: Vec<_> = (0..SENDS).map(|i| comm.start().send(vector(i as f64), other).unwrap()).collect();
        let sums: Vec<_> = (0..3).map(|i| comm.start().all_reduce(vector(i as f64), ReduceOp::Sum).unwrap()).collect();
        let root = comm.start().broadcast(vector(comm.rank() as f64), 1).unwrap();
        let recvs: Vec<_> = (0..SENDS).map(|_| comm.start().recv(vector(-1.0), other).unwrap()).collect();
        assert_eq!(root.wait().unwrap()[4999], 1.0);
        for (i, sum) in sums.into_iter().enumerate() {
            assert_eq!(sum.wait().unwrap()[0], 2.0 * i as f64);
        }
        for (i, recv) in recvs.into_iter().enumerate() {
            assert_eq!(recv.wait().unwrap()[17], i as f64);
        }
        sends.into_iter().for_each(|send| drop(send.wait().unwrap()));
    });
}

/// Two ranks start a sum, which waits for the third. Sends behind it are complete at once where they start, and more than the second
/// has room for, which receives them once it has the sum.
#[test]
fn operations_that_are_complete_leave_room_to_those_before_them() {
    const SENDS: usize = 1000;
    let ahead = Meeting::new(2);
    group(3, |comm: Communicator| {
        comm.set_timeout(Duration::from_secs(60));
        comm.set_algorithm(Algorithm::Ring);
        let vector = |value| {
            let mut vector = comm.buffer::<f32>(12).unwrap();
            vector.fill(value);
            vector
        };
        let sum = || comm.start().all_reduce(vector(1.0 + comm.rank() as f32), ReduceOp::Sum).unwrap();
        // So that nothing has to be connected.
        sum().wait().unwrap();
        match comm.rank() {
            0 => {
                let sum = sum();
                let mut sends: Vec<_> = (0..SENDS).map(|at| comm.start().send(vector(at as f32), 1).unwrap()).collect();
                // Those that the other has no room for it makes room for.
                let (last, begin) = (&mut sends[SENDS - 1], Instant::now());
                while !last.test() {
                    assert!(begin.elapsed() < Duration::from_secs(30), "there is no room for all");
                }
                ahead.wait();
                assert_eq!(sum.wait().unwrap()[..], [6.0; 12]);
                sends.into_iter().for_each(|send| _ = send.wait().unwrap());
            }
            1 => {
                assert_eq!(sum().wait().unwrap()[..], [6.0; 12]);
                let mut vector = vector(-1.0);
                for at in 0..SENDS {
                    comm.recv(&mut vector, 0).unwrap();
                    assert_eq!(vector[..], [at as f32; 12]);
                }
            }
            _ => {
                ahead.wait();
                assert_eq!(sum().wait().unwrap()[..], [6.0; 12]);
            }
        }
    });
}

/// Messages carry 14 bits of an operation's number.
#[test]
fn an_operation_that_is_kept_when_complete_takes_no_later_message() {
    const NUMBERS: usize = 1 << 14;
    group(2, |comm| {
        let mut number = comm.buffer::<u64>(1).unwrap();
        if comm.rank() == 0 {
            for at in 0..=NUMBERS {
                number[0] = at as u64;
                comm.send(&mut number, 1).unwrap();
            }
            return;
        }
        let first = comm.start().recv(comm.buffer::<u64>(1).unwrap(), 0).unwrap();
        for at in 1..=NUMBERS {
            comm.recv(&mut number, 0).unwrap();
            assert_eq!(number[0], at as u64);
        }
        assert_eq!(first.wait().unwrap()[0], 0);
    });
}
