//! Predictions that can be worked out by hand.

use qpair_collectives::cost::{Cost, CostModel, Link, Seats, Work};

use qpair_collectives::{Algorithm, Collective, Elements, Nodes, Plan, Ranks, Recipe, Shape, Spec};

const MODEL: CostModel = CostModel { copy: 2.0, straight: 2.0, combine: 0.5, ..CostModel::of_latency(1.0) };
/// Seconds of a byte.
const COPY_BYTE: f64 = 0.5;
const REDUCE_BYTE: f64 = 2.0;

/// 64 elements of 8 B.
const LEN: u64 = 64;
const BYTES: f64 = 512.0;

type Case = (Algorithm, Collective);

const RING: Case = (Algorithm::Ring, Collective::AllReduce);
const RECURSIVE_DOUBLING: Case = (Algorithm::RecursiveDoubling, Collective::AllReduce);
const DIRECT: Case = (Algorithm::Direct, Collective::AllReduce);
const BINOMIAL: Case = (Algorithm::BinomialTree, Collective::Broadcast { root: 1 });
const CHAIN: Case = (Algorithm::Chain, Collective::Broadcast { root: 1 });
const BARRIER: Case = (Algorithm::Dissemination, Collective::Barrier);
const ALL: [Case; 6] = [RING, RECURSIVE_DOUBLING, DIRECT, BINOMIAL, CHAIN, BARRIER];

fn plan((algorithm, collective): Case, n: u32, len: u64, segment: u64) -> Plan {
    let spec = Spec::new(collective.with_root(n / 2), Ranks(n), Elements(len), 8);
    Recipe::with(spec, algorithm, Shape { segment, ..Shape::default() }).unwrap().plan()
}

fn seconds(case: Case, n: u32, segment: u64) -> f64 {
    cost(&plan(case, n, LEN, segment), &MODEL, &Seats::default()).seconds
}

/// No message is copied from rank to rank.
fn cost(plan: &Plan, model: &CostModel, seats: &Seats) -> Cost {
    *plan.timeline_at(model, seats, 0).unwrap().cost()
}

#[test]
fn alone_is_free() {
    for case in ALL {
        assert_eq!(seconds(case, 1, LEN), 0.0);
    }
}

#[test]
fn without_contention() {
    let (copy, reduce) = (BYTES * COPY_BYTE, BYTES * REDUCE_BYTE);
    // Each round: copy to scratch, a message, reduce.
    assert_eq!(seconds(RECURSIVE_DOUBLING, 4, LEN), 2.0 * (copy + 1.0 + reduce));
    // A half to reduce, a half to copy.
    assert_eq!(seconds(DIRECT, 2, LEN), 2.0 + reduce / 2.0 + copy / 2.0);
    // Each block: N - 1 hops to reduce, N - 1 to copy.
    assert_eq!(seconds(RING, 4, LEN), 3.0 * (1.0 + reduce / 4.0) + 3.0 * (1.0 + copy / 4.0));
    assert_eq!(seconds(BINOMIAL, 4, LEN), 2.0 * (1.0 + copy));
    assert_eq!(seconds(BARRIER, 5, LEN), 3.0);
}

#[test]
fn a_chain_overlaps_its_segments() {
    let copy = BYTES * COPY_BYTE;
    // 3 hops of the first of 8 segments, then the other 7.
    assert_eq!(seconds(CHAIN, 4, LEN / 8), 3.0 * (1.0 + copy / 8.0) + 7.0 * copy / 8.0);
}

#[test]
fn one_rank_does_one_thing_at_a_time() {
    // Each rank pulls its block from three others, then three blocks.
    let (copy, reduce) = (BYTES * COPY_BYTE, BYTES * REDUCE_BYTE);
    let direct = seconds(DIRECT, 4, LEN);
    assert_eq!(direct, 2.0 + 3.0 * reduce / 4.0 + 3.0 * copy / 4.0);
}

#[test]
fn the_parts_add_up_and_name_the_bottleneck() {
    for case in ALL {
        for n in [2, 3, 8, 13] {
            let cost = cost(&plan(case, n, 1000, 16), &MODEL, &Seats::default());
            let parts = cost.latency + cost.copy + cost.reduce;
            assert!((parts - cost.seconds).abs() <= 1e-6 * cost.seconds, "{case:?}, {n}: {cost}");
            assert!(cost.rank < n);
        }
    }
    let cost = |case| cost(&plan(case, 4, LEN, LEN), &MODEL, &Seats::default());
    assert_eq!(cost(BARRIER).bottleneck().1, Work::Latency);
    assert_eq!(cost(BINOMIAL).bottleneck().1, Work::Copy);
    assert_eq!(cost(DIRECT).bottleneck().1, Work::Reduce);
    assert_eq!(
        cost(BINOMIAL).to_string(),
        "514000000.00 us: latency 2000000.00, copies 512000000.00, reductions 0.00; most of it \
         Copy at rank 1"
    );
}

#[test]
fn a_timeline_says_when_each_step_runs_and_what_takes_its_message() {
    let copy = BYTES * COPY_BYTE;
    let plan = plan(CHAIN, 3, LEN, LEN / 2);
    let timeline = plan.timeline_at(&MODEL, &Seats::default(), 0).unwrap();
    assert_eq!(plan.timeline(&MODEL).unwrap().cost(), &plan.cost(&MODEL).unwrap());
    // From rank 1 by rank 2 to rank 0, in two segments.
    let at = |rank: u32| timeline.steps(rank).iter().map(|step| (step.begin, step.end)).collect::<Vec<_>>();
    let half = copy / 2.0;
    assert_eq!(at(1), [(0.0, 1.0 + half), (0.0, 1.0 + copy)]);
    let received = [(1.0, 1.0 + half), (1.0 + half, 1.0 + copy)];
    let passed_on = [(1.0 + half, 2.0 + copy), (1.0 + copy, 2.0 + copy + half)];
    let (mut all, mut expected) = (at(2), [received, passed_on].concat());
    all.sort_by(|a, b| a.partial_cmp(b).unwrap());
    expected.sort_by(|a, b| a.partial_cmp(b).unwrap());
    assert_eq!(all, expected);
    assert_eq!(at(0), [(2.0 + half, 2.0 + copy), (2.0 + copy, 2.0 + copy + half)]);
    assert!(timeline.steps(3).is_empty());
    let ends: Vec<_> = timeline.messages().iter().map(|message| (message.from, message.to)).collect();
    assert_eq!(ends, [(1, 2), (1, 2), (2, 0), (2, 0)]);
    assert!(timeline.messages().iter().all(|message| message.elements == LEN / 2));
}

#[test]
fn a_rank_of_a_timeline_does_one_thing_at_a_time() {
    for case in ALL {
        let plan = plan(case, 8, 1000, 16);
        let timeline = plan.timeline_at(&MODEL, &Seats::default(), 0).unwrap();
        let sends =
            plan.programs.iter().map(|program| program.steps().iter().filter(|step| step.kind.is_send()).count());
        assert_eq!(timeline.messages().len(), sends.sum::<usize>());
        for (rank, program) in (0..).zip(&plan.programs) {
            let steps = program.steps().iter().zip(timeline.steps(rank));
            let mut work: Vec<_> = steps.filter(|(step, _)| !step.kind.is_send()).map(|(_, moment)| moment).collect();
            work.sort_by(|a, b| (a.begin, a.end).partial_cmp(&(b.begin, b.end)).unwrap());
            assert!(work.windows(2).all(|pair| pair[0].end <= pair[1].begin), "{case:?}: {work:?}");
        }
    }
}

#[test]
fn messages_in_a_row_are_those_that_the_algorithms_tell() {
    let in_a_row = |case, n| plan(case, n, LEN, LEN).messages_in_a_row().unwrap();
    for n in [2, 3, 8, 13] {
        assert_eq!(in_a_row(RING, n), 2 * (u64::from(n) - 1), "{n}");
        assert_eq!(in_a_row(DIRECT, n), 2, "{n}");
        assert_eq!(in_a_row(CHAIN, n), u64::from(n) - 1, "{n}");
        assert_eq!(in_a_row(BARRIER, n), u64::from(n.next_power_of_two().ilog2()), "{n}");
    }
    assert_eq!(in_a_row(RECURSIVE_DOUBLING, 8), 3);
    assert_eq!(in_a_row(BINOMIAL, 8), 3);
    assert_eq!(in_a_row(RING, 1), 0);
}

#[test]
fn both_ends_work_for_a_message_that_is_copied() {
    let model = CostModel { start: 5.0, send: 3.0, receive: 7.0, transfer: 100.0, ..MODEL };
    let plan = plan((Algorithm::Flat, Collective::Broadcast { root: 0 }), 2, LEN, LEN);
    let copied = plan.timeline_at(&model, &Seats::default(), 512).unwrap();
    assert_eq!(copied.cost().seconds, 5.0 + (3.0 + 256.0) + 1.0 + (7.0 + 256.0));
    // The receiver reads what is longer, once it was told that the sender has begun.
    let straight = plan.timeline_at(&model, &Seats::default(), 511).unwrap();
    assert_eq!(straight.cost().seconds, 5.0 + 3.0 + 1.0 + (100.0 + 256.0));
}

#[test]
fn ranks_that_share_a_core_work_one_after_the_other() {
    let plan = plan((Algorithm::Flat, Collective::Broadcast { root: 0 }), 5, LEN, LEN);
    let seconds = |cores, turn| {
        let seats = Seats { cores: f64::from(cores), ..Seats::default() };
        cost(&plan, &CostModel { turn, ..MODEL }, &seats).seconds
    };
    assert_eq!(seconds(5, 0.0), 1.0 + 256.0);
    // Two ranks on a core, and then one with nothing to do but to give.
    assert_eq!(seconds(2, 0.0), 1.0 + 2.0 * 256.0);
    assert_eq!(seconds(1, 0.0), 1.0 + 4.0 * 256.0);
    assert!(seconds(2, 9.0) > seconds(2, 0.0));
    assert_eq!(seconds(5, 9.0), seconds(5, 0.0));
}

#[test]
fn messages_of_a_node_share_its_rails() {
    let plan = plan((Algorithm::Direct, Collective::AllToAll), 4, LEN, LEN);
    let model = CostModel { between: Link { latency: 10.0, speed: 0.1 }, ..CostModel::of_latency(1.0) };
    let nodes = |nodes| cost(&plan, &model, &Seats { nodes, ..Seats::default() }).seconds;
    assert_eq!(nodes(Nodes::One).round(), 1.0);
    // Two ranks of each node give two each on the other a block, which is asked for first.
    assert_eq!(nodes(Nodes::Of(2)).round(), 4.0 * 512.0 * 10.0 + 2.0 * 10.0);
    // Of three ways out and in at least, which are not always free at once.
    assert!((3.0..6.0).contains(&(nodes(Nodes::Of(1)) / 5120.0)));
}
