//! Connections over datagrams. All of a worker's go over one queue pair (UD), which promises nothing; a
//! [`Flow`](crate::engine::Flow) for each sees to it that its packets come once and in order. Above that a connection is one
//! like others, but for what needs a queue pair of its own: a message is no longer than a packet, and nothing is one-sided.

mod carry;
mod connect;
mod line;
mod queue;

pub(super) use carry::BATCH;
pub(super) use line::{Line, line_of};
#[cfg(test)]
pub(super) use queue::HELD;
pub(super) use queue::{DEPTH, Datagrams};
