//! Polling for one message, or the first of some.

use super::Worker;
use super::error::WorkerError;
use super::event::Event;
use super::ids::{EndpointId, Tag};

/// What came while a message was polled for, or any of some.
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

    /// Whether it is that message, which is taken then.
    fn is(&mut self, ep: EndpointId, tag: Tag) -> bool;

    /// Takes the message that was said to be it last.
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
    fn is(&mut self, _: EndpointId, _: Tag) -> bool {
        false
    }

    #[inline(always)]
    fn take(&mut self, _: &[u8]) {}
}

/// The first of some messages, and what is made of it.
struct First<K, F, M, R> {
    find: F,
    found: Option<K>,
    make: Option<M>,
    made: Option<R>,
}

impl<K, F, M, R> Await for First<K, F, M, R>
where
    F: FnMut(EndpointId, Tag) -> Option<K>,
    M: FnOnce(K, &[u8]) -> R,
{
    #[inline(always)]
    fn is_something(&self) -> bool {
        true
    }

    #[inline(always)]
    fn is(&mut self, ep: EndpointId, tag: Tag) -> bool {
        self.found = (self.find)(ep, tag);
        self.found.is_some()
    }

    #[inline(always)]
    fn take(&mut self, message: &[u8]) {
        self.made = self.found.take().zip(self.make.take()).map(|(key, make)| make(key, message));
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
        self.poll_for_any(|of, with| ((of, with) == (ep, tag)).then_some(()), |(), message| make(message))
    }

    /// Polls as [`poll_for`](Worker::poll_for) for one who waits for any of several messages: `find` says which of them a message
    /// is, if any, and `make` is told. `find` may be asked about a message more than once, and about one that is refused then; what
    /// `make` is given is taken.
    ///
    /// ```
    /// # use qpair_transport::{Config, Polled, Tag, Worker};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let mut worker = Worker::new(Config::default())?;
    /// # let server = worker.listen("127.0.0.1:0")?;
    /// # let ep = worker.connect(server.local_addr())?;
    /// # while !matches!(worker.poll()?, Some(qpair_transport::Event::Accepted { .. })) {}
    /// # while worker.send_copy(ep, Tag(0), &[]).is_err() {
    /// #     worker.poll()?;
    /// # }
    /// worker.send_copy(ep, Tag(11), b"ab")?;
    /// worker.send_copy(ep, Tag(10), b"cde")?;
    /// let mut lengths = [None; 2];
    /// while lengths.contains(&None) {
    ///     let place = |tag: Tag| tag.0.checked_sub(10).map(|place| place as usize);
    ///     let missing = |_, tag| place(tag).filter(|&place| lengths.get(place) == Some(&None));
    ///     if let Polled::Message((place, len)) = worker.poll_for_any(missing, |place, message| (place, message.len()))? {
    ///         lengths[place] = Some(len);
    ///     }
    /// }
    /// assert_eq!(lengths, [Some(3), Some(2)]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`poll`](Worker::poll).
    #[inline]
    pub fn poll_for_any<K, R>(
        &mut self,
        find: impl FnMut(EndpointId, Tag) -> Option<K>,
        make: impl FnOnce(K, &[u8]) -> R,
    ) -> Result<Polled<R>, WorkerError> {
        let mut first = First { find, found: None, make: Some(make), made: None };
        match self.poll_awaiting(&mut first)? {
            Some(Event::Received { ep, tag, message }) => {
                if first.is(ep, tag) {
                    first.take(&message);
                    return Ok(first.made.map_or(Polled::Nothing, Polled::Message));
                }
                Ok(Polled::Event(Event::Received { ep, tag, message }))
            }
            Some(event) => Ok(Polled::Event(event)),
            None => Ok(first.made.map_or(Polled::Nothing, Polled::Message)),
        }
    }
}
