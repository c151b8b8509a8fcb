//! What happened to messages, counted.

/// Counts since the manager was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmCounters {
    /// Messages taken in.
    pub received: u64,
    /// Messages sent, again or for the first time.
    pub sent: u64,
    /// Messages sent again, because no answer came in time.
    pub resent: u64,
    /// Messages that had come before (`cm_rx_duplicates` of Linux).
    pub duplicate: u64,
    /// Messages that do not go with the state of their connection; they were dropped.
    pub unexpected: u64,
    /// Messages of connections that are not known.
    pub unknown: u64,
    /// Datagrams that are no messages.
    pub malformed: u64,
    /// Requests that were dropped, since there were too many.
    pub refused_pending: u64,
    /// Messages that were not sent, since too many waited to be.
    pub dropped: u64,
    /// Requests and acceptances of queue pairs that were connected.
    pub stale: u64,
}
