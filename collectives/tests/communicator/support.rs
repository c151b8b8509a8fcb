//! Ranks as threads, and inputs whose results are exact.

use qpair_collectives::{Communicator, Element, ReduceOp};

pub use crate::group::group;

/// Operations that all types have.
pub const OPERATIONS: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max];

/// Element types that take small whole numbers exactly.
pub trait Number: Element {
    fn of(value: u8) -> Self;
    fn combine(op: ReduceOp, a: Self, b: Self) -> Self;
}

macro_rules! numbers {
    ($($type:ty),+) => {$(
        impl Number for $type {
            fn of(value: u8) -> Self {
                value.into()
            }

            fn combine(op: ReduceOp, a: Self, b: Self) -> Self {
                match op {
                    ReduceOp::Sum => a + b,
                    ReduceOp::Prod => a * b,
                    ReduceOp::Min => if a < b { a } else { b },
                    ReduceOp::Max => if a > b { a } else { b },
                    other => panic!("{other} is not known here"),
                }
            }
        }
    )+};
}
numbers!(f32, f64, i32, i64);

/// The input of a rank: products stay small, and no two ranks have the same.
pub fn input<T: Number>(op: ReduceOp, rank: usize, at: usize) -> T {
    let mixed = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (8 + rank % 32);
    T::of(if op == ReduceOp::Prod { 1 + (mixed % 2) as u8 } else { (mixed % 31) as u8 })
}

/// The result at a place.
pub fn output<T: Number>(op: ReduceOp, ranks: usize, at: usize) -> T {
    (1..ranks).fold(input(op, 0, at), |all, rank| T::combine(op, all, input(op, rank, at)))
}

/// All-reduces a vector of `len` elements and checks it.
pub fn all_reduce<T: Number>(comm: &Communicator, len: usize, op: ReduceOp) {
    let mut vector = comm.buffer::<T>(len).expect("a buffer");
    assert_eq!(vector.len(), len);
    for (at, element) in vector.iter_mut().enumerate() {
        *element = input(op, comm.rank(), at);
    }
    let what = format!("{op} of {len} {} on {} ranks", T::TYPE, comm.size());
    comm.all_reduce(&mut vector, op).unwrap_or_else(|error| panic!("{what}: {error}"));
    for (at, element) in vector.iter().enumerate() {
        assert_eq!(*element, output(op, comm.size(), at), "{what}: element {at} of rank {}", comm.rank());
    }
}

/// Broadcasts a vector and checks it.
pub fn broadcast<T: Number>(comm: &Communicator, len: usize, root: usize) {
    let mut vector = comm.buffer::<T>(len).expect("a buffer");
    for (at, element) in vector.iter_mut().enumerate() {
        *element = input(ReduceOp::Sum, comm.rank(), at);
    }
    let what = format!("broadcast of {len} {} from {root} on {} ranks", T::TYPE, comm.size());
    comm.broadcast(&mut vector, root).unwrap_or_else(|error| panic!("{what}: {error}"));
    for (at, element) in vector.iter().enumerate() {
        assert_eq!(*element, input(ReduceOp::Sum, root, at), "{what}: element {at} of rank {}", comm.rank());
    }
}
