//! What a manager has to tell: datagrams and events.

use core::net::IpAddr;
use std::collections::VecDeque;

use super::counters::CmCounters;
use super::event::{Event, Transmit};
use crate::wire::cm::{LEN, Message, Packet, Pair, Reason, Refused, Reject};

/// Datagrams and events that wait to be taken.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    transmits: VecDeque<Transmit>,
    events: VecDeque<Event>,
    limit: usize,
    pub(super) counters: CmCounters,
}

impl Outbox {
    pub(super) fn new(limit: usize) -> Self {
        Outbox { limit, ..Outbox::default() }
    }

    /// Sends a message; what was sent, to be sent again. It is lost, as on any network, if too many wait: the peer, or this
    /// end's timer, asks for it again.
    pub(super) fn send(&mut self, to: IpAddr, transaction: u64, message: Message) -> [u8; LEN] {
        let bytes = Packet { transaction, message }.emit();
        self.send_again(to, bytes);
        bytes
    }

    pub(super) fn send_again(&mut self, to: IpAddr, bytes: [u8; LEN]) {
        if self.transmits.len() >= self.limit {
            self.counters.dropped += 1;
            return;
        }
        self.counters.sent += 1;
        self.transmits.push_back(Transmit { to, bytes });
    }

    /// Refuses a message of a connection that this end does not have, or will not.
    pub(super) fn refuse(&mut self, to: IpAddr, transaction: u64, ids: Pair, refused: Refused, reason: Reason) {
        self.send(to, transaction, Message::Reject(reject(ids, refused, reason, &[])));
    }

    pub(super) fn tell(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// True if so many events wait that no more connections are begun for peers.
    pub(super) fn is_full(&self) -> bool {
        self.events.len() >= self.limit
    }

    pub(super) fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    pub(super) fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

/// A refusal with more of its reason, without private data.
pub(super) fn reject(ids: Pair, refused: Refused, reason: Reason, more: &[u8]) -> Reject {
    let mut info = [0; Reject::INFO];
    info.iter_mut().zip(more).for_each(|(to, from)| *to = *from);
    let info_len = more.len().min(Reject::INFO) as u8;
    Reject { ids, refused, reason, info_len, info, private: [0; Reject::PRIVATE] }
}
