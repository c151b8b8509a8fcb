//! Resolving the address of a datagram queue pair.

use std::sync::Arc;

use super::exec::UdTarget;
use super::node::Node;
use super::peer::PeerView;
use super::seen::{Answer, Seen};
use crate::QpAddress;
use crate::error::ConnectError;
use crate::types::QpType;

/// Where datagrams of `domain` to `address`, which is on this host, go.
pub(crate) fn resolve(
    node: &Arc<Node>,
    domain: u64,
    address: &QpAddress,
    found: Option<Answer>,
) -> Result<UdTarget, ConnectError> {
    if address.qp_type != QpType::Ud {
        return Err(ConnectError::TypeMismatch { ours: QpType::Ud, theirs: address.qp_type });
    }
    let Seen { link, info, rope, filler } = found.unwrap_or_else(|| node.find(address))?.here()?;
    if info.claims.is_none() {
        return Err(ConnectError::BadAnswer { why: "the peer's device speaks of another queue pair" });
    }
    let view = PeerView::new(link, None, &info, rope, filler)?;
    let home = node.home();
    Ok(UdTarget::new(view, domain, address.qkey, home.id(), [home.host().gid(), address.gid]))
}
