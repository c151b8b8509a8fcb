//! Rendezvous, receiver's side: payloads are read straight into the memory of their receive, but for what is staged.

use qpair_verbs::{Local, MemoryError, Slab};

use crate::engine::{Class, EntryKey, Start};
use crate::worker::Worker;
use crate::worker::delivery::{Body, receive_op};
use crate::worker::endpoint::{InFlight, OneSided, PART, Reading, Unposted, Unread};
use crate::worker::error::{OpError, ResourceError};
use crate::worker::event::{Event, Returned};
use crate::worker::ids::{EndpointId, OpId};
use crate::worker::memory::{Message, Target};
use crate::worker::seen::Note;

impl Worker {
    /// Reads a payload, if it is still to be read.
    pub(in crate::worker) fn pull(&mut self, index: usize, key: EntryKey) {
        let Some(mut start) = self.inbox.start(key) else { return };
        if start.envelope.class == Class::Part {
            return self.part_offered(index, &start);
        }
        let direct = start.posted.as_ref().is_some_and(|posted| !posted.staged);
        let (memory, calc, pooled) = if direct && let Some(posted) = &mut start.posted {
            (std::mem::take(&mut posted.memory.memory), posted.memory.calc, 0)
        } else {
            match self.slab(start.len as usize) {
                Ok(Some(slab)) => {
                    let pooled = slab.len();
                    (slab.into(), None, pooled)
                }
                Ok(None) => {
                    self.inbox.stall(start);
                    return self.watch_parts();
                }
                Err(error) => {
                    self.inbox.stall(start);
                    return self.check(index, Err(ResourceError::Memory(error)));
                }
            }
        };
        let Start { offer, len, posted, .. } = start;
        let (remote, piece, offset) = (offer.remote(len), None, 0);
        let reading = Reading { key, remote, before: 0, calc, posted, pooled, piece, offset };
        if offer.in_parts || matches!(memory, Local::Gpu(_)) {
            return self.read_in_pieces(index, reading, memory, &offer);
        }
        let Some((reading, memory)) = self.read_over_rails(index, reading, memory) else { return };
        let Some(endpoint) = self.endpoints.at(index) else { return };
        if let Err(unread) = endpoint.read_part(reading, true, memory) {
            self.read_refused(index, *unread, true);
        }
    }

    /// The device does not take the memory that a payload was to be read into.
    #[cold]
    pub(in crate::worker) fn read_refused(&mut self, index: usize, unread: Unread, awaited: bool) {
        if unread.reading.piece.is_some() {
            return self.piece_refused(index, unread);
        }
        let Unread { reading, error, memory } = unread;
        if !awaited && reading.pooled == 0 {
            // Nobody waits for it.
            return self.pulled(index, reading, awaited, memory);
        }
        let Reading { key, posted, pooled, .. } = reading;
        let rest = self.unstage(memory, pooled);
        let posted = posted.map(|posted| {
            let own = if pooled > 0 { posted.memory.memory } else { rest };
            (OpId::new(posted.op, posted.pattern.source.map(EndpointId::of)), own)
        });
        self.pull_refused(index, key, posted, error);
    }

    /// Part of a payload was read, and there is more of it. What nobody waits for any more is not read on, unless it is for
    /// memory of the worker's own.
    fn read_on(&mut self, index: usize, reading: Reading, awaited: bool, memory: Local) -> Option<(Reading, Local)> {
        let part = (reading.remote.len() - reading.before).min(PART);
        let before = reading.before + part;
        let given_up = !awaited && reading.pooled == 0;
        if before == reading.remote.len() || given_up {
            return Some((reading, memory));
        }
        let endpoint = self.endpoints.at(index)?;
        let reading = Reading { before, ..reading };
        if endpoint.link.is_suspended() {
            // Over the next queue pair, as what the one before had not done.
            let (order, len) = (endpoint.link.posted(), (reading.remote.len() - before).min(PART));
            let work = InFlight { number: 0, order, awaited, len, what: OneSided::Pull(reading) };
            endpoint.repeats.lost.push((work, memory));
            return None;
        }
        // The slot of the part before is free.
        if let Err(unread) = endpoint.read_part(reading, awaited, memory) {
            let Unread { reading, error, memory } = *unread;
            self.unread(index, reading, awaited, memory);
            self.check(index, Err(error.into()));
        }
        None
    }

    /// A slab of the pool, as [`Pool::slab`](crate::worker::memory::Pool::slab).
    pub(in crate::worker) fn slab(&mut self, len: usize) -> Result<Option<Slab>, MemoryError> {
        let slab = self.pool.slab(len);
        if let Ok(None) = slab {
            self.registrations.let_go();
        }
        slab
    }

    /// Gives a slab that stood for other memory back to the pool; else the memory again.
    pub(in crate::worker) fn unstage(&mut self, memory: Local, pooled: usize) -> Local {
        match memory {
            Local::Slab(slab) if pooled > 0 => {
                self.pool.give_slab(slab);
                Local::None
            }
            memory => memory,
        }
    }

    /// The device does not take the memory of a receive: the receive fails, the message goes to the application, or waits
    /// for another receive.
    #[cold]
    fn pull_refused(&mut self, index: usize, key: EntryKey, posted: Option<(OpId, Local)>, error: Unposted) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let (ep, closing) = (endpoint.id, endpoint.link.is_closing());
        let (Some((op, memory)), Some(_)) = (posted, self.inbox.unmatch(key, closing)) else {
            self.inbox.fail(key);
            self.deliver_due();
            return self.check(index, Err(error.into()));
        };
        let returned = Returned::Memory(memory);
        self.ready.push_back(Event::Failed { op, ep: Some(ep), error: error.into(), returned });
        self.deliver_in_pump();
    }

    /// A READ, WRITE or atomic completed.
    pub(in crate::worker) fn read_done(&mut self, index: usize, memory: Local) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let ep = endpoint.id;
        let Some(InFlight { number, awaited, what, .. }) = endpoint.reads.pop_front() else { return };
        let op = OpId::new(number, Some(ep));
        let event = match what {
            OneSided::Pull(reading) => return self.pulled(index, reading, awaited, memory),
            OneSided::Get { .. } => Event::Got { op, ep, memory },
            OneSided::Put { own, .. } => Event::Put { op, ep, memory: self.own_memory(own, memory) },
            OneSided::Fetch { .. } => self.fetched(op, ep, memory),
            OneSided::Combine { target, remote, .. } => self.combined(op, ep, target, remote.len() as usize, memory),
        };
        self.ready.push_back(if awaited { event } else { event.released(op) });
    }

    /// A payload was read, or a part of it.
    pub(in crate::worker) fn pulled(&mut self, index: usize, reading: Reading, awaited: bool, memory: Local) {
        let Some((reading, memory)) = self.read_on(index, reading, awaited, memory) else { return };
        if let Some(piece) = reading.piece {
            return self.piece_read(index, piece, memory);
        }
        let len = reading.remote.len() as usize;
        self.is_here(index, reading, awaited, (memory, len), Ok(()));
    }

    /// All of a payload of so many bytes is in its memory, unless that failed: it is delivered when its turn comes, and the peer is
    /// told.
    pub(in crate::worker) fn is_here(
        &mut self,
        index: usize,
        reading: Reading,
        awaited: bool,
        (memory, len): (Local, usize),
        result: Result<(), OpError>,
    ) {
        let Reading { key, posted, pooled, .. } = reading;
        let (body, posted) = match (posted, memory) {
            (Some(posted), memory) if pooled == 0 && !awaited => {
                let (op, returned) = (receive_op(&posted), Returned::Memory(memory));
                self.ready.push_back(Event::Released { op, returned });
                let read = self.inbox.discard(key);
                return self.was_read(index, read);
            }
            (Some(posted), memory) if pooled == 0 => (Body::Into { op: receive_op(&posted), memory, result }, None),
            (Some(posted), Local::Slab(slab)) if !posted.memory.whole => {
                let op = receive_op(&posted);
                let mut target: Target = posted.memory;
                self.counters.bytes_copied += len as u64;
                let result = target.put(&slab[..len]);
                self.pool.give_slab(slab);
                (Body::Into { op, memory: target.memory, result }, None)
            }
            (posted, Local::Slab(slab)) => {
                let message = Message::new(&slab, 0..len, self.lends_from);
                self.pool.lend(slab);
                (Body::Message(message), posted)
            }
            // Without a receive, a payload is read into a slab.
            _ => return,
        };
        let read = self.inbox.finish(key, body, posted);
        self.was_read(index, read);
    }

    /// The peer is told that a payload was read, of that message id and length.
    fn was_read(&mut self, index: usize, read: Option<(u32, u64)>) {
        let Some((id, len)) = read else { return };
        self.counters.rendezvous_received += 1;
        if let Some(endpoint) = self.endpoints.at(index) {
            endpoint.note(self.pace.now(), Note::with_len("read", id.into(), len));
            endpoint.received.count(len);
            endpoint.link.read(id, len);
        }
        self.deliver_due();
        if self.inbox.is_stalled() {
            // What waited behind it may be read now.
            self.resume();
        }
    }

    /// Bytes that were read are combined with the application's memory.
    fn combined(&mut self, op: OpId, ep: EndpointId, mut target: Target, len: usize, read: Local) -> Event {
        let Local::Slab(slab) = read else { return Event::Got { op, ep, memory: target.memory } };
        let combined = target.put(&slab[..len]);
        self.pool.give_slab(slab);
        match combined {
            Ok(()) => Event::Got { op, ep, memory: target.memory },
            Err(error) => Event::Failed { op, ep: Some(ep), error, returned: Returned::Memory(target.memory) },
        }
    }
}
