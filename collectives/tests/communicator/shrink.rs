//! Communicators of the ranks that are left, where those are threads.

use std::time::Duration;

use qpair_collectives::{BootstrapError, CollectiveError, Communicator, ReduceOp};

use crate::meeting::Meeting;
use crate::support::{all_reduce, group};

/// Far longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);

/// All-reduces until that ends the communicator.
fn until_error(comm: &Communicator) -> CollectiveError {
    let mut vector = comm.buffer::<i64>(1000).unwrap();
    loop {
        vector.fill(1);
        match comm.all_reduce(&mut vector, ReduceOp::Sum) {
            Ok(()) => assert_eq!(vector[999], comm.size() as i64),
            Err(error) => break error,
        }
    }
}

#[test]
fn those_that_are_left_go_on_twice() {
    group(4, |comm: Communicator| {
        let me = comm.rank();
        if me == 1 {
            return;
        }
        let error = until_error(&comm);
        assert!(matches!(error, CollectiveError::RankLeft { rank: 1, .. }), "{error}");
        let comm = comm.shrink(LIMIT).unwrap();
        assert_eq!((comm.rank(), comm.size(), comm.local_rank()), ([0, 9, 1, 2][me], 3, comm.rank()));
        // One that is slower may hear of the next end while it is in this.
        let mut vector = comm.buffer::<i64>(1000).unwrap();
        vector.fill(1 + comm.rank() as i64);
        if comm.all_reduce(&mut vector, ReduceOp::Sum).is_ok() {
            assert_eq!(vector[..], [6; 1000]);
        }
        // These are ranks of a store.
        if me == 2 {
            return;
        }
        assert!(until_error(&comm).is_fatal());
        let comm = comm.shrink(LIMIT).unwrap();
        assert_eq!((comm.rank(), comm.size()), (me / 3, 2));
        all_reduce::<f32>(&comm, 1000, ReduceOp::Sum);
        all_reduce::<i64>(&comm, 100_003, ReduceOp::Max);
    });
}

#[test]
fn those_that_are_left_go_on_when_ranks_panic() {
    let comms = Communicator::group(4).unwrap();
    std::thread::scope(|scope| {
        let rank = |comm: Communicator| {
            let me = comm.rank();
            // Also the first: threads of one process do not need it.
            if me == 0 {
                std::panic::resume_unwind(Box::new("on purpose"));
            }
            until_error(&comm);
            let comm = comm.shrink(LIMIT).unwrap();
            assert_eq!((comm.rank(), comm.size()), (me - 1, 3));
            // Of ranks of a store as well, for which others stand in.
            if me == 1 {
                std::panic::resume_unwind(Box::new("on purpose"));
            }
            until_error(&comm);
            let comm = comm.shrink(LIMIT).unwrap();
            assert_eq!((comm.rank(), comm.size()), (me - 2, 2));
            all_reduce::<f32>(&comm, 1000, ReduceOp::Sum);
        };
        let threads: Vec<_> = comms.into_iter().map(|comm| scope.spawn(move || rank(comm))).collect();
        let ends: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        let ended: Vec<bool> = ends.iter().map(|end| end.is_err()).collect();
        assert_eq!(ended, [true, true, false, false]);
    });
}

#[test]
fn all_may_be_left_and_each_alone() {
    group(3, |comm: Communicator| {
        let me = comm.rank();
        let comm = comm.shrink(LIMIT).unwrap();
        assert_eq!((comm.rank(), comm.size()), (me, 3));
        all_reduce::<f32>(&comm, 1000, ReduceOp::Sum);
        let alone = comm.split(Some(me as u32), 0).unwrap().unwrap();
        let alone = alone.shrink(LIMIT).unwrap();
        assert_eq!((alone.rank(), alone.size()), (0, 1));
        all_reduce::<f32>(&alone, 10, ReduceOp::Sum);
        comm.barrier().unwrap();
    });
}

#[test]
fn who_waits_for_one_that_shrinks_hears_of_it_and_comes_too() {
    group(3, |comm: Communicator| {
        let me = comm.rank();
        let comm = if me == 2 {
            let error = comm.barrier().unwrap_err();
            assert!(matches!(error, CollectiveError::RankLeft { rank: 0 | 1, .. }), "{error}");
            comm.shrink(LIMIT).unwrap()
        } else {
            comm.shrink(LIMIT).unwrap()
        };
        assert_eq!((comm.rank(), comm.size()), (me, 3));
        all_reduce::<f32>(&comm, 1000, ReduceOp::Sum);
    });
}

#[test]
fn an_abort_is_no_end() {
    group(3, |comm: Communicator| {
        if comm.rank() == 1 {
            comm.abort("the loss is not a number");
        }
        until_error(&comm);
        let comm = comm.shrink(LIMIT).unwrap();
        assert_eq!(comm.size(), 3);
        all_reduce::<f32>(&comm, 1000, ReduceOp::Sum);
    });
}

/// The last rank comes when the others are through; false if one of those was too slow for the limit.
fn leave_out_the_last(limit: Duration, prepare: impl Fn(Communicator) -> Communicator + Sync) -> bool {
    let through = Meeting::new(3);
    let in_time = group(3, |comm: Communicator| {
        let comm = prepare(comm);
        let me = comm.rank();
        if me == 2 {
            through.wait();
            let error = comm.shrink(LIMIT).unwrap_err();
            assert!(matches!(error, BootstrapError::LeftOut { rank: 2 }), "{error}");
            return true;
        }
        let comm = comm.shrink(limit);
        through.wait();
        let comm = match comm {
            Ok(comm) => comm,
            Err(BootstrapError::LeftOut { .. }) => return false,
            Err(error) => panic!("{error}"),
        };
        all_reduce::<f32>(&comm, 1000, ReduceOp::Sum);
        comm.size() == 2 && comm.rank() == me
    });
    in_time.into_iter().all(|in_time| in_time)
}

/// Tries with the first of ever longer limits that is not too short for this machine.
fn in_time(attempt: impl Fn(Duration) -> bool) {
    let mut limits = [100, 2_000, 50_000].map(Duration::from_millis).into_iter();
    assert!(limits.any(attempt), "nobody came in time, however long that was");
}

#[test]
fn who_comes_too_late_is_left_out_and_hears_of_it() {
    in_time(|limit| leave_out_the_last(limit, |comm| comm));
}

#[test]
fn who_comes_too_late_to_the_store_is_left_out_and_hears_of_it() {
    in_time(|limit| leave_out_the_last(limit, |comm| comm.duplicate().unwrap()));
}
