//! What a plan is: plain data, for all ranks of one collective. Nothing here runs or checks it.

mod counts;
mod graph;
mod hash;
mod listing;
mod program;
mod spec;
mod step;
mod whole;

pub use counts::Counts;
pub use graph::Graph;
pub use hash::PlanHash;
pub use program::{Program, Step};
pub use spec::{Collective, Elements, Ranks, Spec};
pub use step::{Buffer, Slice, StepKind};
pub use whole::{FORMAT, Plan};
