//! Payloads of a pair that come in parts.

use qpair_verbs::{RemoteSlice, Rkey};

use super::pair::{A, B, Pair};
use crate::engine::*;

/// A payload that comes in parts.
pub(super) struct Gathering {
    key: EntryKey,
    op: Option<u64>,
    serial: u64,
    /// Bytes that are not read yet.
    left: u64,
    parts: Vec<EntryKey>,
}

impl Pair {
    /// A payload is to be had that comes in parts.
    pub(super) fn want(&mut self, side: usize, start: &Start<()>) {
        let (id, op) = (start.offer.id, start.posted.as_ref().map(|posted| posted.op));
        self.sides[side].link.want_parts(id);
        let serial = *self.sides[1 - side].link.exposed(id).expect("it was offered");
        let message = Gathering { key: start.key, op, serial, left: start.len, parts: Vec::new() };
        self.sides[side].gathering.insert(id, message);
    }

    /// The peer wants a payload: its parts go out, of any lengths.
    pub(super) fn wanted(&mut self, side: usize, header: &Header) {
        let link = &mut self.sides[side].link;
        let (id, mut left) = (header.envelope.tag as u32, link.on_want(header).unwrap());
        let payload = *link.exposed(id).expect("it is wanted");
        while left > 0 {
            let len = left.min(1 + self.dice.below(left));
            let remote = RemoteSlice { addr: 1 << 60, len, rkey: Rkey(7) };
            let (op, readable) = (1 << 40 | self.next, Some(Readable::At(remote.into())));
            let pending = Pending { op, envelope: Envelope::part(id), len, readable, payload };
            self.sides[side].link.enqueue_part(pending);
            (left, self.next) = (left - len, self.next + 1);
        }
    }

    /// A part can be read.
    pub(super) fn pull_part(&mut self, side: usize, start: &Start<()>) {
        let me = &mut self.sides[side];
        let message = me.gathering.get_mut(&(start.envelope.tag as u32)).expect("it was wanted");
        message.parts.push(start.key);
        let serial = message.serial;
        let work = me.link.take_slot().expect("a step comes with a slot");
        self.read(side, (start.key, None), work, serial);
    }

    /// What was read may be a part; the last of a message delivers it. False if it is none.
    pub(super) fn part_read(&mut self, side: usize, key: EntryKey) -> bool {
        let me = &mut self.sides[side];
        let found = me.gathering.iter_mut().find(|(_, message)| message.parts.contains(&key));
        let Some((_, message)) = found else { return false };
        let (id, len) = me.inbox.discard(key).expect("it was being read");
        message.left -= len;
        me.link.read(id, len);
        for (_, Gathering { key, op, serial, .. }) in me.gathering.extract_if(.., |_, message| message.left == 0) {
            let (id, len) = me.inbox.finish(key, (serial, op), None).expect("it was being read");
            me.link.read(id, len);
        }
        self.release(side);
        true
    }

    /// The connection broke: no more parts come.
    pub(super) fn end_gathering(&mut self) {
        for side in [A, B] {
            let me = &mut self.sides[side];
            for Gathering { key, op, .. } in std::mem::take(&mut me.gathering).into_values() {
                assert_eq!(me.inbox.fail(key), op);
                me.failed.extend(op);
            }
            self.release(side);
        }
    }
}
