//! Queue pairs, by service.

mod rc;

pub use rc::{ReliableConfig, ReliableConnection, State};
