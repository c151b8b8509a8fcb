//! Every type of elements, by every operation that is for it, by every algorithm that reduces: bit by bit.

use qpair_collectives::{Algorithm, Collective, Communicator, DataType, Element, ReduceOp};
use qpair_verbs::calc::{Combine, F8E4M3, F8E5M2, UserOp, bf16, f16};

use crate::support::group;

/// A type that takes small whole numbers exactly.
trait Small: Element {
    fn of(value: u8) -> Self;
}

macro_rules! small {
    ($($type:ty: $of:expr),+ $(,)?) => {$(
        impl Small for $type {
            fn of(value: u8) -> Self {
                ($of)(value)
            }
        }
    )+};
}

small! {
    i8: |value| value as i8,
    u8: |value| value,
    i32: i32::from,
    u32: u32::from,
    i64: i64::from,
    u64: u64::from,
    f32: f32::from,
    f64: f64::from,
    f16: f16::from,
    bf16: bf16::from,
    F8E4M3: |value| F8E4M3::from_f32(f32::from(value)),
    F8E5M2: |value| F8E5M2::from_f32(f32::from(value)),
}

/// What a rank gives: 1 or 2 (0 too, where that is of interest), so that no result is rounded, whatever the type; for an
/// average, the same on all ranks.
fn given(op: ReduceOp, rank: usize, at: usize) -> u8 {
    let mixed = (at as u64 + 3).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (7 * rank % 48);
    match op {
        ReduceOp::Avg => 1 + (at % 2) as u8,
        ReduceOp::Sum | ReduceOp::Prod | ReduceOp::PreMulSum(_) => 1 + (mixed % 2) as u8,
        _ => (mixed % 4) as u8,
    }
}

fn expected(op: ReduceOp, ranks: usize, at: usize) -> u8 {
    let all = || (0..ranks).map(|rank| given(op, rank, at));
    let fold = |combine: fn(u8, u8) -> u8| all().reduce(combine).unwrap();
    match op {
        ReduceOp::Sum => all().sum(),
        ReduceOp::Prod => all().product(),
        ReduceOp::Avg => given(op, 0, at),
        ReduceOp::PreMulSum(_) => 2 * all().sum::<u8>(),
        ReduceOp::Min => all().min().unwrap(),
        ReduceOp::Max | ReduceOp::User(_) => all().max().unwrap(),
        ReduceOp::LogicalAnd => fold(|a, b| u8::from(a != 0 && b != 0)),
        ReduceOp::LogicalOr => fold(|a, b| u8::from(a != 0 || b != 0)),
        // Of three, by pairs: true where an odd number is.
        ReduceOp::LogicalXor => all().map(|value| u8::from(value != 0)).fold(0, |a, b| a ^ b),
        ReduceOp::BitAnd => fold(|a, b| a & b),
        ReduceOp::BitOr => fold(|a, b| a | b),
        ReduceOp::BitXor => fold(|a, b| a ^ b),
        other => panic!("{other} is not known here"),
    }
}

fn every_operation<T: Small>(comm: &Communicator) {
    let pre_multiplied = ReduceOp::pre_mul_sum(2.0);
    let ops = ReduceOp::ALL.into_iter().chain([pre_multiplied]).filter(|op| op.supports(T::TYPE));
    for op in ops {
        for algorithm in Algorithm::ALL.into_iter().filter(|&algorithm| algorithm != Algorithm::Listed) {
            comm.set_algorithm(algorithm);
            // Copied, and straight from memory to memory.
            for block in [1, 3000] {
                check::<T>(comm, op, algorithm, block);
            }
        }
    }
}

fn check<T: Small>(comm: &Communicator, op: ReduceOp, algorithm: Algorithm, block: usize) {
    let (me, ranks) = (comm.rank(), comm.size());
    let len = block * ranks;
    let what = format!("{op} of {len} {} by {algorithm}", T::TYPE);
    let filled = || {
        let mut vector = comm.buffer::<T>(len).unwrap();
        vector.iter_mut().enumerate().for_each(|(at, place)| *place = T::of(given(op, me, at)));
        vector
    };
    let holds = |result: &[T], first: usize| {
        let wrong = result.iter().enumerate().find(|&(at, value)| *value != T::of(expected(op, ranks, first + at)));
        assert!(wrong.is_none(), "{what}: {wrong:?}");
    };
    if algorithm.does(Collective::AllReduce) {
        let mut vector = filled();
        comm.all_reduce(&mut vector, op).unwrap();
        holds(&vector, 0);
        let (mut input, mut output) = (filled(), comm.buffer::<T>(len).unwrap());
        comm.all_reduce_into(&mut input, &mut output, op).unwrap();
        holds(&output, 0);
        assert!(input[..] == filled()[..], "{what} changed its input");
    }
    if algorithm.does(Collective::ReduceScatter) {
        let (mut input, mut output) = (filled(), comm.buffer::<T>(block).unwrap());
        comm.reduce_scatter_into(&mut input, &mut output, op).unwrap();
        holds(&output, me * block);
        let mut vector = filled();
        comm.reduce_scatter(&mut vector, op).unwrap();
        holds(&vector[comm.block(len, me)], me * block);
    }
    if algorithm.does(Collective::Reduce { root: 0 }) {
        let mut vector = filled();
        comm.reduce(&mut vector, op, ranks - 1).unwrap();
        if me == ranks - 1 {
            holds(&vector, 0);
        }
    }
}

macro_rules! types {
    ($($name:ident: $type:ty),+ $(,)?) => {
        $(#[test]
        fn $name() {
            group(3, |comm: Communicator| {
                every_operation::<$type>(&comm);
                comm.barrier().unwrap();
            });
        })+

        #[test]
        fn no_type_is_left_out() {
            let tested = [$(<$type as Element>::TYPE),+];
            assert!(DataType::ALL.iter().all(|data_type| tested.contains(data_type)));
        }
    };
}

types! {
    by_i8: i8, by_u8: u8, by_i32: i32, by_u32: u32, by_i64: i64, by_u64: u64, by_f16: f16, by_bf16: bf16, by_f32: f32, by_f64: f64,
    by_f8e4m3: F8E4M3, by_f8e5m2: F8E5M2,
}

/// The greater, by a program's own hand.
struct Greater;

impl Combine for Greater {
    type Element = i32;
    const NAME: &'static str = "greater";

    fn combine(a: i32, b: i32) -> i32 {
        a.max(b)
    }
}

#[test]
fn a_programs_own_operation() {
    let op = ReduceOp::User(UserOp::of::<Greater>());
    group(3, |comm: Communicator| {
        for algorithm in [Algorithm::Auto, Algorithm::Ring, Algorithm::Direct, Algorithm::RecursiveDoubling] {
            comm.set_algorithm(algorithm);
            [1, 3000].into_iter().for_each(|block| check::<i32>(&comm, op, algorithm, block));
        }
        let error = comm.all_reduce(&mut comm.buffer::<f32>(3).unwrap(), op).unwrap_err().to_string();
        assert!(error.contains("vectors of f32 can not be combined by"), "{error}");
        comm.barrier().unwrap();
    });
}

#[test]
fn what_is_not_for_a_type_is_refused_before_anything_is_sent() {
    group(2, |comm: Communicator| {
        let error = comm.all_reduce(&mut comm.buffer::<f64>(3).unwrap(), ReduceOp::BitAnd).unwrap_err();
        assert!(!error.is_fatal(), "{error}");
        comm.all_reduce(&mut comm.buffer::<f64>(3).unwrap(), ReduceOp::Max).unwrap();
        let half = ReduceOp::pre_mul_sum(0.5);
        let error = comm.all_reduce(&mut comm.buffer::<i32>(3).unwrap(), half).unwrap_err();
        assert!(!error.is_fatal(), "{error}");
        comm.barrier().unwrap();
    });
}

/// Each rank has a factor of its own, and may change it, for which no other plan is made.
#[test]
fn factors_differ_from_rank_to_rank_and_time_to_time() {
    group(3, |comm: Communicator| {
        let (mut given, mut sum) = (comm.buffer::<f32>(100).unwrap(), comm.buffer::<f32>(100).unwrap());
        given.fill(1.0);
        for round in 1..5 {
            let factor = f64::from(round * (1 + comm.rank() as u32));
            comm.all_reduce_into(&mut given, &mut sum, ReduceOp::pre_mul_sum(factor)).unwrap();
            assert_eq!(given[..], [1.0; 100]);
            assert_eq!(sum[..], [6.0 * round as f32; 100]);
        }
        let plans = comm.explain().to_string().matches("plan: ").count();
        assert_eq!(plans, 1, "{}", comm.explain());
        comm.barrier().unwrap();
    });
}
