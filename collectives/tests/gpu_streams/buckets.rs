//! Gradients in buckets in memory of a GPU.

use qpair_collectives::training::{BucketError, GradientBuckets, Gradients};
use qpair_collectives::{Communicator, OnGpu, ReduceOp};
use qpair_verbs::GpuEvent;

use crate::ground::{Ground, ranks};

/// Lengths of parameters in forward order: the last two are the first bucket, the next two the second, and the first two the
/// third.
const LENGTHS: [usize; 6] = [7, 0, 90, 10, 60, 40];
const BUCKET: usize = 100 * 4;

type Buckets<'a> = GradientBuckets<'a, i32, OnGpu>;

fn buckets<'a>(comm: &'a Communicator, ground: &Ground) -> Buckets<'a> {
    Buckets::on_gpu_with(comm, ground.gpu, &LENGTHS, BUCKET, ReduceOp::Sum).expect("memory")
}

fn read(gradients: &Gradients<'_, '_, i32, OnGpu>, param: usize) -> Vec<i32> {
    let mut elements = vec![-1; LENGTHS[param]];
    gradients.read(param, &mut elements).expect("its own memory");
    elements
}

/// Has the stream write a parameter's gradient, all of whose elements are the ground's.
fn compute(ground: &Ground, buckets: &mut Buckets<'_>, param: usize) -> GpuEvent {
    let address = buckets.address(param).expect("a place");
    match LENGTHS[param] {
        0 => assert_eq!(address, 0),
        len => ground.fake.copy_later(address, ground.gradient.address(), len * 4).expect("a device"),
    }
    ground.gpu.record().expect("an event")
}

#[test]
fn gradients_come_from_streams_from_other_memory_and_from_the_processor() {
    ranks(3, |comm| {
        let me = comm.rank() as i32;
        let ground = Ground::new(me + 1);
        let mut buckets = buckets(&comm, &ground);
        assert_eq!(buckets.buckets(), 3);
        for step in 0..4 {
            // Each rank in an order of its own.
            for at in 0..LENGTHS.len() {
                let param = (at + comm.rank() * 2) % LENGTHS.len();
                match param {
                    0 => buckets.add(param, &[10 * me + step; 7]),
                    2 if comm.rank() == 1 => buckets.skip(param),
                    5 => buckets.add_from(param, &ground.gradient, 17),
                    _ => {
                        let written = compute(&ground, &mut buckets, param);
                        buckets.add_written(param, &written)
                    }
                }
                .expect("taken");
            }
            let gradients = buckets.finish().expect("reduced");
            for (param, expected) in [(0, 30 + 3 * step), (2, 4), (3, 6), (4, 6), (5, 6)] {
                assert_eq!(read(&gradients, param), vec![expected; LENGTHS[param]], "parameter {param} in step {step}");
            }
            assert!(read(&gradients, 1).is_empty());
            assert!(gradients.address(1) == 0 && gradients.address(0) != 0);
            assert!(gradients.read(0, &mut [0; 8]).is_err());
            // What can not be taken begins no step.
            buckets.add_from(2, &ground.gradient, 2980).unwrap_err();
            assert_eq!(read(&buckets.gradients().expect("as before"), 3), [6; 10]);
        }
        assert_eq!(ground.fake.violations(), "");
    });
}

#[test]
fn a_bucket_is_reduced_once_all_streams_have_written_what_is_in_it() {
    ranks(2, |comm| {
        let ground = Ground::new(comm.rank() as i32 + 1);
        let mut buckets = buckets(&comm, &ground);
        for param in [4, 5] {
            let place = buckets.address(param).expect("a place");
            ground.fake.copy_later(place, ground.gradient.address(), LENGTHS[param] * 4).expect("a device");
        }
        ground.gpu.record().expect("an event").wait().expect("no failure");
        // Two others are said to write it, one after the other in either order.
        let busy = [Ground::new(0), Ground::new(0)];
        for (param, busy) in [4, 5].into_iter().zip(&busy) {
            busy.fake.hold().expect("held");
            buckets.add_written(param, &busy.gpu.record().expect("an event")).expect("taken");
        }
        let first = comm.rank();
        for at in [first, 1 - first] {
            for _ in 0..100 {
                assert!(!buckets.poll());
            }
            busy[at].fake.let_go().expect("goes on");
        }
        while !buckets.poll() {
            std::thread::yield_now();
        }
        (0..4).for_each(|param| buckets.skip(param).expect("taken"));
        assert_eq!(read(&buckets.finish().expect("reduced"), 5), [3; 40]);
    });
}

#[test]
fn a_stream_goes_on_to_the_update_once_all_gradients_are_reduced() {
    ranks(2, |comm| {
        let ground = Ground::new(comm.rank() as i32 + 1);
        let mut buckets = buckets(&comm, &ground);
        let gradient = buckets.address(2).expect("a place");
        for step in 0..5 {
            for param in (0..LENGTHS.len()).rev() {
                if param == 0 {
                    // Nothing is held up, and the step goes on.
                    let missing = buckets.before(ground.gpu.hold().expect("held")).unwrap_err();
                    assert!(matches!(&missing, BucketError::Missing { params } if params[..] == [0]), "{missing}");
                }
                let written = compute(&ground, &mut buckets, param);
                buckets.add_written(param, &written).expect("taken");
            }
            // The first step loads kernels, and takes memory.
            if step > 0 {
                buckets.before(ground.gpu.hold().expect("held")).expect("all given");
            }
            ground.fake.copy_later(ground.weights.address(), gradient, LENGTHS[2] * 4).expect("a device");
            let updated = ground.gpu.record().expect("an event");
            let gradients = buckets.finish().expect("reduced");
            assert_eq!(read(&gradients, 2), [3; 90]);
            updated.wait().expect("no failure");
            if step > 0 {
                assert_eq!(ground.weights()[..90], [3; 90]);
            }
        }
        assert_eq!(ground.fake.violations(), "");
    });
}
