//! What a worker shows of itself: counters, metrics, and explanations.

mod counters;
mod explain;
mod history;
mod metrics;

pub use counters::{Counters, Traffic};
pub use explain::{DatagramState, Explanation, RailState};
pub use history::History;
pub(crate) use history::Note;
pub use metrics::Metrics;
