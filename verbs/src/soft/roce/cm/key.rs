//! The name of a connection in a device.

use std::net::IpAddr;

use qpair_roce::cm::ConnectionId;

/// A connection of a device: the address of this end, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) address: IpAddr,
    pub(super) id: ConnectionId,
}
