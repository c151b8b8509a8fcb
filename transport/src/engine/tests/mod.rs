//! The engine alone: by state, as a simulated pair in virtual time, and over random operations.

mod lanes;
mod matching;
mod pair;
pub(crate) mod random;
mod side;
mod states;
mod wire;
