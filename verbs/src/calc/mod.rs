//! Element types, reduction operations, and the loops that combine two vectors of elements
//! on the CPU, as the vector-calc verbs of a NIC do.

mod kernels;
mod operation;
#[cfg(test)]
mod tests;
mod types;

pub(crate) use kernels::combine_raw;
pub use kernels::{CalcError, combine};
pub use operation::{Calc, ReduceOp};
pub use types::{DataType, Element, UnknownName};
