//! What the completion queue gives: messages that came, and requests that completed.

use qpair_verbs::{Completion, Local, Qpn, Slab, WorkCompletion};

use super::Worker;
use super::awaited::Await;
use super::delivery::{Body, misfit};
use super::endpoint::{Endpoint, Stage};
use super::endpoints::Endpoints;
use super::error::CloseReason;
use super::event::Event;
use super::ids::{EndpointId, Tag};
use super::memory::Message;
use super::seen::Note;
use super::work_id::{Job, parse_wr_id};
use crate::engine::{
    Arrival, Class, Envelope, HEADER_BYTES, Header, HeaderView, Kind, Offer, Offered, Violation, WireError,
};

/// A message that simply goes to the application.
pub(super) struct Plain {
    pub(super) ep: EndpointId,
    pub(super) envelope: Envelope,
    pub(super) message: Message,
}

/// The queue pair that something completed of: its number, and on which of the worker's devices that counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    pub(super) device: usize,
    pub(super) qpn: Qpn,
}

impl At {
    /// True if that is the queue pair which the connection has now.
    #[inline(always)]
    pub(super) fn is_of(self, endpoint: &Endpoint) -> bool {
        endpoint.device == self.device && endpoint.qp.as_ref().is_some_and(|qp| qp.number() == self.qpn)
    }
}

/// How messages go to the application.
#[derive(Clone, Copy)]
pub(super) struct WayIn {
    /// The inbox hands out what comes as it is.
    pub(super) plain: bool,
    /// Short ones are copied.
    pub(super) copies: bool,
}

/// What a completion brings, looked at where it is.
pub(super) enum InPlace<'e> {
    /// A short message that simply goes to the application. Its endpoint has taken note of it.
    Short(&'e mut Endpoint, Envelope, Message),
    /// A message that was awaited, and is taken; likewise.
    Taken(&'e mut Endpoint),
    /// The same that no correct peer sends.
    Violation(EndpointId, Violation),
    /// Any other message, with nothing done.
    Other,
}

impl<'e> InPlace<'e> {
    // Each way out makes its value where it is returned: a copy of what was just written would have the processor wait until all
    // that was written before, for peers too, has left it.
    #[inline(always)]
    pub(super) fn of(
        endpoints: &'e mut Endpoints,
        WayIn { plain, copies }: WayIn,
        completion: &Completion<'_>,
        awaited: &mut impl Await,
    ) -> Self {
        if !plain {
            return InPlace::Other;
        }
        let Some(bytes) = completion.message() else { return InPlace::Other };
        let message = if copies { Message::copied(bytes, HEADER_BYTES) } else { None };
        if message.is_none() && !awaited.is_something() {
            return InPlace::Other;
        }
        let Ok(view) = HeaderView::new_checked(bytes) else { return InPlace::Other };
        let header = Header::parse(&view);
        let Some(endpoint) = endpoints.receiver(completion.wr_id(), completion.qpn().0) else { return InPlace::Other };
        let is_whole = is_plain(&header) && header.length == (bytes.len() - HEADER_BYTES) as u64;
        if !is_whole || !endpoint.up || endpoint.link.has_steps() || endpoint.link.retains() {
            return InPlace::Other;
        }
        let is_awaited = header.envelope.class == Class::Tagged && awaited.is(endpoint.id, Tag(header.envelope.tag));
        let message = if is_awaited { None } else { message };
        if message.is_none() && !is_awaited {
            return InPlace::Other;
        }
        match endpoint.link.accept(&header) {
            Ok(()) => {
                endpoint.received.count(header.length);
                match message {
                    Some(message) => InPlace::Short(endpoint, header.envelope, message),
                    None => {
                        awaited.take(&bytes[HEADER_BYTES..]);
                        InPlace::Taken(endpoint)
                    }
                }
            }
            Err(violation) => InPlace::Violation(endpoint.id, violation),
        }
    }
}

/// True for messages that go to the application as they are, if nothing is before them.
#[inline(always)]
fn is_plain(header: &Header) -> bool {
    header.kind == Kind::Eager && header.envelope.class as u8 <= Class::Active as u8
}

impl Worker {
    /// A message came. Gives it if it simply goes to the application; all else is done, and its events are in `ready`.
    ///
    /// This is the way of a short message that nothing else has to do with: it should stay short.
    #[inline(always)]
    pub(super) fn received(&mut self, at: At, wr_id: u64, len: usize, slab: Slab) -> Option<Plain> {
        let Some(endpoint) = self.endpoints.receiver(wr_id, at.qpn.0) else {
            // Of a connection that ended; its slots went back as if this had not come.
            self.slabs.stray(slab, at.device > 0);
            return None;
        };
        let ep = endpoint.id;
        if endpoint.link.retains() && !at.is_of(endpoint) {
            // Of a queue pair whose place another has taken, and not counted when the peer was told: it comes again.
            self.slabs.put_by(slab);
            return None;
        }
        let header = match HeaderView::new_checked(slab.get(..len).unwrap_or_default()) {
            Ok(view) => Header::parse(&view),
            Err(error) => {
                self.refuse_message(ep, slab, error.into());
                return None;
            }
        };
        // Before its slot counts as taken: see `refuse_message`.
        let accepted = endpoint.link.confirm(header.acknowledged).and_then(|()| endpoint.link.accept(&header));
        if let Err(violation) = accepted {
            self.refuse_message(ep, slab, violation);
            return None;
        }
        if !is_plain(&header)
            || header.length != (len - HEADER_BYTES) as u64
            || !endpoint.up
            || endpoint.link.has_steps()
            || !self.inbox.is_plain()
        {
            self.received_other(ep, &header, slab, len);
            return None;
        }
        self.counters.eager_received += 1;
        endpoint.received.count(header.length);
        if self.slabs.lent() >= BUSY {
            self.reclaim(2);
        }
        // Last of all, so that the message is put together where the caller wants it.
        let slab = self.slabs.lend(slab, ep);
        Some(Plain { ep, envelope: header.envelope, message: Message::new(slab, HEADER_BYTES..len, self.lends_from) })
    }

    /// A message that is not the plain case.
    #[cold]
    #[inline(never)]
    pub(super) fn received_other(&mut self, ep: EndpointId, header: &Header, slab: Slab, len: usize) {
        let index = ep.index as usize;
        // The first message says as much as the handshake's last: the peer is connected.
        self.announce(index);
        let Some(endpoint) = self.endpoints.at(index) else { return };
        if matches!(endpoint.stage, Stage::Ending { .. }) {
            // Those without a credit are counted as posted until the end.
            endpoint.flushed += u32::from(!header.takes_credit());
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
        let Header { envelope, length, .. } = *header;
        let got = len - HEADER_BYTES;
        if length != got as u64 {
            self.slabs.put_by(slab);
            let violation = WireError::Length { said: length, got }.into();
            return self.break_off(ep.index as usize, CloseReason::Protocol(violation));
        }
        self.counters.eager_received += 1;
        if let Some(endpoint) = self.endpoints.get_mut(ep) {
            endpoint.received.count(length);
        }
        let from = self.lends_from;
        let whole = || Message::new(&slab, HEADER_BYTES..len, from);
        // What waits takes the peer's window, however short it is.
        let held = || Body::Message(Message::new(&slab, HEADER_BYTES..len, 0));
        match self.inbox.eager(ep.peer(), envelope, length, held) {
            Arrival::Matched(posted) => self.fill(ep, envelope, posted, whole()),
            Arrival::Misfit { posted, held } => {
                self.ready.push_back(misfit(ep, posted, length));
                if held {
                    // It may be another's.
                    self.deliver_due();
                } else {
                    self.hand_out(ep, envelope, whole());
                }
            }
            Arrival::Unmatched => self.hand_out(ep, envelope, whole()),
            // Behind one that waits, receives may have failed.
            Arrival::Held => self.deliver_due(),
        }
        if slab.is_unique() {
            return self.repost(slab, ep);
        }
        self.slabs.lend(slab, ep);
        if self.slabs.lent() >= BUSY {
            self.reclaim(2);
        }
    }

    /// A message of the protocol's own.
    fn received_word(&mut self, ep: EndpointId, header: &Header, offer: Result<Offer, WireError>) {
        let Some(endpoint) = self.endpoints.get_mut(ep) else { return };
        if header.kind != Kind::ReadyToSend && header.takes_credit() {
            endpoint.link.give_slot();
        }
        match header.kind {
            Kind::Withdrawn => endpoint.note(self.pace.now(), Note::of("the peer lets go of", header.envelope.tag)),
            Kind::Cancel => endpoint.note(self.pace.now(), Note::of("the peer takes back", header.envelope.tag)),
            _ => {}
        }
        let limit = self.max_message;
        let violation = match header.kind {
            Kind::ReadyToSend => match offer {
                Ok(offer) if offer.in_parts && header.length == 0 => {
                    Violation::Part { id: offer.id.into(), len: 0, left: 0 }
                }
                Ok(_) if header.length > limit => Violation::TooLong { len: header.length, limit },
                Ok(offer) => return self.offered(ep, header, offer),
                Err(error) => Violation::Wire(error),
            },
            Kind::Finished | Kind::Withdrawn => match endpoint.link.on_finished(header) {
                Ok(exposed) => {
                    if exposed.was_read && !exposed.envelope.is_own() {
                        endpoint.note(self.pace.now(), Note::of("the peer has read", header.envelope.tag));
                    }
                    if let Some((_, len, since)) = endpoint.timed.take_if(|(op, ..)| *op == exposed.op)
                        && exposed.was_read
                    {
                        endpoint.threshold.read(self.start.elapsed().saturating_sub(since), len);
                    }
                    return self.finish_send(ep, exposed);
                }
                Err(violation) => violation,
            },
            Kind::Cancel => return self.withdraw(ep, header.envelope.tag),
            Kind::Want => return self.wanted(ep, header),
            Kind::Close => {
                endpoint.link.on_close();
                return self.peer_closes(ep.index as usize);
            }
            Kind::Credit => match endpoint.link.on_credit(header) {
                Ok(slots) => return self.take_back_slots(slots),
                Err(violation) => violation,
            },
            Kind::Eager => return,
        };
        self.break_off(ep.index as usize, CloseReason::Protocol(violation));
    }

    /// A peer gave up slots that it had for a while.
    fn take_back_slots(&mut self, slots: u32) {
        if slots > 0 {
            self.shares.give(slots);
            self.slabs.release(slots, slots, false);
        }
    }

    pub(super) fn offered(&mut self, ep: EndpointId, header: &Header, offer: Offer) {
        let Header { envelope, length: len, .. } = *header;
        let Some(endpoint) = self.endpoints.get_mut(ep) else { return };
        if envelope.class != Class::Part {
            endpoint.note(self.pace.now(), Note::with_len("the peer offers", offer.id.into(), len));
        }
        let closing = endpoint.link.is_closing();
        if let Err(violation) = endpoint.link.offered(header, offer.id) {
            return self.break_off(ep.index as usize, CloseReason::Protocol(violation));
        }
        let outcome = self.inbox.offer(ep.peer(), envelope, len, offer, closing);
        let startable = match outcome {
            Offered::Startable(key) => Some(key),
            Offered::Held => None,
            Offered::Misfit { posted, startable } => {
                self.ready.push_back(misfit(ep, posted, len));
                startable
            }
            Offered::TooLong { limit } => {
                let violation = Violation::TooLong { len, limit };
                return self.break_off(ep.index as usize, CloseReason::Protocol(violation));
            }
        };
        match startable {
            Some(key) => endpoint.link.want(key),
            None => self.ready.push_back(Event::Offered { ep, tag: Tag(envelope.tag), len }),
        }
        self.deliver_due();
    }

    /// The peer takes an offer back: it may, unless it is being read.
    fn withdraw(&mut self, ep: EndpointId, id: u64) {
        let Ok(id) = u32::try_from(id) else { return };
        if self.inbox.withdraw(ep.peer(), id) {
            if let Some(endpoint) = self.endpoints.get_mut(ep) {
                endpoint.link.withdrawn(id);
            }
            self.deliver_due();
            if self.inbox.is_stalled() {
                // What waited behind it may be read now.
                self.resume();
            }
        }
    }

    /// Posts what can be posted, gives credits back, and ends the connection if both sides are done.
    pub(super) fn advance(&mut self, index: usize) {
        self.pump(index);
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let ep = endpoint.id;
        if endpoint.link.is_flushing() {
            self.see_to_flushes(index);
        }
        let Some(endpoint) = self.endpoints.at(index) else { return };
        if endpoint.link.is_finished() {
            return self.finish_close(index);
        }
        self.return_credits(ep);
    }

    /// A request of this side completed.
    #[inline(never)]
    pub(super) fn completed(&mut self, device: usize, wc: &WorkCompletion, memory: Local) {
        let work = parse_wr_id(wc.wr_id);
        let (job, index) = (work.job, work.index);
        let endpoint = self.endpoints.at(index).filter(|endpoint| work.is_of(endpoint.id));
        // Of a connection that ended: what it had with the device was written off.
        let Some(endpoint) = endpoint else { return };
        if !(At { device, qpn: wc.qpn }).is_of(endpoint) {
            // Of a queue pair whose place another has taken: all that it had of memory came back before.
            return;
        }
        if !wc.status.is_success() {
            return self.work_failed(index, job, wc, memory);
        }
        endpoint.link.retire(work.number);
        match job {
            Job::Send => {}
            Job::SendBuffer => self.copy_done(index, memory),
            Job::Read => self.read_done(index, memory),
            Job::Probe => self.probe_answered(index),
        }
        self.settle(index);
        self.advance(index);
        if job == Job::SendBuffer && self.pool.has_line() {
            self.feed();
        }
    }

    /// A message went out from a buffer of the pool, or will not.
    pub(super) fn copy_done(&mut self, index: usize, memory: Local) {
        if let (Some(endpoint), Local::Buffer(buffer)) = (self.endpoints.at(index), memory) {
            endpoint.copied -= buffer.len();
            self.pool.give_message(buffer);
        }
    }
}

/// Slabs with the application above which some are looked at after every message, not only when idle.
pub(super) const BUSY: usize = 16;
