//! Addresses: what this side tells of a port, and what a peer's address must hold.

use super::port::Side;
use crate::QpAddress;
use crate::device::{LinkLayer, preferred_gid};
use crate::error::{ConnectError, CreateError};
use crate::qp::QpOptions;
use crate::types::{Gid, Psn, QpType, Qpn};

/// The address of a queue pair to be made on a port, but for its number; and the row of the GID table that it names.
pub(super) fn of_port(options: &QpOptions, port: &Side) -> Result<(QpAddress, u8), CreateError> {
    let row = match options.gid_index {
        Some(index) => Some(port.gids.iter().find(|row| row.index == index && index <= LAST_ROW).ok_or_else(|| {
            let limit = port.gids.iter().map(|row| row.index).filter(|&index| index <= LAST_ROW).max().unwrap_or(0);
            CreateError::OutOfRange { what: "a GID index", asked: index.into(), limit: limit.into() }
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
    if peer.soft.is_some() {
        return Err(ConnectError::NoRoute { why: "it belongs to a software device, which is on no network" });
    }
    if peer.gid == Gid([0; 16]) && peer.lid == 0 {
        return Err(ConnectError::NoRoute { why: "its address has neither GID nor LID" });
    }
    Ok(())
}

/// Paths name rows of the GID table by a byte.
const LAST_ROW: u32 = u8::MAX as u32;
