//! State of a queue pair.

/// State of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Ready to send and to receive.
    Ready,
    /// Failed: all that is posted is flushed.
    Failed,
}
