//! Sending: eager at once where there is a credit, offered for reading when long, queued otherwise.

use bytes::Bytes;

use super::post::{NOTHING, Pieces, has_memory, has_memory_now, post};
use crate::engine::{Blocked, Class, Envelope, Frame, OFFER_LIMIT, Pending, Readable, Step};
use crate::worker::Worker;
use crate::worker::endpoint::Carried;
use crate::worker::error::{CloseReason, NoKey, OpError, ResourceError, SendCopyError, SendError, SendFailure};
use crate::worker::event::{Event, Returned};
use crate::worker::ids::{EndpointId, OpId, Tag};
use crate::worker::memory::Payload;
use crate::worker::seen::Note;

impl Worker {
    /// Sends a message: copied if it is no longer than the eager limit, else read by the peer when it receives it.
    /// [`Event::Sent`] hands the payload back, or [`Event::Failed`].
    ///
    /// # Errors
    /// [`SendError`] with the payload, if the connection is closed or closing, too many messages wait already, or the
    /// payload can not be exposed.
    pub fn send(&mut self, ep: EndpointId, tag: Tag, payload: impl Into<Payload>) -> Result<OpId, SendError> {
        let number = self.op();
        self.submit(number, ep, Envelope::bare(tag.0), payload.into())
    }

    /// Sends a message of any class, as operation `number`.
    pub(in crate::worker) fn submit(
        &mut self,
        number: u64,
        ep: EndpointId,
        envelope: Envelope,
        payload: Payload,
    ) -> Result<OpId, SendError> {
        let refused = |error, payload| Err(SendError { error, payload });
        let Some(endpoint) = self.endpoints.get_mut(ep) else {
            return refused(SendFailure::Unknown(ep), payload);
        };
        let len = payload.len();
        if len > self.max_message {
            return refused(SendFailure::TooLong { len, limit: self.max_message }, payload);
        }
        if endpoint.link.queued() >= self.config.queue_limit {
            return refused(SendFailure::QueueFull { limit: self.config.queue_limit }, payload);
        }
        let body = match &payload {
            _ if len > endpoint.threshold.bytes() as u64 => return self.send_long(number, ep, envelope, payload),
            Payload::Bytes(bytes) => Pieces::One(bytes),
            Payload::Buffer(buffer) => Pieces::One(buffer),
            Payload::Gather(pieces) => Pieces::Many(pieces),
            Payload::Exposed(_) => return self.send_long(number, ep, envelope, payload),
            Payload::Gpu(buffer) => match self.staging.copy_of(buffer) {
                Ok(copy) => Pieces::One(copy),
                Err(error) => return refused(SendFailure::Memory(error.into()), payload),
            },
        };
        let frame = match has_memory(endpoint, &mut self.pool, self.max_inline, len as usize) {
            Ok(true) => endpoint.link.eager(envelope, len),
            Ok(false) if endpoint.link.takes_messages() => Err(Blocked::Later),
            Ok(false) => Err(Blocked::Closed),
            Err(error) => return refused(SendFailure::Memory(error), payload),
        };
        match frame {
            Ok(frame) => {
                let posted =
                    post(endpoint, &mut self.frame, &mut self.pool, self.max_inline, &mut self.datagrams, frame, &body);
                self.copied(number, ep, envelope, payload, posted);
            }
            Err(Blocked::Later) => {
                self.counters.queued += 1;
                if endpoint.link.queued() == 0 {
                    endpoint.note(self.pace.now(), Note::new("messages wait for room"));
                }
                let payload = wait(payload, self.staging.copied(len as usize));
                endpoint.link.enqueue(Pending { op: number, envelope, len, readable: None, payload });
            }
            Err(Blocked::Closed) => return refused(SendFailure::Closing(ep), payload),
        }
        Ok(OpId::new(number, Some(ep)))
    }

    /// Sends a copy of `data`, no longer than the eager limit. No event follows, and nothing is queued.
    ///
    /// # Errors
    /// [`SendCopyError::WouldBlock`] while the peer has no room or the connection is not up, or where memory to send from is short: poll
    /// and try again. What [`send`](Worker::send) has queued goes first then, of all connections.
    #[inline]
    pub fn send_copy(&mut self, ep: EndpointId, tag: Tag, data: &[u8]) -> Result<(), SendCopyError> {
        self.submit_copy(ep, Envelope::bare(tag.0), data)
    }

    /// Sends a copy of a message of any class.
    #[inline(always)]
    pub(in crate::worker) fn submit_copy(
        &mut self,
        ep: EndpointId,
        envelope: Envelope,
        data: &[u8],
    ) -> Result<(), SendCopyError> {
        let Some(endpoint) = self.endpoints.get_mut(ep) else { return Err(SendCopyError::Closed(ep)) };
        if data.len() > endpoint.threshold.limit() {
            return Err(SendCopyError::TooLong { len: data.len(), limit: endpoint.threshold.limit() });
        }
        match has_memory_now(endpoint, &mut self.pool, self.max_inline, data.len()) {
            Ok(true) => {}
            Ok(false) => return Err(SendCopyError::WouldBlock),
            Err(_) => return Err(SendCopyError::NoMemory { len: data.len() }),
        }
        let frame = match endpoint.link.eager(envelope, data.len() as u64) {
            Ok(frame) => frame,
            Err(Blocked::Later) => return Err(SendCopyError::WouldBlock),
            Err(Blocked::Closed) => return Err(SendCopyError::Closed(ep)),
        };
        let posted = post(endpoint, &mut self.frame, &mut self.pool, self.max_inline, &mut self.datagrams, frame, data);
        if posted.is_err() {
            self.check(ep.index as usize, posted);
            return Err(SendCopyError::Closed(ep));
        }
        self.counters.eager_sent += 1;
        self.counters.bytes_copied += data.len() as u64;
        endpoint.sent.count(data.len() as u64);
        Ok(())
    }

    /// A payload was copied and posted: it is the application's again. Or it was not, and the connection breaks.
    fn copied(
        &mut self,
        number: u64,
        ep: EndpointId,
        envelope: Envelope,
        payload: Payload,
        posted: Result<(), ResourceError>,
    ) {
        match posted {
            Ok(()) => {
                self.counters.eager_sent += 1;
                self.counters.bytes_copied += payload.len();
                if let Some(endpoint) = self.endpoints.get_mut(ep) {
                    endpoint.sent.count(payload.len());
                }
                self.sent(number, ep, envelope, payload);
            }
            Err(error) => {
                let (why, returned) = (OpError::not_posted(&error), Returned::Payload(payload));
                self.send_failed(number, ep, envelope, why, returned);
                self.check(ep.index as usize, Err(error));
            }
        }
    }

    /// A payload may be reused.
    pub(in crate::worker) fn sent(&mut self, number: u64, ep: EndpointId, envelope: Envelope, payload: Payload) {
        if envelope.is_own() {
            return;
        }
        let op = OpId::new(number, Some(ep));
        self.ready.push_back(match envelope.class {
            // The answer ends the operation, and hands the payload out; unless it came already, or is no longer awaited.
            Class::Request => match self.calls.sent(envelope.tag, payload) {
                Ok(()) => return,
                Err(payload) => Event::Released { op, returned: Returned::Payload(payload) },
            },
            _ => Event::Sent { op, payload },
        });
    }

    /// A message was not sent.
    pub(in crate::worker) fn send_failed(
        &mut self,
        number: u64,
        ep: EndpointId,
        envelope: Envelope,
        error: OpError,
        returned: Returned,
    ) {
        // What it stands for has ended, or ends by itself.
        if envelope.is_own() {
            return;
        }
        let op = OpId::new(number, Some(ep));
        if envelope.class == Class::Request && self.calls.cancel(number).is_none() {
            // It has ended already. What is still withheld comes later, once.
            if !matches!(returned, Returned::Withheld) {
                self.ready.push_back(Event::Released { op, returned });
            }
            return;
        }
        self.ready.push_back(Event::Failed { op, ep: Some(ep), error, returned });
    }

    /// Offers a payload for reading.
    fn send_long(
        &mut self,
        number: u64,
        ep: EndpointId,
        envelope: Envelope,
        payload: Payload,
    ) -> Result<OpId, SendError> {
        let Some(endpoint) = self.endpoints.get(ep).filter(|endpoint| endpoint.link.takes_messages()) else {
            return Err(SendError { error: SendFailure::Closing(ep), payload });
        };
        if endpoint.is_of_datagrams() {
            let (len, limit) = (payload.len(), endpoint.threshold.limit() as u64);
            return Err(SendError { error: SendFailure::Datagrams { len, limit }, payload });
        }
        let (len, limit) = (payload.len(), endpoint.longest);
        if len > limit && envelope.class != Class::Tagged {
            return Err(SendError { error: SendFailure::TooLongForPeer { len, limit }, payload });
        }
        let rail = endpoint.rail;
        if let Payload::Exposed(remote) = &payload
            && remote.over(rail, self.rails.home()).is_none()
        {
            return Err(SendError { error: NoKey { rail }.into(), payload });
        }
        let (carried, readable) = match self.expose(payload) {
            Ok(exposed) => exposed,
            Err((error, payload)) => return Err(SendError { error: SendFailure::Memory(error), payload }),
        };
        let op = OpId::new(number, Some(ep));
        let len = readable.len();
        let Some(endpoint) = self.endpoints.get_mut(ep) else { return Ok(op) };
        match endpoint.link.offer(number, envelope, readable, carried) {
            Ok((frame, offer)) => {
                let mut body = [0; OFFER_LIMIT];
                let body = offer.emit(&mut body);
                let posted =
                    post(endpoint, &mut self.frame, &mut self.pool, self.max_inline, &mut self.datagrams, frame, body);
                self.counters.rendezvous_sent += u64::from(posted.is_ok());
                endpoint.sent.count(len);
                endpoint.note(self.pace.now(), Note::with_len("offers", offer.id.into(), len));
                // One at a time, so that the clock is read for few of many.
                if let Readable::At(_) = readable {
                    endpoint.timed.get_or_insert_with(|| (number, len, self.start.elapsed()));
                }
                self.check(ep.index as usize, posted);
            }
            Err(payload) => {
                self.counters.queued += 1;
                let pending = Pending { op: number, envelope, len, readable: Some(readable), payload };
                endpoint.link.enqueue(pending);
            }
        }
        Ok(op)
    }

    /// The peer takes no messages by copy that are as long as some that wait: they are offered instead. Or it takes none that
    /// are as long at all.
    pub(in crate::worker) fn offer_what_is_too_long(&mut self, index: usize) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let (ep, limit, longest) = (endpoint.id, endpoint.threshold.limit() as u64, endpoint.longest);
        let of_datagrams = endpoint.is_of_datagrams();
        let why_not = |pending: &Pending<Carried>| match pending.len {
            len if of_datagrams && len > limit => Some(OpError::Datagrams { limit }),
            len if len > longest && pending.envelope.class != Class::Tagged => {
                Some(OpError::TooLongForPeer { limit: longest })
            }
            _ => None,
        };
        let mut gaps = Vec::new();
        for mut pending in std::mem::take(endpoint.link.queue_mut()) {
            if let Some(error) = why_not(&pending) {
                let Pending { op, envelope, payload, .. } = pending;
                let returned = self.taken(op, ep, payload);
                self.send_failed(op, ep, envelope, error, returned);
                gaps.push((op, envelope));
                continue;
            }
            if pending.readable.is_none() && pending.len > limit {
                let Pending { op, envelope, len, payload, .. } = pending;
                // What waits to be copied is the application's own.
                let Ok(payload) = payload.into_payload() else { continue };
                let (payload, readable) = match self.expose(payload) {
                    Ok(exposed) => exposed,
                    Err((error, payload)) => {
                        let (error, returned) = (OpError::Memory(error.to_string().into()), Returned::Payload(payload));
                        self.send_failed(op, ep, envelope, error, returned);
                        gaps.push((op, envelope));
                        continue;
                    }
                };
                pending = Pending { op, envelope, len, readable: Some(readable), payload };
            }
            if let Some(endpoint) = self.endpoints.at(index) {
                endpoint.link.enqueue(pending);
            }
        }
        gaps.into_iter().for_each(|(op, envelope)| self.leave_gap(op, ep, envelope));
    }

    /// Posts all that the engine has to post for an endpoint.
    pub(in crate::worker) fn pump(&mut self, index: usize) {
        loop {
            let Some(endpoint) = self.endpoints.at(index) else { return };
            if !endpoint.is_connected() {
                return;
            }
            if endpoint.link.is_interrupted() && !self.repeat(index) {
                return;
            }
            let may_copy = self.has_memory_for_next(index);
            let Some(endpoint) = self.endpoints.at(index) else { return };
            let Some(step) = endpoint.link.next_step(may_copy) else { return };
            let (scratch, pool, inline) = (&mut self.frame, &mut self.pool, self.max_inline);
            let datagrams = &mut self.datagrams;
            let posted = match step {
                Step::Control(frame) => post(endpoint, scratch, pool, inline, datagrams, frame, NOTHING),
                Step::Eager { frame, op, payload } => {
                    let (ep, envelope) = (endpoint.id, frame.header.envelope);
                    let body = match &payload {
                        Carried::Bytes(bytes) => Pieces::One(bytes),
                        Carried::Buffer(buffer) => Pieces::One(buffer),
                        Carried::Gather(pieces) => Pieces::Many(pieces),
                        Carried::GpuCopy(copy, _) => Pieces::One(copy),
                        // Only payloads that are copied are queued as eager.
                        _ => Pieces::One(NOTHING),
                    };
                    let posted = post(endpoint, scratch, pool, inline, datagrams, frame, &body);
                    let failed = posted.is_err();
                    if let Ok(payload) = payload.into_payload() {
                        self.copied(op, ep, envelope, payload, posted);
                    }
                    if failed {
                        return;
                    }
                    continue;
                }
                Step::Offer { frame, offer } => {
                    let mut body = [0; OFFER_LIMIT];
                    let posted = post(endpoint, scratch, pool, inline, datagrams, frame, offer.emit(&mut body));
                    let len = frame.header.length;
                    if frame.header.envelope.class != Class::Part {
                        self.counters.rendezvous_sent += u64::from(posted.is_ok());
                        endpoint.sent.count(len);
                        endpoint.note(self.pace.now(), Note::with_len("offers", offer.id.into(), len));
                    }
                    posted
                }
                Step::Pull(key) => {
                    self.pull(index, key);
                    continue;
                }
            };
            if posted.is_err() {
                return self.check(index, posted);
            }
        }
    }

    /// Whether there is memory for the message that is copied next, if one is. Without, it waits until some comes back; one for which
    /// none is to come back fails.
    fn has_memory_for_next(&mut self, index: usize) -> bool {
        while let Some(endpoint) = self.endpoints.at(index)
            && let Some(len) = endpoint.link.next_copied()
        {
            let error = match has_memory(endpoint, &mut self.pool, self.max_inline, len as usize) {
                Ok(has_memory) => return has_memory,
                Err(error) => error,
            };
            let ep = endpoint.id;
            let Some(Pending { op, envelope, payload, .. }) = endpoint.link.queue_mut().pop_front() else { break };
            let returned = self.taken(op, ep, payload);
            self.send_failed(op, ep, envelope, OpError::Memory(error.to_string().into()), returned);
            self.leave_gap(op, ep, envelope);
        }
        true
    }

    /// Gives credits back by a message of their own, if that is due.
    #[inline]
    pub(in crate::worker) fn return_credits(&mut self, ep: EndpointId) {
        let Some(endpoint) = self.endpoints.get_mut(ep) else { return };
        if let Some(frame) = endpoint.link.credit() {
            self.send_credit(ep, &frame);
        }
    }

    pub(in crate::worker) fn send_credit(&mut self, ep: EndpointId, frame: &Frame) {
        let Some(endpoint) = self.endpoints.get_mut(ep) else { return };
        self.counters.credits_sent += 1;
        let posted =
            post(endpoint, &mut self.frame, &mut self.pool, self.max_inline, &mut self.datagrams, *frame, NOTHING);
        self.check(ep.index as usize, posted);
    }

    /// A request that was refused ends the connection: the engine posts only what there is room for.
    pub(in crate::worker) fn check(&mut self, index: usize, posted: Result<(), ResourceError>) {
        if let Err(error) = posted {
            self.break_off(index, CloseReason::Resources(Box::new(error)));
        }
    }
}

/// A payload that is to be copied when its turn comes.
/// `copy`: of a GPU's memory, its bytes.
fn wait(payload: Payload, copy: &[u8]) -> Carried {
    match payload {
        Payload::Bytes(bytes) => Carried::Bytes(bytes),
        Payload::Gather(pieces) => Carried::Gather(pieces),
        Payload::Buffer(buffer) => Carried::Buffer(buffer),
        Payload::Exposed(remote) => Carried::Remote(remote),
        Payload::Gpu(buffer) => Carried::GpuCopy(Bytes::copy_from_slice(copy), buffer),
    }
}
