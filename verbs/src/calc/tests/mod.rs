//! Kernels against a model of each operation that is slow and plain, on every instruction set of this CPU.

mod combine;
mod fp8;
mod model;
mod names;
mod scale;
mod user;
