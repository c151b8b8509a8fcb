//! Receiving: what an arriving message, or a finished READ, means for the application.

use qpair_verbs::calc::Calc;
use qpair_verbs::{Local, Qpn, Slab, WorkCompletion};

use super::Worker;
use super::endpoint::{Job, Reading, Stage, parse_wr_id, wr_id};
use super::error::{CloseReason, Lost, OpError, RecvError, RecvFailure, ResourceError};
use super::event::{Event, Returned};
use super::ids::{EndpointId, OpId, Tag};
use super::message::Message;
use super::target::Target;
use crate::engine::{
    Arrival, HEADER_BYTES, Header, HeaderView, Kind, Offer, Offered, Placed, Posted, Pulled, Start, Violation, WireError,
};

impl Worker {
    /// Posts a receive for the next message of that tag from that peer. [`Event::ReceivedInto`] hands the memory back
    /// with the message in it, or, with `calc`, combined with it; or [`Event::Failed`].
    ///
    /// It takes messages that come from now on, and long ones that wait for a receive
    /// ([`Config::hold_unmatched`](crate::Config::hold_unmatched)).
    ///
    /// # Errors
    /// [`RecvError`] with the memory, if the connection is closed, or the message that waits does not fit.
    pub fn recv_into(
        &mut self,
        ep: EndpointId,
        tag: Tag,
        into: impl Into<Local>,
        calc: Option<Calc>,
    ) -> Result<OpId, RecvError> {
        let target = Target { memory: into.into(), calc };
        let refused = |error, target: Target| Err(RecvError { error, memory: target.memory });
        if let Err(error) = target.check() {
            return refused(error, target);
        }
        let op = self.op();
        let Some(endpoint) = self.endpoints.get_mut(ep) else { return refused(RecvFailure::Closed(ep), target) };
        if matches!(endpoint.stage, Stage::Ending { .. }) {
            return refused(RecvFailure::Closed(ep), target);
        }
        match endpoint.link.post(Posted { op, tag: tag.0, fit: target.fit(), memory: target }) {
            Placed::Waits => {}
            Placed::Startable => self.pump(ep.index as usize),
            Placed::Misfit { posted, len } => {
                let misfit = posted.memory.misfit(len);
                return refused(RecvFailure::Misfit(misfit), posted.memory);
            }
        }
        Ok(OpId(op))
    }

    /// A message came. Events beyond the first are put into `ready`.
    ///
    /// This is the way of a short message that nothing else has to do with: it should stay short.
    #[inline(always)]
    pub(super) fn received(&mut self, qpn: Qpn, len: usize, slab: Slab) -> Option<Event> {
        let Some(index) = self.endpoints.index_of(qpn.0) else {
            // Of a connection that ended; its slots went back as if this had not come.
            self.slabs.repost(slab);
            return None;
        };
        let endpoint = self.endpoints.at(index)?;
        let header = match HeaderView::new_checked(slab.get(..len).unwrap_or_default()) {
            Ok(view) => Header::parse(&view),
            Err(error) => return self.refuse_message(index, slab, error.into()),
        };
        if let Err(violation) = endpoint.link.accept(&header) {
            return self.refuse_message(index, slab, violation);
        }
        let ep = endpoint.id;
        if header.kind != Kind::Eager
            || header.length != (len - HEADER_BYTES) as u64
            || !endpoint.up
            || !endpoint.link.is_plain()
        {
            return self.received_other(index, &header, slab, len);
        }
        self.counters.eager_received += 1;
        let message = Message::new(slab.share(HEADER_BYTES..len));
        self.slabs.lend(slab, ep);
        if self.slabs.lent() >= BUSY {
            self.reclaim(2);
        }
        Some(Event::Received { ep, tag: Tag(header.tag), message })
    }

    /// An eager message that does not simply go to the application.
    fn arrived(
        &mut self,
        ep: EndpointId,
        tag: u64,
        arrival: Arrival<Target>,
        slab: Slab,
        len: usize,
    ) -> Option<Event> {
        match arrival {
            Arrival::Matched(posted) => {
                let event = fill(ep, tag, posted, &slab[HEADER_BYTES..len]);
                self.slabs.repost(slab);
                if let Some(endpoint) = self.endpoints.get_mut(ep) {
                    endpoint.link.give_slot();
                }
                self.return_credits(ep);
                Some(event)
            }
            Arrival::Misfit { posted, held } => {
                let failed = misfit(ep, posted, (len - HEADER_BYTES) as u64);
                if !held {
                    let message = Message::new(slab.share(HEADER_BYTES..len));
                    self.ready.push_back(Event::Received { ep, tag: Tag(tag), message });
                }
                self.slabs.lend(slab, ep);
                Some(failed)
            }
            Arrival::Unmatched => {
                let message = Message::new(slab.share(HEADER_BYTES..len));
                self.slabs.lend(slab, ep);
                Some(Event::Received { ep, tag: Tag(tag), message })
            }
            Arrival::Held => {
                self.slabs.lend(slab, ep);
                None
            }
        }
    }

    /// A message that is not the plain case.
    #[cold]
    #[inline(never)]
    fn received_other(&mut self, index: usize, header: &Header, slab: Slab, len: usize) -> Option<Event> {
        // The first message says as much as the handshake's last: the peer is connected.
        self.announce(index);
        let endpoint = self.endpoints.at(index)?;
        let ep = endpoint.id;
        if matches!(endpoint.stage, Stage::Ending { .. }) {
            self.slabs.repost(slab);
            endpoint.link.give_slot();
            return self.ready.pop_front();
        }
        match header.kind {
            Kind::Eager if header.length != (len - HEADER_BYTES) as u64 => {
                let error = WireError::Length { said: header.length, got: len - HEADER_BYTES };
                return self.refuse_message(index, slab, error.into());
            }
            Kind::Eager => {
                self.counters.eager_received += 1;
                let arrival = endpoint.link.on_eager(header, || Message::new(slab.share(HEADER_BYTES..len)));
                let event = self.arrived(ep, header.tag, arrival, slab, len);
                self.ready.extend(event);
            }
            Kind::ReadyToSend => {
                let offer = Offer::parse(&slab[HEADER_BYTES..len]);
                self.slabs.repost(slab);
                endpoint.link.give_slot();
                match offer {
                    Ok(offer) => match endpoint.link.on_offer(header, offer) {
                        Offered::Startable => {}
                        Offered::Held => {
                            let (tag, len) = (Tag(header.tag), header.length);
                            self.ready.push_back(Event::Offered { ep, tag, len });
                        }
                        Offered::Misfit(posted) => self.ready.push_back(misfit(ep, posted, header.length)),
                    },
                    Err(error) => self.break_off(index, CloseReason::Protocol(Violation::Wire(error))),
                }
            }
            Kind::Finished => {
                self.slabs.repost(slab);
                endpoint.link.give_slot();
                match endpoint.link.on_finished(header) {
                    Ok((op, carried)) => self.finish_send(op, carried),
                    Err(violation) => self.break_off(index, CloseReason::Protocol(violation)),
                }
            }
            Kind::Credit => self.slabs.repost(slab),
            Kind::Close => {
                self.slabs.repost(slab);
                endpoint.link.on_close();
                self.peer_closes(index);
            }
        }
        self.advance(index);
        self.ready.pop_front()
    }

    /// Posts what can be posted, gives credits back, and ends the connection if both sides are done.
    pub(super) fn advance(&mut self, index: usize) {
        self.pump(index);
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let ep = endpoint.id;
        if endpoint.link.is_finished() {
            return self.finish_close(index);
        }
        self.return_credits(ep);
    }

    /// A request of this side completed.
    #[inline(never)]
    pub(super) fn completed(&mut self, wc: &WorkCompletion, memory: Local) -> Option<Event> {
        let (job, index, generation, number) = parse_wr_id(wc.wr_id);
        let endpoint = self.endpoints.at(index).filter(|endpoint| endpoint.id.generation & 0x3ffff == generation);
        let Some(endpoint) = endpoint else {
            self.stray(job, memory);
            return None;
        };
        if !wc.status.is_success() {
            return self.work_failed(index, job, wc, memory);
        }
        endpoint.link.retire(number);
        match job {
            Job::Send => {}
            Job::SendBuffer => {
                endpoint.copies -= 1;
                self.stray(job, memory);
            }
            Job::Read => self.read_done(index, memory),
            Job::Probe => endpoint.link.probe_done(true),
        }
        self.settle(index);
        self.advance(index);
        self.ready.pop_front()
    }

    /// Memory of a completion that nobody waits for any more.
    fn stray(&mut self, job: Job, memory: Local) {
        if let (Job::SendBuffer, Local::Buffer(buffer)) = (job, memory) {
            self.pool.give_buffer(buffer);
        }
    }

    /// Reads a payload.
    pub(super) fn pull(&mut self, index: usize, mut start: Start<Target>) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let posted = start.posted.take();
        let len = start.len as usize;
        let staged = !self.read_reduce && posted.as_ref().is_some_and(|posted| posted.memory.calc.is_some());
        let (memory, calc, staged) = match posted {
            Some(posted) if !staged => (posted.memory.memory, posted.memory.calc, None),
            posted => match self.pool.slab(len) {
                Ok(Some(slab)) => (Local::Slab(slab), None, posted),
                Ok(None) => {
                    endpoint.link.stall(Start { posted, ..start });
                    return;
                }
                Err(error) => {
                    let error = Box::new(ResourceError::Memory(error));
                    endpoint.link.stall(Start { posted, ..start });
                    return self.break_off(index, CloseReason::Resources(error));
                }
            },
        };
        let (Some(work), Some(qp)) = (endpoint.link.take_slot(), &mut endpoint.qp) else { return };
        let remote = start.offer.remote(start.len);
        let request = match calc {
            None => qp.read(memory, remote),
            Some(calc) => qp.read_reduce(memory, remote, calc),
        };
        let id = wr_id(Job::Read, endpoint.id, work.number);
        match request.range(0..len).id(id).signaled().post() {
            Ok(()) => {
                let staged = staged.map(|posted| posted.memory);
                endpoint.reads.push_back(Reading { key: start.key, staged });
            }
            Err(rejected) => self.pull_refused(index, &start, rejected.into_parts()),
        }
    }

    /// The device does not take the memory of a receive: the receive fails, the message goes to the application.
    #[cold]
    fn pull_refused(&mut self, index: usize, start: &Start<Target>, refused: (qpair_verbs::PostError, Local)) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let (error, memory) = refused;
        match endpoint.link.unmatch(start.key, start.offer) {
            Some(op) => {
                let (op, ep) = (OpId(op), endpoint.id);
                self.ready.push_back(Event::Failed { op, ep, error: error.into(), returned: Returned::Memory(memory) });
            }
            None => self.break_off(index, CloseReason::Resources(Box::new(error.into()))),
        }
    }

    /// A READ completed.
    fn read_done(&mut self, index: usize, memory: Local) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let Some(reading) = endpoint.reads.pop_front() else { return };
        let ep = endpoint.id;
        let Some(Pulled { op, tag, len, .. }) = endpoint.link.pulled(reading.key) else { return };
        self.counters.rendezvous_received += 1;
        let len = len as usize;
        let tag = Tag(tag);
        self.ready.push_back(match (op, reading.staged, memory) {
            (Some(op), Some(target), Local::Slab(slab)) => {
                let posted = Posted { op, tag: tag.0, fit: target.fit(), memory: target };
                let event = fill(ep, tag.0, posted, &slab[..len]);
                self.pool.give_slab(slab);
                event
            }
            (None, _, Local::Slab(slab)) => {
                let message = Message::new(slab.share(0..len));
                self.pool.lend(slab);
                Event::Received { ep, tag, message }
            }
            (op, _, memory) => Event::ReceivedInto { op: OpId(op.unwrap_or_default()), ep, tag, memory, len },
        });
        self.release_held(index);
    }

    /// Hands out messages that waited behind another of their tag.
    fn release_held(&mut self, index: usize) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let ep = endpoint.id;
        while let Some(held) = endpoint.link.next_held() {
            let tag = Tag(held.tag);
            self.ready.push_back(match held.posted {
                Some(posted) => fill(ep, held.tag, posted, &held.body),
                None => Event::Received { ep, tag, message: held.body },
            });
        }
    }

    /// A request failed: the connection breaks; memory of a receive goes back.
    #[cold]
    fn work_failed(&mut self, index: usize, job: Job, wc: &WorkCompletion, memory: Local) -> Option<Event> {
        let endpoint = self.endpoints.at(index)?;
        let ep = endpoint.id;
        match job {
            Job::Read => {
                let reading = endpoint.reads.pop_front();
                let op = reading.as_ref().and_then(|reading| endpoint.link.pull_failed(reading.key));
                let (memory, own) = match reading.and_then(|reading| reading.staged) {
                    Some(target) => (target.memory, Some(memory)),
                    None if op.is_some() => (memory, None),
                    None => (Local::None, Some(memory)),
                };
                if let Some(Local::Slab(slab)) = own {
                    self.pool.give_slab(slab);
                }
                if let Some(op) = op {
                    let returned = Returned::Memory(memory);
                    self.ready.push_back(Event::Failed { op: OpId(op), ep, error: OpError::Closed, returned });
                }
            }
            Job::SendBuffer => {
                endpoint.copies -= 1;
                self.stray(job, memory);
            }
            Job::Send | Job::Probe => {}
        }
        self.break_off(index, reason_of(wc));
        self.settle(index);
        self.ready.pop_front()
    }

    /// A message that no correct peer sends: the connection breaks.
    #[cold]
    #[inline(never)]
    fn refuse_message(&mut self, index: usize, slab: Slab, violation: Violation) -> Option<Event> {
        self.slabs.repost(slab);
        self.break_off(index, CloseReason::Protocol(violation));
        None
    }

    /// A receive that failed: the connection breaks.
    #[cold]
    #[inline(never)]
    pub(super) fn receive_failed(&mut self, wc: &WorkCompletion, memory: Local) -> Option<Event> {
        if let Local::Slab(slab) = memory {
            self.slabs.repost(slab);
        }
        if let Some(index) = self.endpoints.index_of(wc.qpn.0) {
            self.break_off(index, reason_of(wc));
        }
        None
    }
}

/// Puts a message into the memory of its receive.
fn fill(ep: EndpointId, tag: u64, mut posted: Posted<Target>, message: &[u8]) -> Event {
    let op = OpId(posted.op);
    match posted.memory.put(message) {
        Ok(()) => {
            Event::ReceivedInto { op, ep, tag: Tag(tag), memory: posted.memory.memory, len: message.len() }
        }
        Err(error) => Event::Failed { op, ep, error, returned: Returned::Memory(posted.memory.memory) },
    }
}

/// A receive that the message does not fit.
#[cold]
fn misfit(ep: EndpointId, posted: Posted<Target>, len: u64) -> Event {
    let error = OpError::Misfit(posted.memory.misfit(len));
    Event::Failed { op: OpId(posted.op), ep, error, returned: Returned::Memory(posted.memory.memory) }
}

/// Why a connection ends with this completion.
#[cold]
pub(super) fn reason_of(wc: &WorkCompletion) -> CloseReason {
    use qpair_verbs::{CompletionError, WcStatus};
    let WorkCompletion { qpn, opcode, status, vendor_err, .. } = *wc;
    let error = CompletionError { qpn, opcode, status, vendor_err };
    match status {
        WcStatus::RETRY_EXC_ERR | WcStatus::RESP_TIMEOUT_ERR | WcStatus::WR_FLUSH_ERR => {
            CloseReason::PeerLost(Lost::Completion(error))
        }
        _ => CloseReason::Completion(error),
    }
}

/// Slabs with the application above which some are looked at after every message, not only when idle.
const BUSY: usize = 16;
