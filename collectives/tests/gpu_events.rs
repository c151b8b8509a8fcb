//! Operations that begin once a GPU has come to an event. On a CUDA driver in memory, whose GPUs stop where a test says so.

use std::time::{Duration, Instant};

use qpair_collectives::{CommBuffer, Communicator, OnGpu, ReduceOp};
use qpair_fake_cuda::{code, control};
use qpair_verbs::{Gpu, GpuEvent};

/// One more GPU.
fn gpu() -> (Gpu, control::Device) {
    let fake = control::add_device().expect("the library is built beside the tests");
    (Gpu::open(fake.ordinal() as usize).expect("a GPU"), fake)
}

/// Where the default stream of a GPU is.
fn now(gpu: Gpu) -> GpuEvent {
    gpu.record().expect("an event")
}

/// Runs each rank in a thread, and gives what they return.
fn ranks<R: Send>(count: usize, rank: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    let comms = Communicator::group(count).expect("a group");
    std::thread::scope(|scope| {
        let threads: Vec<_> = comms.into_iter().map(|comm| scope.spawn(|| rank(comm))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
    })
}

fn vector(comm: &Communicator, gpu: Gpu, value: i32) -> CommBuffer<i32, OnGpu> {
    let mut vector = comm.gpu_buffer(gpu, 3000).expect("memory");
    vector.write(0, &[value; 3000]).expect("its own memory");
    vector
}

fn elements(vector: &CommBuffer<i32, OnGpu>) -> Vec<i32> {
    let mut elements = vec![0; vector.len()];
    vector.read(0, &mut elements).expect("its own memory");
    elements
}

#[test]
fn an_operation_begins_once_its_gpu_has_come_to_the_event_and_those_behind_it_after_that() {
    ranks(2, |comm| {
        let ((works, _), (busy, fake)) = (gpu(), gpu());
        let me = comm.rank() as i32;
        fake.hold().expect("held");
        let (event, later) = (now(busy), vector(&comm, works, 10));
        let mut first =
            comm.start().after(&event).all_reduce(vector(&comm, works, me), ReduceOp::Sum).expect("started");
        let mut second = comm.start().all_reduce(later, ReduceOp::Sum).expect("started");
        for _ in 0..200 {
            assert!(!first.test() && !second.test());
        }
        assert!(!event.is_done().expect("no failure"));
        fake.let_go().expect("goes on");
        assert_eq!(elements(&second.wait().expect("done")), [20; 3000]);
        assert_eq!(elements(&first.wait().expect("done")), [1; 3000]);
        assert!(event.is_done().expect("no failure"));
    });
}

#[test]
fn who_waits_for_the_operation_waits_for_the_gpu_too() {
    ranks(2, |comm| {
        let ((works, _), (busy, fake)) = (gpu(), gpu());
        fake.hold().expect("held");
        let pending =
            comm.start().after(&now(busy)).all_reduce(vector(&comm, works, 1), ReduceOp::Sum).expect("started");
        std::thread::scope(|scope| {
            // Held for as long as it takes to start a thread, at least.
            scope.spawn(move || fake.let_go().expect("goes on"));
            assert_eq!(elements(&pending.wait().expect("done")), [2; 3000]);
        });
    });
}

#[test]
fn a_gpu_that_does_not_come_to_the_event_ends_the_communicator_in_time() {
    let begin = Instant::now();
    let errors = ranks(2, |comm| {
        let ((works, _), (busy, fake)) = (gpu(), gpu());
        comm.set_timeout(Duration::from_secs(20));
        let start = if comm.rank() == 0 {
            fake.hold().expect("held");
            comm.start().after(&now(busy)).within(Duration::from_millis(50))
        } else {
            comm.start()
        };
        let failed = start.all_reduce(vector(&comm, works, 1), ReduceOp::Sum).expect("started").wait().unwrap_err();
        fake.let_go().expect("goes on");
        // The vector is there again.
        assert_eq!(failed.buffer.len(), 3000);
        failed.error.to_string()
    });
    assert!(begin.elapsed() < Duration::from_secs(15), "both hear of it");
    for error in errors {
        assert!(error.contains("rank 0") && error.contains("did not come to the event"), "{error}");
    }
}

#[test]
fn work_that_fails_before_the_event_is_told() {
    let comm = Communicator::group(1).expect("a group").remove(0);
    let ((works, _), (broken, fake)) = (gpu(), gpu());
    let event = now(broken);
    fake.fail_times("cuEventQuery", 1, 1000, code::LAUNCH_FAILED).expect("a symbol");
    let pending = comm.start().after(&event).all_reduce(vector(&comm, works, 1), ReduceOp::Sum).expect("started");
    let error = pending.wait().unwrap_err().error.to_string();
    assert!(error.contains("cuEventQuery failed: CUDA_ERROR_LAUNCH_FAILED"), "{error}");
}

/// Rank 0 starts an operation that its GPU holds up, and waits for it no more; it does `then` as the GPU goes on. Rank 1 gets the
/// result, and does the same.
fn started_and_forgotten(then: impl Fn(Communicator) + Sync) {
    ranks(2, |comm| {
        let ((works, _), (busy, fake)) = (gpu(), gpu());
        if comm.rank() == 1 {
            let pending = comm.start().all_reduce(vector(&comm, works, 1), ReduceOp::Sum).expect("started");
            assert_eq!(elements(&pending.wait().expect("done")), [2; 3000]);
            return then(comm);
        }
        fake.hold().expect("held");
        drop(comm.start().after(&now(busy)).all_reduce(vector(&comm, works, 1), ReduceOp::Sum).expect("started"));
        std::thread::scope(|scope| {
            scope.spawn(move || fake.let_go().expect("goes on"));
            then(comm);
        });
    });
}

#[test]
fn an_operation_that_nobody_waits_for_is_carried_out_all_the_same() {
    started_and_forgotten(|comm| comm.barrier().expect("behind it"));
}

#[test]
fn a_communicator_that_is_dropped_waits_for_the_gpu_of_what_was_started() {
    started_and_forgotten(drop);
}

#[test]
fn who_waits_for_one_operation_begins_others_meanwhile_as_their_gpus_come_to_their_events() {
    // Each waits for what the other sends, and that is held at first.
    ranks(2, |comm| {
        let ((works, _), (busy, fake)) = (gpu(), gpu());
        comm.set_timeout(Duration::from_secs(20));
        let other = 1 - comm.rank();
        fake.hold().expect("held");
        let received = comm.start().recv(vector(&comm, works, 0), other).expect("started");
        let sent =
            comm.start().after(&now(busy)).send(vector(&comm, works, comm.rank() as i32), other).expect("started");
        std::thread::scope(|scope| {
            scope.spawn(move || fake.let_go().expect("goes on"));
            assert_eq!(elements(&received.wait().expect("done")), [other as i32; 3000]);
        });
        sent.wait().expect("done");
    });
}

#[test]
fn the_time_of_an_operation_behind_counts_too() {
    let begin = Instant::now();
    let comm = Communicator::group(1).expect("a group").remove(0);
    let ((works, _), (busy, fake)) = (gpu(), gpu());
    fake.hold().expect("held");
    let first = comm.start().after(&now(busy)).all_reduce(vector(&comm, works, 1), ReduceOp::Sum).expect("started");
    let limited = comm.start().within(Duration::from_millis(50));
    let second = limited.all_reduce(vector(&comm, works, 1), ReduceOp::Sum).expect("started");
    for failed in [second.wait().unwrap_err(), first.wait().unwrap_err()] {
        assert!(failed.error.to_string().contains("did not come to the event"), "{}", failed.error);
    }
    fake.let_go().expect("goes on");
    assert!(begin.elapsed() < Duration::from_secs(15), "the first has none of its own");
}
