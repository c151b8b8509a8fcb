//! A queue pair on the network: how it gets there, and what the wire tells it.

use std::sync::Arc;
use std::time::Duration;

use qpair_roce::wire::{Addresses, RnrTimer};
use qpair_roce::{
    Cause, DatagramConfig, Datagrams, ReliableConfig, ReliableConnection, Route, UnreliableConfig, UnreliableConnection,
};

use super::core::{Leaving, NETWORK, SoftQp};
use super::on_network::OnNetwork;
use crate::QpAddress;
use crate::error::ConnectError;
use crate::events::AsyncEvent;
use crate::qp::RNR_FOREVER;
use crate::soft::MAX_READS;
use crate::soft::control::Link;
use crate::soft::peer::PeerView;
use crate::soft::roce::{Join, Member, Network, NetworkGid, NetworkTarget, Owner};
use crate::soft::seen::Answer;
use crate::soft::visited::Member as _;
use crate::sync::{Ordering, lock};
use crate::types::{Mtu, QpType};

impl SoftQp {
    /// Puts a connection to `address` on the network.
    pub(super) fn connect_by_network(
        self: &Arc<Self>,
        address: &QpAddress,
        found: Option<Answer>,
    ) -> Result<(), ConnectError> {
        let (place, route, mtu, network) = self.way_to(address, found)?;
        let on = OnNetwork::new(network, place, Some((address.qpn, route)), mtu);
        self.attach(on, self.connection(self.reliable(address, mtu), route))
    }

    /// A connection of the queue pair's service. An unreliable one needs no more than part of `config`.
    pub(super) fn connection(&self, config: ReliableConfig, route: Route) -> Member {
        if self.spec.options.qp_type == QpType::Rc {
            return Member::Reliable(ReliableConnection::new(config), route);
        }
        let ReliableConfig { qpn, peer, pkey, mtu, send_psn, receive_psn, send_depth, .. } = config;
        let config =
            UnreliableConfig { pkey, mtu, send_depth, ..UnreliableConfig::new(qpn, peer, send_psn, receive_psn) };
        Member::Unreliable(UnreliableConnection::new(config), route)
    }

    fn reliable(&self, address: &QpAddress, mtu: Mtu) -> ReliableConfig {
        let options = &self.spec.options;
        let reads = self.max_reads();
        let theirs = if address.max_rd_atomic == 0 { reads } else { address.max_rd_atomic };
        ReliableConfig {
            mtu,
            ack_timeout: Some(options.ack_timeout.min(LONGEST_TIMEOUT)),
            retry_count: Some(options.retry_count),
            rnr_retry: Some(options.rnr_retry).filter(|&count| count < RNR_FOREVER),
            rnr_timer: RnrTimer::at_least(options.min_rnr_timer),
            max_reads: reads.min(theirs),
            reads_answered: reads,
            send_depth: options.send_depth,
            window: window(mtu),
            ..ReliableConfig::new(self.qpn(), address.qpn, self.psn, address.psn)
        }
    }

    /// READs and atomics under way at once, each way.
    pub(super) fn max_reads(&self) -> u8 {
        match self.spec.options.qp_type {
            QpType::Rc => self.spec.options.max_rd_atomic.map_or(READS, |reads| reads.min(MAX_READS)),
            QpType::Uc | QpType::Ud => 0,
        }
    }

    /// Puts a datagram queue pair on the network, if this host has one. Where it can not be had, datagrams go through shared
    /// memory alone, and whoever asks for a way to another host is told why.
    pub(super) fn join_network(self: &Arc<Self>) {
        let Some(place) = &self.place else { return };
        let joined = self.spec.node.network_if_any().map_err(ConnectError::from).and_then(|network| match network {
            Some(network) => self.exchange_datagrams(place, network),
            None => Ok(()),
        });
        if let Err(error) = joined {
            tracing::warn!(qpn = %self.qpn(), %error, "datagrams reach this host alone");
        }
    }

    fn exchange_datagrams(self: &Arc<Self>, place: &NetworkGid, network: Arc<Network>) -> Result<(), ConnectError> {
        let options = &self.spec.options;
        let config = DatagramConfig {
            mtu: self.mtu,
            send_depth: options.send_depth,
            send_psn: self.psn,
            ..DatagramConfig::new(self.qpn(), options.qkey)
        };
        let on = OnNetwork::new(network, place.clone(), None, self.mtu);
        self.attach(on, Member::Datagrams(Datagrams::new(config)))
    }

    /// Where datagrams to `address` go over the network.
    pub(super) fn network_target(
        &self,
        address: &QpAddress,
        found: Option<Answer>,
    ) -> Result<NetworkTarget, ConnectError> {
        let (ours, theirs) = (self.spec.options.qp_type, address.qp_type);
        if theirs != QpType::Ud || ours != QpType::Ud {
            return Err(ConnectError::TypeMismatch { ours: QpType::Ud, theirs });
        }
        let (_, route, _, network) = self.way_to(address, found)?;
        if self.network().is_none() {
            return Err(ConnectError::NoRoute {
                why: "the network could not be had when the queue pair was activated, and can be now: make another",
            });
        }
        let domain = self.spec.domain;
        Ok(NetworkTarget { network, domain, route, qpn: address.qpn, qkey: address.qkey })
    }

    /// Where this side is, the way to a queue pair, and the longest payload of a packet on it.
    fn way_to(
        &self,
        address: &QpAddress,
        found: Option<Answer>,
    ) -> Result<(NetworkGid, Route, Mtu, Arc<Network>), ConnectError> {
        let place = self.place.clone().ok_or(OFF_THE_NETWORK)?;
        let (ours, theirs) = (place.interface.address, address.gid.ip());
        if !self.home().host().reaches_by_network(address) {
            return Err(ConnectError::NoRoute { why: "the peer's GID is none of a network interface" });
        }
        let addresses = Addresses::new(ours, theirs).ok_or(ConnectError::NoRoute {
            why: "one side has an IPv4 address and the other one of IPv6; choose the same kind by gid_index",
        })?;
        let network = found.unwrap_or_else(|| self.spec.node.find(address))?.network()?;
        let source_port = network.source_port(&addresses, address.qpn);
        let route = self.route(addresses, source_port);
        Ok((place, route, self.mtu.min(address.mtu), network))
    }

    /// How its packets go.
    pub(super) fn route(&self, addresses: Addresses, source_port: u16) -> Route {
        let options = &self.spec.options;
        // With none no packet goes at all.
        let hop_limit = options.hop_limit.max(1);
        Route { addresses, source_port, traffic_class: options.traffic_class, hop_limit }
    }

    pub(super) fn attach(self: &Arc<Self>, on: OnNetwork, queue_pair: Member) -> Result<(), ConnectError> {
        let network = on.network.clone();
        let view = self.own_view()?;
        {
            // One that failed before may be settled: its receives are its owner's again.
            let leaving = lock(&self.leaving);
            if !matches!(*leaving, Leaving::Inside) || self.has_failed() {
                return Err(ConnectError::BadAnswer { why: "the queue pair has failed meanwhile" });
            }
            if self.net.set(on).is_err() {
                return Err(ConnectError::BadAnswer { why: "the queue pair is connected already" });
            }
        }
        let join = Join {
            qp_type: self.spec.options.qp_type,
            domain: self.spec.domain,
            access: self.spec.options.access,
            send: self.send.clone(),
            send_seat: self.seats.send.clone(),
            inbound: view,
            owner: self.clone(),
        };
        if self.spec.options.qp_type != QpType::Ud {
            // Its peer does not come through shared memory, and nobody else shall.
            self.public().peer.store(NOBODY, Ordering::Release);
            self.carrier.store(NETWORK, Ordering::Release);
        }
        if !network.attach(self.qpn(), queue_pair, join) {
            self.network_left();
            return Err(ConnectError::NoRoute {
                why: "the device has as many queue pairs on the network as there can be",
            });
        }
        // What failed while it was attached was not known to the network yet.
        if self.has_failed() {
            network.failed(self.qpn());
        }
        // Whoever polls drives the network from now on.
        self.spec.send_cq.changed();
        self.spec.recv_cq.changed();
        Ok(())
    }

    /// Its own receives, as a peer on this device sees them.
    fn own_view(&self) -> Result<PeerView, ConnectError> {
        let link = Arc::new(Link::local(self.home()));
        PeerView::new(link, None, &self.info(), self.recv_rope().clone(), self.receiver.filler())
    }

    /// The network that it is on.
    pub(crate) fn network(&self) -> Option<&Arc<Network>> {
        self.net.get().map(|on| &on.network)
    }

    /// True once the protocol is out of its memory, if ever it was in.
    pub(super) fn has_left_network(&self) -> bool {
        self.net.get().is_none_or(|on| on.has_left.load(Ordering::Acquire))
    }

    /// Packets of a connection's peer so far, on the network.
    pub(crate) fn arrivals(&self) -> Option<u64> {
        self.network()?.arrivals(self.qpn())
    }

    pub(super) fn explain_network(&self) -> Option<String> {
        let on = self.net.get()?;
        let (peer, route) = on.peer?;
        let (ours, theirs) = match route.addresses {
            Addresses::V4(ours, theirs) => (ours.to_string(), theirs.to_string()),
            Addresses::V6(ours, theirs) => (ours.to_string(), theirs.to_string()),
        };
        Some(format!(
            "roce wire to queue pair {peer} at {theirs}, from {ours} on {}: {}; RoCEv2 over UDP, path MTU {}",
            on.place.interface.name,
            on.why,
            on.mtu.bytes(),
        ))
    }

    /// Leaves the network for good. Nobody posts any more.
    pub(super) fn leave_network(&self) {
        if let Some(on) = self.net.get() {
            on.network.detach(self.qpn());
        }
    }
}

impl Owner for SoftQp {
    fn network_failed(&self, cause: Cause) {
        let event = match cause {
            Cause::Closed | Cause::Request => None,
            Cause::PeerRequest => Some(AsyncEvent::QpRequestError(self.qpn())),
            Cause::PeerAccess => Some(AsyncEvent::QpAccessError(self.qpn())),
            Cause::Memory => Some(AsyncEvent::QpFatal(self.qpn())),
        };
        if let Some(event) = event {
            self.home().events().raise(event);
        }
        self.fail();
    }

    fn network_left(&self) {
        if let Some(on) = self.net.get() {
            on.has_left.store(true, Ordering::Release);
        }
        self.try_settle();
    }
}

/// Packets under way at most: as many bytes whatever the MTU, as a peer that sleeps takes some hundred microseconds to wake up.
/// More fill receive buffers, and are sent again where one of them is lost.
pub(super) const fn window(mtu: Mtu) -> u32 {
    WINDOW / mtu.bytes()
}

/// A queue pair that is at no address of the network.
pub(super) const OFF_THE_NETWORK: ConnectError = ConnectError::NoRoute {
    why: "this side's GID is that of this host's shared memory; choose one of a network interface by gid_index (`qpair \
          devices -v` lists them)",
};
/// The longest timeout that there is: 4.096 us x 2^31. IBA 9.7.6.1.3.
const LONGEST_TIMEOUT: Duration = Duration::from_nanos(4096 << 31);
/// Bytes under way at most. Between four network namespaces on two cores of an EPYC, all-to-alls of 1 MiB take 0.73 ms with this much
/// and 0.86 with half of it, where the last packets of each second message wait.
const WINDOW: u32 = 1 << 20;
/// No queue pair: the lowest byte of theirs is 0.
const NOBODY: u64 = u64::MAX;
/// READs and atomics at once where nothing else is said.
const READS: u8 = 16;
