//! Payloads that are read piece by piece: for a GPU, whose memory the device does not write, or as the peer offers their parts.

use std::collections::VecDeque;

use qpair_verbs::calc::Calc;
use qpair_verbs::{GpuError, GpuStage, Local, PostError};

use super::destination::Destination;
use super::{SLOT, Staging, may_have_one};
use crate::engine::{EntryKey, Offer, RemoteMemory, Start, Violation};
use crate::worker::Worker;
use crate::worker::endpoint::{Endpoint, Reading, Stage, Unposted, Unread};
use crate::worker::error::{CloseReason, OpError};
use crate::worker::ids::EndpointId;
use crate::worker::memory::Target;

/// A payload that is read piece by piece.
#[derive(Debug)]
pub(super) struct Incoming {
    ep: EndpointId,
    /// The peer's number for it.
    id: u32,
    len: usize,
    source: Source,
    /// What it is for.
    reading: Reading,
    /// Where it goes.
    memory: Destination,
    /// How it is combined with what a GPU has there.
    calc: Option<Calc>,
    /// Bytes that are, or were, being read.
    begun: usize,
    /// Pieces that are being read.
    reads: usize,
    queues: Queues,
    /// The application waits for it.
    awaited: bool,
    /// It will not be read to its end: the connection ends.
    is_lost: bool,
    failed: Option<OpError>,
}

/// Where its pieces come from.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// All of it can be read there.
    Whole(RemoteMemory),
    /// From what the peer offers: so many bytes so far.
    Parts { offered: usize },
}

/// What waits of a payload. Kept for the next that comes.
#[derive(Debug, Default)]
pub(super) struct Queues {
    /// Slots that a GPU drains, in order.
    draining: VecDeque<usize>,
    /// Parts that the peer offers, and that are not being read yet.
    parts: VecDeque<(EntryKey, RemoteMemory)>,
}

/// A piece that is being read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    incoming: usize,
    /// Where it belongs in the memory.
    at: usize,
    len: usize,
    /// The peer's offer of it.
    part: Option<EntryKey>,
    /// The slot that it is read into, on its way to a GPU.
    slot: Option<usize>,
}

/// The number of a piece that is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PieceKey(u32);

/// A payload of which nothing is on its way: what it is for, whether the application waits for it, and its memory.
pub(in crate::worker) type Whole = (Reading, bool, Local);

impl Incoming {
    pub(super) fn is_draining(&self) -> bool {
        !self.queues.draining.is_empty()
    }

    /// True if it is read into memory of its receive's own, at once or by slots.
    fn is_own(&self) -> bool {
        self.reading.pooled == 0
    }

    /// The connection that it comes over.
    pub(super) fn ep(&self) -> EndpointId {
        self.ep
    }

    /// True if something of it is being read, or can be, or is drained.
    pub(super) fn goes_on(&self) -> bool {
        self.reads > 0 || !self.queues.parts.is_empty() || self.is_draining()
    }

    /// Bytes of the worker's own memory that are kept for it until the peer has offered all its parts.
    pub(super) fn kept(&self) -> usize {
        let waits = matches!(self.source, Source::Parts { .. }) && !self.is_over();
        if waits { self.reading.pooled } else { 0 }
    }

    /// True if nothing more is to be read of it.
    fn is_over(&self) -> bool {
        let is_unwanted = !self.awaited && self.is_own();
        self.begun == self.len || self.is_lost || self.failed.is_some() || is_unwanted
    }

    /// The next piece, and the offer that it is, if it can be read.
    fn next(&self) -> Option<(RemoteMemory, Option<EntryKey>)> {
        match &self.source {
            Source::Whole(remote) => {
                let end = self.len.min(self.begun + SLOT);
                Some((remote.slice(self.begun as u64..end as u64), None))
            }
            Source::Parts { .. } => self.queues.parts.front().map(|&(part, remote)| (remote, Some(part))),
        }
    }
}

impl Staging {
    /// What is read for the receive of that number, if that is piece by piece; and whether it is into memory of the receive's own.
    pub(in crate::worker) fn reading_of(&mut self, op: u64) -> Option<(&mut Reading, bool)> {
        let incoming = self.incoming_of(op)?;
        let is_own = incoming.is_own();
        Some((&mut incoming.reading, is_own))
    }

    /// The application does not wait for it any more; whether it did.
    pub(in crate::worker) fn disown(&mut self, op: u64) -> Option<bool> {
        self.incoming_of(op).map(|incoming| std::mem::replace(&mut incoming.awaited, false))
    }

    fn incoming_of(&mut self, op: u64) -> Option<&mut Incoming> {
        let is_its = |incoming: &Incoming| incoming.reading.posted.as_ref().is_some_and(|posted| posted.op == op);
        self.incoming.iter_mut().map(|(_, incoming)| incoming).find(|incoming| is_its(incoming))
    }

    /// True if a payload of that connection is being read piece by piece.
    pub(in crate::worker) fn takes_from(&self, ep: EndpointId) -> bool {
        self.incoming.iter().any(|(_, incoming)| incoming.ep == ep)
    }

    fn insert(&mut self, incoming: Incoming) -> usize {
        let key = self.incoming.insert(incoming);
        self.bound = self.bound.max(key + 1);
        key
    }

    fn remove(&mut self, key: usize) -> Option<Incoming> {
        let incoming = self.incoming.try_remove(key)?;
        self.moved = true;
        if self.incoming.is_empty() {
            self.bound = 0;
        }
        Some(incoming)
    }

    /// A piece is no longer with the device. Gives what it is part of, and gives its slot back unless the device keeps it.
    fn take_piece(&mut self, PieceKey(key): PieceKey, is_kept: bool) -> Option<(Piece, &mut Incoming)> {
        let piece = self.pieces.try_remove(key as usize)?;
        let incoming = self.incoming.get_mut(piece.incoming)?;
        incoming.reads -= 1;
        if let (Some(slot), Some(gpu)) = (piece.slot, incoming.memory.gpu())
            && let Some(of) = self.slots.iter_mut().find(|of| of.gpu == gpu)
        {
            of.readers[slot] = None;
            of.kept += usize::from(is_kept);
        }
        Some((piece, incoming))
    }

    /// A slot that nothing was read into is free again.
    fn give_into(&mut self, key: usize, slot: usize) {
        self.moved = true;
        if let Some(gpu) = self.incoming.get(key).and_then(|incoming| incoming.memory.gpu())
            && let Some(of) = self.of(gpu)
        {
            of.into.give(slot);
        }
    }

    /// What is not being read of a payload will not be, as its connection ends; it ends well if all of it is.
    fn lose_rest(&mut self, key: usize) {
        if let Some(incoming) = self.incoming.get_mut(key) {
            incoming.is_lost |= incoming.begun < incoming.len;
        }
    }

    /// Frees the slots that a GPU has drained of a payload.
    fn end_drained(&mut self, key: usize) {
        self.end_draining(key, GpuStage::is_done);
    }

    /// Waits until a GPU has drained all slots of a payload.
    fn wait_drained(&mut self, key: usize) {
        self.end_draining(key, |stage, slot| stage.wait(slot).map(|()| true));
    }

    fn end_draining(&mut self, key: usize, is_done: impl Fn(&mut GpuStage, usize) -> Result<bool, GpuError>) {
        let Some(incoming) = self.incoming.get_mut(key) else { return };
        let Some(gpu) = incoming.memory.gpu() else { return };
        let Some(of) = self.slots.iter_mut().find(|of| of.gpu == gpu) else { return };
        while let Some(&slot) = incoming.queues.draining.front() {
            match is_done(&mut of.into, slot) {
                Ok(false) => return,
                Ok(true) => {}
                Err(error) => incoming.failed = Some(OpError::Memory(error.to_string().into())),
            }
            incoming.queues.draining.pop_front();
            of.into.give(slot);
            self.moved = true;
        }
    }
}

impl Worker {
    /// A payload is read from now on that has to be piece by piece.
    pub(in crate::worker) fn read_in_pieces(
        &mut self,
        index: usize,
        mut reading: Reading,
        memory: Local,
        offer: &Offer,
    ) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let (ep, id, len) = (endpoint.id, offer.id, reading.remote.len() as usize);
        let source = if offer.in_parts {
            endpoint.link.want_parts(id);
            Source::Parts { offered: 0 }
        } else {
            Source::Whole(reading.remote)
        };
        let calc = if matches!(memory, Local::Gpu(_)) { reading.calc.take() } else { None };
        self.has_other_queues = true;
        let queues = self.staging.spare_queues.pop().unwrap_or_default();
        let key = self.staging.insert(Incoming {
            ep,
            id,
            len,
            source,
            reading,
            memory: Destination::of(memory),
            calc,
            begun: 0,
            reads: 0,
            queues,
            awaited: true,
            is_lost: false,
            failed: None,
        });
        self.go_on(key);
    }

    /// The peer offers part of a payload.
    pub(in crate::worker) fn part_offered(&mut self, index: usize, start: &Start<Target>) {
        let &Start { key, envelope, offer, len, .. } = start;
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let (ep, id) = (endpoint.id, envelope.tag);
        let found = self.staging.incoming.iter_mut().find_map(|(at, incoming)| match &mut incoming.source {
            Source::Parts { offered } if incoming.ep == ep && u64::from(incoming.id) == id => {
                Some((at, incoming.len, offered, &mut incoming.queues.parts))
            }
            _ => None,
        });
        // Nobody waits for it any more.
        let Some((at, whole, offered, parts)) = found else { return self.pass_over(index, key) };
        let left = (whole - *offered) as u64;
        if offer.in_parts || len == 0 || len != left.min(SLOT as u64) {
            self.inbox.fail(key);
            let violation = Violation::Part { id, len, left };
            return self.break_off(index, CloseReason::Protocol(violation));
        }
        *offered += len as usize;
        parts.push_back((key, offer.remote(len)));
        self.staging.forgive(ep);
        self.go_on(at);
    }

    /// A part is the peer's again, read or not.
    fn pass_over(&mut self, index: usize, part: EntryKey) {
        if let (Some((id, len)), Some(endpoint)) = (self.inbox.discard(part), self.endpoints.at(index)) {
            endpoint.link.read(id, len);
        }
    }

    /// Goes on with all, as far as slots and GPUs let it.
    pub(super) fn take_in_more(&mut self) {
        let bound = self.staging.bound;
        (0..bound).for_each(|key| self.staging.end_drained(key));
        self.staging.turn = self.staging.turn.wrapping_add(1);
        for at in 0..bound {
            let key = (at + self.staging.turn) % bound;
            let Some(ep) = self.staging.incoming.get(key).map(|incoming| incoming.ep) else { continue };
            if self.go_on(key) {
                // The peer is to be told, or its connection waited for this to end.
                self.advance(ep.index as usize);
                self.settle(ep.index as usize);
            }
        }
    }

    /// Has what is next read, as far as nothing is in its way; or ends it. True if it has ended.
    fn go_on(&mut self, key: usize) -> bool {
        while let Some(incoming) = self.staging.incoming.get(key) {
            if incoming.is_over() {
                let is_free = incoming.reads == 0 && !incoming.is_draining();
                if is_free {
                    self.end_incoming(key);
                }
                return is_free;
            }
            if !self.read_next(key) {
                return false;
            }
        }
        false
    }

    /// Has the next piece read. False if that can not be now.
    fn read_next(&mut self, key: usize) -> bool {
        let Some(incoming) = self.staging.incoming.get(key) else { return false };
        let (ep, index) = (incoming.ep, incoming.ep.index as usize);
        let Some((remote, part)) = incoming.next() else { return false };
        let may = |endpoint: &Endpoint| endpoint.up && endpoint.broken.is_none() && endpoint.link.has_slot();
        if !self.endpoints.get(ep).is_some_and(may) {
            return false;
        }
        let Staging { slots, incoming, pieces, moved, .. } = &mut self.staging;
        let is_gpus = incoming.get(key).is_some_and(|own| own.memory.gpu().is_some());
        let is_alone = is_gpus && incoming.iter().all(|(_, other)| other.ep == ep || other.memory.gpu().is_none());
        let (Some(incoming), Some(endpoint)) = (incoming.get_mut(key), self.endpoints.get_mut(ep)) else {
            return false;
        };
        let (at, len) = (incoming.begun, remote.len() as usize);
        let (slot, memory, offset) = match &mut incoming.memory {
            Destination::Gpu(buffer) => {
                let Some(of) = slots.iter_mut().find(|of| of.gpu == buffer.gpu()) else { return false };
                let held = of.readers.iter().filter(|reader| **reader == Some(ep)).count();
                let may = may_have_one(held, of.into.free(), is_alone);
                let Some(slot) = (if may { of.into.take() } else { None }) else { return false };
                of.readers[slot] = Some(ep);
                (Some(slot), of.into.local(slot, len).into(), 0)
            }
            Destination::Divided(memory) => (None, memory.part(at..at + len), 0),
            Destination::Whole(_) if incoming.reads > 0 => return false,
            Destination::Whole(memory) => (None, std::mem::take(memory), at),
        };
        incoming.queues.parts.pop_front();
        incoming.begun += len;
        incoming.reads += 1;
        *moved = true;
        let piece = PieceKey(pieces.insert(Piece { incoming: key, at, len, part, slot }) as u32);
        // The rest of it waits here.
        let Reading { key, calc, .. } = incoming.reading;
        let reading = Reading { key, remote, before: 0, offset, calc, posted: None, pooled: 0, piece: Some(piece) };
        if let Err(unread) = endpoint.read_part(reading, true, memory) {
            self.read_refused(index, *unread, true);
        }
        true
    }

    /// A piece was read.
    pub(in crate::worker) fn piece_read(&mut self, index: usize, piece: PieceKey, memory: Local) {
        let Some((Piece { incoming: key, at, len, part, slot }, _)) = self.staging.take_piece(piece, false) else {
            return;
        };
        if let Some(part) = part {
            self.pass_over(index, part);
        }
        let Staging { slots, incoming, .. } = &mut self.staging;
        let Some(incoming) = incoming.get_mut(key) else { return };
        match (slot, &mut incoming.memory) {
            (Some(slot), Destination::Gpu(buffer)) => {
                let Some(of) = slots.iter_mut().find(|of| of.gpu == buffer.gpu()) else { return };
                match of.into.drain(slot, buffer, at..at + len, incoming.calc) {
                    Ok(()) => incoming.queues.draining.push_back(slot),
                    Err(error) => {
                        incoming.failed = Some(OpError::Memory(error.to_string().into()));
                        self.staging.give_into(key, slot);
                    }
                }
            }
            _ => incoming.memory.take_back(memory),
        }
        let is_ending = |endpoint: &mut Endpoint| matches!(endpoint.stage, Stage::Ending { .. });
        if self.endpoints.at(index).is_some_and(is_ending) {
            self.staging.lose_rest(key);
        }
        self.go_on(key);
    }

    /// The device does not take a piece.
    pub(in crate::worker) fn piece_refused(&mut self, index: usize, unread: Unread) {
        let Unread { reading, error, memory } = unread;
        let Some(piece) = reading.piece else { return };
        let of_queue_pair = matches!(error, Unposted::Post(PostError::State(_) | PostError::SendQueueFull { .. }));
        let incoming = self.staging.pieces.get(piece.0 as usize).map(|piece| piece.incoming);
        let is_own = incoming.and_then(|key| self.staging.incoming.get(key)).is_some_and(Incoming::is_own);
        if of_queue_pair || !is_own {
            self.unread(index, reading, true, memory);
            return self.check(index, Err(error.into()));
        }
        // Its receive fails, and nothing else.
        let Some((Piece { incoming: key, part, slot, .. }, incoming)) = self.staging.take_piece(piece, false) else {
            return;
        };
        incoming.failed = Some(error.into());
        match slot {
            Some(slot) => self.staging.give_into(key, slot),
            None => incoming.memory.take_back(memory),
        }
        if let Some(part) = part {
            self.pass_over(index, part);
        }
        self.go_on(key);
    }

    /// A piece came back unread, with its memory, or never will. Gives what it was part of, if that ends with it: where pieces
    /// are on their way, or drained, it ends later.
    pub(in crate::worker) fn piece_lost(&mut self, piece: PieceKey, memory: Option<Local>) -> Option<Whole> {
        let is_kept = memory.is_none();
        let (Piece { incoming: key, part, slot, .. }, incoming) = self.staging.take_piece(piece, is_kept)?;
        incoming.is_lost = true;
        match (slot, memory) {
            (Some(slot), Some(_)) => self.staging.give_into(key, slot),
            (None, Some(memory)) => incoming.memory.take_back(memory),
            _ => {}
        }
        if let Some(part) = part {
            self.inbox.fail(part);
        }
        if is_kept {
            // Nothing is waited for any more.
            self.staging.wait_drained(key);
        }
        let incoming = self.staging.incoming.get(key)?;
        if incoming.reads > 0 || incoming.is_draining() { None } else { self.lose_incoming(key) }
    }

    /// A payload that is not here will not come, and nothing of it is on its way.
    fn lose_incoming(&mut self, key: usize) -> Option<Whole> {
        let Incoming { mut queues, reading, memory, awaited, .. } = self.staging.remove(key)?;
        for (part, _) in queues.parts.drain(..) {
            self.inbox.fail(part);
        }
        self.staging.spare_queues.push(queues);
        // What a device has kept of it is not given back.
        Some((reading, awaited, memory.into_local().unwrap_or_default()))
    }

    /// A payload of which nothing is on its way is here, or lost, or nobody wants it any more.
    fn end_incoming(&mut self, key: usize) {
        let Some(incoming) = self.staging.incoming.get(key) else { return };
        let index = incoming.ep.index as usize;
        if incoming.is_lost {
            if let Some((reading, awaited, memory)) = self.lose_incoming(key) {
                self.unread(index, reading, awaited, memory);
            }
            return;
        }
        let Some(incoming) = self.staging.remove(key) else { return };
        let Incoming { mut queues, reading, memory, awaited, failed, len, .. } = incoming;
        queues.parts.drain(..).for_each(|(part, _)| self.pass_over(index, part));
        self.staging.spare_queues.push(queues);
        let Some(memory) = memory.into_local() else { unreachable!("each piece gave its part back as it was read") };
        self.is_here(index, reading, awaited, (memory, len), failed.map_or(Ok(()), Err));
    }

    /// The connection ends: so does what is read of it, once what is on its way is back and drained. `now`: at once.
    pub(in crate::worker) fn end_incoming_of(&mut self, index: usize, now: bool) {
        let Some(ep) = self.endpoints.at(index).map(|endpoint| endpoint.id) else { return };
        for key in 0..self.staging.bound {
            if self.staging.incoming.get(key).is_some_and(|incoming| incoming.ep == ep) {
                self.staging.lose_rest(key);
                if now {
                    self.staging.wait_drained(key);
                }
                self.go_on(key);
            }
        }
    }
}
