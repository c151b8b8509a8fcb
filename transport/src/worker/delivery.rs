//! What the application gets of a message: into the memory of its receive, or as it is, by what it is about.

use qpair_verbs::Local;

use super::Worker;
use super::error::{CloseReason, OpError};
use super::event::{Event, Returned};
use super::ids::{EndpointId, HandlerId, OpId, Tag};
use super::memory::{Message, Target};
use crate::engine::{Class, Delivery, Envelope, Freed, Posted, Violation, Waiting};

/// The contents of a message that waits for its turn.
#[derive(Debug)]
pub(crate) enum Body {
    /// As they came, or in a slab that they were read into.
    Message(Message),
    /// In the memory of their receive.
    Into { op: OpId, memory: Local, result: Result<(), OpError> },
}

impl Worker {
    /// Delivers all messages whose turn has come, and goes on with those that lost their receives.
    pub(super) fn deliver_due(&mut self) {
        self.deliver();
        while let Some(freed) = self.inbox.next_freed() {
            if let Some(index) = self.take_up(freed) {
                self.pump(index);
            }
        }
    }

    /// The same, without reading what can be read now: for those whom [`pump`](Worker::pump) called, which goes on with it.
    pub(super) fn deliver_in_pump(&mut self) {
        self.deliver();
        while let Some(freed) = self.inbox.next_freed() {
            self.take_up(freed);
        }
    }

    fn deliver(&mut self) {
        while let Some(Delivery { peer, envelope, len, body, posted }) = self.inbox.next_due() {
            let ep = EndpointId::of(peer);
            match (body, posted) {
                (None, _) => self.stream_part(ep, envelope, None),
                (Some(Body::Message(message)), posted) => {
                    let message = message.handed_out(self.lends_from);
                    match posted {
                        None => self.hand_out(ep, envelope, message),
                        Some(posted) => self.fill(ep, envelope, posted, message),
                    }
                }
                (Some(Body::Into { op, memory, result: Ok(()) }), _) => {
                    let (tag, len) = (Tag(envelope.tag), len as usize);
                    self.ready.push_back(Event::ReceivedInto { op, ep, tag, memory, len });
                }
                (Some(Body::Into { op, memory, result: Err(error) }), _) => {
                    let returned = Returned::Memory(memory);
                    self.ready.push_back(Event::Failed { op, ep: Some(ep), error, returned });
                }
            }
        }
    }

    /// An offer lost its receive, or a receive its message. Gives the connection that has something to read now.
    #[cold]
    fn take_up(&mut self, freed: Freed<Target>) -> Option<usize> {
        match freed {
            Freed::Startable(peer, key) => {
                let ep = EndpointId::of(peer);
                self.endpoints.get_mut(ep)?.link.want(key);
                Some(ep.index as usize)
            }
            Freed::Waits(Waiting { peer, tag, len }) => {
                self.ready.push_back(Event::Offered { ep: EndpointId::of(peer), tag: Tag(tag), len });
                None
            }
            Freed::Misfit { peer, posted, len } => {
                self.ready.push_back(misfit(EndpointId::of(peer), posted, len));
                None
            }
        }
    }

    /// A message without a receive.
    pub(super) fn hand_out(&mut self, ep: EndpointId, envelope: Envelope, message: Message) {
        let Envelope { class, port, tag } = envelope;
        match class {
            Class::Tagged => self.ready.push_back(Event::Received { ep, tag: Tag(tag), message }),
            Class::Active => {
                let handler = HandlerId(port);
                self.ready.push_back(Event::Active { ep, handler, argument: tag, message });
            }
            Class::Request => self.requested(ep, envelope, message),
            Class::Response => self.answered(ep, envelope, message),
            Class::Stream => self.stream_part(ep, envelope, Some(message)),
            Class::Notice => self.noticed(ep, envelope, message),
            Class::Part => {
                let violation = Violation::Part { id: tag, len: message.len() as u64, left: 0 };
                self.break_off(ep.index as usize, CloseReason::Protocol(violation));
            }
        }
    }

    /// Gives a message, which fits, to its receive.
    pub(super) fn fill(&mut self, ep: EndpointId, envelope: Envelope, posted: Posted<Target>, message: Message) {
        let (op, tag, mut target) = (receive_op(&posted), Tag(envelope.tag), posted.memory);
        if target.whole {
            return self.ready.push_back(Event::Matched { op, ep, tag, message });
        }
        self.counters.bytes_copied += message.len() as u64;
        self.ready.push_back(match target.put(&message) {
            Ok(()) => Event::ReceivedInto { op, ep, tag, memory: target.memory, len: message.len() },
            Err(error) => Event::Failed { op, ep: Some(ep), error, returned: Returned::Memory(target.memory) },
        });
    }
}

/// The operation that a posted receive is.
pub(super) fn receive_op(posted: &Posted<Target>) -> OpId {
    OpId::new(posted.op, posted.pattern.source.map(EndpointId::of))
}

/// A receive that the message does not fit.
#[cold]
pub(super) fn misfit(ep: EndpointId, posted: Posted<Target>, len: u64) -> Event {
    let (op, error) = (receive_op(&posted), OpError::Misfit(posted.memory.misfit(len)));
    Event::Failed { op, ep: Some(ep), error, returned: Returned::Memory(posted.memory.memory) }
}
