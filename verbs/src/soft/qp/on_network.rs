//! What a queue pair on the network knows of that.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use qpair_roce::Route;

use crate::soft::roce::{Network, NetworkGid};
use crate::types::{Mtu, Qpn};

/// What a queue pair on the network knows of that.
pub(super) struct OnNetwork {
    pub(super) network: Arc<Network>,
    /// Where it is.
    pub(super) place: NetworkGid,
    /// Of a connection: its peer, and the way there.
    pub(super) peer: Option<(Qpn, Route)>,
    pub(super) mtu: Mtu,
    /// Why it is there.
    pub(super) why: &'static str,
    /// The protocol is out of its memory.
    pub(super) has_left: AtomicBool,
}

impl OnNetwork {
    pub(super) fn new(network: Arc<Network>, place: NetworkGid, peer: Option<(Qpn, Route)>, mtu: Mtu) -> Self {
        let why = "the peer is on another host, or on no software device";
        OnNetwork { network, place, peer, mtu, why, has_left: AtomicBool::new(false) }
    }

    /// The same, where the connection manager made the connection.
    pub(super) fn managed(self) -> Self {
        OnNetwork { why: "the connection was made by rdma_cm", ..self }
    }
}
