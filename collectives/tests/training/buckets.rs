use qpair_collectives::training::{BucketError, GradientBuckets};
use qpair_collectives::{CollectiveError, Communicator, ReduceOp};

use crate::random::{Random, seed};
use crate::support::{RANKS, group, shuffle};

/// Lengths of parameters in forward order; with none, and one that is larger than a bucket.
const LENGTHS: [usize; 9] = [5, 300, 0, 17, 64, 64, 1, 90, 8];
const BUCKET: usize = 100 * size_of::<f64>();

fn value(rank: usize, step: usize, param: usize, at: usize) -> f64 {
    (rank * 1000 + step * 100 + param * 10 + at % 7) as f64
}

fn gradient(rank: usize, step: usize, param: usize) -> Vec<f64> {
    (0..LENGTHS[param]).map(|at| value(rank, step, param, at)).collect()
}

fn buckets(comm: &Communicator, op: ReduceOp) -> GradientBuckets<'_, f64> {
    GradientBuckets::with(comm, &LENGTHS, BUCKET, op).unwrap()
}

#[test]
fn ranks_that_fill_in_other_orders_do_not_wait_for_ever() {
    let seed = seed();
    for ranks in RANKS {
        group(ranks, |comm| {
            let mut random = Random::new(seed + comm.rank() as u64);
            let mut buckets = buckets(&comm, ReduceOp::Sum);
            assert_eq!(buckets.buckets(), 5);
            for step in 0..20 {
                let mut order: Vec<usize> = (0..LENGTHS.len()).collect();
                shuffle(&mut order, &mut random);
                for param in order {
                    buckets.add(param, &gradient(comm.rank(), step, param)).unwrap();
                }
                let gradients = buckets.finish().unwrap();
                for (param, &len) in LENGTHS.iter().enumerate() {
                    let sum = |at| (0..ranks).map(|rank| value(rank, step, param, at)).sum::<f64>();
                    let expected: Vec<f64> = (0..len).map(sum).collect();
                    assert_eq!(gradients.gradient(param), expected, "parameter {param} in step {step}");
                }
                assert_eq!(gradients.iter().map(<[f64]>::len).collect::<Vec<_>>(), LENGTHS);
            }
        });
    }
}

#[test]
fn a_full_bucket_is_reduced_before_the_others_are() {
    group(3, |comm| {
        let mut buckets = buckets(&comm, ReduceOp::Avg);
        // Parameters 8, 7 and 6 are the first bucket.
        for param in [6, 7, 8] {
            assert!(buckets.poll(), "nothing is under way");
            buckets.add(param, &gradient(comm.rank(), 0, param)).unwrap();
        }
        while !buckets.poll() {
            std::thread::yield_now();
        }
        // All ranks have reduced it, while none has the others.
        comm.barrier().unwrap();
        for param in 0..6 {
            buckets.add_with(param, |place| place.copy_from_slice(&gradient(comm.rank(), 0, param))).unwrap();
        }
        assert_eq!(buckets.finish().unwrap().gradient(8)[3], 1000.0 + 83.0);
    });
}

#[test]
fn parameters_in_another_order_are_not_mixed_up() {
    group(3, |comm| {
        let lengths = if comm.rank() == 1 { [20, 10] } else { [10, 20] };
        let mut buckets = GradientBuckets::<f32>::new(&comm, &lengths).unwrap();
        lengths.into_iter().enumerate().for_each(|(param, len)| buckets.add(param, &vec![1.0; len]).unwrap());
        for _ in 0..2 {
            assert!(matches!(buckets.finish(), Err(BucketError::Lengths)));
        }
    });
}

#[test]
fn skipped_parameters_count_as_zeros() {
    group(2, |comm| {
        let mut buckets = GradientBuckets::<f32>::new(&comm, &[3, 2]).unwrap();
        for _step in 0..2 {
            buckets.add(0, &[4.0; 3]).unwrap();
            if comm.rank() == 0 { buckets.skip(1) } else { buckets.add(1, &[6.0; 2]) }.unwrap();
            let gradients = buckets.finish().unwrap();
            assert_eq!((gradients.gradient(0), gradients.gradient(1)), (&[4.0; 3][..], &[3.0; 2][..]));
        }
    });
}

#[test]
fn mistakes_are_told_and_cost_nothing() {
    group(2, |comm| {
        let mut buckets = buckets(&comm, ReduceOp::Sum);
        let error = buckets.add(9, &[]).unwrap_err();
        assert!(matches!(error, BucketError::NoSuchParameter { param: 9, parameters: 9 }));
        let error = buckets.add(0, &[0.0; 4]).unwrap_err();
        assert!(matches!(error, BucketError::Length { param: 0, len: 4, expected: 5 }));
        for param in [0, 8, 7, 6, 5] {
            buckets.add(param, &gradient(comm.rank(), 1, param)).unwrap();
        }
        for param in [0, 8] {
            let error = buckets.skip(param).unwrap_err();
            assert!(matches!(error, BucketError::Twice { param: named } if named == param), "{error}");
        }
        let error = buckets.finish().unwrap_err().to_string();
        assert_eq!(
            error,
            "no gradient was given for parameters 1, 2, 3, 4: add it, or skip what this step did not use"
        );
        for param in 1..5 {
            buckets.add(param, &gradient(comm.rank(), 1, param)).unwrap();
        }
        let gradients = buckets.finish().unwrap();
        assert_eq!(gradients.gradient(6), [value(0, 1, 6, 0) + value(1, 1, 6, 0)]);
        // Of the next step nothing was given; until something is, those of this one can be had.
        assert!(matches!(buckets.finish(), Err(BucketError::Missing { params }) if params.len() == 9));
        let again = buckets.gradients().expect("finished");
        assert_eq!(again.gradient(6), [value(0, 1, 6, 0) + value(1, 1, 6, 0)]);
        buckets.add(0, &gradient(comm.rank(), 2, 0)).unwrap();
        assert!(buckets.gradients().is_none());
        assert!(matches!(buckets.finish(), Err(BucketError::Missing { params }) if params.len() == 8));
    });
}

#[test]
fn a_model_without_parameters_has_nothing_to_reduce() {
    group(2, |comm| {
        let mut buckets = GradientBuckets::<f32>::new(&comm, &[]).unwrap();
        assert_eq!(buckets.finish().unwrap().iter().count(), 0);
        let mut empty = GradientBuckets::<f32>::new(&comm, &[0, 0]).unwrap();
        (0..2).for_each(|param| empty.skip(param).unwrap());
        assert!(empty.finish().unwrap().gradient(1).is_empty());
    });
}

#[test]
fn a_rank_that_ends_is_named_each_time() {
    group(2, |comm| {
        if comm.rank() == 1 {
            return;
        }
        let mut buckets = GradientBuckets::<f32>::new(&comm, &[50_000]).unwrap();
        let given = buckets.add(0, &[1.0; 50_000]);
        for error in [given.and_then(|()| buckets.finish().map(|_| ())), buckets.finish().map(|_| ())] {
            let error = error.unwrap_err();
            let is_left = matches!(error, BucketError::Collective(CollectiveError::RankLeft { rank: 1, .. }));
            assert!(is_left, "{error}");
        }
    });
}
