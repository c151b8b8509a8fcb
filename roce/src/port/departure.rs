//! Packets that go out: whose turn it is, and which go together.

use std::time::Instant;

use super::slot::{QueuePair, Slot};
use super::{Port, Route};
use crate::host::Host;
use crate::types::Qpn;
use crate::wire::{ICRC_LEN, Part};
use crate::work::Datagram;

/// Packets of one route, one behind the other: all are as long as the first, but for the last, which may be shorter. So
/// Linux takes them at once (UDP_SEGMENT). Their CRCs count on an IPv4 identification of 0 in the first, 1 in the second,
/// and so on, and on the flag against fragments in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// The connection that they are of; none: of datagrams.
    pub from: Option<Qpn>,
    /// Where they go.
    pub route: Route,
    /// Bytes of each but the last.
    pub segment: usize,
    /// Bytes of all.
    pub len: usize,
}

/// A packet that did not go with those before it, with its CRC as of one alone.
#[derive(Debug, Default)]
pub(super) struct Held {
    bytes: Vec<u8>,
    route: Option<Route>,
    from: Option<Qpn>,
}

impl<L: Copy> Port<L> {
    /// Makes packets in `to`, `segments` at most, and says where they go; `None` if there is nothing to send now. Queue pairs
    /// take turns.
    ///
    /// # Panics
    /// If `to` is shorter than the longest packet of a queue pair here, or than a datagram of the connection manager.
    pub fn transmit<H: Host<Local = L>>(
        &mut self,
        now: Instant,
        to: &mut [u8],
        segments: usize,
        host: &mut H,
    ) -> Option<Departure> {
        self.transmit_where(now, to, segments, host, |_| true)
    }

    /// As [`transmit`](Port::transmit), where some ways out have no room: queue pairs whose next packet goes by none that
    /// `has_room` are passed over until [`resume`](Port::resume), and others go on. Nothing is sent again meanwhile, and so no
    /// retry is counted. What a queue pair that has failed owes its peer, but for answers to READs, and what the connection
    /// manager says, is made all the same: it is little, and not made once more.
    ///
    /// # Panics
    /// As `transmit`.
    pub fn transmit_where<H: Host<Local = L>>(
        &mut self,
        now: Instant,
        to: &mut [u8],
        segments: usize,
        host: &mut H,
        has_room: impl Fn(&Route) -> bool,
    ) -> Option<Departure> {
        if let Some(route) = self.held.route.take() {
            let len = self.held.bytes.len();
            to[..len].copy_from_slice(&self.held.bytes);
            return Some(Departure { from: self.held.from, route, segment: len, len });
        }
        if let Some((len, route)) = self.management.make(to) {
            return Some(Departure::of_one(None, route, to, len));
        }
        while let Some(qpn) = self.turns.next() {
            let Some(slot) = self.queue_pairs.get_mut(qpn) else { continue };
            if slot.queue_pair.next_route().is_some_and(|route| !has_room(route)) {
                self.turns.hold_up(qpn, slot);
                continue;
            }
            slot.is_waiting = false;
            let (departure, may_have_more) =
                batch(slot, &mut self.held, to, segments, |slot, room| slot.make(now, room, host, &mut self.counters));
            if may_have_more {
                self.turns.enqueue(qpn, slot);
            }
            self.turns.arm(qpn, slot);
            if departure.is_some() {
                return departure;
            }
        }
        None
    }

    /// Ways out may have room again that had none: whoever was passed over has its turn.
    pub fn resume(&mut self) {
        self.turns.resume();
    }

    /// A departure of a connection waits for room at its way out still: the time for an answer runs from when it goes.
    pub fn still_waits(&mut self, now: Instant, from: Qpn) {
        if let Some(QueuePair::Reliable(rc, _)) = self.queue_pairs.get_mut(from).map(|slot| &mut slot.queue_pair) {
            rc.still_waits(now);
        }
    }

    /// A departure of a connection was given up before it went: it is sent again, which is no retry.
    pub fn never_went(&mut self, from: Qpn) {
        let Some(slot) = self.queue_pairs.get_mut(from) else { return };
        if let QueuePair::Reliable(rc, _) = &mut slot.queue_pair {
            rc.never_went();
            self.turns.enqueue(from, slot);
        }
    }
}

impl<L: Copy> Port<L> {
    /// Makes the packet of a datagram in `to`, with a payload by `fill`, and says where it goes; `None` if there is no such
    /// queue pair. It is sent at once, before what waits here.
    ///
    /// # Panics
    /// If `to` is shorter than the packet.
    pub fn make_datagram(
        &mut self,
        qpn: Qpn,
        work: &Datagram<(), Route>,
        to: &mut [u8],
        fill: impl FnOnce(&mut [u8]),
    ) -> Option<Departure> {
        let QueuePair::Datagrams(ud) = &mut self.queue_pairs.get_mut(qpn)?.queue_pair else { return None };
        let fill = |(), _, to: &mut [u8]| {
            fill(to);
            Ok(())
        };
        let len = ud.make(work, to, fill, &mut self.counters).ok()?;
        Some(Departure::of_one(None, work.target.path, to, len))
    }
}

/// Makes packets of a queue pair by `make`, as many as go together; whether it may have more. One that does not go with them
/// is held.
fn batch<L: Copy>(
    slot: &mut Slot<L>,
    held: &mut Held,
    to: &mut [u8],
    segments: usize,
    mut make: impl FnMut(&mut Slot<L>, &mut [u8]) -> Option<(usize, Route)>,
) -> (Option<Departure>, bool) {
    let longest = slot.queue_pair.longest_packet();
    slot.queue_pair.begin_departure();
    let Some((len, route)) = make(slot, to) else { return (None, false) };
    let from = slot.queue_pair.peer().map(|_| slot.queue_pair.qpn());
    let mut departure = Departure::of_one(from, route, to, len);
    for index in 1..segments {
        let room = &mut to[departure.len..];
        if room.len() < longest || slot.queue_pair.ends_departure() {
            break;
        }
        let Some((len, route)) = make(slot, room) else { return (Some(departure), false) };
        let packet = &mut room[..len + ICRC_LEN];
        if route != departure.route || packet.len() > departure.segment {
            held.hold(from, route, packet);
            break;
        }
        route.flow().seal_in_place(Part::segment(index as u16), packet);
        departure.len += packet.len();
        if packet.len() < departure.segment {
            break;
        }
    }
    (Some(departure), true)
}

impl Departure {
    /// Of the packet that `to` begins with, which has its CRC from now on.
    fn of_one(from: Option<Qpn>, route: Route, to: &mut [u8], len: usize) -> Self {
        let packet = &mut to[..len + ICRC_LEN];
        route.flow().seal_in_place(Part::WHOLE, packet);
        Departure { from, route, segment: packet.len(), len: packet.len() }
    }
}

impl Held {
    pub(super) fn is_none(&self) -> bool {
        self.route.is_none()
    }

    fn hold(&mut self, from: Option<Qpn>, route: Route, packet: &mut [u8]) {
        route.flow().seal_in_place(Part::WHOLE, packet);
        self.bytes.clear();
        self.bytes.extend_from_slice(packet);
        (self.route, self.from) = (Some(route), from);
    }
}
