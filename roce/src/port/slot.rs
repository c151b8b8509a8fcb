//! A queue pair of a port, and where its packets go.

use std::time::Instant;

use super::control::Control;
use crate::counters::Counters;
use crate::host::Host;
use crate::qp::{Datagrams, ReliableConnection, State, UnreliableConnection};
use crate::types::Qpn;
use crate::wire::{Addresses, Flow, PORT};

/// How packets get to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// The own address, and the peer's.
    pub addresses: Addresses,
    /// UDP port that packets come from; they go to 4791.
    pub source_port: u16,
    /// Traffic class, or type of service.
    pub traffic_class: u8,
    /// Hop limit, or time to live.
    pub hop_limit: u8,
}

/// A queue pair of any service.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "most queue pairs are reliable connections")]
pub enum QueuePair<L> {
    /// A reliable connection, and where its packets go and come from.
    Reliable(ReliableConnection<L>, Route),
    /// An unreliable connection, and the same.
    Unreliable(UnreliableConnection<L>, Route),
    /// Datagrams. Each has a route of its own.
    Datagrams(Datagrams<L, Route>),
}

/// A queue pair, and what the port knows of it.
#[derive(Debug)]
pub(super) struct Slot<L> {
    pub(super) queue_pair: QueuePair<L>,
    /// It waits for its turn to send.
    pub(super) is_waiting: bool,
    /// When it is looked at next.
    pub(super) armed: Option<Instant>,
    /// Of a connection, where it is controlled.
    pub(super) control: Option<Box<Control>>,
}

impl Route {
    /// The flow of its packets.
    pub const fn flow(&self) -> Flow {
        Flow { addresses: self.addresses, source_port: self.source_port, destination_port: PORT }
    }
}

impl<L: Copy> QueuePair<L> {
    /// Its number.
    pub fn qpn(&self) -> Qpn {
        match self {
            QueuePair::Reliable(rc, _) => rc.config().qpn,
            QueuePair::Unreliable(uc, _) => uc.config().qpn,
            QueuePair::Datagrams(ud) => ud.config().qpn,
        }
    }

    /// Partition key.
    pub fn pkey(&self) -> u16 {
        match self {
            QueuePair::Reliable(rc, _) => rc.config().pkey,
            QueuePair::Unreliable(uc, _) => uc.config().pkey,
            QueuePair::Datagrams(ud) => ud.config().pkey,
        }
    }

    /// True once the peer of a connection has sent something, of which not many million packets came since.
    pub fn has_heard(&self) -> bool {
        match self {
            QueuePair::Reliable(rc, _) => rc.has_heard(),
            QueuePair::Unreliable(uc, _) => uc.has_heard(),
            QueuePair::Datagrams(_) => false,
        }
    }

    /// Bytes of its longest packet, with its CRC.
    pub(super) fn longest_packet(&self) -> usize {
        match self {
            QueuePair::Reliable(rc, _) => rc.config().longest_packet(),
            QueuePair::Unreliable(uc, _) => uc.config().longest_packet(),
            QueuePair::Datagrams(ud) => ud.config().longest_packet(),
        }
    }

    /// True of one that has failed and has little left to say.
    fn is_nearly_silent(&self) -> bool {
        match self {
            QueuePair::Reliable(rc, _) => rc.is_nearly_silent(),
            QueuePair::Unreliable(uc, _) => uc.state() == State::Failed,
            QueuePair::Datagrams(ud) => ud.state() == State::Failed,
        }
    }

    /// The peer of a connection, and where it is.
    pub(super) fn peer(&self) -> Option<(Qpn, Route)> {
        match self {
            QueuePair::Reliable(rc, route) => Some((rc.config().peer, *route)),
            QueuePair::Unreliable(uc, route) => Some((uc.config().peer, *route)),
            QueuePair::Datagrams(_) => None,
        }
    }

    /// Where its next packet goes, as far as that is known, of one that has more than a little to say.
    pub(super) fn next_route(&self) -> Option<&Route> {
        match self {
            _ if self.is_nearly_silent() => None,
            QueuePair::Reliable(_, route) | QueuePair::Unreliable(_, route) => Some(route),
            QueuePair::Datagrams(ud) => ud.next_path(),
        }
    }

    /// What it makes from now on goes in another departure.
    pub(super) fn begin_departure(&mut self) {
        if let QueuePair::Reliable(rc, _) = self {
            rc.begin_departure();
        }
    }

    /// Whether nothing that it makes now can go with the packet before.
    pub(super) fn ends_departure(&self) -> bool {
        matches!(self, QueuePair::Reliable(rc, _) if rc.ends_departure())
    }

    /// Makes its next packet in `to`, but for its CRC; its length, and where it goes.
    fn make<H: Host<Local = L>>(
        &mut self,
        now: Instant,
        to: &mut [u8],
        host: &mut H,
        counters: &mut Counters,
    ) -> Option<(usize, Route)> {
        match self {
            QueuePair::Reliable(rc, route) => Some((rc.transmit(now, to, host, counters)?, *route)),
            QueuePair::Unreliable(uc, route) => Some((uc.transmit(to, host, counters)?, *route)),
            QueuePair::Datagrams(ud) => ud.transmit(to, host, counters),
        }
    }

    fn timeout(&self) -> Option<Instant> {
        match self {
            QueuePair::Reliable(rc, _) => rc.timeout(),
            QueuePair::Unreliable(..) | QueuePair::Datagrams(_) => None,
        }
    }

    pub(super) fn handle_timeout<H: Host<Local = L>>(&mut self, now: Instant, host: &mut H, counters: &mut Counters) {
        if let QueuePair::Reliable(rc, _) = self
            && rc.timeout().is_some_and(|due| due <= now)
        {
            rc.handle_timeout(now, host, counters);
        }
    }

    pub(super) fn close<H: Host<Local = L>>(&mut self, host: &mut H) {
        match self {
            QueuePair::Reliable(rc, _) => rc.close(host),
            QueuePair::Unreliable(uc, _) => uc.close(host),
            QueuePair::Datagrams(ud) => ud.close(host),
        }
    }
}

impl<L: Copy> Slot<L> {
    pub(super) fn new(queue_pair: QueuePair<L>, control: Option<Box<Control>>) -> Self {
        Slot { queue_pair, is_waiting: false, armed: None, control }
    }

    /// When it is to be looked at.
    pub(super) fn timeout(&self) -> Option<Instant> {
        let control = self.control.as_ref().and_then(|control| control.timeout());
        self.queue_pair.timeout().into_iter().chain(control).min()
    }

    /// Makes its next packet in `to`, but for its CRC; its length, and where it goes. `None` also where it is held up.
    pub(super) fn make<H: Host<Local = L>>(
        &mut self,
        now: Instant,
        to: &mut [u8],
        host: &mut H,
        counters: &mut Counters,
    ) -> Option<(usize, Route)> {
        let (Some(control), Some((_, route))) = (&mut self.control, self.queue_pair.peer()) else {
            return self.queue_pair.make(now, to, host, counters);
        };
        if let Some(len) = control.notification.transmit(now, to, counters) {
            return Some((len, Route { traffic_class: NOTIFICATIONS, ..route }));
        }
        let is_nearly_silent = self.queue_pair.is_nearly_silent();
        if is_nearly_silent {
            // What is left is not to be said later.
            control.release();
        }
        let (len, route) = if is_nearly_silent || control.lets_go(now, self.queue_pair.longest_packet()) {
            let made = self.queue_pair.make(now, to, host, counters)?;
            control.sent(now, made.0);
            made
        } else {
            // What the peer sends is not to be held up by what this end sends; nor do acknowledgments count here, or the peer could
            // leave nothing for anything else.
            let QueuePair::Reliable(rc, route) = &mut self.queue_pair else { return None };
            (rc.acknowledge(now, to, host, counters)?, *route)
        };
        Some((len, Route { traffic_class: route.traffic_class & !MARKS | MAY_BE_MARKED, ..route }))
    }
}

/// Traffic class of notifications: class selector 6, which goes before all data.
const NOTIFICATIONS: u8 = 48 << 2;
/// The bits of a traffic class that are about congestion: both are set in packets that met it. RFC 3168.
const MARKS: u8 = 3;
/// Those that let switches mark a packet: ECT(0).
const MAY_BE_MARKED: u8 = 2;
