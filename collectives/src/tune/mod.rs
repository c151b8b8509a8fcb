//! Which algorithm, and which segments: a pure function of what all ranks know, so that all ranks
//! decide the same.

mod fastest;
mod tuner;
mod tuning;

pub(crate) use fastest::LONGEST;
pub use fastest::{Case, Fastest, KeepError};
pub use tuner::{Candidate, Tuner};
pub use tuning::Tuning;
