//! The queue pair under a pair's connection fails, and another takes its place.

use std::collections::VecDeque;
use std::time::Duration;

use super::pair::{A, B, Pair, What};
use crate::engine::*;

/// What goes out again.
#[derive(Debug)]
pub(super) enum Repeat {
    /// A message's bytes: header, offer if it is one, serial number.
    Message(Box<[u8]>),
    /// A payload that was being read: its key among those, and its serial.
    Read { key: u64, serial: u64 },
}

impl Pair {
    /// What is under way is lost, and nothing goes out.
    pub(super) fn suspend(&mut self) {
        if self.broken || self.suspended {
            return;
        }
        self.suspended = true;
        let mut events = std::mem::take(&mut self.events).into_sorted_vec();
        while let Some(std::cmp::Reverse((_, _, side, what))) = events.pop() {
            if let What::Read { key, number, serial } = what {
                self.sides[side].lost.push((number, Repeat::Read { key, serial }));
            }
        }
        for side in [A, B] {
            self.sides[side].link.suspend();
        }
    }

    /// Another queue pair takes its place.
    pub(super) fn renew(&mut self) {
        if self.broken || !std::mem::take(&mut self.suspended) {
            return;
        }
        self.lanes += 1;
        let epoch = |side: usize| 10 * (self.lanes + 1) + side as u32;
        let epochs = [epoch(A), epoch(B)];
        for (side, epoch) in self.sides.iter_mut().zip(epochs) {
            side.shares.end(side.link.window());
            side.link.renew(epoch);
            side.slots = self.window + RESERVED_SLOTS;
        }
        let counts = [A, B].map(|side| self.sides[side].link.sequences());
        for side in [A, B] {
            let terms = PeerTerms { epoch: epochs[1 - side], credits: self.window };
            let me = &mut self.sides[side];
            let resumed = me.link.resume(&terms, counts[1 - side], Duration::ZERO);
            let (unconfirmed, _) = resumed.expect("an honest peer");
            let mut first: Vec<_> = std::mem::take(&mut me.lost);
            first.extend(unconfirmed.into_iter().map(|Unconfirmed { number, what }| match what {
                Again::Message(bytes) => (number, Repeat::Message(bytes)),
                Again::Write(..) => unreachable!("nothing is written"),
            }));
            let posted = me.link.posted();
            first.sort_by_key(|(number, _)| std::cmp::Reverse(posted.wrapping_sub(*number)));
            let rest = std::mem::take(&mut me.repeats);
            me.repeats = first.into_iter().map(|(_, repeat)| repeat).chain(rest).collect::<VecDeque<_>>();
        }
        self.pump(A);
        self.pump(B);
    }

    /// Sends again what there is room for. True if nothing is left.
    pub(super) fn repeat(&mut self, side: usize) -> bool {
        if self.suspended {
            return false;
        }
        while let Some(repeat) = self.sides[side].repeats.pop_front() {
            let me = &mut self.sides[side];
            match &repeat {
                Repeat::Message(bytes) => {
                    let header = Header::parse(&HeaderView::new_checked(bytes).expect("it went out"));
                    let Some(frame) = me.link.repeat(&header) else {
                        me.repeats.push_front(repeat);
                        return false;
                    };
                    let (body, serial) = bytes[HEADER_BYTES..].split_last_chunk().expect("a serial");
                    let offer = (!body.is_empty()).then(|| Offer::parse(body).expect("it went out"));
                    self.post(side, &frame, u64::from_le_bytes(*serial), offer);
                }
                &Repeat::Read { key, serial } => {
                    let Some(work) = me.link.take_slot() else {
                        me.repeats.push_front(repeat);
                        return false;
                    };
                    let done = self.done_time(side);
                    self.at(done, side, What::Read { key, number: work.number, serial });
                }
            }
        }
        self.sides[side].link.go_on();
        true
    }
}
