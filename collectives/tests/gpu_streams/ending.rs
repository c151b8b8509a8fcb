//! A stream goes on with the result, and however its operation ends.

use std::time::Duration;

use qpair_collectives::{CollectiveError, Communicator, Pending, ReduceOp};
use qpair_fake_cuda::code;
use qpair_verbs::GpuEvent;

use crate::ground::{Ground, LEN, Vector, is_held, ranks};
use crate::meeting::Meeting;

#[test]
fn a_stream_computes_reduces_and_goes_on_with_the_result() {
    let both = Meeting::new(2);
    ranks(2, |comm| {
        let ground = Ground::new(comm.rank() as i32 + 1);
        if comm.rank() == 1 {
            both.wait();
        }
        let (mut pending, updated) = ground.step(&comm, ground.vector(&comm));
        if comm.rank() == 0 {
            // The other has not begun.
            for _ in 0..100 {
                assert!(!pending.test());
            }
            assert!(is_held(&updated));
            assert_eq!(ground.weights(), [0; LEN]);
            both.wait();
        }
        let _vector = pending.wait().expect("done");
        updated.wait().expect("no failure");
        assert_eq!(ground.weights(), [3; LEN]);
        assert_eq!(ground.fake.violations(), "");
    });
}

#[test]
fn steps_of_one_stream_follow_each_other() {
    ranks(3, |comm| {
        let ground = Ground::new(comm.rank() as i32 + 1);
        let mut vector = ground.vector(&comm);
        let pinned = ground.fake.count("cuMemHostAlloc").expect("a device");
        for _ in 0..50 {
            let (pending, updated) = ground.step(&comm, vector);
            vector = pending.wait().expect("done");
            // The next step is given to the stream before it has done this one.
            drop(updated);
        }
        ground.gpu.record().expect("an event").wait().expect("no failure");
        assert_eq!(ground.weights(), [6; LEN]);
        assert_eq!(ground.fake.count("cuStreamWaitValue32").expect("a device"), 50);
        assert_eq!(ground.fake.count("cuMemHostAlloc").expect("a device"), pinned + 1);
        assert_eq!(ground.fake.violations(), "");
    });
}

#[test]
fn several_operations_of_a_stream_are_under_way() {
    ranks(2, |comm| {
        let ground = Ground::new(comm.rank() as i32 + 1);
        let steps: Vec<_> = (0..6).map(|_| ground.step(&comm, ground.vector(&comm))).collect();
        // Two streams, or more, may wait for one operation.
        steps[5].0.before(ground.gpu.hold().expect("held"));
        let behind = ground.gpu.record().expect("an event");
        let (pendings, updates): (Vec<_>, Vec<_>) = steps.into_iter().unzip();
        // The last first: those before are carried out before.
        let vectors: Vec<_> = pendings.into_iter().rev().map(|pending| pending.wait().expect("done")).collect();
        for updated in updates {
            updated.wait().expect("no failure");
        }
        behind.wait().expect("no failure");
        drop(vectors);
        assert_eq!(ground.weights(), [3; LEN]);
    });
}

#[test]
fn where_the_operation_has_ended_the_stream_goes_on_at_once() {
    let comm = Communicator::group(1).expect("a group").remove(0);
    let ground = Ground::new(5);
    let mut pending = comm.start().all_reduce(ground.vector(&comm), ReduceOp::Sum).expect("started");
    while !pending.test() {}
    pending.before(ground.gpu.hold().expect("held"));
    ground.gpu.record().expect("an event").wait().expect("no failure");
    pending.wait().expect("done");
}

#[test]
fn a_stream_goes_on_where_its_operation_fails() {
    let both = Meeting::new(2);
    let errors = ranks(2, |comm| {
        let ground = Ground::new(1);
        comm.set_timeout(Duration::from_secs(20));
        if comm.rank() == 1 {
            // It never begins what the other waits for.
            both.wait();
            return comm.barrier().unwrap_err().to_string();
        }
        let vector = ground.vector(&comm);
        let address = vector.address();
        let start = comm.start().within(Duration::from_millis(50));
        let first = start.all_reduce(vector, ReduceOp::Sum).expect("started");
        let updated = ground.update(&first, address);
        let (second, later) = ground.step(&comm, ground.vector(&comm));
        let failed = first.wait().unwrap_err();
        updated.wait().expect("no failure");
        // So do streams of operations behind it, and of those that are too late.
        later.wait().expect("no failure");
        second.before(ground.gpu.hold().expect("held"));
        ground.gpu.record().expect("an event").wait().expect("no failure");
        drop(second.wait().unwrap_err());
        both.wait();
        failed.error.to_string()
    });
    assert!(errors[0].contains("50"), "{errors:?}");
}

#[test]
fn a_stream_goes_on_where_another_rank_aborts() {
    ranks(2, |comm| {
        let ground = Ground::new(1);
        if comm.rank() == 1 {
            return comm.abort("enough");
        }
        let (pending, updated) = ground.step(&comm, ground.vector(&comm));
        let failed = pending.wait().unwrap_err();
        updated.wait().expect("no failure");
        assert!(failed.error.to_string().contains("enough"), "{failed}");
    });
}

#[test]
fn a_stream_goes_on_where_work_before_the_operation_fails() {
    let comm = Communicator::group(1).expect("a group").remove(0);
    let (ground, broken) = (Ground::new(1), Ground::new(1));
    let event = broken.gpu.record().expect("an event");
    broken.fake.fail_times("cuEventQuery", 1, 1000, code::LAUNCH_FAILED).expect("a symbol");
    let vector = ground.vector(&comm);
    let address = vector.address();
    let pending = comm.start().after(&event).all_reduce(vector, ReduceOp::Sum).expect("started");
    let updated = ground.update(&pending, address);
    let _failed = pending.wait().unwrap_err();
    updated.wait().expect("no failure");
}

/// Starts an operation that a stream waits for, which does not read the vector then: that goes with the operation.
fn start_and_hold<'a>(ground: &Ground, comm: &'a Communicator) -> (Pending<'a, Vector>, GpuEvent) {
    let pending = comm.start().all_reduce(ground.vector(comm), ReduceOp::Sum).expect("started");
    pending.before(ground.gpu.hold().expect("held"));
    (pending, ground.gpu.record().expect("an event"))
}

#[test]
fn a_stream_goes_on_where_nobody_waits_for_the_operation_any_more() {
    ranks(2, |comm| {
        let ground = Ground::new(1);
        let (pending, behind) = start_and_hold(&ground, &comm);
        drop(pending);
        // It moves on with those behind it.
        let mut later = comm.start().all_reduce(ground.vector(&comm), ReduceOp::Sum).expect("started");
        while !behind.is_done().expect("no failure") {
            later.test();
        }
        later.wait().expect("done");
        let (pending, behind) = start_and_hold(&ground, &comm);
        drop(pending);
        // Or when the communicator ends.
        drop(comm);
        behind.wait().expect("no failure");
        assert_eq!(ground.fake.violations(), "");
    });
}

#[test]
fn a_stream_goes_on_as_its_thread_panics() {
    let (told, tells) = std::sync::mpsc::channel();
    let mut comms = Communicator::group(2).expect("a group").into_iter();
    let (first, _second) = (comms.next().expect("two"), comms.next().expect("two"));
    let panics = std::thread::spawn(move || {
        let ground = Ground::new(1);
        let (_pending, behind) = start_and_hold(&ground, &first);
        assert!(is_held(&behind));
        told.send(behind).expect("somebody waits");
        panic!("as it is to");
    });
    tells.recv().expect("an event").wait().expect("no failure");
    assert!(panics.join().is_err());
}

/// What one rank alone fails at, the others do not wait for.
#[test]
fn a_vector_that_is_not_multiplied_ends_the_operation_everywhere() {
    for in_place in [false, true] {
        let errors = ranks(2, |comm| {
            comm.set_timeout(Duration::from_secs(60));
            let ground = Ground::new(comm.rank() as i32 + 1);
            let [mut input, mut output] = [(); 2].map(|()| ground.vector(&comm));
            if comm.rank() == 1 {
                let symbol = if in_place { "cuLaunchKernel" } else { "cuMemcpyAsync" };
                ground.fake.fail(symbol, 1, code::INVALID_VALUE).expect("a symbol");
            }
            let op = ReduceOp::pre_mul_sum(2.0);
            let error = match in_place {
                false => comm.all_reduce_into(&mut input, &mut output, op).unwrap_err(),
                true => comm.all_reduce(&mut input, op).unwrap_err(),
            };
            assert_eq!((input.len(), output.len()), (LEN, LEN));
            error
        });
        for error in errors {
            assert!(matches!(error, CollectiveError::RankFailed { rank: 1, .. }), "{error}");
        }
    }
}
