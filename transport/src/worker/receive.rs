//! Receiving: what an arriving message, or a finished READ, means for the application.

use qpair_verbs::calc::Calc;
use qpair_verbs::{CompletionError, Local, Qpn, Slab, WcStatus, WorkCompletion};

use super::Worker;
use super::endpoint::{Combining, Job, OneSided, Reading, Stage, parse_wr_id};
use super::error::{CloseReason, Lost, OpError, RecvError, RecvFailure};
use super::event::{Event, Returned};
use super::ids::{EndpointId, OpId, Tag};
use super::message::Message;
use super::target::Target;
use crate::engine::{
    Arrival, HEADER_BYTES, Header, HeaderView, Kind, Offer, Offered, Placed, Posted, Violation, WireError,
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
        let staged = target.calc.is_some() && !self.read_reduce;
        match endpoint.link.post(Posted { op, tag: tag.0, fit: target.fit(), staged, memory: target }) {
            Placed::Waits => {}
            Placed::Startable => self.pump(ep.index as usize),
            Placed::Misfit { posted, len } => {
                let misfit = posted.memory.misfit(len);
                return refused(RecvFailure::Misfit(misfit), posted.memory);
            }
        }
        Ok(OpId(op))
    }

    /// A message came. Gives it if it simply goes to the application; all else is done, and its events are in `ready`.
    ///
    /// This is the way of a short message that nothing else has to do with: it should stay short.
    #[inline(always)]
    pub(super) fn received(
        &mut self,
        wr_id: u64,
        qpn: Qpn,
        len: usize,
        slab: Slab,
    ) -> Option<(EndpointId, Tag, Message)> {
        let Some(endpoint) = self.endpoints.receiver(wr_id, qpn.0) else {
            // Of a connection that ended; its slots went back as if this had not come.
            self.slabs.stray(slab);
            return None;
        };
        let ep = endpoint.id;
        let header = match HeaderView::new_checked(slab.get(..len).unwrap_or_default()) {
            Ok(view) => Header::parse(&view),
            Err(error) => {
                self.refuse_message(ep, slab, error.into());
                return None;
            }
        };
        if let Err(violation) = endpoint.link.accept(&header) {
            self.refuse_message(ep, slab, violation);
            return None;
        }
        if header.kind != Kind::Eager
            || header.length != (len - HEADER_BYTES) as u64
            || !endpoint.up
            || !endpoint.link.is_plain()
        {
            self.received_other(ep, &header, slab, len);
            return None;
        }
        self.counters.eager_received += 1;
        if self.slabs.lent() >= BUSY {
            self.reclaim(2);
        }
        // Last of all, so that the message is put together where the caller wants it.
        let slab = self.slabs.lend(slab, ep);
        Some((ep, Tag(header.tag), Message::new(slab, HEADER_BYTES..len)))
    }

    /// A message that is not the plain case.
    #[cold]
    #[inline(never)]
    fn received_other(&mut self, ep: EndpointId, header: &Header, slab: Slab, len: usize) {
        let index = ep.index as usize;
        // The first message says as much as the handshake's last: the peer is connected.
        self.announce(index);
        let Some(endpoint) = self.endpoints.at(index) else { return };
        if matches!(endpoint.stage, Stage::Ending { .. }) {
            return self.slabs.put_by(slab);
        }
        if header.kind == Kind::Eager {
            self.received_eager(ep, header, slab, len);
        } else {
            let offer = Offer::parse(slab.get(HEADER_BYTES..len).unwrap_or_default());
            if let Err(error) = self.slabs.post(slab, endpoint) {
                return self.check(index, Err(error.into()));
            }
            self.received_word(ep, header, offer);
        }
        self.advance(index);
    }

    fn received_eager(&mut self, ep: EndpointId, header: &Header, slab: Slab, len: usize) {
        let got = len - HEADER_BYTES;
        if header.length != got as u64 {
            let error = WireError::Length { said: header.length, got };
            return self.refuse_message(ep, slab, error.into());
        }
        let Some(endpoint) = self.endpoints.get_mut(ep) else { return };
        self.counters.eager_received += 1;
        let tag = Tag(header.tag);
        let whole = || Message::new(&slab, HEADER_BYTES..len);
        let received = match endpoint.link.on_eager(header, whole) {
            Arrival::Matched(posted) => {
                let event = fill(OpId(posted.op), ep, tag, posted.memory, &slab[HEADER_BYTES..len]);
                self.ready.push_back(event);
                return self.repost(slab, ep);
            }
            Arrival::Misfit { posted, held } => {
                self.ready.push_back(misfit(ep, posted, header.length));
                !held
            }
            Arrival::Unmatched => true,
            Arrival::Held => false,
        };
        if received {
            self.ready.push_back(Event::Received { ep, tag, message: whole() });
        }
        self.slabs.lend(slab, ep);
    }

    /// A message of the protocol's own.
    fn received_word(&mut self, ep: EndpointId, header: &Header, offer: Result<Offer, WireError>) {
        let Some(endpoint) = self.endpoints.get_mut(ep) else { return };
        let limit = self.max_message;
        let violation = match header.kind {
            Kind::ReadyToSend => match offer {
                Ok(_) if header.length > limit => Violation::TooLong { len: header.length, limit },
                Ok(offer) => {
                    let outcome = endpoint.link.on_offer(header, offer);
                    return self.offered(ep, header, outcome);
                }
                Err(error) => Violation::Wire(error),
            },
            Kind::Finished => {
                endpoint.link.give_slot();
                match endpoint.link.on_finished(header) {
                    Ok((op, carried)) => return self.finish_send(op, carried),
                    Err(violation) => violation,
                }
            }
            Kind::Close => {
                endpoint.link.on_close();
                return self.peer_closes(ep.index as usize);
            }
            Kind::Credit | Kind::Eager => return,
        };
        self.break_off(ep.index as usize, CloseReason::Protocol(violation));
    }

    fn offered(&mut self, ep: EndpointId, header: &Header, outcome: Offered<Target>) {
        let held = match outcome {
            Offered::Startable => false,
            Offered::Held => true,
            Offered::Misfit { posted, held } => {
                self.ready.push_back(misfit(ep, posted, header.length));
                held
            }
        };
        if held {
            self.ready.push_back(Event::Offered { ep, tag: Tag(header.tag), len: header.length });
        }
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
    pub(super) fn completed(&mut self, wc: &WorkCompletion, memory: Local) {
        let (job, index, generation, number) = parse_wr_id(wc.wr_id);
        let endpoint = self.endpoints.at(index).filter(|endpoint| endpoint.id.generation & 0x3ffff == generation);
        // Of a connection that ended: what it had with the device was written off.
        let Some(endpoint) = endpoint else { return };
        if !wc.status.is_success() {
            return self.work_failed(index, job, wc, memory);
        }
        endpoint.link.retire(number);
        match job {
            Job::Send => {}
            Job::SendBuffer => self.copy_done(index, memory),
            Job::Read => self.read_done(index, memory),
            Job::Probe => endpoint.link.probe_done(true),
        }
        self.settle(index);
        self.advance(index);
    }

    /// A message went out from a buffer of the pool, or will not.
    fn copy_done(&mut self, index: usize, memory: Local) {
        if let (Some(endpoint), Local::Buffer(buffer)) = (self.endpoints.at(index), memory) {
            endpoint.copied -= buffer.len();
            self.pool.give_buffer(buffer);
        }
    }

    /// A request failed: the connection breaks; memory of an operation goes back.
    #[cold]
    fn work_failed(&mut self, index: usize, job: Job, wc: &WorkCompletion, memory: Local) {
        match job {
            Job::Read => self.read_failed(index, memory),
            Job::SendBuffer => self.copy_done(index, memory),
            Job::Send | Job::Probe => {}
        }
        self.break_off(index, reason_of(wc));
        self.settle(index);
    }

    fn read_failed(&mut self, index: usize, memory: Local) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let ep = endpoint.id;
        let (op, memory) = match endpoint.reads.pop_front() {
            Some(OneSided::Pull(Reading { key, staged, pooled })) => {
                let op = endpoint.link.pull_failed(key).map(OpId);
                (op, self.unstage(memory, staged, pooled))
            }
            Some(OneSided::Get(op) | OneSided::Put(op)) => (Some(op), memory),
            Some(OneSided::Combine(Combining { op, target, pooled, .. })) => {
                (Some(op), self.unstage(memory, Some(target), pooled))
            }
            Some(OneSided::Fetch(fetching)) => {
                self.give_back(memory);
                return self.fetch_failed(ep, fetching.op);
            }
            None => (None, memory),
        };
        if let Some(op) = op {
            let returned = Returned::Memory(memory);
            self.ready.push_back(Event::Failed { op, ep, error: OpError::Closed, returned });
        }
    }

    /// A message that no correct peer sends: the connection breaks.
    #[cold]
    #[inline(never)]
    fn refuse_message(&mut self, ep: EndpointId, slab: Slab, violation: Violation) {
        self.announce(ep.index as usize);
        self.slabs.stray(slab);
        self.break_off(ep.index as usize, CloseReason::Protocol(violation));
    }

    /// A receive that failed: the connection breaks.
    #[cold]
    #[inline(never)]
    pub(super) fn receive_failed(&mut self, wc: &WorkCompletion, memory: Local) {
        let Local::Slab(slab) = memory else { return };
        let Some(endpoint) = self.endpoints.receiver(wc.wr_id, wc.qpn.0) else { return self.slabs.stray(slab) };
        endpoint.flushed += 1;
        let index = endpoint.id.index as usize;
        self.slabs.put_by(slab);
        if wc.status != WcStatus::WR_FLUSH_ERR {
            self.announce(index);
        }
        self.break_off(index, reason_of(wc));
    }
}

/// Puts a message into the memory of its receive.
pub(super) fn fill(op: OpId, ep: EndpointId, tag: Tag, mut target: Target, message: &[u8]) -> Event {
    match target.put(message) {
        Ok(()) => Event::ReceivedInto { op, ep, tag, memory: target.memory, len: message.len() },
        Err(error) => Event::Failed { op, ep, error, returned: Returned::Memory(target.memory) },
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
