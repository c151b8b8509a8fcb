//! The engine alone: by state, as a simulated pair in virtual time, and over random operations.

mod freed;
mod lanes;
mod leaving;
mod matching;
mod pair;
mod parts;
pub(crate) mod random;
mod recovery;
mod side;
mod states;
mod wire;
