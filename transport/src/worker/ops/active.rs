//! Active messages: each names the function that the receiver has for it.

use crate::engine::{Class, Envelope};
use crate::worker::Worker;
use crate::worker::error::{SendCopyError, SendError};
use crate::worker::ids::{EndpointId, HandlerId, OpId};
use crate::worker::memory::Payload;

impl Worker {
    /// Sends an active message: [`Event::Active`](crate::Event::Active) hands it out at the peer with `argument`, for the
    /// peer's [`Handlers`](crate::Handlers) to call the function of that number. It is sent as by [`send`](Worker::send); no
    /// receive takes it. Those for one handler are delivered in the order in which they are sent.
    ///
    /// # Errors
    /// As [`send`](Worker::send).
    pub fn send_active(
        &mut self,
        ep: EndpointId,
        handler: HandlerId,
        argument: u64,
        payload: impl Into<Payload>,
    ) -> Result<OpId, SendError> {
        let number = self.op();
        self.submit(number, ep, active(handler, argument), payload.into())
    }

    /// Sends a copy of `data` as an active message. No event follows, and nothing is queued.
    ///
    /// # Errors
    /// As [`send_copy`](Worker::send_copy).
    #[inline]
    pub fn send_active_copy(
        &mut self,
        ep: EndpointId,
        handler: HandlerId,
        argument: u64,
        data: &[u8],
    ) -> Result<(), SendCopyError> {
        self.submit_copy(ep, active(handler, argument), data)
    }
}

#[inline(always)]
fn active(handler: HandlerId, argument: u64) -> Envelope {
    Envelope { class: Class::Active, port: handler.0, tag: argument }
}
