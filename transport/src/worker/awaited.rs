//! Polling for one message.

use super::Worker;
use super::error::WorkerError;
use super::event::Event;
use super::ids::{EndpointId, Tag};

/// What came while one message was polled for.
#[derive(Debug)]
#[non_exhaustive]
pub enum Polled<R> {
    /// The message: what was made of it.
    Message(R),
    /// Something else.
    Event(Event),
    /// Nothing.
    Nothing,
}

/// What who polls waits for.
pub(super) trait Await {
    /// Whether there is something.
    fn is_something(&self) -> bool;

    /// Whether it is that message.
    fn is(&self, ep: EndpointId, tag: Tag) -> bool;

    /// Takes the message.
    fn take(&mut self, message: &[u8]);
}

/// No message more than another.
pub(super) struct Nothing;

impl Await for Nothing {
    #[inline(always)]
    fn is_something(&self) -> bool {
        false
    }

    #[inline(always)]
    fn is(&self, _: EndpointId, _: Tag) -> bool {
        false
    }

    #[inline(always)]
    fn take(&mut self, _: &[u8]) {}
}

/// One message, and what is made of it.
struct One<F, R> {
    ep: EndpointId,
    tag: Tag,
    make: Option<F>,
    made: Option<R>,
}

impl<F: FnOnce(&[u8]) -> R, R> Await for One<F, R> {
    #[inline(always)]
    fn is_something(&self) -> bool {
        true
    }

    #[inline(always)]
    fn is(&self, ep: EndpointId, tag: Tag) -> bool {
        (self.ep, self.tag) == (ep, tag)
    }

    #[inline(always)]
    fn take(&mut self, message: &[u8]) {
        self.made = self.make.take().map(|make| make(message));
    }
}

impl Worker {
    /// Polls as [`poll`](Worker::poll) for one who waits for a message of `ep` with that tag. If that is what comes, `make` is
    /// given its bytes where they are, and no event is made of it, which takes less time.
    ///
    /// A receive that is posted for that tag takes the message, as ever, and a long one that is [offered](Event::Offered) is told of
    /// by that event. If `make` panics, the room of the message is lost to the peer until the connection ends.
    ///
    /// ```
    /// use qpair_transport::{Config, Polled, Tag, Worker};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut worker = Worker::new(Config::default())?;
    /// let server = worker.listen("127.0.0.1:0")?;
    /// let ep = worker.connect(server.local_addr())?;
    /// # let mut accepted = None;
    /// # let peer = loop {
    /// #     if let Some(qpair_transport::Event::Accepted { ep, .. }) = worker.poll()? {
    /// #         accepted = Some(ep);
    /// #     }
    /// #     if let (Some(peer), Ok(())) = (accepted, worker.send_copy(ep, Tag(0), &[])) {
    /// #         break peer;
    /// #     }
    /// # };
    /// worker.send_copy(ep, Tag(7), &[1, 2, 3])?;
    /// let sum: u8 = loop {
    ///     match worker.poll_for(peer, Tag(7), |message| message.iter().sum())? {
    ///         Polled::Message(sum) => break sum,
    ///         Polled::Event(other) => println!("{other:?}"),
    ///         _ => {}
    ///     }
    /// };
    /// assert_eq!(sum, 6);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`poll`](Worker::poll).
    #[inline]
    pub fn poll_for<R>(
        &mut self,
        ep: EndpointId,
        tag: Tag,
        make: impl FnOnce(&[u8]) -> R,
    ) -> Result<Polled<R>, WorkerError> {
        let mut one = One { ep, tag, make: Some(make), made: None };
        match self.poll_awaiting(&mut one)? {
            Some(Event::Received { ep, tag, message }) if one.is(ep, tag) => {
                one.take(&message);
                Ok(one.made.map_or(Polled::Nothing, Polled::Message))
            }
            Some(event) => Ok(Polled::Event(event)),
            None => Ok(one.made.map_or(Polled::Nothing, Polled::Message)),
        }
    }
}
