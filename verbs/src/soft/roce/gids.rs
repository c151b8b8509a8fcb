//! The GID table of the device's port: its name for this host's shared memory, then the machine's addresses, of which
//! those that never leave the machine come last.

use std::net::IpAddr;

use qpair_roce::Mtu;

use super::interfaces::{Interface, interfaces, path_mtu};
use crate::types::{Gid, GidEntry, GidKind};

/// A row of the table that stands for an address of the network.
#[derive(Clone, Debug)]
pub(crate) struct NetworkGid {
    pub(crate) index: u32,
    pub(crate) interface: Interface,
    /// Longest payload of a packet there.
    pub(crate) mtu: Mtu,
}

/// The rows of the network, as the system has them now. An interface is left out whose packets are too short.
pub(crate) fn network_gids() -> Vec<NetworkGid> {
    let mut found = interfaces().unwrap_or_else(|error| {
        tracing::warn!(%error, "the system does not tell its network addresses");
        Vec::new()
    });
    found.retain(|interface| interface.is_up);
    found.sort_by_key(|interface| interface.is_loopback);
    let rows = found.into_iter().filter_map(|interface| Some((path_mtu(interface.mtu)?, interface)));
    (1..).zip(rows).map(|(index, (mtu, interface))| NetworkGid { index, interface, mtu }).collect()
}

impl NetworkGid {
    pub(crate) fn gid(&self) -> Gid {
        self.interface.address.into()
    }

    /// The same with another address of its interface.
    pub(crate) fn at(mut self, address: IpAddr) -> Self {
        self.interface.address = address;
        self
    }

    pub(crate) fn entry(&self) -> GidEntry {
        let netdev = Some(self.interface.name.clone());
        GidEntry { index: self.index, gid: self.gid(), kind: GidKind::RoceV2, netdev }
    }
}
