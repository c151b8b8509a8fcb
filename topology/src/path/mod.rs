//! Ways through a machine: how near two parts are, over which links, and how much passes.

mod class;
mod islands;
mod route;

pub use class::PathClass;
pub use islands::Island;
pub use route::{Hop, Path};
