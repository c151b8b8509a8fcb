//! Every operation, by every algorithm that does it, in place and not, copied and straight from memory to memory.

use qpair_collectives::tune::Tuning;
use qpair_collectives::{Algorithm, Collective, CollectiveError, CommBuffer, Communicator, ReduceOp};

use crate::support::group as on_ranks;

/// Numbers of ranks; fewer on a device, which may be an emulated host's.
fn ranks() -> &'static [usize] {
    if std::env::var_os("QPAIR_TEST_DEVICE").is_some() { &[2, 3] } else { &[1, 2, 3, 4, 5, 8] }
}

/// Blocks that are copied, and that go straight.
const BLOCKS: [usize; 4] = [0, 1, 37, 5000];

fn algorithms(collective: Collective) -> impl Iterator<Item = Algorithm> {
    Algorithm::ALL.into_iter().filter(move |algorithm| *algorithm != Algorithm::Listed && algorithm.does(collective))
}

/// What rank `rank` gives at `at`: whole numbers whose sums i64 holds.
pub fn value(rank: usize, at: usize) -> i64 {
    (rank * 1_000_003 + at * 7 + 1) as i64
}

pub fn filled(comm: &Communicator, len: usize) -> CommBuffer<i64> {
    let mut vector = comm.buffer::<i64>(len).unwrap();
    vector.iter_mut().enumerate().for_each(|(at, place)| *place = value(comm.rank(), at));
    vector
}

pub fn sum(ranks: usize, at: usize) -> i64 {
    (0..ranks).map(|rank| value(rank, at)).sum()
}

#[track_caller]
pub fn holds(vector: &[i64], expected: impl Fn(usize) -> i64, what: &str) {
    let wrong = vector.iter().enumerate().find(|&(at, &value)| value != expected(at));
    assert_eq!(wrong.map(|(at, &value)| (at, value, expected(at))), None, "{what}");
}

/// Calls `check` on all ranks of groups of every size, with every algorithm and every block.
fn each(collective: Collective, check: impl Fn(&Communicator, usize, &str) + Sync) {
    for &ranks in ranks() {
        on_ranks(ranks, |comm: Communicator| {
            for algorithm in algorithms(collective) {
                comm.set_algorithm(algorithm);
                for block in BLOCKS {
                    check(&comm, block, &format!("{algorithm} {collective} of {block} among {ranks}"));
                }
            }
            comm.barrier().unwrap();
        });
    }
}

#[test]
fn all_reduces() {
    each(Collective::AllReduce, |comm, len, what| {
        let ranks = comm.size();
        let mut vector = filled(comm, len);
        comm.all_reduce(&mut vector, ReduceOp::Sum).unwrap();
        holds(&vector, |at| sum(ranks, at), what);
        let (mut input, mut output) = (filled(comm, len), comm.buffer::<i64>(len).unwrap());
        comm.all_reduce_into(&mut input, &mut output, ReduceOp::Sum).unwrap();
        holds(&output, |at| sum(ranks, at), what);
        holds(&input, |at| value(comm.rank(), at), what);
    });
}

#[test]
fn reduce_scatters() {
    each(Collective::ReduceScatter, |comm, block, what| {
        let (ranks, me) = (comm.size(), comm.rank());
        let mut vector = filled(comm, ranks * block);
        comm.reduce_scatter(&mut vector, ReduceOp::Sum).unwrap();
        holds(&vector[comm.block(ranks * block, me)], |at| sum(ranks, me * block + at), what);
        let (mut input, mut output) = (filled(comm, ranks * block), comm.buffer::<i64>(block).unwrap());
        comm.reduce_scatter_into(&mut input, &mut output, ReduceOp::Sum).unwrap();
        holds(&output, |at| sum(ranks, me * block + at), what);
        holds(&input, |at| value(me, at), what);
        let counts: Vec<usize> = (0..ranks).map(|rank| block * (rank % 3) + rank % 2).collect();
        let before: usize = counts[..me].iter().sum();
        let (mut input, mut output) = (filled(comm, counts.iter().sum()), comm.buffer::<i64>(counts[me]).unwrap());
        comm.reduce_scatter_v(&mut input, &mut output, &counts, ReduceOp::Sum).unwrap();
        holds(&output, |at| sum(ranks, before + at), what);
    });
}

#[test]
fn all_gathers() {
    each(Collective::AllGather, |comm, block, what| {
        let (ranks, me) = (comm.size(), comm.rank());
        let mut vector = filled(comm, ranks * block);
        comm.all_gather(&mut vector).unwrap();
        holds(&vector, |at| value(at / block, at), what);
        let (mut input, mut output) = (filled(comm, block), comm.buffer::<i64>(ranks * block).unwrap());
        comm.all_gather_into(&mut input, &mut output).unwrap();
        holds(&output, |at| value(at / block, at % block), what);
        let counts: Vec<usize> = (0..ranks).map(|rank| block * (rank % 3) + rank % 2).collect();
        let (mut input, mut output) = (filled(comm, counts[me]), comm.buffer::<i64>(counts.iter().sum()).unwrap());
        comm.all_gather_v(&mut input, &mut output, &counts).unwrap();
        let expected: Vec<i64> = (0..ranks).flat_map(|rank| (0..counts[rank]).map(move |at| value(rank, at))).collect();
        assert_eq!(output[..], expected, "{what}");
    });
}

#[test]
fn all_to_alls() {
    each(Collective::AllToAll, |comm, block, what| {
        let (ranks, me) = (comm.size(), comm.rank());
        let mut vector = filled(comm, ranks * block);
        comm.all_to_all(&mut vector).unwrap();
        holds(&vector, |at| value(at / block, me * block + at % block), what);
        let (mut input, mut output) = (filled(comm, ranks * block), comm.buffer::<i64>(ranks * block).unwrap());
        comm.all_to_all_into(&mut input, &mut output).unwrap();
        holds(&output, |at| value(at / block, me * block + at % block), what);
    });
}

/// What `from` gives `to`: nothing, in some pairs.
fn pair(block: usize, from: usize, to: usize) -> usize {
    block * ((from * 5 + to * 3) % 4)
}

#[test]
fn all_to_alls_of_any_lengths() {
    for &ranks in ranks() {
        on_ranks(ranks, |comm: Communicator| {
            for algorithm in [Algorithm::Auto, Algorithm::Direct, Algorithm::Pairwise] {
                comm.set_algorithm(algorithm);
                for block in BLOCKS {
                    let me = comm.rank();
                    let gives: Vec<usize> = (0..ranks).map(|to| pair(block, me, to)).collect();
                    let gets: Vec<usize> = (0..ranks).map(|from| pair(block, from, me)).collect();
                    let mut input = filled(&comm, gives.iter().sum());
                    let mut output = comm.buffer::<i64>(gets.iter().sum()).unwrap();
                    comm.all_to_all_v(&mut input, &gives, &mut output, &gets).unwrap();
                    let given = |from| {
                        let before: usize = (0..me).map(|to| pair(block, from, to)).sum();
                        (before..before + pair(block, from, me)).map(move |at| value(from, at))
                    };
                    let expected: Vec<i64> = (0..ranks).flat_map(given).collect();
                    assert_eq!(output[..], expected, "{algorithm}, {block} among {ranks}");
                }
            }
            comm.barrier().unwrap();
        });
    }
}

/// Blocks of more than one segment, by the algorithm that goes round by round.
#[test]
fn all_to_alls_of_long_blocks_go_in_one_piece() {
    on_ranks(3, |comm: Communicator| {
        for algorithm in [Algorithm::Direct, Algorithm::Pairwise] {
            comm.set_algorithm(algorithm);
            let (me, block) = (comm.rank(), 40_000);
            let (mut input, mut output) = (filled(&comm, 3 * block), comm.buffer::<i64>(3 * block).unwrap());
            comm.all_to_all_v(&mut input, &[block; 3], &mut output, &[block; 3]).unwrap();
            holds(&output, |at| value(at / block, me * block + at % block), algorithm.name());
        }
        comm.barrier().unwrap();
    });
}

#[test]
fn an_all_to_all_whose_ranks_disagree_names_both() {
    for (gives, expects) in [(10, 11), (0, 11), (10, 0), (40_000, 39_000)] {
        on_ranks(3, |comm: Communicator| {
            // What rank 2 gives rank 1.
            let odd = |from: usize, to: usize, count: usize| if (from, to) == (2, 1) { count } else { 10 };
            let me = comm.rank();
            let given: Vec<usize> = (0..3).map(|to| odd(me, to, gives)).collect();
            let gotten: Vec<usize> = (0..3).map(|from| odd(from, me, expects)).collect();
            let mut input = filled(&comm, given.iter().sum());
            let mut output = comm.buffer::<i64>(gotten.iter().sum()).unwrap();
            // A rank that has all it wants may hear of it later.
            let all = comm.all_to_all_v(&mut input, &given, &mut output, &gotten).and_then(|()| comm.barrier());
            let error = all.unwrap_err().to_string();
            let words = format!(
                "rank 2 failed: it gives rank 1 {} bytes in all-to-all, but rank 1 expects {} of it: what one gives must be \
                 what the other expects",
                8 * gives,
                8 * expects
            );
            assert_eq!(error, words);
        });
    }
}

/// Only the rank itself sees both counts.
#[test]
fn an_all_to_all_whose_rank_disagrees_with_itself_is_refused() {
    for (gives, gets) in [([3, 1], [5, 1]), ([3, 1], [2, 1])] {
        on_ranks(2, |comm: Communicator| {
            if comm.rank() == 0 {
                let (mut input, mut output) = (filled(&comm, gives.iter().sum()), filled(&comm, gets.iter().sum()));
                let error = comm.all_to_all_v(&mut input, &gives, &mut output, &gets).unwrap_err();
                let length = matches!(error, CollectiveError::Length { len, expected: 3, .. } if len == gets[0]);
                assert!(length && !error.is_fatal(), "{error}");
            }
            // Nothing has begun.
            let (mut input, mut output) = (filled(&comm, 4), filled(&comm, 4));
            comm.all_to_all_v(&mut input, &[2, 2], &mut output, &[2, 2]).unwrap();
        });
    }
}

/// A rank that is no root sees its own count alone, which is right.
#[test]
fn counts_that_are_more_than_there_can_be_are_refused_by_all() {
    on_ranks(2, |comm: Communicator| {
        let counts = [usize::MAX, 5];
        let (mut block, mut whole) = (filled(&comm, 5), filled(&comm, 0));
        for error in [
            comm.gather_v(&mut block, &mut whole, &counts, 0).unwrap_err(),
            comm.scatter_v(&mut whole, &mut block, &counts, 0).unwrap_err(),
        ] {
            assert!(matches!(error, CollectiveError::Length { .. }) && !error.is_fatal(), "{error}");
            assert!(error.to_string().contains("sum of the counts"), "{error}");
        }
        comm.barrier().unwrap();
    });
}

#[test]
fn rooted_operations() {
    each(Collective::Reduce { root: 0 }, |comm, len, what| {
        let (ranks, root) = (comm.size(), len % comm.size());
        let mut vector = filled(comm, len);
        comm.reduce(&mut vector, ReduceOp::Sum, root).unwrap();
        if comm.rank() == root {
            holds(&vector, |at| sum(ranks, at), what);
        }
        let own = if comm.rank() == root { len } else { 0 };
        let (mut input, mut output) = (filled(comm, len), comm.buffer::<i64>(own).unwrap());
        comm.reduce_into(&mut input, &mut output, ReduceOp::Sum, root).unwrap();
        holds(&output, |at| sum(ranks, at), what);
        holds(&input, |at| value(comm.rank(), at), what);
    });
    each(Collective::Broadcast { root: 0 }, |comm, len, what| {
        let root = len % comm.size();
        let mut vector = filled(comm, len);
        comm.broadcast(&mut vector, root).unwrap();
        holds(&vector, |at| value(root, at), what);
    });
    each(Collective::Scatter { root: 0 }, |comm, block, what| {
        let (ranks, me, root) = (comm.size(), comm.rank(), block % comm.size());
        let own = if me == root { ranks * block } else { 0 };
        let (mut input, mut output) = (filled(comm, own), comm.buffer::<i64>(block).unwrap());
        comm.scatter(&mut input, &mut output, root).unwrap();
        holds(&output, |at| value(root, me * block + at), what);
    });
    each(Collective::Gather { root: 0 }, |comm, block, what| {
        let (ranks, me, root) = (comm.size(), comm.rank(), block % comm.size());
        let own = if me == root { ranks * block } else { 0 };
        let (mut input, mut output) = (filled(comm, block), comm.buffer::<i64>(own).unwrap());
        comm.gather(&mut input, &mut output, root).unwrap();
        holds(&output, |at| value(at / block, at % block), what);
        let counts: Vec<usize> = (0..ranks).map(|rank| block * (rank % 2) + 1).collect();
        let own = if me == root { counts.iter().sum() } else { 0 };
        let (mut input, mut output) = (filled(comm, counts[me]), comm.buffer::<i64>(own).unwrap());
        comm.gather_v(&mut input, &mut output, &counts, root).unwrap();
        let own = if me == root { output.len() } else { 0 };
        let (mut whole, mut back) = (output, comm.buffer::<i64>(counts[me]).unwrap());
        assert_eq!(whole.len(), own);
        comm.scatter_v(&mut whole, &mut back, &counts, root).unwrap();
        holds(&back, |at| value(me, at), what);
    });
}

/// One result, to the bit, whatever the algorithm and however messages are split.
#[test]
fn deterministic_results_do_not_depend_on_the_algorithm() {
    for &ranks in ranks() {
        on_ranks(ranks, |comm: Communicator| {
            let rounds = |comm: &Communicator, len: usize| {
                let mut vector = comm.buffer::<f32>(len).unwrap();
                let one = |at: usize| 1.0 / (comm.rank() * 31 + at * 17 + 1) as f32;
                vector.iter_mut().enumerate().for_each(|(at, place)| *place = one(at));
                vector
            };
            let bits = |vector: &[f32]| vector.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
            let mut block: Option<Vec<u32>> = None;
            for (algorithm, segment) in [(Algorithm::Auto, 128 << 10), (Algorithm::Direct, 64), (Algorithm::Flat, 64)] {
                comm.set_algorithm(algorithm);
                for eager in [0, 16 << 10] {
                    comm.set_tuning(Tuning { deterministic: true, segment, eager: Some(eager) });
                    let mut vector = rounds(&comm, 601 * ranks);
                    comm.reduce_scatter(&mut vector, ReduceOp::Sum).unwrap();
                    let own = bits(&vector[comm.block(601 * ranks, comm.rank())]);
                    assert_eq!(block.get_or_insert(own.clone()), &own, "{algorithm} among {ranks}");
                }
            }
            let mut first: Option<Vec<u32>> = None;
            for (algorithm, segment) in [
                (Algorithm::Auto, 128 << 10),
                (Algorithm::Exchange, 64),
                (Algorithm::RecursiveDoubling, 64),
                (Algorithm::HalvingDoubling, 512),
                (Algorithm::Direct, 1 << 10),
                (Algorithm::ParameterServer, 2 << 10),
            ] {
                comm.set_algorithm(algorithm);
                for eager in [0, 16 << 10] {
                    comm.set_tuning(Tuning { deterministic: true, segment, eager: Some(eager) });
                    let mut vector = rounds(&comm, 3001);
                    comm.all_reduce(&mut vector, ReduceOp::Sum).unwrap();
                    let whole = bits(&vector);
                    assert_eq!(first.get_or_insert(whole.clone()), &whole, "{algorithm} among {ranks}");
                }
            }
        });
    }
}

#[test]
fn operations_started_together_come_back_with_their_buffers() {
    on_ranks(4, |comm: Communicator| {
        let (ranks, me, block) = (comm.size(), comm.rank(), 3000);
        let start = || comm.start();
        let gathered = start().all_gather_into(filled(&comm, block), comm.buffer(ranks * block).unwrap()).unwrap();
        let scattered = start()
            .reduce_scatter_into(filled(&comm, ranks * block), comm.buffer(block).unwrap(), ReduceOp::Sum)
            .unwrap();
        let turned =
            start().all_to_all_into(filled(&comm, ranks * block), comm.buffer(ranks * block).unwrap()).unwrap();
        let reduced = start().reduce_scatter(filled(&comm, ranks * block), ReduceOp::Max).unwrap();
        holds(&turned.wait().unwrap().1, |at| value(at / block, me * block + at % block), "all-to-all");
        let (input, output) = gathered.wait().unwrap();
        holds(&input, |at| value(me, at), "all-gather's input");
        holds(&output, |at| value(at / block, at % block), "all-gather");
        holds(&scattered.wait().unwrap().1, |at| sum(ranks, me * block + at), "reduce-scatter");
        let own = comm.block(ranks * block, me);
        holds(&reduced.wait().unwrap()[own], |at| value(ranks - 1, me * block + at), "maximum");
        let failed = start().all_gather(filled(&comm, 4 * block + 1)).unwrap_err();
        assert_eq!(failed.buffer.len(), 4 * block + 1);
        assert!(failed.to_string().starts_with("the vector has 12001 where 12004 fit"), "{failed}");
    });
}

#[test]
fn transfers_pass_by_those_who_have_no_part_in_them() {
    on_ranks(4, |comm: Communicator| {
        let (me, ranks) = (comm.rank(), comm.size());
        for len in [0, 1, 1000, 100_000] {
            // Along the ranks, one after the other, while the others do nothing.
            let mut vector = if me == 0 { filled(&comm, len) } else { comm.buffer(len).unwrap() };
            if me > 0 {
                comm.recv(&mut vector, me - 1).unwrap();
            }
            if me + 1 < ranks {
                comm.send(&mut vector, me + 1).unwrap();
            }
            holds(&vector, |at| value(0, at), "along");
            // All at once, each with each.
            let sent: Vec<_> = (0..ranks)
                .filter(|&to| to != me)
                .map(|to| comm.start().send(filled(&comm, len), to).unwrap())
                .collect();
            let received: Vec<_> = (0..ranks)
                .filter(|&from| from != me)
                .map(|from| (from, comm.start().recv(comm.buffer(len).unwrap(), from).unwrap()))
                .collect();
            for (from, pending) in received {
                holds(&pending.wait().unwrap(), |at| value(from, at), "each with each");
            }
            for pending in sent {
                holds(&pending.wait().unwrap(), |at| value(me, at), "what was sent");
            }
            comm.barrier().unwrap();
        }
        let mut vector = filled(&comm, 5);
        for other in [me, ranks] {
            let error = comm.send(&mut vector, other).unwrap_err().to_string();
            assert!(error.starts_with(&format!("rank {other} is no other rank among 4")), "{error}");
        }
    });
}

#[test]
fn a_transfer_of_another_length_names_both() {
    for lens in [[10, 11], [100_000, 100_001], [0, 10], [10, 0]] {
        on_ranks(3, |comm: Communicator| {
            let mut vector = filled(&comm, lens[comm.rank() % 2]);
            let result = match comm.rank() {
                0 => comm.send(&mut vector, 1),
                1 => comm.recv(&mut vector, 0),
                _ => Ok(()),
            };
            let error = result.and_then(|()| comm.barrier()).unwrap_err().to_string();
            assert!(
                error.contains("on rank 0") && error.contains("on rank 1") && error.contains("transfer"),
                "{error}"
            );
        });
    }
}

/// Operations that were started are under way together: the first can not end before the last is started.
#[test]
fn operations_are_under_way_together() {
    on_ranks(2, |comm: Communicator| {
        let other = 1 - comm.rank();
        let received: Vec<_> =
            (0..12).map(|i| comm.start().recv(comm.buffer::<i64>(1000 * i).unwrap(), other).unwrap()).collect();
        let reduced = comm.start().all_reduce(filled(&comm, 50_000), ReduceOp::Sum).unwrap();
        for i in 0..12 {
            comm.send(&mut filled(&comm, 1000 * i), other).unwrap();
        }
        for pending in received {
            holds(&pending.wait().unwrap(), |at| value(other, at), "received");
        }
        holds(&reduced.wait().unwrap(), |at| sum(2, at), "reduced beside");
    });
}

#[test]
fn what_is_recorded_tells_operations_and_steps() {
    use qpair_collectives::Activity;
    on_ranks(2, |comm: Communicator| {
        let reduce = || comm.all_reduce(&mut filled(&comm, 5000), ReduceOp::Sum).unwrap();
        reduce();
        assert!(comm.trace().events().is_empty());
        comm.record(1000);
        reduce();
        let trace = comm.trace();
        let whole = trace.events()[0];
        assert!(matches!(whole.what, Activity::Operation(call) if call.elements == 5000), "{whole:?}");
        let steps = &trace.events()[1..];
        assert!(!steps.is_empty());
        for step in steps {
            assert!(matches!(step.what, Activity::Step { peer: Some(peer), .. } if peer as usize == 1 - comm.rank()));
            assert!(whole.begin <= step.begin && step.begin <= step.end.unwrap() && step.end <= whole.end, "{step:?}");
        }
        comm.barrier().unwrap();
    });
}
