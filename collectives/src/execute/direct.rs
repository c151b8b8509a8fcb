//! Messages that go without copies in between: reads and writes of the peers' exposed memory, and the words about them.

use std::cmp::Reverse;

use qpair_transport::{OneSidedFailure, OpId, SendCopyError};
use qpair_verbs::{RemoteSlice, Rkey};

use super::compile::{Span, Step, What};
use super::exec::Exec;
use super::lower::Way;
use super::run::{Reach, State, Word};
use super::tag::{Fields, Kind};
use crate::fault::{Fault, Outcome};
use crate::plan::Buffer;

impl Exec<'_> {
    /// Tells the peers that will reach this rank's memory where it is.
    pub(super) fn begin(&mut self) -> Outcome<()> {
        for slot in 0..self.plan.peers.len() as u16 {
            if self.plan.peers[slot as usize].reached {
                self.say(Word { slot, kind: Kind::Begin, message: 0, step: None })?;
            }
        }
        Ok(())
    }

    /// A step whose message is not copied may start.
    pub(super) fn start_direct(&mut self, number: u32, step: &Step) -> Outcome<()> {
        let state = &mut self.run.states[number as usize];
        if *state == State::Done {
            return Ok(());
        }
        let offered = *state == State::Offered;
        *state = State::Started;
        let begun = self.run.begun[step.slot as usize].is_some();
        match (step.what, step.way) {
            (What::Send, Way::Read { told: true, .. }) => {
                self.say(Word { slot: step.slot, kind: Kind::Data, message: step.message, step: None })?;
            }
            (What::Send, Way::Written { .. }) if begun => self.run.transfers.push(Reverse(number)),
            (What::Recv | What::RecvReduce, Way::Read { told, .. }) if if told { offered } else { begun } => {
                self.run.transfers.push(Reverse(number));
            }
            // The peer does it, or has to begin.
            _ => {}
        }
        Ok(())
    }

    /// Posts reads and writes that may be done: one read at a time, so that what it brings is given away while it is in
    /// the cache. On shared memory all is done when it is posted, and more at a time would gain nothing.
    #[inline]
    pub(super) fn transfer(&mut self) -> Outcome<()> {
        while let Some(&Reverse(number)) = self.run.transfers.peek() {
            let step = self.plan.steps[number as usize];
            let get = step.what != What::Send;
            if (get && self.run.gets >= GETS) || !self.post(number, &step)? {
                return Ok(());
            }
            self.run.transfers.pop();
        }
        Ok(())
    }

    /// Posts the read or write of a step. False if there is no room for it now.
    fn post(&mut self, number: u32, step: &Step) -> Outcome<bool> {
        let send = step.what == What::Send;
        let span = if send { step.src } else { step.dst };
        let memory = match span.buffer {
            Buffer::Data => &self.run.data,
            Buffer::Scratch => &self.run.scratch,
        };
        let ep = self.plan.peers[step.slot as usize].ep;
        let remote = self.run.begun[step.slot as usize].and_then(|reach| reach.part(step.remote));
        let (Some(ep), Some(local), Some(remote)) = (ep, memory.local(span), remote) else {
            return Err(self.inconsistent(number));
        };
        let calc = if step.what == What::RecvReduce { self.plan.calc } else { None };
        let worker = &mut self.net.worker;
        let posted = if send { worker.put(ep, local, remote) } else { worker.get(ep, remote, local, calc) };
        match posted {
            Ok(op) => {
                self.run.posted.push_back((op, number));
                self.run.gets += u32::from(!send);
                if send {
                    if step.way == (Way::Written { told: true }) {
                        self.say(Word { slot: step.slot, kind: Kind::Data, message: step.message, step: None })?;
                    }
                    self.reached(step.slot)?;
                }
                Ok(true)
            }
            Err(refused) => match refused.error {
                // Where it is closed, the event that says why is on its way.
                OneSidedFailure::WouldBlock | OneSidedFailure::Closed(_) if self.is_up(step.slot) => Ok(false),
                OneSidedFailure::Closed(_) => {
                    Err(Box::new(Fault::Gone { rank: self.plan.peers[step.slot as usize].rank }))
                }
                error => Err(self.failed(error.to_string())),
            },
        }
    }

    /// A read or write is done.
    #[inline]
    pub(super) fn transferred(&mut self, op: OpId) -> Outcome<()> {
        let at = self.run.posted.iter().position(|(posted, _)| *posted == op);
        let Some((_, number)) = at.and_then(|at| self.run.posted.remove(at)) else { return Ok(()) };
        let step = self.plan.steps[number as usize];
        self.complete(number);
        if step.what != What::Send {
            self.run.gets -= 1;
            if matches!(step.way, Way::Read { acknowledged: true, .. }) {
                self.say(Word { slot: step.slot, kind: Kind::Read, message: step.message, step: None })?;
            }
            self.reached(step.slot)?;
        }
        Ok(())
    }

    /// One thing less to do to the peer's memory. After the last the peer is told.
    fn reached(&mut self, slot: u16) -> Outcome<()> {
        let left = &mut self.run.reaches[slot as usize];
        *left -= 1;
        if *left == 0 {
            self.say(Word { slot, kind: Kind::End, message: 0, step: None })?;
        }
        Ok(())
    }

    /// A peer has something to say about messages that are not copied.
    pub(super) fn told(&mut self, slot: u16, fields: Fields, contents: &[u8]) -> Outcome<()> {
        if !self.plan.large {
            return Err(self.differs(fields));
        }
        match fields.kind {
            Kind::Begin => self.begun(slot, contents),
            Kind::End => {
                if std::mem::replace(&mut self.run.reached[slot as usize], false) {
                    self.run.open -= 1;
                }
                for at in 0..self.plan.peers[slot as usize].ended.len() {
                    self.complete(self.plan.peers[slot as usize].ended[at]);
                }
                Ok(())
            }
            Kind::Read => match self.plan.send(slot, fields.message) {
                Some(number) => {
                    self.complete(number);
                    Ok(())
                }
                None => Err(self.differs(fields)),
            },
            Kind::Data => {
                let Some(number) = self.plan.receive(slot, fields.message) else { return Err(self.differs(fields)) };
                if matches!(self.plan.steps[number as usize].way, Way::Written { .. }) {
                    self.complete(number);
                } else if self.run.states[number as usize] == State::Started {
                    self.run.transfers.push(Reverse(number));
                } else {
                    self.run.states[number as usize] = State::Offered;
                }
                Ok(())
            }
            Kind::Hello | Kind::Announce => Ok(()),
        }
    }

    /// A peer has begun: its memory may be reached.
    fn begun(&mut self, slot: u16, contents: &[u8]) -> Outcome<()> {
        let Some(reach) = Reach::decode(contents) else {
            return Err(self.failed("a peer told of its memory in a way that this release does not know".into()));
        };
        self.run.begun[slot as usize] = Some(reach);
        for &number in &self.plan.peers[slot as usize].opened {
            if self.run.states[number as usize] == State::Started {
                self.run.transfers.push(Reverse(number));
            }
        }
        Ok(())
    }

    /// Says something to a peer, now or when it has room.
    #[inline]
    pub(super) fn say(&mut self, word: Word) -> Outcome<()> {
        if !self.try_say(word)? {
            self.run.blocked.push_back(word);
        }
        Ok(())
    }

    /// Says something to a peer. False if it has no room for it now.
    #[inline]
    pub(super) fn try_say(&mut self, word: Word) -> Outcome<bool> {
        let tag = self.tag(word.kind, word.message);
        let mut reach = [0; REACH];
        let contents: &[u8] = match (word.kind, word.step) {
            (Kind::Begin, _) => {
                let Some(data) = self.run.data.remote() else { return Err(self.inconsistent(0)) };
                Reach { data, scratch: self.run.scratch.remote() }.encode(&mut reach)
            }
            (_, Some(number)) => {
                let span = self.plan.steps[number as usize].src;
                let memory = match span.buffer {
                    Buffer::Data => &self.run.data,
                    Buffer::Scratch => &self.run.scratch,
                };
                let bytes = if span.len == 0 { Some(&[][..]) } else { memory.bytes(span) };
                let Some(bytes) = bytes else { return Err(self.inconsistent(number)) };
                bytes
            }
            (_, None) => &[],
        };
        let peer = &self.plan.peers[word.slot as usize];
        let Some(ep) = peer.ep else { return Err(self.inconsistent(0)) };
        match self.net.worker.send_copy(ep, tag, contents) {
            Ok(()) => Ok(true),
            Err(SendCopyError::WouldBlock) => Ok(false),
            // The event that says why is on its way.
            Err(SendCopyError::Closed(_)) if self.is_up(word.slot) => Ok(false),
            Err(_) => Err(Box::new(Fault::Gone { rank: peer.rank })),
        }
    }

    /// Copies or combines within this rank, in parts that stay in the first-level cache.
    pub(super) fn local(&mut self, step: &Step) -> Outcome<()> {
        let calc = if step.what == What::Reduce { self.plan.calc } else { None };
        let mut part = [0_u8; PART];
        let mut done = 0;
        while done < step.src.len {
            let len = PART.min(step.src.len - done);
            let from = match step.src.buffer {
                Buffer::Data => &self.run.data,
                Buffer::Scratch => &self.run.scratch,
            };
            let into = Span { buffer: step.dst.buffer, start: step.dst.start + done, len };
            let copied = from.read(step.src.start + done, &mut part[..len]);
            let put = copied.and_then(|()| self.run.memory(into.buffer).put(into, &part[..len], calc));
            put.map_err(|reason| self.failed(reason))?;
            done += len;
        }
        Ok(())
    }
}

impl Reach {
    /// A part of it, if it lies within.
    #[inline]
    fn part(&self, span: Span) -> Option<RemoteSlice> {
        let whole = match span.buffer {
            Buffer::Data => self.data,
            Buffer::Scratch => self.scratch?,
        };
        let (start, end) = (span.start as u64, span.start as u64 + span.len as u64);
        (end <= whole.len).then(|| whole.slice(start..end))
    }

    fn encode(self, into: &mut [u8; REACH]) -> &[u8] {
        let slices = [Some(self.data), self.scratch];
        let (parts, _) = into.as_chunks_mut::<SLICE>();
        for (part, slice) in parts.iter_mut().zip(slices.into_iter().flatten()) {
            part[..8].copy_from_slice(&slice.addr.to_le_bytes());
            part[8..16].copy_from_slice(&slice.len.to_le_bytes());
            part[16..].copy_from_slice(&slice.rkey.0.to_le_bytes());
        }
        if self.scratch.is_some() { into } else { &into[..SLICE] }
    }

    fn decode(bytes: &[u8]) -> Option<Reach> {
        let (parts, []) = bytes.as_chunks::<SLICE>() else { return None };
        let slice = |part: &[u8; SLICE]| {
            let (words, rkey) = part.as_chunks::<8>();
            let rkey = Rkey(u32::from_le_bytes(rkey.try_into().ok()?));
            Some(RemoteSlice { addr: u64::from_le_bytes(words[0]), len: u64::from_le_bytes(words[1]), rkey })
        };
        match parts {
            [data] => Some(Reach { data: slice(data)?, scratch: None }),
            [data, scratch] => Some(Reach { data: slice(data)?, scratch: slice(scratch) }),
            _ => None,
        }
    }
}

/// Reads under way.
const GETS: u32 = 1;

/// A multiple of every element's size.
const PART: usize = 8 << 10;

/// Bytes of a remote slice, and of those of data and scratch.
const SLICE: usize = 20;
const REACH: usize = 2 * SLICE;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_named_and_found_again() {
        let data = RemoteSlice { addr: 0x1234_5678_9abc, len: 100, rkey: Rkey(0xdead_beef) };
        for scratch in [None, Some(RemoteSlice { addr: 7, len: 8, rkey: Rkey(9) })] {
            let reach = Reach { data, scratch };
            let mut bytes = [0; REACH];
            assert_eq!(Reach::decode(reach.encode(&mut bytes)), Some(reach));
        }
        for len in [0, 1, 19, 21, 60] {
            assert_eq!(Reach::decode(&vec![0; len]), None);
        }
    }

    #[test]
    fn a_part_outside_is_refused() {
        let reach = Reach { data: RemoteSlice { addr: 64, len: 100, rkey: Rkey(1) }, scratch: None };
        let part = |buffer, start, len| reach.part(Span { buffer, start, len }).map(|slice| (slice.addr, slice.len));
        assert_eq!(part(Buffer::Data, 60, 40), Some((124, 40)));
        assert_eq!(part(Buffer::Data, 61, 40), None);
        assert_eq!(part(Buffer::Scratch, 0, 1), None);
    }
}
