//! What came: in order, and what waits for something before it.

use std::collections::VecDeque;

use super::REORDER;
use super::wire::{after, distance};

/// Packets of the peer.
#[derive(Debug)]
pub(super) struct Arrivals<P> {
    /// The number of the first that did not come.
    expected: u32,
    /// Those behind it; the first place is that of `expected + 1`.
    beyond: VecDeque<Option<P>>,
    /// Those before it that were not taken.
    ready: VecDeque<P>,
}

impl<P> Arrivals<P> {
    pub(super) fn new() -> Self {
        Arrivals { expected: 0, beyond: VecDeque::new(), ready: VecDeque::new() }
    }

    #[cfg(test)]
    pub(super) fn begin_at(&mut self, sequence: u32) {
        self.expected = sequence;
    }

    pub(super) fn is_next(&self, sequence: u32) -> bool {
        sequence == self.expected
    }

    /// True for a packet that did not come yet, and is not too far ahead.
    pub(super) fn wants(&self, sequence: u32) -> bool {
        match distance(self.expected, sequence) {
            ..0 => false,
            0 => true,
            ahead => (ahead as usize) <= REORDER && !matches!(self.beyond.get(ahead as usize - 1), Some(Some(_))),
        }
    }

    /// True if a packet is missing behind which others came.
    pub(super) fn has_gap(&self) -> bool {
        !self.beyond.is_empty()
    }

    /// A packet came. False if it had before, or is too far ahead to be kept.
    pub(super) fn take(&mut self, sequence: u32, packet: P) -> bool {
        match distance(self.expected, sequence) {
            ..0 => false,
            0 => {
                self.ready.push_back(packet);
                self.expected = after(self.expected, 1);
                while let Some(place) = self.beyond.pop_front() {
                    // The place is that of what is expected now.
                    let Some(packet) = place else { break };
                    self.ready.push_back(packet);
                    self.expected = after(self.expected, 1);
                }
                true
            }
            ahead => {
                let place = ahead as usize - 1;
                if place >= REORDER {
                    return false;
                }
                if self.beyond.len() <= place {
                    self.beyond.resize_with(place + 1, || None);
                }
                self.beyond[place].replace(packet).is_none()
            }
        }
    }

    pub(super) fn next(&mut self) -> Option<P> {
        self.ready.pop_front()
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = P> + '_ {
        self.ready.drain(..).chain(self.beyond.drain(..).flatten())
    }

    /// The packets that came, and those behind the first that did not.
    pub(super) fn state(&self) -> (u32, u32) {
        let bits = self.beyond.iter().enumerate().filter(|(_, place)| place.is_some());
        (self.expected, bits.fold(0, |all, (place, _)| all | 1 << place))
    }
}
