//! Addresses: what this side tells of a port, and what a peer's address must hold.

use super::port::Side;
use crate::QpAddress;
use crate::device::{LinkLayer, preferred_gid};
use crate::error::{ConnectError, CreateError};
use crate::qp::QpOptions;
use crate::soft::host::Host;
use crate::types::{Gid, Psn, QpType, Qpn};

/// The address of a queue pair to be made on a port, but for its number; and the row of the GID table that it names.
pub(super) fn of_port(options: &QpOptions, port: &Side) -> Result<(QpAddress, u8), CreateError> {
    let row = match options.gid_index {
        Some(index) => Some(port.gids.iter().find(|row| row.index == index && index <= LAST_ROW).ok_or_else(|| {
            let rows = port.gids.iter().map(|row| row.index).filter(|&index| index <= LAST_ROW);
            CreateError::EmptyGid { port: options.port, index, rows: rows.collect() }
        })?),
        None => preferred_gid(&port.gids, None).filter(|row| row.index <= LAST_ROW),
    };
    if row.is_none() && port.link_layer != LinkLayer::InfiniBand {
        return Err(CreateError::NoGid { port: options.port });
    }
    let gid = row.map_or(Gid([0; 16]), |row| row.gid);
    let address = QpAddress {
        qp_type: options.qp_type,
        qpn: Qpn(0),
        psn: Psn::new(crate::soft::random_u32()),
        gid,
        lid: port.lid,
        mtu: options.mtu.unwrap_or(port.active_mtu).min(port.active_mtu),
        qkey: if options.qp_type == QpType::Ud { options.qkey } else { 0 },
        max_rd_atomic: 0,
        ece: None,
        soft: None,
    };
    Ok((address, row.and_then(|row| u8::try_from(row.index).ok()).unwrap_or(0)))
}

/// Whether a path may lead there.
pub(super) fn check_peer(peer: &QpAddress) -> Result<(), ConnectError> {
    if Host::is_shared_memory(peer) {
        return Err(ConnectError::NoRoute {
            why: "its GID is that of shared memory on its host; have it choose one of a network interface by gid_index",
        });
    }
    if peer.gid == Gid([0; 16]) && peer.lid == 0 {
        return Err(ConnectError::NoRoute { why: "its address has neither GID nor LID" });
    }
    Ok(())
}

/// Paths name rows of the GID table by a byte.
const LAST_ROW: u32 = u8::MAX as u32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Mtu;
    use crate::{NodeId, SoftAddress};

    #[test]
    fn a_software_device_is_a_peer_where_a_network_leads_to_it() {
        let soft = SoftAddress { host: [7; 16], namespace: 1, node: NodeId([2; 16]) };
        let at = |gid| QpAddress {
            qp_type: QpType::Rc,
            qpn: Qpn(1),
            psn: Psn::new(0),
            gid,
            lid: 0,
            mtu: Mtu::B1024,
            qkey: 0,
            max_rd_atomic: 0,
            ece: None,
            soft: Some(soft),
        };
        let network = Gid::from(std::net::IpAddr::from([10, 77, 0, 1]));
        check_peer(&at(network)).expect("an address of a network");
        let shared = Host { boot_id: soft.host, namespace: soft.namespace }.gid();
        for nowhere in [shared, Gid([0; 16])] {
            assert!(matches!(check_peer(&at(nowhere)), Err(ConnectError::NoRoute { .. })), "{nowhere}");
        }
    }
}
