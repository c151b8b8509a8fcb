//! Packets that go out: whose turn it is, and which go together.

use std::time::Instant;

use super::{Port, Route};
use crate::host::Host;
use crate::wire::{ICRC_LEN, Part};

/// Packets of one route, one behind the other: all are as long as the first, but for the last, which may be shorter. So
/// Linux takes them at once (UDP_SEGMENT). Their CRCs count on an IPv4 identification of 0 in the first, 1 in the second,
/// and so on, and on the flag against fragments in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
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
}

impl<L: Copy> Port<L> {
    /// Makes packets in `to`, `segments` at most, and says where they go; `None` if there is nothing to send now. Queue pairs
    /// take turns. `to` has room for one packet at least: the header and MTU of any queue pair.
    pub fn transmit<H: Host<Local = L>>(
        &mut self,
        now: Instant,
        to: &mut [u8],
        segments: usize,
        host: &mut H,
    ) -> Option<Departure> {
        if let Some(route) = self.held.route.take() {
            let len = self.held.bytes.len();
            to.get_mut(..len)?.copy_from_slice(&self.held.bytes);
            return Some(Departure { route, segment: len, len });
        }
        if let Some((len, route)) = self.management.make(to) {
            let len = seal(&route, 0, to, len);
            return Some(Departure { route, segment: len, len });
        }
        while let Some(qpn) = self.active.pop_front() {
            let Some(slot) = self.queue_pairs.get_mut(qpn) else { continue };
            slot.is_active = false;
            let longest = slot.queue_pair.longest_packet();
            let (mut departure, mut count, mut is_idle) = (None::<Departure>, 0, false);
            while count < segments.max(1) {
                let before = departure.map_or(0, |departure| departure.len);
                let Some(room) = to.get_mut(before..).filter(|room| room.len() >= longest) else { break };
                let Some((len, route)) = slot.make(now, room, host, &mut self.counters) else {
                    is_idle = true;
                    break;
                };
                match &mut departure {
                    None => {
                        let len = seal(&route, 0, room, len);
                        departure = Some(Departure { route, segment: len, len });
                    }
                    Some(departure) if route == departure.route && len + ICRC_LEN <= departure.segment => {
                        let len = seal(&route, count, room, len);
                        departure.len += len;
                        if len < departure.segment {
                            break;
                        }
                    }
                    Some(_) => {
                        let len = seal(&route, 0, room, len);
                        self.held.bytes.clear();
                        self.held.bytes.extend_from_slice(&room[..len]);
                        self.held.route = Some(route);
                        break;
                    }
                }
                count += 1;
            }
            if !is_idle {
                slot.is_active = true;
                self.active.push_back(qpn);
            }
            self.timers.arm(qpn, slot);
            if departure.is_some() {
                return departure;
            }
            if !is_idle {
                // There is no room for any.
                return None;
            }
        }
        None
    }
}

/// Puts the CRC behind a packet that is segment `index` of those sent at once; its length with that.
fn seal(route: &Route, index: usize, packet: &mut [u8], len: usize) -> usize {
    let icrc = route.flow().icrc(Part::segment(index as u16), &packet[..len]);
    packet[len..len + ICRC_LEN].copy_from_slice(&icrc.to_le_bytes());
    len + ICRC_LEN
}
