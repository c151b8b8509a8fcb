use std::sync::atomic::{AtomicU64, Ordering};

use qpair_collectives::training::Staleness;
use qpair_collectives::{CollectiveError, ReduceOp};

use crate::random::{Random, seed};
use crate::support::{RANKS, group};

const STEPS: u64 = 30;

fn given(rank: usize, step: u64, at: usize) -> i64 {
    (rank as i64 + 1) * 10_000 + step as i64 * 10 + at as i64 % 10
}

#[test]
fn each_result_comes_once_and_no_rank_is_too_far_ahead() {
    let seed = seed();
    for ranks in RANKS {
        for bound in [0, 1, 3] {
            let begun: Vec<AtomicU64> = (0..ranks).map(|_| AtomicU64::new(0)).collect();
            group(ranks, |comm| {
                let mut random = Random::new(seed + comm.rank() as u64);
                let mut steps = Staleness::new(&comm, 200, bound, ReduceOp::Sum).unwrap();
                let mut next = 0;
                let mut check = |step: u64, sum: &[i64]| {
                    assert_eq!(step, next);
                    next += 1;
                    let expected = |at| (0..ranks).map(|rank| given(rank, step, at)).sum::<i64>();
                    assert!(sum.iter().enumerate().all(|(at, &value)| value == expected(at)));
                };
                for step in 0..STEPS {
                    for _turn in 0..random.below(20) {
                        std::thread::yield_now(); // ranks are slow in turn
                    }
                    let contribution: Vec<i64> = (0..200).map(|at| given(comm.rank(), step, at)).collect();
                    begun[comm.rank()].store(step + 1, Ordering::SeqCst);
                    steps.step(&contribution, &mut check).unwrap();
                    assert!(steps.under_way() <= bound);
                    let slowest = begun.iter().map(|begun| begun.load(Ordering::SeqCst)).min().unwrap();
                    assert!(
                        step < slowest + bound as u64,
                        "step {step} is done, and the slowest begins its {slowest}th"
                    );
                }
                steps.finish(&mut check).unwrap();
                assert_eq!((next, steps.under_way()), (STEPS, 0));
            });
        }
    }
}

#[test]
fn the_slowest_is_known_to_all() {
    let told = group(3, |comm| {
        let mut steps = Staleness::<f32>::new(&comm, 1, 2, ReduceOp::Avg).unwrap();
        assert_eq!(steps.slowest(), None);
        for _step in 0..5 {
            steps.step(&[1.0], |_, mean| assert_eq!(mean, [1.0])).unwrap();
        }
        steps.finish(|_, _| ()).unwrap();
        let slowest = steps.slowest().unwrap();
        assert!(slowest.rank < 3, "{slowest:?}");
        slowest
    });
    assert!(told.iter().all(|slowest| *slowest == told[0]), "{told:?}");
}

#[test]
fn a_rank_that_ends_is_named_at_each_later_step() {
    for bound in [0, 1, 3] {
        group(3, |comm| {
            let mut steps = Staleness::<i64>::new(&comm, 5, bound, ReduceOp::Sum).unwrap();
            steps.step(&[1; 5], |_, sum| assert_eq!(sum, [3; 5])).unwrap();
            if comm.rank() == 1 {
                steps.finish(|_, sum| assert_eq!(sum, [3; 5])).unwrap();
                return;
            }
            let mut failed = 0;
            for _step in 0..STEPS {
                match steps.step(&[1; 5], |step, sum| assert_eq!((step, sum), (0, &[3; 5][..]))) {
                    Ok(()) => assert_eq!(failed, 0, "it works again"),
                    Err(error) => {
                        assert!(matches!(error, CollectiveError::RankLeft { rank: 1, .. }), "{error}");
                        failed += 1;
                    }
                }
            }
            assert!(failed >= STEPS - bound as u64 - 1, "{failed} steps of {STEPS}");
            let error = steps.finish(|step, _| assert_eq!(step, 0)).unwrap_err();
            assert!(matches!(error, CollectiveError::RankLeft { rank: 1, .. }), "{error}");
        });
    }
}

#[test]
fn contributions_have_one_length() {
    group(2, |comm| {
        let mut steps = Staleness::<f32>::new(&comm, 3, 1, ReduceOp::Sum).unwrap();
        let error = steps.step(&[1.0; 2], |_, _| ()).unwrap_err();
        assert!(matches!(error, CollectiveError::Length { len: 2, expected: 3, .. }));
        steps.step(&[1.0; 3], |_, _| ()).unwrap();
        steps.finish(|_, sum| assert_eq!(sum, [2.0; 3])).unwrap();
    });
}
