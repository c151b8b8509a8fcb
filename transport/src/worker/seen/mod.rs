//! What a worker shows of itself: counters, metrics, and explanations.

mod counters;
mod explain;
mod metrics;

pub use counters::Counters;
pub use explain::Explanation;
pub use metrics::Metrics;
