//! Congestion control of a connection: what it tells its peer, and what it does when it is told.

use std::time::Instant;

use crate::congestion::{DcqcnParameters, MIN_TIME_BETWEEN_CNPS, NotificationPoint, Pacer, ReactionPoint};
use crate::counters::Counters;
use crate::types::Qpn;

/// Congestion control of a connection.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) notification: NotificationPoint,
    reaction: ReactionPoint,
    pacer: Pacer,
    /// Nothing is sent before.
    held: Option<Instant>,
}

impl Control {
    /// Towards queue pair `peer`, of that partition. A burst is `burst` bytes.
    pub(super) fn new(now: Instant, (peer, pkey): (Qpn, u16), parameters: DcqcnParameters, burst: u32) -> Self {
        let reaction = ReactionPoint::new(parameters);
        Control {
            notification: NotificationPoint::new(peer, pkey, MIN_TIME_BETWEEN_CNPS),
            pacer: Pacer::new(now, reaction.rate(), burst),
            reaction,
            held: None,
        }
    }

    /// The peer tells that packets of this end met congestion.
    pub(super) fn handle_cnp(&mut self, now: Instant, counters: &mut Counters) {
        if !self.reaction.is_limited() {
            // It was sending as fast as the link: nothing is saved up.
            self.pacer.sent(now, self.pacer.available(now));
        }
        self.reaction.handle_cnp(now, counters);
        self.pacer.set_rate(now, self.reaction.rate());
    }

    /// True if a packet of so many bytes may be sent now. As long as nothing tells of congestion the link alone limits what is
    /// sent: a rate for it would be a guess, and holds up what goes in bursts.
    pub(super) fn lets_go(&mut self, now: Instant, bytes: usize) -> bool {
        self.reaction.handle_timeout(now);
        self.pacer.set_rate(now, self.reaction.rate());
        if !self.reaction.is_limited() {
            self.held = None;
            return true;
        }
        let at = self.pacer.next(now, (bytes + AROUND) as u32);
        self.held = (at > now).then_some(at);
        self.held.is_none()
    }

    /// Nothing is held up any more.
    pub(super) fn release(&mut self) {
        self.held = None;
    }

    /// A packet of so many bytes is sent.
    pub(super) fn sent(&mut self, now: Instant, bytes: usize) {
        if self.reaction.is_limited() {
            self.pacer.sent(now, (bytes + AROUND) as u32);
            self.reaction.sent((bytes + AROUND) as u32);
        }
    }

    /// When there is something to do: a notification is due, or a packet may be sent that was held.
    pub(super) fn timeout(&self) -> Option<Instant> {
        // The rate may rise before a held packet's time by the present one.
        let held = self.held.map(|held| self.reaction.timeout().map_or(held, |rises| held.min(rises)));
        [self.notification.timeout(), held].into_iter().flatten().min()
    }
}

/// What is around a packet on the link: the CRC, UDP, IPv4 and Ethernet headers, and what Ethernet has between frames.
const AROUND: usize = 4 + 8 + 20 + 14 + 24;
