//! Communicators of some of the ranks, beside each other.

use qpair_collectives::tune::Tuning;
use qpair_collectives::{Cartesian, CollectiveError, Communicator, ReduceOp, SplitError};

use crate::support::group;

/// The sum of `value` over the ranks of a communicator.
fn sum(comm: &Communicator, value: usize) -> Result<i64, CollectiveError> {
    let mut vector = comm.buffer::<i64>(3)?;
    vector.fill(value as i64);
    comm.all_reduce(&mut vector, ReduceOp::Sum)?;
    Ok(vector[0])
}

#[test]
fn colours_and_keys_say_who_is_where() {
    group(7, |comm: Communicator| {
        let me = comm.rank();
        // Rank 6 has no part; others by whether they are odd, and backwards.
        let color = (me < 6).then_some(me as u32 % 2);
        let part = comm.split(color, -(me as i64)).unwrap();
        let Some(part) = part else {
            assert_eq!(me, 6);
            return comm.barrier().unwrap();
        };
        assert_eq!((part.size(), part.rank()), (3, 2 - me / 2));
        assert_eq!(sum(&part, me).unwrap(), if me.is_multiple_of(2) { 6 } else { 9 });
        comm.barrier().unwrap();
    });
}

#[test]
fn groups_of_groups_and_groups_of_one() {
    group(6, |comm: Communicator| {
        let me = comm.rank();
        let list = [5, 1, 3];
        let odd = comm.subgroup(&list).unwrap();
        assert_eq!(odd.as_ref().map(Communicator::rank), list.iter().position(|&rank| rank == me));
        if let Some(odd) = odd {
            let alone = odd.split(Some(odd.rank() as u32), 0).unwrap().unwrap();
            assert_eq!((alone.size(), sum(&alone, me).unwrap()), (1, me as i64));
            assert_eq!(sum(&odd, me).unwrap(), 9);
        }
        for wrong in [&[6][..], &[1, 1]] {
            let error = comm.subgroup(wrong).unwrap_err();
            assert!(matches!(error, SplitError::Collective(CollectiveError::NoSuchPeer { .. })), "{error}");
        }
        comm.barrier().unwrap();
    });
}

#[test]
fn groups_of_other_ranks_do_not_become_one() {
    group(4, |comm: Communicator| {
        let me = comm.rank();
        let lists = [[1, 0], [2, 3]];
        let part = comm.subgroup(&lists[me / 2]).unwrap().expect("named");
        assert_eq!((part.size(), sum(&part, me).unwrap()), (2, [1, 5][me / 2]));
        // One of three gives another list than the other two.
        let list = if me == 2 { [0, 2, 1] } else { [0, 1, 2] };
        let result = comm.subgroup(&list).map(|part| part.is_some());
        match me {
            3 => assert!(!result.unwrap()),
            2 => assert!(matches!(result, Err(SplitError::Lists { named: 3, came: 1 })), "{result:?}"),
            _ => assert!(matches!(result, Err(SplitError::Lists { named: 3, came: 2 })), "{result:?}"),
        }
        comm.barrier().unwrap();
    });
}

#[test]
fn a_part_has_the_tuning_of_the_whole() {
    group(2, |comm: Communicator| {
        let tuning = Tuning { deterministic: true, segment: 4096, ..Tuning::default() };
        comm.set_tuning(tuning);
        assert_eq!(comm.duplicate().unwrap().tuner().tuning, comm.tuner().tuning);
        comm.barrier().unwrap();
    });
}

/// Both have operations under way at once, each in a thread of its own, and in other orders on other ranks.
#[test]
fn a_duplicate_is_used_beside_the_first_from_another_thread() {
    group(3, |comm: Communicator| {
        let twin = comm.duplicate().unwrap();
        let me = comm.rank();
        std::thread::scope(|scope| {
            let beside = scope.spawn(move || {
                for round in 0..50 {
                    assert_eq!(sum(&twin, me + round).unwrap(), 3 + 3 * round as i64);
                }
            });
            for round in 0..50 {
                assert_eq!(sum(&comm, me * round).unwrap(), 3 * round as i64);
            }
            beside.join().unwrap();
        });
    });
}

#[test]
fn what_goes_wrong_in_one_does_not_reach_the_other() {
    group(4, |comm: Communicator| {
        let pair = comm.split(Some(comm.rank() as u32 / 2), 0).unwrap().unwrap();
        let result = if comm.rank() < 2 {
            let len = 10 + pair.rank();
            pair.all_reduce(&mut pair.buffer::<f32>(len).unwrap(), ReduceOp::Sum)
        } else {
            sum(&pair, 1).map(drop)
        };
        assert_eq!(result.is_err(), comm.rank() < 2, "{result:?}");
        assert_eq!(sum(&comm, 1).unwrap(), 4);
        // The buffers of one are not the other's.
        let error = comm.all_reduce(&mut pair.buffer::<f32>(3).unwrap(), ReduceOp::Sum).unwrap_err();
        assert!(matches!(error, CollectiveError::ForeignBuffer), "{error}");
        comm.barrier().unwrap();
    });
}

#[test]
fn rows_and_columns_of_a_grid() {
    group(6, |comm: Communicator| {
        let grid = Cartesian::new(&[2, 3], &[true, false]);
        let me = comm.rank();
        let row = comm.split_grid(&grid, &[1]).unwrap();
        let column = comm.split_grid(&grid, &[0]).unwrap();
        assert_eq!((row.size(), row.rank(), column.size(), column.rank()), (3, me % 3, 2, me / 3));
        assert_eq!(sum(&row, me).unwrap(), [3, 12][me / 3]);
        assert_eq!(sum(&column, me).unwrap(), [3, 5, 7][me % 3]);
        let error = comm.split_grid(&Cartesian::new(&[2, 2], &[false; 2]), &[0]).unwrap_err();
        assert!(error.to_string().starts_with("the grid has 4 where 6 fit"), "{error}");
        comm.barrier().unwrap();
    });
}

#[test]
fn ranks_know_their_hosts() {
    group(3, |comm: Communicator| {
        assert_eq!((comm.nodes(), comm.node(), comm.local_size(), comm.local_rank()), (1, 0, 3, comm.rank()));
        let local = comm.split_by_node().unwrap();
        assert_eq!((local.size(), local.rank()), (3, comm.rank()));
        comm.barrier().unwrap();
    });
}

#[test]
fn an_abort_reaches_all() {
    group(3, |comm: Communicator| {
        let error = if comm.rank() == 1 {
            comm.abort("the loss is not a number");
            comm.barrier().unwrap_err()
        } else {
            comm.barrier().unwrap_err()
        };
        assert!(matches!(error, CollectiveError::Aborted { rank: 1, .. }) && error.is_fatal(), "{error}");
        assert_eq!(error.to_string(), "rank 1 ended the communicator: the loss is not a number");
    });
}

#[test]
fn shifts_go_any_distance() {
    let grid = Cartesian::new(&[5, 3], &[true, false]);
    for by in [isize::MIN, isize::MIN + 1, -6, 6, isize::MAX] {
        let far = |by: i128| grid.rank(&[(2 + by).rem_euclid(5) as usize, 1]);
        let expected = (far(-(by as i128)), far(by as i128));
        assert_eq!(grid.shift(7, 0, by), expected, "{by}");
        assert_eq!(grid.shift(7, 1, by), (None, None));
    }
}

#[test]
#[should_panic(expected = "more places than can be counted")]
fn a_grid_has_no_more_places_than_can_be_counted() {
    let _ = Cartesian::new(&[1 << 40, 1 << 40], &[false; 2]);
}
