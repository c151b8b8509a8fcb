//! A queue pair whose connection is made by the connection manager: what it offers, and how it gets on the network by the
//! terms that both ends agreed on.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};

use qpair_roce::ReliableConfig;
use qpair_roce::cm::{Offered, Terms, Timeout};
use qpair_roce::wire::cm::Transport;
use qpair_roce::wire::{Addresses, RnrTimer};

use super::core::SoftQp;
use super::network::{OFF_THE_NETWORK, window};
use super::on_network::OnNetwork;
use crate::error::{CmError, ConnectError};
use crate::qp::check;
use crate::soft::node::Node;
use crate::soft::roce::{NetworkGid, Owner, Watch, address_at, address_towards};
use crate::types::{Mtu, QpState, QpType};

impl SoftQp {
    /// True if it is of that device.
    pub(crate) fn is_of(&self, node: &Arc<Node>) -> bool {
        Arc::ptr_eq(&self.spec.node, node)
    }

    /// The service that it asks for.
    pub(crate) fn transport(&self) -> Result<Transport, CmError> {
        match self.spec.options.qp_type {
            QpType::Rc => Ok(Transport::Rc),
            QpType::Uc => Ok(Transport::Uc),
            QpType::Ud => Err(CmError::NotConnected),
        }
    }

    /// What it tells the other end of itself.
    pub(crate) fn offered(&self) -> Offered {
        let reads = self.max_reads();
        Offered {
            max_reads: reads,
            reads_answered: reads,
            peer_rnr_retry: self.spec.options.rnr_retry,
            shared_receives: self.spec.srq.is_some(),
            ..Offered::new(self.qpn())
        }
    }

    /// How long an acknowledgment may take.
    pub(crate) fn ack_timeout(&self) -> Timeout {
        Timeout::at_least(self.spec.options.ack_timeout)
    }

    /// Where it is towards a peer: at the row of the GID table that was chosen, or where the system sends from.
    pub(crate) fn place_towards(&self, peer: SocketAddr) -> Result<NetworkGid, CmError> {
        if self.spec.options.gid_index.is_some() {
            let place = self.place.clone().ok_or(OFF_THE_NETWORK)?;
            if place.interface.address.is_ipv4() != peer.is_ipv4() {
                return Err(ConnectError::NoRoute {
                    why: "one side has an IPv4 address and the other one of IPv6; leave gid_index away, or choose the same kind",
                }
                .into());
            }
            return Ok(place);
        }
        let own = address_towards(peer).map_err(|source| CmError::Unreachable { peer, source })?;
        self.row_of(own)
    }

    /// Where it is if a peer asked for it at `own`.
    pub(crate) fn place_at(&self, own: IpAddr) -> Result<NetworkGid, CmError> {
        match &self.place {
            Some(place) if self.spec.options.gid_index.is_some() && place.interface.address != own => {
                Err(CmError::OtherAddress { asked: own, own: place.interface.address })
            }
            None if self.spec.options.gid_index.is_some() => Err(OFF_THE_NETWORK.into()),
            _ => self.row_of(own),
        }
    }

    fn row_of(&self, own: IpAddr) -> Result<NetworkGid, CmError> {
        Ok(address_at(self.home(), own).ok_or(ConnectError::NoRoute {
            why: "the address that leads there is of no interface whose packets are long enough (`qpair devices -v` lists them)",
        })?)
    }

    /// Longest payload of its packets at a place.
    pub(crate) fn mtu_at(&self, place: &NetworkGid) -> Mtu {
        self.spec.options.mtu.map_or(place.mtu, |mtu| mtu.min(place.mtu))
    }

    /// Traffic class and hop limit of its packets.
    pub(crate) fn header(&self) -> (u8, u8) {
        (self.spec.options.traffic_class, self.spec.options.hop_limit)
    }

    /// Times that a packet is sent again without an answer.
    pub(crate) fn retry_count(&self) -> u8 {
        self.spec.options.retry_count
    }

    /// Gets on the network at `place`, connected by `terms`, and goes to RTR. `watch` has it fail when the connection ends.
    pub(crate) fn connect_by_terms(
        self: &Arc<Self>,
        terms: &Terms,
        place: NetworkGid,
        watch: &Watch,
    ) -> Result<(), ConnectError> {
        let options = &self.spec.options;
        let theirs = if terms.transport == Transport::Uc { QpType::Uc } else { QpType::Rc };
        if theirs != options.qp_type {
            return Err(ConnectError::TypeMismatch { ours: options.qp_type, theirs });
        }
        check(options.qp_type, self.state(), QpState::Rtr)?;
        let addresses = Addresses::new(place.interface.address, terms.address)
            .ok_or(ConnectError::BadAnswer { why: "its address is of another family than this side's" })?;
        self.spec.node.check()?;
        let network = self.spec.node.network()?;
        let source_port = network.source_port(&addresses, terms.peer);
        let route = self.route(addresses, source_port);
        let config = ReliableConfig {
            rnr_timer: RnrTimer::at_least(options.min_rnr_timer),
            send_depth: options.send_depth,
            window: window(terms.mtu),
            ack_timeout: Some(terms.ack_timeout.beside(options.ack_timeout)),
            ..terms.reliable(self.qpn())
        };
        let queue_pair = self.connection(config, route);
        let owner: Arc<dyn Owner> = self.clone();
        let owner: Weak<dyn Owner> = Arc::downgrade(&owner);
        watch.set_queue_pair(self.qpn(), owner);
        self.attach(OnNetwork::new(network, place, Some((terms.peer, route)), terms.mtu).managed(), queue_pair)?;
        Ok(self.modify(QpState::Rtr)?)
    }
}
