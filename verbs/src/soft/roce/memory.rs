//! Local memory of a request, as the protocol passes it on: whose it is, and where it is found.

use qpair_roce::Qpn;

/// Memory of a request that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    /// The queue pair.
    pub(crate) qpn: Qpn,
    /// Where it is in one of its queues.
    pub(crate) place: Place,
}

/// A place in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A send request, by its running number.
    Request(u32),
    /// A posted receive, by its slot.
    Receive(u32),
}
