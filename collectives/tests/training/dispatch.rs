use std::time::Duration;

use qpair_collectives::training::{Dispatch, DispatchError};
use qpair_collectives::{CollectiveError, Communicator};

use crate::random::{Random, seed};
use crate::support::{RANKS, group};

const WIDTH: usize = 5;

/// Rows of so many tokens; each says whose it is.
fn tokens(rank: usize, count: usize) -> Vec<i64> {
    (0..count).flat_map(|token| (0..WIDTH).map(move |at| (rank * 1_000_000 + token * 100 + at) as i64)).collect()
}

/// Routes, lets each expert add a billion times its number and one, and checks what comes back. Gives the dropped tokens.
fn there_and_back(comm: &Communicator, dispatch: &mut Dispatch<'_, i64>, experts: &[usize]) -> Vec<usize> {
    let given = tokens(comm.rank(), experts.len());
    let mut routed = dispatch.route(&given, experts).unwrap();
    for (expert, rows) in routed.experts_mut() {
        rows.iter_mut().for_each(|value| *value += (expert as i64 + 1) * 1_000_000_000);
    }
    let dropped = routed.dropped().to_vec();
    let mut back = Vec::new();
    let row = |token: usize, row: &[i64]| {
        let own = given[token * WIDTH..][..WIDTH].iter();
        let expected: Vec<i64> = own.map(|value| value + (experts[token] as i64 + 1) * 1_000_000_000).collect();
        assert_eq!(row, expected, "token {token}");
        back.push(token);
    };
    routed.combine(row).unwrap();
    let kept: Vec<usize> = (0..experts.len()).filter(|token| !dropped.contains(token)).collect();
    assert_eq!(back, kept, "each in order");
    dropped
}

#[test]
fn rows_come_back_in_order_by_any_route() {
    let seed = seed();
    for ranks in RANKS {
        group(ranks, |comm| {
            let experts = 3 * ranks;
            let mut dispatch = Dispatch::new(&comm, experts, WIDTH).unwrap();
            let mut random = Random::new(seed + comm.rank() as u64);
            for step in 0..6 {
                // Ranks give different numbers of tokens, and some none.
                let count = [0, 1, 40, 333][(comm.rank() + step) % 4];
                let route: Vec<usize> = (0..count).map(|_| random.below(experts as u64) as usize).collect();
                assert!(there_and_back(&comm, &mut dispatch, &route).is_empty());
            }
        });
    }
}

#[test]
fn peers_may_get_nothing() {
    for ranks in RANKS {
        group(ranks, |comm| {
            let mut dispatch = Dispatch::new(&comm, ranks, WIDTH).unwrap();
            // All to the last expert, then nothing at all.
            there_and_back(&comm, &mut dispatch, &vec![ranks - 1; 50]);
            there_and_back(&comm, &mut dispatch, &[]);
            // Only one rank has tokens.
            there_and_back(&comm, &mut dispatch, if comm.rank() == 0 { &[0, 0] } else { &[] });
        });
    }
}

#[test]
fn an_expert_takes_no_more_than_its_capacity() {
    for ranks in RANKS {
        let dropped = group(ranks, |comm| {
            let mut dispatch = Dispatch::new(&comm, 2 * ranks, WIDTH).unwrap().with_capacity(10 * ranks);
            // Rank 0 gives expert 0 but 4 rows; the others 30 each, of which they may give what is left.
            let count = if comm.rank() == 0 { 4 } else { 30 };
            let experts: Vec<usize> =
                (0..2 * count).map(|token| if token % 2 == 0 { 0 } else { 2 * ranks - 1 }).collect();
            let dropped = there_and_back(&comm, &mut dispatch, &experts);
            assert!(dropped.is_sorted());
            // A second step has its own capacity.
            assert!(there_and_back(&comm, &mut dispatch, &[1, 1]).is_empty());
            dropped.len()
        });
        let total = 2 * (4 + 30 * (ranks - 1));
        let expected = if ranks == 1 { 0 } else { total - 2 * 10 * ranks };
        assert_eq!(dropped.iter().sum::<usize>(), expected, "among {ranks}");
        assert_eq!(dropped[0], 0, "who gives little gives all");
    }
}

#[test]
fn experts_have_the_rows_of_all_ranks_at_once() {
    group(3, |comm| {
        let mut dispatch = Dispatch::new(&comm, 3, WIDTH).unwrap();
        let mut routed = dispatch.route(&tokens(comm.rank(), 6), &[0, 1, 2, 0, 1, 2]).unwrap();
        for (expert, rows) in routed.experts_mut() {
            assert_eq!((expert, rows.len()), (comm.rank(), 3 * 2 * WIDTH));
            let tokens: Vec<i64> = rows.chunks(WIDTH).map(|row| row[0]).collect();
            let expected =
                (0..3).flat_map(|rank| [expert, expert + 3].map(|token| (rank * 1_000_000 + token * 100) as i64));
            assert_eq!(tokens, expected.collect::<Vec<_>>());
        }
        routed.combine(|_, _| ()).unwrap();
    });
}

#[test]
fn mistakes_are_told() {
    group(2, |comm| {
        let error = Dispatch::<f32>::new(&comm, 3, 4).unwrap_err();
        assert!(matches!(error, DispatchError::Experts { experts: 3, ranks: 2 }));
        let mut dispatch = Dispatch::<f32>::new(&comm, 4, 4).unwrap();
        let error = dispatch.route(&[0.0; 8], &[0, 4]).unwrap_err();
        assert!(matches!(error, DispatchError::NoSuchExpert { token: 1, expert: 4, experts: 4 }));
        let error = dispatch.route(&[0.0; 7], &[0, 3]).unwrap_err().to_string();
        assert_eq!(error, "2 tokens of 4 elements each are 8 elements, but 7 were given");
        // Nothing was sent, so the ranks go on.
        dispatch.route(&[0.0; 8], &[0, 3]).unwrap().combine(|_, _| ()).unwrap();
    });
}

/// A rank without memory for what others give it says so, and nobody waits for it.
#[test]
fn rows_for_which_there_is_no_memory_end_the_communicator() {
    group(2, |comm| {
        comm.set_timeout(Duration::from_secs(60));
        if comm.rank() == 1 {
            let (mut gives, mut gets) = (comm.buffer::<i64>(2).unwrap(), comm.buffer(2).unwrap());
            gives.fill(1 << 45);
            comm.all_to_all_into(&mut gives, &mut gets).unwrap();
            let error = comm.barrier().unwrap_err();
            assert!(matches!(error, CollectiveError::RankFailed { rank: 0, .. }), "{error}");
            return;
        }
        let mut dispatch = Dispatch::<i64>::new(&comm, 2, WIDTH).unwrap();
        let error = dispatch.route(&[], &[]).unwrap_err();
        assert!(matches!(error, DispatchError::Collective(CollectiveError::RankFailed { rank: 0, .. })), "{error}");
    });
}

/// Whatever the numbers of rows are that come of a rank that is not alike: they are not added up beyond what there can be.
#[test]
fn numbers_of_rows_that_can_not_be_are_refused() {
    for capacity in [None, Some(3)] {
        for told in [i64::MIN, -1, i64::MAX / 16, i64::MAX] {
            group(2, |comm| {
                if comm.rank() == 1 {
                    let (mut gives, mut gets) = (comm.buffer::<i64>(4).unwrap(), comm.buffer(4).unwrap());
                    gives.fill(told);
                    let _ = comm.all_to_all_into(&mut gives, &mut gets);
                    // Whoever waits for the other's next is told what ended it.
                    let error = comm.barrier().unwrap_err();
                    assert!(matches!(error, CollectiveError::RankFailed { rank: 1, .. }), "{error}");
                    return;
                }
                let mut dispatch = Dispatch::<i64>::new(&comm, 4, WIDTH).unwrap();
                dispatch = capacity.into_iter().fold(dispatch, Dispatch::with_capacity);
                let error = dispatch.route(&[], &[]).unwrap_err();
                assert!(matches!(error, DispatchError::Announced { rank: 1, rows } if rows == told), "{error}");
            });
        }
    }
}
