//! Requests and their answers.

use crate::engine::{Call, Class, Envelope};
use crate::worker::Worker;
use crate::worker::error::{OpError, SendCopyError, SendError};
use crate::worker::event::{Event, Returned};
use crate::worker::ids::{EndpointId, HandlerId, OpId};
use crate::worker::memory::{Message, Payload};

/// A request of a peer, as [`Event::Request`] hands it out.
#[derive(Debug)]
pub struct Request {
    /// The connection.
    pub ep: EndpointId,
    /// What it is for.
    pub handler: HandlerId,
    /// What it says.
    pub message: Message,
    /// To answer it with.
    pub reply: Reply,
}

/// The right to answer a request, once. If it is dropped, the peer waits until its deadline, or the connection's end.
#[derive(Debug)]
#[must_use = "a request that is not answered keeps its sender waiting"]
pub struct Reply {
    ep: EndpointId,
    call: u64,
}

impl Reply {
    /// The connection that the answer goes to.
    pub fn endpoint(&self) -> EndpointId {
        self.ep
    }
}

impl Worker {
    /// Sends a request: [`Event::Request`] hands it out at the peer, whose answer [`Event::Response`] hands out here,
    /// together with the payload. [`Event::Failed`] comes instead if the peer declines, the connection ends, or the time is
    /// over that [`set_deadline`](Worker::set_deadline) gave. Requests for one handler are delivered in the order in which
    /// they are sent; answers come in any order.
    ///
    /// # Errors
    /// As [`send`](Worker::send).
    ///
    /// ```
    /// use qpair_transport::{Config, Event, Flow, HandlerId, Worker};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut worker = Worker::new(Config::default())?;
    /// let server = worker.listen("127.0.0.1:0")?;
    /// let ep = worker.connect(server.local_addr())?;
    /// worker.request(ep, HandlerId(1), &b"2 + 2"[..])?;
    /// worker.run(|event, worker| match event {
    ///     Event::Request(request) => {
    ///         assert_eq!(&request.message[..], b"2 + 2");
    ///         worker.respond(request.reply, &b"4"[..]).expect("the peer is there");
    ///         Flow::Continue
    ///     }
    ///     Event::Response { message, .. } => {
    ///         assert_eq!(&message[..], b"4");
    ///         Flow::Stop
    ///     }
    ///     _ => Flow::Continue,
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn request(
        &mut self,
        ep: EndpointId,
        handler: HandlerId,
        payload: impl Into<Payload>,
    ) -> Result<OpId, SendError> {
        let number = self.op();
        let tag = self.calls.insert(number, ep.peer());
        let envelope = Envelope { class: Class::Request, port: handler.0, tag };
        self.submit(number, ep, envelope, payload.into()).inspect_err(|_| {
            self.calls.cancel(number);
        })
    }

    /// Sends a copy of `data` as a request, no longer than the eager limit: without an allocation, and nothing is queued. All
    /// else is as of [`request`](Worker::request).
    ///
    /// # Errors
    /// As [`send_copy`](Worker::send_copy).
    pub fn request_copy(&mut self, ep: EndpointId, handler: HandlerId, data: &[u8]) -> Result<OpId, SendCopyError> {
        let number = self.op();
        let tag = self.calls.insert(number, ep.peer());
        let envelope = Envelope { class: Class::Request, port: handler.0, tag };
        match self.submit_copy(ep, envelope, data) {
            Ok(()) => {
                // Nothing is to come back.
                let _ = self.calls.sent(tag, bytes::Bytes::new().into());
                Ok(OpId::new(number, Some(ep)))
            }
            Err(error) => {
                self.calls.cancel(number);
                Err(error)
            }
        }
    }

    /// Answers a request by a copy of `data`, no longer than the eager limit. No event follows, and nothing is queued or
    /// allocated.
    ///
    /// # Errors
    /// As [`send_copy`](Worker::send_copy), with the right to answer, to try again.
    pub fn respond_copy(&mut self, reply: Reply, data: &[u8]) -> Result<(), (SendCopyError, Reply)> {
        self.submit_copy(reply.ep, response(&reply, 0), data).map_err(|error| (error, reply))
    }

    /// Answers a request. It is sent as by [`send`](Worker::send).
    ///
    /// # Errors
    /// As [`send`](Worker::send), with the right to answer: after [`SendFailure::QueueFull`](crate::SendFailure) to try again,
    /// else to decline.
    #[expect(clippy::result_large_err, reason = "what was handed in comes back")]
    pub fn respond(&mut self, reply: Reply, payload: impl Into<Payload>) -> Result<OpId, (SendError, Reply)> {
        let number = self.op();
        self.submit(number, reply.ep, response(&reply, 0), payload.into()).map_err(|error| (error, reply))
    }

    /// Answers a request by a number that says why there is no answer: the peer gets [`Event::Failed`] with
    /// [`OpError::Declined`]. What numbers mean is the application's; 0 is [`Reply`]s' of
    /// [`Handlers`](crate::Handlers) that have no function for a request.
    ///
    /// # Errors
    /// As [`respond`](Worker::respond).
    #[expect(clippy::result_large_err, reason = "what was handed in comes back")]
    pub fn decline(&mut self, reply: Reply, why: u16) -> Result<OpId, (SendError, Reply)> {
        let number = self.op();
        // One more, since 0 says that it is an answer. The greatest goes as the one below it, with a byte.
        let envelope = response(&reply, why.saturating_add(1));
        let rest: &'static [u8] = if why == u16::MAX { &[1] } else { &[] };
        self.submit(number, reply.ep, envelope, bytes::Bytes::from_static(rest).into()).map_err(|error| (error, reply))
    }

    /// A request came.
    pub(in crate::worker) fn requested(&mut self, ep: EndpointId, envelope: Envelope, message: Message) {
        let (handler, reply) = (HandlerId(envelope.port), Reply { ep, call: envelope.tag });
        self.ready.push_back(Event::Request(Request { ep, handler, message, reply }));
    }

    /// An answer came.
    pub(in crate::worker) fn answered(&mut self, ep: EndpointId, envelope: Envelope, message: Message) {
        let Some(call) = self.calls.answer(envelope.tag, ep.peer()) else {
            self.counters.late_answers += 1;
            return;
        };
        let (op, returned) = (OpId::new(call.op, Some(ep)), returned(call));
        self.ready.push_back(match envelope.port.checked_sub(1) {
            None => Event::Response { op, ep, message, returned },
            Some(why) => {
                let is_greatest = why == u16::MAX - 1 && !message.is_empty();
                let why = if is_greatest { u16::MAX } else { why };
                Event::Failed { op, ep: Some(ep), error: OpError::Declined(why), returned }
            }
        });
    }

    /// A connection has ended: nobody answers any more.
    pub(in crate::worker) fn drop_calls(&mut self, ep: EndpointId) {
        for call in self.calls.drop_peer(ep.peer()) {
            let (op, returned) = (OpId::new(call.op, Some(ep)), returned(call));
            self.ready.push_back(Event::Failed { op, ep: Some(ep), error: OpError::Closed, returned });
        }
    }
}

/// What was sent with a request.
pub(super) fn returned(call: Call<Payload>) -> Returned {
    call.payload.map_or(Returned::Withheld, Returned::Payload)
}

fn response(reply: &Reply, port: u16) -> Envelope {
    Envelope { class: Class::Response, port, tag: reply.call }
}
