//! Element types, reduction operations, and the loops that combine two vectors of elements
//! on the CPU, as the vector-calc verbs of a NIC do.
//!
//! | Types | Operations |
//! |---|---|
//! | all | sum, product, minimum, maximum; average and pre-multiplied sum, by [`scale`] |
//! | `i8`, `u8`, `i32`, `u32`, `i64`, `u64` | also logical and bitwise AND, OR, XOR |
//! | one each | [`UserOp`], a function of the program's own |
//!
//! [`f16`](struct@f16) and [`bf16`] are those of the crate `half`; [`F8E4M3`] and [`F8E5M2`] are here. Sums and
//! products of all four are calculated in `f32` and rounded once, to nearest even.

#[cfg(target_arch = "x86_64")]
mod f16c;
mod fp8;
mod kernels;
mod narrow;
mod operation;
mod reduce_op;
mod scale;
#[cfg(test)]
mod tests;
mod types;
mod user;

pub use fp8::{F8E4M3, F8E5M2};
pub use half::{bf16, f16};
pub(crate) use kernels::combine_raw;
pub use kernels::{CalcError, combine};
pub use operation::Calc;
pub use reduce_op::{Factor, ReduceOp};
pub use scale::{Scale, scale};
pub use types::{DataType, Element, UnknownName};
pub use user::{Combine, UserOp};
