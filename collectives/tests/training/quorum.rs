use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use qpair_collectives::CollectiveError;
use qpair_collectives::training::quorum::{Worker, serve};

use crate::meeting::Meeting;
use crate::random::{Random, seed};
use crate::support::group;

fn add(parameters: &mut [i64], vector: &[i64]) {
    parameters.iter_mut().zip(vector).for_each(|(parameter, value)| *parameter += value);
}

/// Whatever the quorum: what is applied is what was given.
#[test]
fn nothing_is_lost_or_counted_twice() {
    let seed = seed();
    for ranks in [1, 2, 3, 5] {
        for quorum in [1, 2, 4, 100] {
            for len in [0, 3, 5000] {
                let results = group(ranks, |comm| {
                    let me = comm.rank();
                    let mut parameters = vec![0; len];
                    if me == 0 {
                        let served = serve(&comm, &mut parameters, quorum, |parameters, given| {
                            add(parameters, given.vector);
                        });
                        return (parameters, Some(served.unwrap()));
                    }
                    let mut random = Random::new(seed + me as u64);
                    let mut worker = Worker::new(&comm, 0, len).unwrap();
                    let mut sum = vec![0; len];
                    for step in 0..3 * me {
                        for _turn in 0..random.below(50) {
                            std::thread::yield_now(); // workers are slow in turn
                        }
                        let contribution: Vec<i64> = (0..len).map(|at| (me * 1000 + step * 10 + at) as i64).collect();
                        worker.give(&contribution, &mut parameters).unwrap();
                        add(&mut sum, &contribution);
                    }
                    worker.end().unwrap();
                    (sum, None)
                });
                let mut given = vec![0; len];
                results[1..].iter().for_each(|(sum, _)| add(&mut given, sum));
                let (applied, served) = &results[0];
                assert_eq!(*applied, given, "quorum {quorum} of {ranks}");
                let counts: Vec<u64> = (0..ranks).map(|rank| 3 * rank as u64).collect();
                assert_eq!(served.as_ref().unwrap().applied, counts);
            }
        }
    }
}

#[test]
fn a_slow_worker_holds_up_nobody_and_comes_into_a_later_step() {
    let others_are_done = Meeting::new(3);
    let served = group(4, |comm| {
        let mut parameters = [0];
        if comm.rank() == 0 {
            let served = serve(&comm, &mut parameters, 2, |parameters, given| add(parameters, given.vector)).unwrap();
            assert_eq!(parameters, [1 + 10 * 2]);
            return Some(served);
        }
        let mut worker = Worker::new(&comm, 0, 1).unwrap();
        if comm.rank() == 3 {
            others_are_done.wait();
            worker.give(&[1], &mut parameters).unwrap();
            assert_eq!(parameters, [21]);
        } else {
            for step in 1..=10 {
                worker.give(&[1], &mut parameters).unwrap();
                assert_eq!(parameters, [2 * step], "a step has the two that are fast");
            }
            others_are_done.wait();
        }
        worker.end().unwrap();
        None
    });
    let served = served[0].as_ref().unwrap();
    assert_eq!((served.steps, served.behind, &served.applied[..]), (11, 10, &[0, 10, 10, 1][..]));
}

#[test]
fn a_worker_that_leaves_ends_the_service() {
    let errors = group(3, |comm| {
        let mut parameters = [0];
        if comm.rank() == 0 {
            return serve(&comm, &mut parameters, 2, |_, _| ()).err();
        }
        let worker = Worker::new(&comm, 0, 1);
        if comm.rank() == 1 {
            std::mem::forget(worker); // without a word
            return None;
        }
        // The other may have left before this one came.
        worker.and_then(|mut worker| worker.give(&[1], &mut parameters)).err()
    });
    for rank in [0, 2] {
        let error = errors[rank].as_ref().expect("it can not go on");
        assert!(matches!(error, CollectiveError::RankLeft { rank: 1, .. }), "{error}");
    }
}

#[test]
fn what_is_no_worker_is_refused() {
    let errors = group(3, |comm| {
        let mut parameters = [0];
        match comm.rank() {
            0 => serve(&comm, &mut parameters, 2, |_, _| ()).err(),
            1 => {
                let mut word = comm.buffer::<u64>(1).unwrap();
                word[0] = 77;
                // The server may end before it is known to have come.
                comm.send(&mut word, 0).and_then(|()| comm.barrier()).err()
            }
            _ => Worker::new(&comm, 0, 1).and_then(|mut worker| worker.give(&[1], &mut parameters)).err(),
        }
    });
    for error in errors {
        let error = error.expect("it can not go on");
        assert!(matches!(error, CollectiveError::Aborted { rank: 0, .. }), "{error}");
        assert!(error.to_string().contains("rank 1 sent 77"), "{error}");
    }
}

/// Its communicator stays: the server hears that it gives no more from the worker alone.
#[test]
fn a_worker_that_is_dropped_is_not_waited_for() {
    let (served, is_over) = channel();
    let (served, is_over) = (Mutex::new(served), Mutex::new(is_over));
    let results = group(3, |comm| {
        let mut parameters = [0];
        if comm.rank() == 0 {
            let result = serve(&comm, &mut parameters, 2, |parameters, given| add(parameters, given.vector));
            served.lock().unwrap().send(()).unwrap();
            return Some(result.unwrap());
        }
        let mut worker = Worker::new(&comm, 0, 1).unwrap();
        if comm.rank() == 1 {
            drop(worker);
            // Where it is not over after so long, the server is waiting, and sees that this rank leaves.
            let _ = is_over.lock().unwrap().recv_timeout(Duration::from_secs(20));
        } else {
            worker.give(&[5], &mut parameters).unwrap();
            assert_eq!(parameters, [5]);
            worker.end().unwrap();
        }
        None
    });
    assert_eq!(results[0].as_ref().unwrap().applied, [0, 0, 1]);
}

#[test]
fn a_worker_whose_panic_is_caught_is_not_waited_for() {
    let others_are_done = Meeting::new(3);
    group(3, |comm| {
        if comm.rank() == 0 {
            let served = serve(&comm, &mut [0_i64], 2, |parameters, given| add(parameters, given.vector)).unwrap();
            assert_eq!(served.applied, [0, 0, 3]);
        } else {
            let work = AssertUnwindSafe(|| {
                let mut worker = Worker::<i64>::new(&comm, 0, 1).unwrap();
                assert!(comm.rank() == 2, "as the test wants it");
                (0..3).for_each(|_| worker.give(&[1], &mut [0]).unwrap());
                worker.end().unwrap();
            });
            assert_eq!(catch_unwind(work).is_ok(), comm.rank() == 2);
        }
        others_are_done.wait();
    });
}

/// The server waits no longer for a rank that makes no worker than the communicator's operations do.
#[test]
fn a_rank_that_does_not_join_is_not_waited_for_without_end() {
    let (served, is_over) = channel();
    let (served, is_over) = (Mutex::new(served), Mutex::new(is_over));
    let errors = group(2, |comm| {
        if comm.rank() == 1 {
            let _ = is_over.lock().unwrap().recv_timeout(Duration::from_secs(20));
            return None;
        }
        comm.set_timeout(Duration::from_millis(100));
        let error = serve(&comm, &mut [0_i64], 1, |_, _| ()).err();
        served.lock().unwrap().send(()).unwrap();
        error
    });
    let error = errors[0].as_ref().expect("nobody joins");
    assert!(matches!(error, CollectiveError::TimedOut { by: 0, .. }), "{error}");
}

/// One that has given waits for the quorum far longer than an operation may take.
#[test]
fn a_worker_waits_for_the_quorum_however_long_others_compute() {
    let limit = Duration::from_millis(400);
    group(3, |comm| {
        let mut parameters = [0];
        if comm.rank() == 0 {
            let served = serve(&comm, &mut parameters, 2, |parameters, given| add(parameters, given.vector)).unwrap();
            assert_eq!((parameters, &served.applied[..]), ([10], &[0, 1, 1][..]));
            return;
        }
        let mut worker = Worker::new(&comm, 0, 1).unwrap();
        if comm.rank() == 1 {
            comm.set_timeout(limit);
            worker.give(&[3], &mut parameters).unwrap();
        } else {
            std::thread::sleep(3 * limit);
            worker.give(&[7], &mut parameters).unwrap();
        }
        assert_eq!(parameters, [10]);
        worker.end().unwrap();
    });
}

/// As of one whose process is stopped: whether it waits for a step, or for the others to end.
#[test]
fn a_server_that_falls_silent_is_not_waited_for_without_end() {
    for gives in [true, false] {
        let (given_up, is_over) = channel();
        let (given_up, is_over) = (Mutex::new(given_up), Mutex::new(is_over));
        let have_joined = Meeting::new(2);
        let errors = group(3, |comm| {
            let mut parameters = [0];
            if comm.rank() == 0 {
                let mut is_over = Some(is_over.lock().unwrap());
                let mut wait = || _ = is_over.take().map(|is_over| is_over.recv_timeout(Duration::from_secs(20)));
                return serve(&comm, &mut parameters, 1, |_, _| wait()).err();
            }
            let mut worker = Worker::new(&comm, 0, 1).unwrap();
            have_joined.wait();
            if comm.rank() == 1 {
                // Its contribution holds the server up.
                return worker.give(&[1], &mut parameters).err();
            }
            comm.set_timeout(Duration::from_millis(300));
            let error = if gives { worker.give(&[1], &mut parameters).err() } else { worker.end().err() };
            given_up.lock().unwrap().send(()).unwrap();
            error
        });
        let error = errors[2].as_ref().expect("nothing is heard of the server");
        assert!(matches!(error, CollectiveError::TimedOut { by: 2, .. }), "{error}");
        assert!(errors[0].is_some(), "the communicator ends on all ranks: {errors:?}");
    }
}

/// One that has no more to give waits for the others far longer than an operation may take.
#[test]
fn a_worker_that_ends_early_ends_nobody_else() {
    let limit = Duration::from_millis(400);
    group(3, |comm| {
        let mut parameters = [0];
        if comm.rank() == 0 {
            let served = serve(&comm, &mut parameters, 1, |parameters, given| add(parameters, given.vector)).unwrap();
            assert_eq!((parameters, &served.applied[..]), ([7], &[0, 0, 1][..]));
            return;
        }
        let mut worker = Worker::new(&comm, 0, 1).unwrap();
        if comm.rank() == 1 {
            comm.set_timeout(limit);
        } else {
            // The other one's limit is over long before this one gives anything.
            std::thread::sleep(3 * limit);
            worker.give(&[7], &mut parameters).unwrap();
        }
        worker.end().unwrap();
    });
}
