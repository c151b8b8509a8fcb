//! Resolving the address of a datagram queue pair.

use std::sync::Arc;

use super::exec::UdTarget;
use super::node::Node;
use super::peer::PeerView;
use crate::QpAddress;
use crate::error::ConnectError;
use crate::types::QpType;

/// Where datagrams of `domain` to `address` go.
pub(crate) fn resolve(node: &Arc<Node>, domain: u64, address: &QpAddress) -> Result<UdTarget, ConnectError> {
    if address.qp_type != QpType::Ud {
        return Err(ConnectError::TypeMismatch { ours: QpType::Ud, theirs: address.qp_type });
    }
    let soft = address.soft.as_ref().ok_or(ConnectError::NoRoute {
        why: "it is on a network, and this device reaches software devices of its own host only",
    })?;
    let link = node.link_to(soft)?;
    let (info, bell, filler) = link.query(address.qpn.0)?;
    if info.who.qpn != address.qpn.0 || info.qp_type != QpType::Ud || info.claims.is_none() {
        return Err(ConnectError::BadAnswer { why: "the peer's device speaks of another queue pair" });
    }
    let view = PeerView::new(link, None, &info, bell, filler)?;
    let home = node.home();
    Ok(UdTarget::new(view, domain, address.qkey, home.id(), [home.host().gid(), address.gid]))
}
