//! Which NIC serves which GPU: one assignment for all GPUs of a machine, and the reasons for it.

mod bound;
mod candidates;
mod ceiling;
mod choice;
mod consumer;
mod cut;
mod explain;
mod flow;
mod narrow;
mod open;
mod price;
mod problem;
mod search;
mod selection;
mod share;
mod symmetry;

pub use candidates::{Candidate, Verdict};
pub use choice::{Assignment, Choice, Proven, Rail};
pub use consumer::Consumer;
pub use explain::Explanation;
pub use selection::{Known, SelectError, Selection};
