use qpair::verbs::calc::{DataType, Element, F8E4M3, F8E5M2, bf16, f16};

use super::super::operation::{Call, Placement};
use super::*;

const PERIOD: usize = PERIODS[0];
/// More than a period, so that it begins again.
const LEN: usize = PERIOD + 100;

fn call<T: Element>(op: Option<ReduceOp>, root: usize) -> Call {
    Call { dtype: T::TYPE, op, placement: Placement::InPlace, root, count: LEN }
}

/// The all-reduce of `len` elements of these of `of` ranks, made by hand in this order.
fn reduced<T: Scalar>(op: ReduceOp, ranks: impl Iterator<Item = usize>, of: usize, len: usize) -> Vec<T> {
    let inputs = ranks.map(|rank| -> Vec<T> { (0..len).map(|at| contribution(op, rank, of, at % PERIOD)).collect() });
    let scaled = inputs.map(|vector| match op {
        ReduceOp::PreMulSum(factor) => vector.into_iter().map(|value| value.times(factor.get())).collect(),
        _ => vector,
    });
    let add = |a: Vec<T>, b: Vec<T>| a.into_iter().zip(b).map(|(a, b)| T::combine(op, a, b).expect("known")).collect();
    let sum = scaled.reduce(add).expect("a rank");
    if op == ReduceOp::Avg { sum.into_iter().map(|value: T| value.over(of as u32)).collect() } else { sum }
}

fn ops<T: Element>() -> impl Iterator<Item = ReduceOp> {
    let scaled = [2.0, -0.5, 3.0, 0.1].map(ReduceOp::pre_mul_sum);
    ReduceOp::ALL.into_iter().chain(scaled).filter(|op| op.supports(T::TYPE))
}

fn order_makes_no_difference<T: Scalar>() {
    for (op, ranks) in ops::<T>().flat_map(|op| [1, 3, 8].map(|ranks| (op, ranks))) {
        let pattern = Pattern::<T>::new(Operation::AllReduce, Some(op), 0, ranks).expect("known");
        let len = 500;
        let spec = Operation::AllReduce.spec(&Call { count: len, ..call::<T>(Some(op), 0) }, 0, ranks);
        let wrong = |result: &[T]| pattern.wrong(&spec, result);
        assert_eq!(wrong(&reduced(op, (0..ranks).rev(), ranks, len)), 0, "{op} of {} among {ranks}, reversed", T::TYPE);
        let halves = (0..ranks).step_by(2).chain((1..ranks).step_by(2));
        assert_eq!(wrong(&reduced(op, halves, ranks, len)), 0, "{op} of {} among {ranks}, evens first", T::TYPE);
    }
}

#[test]
fn results_are_the_same_in_any_order_for_every_type_and_operation() {
    order_makes_no_difference::<i8>();
    order_makes_no_difference::<u8>();
    order_makes_no_difference::<i32>();
    order_makes_no_difference::<u64>();
    order_makes_no_difference::<f16>();
    order_makes_no_difference::<bf16>();
    order_makes_no_difference::<f32>();
    order_makes_no_difference::<f64>();
    order_makes_no_difference::<F8E4M3>();
    order_makes_no_difference::<F8E5M2>();
    assert_eq!(DataType::ALL.len(), 12, "a new type is to be checked too");
}

fn mistakes_show<T: Scalar>() {
    for (op, ranks) in ops::<T>().flat_map(|op| [2, 4, 16].map(|ranks| (op, ranks))) {
        let pattern = Pattern::<T>::new(Operation::AllReduce, Some(op), 0, ranks).expect("known");
        let spec = Operation::AllReduce.spec(&call::<T>(Some(op), 0), 0, ranks);
        let mut moved = reduced::<T>(op, 0..ranks, ranks, LEN);
        moved.rotate_left(LEN / 4);
        let wrong = pattern.wrong(&spec, &moved);
        assert!(wrong > LEN as u64 / 10, "{op} of {} among {ranks}: {wrong} show, moved", T::TYPE);
        let twice = std::iter::once(0).chain([0]).chain(2..ranks);
        let twice = twice.collect::<Vec<_>>().into_iter();
        let wrong = pattern.wrong(&spec, &reduced(op, twice, ranks, LEN));
        assert!(wrong > LEN as u64 / 200, "{op} of {} among {ranks}: {wrong} show, one left out", T::TYPE);
    }
}

#[test]
fn blocks_in_the_wrong_place_and_of_the_wrong_rank_show() {
    mistakes_show::<f32>();
    mistakes_show::<i64>();
    mistakes_show::<u8>();
    mistakes_show::<F8E4M3>();
}

#[test]
fn each_wrong_element_counts_by_its_bits() {
    let pattern = Pattern::<f32>::new(Operation::AllReduce, Some(ReduceOp::Sum), 0, 1).expect("known");
    let spec = Operation::AllReduce.spec(&call::<f32>(Some(ReduceOp::Sum), 0), 0, 1);
    let mut sum = reduced::<f32>(ReduceOp::Sum, 0..1, 1, LEN);
    sum[0] += 1.0;
    sum[PERIOD] += 1.0;
    let zero = sum.iter().position(|&value| value == 0.0).expect("some are 0");
    sum[zero] = -0.0;
    assert_eq!(pattern.wrong(&spec, &sum), 3);
}

#[test]
fn before_a_broadcast_no_element_is_right_by_chance() {
    for rank in 0..3 {
        let pattern = Pattern::<i8>::new(Operation::Broadcast, None, rank, 3).expect("known");
        let spec = Operation::Broadcast.spec(&call::<i8>(None, 1), rank, 3);
        let mut data = vec![0; LEN];
        pattern.fill(&spec, &mut [], &mut data);
        assert_eq!(pattern.wrong(&spec, &data), if rank == 1 { 0 } else { LEN as u64 });
    }
}

#[test]
fn what_was_not_written_is_wrong_in_every_element() {
    for operation in [Operation::AllGather, Operation::AllToAll, Operation::AllToAllV, Operation::Scatter] {
        let call = Call { placement: Placement::OutOfPlace, count: 100, ..call::<u8>(None, 0) };
        let pattern = Pattern::<u8>::new(operation, None, 1, 3).expect("known");
        let spec = operation.spec(&call, 1, 3);
        let (mut input, mut data) = (vec![0; spec.input_len(1) as usize], vec![0; spec.data_len(1) as usize]);
        pattern.fill(&spec, &mut input, &mut data);
        assert_eq!(pattern.wrong(&spec, &data), data.len() as u64, "{operation:?}");
    }
}

#[test]
fn blocks_that_move_are_told_apart() {
    let gather = |from: [usize; 3]| -> Vec<f32> {
        let blocks = from.map(|rank| {
            let pattern = Pattern::<f32>::new(Operation::AllGather, None, rank, 3).expect("known");
            let mut input = vec![0.0; 50];
            let call = Call { placement: Placement::OutOfPlace, count: 50, ..call::<f32>(None, 0) };
            pattern.fill(&Operation::AllGather.spec(&call, rank, 3), &mut input, &mut []);
            input
        });
        blocks.concat()
    };
    let pattern = Pattern::<f32>::new(Operation::AllGather, None, 2, 3).expect("known");
    let spec = Operation::AllGather.spec(&Call { count: 50, ..call::<f32>(None, 0) }, 2, 3);
    assert_eq!(pattern.wrong(&spec, &gather([0, 1, 2])), 0);
    assert!(pattern.wrong(&spec, &gather([0, 2, 1])) > 90);
}

/// Also where all blocks would be alike.
#[test]
fn a_block_in_the_wrong_place_shows_whatever_its_length() {
    let ranks = 4;
    for (operation, op) in [
        (Operation::ReduceScatter, Some(ReduceOp::Sum)),
        (Operation::Scatter, None),
        (Operation::AllToAll, None),
        (Operation::AllGather, None),
    ] {
        for block in [1000, PERIODS[0], 2 * PERIODS[0], PERIODS[1]] {
            let call = Call { placement: Placement::OutOfPlace, count: block * ranks, ..call::<f32>(op, 0) };
            let pattern = Pattern::<f32>::new(operation, op, 1, ranks).expect("known");
            let spec = operation.spec(&call, 1, ranks);
            let [one, other] = [1, 2].map(|rank| {
                let own = Pattern::<f32>::new(operation, op, rank, ranks).expect("known");
                let spec = operation.spec(&call, rank, ranks);
                let parts = own.parts(&spec, spec.output(rank as u32).len as usize);
                let result = &own.table(&spec).result;
                parts.into_iter().flat_map(|(len, at)| pieces(result, at, len).flatten().copied()).collect::<Vec<f32>>()
            });
            assert_eq!(pattern.wrong(&spec, &one), 0, "{operation:?} of {block}");
            match operation {
                // All ranks get the same, and in one order.
                Operation::AllGather => {
                    let turned: Vec<f32> = [&one[block..], &one[..block]].concat();
                    assert!(pattern.wrong(&spec, &turned) > 0, "{operation:?} of {block}");
                }
                _ => assert!(pattern.wrong(&spec, &other) > 0, "{operation:?} of {block}"),
            }
        }
    }
}
