//! Receiving: what an arriving message, or a finished READ, means for the application.

use qpair_verbs::calc::Calc;
use qpair_verbs::{CompletionError, Local, Qpn, Slab, WcStatus, WorkCompletion};

use super::Worker;
use super::endpoint::{Job, OneSided, Stage, parse_wr_id};
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

    /// A message came. Gives it if it simply goes to the application; all else is done, and its events are in `ready`.
    ///
    /// This is the way of a short message that nothing else has to do with: it should stay short.
    #[inline(always)]
    pub(super) fn received(&mut self, qpn: Qpn, len: usize, slab: Slab) -> Option<(EndpointId, Tag, Message)> {
        let Some(index) = self.endpoints.index_of(qpn.0) else {
            // Of a connection that ended; its slots went back as if this had not come.
            self.slabs.post(slab, None);
            return None;
        };
        let endpoint = self.endpoints.at(index)?;
        let header = match HeaderView::new_checked(slab.get(..len).unwrap_or_default()) {
            Ok(view) => Header::parse(&view),
            Err(error) => {
                self.refuse_message(index, slab, error.into());
                return None;
            }
        };
        if let Err(violation) = endpoint.link.accept(&header) {
            self.refuse_message(index, slab, violation);
            return None;
        }
        let ep = endpoint.id;
        if header.kind != Kind::Eager
            || header.length != (len - HEADER_BYTES) as u64
            || !endpoint.up
            || !endpoint.link.is_plain()
        {
            self.received_other(index, &header, slab, len);
            return None;
        }
        self.counters.eager_received += 1;
        let message = Message::new(&slab, HEADER_BYTES..len);
        self.slabs.lend(slab, ep);
        if self.slabs.lent() >= BUSY {
            self.reclaim(2);
        }
        Some((ep, Tag(header.tag), message))
    }

    /// An eager message that does not simply go to the application.
    fn arrived(&mut self, ep: EndpointId, tag: u64, arrival: Arrival<Target>, slab: Slab, len: usize) {
        match arrival {
            Arrival::Matched(posted) => {
                self.ready.push_back(fill(ep, tag, posted, &slab[HEADER_BYTES..len]));
                self.repost(slab, ep);
            }
            Arrival::Misfit { posted, held } => {
                self.ready.push_back(misfit(ep, posted, (len - HEADER_BYTES) as u64));
                let message = Message::new(&slab, HEADER_BYTES..len);
                self.slabs.lend(slab, ep);
                if !held {
                    self.ready.push_back(Event::Received { ep, tag: Tag(tag), message });
                }
            }
            Arrival::Unmatched => {
                let message = Message::new(&slab, HEADER_BYTES..len);
                self.slabs.lend(slab, ep);
                self.ready.push_back(Event::Received { ep, tag: Tag(tag), message });
            }
            Arrival::Held => self.slabs.lend(slab, ep),
        }
    }

    /// A message that is not the plain case.
    #[cold]
    #[inline(never)]
    fn received_other(&mut self, index: usize, header: &Header, slab: Slab, len: usize) {
        // The first message says as much as the handshake's last: the peer is connected.
        self.announce(index);
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let ep = endpoint.id;
        if matches!(endpoint.stage, Stage::Ending { .. }) {
            return self.slabs.put_by(slab);
        }
        match header.kind {
            Kind::Eager if header.length != (len - HEADER_BYTES) as u64 => {
                let error = WireError::Length { said: header.length, got: len - HEADER_BYTES };
                return self.refuse_message(index, slab, error.into());
            }
            Kind::Eager => {
                self.counters.eager_received += 1;
                let arrival = endpoint.link.on_eager(header, || Message::new(&slab, HEADER_BYTES..len));
                self.arrived(ep, header.tag, arrival, slab, len);
            }
            Kind::ReadyToSend => {
                let offer = Offer::parse(&slab[HEADER_BYTES..len]);
                self.slabs.post(slab, endpoint.qp.as_mut());
                endpoint.link.give_slot();
                let limit = self.max_message;
                match offer {
                    Ok(_) if header.length > limit => {
                        let violation = Violation::TooLong { len: header.length, limit };
                        self.break_off(index, CloseReason::Protocol(violation));
                    }
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
                self.slabs.post(slab, endpoint.qp.as_mut());
                endpoint.link.give_slot();
                match endpoint.link.on_finished(header) {
                    Ok((op, carried)) => self.finish_send(op, carried),
                    Err(violation) => self.break_off(index, CloseReason::Protocol(violation)),
                }
            }
            Kind::Credit => self.slabs.post(slab, endpoint.qp.as_mut()),
            Kind::Close => {
                self.slabs.post(slab, endpoint.qp.as_mut());
                endpoint.link.on_close();
                self.peer_closes(index);
            }
        }
        self.advance(index);
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
        let Some(endpoint) = endpoint else {
            return self.stray(job, memory);
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
    }

    /// Memory of a completion that nobody waits for any more.
    fn stray(&mut self, job: Job, memory: Local) {
        if let (Job::SendBuffer, Local::Buffer(buffer)) = (job, memory) {
            self.pool.give_buffer(buffer);
        }
    }

    /// A request failed: the connection breaks; memory of a receive goes back.
    #[cold]
    fn work_failed(&mut self, index: usize, job: Job, wc: &WorkCompletion, memory: Local) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let ep = endpoint.id;
        match job {
            Job::Read => {
                let reading = match endpoint.reads.pop_front() {
                    Some(OneSided::Pull(reading)) => Some(reading),
                    Some(OneSided::Get(op) | OneSided::Put(op)) => {
                        let returned = Returned::Memory(memory);
                        self.ready.push_back(Event::Failed { op, ep, error: OpError::Closed, returned });
                        self.break_off(index, reason_of(wc));
                        return self.settle(index);
                    }
                    None => None,
                };
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
    }

    /// A message that no correct peer sends: the connection breaks.
    #[cold]
    #[inline(never)]
    fn refuse_message(&mut self, index: usize, slab: Slab, violation: Violation) {
        self.announce(index);
        self.slabs.post(slab, None);
        self.break_off(index, CloseReason::Protocol(violation));
    }

    /// A receive that failed: the connection breaks.
    #[cold]
    #[inline(never)]
    pub(super) fn receive_failed(&mut self, wc: &WorkCompletion, memory: Local) {
        if let Local::Slab(slab) = memory {
            self.slabs.put_by(slab);
        }
        if let Some(index) = self.endpoints.index_of(wc.qpn.0) {
            if let Some(endpoint) = self.endpoints.at(index) {
                endpoint.flushed += 1;
            }
            if wc.status != WcStatus::WR_FLUSH_ERR {
                self.announce(index);
            }
            self.break_off(index, reason_of(wc));
        }
    }
}

/// Puts a message into the memory of its receive.
pub(super) fn fill(ep: EndpointId, tag: u64, mut posted: Posted<Target>, message: &[u8]) -> Event {
    let op = OpId(posted.op);
    match posted.memory.put(message) {
        Ok(()) => Event::ReceivedInto { op, ep, tag: Tag(tag), memory: posted.memory.memory, len: message.len() },
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
