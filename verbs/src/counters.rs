//! What a port counts: packets, and what went wrong with them.

use std::borrow::Cow;

/// A counter of a port. Its name is the device's own, as under `/sys/class/infiniband/*/ports/*/hw_counters`; the software
/// device uses the names of Linux' rdma_rxe and of mlx5.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Its name, such as `out_of_sequence`.
    pub name: Cow<'static, str>,
    /// Its value: what it counted so far.
    pub value: u64,
}
