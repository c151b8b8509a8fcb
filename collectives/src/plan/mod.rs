//! What a plan is: plain data, for all ranks of one collective. Nothing here runs or checks it.

mod buffers;
mod counts;
mod deps;
mod graph;
mod hash;
mod listing;
mod loops;
mod packed;
mod program;
mod spec;
mod step;
mod what;
mod whole;

pub(crate) use buffers::Buffers;
pub use counts::Counts;
pub use deps::Deps;
pub use graph::Graph;
pub use hash::PlanHash;
pub use program::{Program, Step, StepIter, Steps};
pub use spec::{Collective, Elements, Ranks, Spec};
pub use step::{Buffer, Slice, StepKind};
pub(crate) use what::What;
pub use whole::{FORMAT, Plan};
